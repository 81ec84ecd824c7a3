//! Which entries of a list are told when there are too many of them. Pure, for `conflict` and `ipam`.
//!
//! What concerns a pod, the node or root comes first, and what concerns netns of users alone has places of its own: a user
//! hides nothing of others. Among equals the first entry of everybody comes before the second one of anybody: whoever has
//! many hides none of those who have few.
//!
//! What is left out is not over, and neither is it known to last: an open finding about it is judged by itself
//! (`detect/left_out.rs`).

use super::Netns;
use super::kernel::Tenant;

/// Maximum number of entries that concern a pod, the node or root. More have one cause, or are forged.
const MOST: usize = 512;
/// The same of those that concern netns of users alone.
const MOST_OF_USERS: usize = 128;

/// Maximum number of all that is told of a list.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) const IN_ALL: usize = MOST + MOST_OF_USERS;

/// Whom an entry concerns. The first ones are told first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Concern {
    /// A netns of a pod, of root or the node's, which has the IP.
    Holder,
    /// Nobody more than such a netns in which it was observed.
    Observer,
    /// Netns of users, or of which is not known yet whose they are.
    Users,
}

impl Concern {
    /// Of an entry about an IP that this netns has.
    pub(super) fn of(holder: &Netns) -> Self {
        match holder.counts_to() {
            Some(Tenant::User(_)) => Self::Users,
            _ => Self::Holder,
        }
    }
}

/// One that may be told.
#[derive(Debug)]
pub(super) struct Entry<G, O, T> {
    pub(super) concern: Concern,
    /// Whose it is: the entries of one come in turn with those of others.
    pub(super) of: G,
    /// The least is told first.
    pub(super) order: O,
    pub(super) what: T,
}

/// Whether there is a place for any so many.
pub(super) const fn has_room_for(count: usize) -> bool {
    count <= MOST_OF_USERS
}

/// Chooses those that are told, of one at most `of_one`. Returns them, and those that are left out, each as they came.
pub(super) fn choose<G: Ord + Copy, O: Ord + Copy, T>(
    all: impl IntoIterator<Item = Entry<G, O, T>>,
    of_one: usize,
) -> (Vec<T>, Vec<(Concern, T)>) {
    let mut all: Vec<(usize, Entry<G, O, T>)> = all.into_iter().enumerate().collect();
    all.sort_by_key(|(_, one)| (one.concern, one.of, one.order));
    let (mut before, mut turn) = (None, 0);
    let turns = all.into_iter().map(|(place, one)| {
        turn = if before == Some((one.concern, one.of)) { turn + 1 } else { 0 };
        before = Some((one.concern, one.of));
        (turn, place, one)
    });
    let mut turns: Vec<(usize, usize, Entry<G, O, T>)> = turns.collect();
    turns.sort_by_key(|(turn, _, one)| (one.concern, *turn, one.order));
    let (mut room, mut room_of_users) = (MOST, MOST_OF_USERS);
    let (mut told, mut left_out) = (Vec::new(), Vec::new());
    for (turn, place, Entry { concern, what, .. }) in turns {
        let room = if concern == Concern::Users { &mut room_of_users } else { &mut room };
        if turn < of_one && *room > 0 {
            *room -= 1;
            told.push((place, what));
        } else {
            left_out.push((place, concern, what));
        }
    }
    told.sort_by_key(|(place, _)| *place);
    left_out.sort_by_key(|(place, ..)| *place);
    let left_out = left_out.into_iter().map(|(_, concern, what)| (concern, what)).collect();
    (told.into_iter().map(|(_, what)| what).collect(), left_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries of one concern each: whose they are, and the first and the last of their order.
    fn told(all: &[(Concern, u32, u32, u32)], of_one: usize) -> (Vec<(u32, u32)>, bool) {
        let all = all.iter().flat_map(|&(concern, of, from, to)| {
            (from..to).map(move |order| Entry { concern, of, order, what: (of, order) })
        });
        let (told, left_out) = choose(all, of_one);
        (told, !left_out.is_empty())
    }

    #[test]
    fn users_hide_nothing_of_others_and_others_leave_them_their_places() {
        let (all, is_cut) =
            told(&[(Concern::Users, 1, 0, 5_000), (Concern::Holder, 2, 0, 5_000)], usize::MAX);
        let of = |whose| all.iter().filter(|(of, _)| *of == whose).count();
        assert_eq!((of(1), of(2), is_cut), (128, 512, true));
        let (all, is_cut) =
            told(&[(Concern::Observer, 1, 0, 600), (Concern::Holder, 2, 600, 603)], usize::MAX);
        assert_eq!((all.len(), all.ends_with(&[(2, 600), (2, 601), (2, 602)])), (512, true));
        assert!(is_cut);
    }

    #[test]
    fn whoever_has_many_hides_none_of_those_who_have_few() {
        let (all, is_cut) =
            told(&[(Concern::Holder, 1, 0, 600), (Concern::Holder, 2, 600, 602)], usize::MAX);
        assert!(all.contains(&(2, 600)) && all.contains(&(2, 601)) && is_cut);
        assert!(all.contains(&(1, 0)) && !all.contains(&(1, 599)), "the oldest stay");
        let (all, is_cut) = told(&[(Concern::Users, 1, 0, 17), (Concern::Users, 2, 0, 2)], 16);
        assert_eq!((all.len(), is_cut), (18, true));
    }

    #[test]
    fn what_has_room_is_told_as_it_came() {
        let few =
            [(Concern::Users, 9, 0, 2), (Concern::Holder, 3, 5, 6), (Concern::Users, 1, 7, 8)];
        assert_eq!(told(&few, 16), (vec![(9, 0), (9, 1), (3, 5), (1, 7)], false));
        assert!(has_room_for(128) && !has_room_for(129));
    }
}
