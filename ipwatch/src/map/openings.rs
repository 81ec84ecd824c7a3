//! Which netns that strangers can make are opened when there are many. Pure.
//!
//! One thread opens netns, one after the other, and whoever can make one can make thousands, each of which takes as long to
//! read as he likes to fill it. So only a few of those at a time are handed to it: a netns of a pod or of root waits behind
//! no more than these. Of those that wait the newest and the oldest take turns: the newest may be a pod that no runtime has
//! told of yet.

use std::collections::BTreeSet;

use super::NetnsId;

/// Strangers' netns that the thread is given at a time. A full one takes it a tenth of a second on a busy node, and whoever
/// comes next waits behind all of them.
const AT_A_TIME: usize = 8;

/// The netns of strangers that are being opened, and those that wait for it.
#[derive(Debug, Default)]
pub(super) struct Openings {
    under_way: BTreeSet<NetnsId>,
    /// Those that were heard of last come last: ids are given in that order.
    waiting: BTreeSet<NetnsId>,
    newest_next: bool,
}

impl Openings {
    /// Whether it may be opened now. If not, it waits for [`next`](Self::next).
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

    /// It was opened, or could not be, or nobody answered in time.
    pub(super) fn answered(&mut self, id: NetnsId) {
        self.under_way.remove(&id);
    }

    /// It is not to be opened any more, or without waiting. Whether it waited.
    pub(super) fn leaves(&mut self, id: NetnsId) -> bool {
        self.under_way.remove(&id);
        self.waiting.remove(&id)
    }

    /// The next one that waits, if one more may be opened. It is under way then.
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
