//! When the holders of netns are searched for again: a search passes over the open files and mounts of all processes, and
//! whoever makes many of them, and a netns without tasks every moment, would have a thread do nothing else.

use crate::fact::{BootNs, NetnsRef};

/// After a search there is a pause of so many times its duration: it takes a fifth of a core at most.
const PAUSE: u64 = 4;
/// Maximum length of a pause, in nanoseconds: of one after a search in which every pass was given up.
const LONGEST: u64 = 40_000_000_000;

/// The netns that wait for the next search, which is one for all of them.
#[derive(Debug, Default)]
pub(super) struct Pace {
    waiting: Vec<NetnsRef>,
    not_before: BootNs,
}

impl Pace {
    pub(super) fn add(&mut self, netns: Vec<NetnsRef>) {
        for netns in netns {
            if !self.waiting.contains(&netns) {
                self.waiting.push(netns);
            }
        }
    }

    /// When the next search is due; `None` if nothing waits for it.
    pub(super) fn due(&self) -> Option<BootNs> {
        (!self.waiting.is_empty()).then_some(self.not_before)
    }

    /// What is searched for now.
    pub(super) fn take(&mut self) -> Vec<NetnsRef> {
        std::mem::take(&mut self.waiting)
    }

    /// A search has ended.
    pub(super) fn ended(&mut self, began: BootNs, now: BootNs) {
        self.not_before = now.plus((now.since(began) * PAUSE).min(LONGEST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn after_a_search_others_have_their_turn() {
        let mut pace = Pace::default();
        assert_eq!(pace.due(), None);
        pace.add(vec![NetnsRef::cookie(1)]);
        assert!(pace.due().is_some_and(|due| due <= BootNs(MS)), "the first one at once");
        assert_eq!(pace.take(), [NetnsRef::cookie(1)]);
        pace.ended(BootNs(MS), BootNs(301 * MS));
        pace.add(vec![NetnsRef::cookie(2), NetnsRef::cookie(3)]);
        pace.add(vec![NetnsRef::cookie(2)]);
        assert_eq!(pace.due(), Some(BootNs(1_501 * MS)));
        assert_eq!(pace.take(), [NetnsRef::cookie(2), NetnsRef::cookie(3)], "all in one");
        pace.ended(BootNs(0), BootNs(60_000 * MS));
        pace.add(vec![NetnsRef::cookie(4)]);
        assert_eq!(pace.due(), Some(BootNs(100_000 * MS)), "it waits no longer than that");
    }
}
