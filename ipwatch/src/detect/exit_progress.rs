//! Whether threads that exit still make progress: what `ip-held-by-stuck-process` tells slow exits from hangs by, and
//! its words for them.

use std::net::IpAddr;

use super::evidence;
use crate::contract::{Container, Pod};
use crate::fact::{BootNs, Look, Progress};
use crate::map::{LookEntry, TaskEntry, Thresholds};
use crate::remedy::{Part, Step, Text, text};

/// A core that takes this many times its grace counts as stuck, whatever is still written: to a server that takes a byte
/// now and then it would be written for days.
const DUMPS: u64 = 6;

/// A thread that should have ended by now.
pub(super) type Thread<'a> = (&'a TaskEntry, &'a LookEntry);

/// The grace of a task.
pub(super) fn grace(entry: &LookEntry, thresholds: &Thresholds) -> u64 {
    if entry.look.core_dumping { thresholds.core_dump_grace } else { thresholds.grace }
}

/// The kind of progress that the last looks showed, if that was less than a grace ago.
pub(super) fn advances((task, entry): &Thread<'_>, thresholds: &Thresholds) -> Option<Progress> {
    let (at, progress) = task.progress.filter(|_| !entry.look.is_blank())?;
    let dumps = matches!(progress, Progress::Dumps(_));
    let since = task.leaving_since().unwrap_or(entry.at);
    if dumps && entry.at.since(since) >= grace(entry, thresholds).saturating_mul(DUMPS) {
        return None;
    }
    (entry.at.since(at) < grace(entry, thresholds)).then_some(progress)
}

/// The threads of one process that hang. A thread that waits for the other threads of its process hangs only if none of
/// them advances; any other thread does whatever the rest of the process does.
pub(super) fn hanging<'a>(threads: &[Thread<'a>], thresholds: &Thresholds) -> Vec<Thread<'a>> {
    let advances = |thread: &Thread<'_>| advances(thread, thresholds).is_some();
    let moves = threads.iter().any(advances);
    let is_slow = |thread: &Thread<'_>| advances(thread) || moves && awaits_its_own(&thread.1.look);
    threads.iter().copied().filter(|thread| !is_slow(thread)).collect()
}

/// Whether a thread sleeps in its exit until other threads of its process have done their part: they hold its address
/// space's lock (`exit_mm`), or write its core (`coredump_task_exit`; before 5.16 in `exit_mm`). The compiler mostly
/// makes both a part of `do_exit`, and `/proc/PID/stack` leaves out some functions of locks (`in_sched_functions`).
fn awaits_its_own(look: &Look) -> bool {
    const LOCKS: [&str; 3] = ["rwsem_down_", "down_read", "down_write"];
    const WAITS: [&str; 3] = ["exit_mm", "coredump_task_exit", "do_exit"];
    let is_lock = |frame: &&String| LOCKS.iter().any(|name| frame.starts_with(name));
    let inner = look.stack.iter().find(|frame| !is_lock(frame));
    inner.is_some_and(|frame| WAITS.contains(&frame.as_str()))
}

/// What the looks showed. Figures are those of the last look.
pub(super) fn proof(
    threads: &[Thread<'_>],
    thresholds: &Thresholds,
    since: BootNs,
) -> Option<String> {
    let progress = of(threads, thresholds)?;
    let newest = threads.iter().map(|(_, look)| look.at).max().unwrap_or_default();
    let how = match progress {
        Progress::Runs | Progress::Throttled(_) => "it runs or waits for a CPU",
        Progress::Dumps(_) => "its core was still being written between two looks",
        Progress::Cpu(_) => "it used CPU time between two looks",
        Progress::Threads(_) => "threads of it ended between two looks",
    };
    let limit = throttled_to(threads, thresholds);
    let limit = limit.map(|limit| format!(", throttled to {limit} CPU")).unwrap_or_default();
    let seconds = newest.since(since) / 1_000_000_000;
    Some(format!("it has been exiting for {seconds} s and is not stuck: {how}{limit}"))
}

/// The progress of the first thread that shows any.
pub(super) fn of(threads: &[Thread<'_>], thresholds: &Thresholds) -> Option<Progress> {
    threads.iter().find_map(|thread| advances(thread, thresholds))
}

/// The impact of an exit that makes progress.
pub(super) fn impact(
    ip: IpAddr,
    pod: Option<&Pod>,
    container: Option<&Container>,
    limit: Option<String>,
) -> Text {
    let owner = evidence::owner(pod, container, text!("the process"));
    let why = limit.map(|limit| text!(", throttled to {} CPU", Part::Plain(limit)));
    text!(
        "{} stays up until {} has exited, which is slow but makes progress{}.",
        ip,
        owner,
        why.unwrap_or_default()
    )
}

/// What to do about an exit that makes progress.
pub(super) fn remediation(progress: Progress, limit: Option<String>) -> Vec<Step> {
    vec![Step::advice(match (progress, limit) {
        (Progress::Dumps(_), _) => text!(
            "Wait: it ends once its core is written. What slows it down is what the core is written to, see \
             /proc/sys/kernel/core_pattern"
        ),
        (_, Some(limit)) => text!(
            "Wait: it ends by itself. The CPU limit of its cgroup, {} CPU, slows it down: with a higher one it \
             ends sooner",
            Part::Plain(limit)
        ),
        (_, None) => text!(
            "Wait: it ends by itself. What slows it down is mostly its cgroup's share of the CPU"
        ),
    })]
}

/// The lowest CPU limit that was exhausted between looks less than a grace ago: `0.05`. Two looks may be closer together
/// than the limit is exhausted, so the last look alone does not decide.
pub(super) fn throttled_to(threads: &[Thread<'_>], thresholds: &Thresholds) -> Option<String> {
    let advancing = threads.iter().filter(|thread| advances(thread, thresholds).is_some());
    let limits = advancing.filter_map(|(task, entry)| {
        let (at, limit) = task.throttled?;
        (entry.at.since(at) < grace(entry, thresholds)).then_some(limit)
    });
    let least = limits.min()?;
    let text = format!("{}.{:03}", least / 1000, least % 1000);
    Some(text.trim_end_matches('0').trim_end_matches('.').to_owned())
}
