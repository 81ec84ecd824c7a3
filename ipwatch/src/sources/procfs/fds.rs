//! Which fds of other processes a pass looks at. The kernel makes an inode and a directory entry for each that is listed
//! (`proc_fill_cache`, fs/proc/base.c; 5.10 to 6.18), 900 bytes that count as memory of the reader until they are needed
//! elsewhere; and processes may share a table of a million. Tenants share what a pass may list, because each can have as many
//! fds, and as many processes with few of them, as it likes.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;

use super::cgroup;
use super::files::{Dir, is_gone};
use crate::clock;
use crate::fact::BootNs;
use crate::fact::cgroup::tenant;

/// Maximum number of fds of a pass.
const MOST: usize = 16_384;
/// Maximum number of fds of one process.
const MOST_OF_ONE: usize = 1_024;
/// Maximum number of fds of one process in its first turn, and how many times as many there may be after each other one. A
/// server opens its device when it starts: the lowest fds of all processes come before the others of any.
const FIRST: usize = 32;
const GROWTH: usize = 8;

/// What a pass may still look at.
#[derive(Debug)]
pub(super) struct Fds<'a> {
    root: &'a Dir,
    until: BootNs,
    left: usize,
    /// Processes that have not shown all, by how much was looked at of their tenant, and the number of the tenant.
    waiting: BTreeMap<(usize, usize), VecDeque<Waits>>,
    /// Something could not be read, or is more than may be.
    failed: bool,
}

#[derive(Debug)]
struct Waits {
    pid: u32,
    /// Number of fds that it has shown.
    shown: usize,
    /// Maximum number of them after its next turn.
    most: usize,
}

/// Some fds of one process. It may have another turn.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) pid: u32,
    pub(super) dir: Dir,
    pub(super) fds: Vec<u32>,
    /// The number of its tenant.
    pub(super) tenant: usize,
}

impl<'a> Fds<'a> {
    /// For a pass over the processes in `root` that ends at `until`.
    ///
    /// # Errors
    /// They cannot be listed.
    pub(super) fn new(root: &'a Dir, until: BootNs) -> io::Result<Self> {
        let mut fds = Self { root, until, left: MOST, waiting: BTreeMap::new(), failed: false };
        let mut tenants: HashMap<String, usize> = HashMap::new();
        // 30 us each: whoever has tens of thousands of processes leaves time for those that are known by then.
        let now = clock::now();
        let enough = now.plus(until.since(now) / 2);
        for pid in root.numbers(".")? {
            if clock::now() > enough {
                fds.failed = true;
                break;
            }
            // Without a cgroup it is gone.
            let group = root.dir(pid.to_string()).and_then(|dir| cgroup::read(&dir)).ok().flatten();
            let (group, next) = (group.unwrap_or_default(), tenants.len());
            let tenant = *tenants.entry(tenant(&group).to_owned()).or_insert(next);
            let waits = Waits { pid, shown: 0, most: FIRST };
            fds.waiting.entry((0, tenant)).or_default().push_back(waits);
        }
        Ok(fds)
    }

    /// The next fds to look at: of the tenant of which least was looked at, and there of the process that has waited longest.
    pub(super) fn next(&mut self) -> Option<Turn> {
        while self.left > 0 && clock::now() <= self.until {
            let ((looked_at, tenant), mut processes) = self.waiting.pop_first()?;
            let turn = processes.pop_front().and_then(|process| self.turn(process, &mut processes));
            // One without fds costs something too.
            let fds = turn.as_ref().map_or(0, |(_, _, fds)| fds.len());
            if !processes.is_empty() {
                self.waiting.insert((looked_at + fds + 1, tenant), processes);
            }
            if let Some((pid, dir, fds)) = turn {
                return Some(Turn { pid, dir, fds, tenant });
            }
        }
        None
    }

