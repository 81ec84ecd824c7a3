//! Whether the kernel gets on with tearing netns down.
//!
//! One worker does it, batch after batch (`cleanup_net`, net/core/net_namespace.c). While it hangs in
//! one netns, all that die later wait behind it. Its progress shows in what it tells: at the beginning
//! of a batch that its netns die (they leave `net->list`, and their nsids are told to be gone), and where
//! a probe sees it at the end of each that it is gone.

use crate::fact::{BootNs, Cleanup};

use super::want::Want;
use super::{Netns, NodeMap};

/// Looks at the worker while it is busy.
const LOOK_AGAIN: u64 = 10_000_000_000;
/// Dying takes some milliseconds; whoever is at it after this is worth a look.
const FIRST_LOOK: u64 = 5_000_000_000;

/// The worker, caught at it again and again.
#[derive(Debug, Clone)]
pub struct Teardown {
    /// What it did when it was looked at last.
    pub worker: Cleanup,
    /// When that was.
    pub seen: BootNs,
    /// At it, without any progress, since.
    pub since: BootNs,
    /// It was at it when ipwatch first looked.
    pub preexisting: bool,
}

#[derive(Debug, Default)]
pub(super) struct Teardowns {
    busy: Option<Teardown>,
    /// Looks at the worker that were answered.
    looks: u64,
    due: Option<BootNs>,
}

impl Teardowns {
    /// When to look at the worker next.
    pub(super) fn due(&self) -> Option<BootNs> {
        self.due
    }
}

impl NodeMap {
    /// The worker began a batch, or ended a netns: it gets on.
    pub(super) fn teardown_progress(&mut self, at: BootNs) {
        if let Some(busy) = &mut self.teardowns.busy {
            busy.since = busy.since.max(at);
            busy.preexisting = false;
        }
        if self.teardowns.due.is_none() {
            self.teardowns.due = Some(at.plus(FIRST_LOOK));
        }
    }

    pub(super) fn set_cleanup(&mut self, worker: Option<&Cleanup>, at: BootNs) {
        let first = self.teardowns.looks == 0;
        self.teardowns.looks += 1;
        let Some(worker) = worker else {
            self.teardowns.busy = None;
            let waits = self.sight.teardown_end && self.dying().next().is_some();
            self.teardowns.due = waits.then(|| at.plus(LOOK_AGAIN));
            return;
        };
        let before = self.teardowns.busy.take().filter(|busy| busy.worker.pid == worker.pid);
        self.teardowns.busy = Some(Teardown {
            worker: worker.clone(),
            seen: at,
            since: before.as_ref().map_or(at, |before| before.since),
            preexisting: before.map_or(first, |before| before.preexisting),
        });
        self.teardowns.due = Some(at.plus(LOOK_AGAIN));
    }

    /// Whether to look at the worker now, and when next. The first look is at the very start: what hangs
    /// since before leaves no other trace.
    pub(super) fn want_cleanup(&mut self, now: BootNs, wants: &mut Vec<Want>) {
        if self.teardowns.looks == 0 && self.teardowns.due.is_none() && self.boot.is_some() {
            self.teardowns.due = Some(now);
        }
        if self.teardowns.due.is_some_and(|due| due <= now) {
            wants.push(Want::Cleanup);
            // The answer plans the next one; without an answer it is asked again then.
            self.teardowns.due = Some(now.plus(LOOK_AGAIN));
        }
    }

    /// The worker, if it was busy when it was looked at last.
    #[must_use]
    pub fn teardown(&self) -> Option<&Teardown> {
        self.teardowns.busy.as_ref()
    }

    /// Netns whose teardown has begun and was not seen to end.
    pub fn dying(&self) -> impl Iterator<Item = &Netns> {
        self.netns.values().filter(|entry| entry.dying.is_some())
    }
}
