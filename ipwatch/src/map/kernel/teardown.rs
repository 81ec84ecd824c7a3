//! Whether the kernel gets on with tearing netns down.
//!
//! One worker does it, batch after batch (`cleanup_net`, net/core/net_namespace.c). While it hangs in
//! one netns, all that die later wait behind it. Its progress shows in what it tells: at the beginning
//! of a batch that its netns die (they leave `net->list`, and their nsids are told to be gone), and where
//! a probe sees it at the end of each that it is gone.
//!
//! Where that probe is, every teardown is told as an [`Ending`], for traces; one that hangs is told as soon as
//! it does.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::contract;
use crate::fact::{BootNs, Cleanup};

use crate::map::request::Request;
use crate::map::{Netns, NetnsId, NodeMap};

/// Looks at the worker while it is busy.
const LOOK_AGAIN: u64 = 10_000_000_000;
/// Dying takes some milliseconds; whoever is at it after this is worth a look.
const FIRST_LOOK: u64 = 5_000_000_000;

/// Looks at the worker that are kept of one teardown.
const MOST_LOOKS: usize = 32;
/// Teardowns that are followed at a time, and endings kept until the daemon takes them.
const MOST_ENDINGS: usize = 2048;

/// One netns's teardown, from the moment it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    pub netns: contract::Netns,
    /// The addresses it had.
    pub ips: Vec<IpAddr>,
    /// Whose container it was.
    pub container: Option<contract::Container>,
    /// Whose pod it was.
    pub pod: Option<contract::Pod>,
    /// When its end was asked for: nothing held it any more.
    pub asked: BootNs,
    /// When it was gone.
    pub finished: Option<BootNs>,
    /// What the worker did when it was looked at meanwhile.
    pub looks: Vec<WorkerLook>,
    /// Looks that are not kept.
    pub more_looks: u64,
    /// It was told while it hung.
    pub told: bool,
}

/// What the kernel's worker did at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerLook {
    pub at: BootNs,
    pub pid: u32,
    /// Its state letter.
    pub state: char,
    /// Kernel function it sleeps in.
    pub wchan: Option<String>,
}

/// The worker, caught at it again and again.
#[derive(Debug, Clone)]
pub struct Teardown {
    /// What it did when it was looked at last.
    pub worker: Cleanup,
    pub seen: BootNs,
    /// At it, without any progress, since.
    pub since: BootNs,
    /// It was at it when ipwatch first looked.
    pub preexisting: bool,
}

#[derive(Debug, Default)]
pub(in crate::map) struct Teardowns {
    busy: Option<Teardown>,
    /// Looks at the worker that were answered.
    looks: u64,
    due: Option<BootNs>,
    /// Asked for, and not seen to end.
    asked: BTreeMap<NetnsId, Ending>,
    /// To be taken: those that have ended, and those that hang.
    told: Vec<Ending>,
    /// Endings for which there was no room.
    untold: u64,
}

impl Teardowns {
    /// It is alive after all.
    pub(in crate::map) fn revived(&mut self, id: NetnsId) {
        self.asked.remove(&id);
    }

    /// Its end was seen.
    pub(in crate::map) fn finished(&mut self, id: NetnsId, at: BootNs) {
        if let Some(ending) = self.asked.remove(&id) {
            self.tell(Ending { finished: Some(at.max(ending.asked)), ..ending });
        }
    }

    fn tell(&mut self, ending: Ending) {
        if self.told.len() < MOST_ENDINGS {
            self.told.push(ending);
        } else {
            self.untold += 1;
        }
    }

    /// The worker was caught at it: whoever has waited for long enough hangs.
    fn looked(&mut self, worker: &Cleanup, at: BootNs) {
        let mut hang = Vec::new();
        for ending in self.asked.values_mut().filter(|one| at.since(one.asked) >= FIRST_LOOK) {
            let (pid, state, wchan) = (worker.pid, worker.state, worker.wchan.clone());
            if ending.looks.len() < MOST_LOOKS {
                ending.looks.push(WorkerLook { at, pid, state, wchan });
            } else {
                ending.more_looks += 1;
            }
            if !std::mem::replace(&mut ending.told, true) {
                hang.push(ending.clone());
            }
        }
        hang.into_iter().for_each(|ending| self.tell(ending));
    }

