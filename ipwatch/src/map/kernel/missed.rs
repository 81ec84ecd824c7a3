//! What a snapshot of the tasks shows that no event had told.
//!
//! It is repaired at once, by the snapshot itself. It is counted only when a later snapshot confirms it, after any
//! event that was still on its way: a task that comes or goes while all are listed is no event that was missed.

use std::collections::BTreeMap;

use crate::fact::{BootNs, Task, TaskKey};

use crate::map::NodeMap;

const SEC: u64 = 1_000_000_000;
/// Events come sooner: the slowest is that of a process that does not end, after some 1.3 s.
const DELAY: u64 = 3 * SEC;
/// A task that is younger is told in a moment, if it does not end before: a snapshot that meets it tells nothing.
const YOUNG: u64 = SEC;
/// Nanoseconds of a tick (USER_HZ), in which start times are told.
const TICK: u64 = 10_000_000;
/// More is one trouble, and not as many.
const MOST: usize = 4096;

/// Events by the names that `doctor` has for them.
pub(in crate::map) const EVENTS: [&str; 4] =
    ["process-fork", "process-exit", "netns-release", "netns-join"];

/// What seems to have been missed.
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
    /// What is to be confirmed, and the snapshot that showed it.
    suspects: BTreeMap<(TaskKey, Event), BootNs>,
    counts: BTreeMap<&'static str, u64>,
    /// When the last whole snapshot began.
    before: BootNs,
}

impl Missed {
    /// An event told of this task after all.
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

    /// Of one that nobody had told of: it was made since the last snapshot, or it was somewhere else. A thread that
    /// ends is not told of while its leader stands for it.
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

    /// One that went before a second look at how it came is not missed.
    pub(in crate::map) fn vanished(&mut self, key: TaskKey, at: BootNs) {
        if !Event::ALL.iter().any(|event| self.suspects.contains_key(&(key, *event))) {
            self.suspect(key, Event::Release, at);
        }
    }

    /// A snapshot that began then is whole; `here` are those that it met.
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

    /// When the next snapshot is wanted, to be sure.
    fn due(&self) -> Option<BootNs> {
        self.suspects.values().map(|at| at.plus(DELAY)).min()
    }
}

impl NodeMap {
    /// Whether what a snapshot shows is to be compared with what events told.
    pub(in crate::map) fn compares(&self) -> bool {
        self.sight.tasks && self.kernel.task_snapshots > 0 && !self.is_unsettled()
    }

    /// Whether an event will tell of this task in a moment, so that a snapshot need not.
    pub(in crate::map) fn is_told_soon(&self, task: &Task, at: BootNs) -> bool {
        let age = at.0.saturating_sub(task.key.start.saturating_mul(TICK));
        self.sight.tasks && self.kernel.task_snapshots > 0 && age < YOUNG
    }

    /// A whole snapshot has ended.
    pub(in crate::map) fn confirm_missed(&mut self, began: BootNs) {
        let tasks = &self.kernel.tasks;
        self.kernel.missed.confirm(began, |key| tasks.get(key).is_some());
        if let Some(due) = self.kernel.missed.due() {
            self.scheduler.walk_by(due);
        }
    }

    /// Events that no probe told, by their names in `doctor`.
    #[must_use]
    pub fn missed_events(&self) -> BTreeMap<&'static str, u64> {
        let count = |name: &str| self.kernel.missed.counts.get(name).copied().unwrap_or_default();
        EVENTS.into_iter().map(|name| (name, count(name))).collect()
    }
}
