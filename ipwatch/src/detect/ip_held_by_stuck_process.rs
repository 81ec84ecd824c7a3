//! `ip-held-by-stuck-process`: a netns with an IP is held by a thread that is exiting or killed and does not end.
//!
//! A thread is stuck if it still has namespaces and is exiting (`PF_EXITING`) or has SIGKILL pending, in **any** state,
//! for longer than its grace: `exit(0)` hanging in a FUSE flush sleeps interruptibly with no signal pending, `kill -9`
//! shows D. A thread is not stuck if its cgroup is frozen (it ends when it is thawed), or while its core is being
//! dumped, until that takes too long and nothing is written any more.
//!
//! A thread that makes progress (it runs, uses CPU time, writes its core, or the threads of its process become fewer) is
//! slow, not stuck: unmapping gigabytes takes many seconds in a cgroup with little CPU. That is reported as information.
//! The grace begins again with the last look that showed progress. A thread that waits for others of its process is slow
//! as long as one of them makes progress.
//!
//! If no pod has the netns and no store reserves its IP, the finding is information: a `sshfs` that hangs in a netns
//! made by hand affects nobody else.
//!
//! A process is also stuck if none of its files under `/proc` can be read for that long: it hangs in `execve` with a
//! lock that its readers need (`exec_update_lock`). The files of a frozen process can be read.

use std::net::IpAddr;

use super::cause::{Cause, FRAMES, blocked_tasks};
use super::evidence::{self, By, Proof};
use super::exit_progress::{self, Thread, grace};
use super::run::{self, Again, Detector, Judged, Listed};
use crate::contract::{Container, HolderKind, Pod};
use crate::fact::{BootNs, Presence, TaskKey};
use crate::finding::{Candidate, Code, Evidence, Severity, Subject};
use crate::map::{Kill, Kinds, LookEntry, Netns, NodeMap, Places, TaskEntry, Thresholds};
use crate::remedy::{Step, Text, said, text};

/// Maximum number of threads that are listed, and of which the proof is told.
const THREADS: usize = 32;
/// Maximum number of processes that are judged: a user can have as many that hang as there are pids.
const JUDGED: Places = Places { of_one: 64, of_users: 128, of_others: 1024 };
/// `PF_EXITING` of `include/linux/sched.h`.
const PF_EXITING: u32 = 0x4;
/// SIGKILL (9) in a signal mask as `/proc/PID/status` prints it.
const SIGKILL_BIT: u64 = 1 << 8;

pub(super) const DETECTOR: Detector = Detector::Each {
    listed_on: Kinds::TASKS.and(Kinds::NETNS),
    listed_beyond: Kinds::NONE,
    list,
    beyond: Kinds::NETNS.and(Kinds::TASKS).and(Kinds::RUNTIMES).and(Kinds::IPAM),
    judge,
};

/// Threads that should have ended by now: one subject for each process that has a place.
fn list(map: &NodeMap, _now: BootNs, thresholds: &Thresholds) -> Listed {
    let mut late: Vec<&TaskEntry> = map
        .seen_leaving()
        .filter(|task| task.look.as_ref().is_some_and(|look| is_late(task, look, thresholds)))
        .collect();
    late.sort_by_key(|task| task.key);
    let processes = late.chunk_by(|a, b| a.key.pid == b.key.pid && a.netns == b.netns);
    let subject = |threads: &[&TaskEntry]| {
        let since = threads.iter().filter_map(|task| task.leaving_since()).min()?;
        let tasks = threads.iter().map(|task| task.key).collect();
        Some((since, run::Subject { netns: threads.first()?.netns, tasks }))
    };
    Listed::within(map, JUDGED, processes.filter_map(subject).collect())
}

fn judge(map: &NodeMap, subject: &run::Subject, _now: BootNs, thresholds: &Thresholds) -> Judged {
    let tasks = subject.tasks.iter().filter_map(|key| map.task(key));
    let threads: Vec<_> =
        tasks.filter_map(|task| task.look.as_deref().map(|look| (task, look))).collect();
    let hang = exit_progress::hanging(&threads, thresholds);
    let found = candidate(map, if hang.is_empty() { &threads } else { &hang }, thresholds);
    (found.into_iter().collect(), Again::OnChange)
}