    /// When to look at the worker next.
    pub(in crate::map) fn due(&self) -> Option<BootNs> {
        self.due
    }
}

impl NodeMap {
    /// The worker began a batch, or ended a netns: it gets on.
    pub(in crate::map) fn teardown_progress(&mut self, at: BootNs) {
        if let Some(busy) = &mut self.kernel.teardowns.busy {
            busy.since = busy.since.max(at);
            busy.preexisting = false;
        }
        if self.kernel.teardowns.due.is_none() {
            self.kernel.teardowns.due = Some(at.plus(FIRST_LOOK));
        }
    }

    pub(in crate::map) fn set_cleanup(&mut self, worker: Option<&Cleanup>, at: BootNs) {
        let first = self.kernel.teardowns.looks == 0;
        self.kernel.teardowns.looks += 1;
        let Some(worker) = worker else {
            self.kernel.teardowns.busy = None;
            let waits = self.sight.teardown_end && self.dying().next().is_some();
            self.kernel.teardowns.due = waits.then(|| at.plus(LOOK_AGAIN));
            return;
        };
        self.kernel.teardowns.looked(worker, at);
        let before = self.kernel.teardowns.busy.take().filter(|busy| busy.worker.pid == worker.pid);
        self.kernel.teardowns.busy = Some(Teardown {
            worker: worker.clone(),
            seen: at,
            since: before.as_ref().map_or(at, |before| before.since),
            preexisting: before.map_or(first, |before| before.preexisting),
        });
        self.kernel.teardowns.due = Some(at.plus(LOOK_AGAIN));
    }

    /// The end of a netns was asked for, and a probe will tell when it has come.
    pub(in crate::map) fn teardown_asked(&mut self, id: NetnsId, at: BootNs) {
        let Some(entry) = self.kernel.netns.get(&id) else { return };
        if self.kernel.teardowns.asked.contains_key(&id) {
            return;
        }
        if self.kernel.teardowns.asked.len() >= MOST_ENDINGS {
            self.kernel.teardowns.untold += 1;
            return;
        }
        let (container, pod) = self.sandbox_of(id);
        let ending = Ending {
            netns: self.netns_view(entry),
            ips: entry.routable().map(|(key, _)| key.local).take(16).collect(),
            container,
            pod,
            asked: at,
            finished: None,
            looks: Vec::new(),
            more_looks: 0,
            told: false,
        };
        self.kernel.teardowns.asked.insert(id, ending);
    }

    /// Teardowns that have ended, or hang, since the last call.
    pub fn take_endings(&mut self) -> Vec<Ending> {
        std::mem::take(&mut self.kernel.teardowns.told)
    }

    /// How many more there were, for which there was no room, since the last call.
    pub fn take_untold_endings(&mut self) -> u64 {
        std::mem::take(&mut self.kernel.teardowns.untold)
    }

    /// Whether to look at the worker now, and when next. The first look is at the very start: what hangs
    /// since before leaves no other trace.
    pub(in crate::map) fn want_cleanup(&mut self, now: BootNs, wants: &mut Vec<Request>) {
        if self.kernel.teardowns.looks == 0
            && self.kernel.teardowns.due.is_none()
            && self.boot.is_some()
        {
            self.kernel.teardowns.due = Some(now);
        }
        if self.kernel.teardowns.due.is_some_and(|due| due <= now) {
            wants.push(Request::Cleanup);
            // The answer plans the next one; without an answer it is asked again then.
            self.kernel.teardowns.due = Some(now.plus(LOOK_AGAIN));
        }
    }

    /// The worker, if it was busy when it was looked at last.
    #[must_use]
    pub fn teardown(&self) -> Option<&Teardown> {
        self.kernel.teardowns.busy.as_ref()
    }

    /// Netns whose teardown has begun and was not seen to end.
    pub fn dying(&self) -> impl Iterator<Item = &Netns> {
        self.kernel.netns.values().filter(|entry| entry.dying.is_some())
    }
}
