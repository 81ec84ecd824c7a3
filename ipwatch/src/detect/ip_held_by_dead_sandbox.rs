//! `ip-held-by-dead-sandbox`: a netns with an IP still has tasks, but its sandbox is dead according to the runtime:
//! NotReady, exited, or no longer there.
//!
//! Only a runtime that answers, and that confirmed it after the grace, can show this. A sandbox that no runtime ever
//! reported counts only if a kubelet of this node made it: pods of a cluster inside a container are unknown here.
//!
//! Who only visits what a sandbox has left behind, or passes through it, is none of its tasks.

use super::evidence::{self, By, Proof};
use super::run::{Again, Detector, Judged, Listed, Subject};
use crate::fact::BootNs;
use crate::finding::{Candidate, Code, Severity};
use crate::map::{Kinds, Netns, NodeMap, SandboxEntry, SandboxVerdict, TaskEntry, Thresholds};
use crate::remedy::{Command, Step, guard, said, text, value};

pub(super) const DETECTOR: Detector = Detector::Each {
    listed_on: Kinds::NONE,
    listed_beyond: Kinds::NETNS.and(Kinds::RUNTIMES),
    list,
    beyond: Kinds::NETNS.and(Kinds::TASKS).and(Kinds::RUNTIMES).and(Kinds::CALLS),
    judge,
};

fn list(map: &NodeMap, _now: BootNs, _thresholds: &Thresholds) -> Listed {
    let dead = map.dead_sandboxes().map(|(_, netns)| netns);
    dead.chain(map.strangers()).map(|netns| netns.id.into()).collect::<Vec<_>>().into()
}

fn judge(map: &NodeMap, subject: &Subject, now: BootNs, thresholds: &Thresholds) -> Judged {
    let found = map.netns(subject.netns).and_then(|netns| candidate(map, netns, now, thresholds));
    // Which tasks have been there for long enough to be named changes with time.
    let next = found.as_ref().and_then(|_| map.next_resident(subject.netns, now));
    (found.into_iter().collect(), Again::at(next))
}

/// Since when the sandbox is dead, according to which entry, and when that was last confirmed.
struct Verdict<'a> {
    since: BootNs,
    said: BootNs,
    entry: Option<&'a SandboxEntry>,
}

fn verdict<'a>(map: &'a NodeMap, netns: &Netns, thresholds: &Thresholds) -> Option<Verdict<'a>> {
    let owner = netns.owner()?;
    let (entry, since, from) = match map.verdict_on(&owner.sandbox) {
        SandboxVerdict::Dead(entry) | SandboxVerdict::Gone(entry) => {
            (Some(entry), entry.dead?, entry.dead?.plus(thresholds.sandbox_grace))
        }
        SandboxVerdict::Denied(first) if owner.kubelet => {
            (None, first.max(netns.first_seen), map.denied_from(netns, first, thresholds))
        }
        _ => return None,
    };
    let said = match entry {
        Some(entry) => map.last_listed(&entry.sandbox.runtime)?,
        None => map.all_listed()?,
    };
    // What was said before anybody was in it says nothing of those who are.
    let from = netns.entered_since().map_or(from, |entered| entered.max(from));
    (said >= from).then_some(Verdict { since, said, entry })
}

fn candidate(
    map: &NodeMap,
    netns: &Netns,
    now: BootNs,
    thresholds: &Thresholds,
) -> Option<Candidate> {
    if netns.host || netns.dying.is_some() || netns.inhabitants().next().is_none() {
        return None;
    }
    let verdict = verdict(map, netns, thresholds)?;
    let subject = evidence::subject(map, netns);
    let ip = subject.ip?;
    let boot = map.boot()?;
    let owner = netns.owner()?;
    let whose =
        evidence::owner(subject.pod.as_ref(), subject.container.as_ref(), text!("the sandbox"));
    let tasks: Vec<_> = map
        .resident_views(netns.id, now)
        .into_iter()
        .filter(|holder| holder.pid.is_some() && holder.mount_path.is_none() && holder.fd.is_none())
        .collect();
    let pids: Vec<u32> = tasks.iter().filter_map(|holder| holder.pid).collect();
    let key = format!("{}/{}/{}", boot.boot_id, netns.identity, owner.sandbox);
    let is_found = evidence::is_found(Code::IpHeldByDeadSandbox, &key);
    Some(Candidate {
        code: Code::IpHeldByDeadSandbox,
        key,
        severity: Severity::Warning,
        evidence: evidence(map, netns, now, &verdict, &pids),
        impact: text!(
            "{} is still up in the netns of {}, although {}. Once IPAM frees it, the next pod that is assigned {} \
             shares it.",
            ip,
            whose,
            match verdict.entry {
                Some(_) => "its runtime reports it as dead",
                None => "no runtime that could have created it has it",
            },
            ip
        ),
        remediation: remediation(map, netns, now, &owner.sandbox, &is_found),
        holders: tasks,
        subject,
        since: verdict.since,
        observed: verdict.said,
        caused_by: None,
        preexisting: verdict.entry.is_none_or(|entry| entry.preexisting),
    })
}

