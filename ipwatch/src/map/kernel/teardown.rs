//! Whether the kernel makes progress with tearing down netns.
//!
//! One worker does it, batch after batch (`cleanup_net`, net/core/net_namespace.c). While it hangs in one netns, all
//! that end later wait behind it. Its progress shows in its reports: at the beginning of a batch, that its netns end
//! (they leave `net->list`, and the removal of their nsids is announced); and, with a probe, the end of each netns.
//!
//! With that probe every teardown is reported as an [`Ending`], for traces; one that hangs is reported as soon as it
//! does.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::contract;
use crate::fact::{BootNs, Cleanup};

use crate::map::request::Request;
use crate::map::{Netns, NetnsId, NodeMap};

/// Interval between looks at the worker while it is busy.
const LOOK_AGAIN: u64 = 10_000_000_000;
/// A teardown takes some milliseconds; one that takes longer than this deserves a look.
const FIRST_LOOK: u64 = 5_000_000_000;

/// Maximum number of looks at the worker that are kept for one teardown.
const MOST_LOOKS: usize = 32;
/// Maximum number of teardowns that are tracked at a time, and of endings kept until the daemon takes them.
const MOST_ENDINGS: usize = 2048;

/// The teardown of one netns, from the moment it was requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    pub netns: contract::Netns,
    pub ips: Vec<IpAddr>,
    /// Its container.
    pub container: Option<contract::Container>,
    /// Its pod.
    pub pod: Option<contract::Pod>,
    /// When the teardown was requested: nothing held the netns any more.
    pub asked: BootNs,
    /// When the netns was removed.
    pub finished: Option<BootNs>,
    /// What the worker was doing at each look.
    pub looks: Vec<WorkerLook>,
    /// Number of further looks.
    pub more_looks: u64,
    /// Whether it was reported while it hung.
    pub told: bool,
}

/// State of the kernel's worker at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerLook {
    pub at: BootNs,
    pub pid: u32,
    pub state: char,
    /// Kernel function it sleeps in.
    pub wchan: Option<String>,
}

/// The worker, found busy at every look.
#[derive(Debug, Clone)]
pub struct Teardown {
    /// Its state at the last look.
    pub worker: Cleanup,
    pub seen: BootNs,
    /// Since when it has been busy without any progress.
    pub since: BootNs,
    /// Whether it was busy at the first look.
    pub preexisting: bool,
}

#[derive(Debug, Default)]
pub(in crate::map) struct Teardowns {
    busy: Option<Teardown>,
    /// Number of looks at the worker that were answered.
    looks: u64,
    due: Option<BootNs>,
    /// Teardowns that were requested and not seen to end.
    asked: BTreeMap<NetnsId, Ending>,
    /// To be taken: teardowns that have ended, and those that hang.
    told: Vec<Ending>,
    /// Number of endings for which there was no room.
    untold: u64,
}

impl Teardowns {
    /// The netns is alive after all.
    pub(in crate::map) fn revived(&mut self, id: NetnsId) {
        self.asked.remove(&id);
    }

    /// The end of the netns was observed.
    pub(in crate::map) fn finished(&mut self, id: NetnsId, at: BootNs) {
        if let Some(ending) = self.asked.remove(&id) {
            self.tell(Ending { finished: Some(at.max(ending.asked)), ..ending });
        }
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn assert_is_bounded(&self, is_kept: impl Fn(NetnsId) -> bool) {
        assert!(self.asked.len() <= MOST_ENDINGS && self.told.len() <= MOST_ENDINGS);
        assert!(self.asked.keys().all(|id| is_kept(*id)));
    }

    fn tell(&mut self, ending: Ending) {
        if self.told.len() < MOST_ENDINGS {
            self.told.push(ending);
        } else {
            self.untold += 1;
        }
    }

    /// The worker is busy: teardowns that have waited long enough hang.
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
    /// The worker began a batch, or ended a netns: it makes progress.
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

    /// The teardown of a netns was requested, and a probe will report its end.
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

    /// Teardowns that have ended or hung since the last call.
    pub fn take_endings(&mut self) -> Vec<Ending> {
        std::mem::take(&mut self.kernel.teardowns.told)
    }

    /// Number of further ones since the last call, for which there was no room.
    pub fn take_untold_endings(&mut self) -> u64 {
        std::mem::take(&mut self.kernel.teardowns.untold)
    }

    /// Requests a look at the worker if one is due. The first look is at the very start: a worker that was already
    /// hanging leaves no other trace.
    pub(in crate::map) fn want_cleanup(&mut self, now: BootNs, wants: &mut Vec<Request>) {
        if self.kernel.teardowns.looks == 0
            && self.kernel.teardowns.due.is_none()
            && self.boot.is_some()
        {
            self.kernel.teardowns.due = Some(now);
        }
        if self.kernel.teardowns.due.is_some_and(|due| due <= now) {
            wants.push(Request::Cleanup);
            // The answer plans the next look; without an answer the look is repeated then.
            self.kernel.teardowns.due = Some(now.plus(LOOK_AGAIN));
        }
    }

    /// The worker, if it was busy at the last look.
    #[must_use]
    pub fn teardown(&self) -> Option<&Teardown> {
        self.kernel.teardowns.busy.as_ref()
    }

    /// Netns whose teardown has begun and was not seen to end.
    pub fn dying(&self) -> impl Iterator<Item = &Netns> {
        self.kernel.netns.values().filter(|entry| entry.dying.is_some())
    }
}