    fn turn(
        &mut self,
        Waits { pid, shown, most }: Waits,
        others: &mut VecDeque<Waits>,
    ) -> Option<(u32, Dir, Vec<u32>)> {
        let most = most.min(shown + self.left);
        let listed = self.root.dir(pid.to_string());
        let listed = listed.and_then(|dir| Ok((dir.first_numbers("fd", most)?, dir)));
        match listed {
            Ok(((mut fds, whole), dir)) => {
                if !whole && fds.len() < MOST_OF_ONE {
                    let most = (most * GROWTH).min(MOST_OF_ONE);
                    others.push_back(Waits { pid, shown: fds.len(), most });
                }
                self.failed |= !whole && fds.len() >= MOST_OF_ONE;
                fds.drain(..shown.min(fds.len()));
                self.left -= fds.len();
                Some((pid, dir, fds))
            }
            Err(error) => {
                self.failed |= !is_gone(&error);
                None
            }
        }
    }

    /// Whether all fds of all processes were looked at.
    pub(super) fn is_complete(&self) -> bool {
        self.waiting.is_empty() && !self.failed
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Tree;
    use super::*;

    const SESSION: &str = "/user.slice/user-1000.slice/session-1.scope";
    const POD: &str = "/kubepods.slice/kubepods-besteffort.slice/\
                       kubepods-besteffort-pod3c6d9d2a_1f36_4d0b_9d0e_6a1f0d2c7b11.slice";

    /// How many fds of each process are looked at, and whether these are all.
    fn looked_at(tree: &Tree, most: usize) -> (BTreeMap<u32, usize>, bool) {
        let root = Dir::open(&tree.path("proc")).unwrap();
        let mut fds = Fds::new(&root, BootNs(u64::MAX)).unwrap();
        fds.left = most;
        let mut seen: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        while let Some(turn) = fds.next() {
            seen.entry(turn.pid).or_default().extend(turn.fds);
        }
        let mut counts = BTreeMap::new();
        for (pid, mut fds) in seen {
            let count = fds.len();
            fds.sort_unstable();
            fds.dedup();
            assert_eq!(fds.len(), count, "none twice");
            counts.insert(pid, count);
        }
        (counts, fds.is_complete())
    }

    #[test]
    fn all_of_few_are_looked_at() {
        let tree = Tree::new();
        tree.many_fds(7, SESSION, 600);
        tree.many_fds(8, POD, 1);
        tree.many_fds(9, POD, 0);
        let all = BTreeMap::from([(7, 600), (8, 1), (9, 0)]);
        assert_eq!(looked_at(&tree, 601), (all, true));
        assert!(!looked_at(&tree, 600).1);
    }

    #[test]
    fn of_one_process_the_lowest_are_looked_at() {
        let tree = Tree::new();
        tree.many_fds(7, SESSION, 2_000);
        tree.many_fds(8, SESSION, 40);
        let some = BTreeMap::from([(7, MOST_OF_ONE), (8, 40)]);
        assert_eq!(looked_at(&tree, 10_000), (some, false));
    }

    #[test]
    fn neither_many_fds_nor_many_processes_take_those_of_others() {
        let tree = Tree::new();
        for pid in 10..13 {
            tree.many_fds(pid, SESSION, 700);
        }
        for pid in 13..113 {
            tree.many_fds(pid, "/user.slice/user-1001.slice/x", 10);
        }
        for pid in 1_000..1_010 {
            tree.many_fds(pid, POD, 30);
        }
        tree.many_fds(1_010, "/system.slice/a.service", 100);
        let (seen, complete) = looked_at(&tree, 1_600);
        assert!(!complete);
        assert!((1_000..1_010).all(|pid| seen[&pid] == 30), "{seen:?}");
        assert_eq!(seen[&1_010], 100);
        assert!((10..13).all(|pid| seen[&pid] >= FIRST), "{seen:?}");
        assert_eq!(seen.values().sum::<usize>(), 1_600);
    }

    #[test]
    fn a_pass_without_time_is_not_complete() {
        let tree = Tree::new();
        tree.many_fds(7, SESSION, 1);
        let root = Dir::open(&tree.path("proc")).unwrap();
        let mut fds = Fds::new(&root, BootNs(0)).unwrap();
        assert!(fds.next().is_none() && !fds.is_complete());
    }
}