fn evidence(
    map: &NodeMap,
    netns: &Netns,
    now: BootNs,
    verdict: &Verdict<'_>,
    pids: &[u32],
) -> Vec<crate::finding::Evidence> {
    let mut proof = Proof::new(map);
    match verdict.entry {
        Some(entry) => proof.runtime(entry),
        None => {
            let runtimes: Vec<&str> = map.runtimes().collect();
            let id = said(netns.owner().map_or("", |owner| evidence::short(&owner.sandbox)));
            let text =
                format!("no runtime has sandbox {id}; asked: {}", evidence::listed(runtimes));
            proof.tell(By::Runtime, verdict.said, text);
        }
    }
    let some: Vec<String> = pids.iter().take(8).map(u32::to_string).collect();
    let more = if pids.len() > some.len() { ", …" } else { "" };
    let text = format!(
        "{} in {}: pid {}{more}",
        evidence::count(pids.len(), "task"),
        evidence::netns_text(netns),
        some.join(", "),
    );
    proof.tell(By::Procfs, verdict.said, text);
    let frozen = map.residents(netns, now).filter_map(|key| map.task(key)?.look.as_ref());
    if frozen.into_iter().any(|entry| entry.look.frozen == Some(true)) {
        proof.tell(By::Procfs, verdict.said, "its cgroup is frozen");
    }
    let ips = evidence::addresses(netns).join(", ");
    proof.tell(By::Netlink, verdict.said, format!("still up: {ips}"));
    proof.done()
}

/// Maximum number of processes that are listed individually.
const TOLD: usize = 8;

fn remediation(
    map: &NodeMap,
    netns: &Netns,
    now: BootNs,
    sandbox: &str,
    is_found: &Command,
) -> Vec<Step> {
    let may_be_given = evidence::may_be_given();
    let mut steps = vec![evidence::no_more(map, Some(sandbox), may_be_given, is_found.clone())];
    let tasks = || map.residents(netns, now).filter_map(|key| map.task(key));
    let frozen = tasks()
        .find(|task| task.look.as_ref().is_some_and(|entry| entry.look.frozen == Some(true)));
    steps.extend(frozen.map(thaw));
    match map.verdict_on(sandbox) {
        // A container that was started again and stopped on purpose is not removed with its data.
        SandboxVerdict::Dead(entry) if entry.sandbox.runtime == "docker" => {
            let what = text!("Let docker clean up (it refuses to remove a running container)");
            let remove = Command::new("docker").own("rm").value(sandbox);
            steps.push(match evidence::still(map, netns) {
                Some(still) => Step::change(what, is_found.clone().and(still).and(remove)),
                None => evidence::by_its_client(what, Some("docker")),
            });
        }
        SandboxVerdict::Dead(_) => {
            let what = text!("Let the runtime clean up");
            steps.push(evidence::remove_sandbox(map, what, is_found.clone(), sandbox));
            steps.push(Step::advice(text!(
                "If that hangs, a process in the sandbox hangs: ipwatch scan names it and what it waits for."
            )));
        }
        // Nothing else ends them. SIGTERM does nothing to the init of a pid namespace that has no handler for it
        // (`sig_task_ignored`, kernel/signal.c); SIGKILL from outside does. A process that hangs in its exit is ended
        // by neither.
        _ => {
            let left =
                tasks().filter(|task| task.key.is_leader() && task.leaving_since().is_none());
            let left = left.filter(|task| !is_of_living(map, task, sandbox));
            steps.extend(left.take(TOLD).map(|task| end(task, is_found)));
        }
    }
    steps.push(Step::never(&text!("delete the reservation of this IP while it is up")));
    steps
}

/// Whether a task is in a container of another sandbox, which is not known to be dead: such as an agent that stays.
fn is_of_living(map: &NodeMap, task: &TaskEntry, sandbox: &str) -> bool {
    let Some(id) = map.container_of(&task.key).0.and_then(|container| container.id) else {
        return false;
    };
    let of = map.container(&id).and_then(|known| known.container.sandbox.as_deref());
    let of = of.unwrap_or(&id);
    of != sandbox && map.sandbox(of).is_some_and(|entry| entry.dead.is_none())
}

/// Only while no runtime owns it: the runtime may know its container again.
fn end(task: &TaskEntry, is_found: &Command) -> Step {
    let kill = Command::new("kill").own("-9").number(task.key.pid);
    let what = text!(
        "Kill what is left of it, since no runtime manages it: pid {} ({})",
        task.key.pid,
        value(&task.comm)
    );
    Step::change(what, is_found.clone().and(guard::is_same_task(&task.key)).and(kill))
}

/// Through the file that froze it, while it is still frozen, and only while this very process exists.
fn thaw(task: &TaskEntry) -> Step {
    let what = text!("Thaw its cgroup, so that the killed processes can exit");
    let Some(file) = task.look.as_ref().and_then(|entry| entry.look.frozen_by.as_deref()) else {
        return Step::advice(what.then(&text!(
            ": 0 into its cgroup.freeze, or on cgroup v1 THAWED into its freezer.state."
        )));
    };
    let (frozen, thawed) =
        if file.ends_with("/freezer.state") { ("FROZEN|FREEZING", "THAWED") } else { ("1", "0") };
    let still = Command::new("grep").owns(&["-qxE", frozen]).path(file);
    let thaw = Command::new("echo").own(thawed).into_file(file);
    Step::change(what, guard::is_same_task(&task.key).and(still).and(thaw))
}
