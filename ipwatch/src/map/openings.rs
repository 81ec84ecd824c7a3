//! Limits how many netns of unprivileged users are being opened at a time. Pure.
//!
//! One thread opens netns, one after the other, and the core applies what it reads. A user who can create one netns can
//! create thousands, and the time for each depends on what the user has put into it. Only a few of them are therefore passed
//! to the thread at a time, so that a netns of a pod or of root waits for no more than these.
//!
//! A netns that has not been opened may be a pod's that no runtime has reported yet. It does not wait for those that users
//! are known to own, which are read again because their events were lost. Among those that wait, the newest and the oldest
//! are taken in turn: the newest is the one that was not there when a flood began.

use std::collections::BTreeSet;

use super::NetnsId;

/// Maximum number of netns that users are known to own that the thread is given at a time. Reading and applying a full one
/// takes a tenth of a second on a busy node, and the next netns of a pod waits for it.
const OF_USERS: usize = 1;
/// The same of netns of which is not known yet whose they are. At the start these are all, so that the thread must not run
/// out of work while the core applies the last one.
const NOT_KNOWN_YET: usize = 4;

/// Whose netns one is that waits for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    AUsers,
    NotKnownYet,
}

/// The netns of unprivileged users that are being opened, and those that wait.
#[derive(Debug)]
pub(super) struct Openings {
    of_users: Lane,
    not_known_yet: Lane,
}

impl Default for Openings {
    fn default() -> Self {
        Self { of_users: Lane::new(OF_USERS), not_known_yet: Lane::new(NOT_KNOWN_YET) }
    }
}

/// Those of one kind.
#[derive(Debug)]
struct Lane {
    at_a_time: usize,
    under_way: BTreeSet<NetnsId>,
    /// The newest comes last, because ids are assigned in ascending order.
    waiting: BTreeSet<NetnsId>,
    newest_next: bool,
}

impl Lane {
    fn new(at_a_time: usize) -> Self {
        let (under_way, waiting) = (BTreeSet::new(), BTreeSet::new());
        Self { at_a_time, under_way, waiting, newest_next: false }
    }

    fn admits(&mut self, id: NetnsId) -> bool {
        let has_room = self.under_way.len() < self.at_a_time;
        if has_room {
            self.waiting.remove(&id);
            self.under_way.insert(id);
        } else if !self.under_way.contains(&id) {
            self.waiting.insert(id);
            return false;
        }
        true
    }

    fn next(&mut self) -> Option<NetnsId> {
        if self.under_way.len() >= self.at_a_time {
            return None;
        }
        self.newest_next = !self.newest_next;
        let next =
            if self.newest_next { self.waiting.pop_last() } else { self.waiting.pop_first() };
        self.under_way.extend(next);
        next
    }
}

impl Openings {
    fn lanes(&mut self) -> [&mut Lane; 2] {
        [&mut self.not_known_yet, &mut self.of_users]
    }

    /// Whether a netns may be opened now. If not, it waits until [`next`](Self::next) returns it.
    pub(super) fn admits(&mut self, id: NetnsId, whose: Whose) -> bool {
        match whose {
            Whose::AUsers => self.of_users.admits(id),
            Whose::NotKnownYet => self.not_known_yet.admits(id),
        }
    }

    /// The attempt to open a netns has ended: with success, an error or a timeout.
    pub(super) fn answered(&mut self, id: NetnsId) {
        for lane in self.lanes() {
            lane.under_way.remove(&id);
        }
    }

    /// Removes a netns that need not be opened any more, or that may be opened without waiting. Returns whether it waited.
    pub(super) fn leaves(&mut self, id: NetnsId) -> bool {
        self.answered(id);
        let [one, other] = self.lanes().map(|lane| lane.waiting.remove(&id));
        one || other
    }

    /// The next waiting netns, if one more may be opened. It then counts as being opened.
    pub(super) fn next(&mut self) -> Option<NetnsId> {
        self.lanes().into_iter().find_map(Lane::next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: fn(u64) -> NetnsId = NetnsId::numbered;

    #[test]
    fn few_at_a_time_the_newest_and_the_oldest_in_turn() {
        let mut openings = Openings::default();
        let mut admits = |n: &u64| openings.admits(ID(*n), Whose::NotKnownYet);
        let now: Vec<u64> = (0..14).filter(&mut admits).collect();
        assert_eq!(now, (0..4).collect::<Vec<_>>());
        assert!(admits(&3), "it is under way");
        assert_eq!(openings.next(), None);
        (0..4).for_each(|n| openings.answered(ID(n)));
        assert!(openings.leaves(ID(13)), "a runtime vouches for it");
        let next: Vec<_> = std::iter::from_fn(|| openings.next()).collect();
        assert_eq!(next, [12, 4, 11, 5].map(ID));
        assert!(!openings.leaves(ID(4)), "it is under way");
        assert_eq!(openings.next(), Some(ID(10)));
        assert_eq!(openings.next(), None, "four are under way");
    }

    /// What a new netns waits for: one that a user is known to own, however many of them are to be read again.
    #[test]
    fn a_new_netns_waits_for_one_that_is_read_again() {
        let mut openings = Openings::default();
        let again: Vec<u64> = (0..24).filter(|n| openings.admits(ID(*n), Whose::AUsers)).collect();
        assert_eq!(again, [0]);
        assert!(openings.admits(ID(30), Whose::NotKnownYet));
        openings.answered(ID(0));
        assert_eq!(openings.next(), Some(ID(23)));
        assert_eq!(openings.next(), None);
        // Those that are not known yet have their turn first.
        assert_eq!((31..36).filter(|n| openings.admits(ID(*n), Whose::NotKnownYet)).count(), 3);
        openings.answered(ID(23));
        openings.answered(ID(30));
        assert_eq!([openings.next(), openings.next()], [Some(ID(35)), Some(ID(1))]);
        assert_eq!(openings.next(), None);
    }
}