/// Whether a task that was leaving before the first look has not had its grace since: after a restart it may be the one
/// that a finding is about.
pub(super) fn undecided(map: &NodeMap, thresholds: &Thresholds) -> bool {
    map.left_before().any(|task| {
        let since = task.leaving_since().unwrap_or_default();
        task.look.as_ref().is_none_or(|entry| entry.at.since(since) < grace(entry, thresholds))
    })
}

/// Whether the task should have ended by now and has not.
fn is_late(task: &TaskEntry, entry: &LookEntry, thresholds: &Thresholds) -> bool {
    let look = &entry.look;
    let Some(since) = task.leaving_since() else { return false };
    if look.is_blank() {
        let since = task.silent.unwrap_or(entry.at);
        return entry.at.since(since) >= grace(entry, thresholds);
    }
    let holds = matches!(look.netns, Some(Presence::In(_)));
    let leaving =
        look.flags & PF_EXITING != 0 || (look.sig_pending | look.shared_pending) & SIGKILL_BIT != 0;
    // The freezer state must be known: a frozen task with SIGKILL pending looks the same (cgroup v1).
    holds
        && leaving
        && look.frozen == Some(false)
        && entry.at.since(since) >= grace(entry, thresholds)
}

/// The finding about threads of one process, of which either all hang or none does.
fn candidate(
    map: &NodeMap,
    threads: &[(&TaskEntry, &LookEntry)],
    thresholds: &Thresholds,
) -> Option<Candidate> {
    let (first, _) = threads.first()?;
    let netns = map.netns(first.netns)?;
    let ip = netns.routable().map(|(key, _)| key.local).next()?;
    if netns.host {
        return None;
    }
    let (container, pod) = sandbox(map, first);
    let kill = map.kill_of(&first.key);
    let since = threads.iter().filter_map(|(task, _)| task.leaving_since()).min()?;
    // As old as the oldest look: a first look at a second thread is no second look.
    let observed = threads.iter().map(|(_, look)| look.at).min()?;
    let boot = map.boot()?;
    let pid = first.key.pid;
    let progress = exit_progress::of(threads, thresholds);
    let limit = || exit_progress::throttled_to(threads, thresholds);
    // No pod and no store has an IP of this netns: whoever made it is the only one affected.
    let witnessed = netns.routable().any(|(key, _)| map.has_witness_of(netns, key.local));
    let harmless = progress.is_some() || !witnessed;

    let shown = shown(threads);
    let mut holders: Vec<_> = shown.iter().filter_map(|(task, _)| holder(map, task)).collect();
    let rest = threads.len() - shown.len();
    if let Some(first) = holders.first_mut().filter(|_| rest > 0) {
        first.more_threads = Some(u32::try_from(rest).unwrap_or(u32::MAX));
    }

    // Without thread ids and start times, because the set of hanging threads changes. While one of them exists, the pid
    // is not reused.
    let key = format!("{}/{}/{pid}", boot.boot_id, netns.identity);
    let is_found = evidence::is_found(Code::IpHeldByStuckProcess, &key);
    let id = container.as_ref().and_then(|container| container.id.as_deref());
    let no_more = || evidence::no_more(map, id, evidence::may_be_given(), is_found);
    Some(Candidate {
        code: Code::IpHeldByStuckProcess,
        key,
        severity: if harmless { Severity::Info } else { Severity::Warning },
        subject: Subject {
            ip: Some(ip),
            netns: Some(map.netns_view(netns)),
            container: container.clone(),
            pod: pod.clone(),
            ..Subject::default()
        },
        holders,
        evidence: evidence(
            map,
            (&shown, rest),
            netns,
            (kill, exit_progress::proof(threads, thresholds, since), witnessed),
        ),
        since,
        observed,
        impact: match progress {
            Some(_) => exit_progress::impact(ip, pod.as_ref(), container.as_ref(), limit()),
            None => impact(ip, pod.as_ref(), container.as_ref(), witnessed),
        },
        remediation: match progress {
            Some(progress) => exit_progress::remediation(progress, limit()),
            None => remediation(threads, witnessed.then(no_more)),
        },
        caused_by: None,
        preexisting: first.preexisting,
    })
}

