//! Limits how many netns of unprivileged users are being opened at a time. Pure.
//!
//! One thread opens netns, one after the other. A user who can create one netns can create thousands, and the time to read
//! each depends on what the user has put into it. Only a few of them are therefore passed to the thread at a time, so that
//! a netns of a pod or of root waits for no more than these. The newest and the oldest of those that wait are taken in turn:
//! the newest may be a pod that no runtime has reported yet.

use std::collections::BTreeSet;

use super::NetnsId;

/// Maximum number of users' netns that the thread is given at a time. Reading a full one takes a tenth of a second on a busy
/// node, and the next netns of a pod waits for all of them.
const AT_A_TIME: usize = 8;

/// The netns of unprivileged users that are being opened, and those that wait.
#[derive(Debug, Default)]
pub(super) struct Openings {
    under_way: BTreeSet<NetnsId>,
    /// The newest comes last, because ids are assigned in ascending order.
    waiting: BTreeSet<NetnsId>,
    newest_next: bool,
}

impl Openings {
    /// Whether a netns may be opened now. If not, it waits until [`next`](Self::next) returns it.
    pub(super) fn admits(&mut self, id: NetnsId) -> bool {
        let has_room = self.under_way.len() < AT_A_TIME;
        if has_room {
            self.waiting.remove(&id);
            self.under_way.insert(id);
        } else if !self.under_way.contains(&id) {
            self.waiting.insert(id);
            return false;
        }
        true
    }

    /// The attempt to open a netns has ended: with success, an error or a timeout.
    pub(super) fn answered(&mut self, id: NetnsId) {
        self.under_way.remove(&id);
    }

    /// Removes a netns that need not be opened any more, or that may be opened without waiting. Returns whether it waited.
    pub(super) fn leaves(&mut self, id: NetnsId) -> bool {
        self.under_way.remove(&id);
        self.waiting.remove(&id)
    }

    /// The next waiting netns, if one more may be opened. It then counts as being opened.
    pub(super) fn next(&mut self) -> Option<NetnsId> {
        if self.under_way.len() >= AT_A_TIME {
            return None;
        }
        self.newest_next = !self.newest_next;
        let next =
            if self.newest_next { self.waiting.pop_last() } else { self.waiting.pop_first() };
        self.under_way.extend(next);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_at_a_time_the_newest_and_the_oldest_in_turn() {
        let mut openings = Openings::default();
        let id = NetnsId::numbered;
        let now: Vec<u64> = (0..14).filter(|n| openings.admits(id(*n))).collect();
        assert_eq!(now, (0..8).collect::<Vec<_>>());
        assert!(openings.admits(id(3)), "it is under way");
        assert_eq!(openings.next(), None);
        (0..4).for_each(|n| openings.answered(id(n)));
        assert!(openings.leaves(id(13)), "a runtime vouches for it");
        let next: Vec<_> = std::iter::from_fn(|| openings.next()).collect();
        assert_eq!(next, [12, 8, 11, 9].map(id));
        assert!(!openings.leaves(id(8)), "it is under way");
        assert_eq!(openings.next(), Some(id(10)));
        assert_eq!(openings.next(), None, "nobody waits");
    }
}
