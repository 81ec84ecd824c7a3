//! Which nsids belong to the canary's netns.
//!
//! An nsid belongs to one netns from RTM_NEWNSID to RTM_DELNSID, which one socket receives in this order, and is then
//! reused at once. Therefore its owner is looked up whenever it is assigned, and forgotten when it is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, OwnedFd};

use crate::fact::BootNs;
use crate::sources::netlink::Numbers;

/// Maximum number of foreign nsids remembered within one run, so that not every message with one causes a lookup.
const MOST: usize = 4096;
/// In nanoseconds. How long the end of a netns may wait behind that of another one.
const FORGET_AFTER: u64 = super::FORGET_AFTER;

/// Open fds of the canary's netns. They hold the netns, so they must be closed when the stage ends.
#[derive(Debug)]
pub(in crate::canary) struct Doors {
    pub(in crate::canary) netns: [OwnedFd; 2],
    pub(in crate::canary) numbers: Numbers,
}

impl Doors {
    /// The nsids that they have now.
    fn all(&mut self) -> Vec<i32> {
        let Self { netns, numbers } = self;
        netns.iter().filter_map(|netns| numbers.of(netns.as_fd()).ok().flatten()).collect()
    }
}

#[derive(Debug, Default)]
pub(super) struct Nsids {
    /// While the stage runs.
    doors: Option<Doors>,
    /// The nsids of the canary's netns, and whether their assignment was reported.
    ours: BTreeMap<i32, bool>,
    /// Foreign nsids in this run.
    others: BTreeSet<i32>,
    /// When the doors were last closed.
    ended: BootNs,
}

impl Nsids {
    pub(super) fn begin(&mut self, doors: Option<Doors>) {
        self.doors = doors;
        self.others.clear();
    }

    /// The stage has ended, and its netns will end. Their nsids are looked up for the last time.
    pub(super) fn end(&mut self, now: BootNs) {
        for nsid in self.doors.as_mut().map(Doors::all).unwrap_or_default() {
            self.ours.entry(nsid).or_insert(false);
        }
        self.doors = None;
        self.others.clear();
        self.ended = now;
    }

    /// An nsid was assigned. Returns whether to a netns of the canary.
    pub(super) fn given(&mut self, nsid: i32) -> bool {
        self.others.remove(&nsid);
        if let Some(doors) = &mut self.doors {
            let ours = doors.all().contains(&nsid);
            self.learn(nsid, ours, true);
            return ours;
        }
        match self.ours.get_mut(&nsid) {
            Some(told) if !*told => {
                *told = true;
                true
            }
            // Assigned twice: its removal was not reported.
            Some(_) => {
                self.ours.remove(&nsid);
                false
            }
            None => false,
        }
    }

    /// An nsid was removed. Returns whether from a netns of the canary.
    pub(super) fn taken(&mut self, nsid: i32) -> bool {
        self.others.remove(&nsid);
        self.ours.remove(&nsid).is_some()
    }

    /// Whether an nsid belongs to a netns of the canary now.
    pub(super) fn is_ours(&mut self, nsid: i32) -> bool {
        if self.ours.contains_key(&nsid) || self.others.contains(&nsid) {
            return self.ours.contains_key(&nsid);
        }
        let Some(doors) = &mut self.doors else { return false };
        let ours = doors.all().contains(&nsid);
        self.learn(nsid, ours, false);
        ours
    }

    /// Messages about nsids were lost.
    pub(super) fn forget(&mut self) {
        self.ours.clear();
        self.others.clear();
    }

    pub(super) fn rest(&mut self, now: BootNs) {
        if self.doors.is_none() && now.since(self.ended) >= FORGET_AFTER {
            self.ours.clear();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ours.is_empty()
    }

    fn learn(&mut self, nsid: i32, ours: bool, told: bool) {
        if ours {
            self.ours.insert(nsid, told);
        } else {
            self.ours.remove(&nsid);
            if self.others.len() < MOST {
                self.others.insert(nsid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nsid 7 was assigned to a netns of the canary, which has ended.
    fn gone() -> Nsids {
        Nsids { ours: [(7, true)].into(), ended: BootNs(1), ..Nsids::default() }
    }

    #[test]
    fn an_nsid_is_ours_until_it_is_taken_away() {
        let mut nsids = gone();
        assert!(nsids.is_ours(7) && !nsids.is_ours(8));
        assert!(!nsids.taken(8));
        assert!(nsids.taken(7) && !nsids.is_ours(7), "the end of ours");
        assert!(!nsids.given(7) && !nsids.is_ours(7) && !nsids.taken(7), "the next netns's");
        assert!(nsids.is_empty());
    }

    #[test]
    fn an_nsid_that_is_given_again_is_anothers() {
        let mut nsids = gone();
        assert!(!nsids.given(7) && !nsids.is_ours(7), "its end was lost");
        // The assignment is read after the stage has ended.
        let mut nsids = Nsids { ours: [(7, false)].into(), ..Nsids::default() };
        assert!(nsids.given(7) && nsids.is_ours(7));
        assert!(!nsids.given(7));
    }

    #[test]
    fn a_loss_makes_nothing_ours() {
        let mut nsids = gone();
        nsids.forget();
        assert!(!nsids.is_ours(7));
        let mut nsids = gone();
        nsids.rest(BootNs(FORGET_AFTER));
        assert!(nsids.is_ours(7));
        nsids.rest(BootNs(FORGET_AFTER + 1));
        assert!(!nsids.is_ours(7), "nothing was told of it");
    }
}