/// The threads that are listed, among them one whose cause is known: a process may have thousands.
fn shown<'a>(threads: &[Thread<'a>]) -> Vec<Thread<'a>> {
    let has_cause = |(_, entry): &&Thread<'_>| Cause::of(&entry.look) != Cause::Other;
    let mut shown: Vec<Thread<'a>> = threads.iter().take(THREADS).copied().collect();
    if !shown.iter().any(|thread| has_cause(&thread))
        && let Some(known) = threads.iter().find(has_cause)
        && let Some(last) = shown.last_mut()
    {
        *last = *known;
    }
    shown
}

fn holder(map: &NodeMap, task: &TaskEntry) -> Option<crate::contract::Holder> {
    let mut holder = map.task_view(&task.key)?;
    holder.since = task.leaving_since().map(|since| map.calendar().date(since));
    if holder.kind == HolderKind::Process {
        holder.tid = None;
    }
    Some(holder)
}

/// The stuck process's own container, else the sandbox's.
fn sandbox(map: &NodeMap, task: &TaskEntry) -> (Option<Container>, Option<Pod>) {
    let (sandbox, pod) = map.sandbox_of(task.netns);
    let (own, uid) = map.container_of(&task.key);
    let pod = pod.or_else(|| uid.map(|uid| Pod { uid: Some(uid), ..Pod::default() }));
    (own.or(sandbox), pod)
}

