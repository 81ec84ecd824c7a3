//! `netns-teardown-stuck`: the kernel's only worker that tears down netns (`cleanup_net`, net/core/net_namespace.c)
//! makes no progress. Netns that ended since then wait behind it; they are queued, not leaked.

use super::cause::{FRAMES, blocked_tasks};
use super::evidence::{self, By, Proof};
use super::run::{Again, Detector, Judged};
use crate::contract::{self, HolderKind};
use crate::fact::BootNs;
use crate::finding::{Candidate, Code, Severity, Subject};
use crate::map::{Kinds, NodeMap, Teardown, Thresholds};
use crate::remedy::{Command, Step, Text, said, text, value};

pub(super) const DETECTOR: Detector =
    Detector::Whole { on: Kinds::NETNS.and(Kinds::TEARDOWN), beyond: Kinds::NONE, detect };

fn detect(map: &NodeMap, _now: BootNs, thresholds: &Thresholds) -> Judged {
    let found = map.teardown().and_then(|busy| candidate(map, busy, thresholds));
    // The finding lists every waiting netns.
    let again = Again::always_if(found.is_some());
    (found.into_iter().collect(), again)
}

fn candidate(map: &NodeMap, busy: &Teardown, thresholds: &Thresholds) -> Option<Candidate> {
    if busy.seen.since(busy.since) < thresholds.teardown_grace {
        return None;
    }
    let boot = map.boot()?;
    let worker = &busy.worker;
    let mut proof = Proof::new(map);
    let wchan = worker.wchan.as_deref().map_or_else(|| "unknown".to_owned(), said);
    proof.tell(
        By::Procfs,
        busy.seen,
        format!(
            "kernel worker {} is in cleanup_net: state {}, wchan {wchan}",
            worker.pid, worker.state
        ),
    );
    if !worker.stack.is_empty() {
        let frames: Vec<String> =
            worker.stack.iter().take(FRAMES).map(|frame| said(frame)).collect();
        proof.tell(By::Procfs, busy.seen, format!("its stack: {}", frames.join(" < ")));
    }
    if let Some(message) = &worker.message {
        proof.tell(By::KernelLog, busy.seen, said(message));
    }
    let mut dying: Vec<_> = map.dying().collect();
    dying.sort_by_key(|netns| netns.dying);
    for netns in dying.iter().take(8) {
        let ips = evidence::addresses(netns).join(", ");
        let ips = if ips.is_empty() { String::new() } else { format!(", still up: {ips}") };
        let at = netns.dying.unwrap_or_default();
        proof.tell(By::Probe, at, format!("{} began to end{ips}", evidence::netns_text(netns)));
    }
    let first = dying.first();
    let queued = dying.len().saturating_sub(1);
    let waiting = match queued {
        0 => Text::default(),
        n => text!(" {} netns already wait behind it.", n),
    };
    Some(Candidate {
        code: Code::NetnsTeardownStuck,
        key: format!("{}/{}", boot.boot_id, worker.pid),
        severity: Severity::Info,
        subject: Subject {
            ip: first.and_then(|netns| netns.routable().map(|(key, _)| key.local).next()),
            netns: first.map(|netns| map.netns_view(netns)),
            ..Subject::default()
        },
        holders: vec![contract::Holder {
            pid: Some(worker.pid),
            comm: Some("cleanup_net".to_owned()),
            state: Some(worker.state),
            since: Some(map.calendar().date(busy.since)),
            ..contract::Holder::of_kind(HolderKind::Kernel)
        }],
        evidence: proof.done(),
        since: busy.since,
        observed: busy.seen,
        impact: text!(
            "The kernel removes no netns of this node any more: their devices and addresses stay until the worker \
             continues.{} New pods soon fail because their devices already exist.",
            waiting
        ),
        remediation: remediation(worker),
        caused_by: None,
        preexisting: busy.preexisting,
    })
}

/// Whether the worker waits for a lock right where `cleanup_net` takes one. The lock's own functions are not on the
/// stack: `__sched` text is left out, and `rtnl_lock` is a tail call (6.1, 6.12).
fn waits_for_lock(worker: &crate::fact::Cleanup) -> bool {
    const TAKES: [&str; 3] = ["cleanup_net", "ops_undo_list", "default_device_exit_batch"];
    let top = worker.stack.first().and_then(|frame| frame.split('+').next());
    worker.state == 'D' && top.is_some_and(|top| TAKES.contains(&top))
}

fn remediation(worker: &crate::fact::Cleanup) -> Vec<Step> {
    // A kernel worker keeps its pid as long as it is in this function.
    let path = |command: Command| command.word("/proc/{}/stack", &[worker.pid.into()]);
    let at_it = path(Command::new("grep").owns(&["-q", "cleanup_net"]));
    let mut steps =
        vec![Step::look(text!("See what it waits for"), at_it.and(path(Command::new("cat"))))];
    let waits_in = |name: &str| worker.stack.iter().any(|frame| frame.contains(name));
    if let Some(message) = &worker.message {
        steps.push(Step::advice(text!(
            "A reference to a device was never dropped ({}): a bug of the kernel or of a module. Only a reboot \
             frees it: drain the node first, and keep the message for a report.",
            value(message)
        )));
    } else if waits_in("rtnl_lock") || waits_for_lock(worker) {
        steps.push(blocked_tasks(text!(
            "Another task holds a lock of the kernel's network (rtnl or pernet_ops_rwsem). The kernel log then lists the \
             tasks that are blocked; free the one that is stuck elsewhere"
        )));
    } else {
        steps.push(Step::advice(text!(
            "If it makes no progress within minutes, drain the node and reboot it."
        )));
    }
    steps.push(Step::never(&text!("restart the runtime or the CNI; they only add to the queue")));
    steps
}
