//! Which of the files that keep a netns are told: one tenant can make as many of them as he likes.

use std::collections::{HashMap, HashSet};

use ipwatch_common::{FileRecord, Netns};

use crate::fact::NetnsRef;

/// Maximum number of files told of one netns: the map keeps no more holders of it.
const MOST_OF_ONE: usize = 256;
/// The same if so many netns are searched for that [`MOST`] would not do.
const FEWEST_OF_ONE: usize = 8;
/// Number of files, of some 300 bytes each, that the netns which are searched for share; all others share as many.
const MOST: usize = 8_192;

/// Chooses among the records of a pass.
#[derive(Debug)]
pub(super) struct Chosen {
    cookies: HashSet<u64>,
    inodes: HashSet<u32>,
    /// Of one netns that is searched for.
    most_of_one: usize,
    told: HashMap<(u64, u32), usize>,
    /// Files of other netns.
    others: usize,
    /// The netns of the last record, if there was no room for it: files of one netns come one after another.
    full: Option<(u64, u32)>,
    /// Whether a record was left out.
    pub(super) is_cut: bool,
}

impl Chosen {
    /// For a search for the holders of these netns.
    pub(super) fn new(wanted: &[NetnsRef]) -> Self {
        let share = MOST / wanted.len().max(1);
        Self {
            cookies: wanted.iter().filter_map(|netns| netns.cookie).collect(),
            inodes: wanted.iter().filter_map(|netns| netns.inode).collect(),
            most_of_one: share.clamp(FEWEST_OF_ONE, MOST_OF_ONE),
            told: HashMap::new(),
            others: 0,
            full: None,
            is_cut: false,
        }
    }

    /// Whether this file is told.
    pub(super) fn takes(&mut self, file: &FileRecord) -> bool {
        let netns = (file.netns.cookie, file.netns.inode);
        if self.full == Some(netns) {
            return false;
        }
        let is_wanted = self.is_wanted(&file.netns);
        let has_room = (is_wanted || self.others < MOST) && {
            let told = self.told.entry(netns).or_default();
            let has_room = *told < if is_wanted { self.most_of_one } else { MOST_OF_ONE };
            *told += usize::from(has_room);
            has_room
        };
        self.others += usize::from(has_room && !is_wanted);
        self.full = (!has_room).then_some(netns);
        self.is_cut |= !has_room;
        has_room
    }

    fn is_wanted(&self, netns: &Netns) -> bool {
        self.cookies.contains(&netns.cookie) || self.inodes.contains(&netns.inode)
    }
}

#[cfg(test)]
mod tests {
    use ipwatch_common::Wire;

    use super::*;

    fn file(cookie: u64, inode: u32) -> FileRecord {
        let blank = FileRecord::take(&mut &vec![0; FileRecord::SIZE][..]).unwrap();
        FileRecord { netns: Netns { cookie, inode, refs: 1 }, ..blank }
    }

    fn told(chosen: &mut Chosen, cookie: u64, inode: u32, files: usize) -> usize {
        (0..files).filter(|_| chosen.takes(&file(cookie, inode))).count()
    }

    #[test]
    fn a_tenant_with_many_files_hides_no_file_of_what_is_searched_for() {
        let mut chosen = Chosen::new(&[NetnsRef::cookie(1), NetnsRef::inode(12)]);
        assert_eq!(told(&mut chosen, 1, 11, 1 << 18), MOST_OF_ONE);
        assert!(chosen.is_cut);
        assert_eq!((3..100).map(|other| told(&mut chosen, other, 0, 1_000)).sum::<usize>(), MOST);
        assert_eq!(told(&mut chosen, 2, 12, 3), 3, "by its inode");
    }

    #[test]
    fn in_all_there_are_not_too_many() {
        let wanted: Vec<_> = (1..=4_000).map(NetnsRef::cookie).collect();
        let mut chosen = Chosen::new(&wanted);
        let all: usize = (1..=4_000).map(|cookie| told(&mut chosen, cookie, 0, 100)).sum();
        assert_eq!(all, 4_000 * FEWEST_OF_ONE);
    }

    #[test]
    fn few_files_are_all_told() {
        let mut chosen = Chosen::new(&[]);
        assert_eq!(told(&mut chosen, 1, 11, 256), 256);
        assert_eq!(told(&mut chosen, 2, 12, 256), 256);
        assert!(!chosen.is_cut);
    }
}