fn evidence(
    map: &NodeMap,
    (threads, rest): (&[Thread<'_>], usize),
    netns: &Netns,
    (kill, slow, witnessed): (Option<&Kill>, Option<String>, bool),
) -> Vec<Evidence> {
    let mut proof = Proof::new(map);
    if let Some(kill) = kill {
        proof.tell(By::Probe, kill.at, kill_text(kill));
    }
    for (task, look) in threads {
        tell_thread(&mut proof, task, look);
    }
    let newest = threads.iter().map(|(_, look)| look.at).max().unwrap_or_default();
    if rest > 0 {
        let text = format!("the same is true of {}", evidence::count(rest, "more thread"));
        proof.tell(By::Procfs, newest, text);
    }
    if let Some(slow) = slow {
        proof.tell(By::Procfs, newest, slow);
    }
    let ips = evidence::addresses(netns).join(", ");
    proof.tell(By::Netlink, newest, format!("still up in {}: {ips}", evidence::netns_text(netns)));
    if !witnessed {
        let text = "the netns belongs to no container that a runtime knows, and no store reserves its IP for it: no \
                    pod that ipwatch knows is affected";
        proof.tell(By::Runtime, newest, text);
    }
    if let Some(entry) = netns.owner().and_then(|owner| map.sandbox(&owner.sandbox)) {
        proof.runtime(entry);
    } else if let (_, Some(pod)) = map.sandbox_of(netns.id)
        && let (Some(namespace), Some(name)) = (&pod.namespace, &pod.name)
    {
        let text =
            format!("the CNI result cache names pod {}", said(&format!("{namespace}/{name}")));
        proof.tell(By::Cni, newest, text);
    }
    proof.done()
}

fn tell_thread(proof: &mut Proof<'_>, task: &TaskEntry, entry: &LookEntry) {
    let LookEntry { at, look, .. } = entry;
    if let Some(exiting) = task.exiting {
        let (source, was) = match task.preexisting {
            true => (By::Procfs, "was already exiting"),
            false => (By::Probe, "began to exit"),
        };
        proof.tell(source, exiting, format!("{} {was}", who(task)));
    }
    proof.tell(By::Procfs, *at, look_text(task, entry));
    if let Some(unanswered) = look.unanswered.as_ref().filter(|_| !look.is_blank()) {
        proof.tell(By::Procfs, *at, format!("{} does not answer", said(&unanswered.file)));
    }
    if !look.stack.is_empty() {
        let frames: Vec<String> = look.stack.iter().take(FRAMES).map(|frame| said(frame)).collect();
        let text = format!("kernel stack of {}: {}", task.key.tid, frames.join(" < "));
        proof.tell(By::Procfs, *at, text);
    }
    if let Some(cause) = Cause::of(look).text() {
        proof.tell(By::Procfs, *at, format!("{}: {cause}", who(task)));
    }
    for init in &look.waited_for_by {
        let text = format!(
            "pid {} ({}), its container's init, cannot end before it (zap_pid_ns_processes)",
            init.pid,
            said(&init.comm)
        );
        proof.tell(By::Procfs, *at, text);
    }
    if let Some(cgroup) = &task.cgroup {
        proof.tell(By::Procfs, *at, format!("cgroup {}", said(cgroup)));
    }
}

fn who(task: &TaskEntry) -> String {
    let TaskKey { pid, tid, .. } = task.key;
    if pid == tid {
        format!("pid {pid} ({})", said(&task.comm))
    } else {
        format!("thread {tid} ({}) of pid {pid}", said(&task.comm))
    }
}

fn kill_text(kill: &Kill) -> String {
    let target =
        if kill.group { "the process".to_owned() } else { format!("its thread {}", kill.tid) };
    match kill.by.pid {
        0 if kill.by.comm == "kernel" => format!("SIGKILL sent to {target} by the kernel"),
        0 => format!(
            "SIGKILL sent to {target} from outside of our pid namespace ({})",
            said(&kill.by.comm)
        ),
        pid => format!("SIGKILL sent to {target} by pid {pid} ({})", said(&kill.by.comm)),
    }
}

fn look_text(task: &TaskEntry, entry: &LookEntry) -> String {
    let LookEntry { at, look, .. } = entry;
    let silent =
        look.unanswered.as_ref().map(|one| (at.since(one.since) / 1_000_000_000, &one.file));
    if let Some((seconds, file)) = silent.filter(|_| look.is_blank()) {
        return format!(
            "{}: its state is unknown, {} has not answered for {seconds} s. Its end was not observed, so it counts \
             as holding the network namespace",
            who(task),
            said(file)
        );
    }
    let wchan = look.wchan.as_deref().map_or_else(|| "unknown".to_owned(), said);
    let dumping = if look.core_dumping { ", its core is being dumped" } else { "" };
    format!(
        "{}: state {}, flags {:#x}{}, SigPnd {:016x}, ShdPnd {:016x}, wchan {wchan}{dumping}",
        who(task),
        look.state,
        look.flags,
        if look.flags & PF_EXITING != 0 { " (PF_EXITING)" } else { "" },
        look.sig_pending,
        look.shared_pending,
    )
}

fn impact(ip: IpAddr, pod: Option<&Pod>, container: Option<&Container>, witnessed: bool) -> Text {
    let owner = evidence::owner(pod, container, text!("the process"));
    if !witnessed {
        return text!("{} stays up in this netns for as long as {} cannot exit.", ip, owner);
    }
    text!(
        "{} stays up for as long as {} cannot exit. If the IPAM frees it meanwhile, the next pod that is given {} fails \
         with \"address already in use\" or shares it.",
        ip,
        owner,
        ip
    )
}

/// Steps for now, steps that free the process, and what not to do, in this order; `explain` shows them as NOW, FIX and
/// DON'T. `no_more` is for a pod's IP only: a netns that a user made is no reason to cordon a node.
fn remediation(threads: &[(&TaskEntry, &LookEntry)], no_more: Option<Step>) -> Vec<Step> {
    let is_pods = no_more.is_some();
    let mut steps: Vec<Step> = no_more.into_iter().collect();
    // Prefer a thread whose cause is known.
    let mut causes = threads.iter().map(|(task, entry)| (&task.key, Cause::of(&entry.look)));
    let known = causes.find(|(_, cause)| *cause != Cause::Other);
    let first = threads.first().map(|(task, _)| (&task.key, Cause::Other));
    if known.is_none() && threads.iter().any(|(_, entry)| entry.look.unanswered.is_some()) {
        steps.push(blocked_tasks(text!(
            "Do not read its files under /proc: ps does, and hangs too. This lists the blocked tasks in the kernel \
             log, with what each waits for"
        )));
    } else {
        steps.extend(known.or(first).into_iter().flat_map(|(key, cause)| cause.way_out(key)));
    }
    steps.push(Step::never(&text!("kill -9; it is pending already or comes too late")));
    if is_pods {
        steps.push(Step::never(&text!("force-delete the pod; that frees its IP for the next one")));
    }
    steps
}
