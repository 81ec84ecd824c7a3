//! How many holders a pass tells of each netns, and in all: one tenant can make as many of them as he likes.

use std::collections::HashMap;

/// Maximum number of holders told of one netns: the map keeps no more.
const MOST_OF_ONE: usize = 256;
/// The same if so many netns are searched for that [`MOST`] would not do.
const FEWEST_OF_ONE: usize = 4;
/// Number of holders that the netns of a search share. The path of a mount has up to 4 KiB.
const MOST: usize = 2_048;
/// Maximum number of holders that a pass over all netns tells.
const MOST_OF_ALL: usize = 8_192;

/// What has been told of each netns.
#[derive(Debug)]
pub(super) struct Shares {
    most_of_one: usize,
    most: usize,
    told: HashMap<u32, usize>,
    all: usize,
    /// A pass over all netns has left one out.
    pub(super) is_cut: bool,
}

impl Shares {
    /// For a search for the holders of so many netns. It is complete whatever is left out: each of them has so many
    /// holders that no more would be kept.
    pub(super) fn of_search(netns: usize) -> Self {
        let share = (MOST / netns.max(1)).clamp(FEWEST_OF_ONE, MOST_OF_ONE);
        Self { most_of_one: share, most: usize::MAX, ..Self::of_all() }
    }

    /// For a pass over all netns.
    pub(super) fn of_all() -> Self {
        let told = HashMap::new();
        Self { most_of_one: MOST_OF_ONE, most: MOST_OF_ALL, told, all: 0, is_cut: false }
    }

    /// Whether one more holder of this netns is told.
    pub(super) fn take(&mut self, inode: u32) -> bool {
        if self.all >= self.most {
            self.is_cut = true;
            return false;
        }
        let told = self.told.entry(inode).or_default();
        let takes = *told < self.most_of_one;
        *told += usize::from(takes);
        self.all += usize::from(takes);
        takes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(shares: &mut Shares, inode: u32) -> usize {
        (0..1_000).filter(|_| shares.take(inode)).count()
    }

    #[test]
    fn a_search_tells_as_many_of_each_netns_as_are_kept() {
        let mut few = Shares::of_search(2);
        assert_eq!([told(&mut few, 1), told(&mut few, 2)], [MOST_OF_ONE; 2]);
        let mut many = Shares::of_search(10_000);
        assert!((1..=10_000).all(|inode| told(&mut many, inode) == FEWEST_OF_ONE));
        assert!(!few.is_cut && !many.is_cut);
    }

    #[test]
    fn a_pass_over_all_netns_tells_where_it_was_cut() {
        let mut all = Shares::of_all();
        assert_eq!((1..=100).map(|inode| told(&mut all, inode)).sum::<usize>(), MOST_OF_ALL);
        assert!(all.is_cut);
    }
}
