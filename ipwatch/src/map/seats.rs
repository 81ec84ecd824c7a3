//! How many findings have room at a time, and whose they are. Pure bookkeeping, for `detect` and the ledger.
//!
//! Whoever can make a netns can cause findings about it without end: one process that hangs is one. Each user therefore has
//! so many places, and all users together; so has each pod, and what is left is of the node: they never take one another's.
//! A finding that has a place keeps it until it is over.

use std::collections::BTreeMap;

use super::NetnsId;

/// To whom a finding counts, by the netns that it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whose {
    /// It is about no netns, the host's, or one of root's.
    Node,
    /// A runtime reports the netns as a sandbox's.
    Pod(NetnsId),
    /// The netns belongs to a user namespace of this user; `None`: it is not known whose it is.
    User(Option<u32>),
}

impl Whose {
    fn is_user(self) -> bool {
        matches!(self, Self::User(_))
    }

    /// As a value of a label.
    #[must_use]
    pub fn class(self) -> &'static str {
        match self {
            Self::Node => "root",
            Self::Pod(_) => "pods",
            Self::User(_) => "users",
        }
    }
}

/// How many places there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// For each user and each pod, of each kind.
    pub of_one: usize,
    /// For all users together.
    pub of_users: usize,
    /// For all pods and the node together.
    pub of_others: usize,
}

impl Default for Places {
    /// Of findings that are open: two thousand are eight of each of 256 pods.
    fn default() -> Self {
        Self { of_one: 64, of_users: 256, of_others: 2048 }
    }
}

/// The places that are taken, of each kind `K`.
#[derive(Debug)]
pub struct Seats<K> {
    places: Places,
    of_one: BTreeMap<(Whose, K), usize>,
    users: usize,
    others: usize,
    /// Those of which it is not known yet to whom they count.
    unknown: usize,
}

impl<K: Ord> Seats<K> {
    /// All are free.
    #[must_use]
    pub fn new(places: Places) -> Self {
        Self { places, of_one: BTreeMap::new(), users: 0, others: 0, unknown: 0 }
    }

    /// Takes a place whether there is one or not: it was taken before. `None`: it is not known yet to whom it counts.
    pub fn keep(&mut self, whose: Option<Whose>, kind: K) {
        let Some(whose) = whose else {
            self.unknown += 1;
            return;
        };
        *self.class(whose) += 1;
        if whose != Whose::Node {
            *self.of_one.entry((whose, kind)).or_default() += 1;
        }
    }

    /// Takes a place, if there is one. Those that are not known to be others' may be users'.
    pub fn take(&mut self, whose: Whose, kind: K) -> bool {
        let Places { of_one, of_users, of_others } = self.places;
        let Self { users, others, unknown, .. } = *self;
        let fits = match whose.is_user() {
            true => users + unknown < of_users,
            false => others < of_others && users + others + unknown < of_users + of_others,
        };
        // The node's own are not one tenant's: where no runtime answers, those of all pods are among them.
        let fits = fits
            && (whose == Whose::Node || {
                let own = self.of_one.entry((whose, kind)).or_default();
                let has_room = *own < of_one;
                *own += usize::from(has_room);
                has_room
            });
        if fits {
            *self.class(whose) += 1;
        }
        fits
    }

    /// How many are taken by users, or by all others.
    fn class(&mut self, whose: Whose) -> &mut usize {
        if whose.is_user() { &mut self.users } else { &mut self.others }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: Places = Places { of_one: 3, of_users: 5, of_others: 8 };
    const ALICE: Whose = Whose::User(Some(1000));
    const BOB: Whose = Whose::User(Some(1001));

    fn taken(seats: &mut Seats<u8>, whose: Whose, kind: u8, tries: usize) -> usize {
        (0..tries).filter(|_| seats.take(whose, kind)).count()
    }

    #[test]
    fn a_user_takes_none_of_anothers_kind_nor_of_a_pods() {
        let mut seats = Seats::new(PLACES);
        assert_eq!(taken(&mut seats, ALICE, 0, 10), 3);
        assert_eq!(taken(&mut seats, ALICE, 1, 1), 1, "another kind");
        assert_eq!(taken(&mut seats, BOB, 0, 10), 1, "all users have five");
        let pod = |n| Whose::Pod(NetnsId::numbered(n));
        assert_eq!(taken(&mut seats, pod(1), 0, 10), 3);
        assert_eq!(taken(&mut seats, pod(2), 0, 10), 3);
        assert_eq!(taken(&mut seats, Whose::Node, 0, 10), 2, "eight in all");
        assert_eq!(taken(&mut seats, pod(3), 0, 10), 0);
    }

    #[test]
    fn what_was_taken_before_counts() {
        let mut seats = Seats::new(PLACES);
        (0..4).for_each(|_| seats.keep(Some(ALICE), 0));
        assert_eq!(taken(&mut seats, ALICE, 0, 10), 0);
        seats.keep(None, 0);
        assert_eq!(taken(&mut seats, BOB, 0, 10), 0, "it may be a user's");
        assert_eq!(taken(&mut seats, Whose::Node, 0, 10), 8);
        let mut seats = Seats::new(PLACES);
        (0..20).for_each(|_| seats.keep(None, 0));
        assert_eq!(taken(&mut seats, Whose::Node, 0, 10), 0, "nothing grows beyond all places");
    }
}
