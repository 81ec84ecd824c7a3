//! Changes that a snapshot of the tasks shows and no event reported.
//!
//! The snapshot itself repairs them at once. They are counted only when a later snapshot confirms them, after any event
//! that was still on its way: a task that starts or ends during the snapshot is not a missed event.

use std::collections::BTreeMap;

use crate::fact::{BootNs, Task, TaskKey};

use crate::map::NodeMap;

const SEC: u64 = 1_000_000_000;
/// Upper bound for the delay of events: the slowest one, of a process that does not end, takes about 1.3 s.
const DELAY: u64 = 3 * SEC;
/// A younger task is about to be reported by an event, unless it ends before: finding it in a snapshot means nothing.
const YOUNG: u64 = SEC;
/// Nanoseconds of a tick (USER_HZ), the unit of start times.
const TICK: u64 = 10_000_000;
/// Maximum number of suspects. More have a common cause.
const MOST: usize = 4096;

/// Events, by their names in `doctor`.
pub(in crate::map) const EVENTS: [&str; 4] =
    ["process-fork", "process-exit", "netns-release", "netns-join"];

/// The kind of event that seems to have been missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::map) enum Event {
    Fork,
    Exit,
    Release,
    Join,
}

impl Event {
    const ALL: [Self; 4] = [Self::Fork, Self::Exit, Self::Release, Self::Join];

    fn name(self) -> &'static str {
        EVENTS[self as usize]
    }
}

#[derive(Debug, Default)]
pub(in crate::map) struct Missed {
    /// To be confirmed, with the time of the snapshot that showed it.
    suspects: BTreeMap<(TaskKey, Event), BootNs>,
    counts: BTreeMap<&'static str, u64>,
    /// When the last complete snapshot began.
    before: BootNs,
}

impl Missed {
    /// An event reported this task after all.
    pub(in crate::map) fn told(&mut self, key: &TaskKey) {
        for event in Event::ALL {
            self.suspects.remove(&(*key, event));
        }
    }

    fn suspect(&mut self, key: TaskKey, event: Event, at: BootNs) {
        if self.suspects.len() < MOST {
            self.suspects.entry((key, event)).or_insert(at);
        }
    }

    /// A snapshot shows an unreported task: it was created since the last snapshot, or has moved here. The end of a
    /// thread is not reported while its leader represents it.
    pub(in crate::map) fn appeared(&mut self, task: &Task, at: BootNs) {
        let made = task.key.start.saturating_mul(TICK) >= self.before.0;
        let ends = task.exiting || task.killed;
        let event = match () {
            () if ends && !task.key.is_leader() => return,
            () if ends => Event::Exit,
            () if made => Event::Fork,
            () => Event::Join,
        };
        self.suspect(task.key, event, at);
    }

    pub(in crate::map) fn moved(&mut self, key: TaskKey, at: BootNs) {
        self.suspect(key, Event::Join, at);
    }

    pub(in crate::map) fn exits(&mut self, key: TaskKey, at: BootNs) {
        self.suspect(key, Event::Exit, at);
    }

    /// A task that ended before its appearance was confirmed is not missed.
    pub(in crate::map) fn vanished(&mut self, key: TaskKey, at: BootNs) {
        if !Event::ALL.iter().any(|event| self.suspects.contains_key(&(key, *event))) {
            self.suspect(key, Event::Release, at);
        }
    }

    /// A complete snapshot that began at `began` has ended; `here` tells whether it has a task.
    fn confirm(&mut self, began: BootNs, here: impl Fn(&TaskKey) -> bool) {
        self.before = began;
        let counts = &mut self.counts;
        self.suspects.retain(|(key, event), at| {
            if began.since(*at) < DELAY {
                return true;
            }
            if here(key) != (*event == Event::Release) {
                *counts.entry(event.name()).or_default() += 1;
            }
            false
        });
    }

    /// When the next snapshot is needed to confirm a suspect.
    fn due(&self) -> Option<BootNs> {
        self.suspects.values().map(|at| at.plus(DELAY)).min()
    }
}

impl NodeMap {
    /// Whether snapshots are to be compared with events.
    pub(in crate::map) fn compares(&self) -> bool {
        self.sight.tasks && self.kernel.task_snapshots > 0 && !self.is_unsettled()
    }

    /// Whether an event is about to report this task, so that the snapshot need not.
    pub(in crate::map) fn is_told_soon(&self, task: &Task, at: BootNs) -> bool {
        let age = at.0.saturating_sub(task.key.start.saturating_mul(TICK));
        self.sight.tasks && self.kernel.task_snapshots > 0 && age < YOUNG
    }

    /// A complete snapshot has ended.
    pub(in crate::map) fn confirm_missed(&mut self, began: BootNs) {
        let tasks = &self.kernel.tasks;
        self.kernel.missed.confirm(began, |key| tasks.get(key).is_some());
        if let Some(due) = self.kernel.missed.due() {
            self.scheduler.walk_by(due);
        }
    }

    /// Number of events that no probe reported, by their names in `doctor`.
    #[must_use]
    pub fn missed_events(&self) -> BTreeMap<&'static str, u64> {
        let count = |name: &str| self.kernel.missed.counts.get(name).copied().unwrap_or_default();
        EVENTS.into_iter().map(|name| (name, count(name))).collect()
    }
}
