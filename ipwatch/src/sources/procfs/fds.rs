//! How many fds of other processes a pass looks at. The kernel makes an inode and a directory entry for each that is listed
//! (`proc_fill_cache`, fs/proc/base.c; 5.10 to 6.18), 900 bytes that count as memory of the reader until they are needed
//! elsewhere; and processes may share a table of a million.

use std::io;

use super::files::Dir;

/// Maximum number of fds of one process, and of a pass.
const MOST_OF_ONE: usize = 1_024;
const MOST: usize = 16_384;

/// What a pass may still look at.
#[derive(Debug)]
pub(super) struct Fds {
    left: usize,
}

impl Fds {
    pub(super) fn new() -> Self {
        Self { left: MOST }
    }

    /// The lowest fds of a process, and whether these are all.
    ///
    /// # Errors
    /// They cannot be listed.
    pub(super) fn of(&mut self, process: &Dir) -> io::Result<(Vec<u32>, bool)> {
        let most = self.left.min(MOST_OF_ONE);
        let (fds, whole) = process.first_numbers("fd", most)?;
        self.left -= fds.len();
        Ok((fds, whole))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Tree;
    use super::*;

    #[test]
    fn a_process_with_many_fds_leaves_some_for_others_and_all_together_have_a_most() {
        let tree = Tree::new();
        std::fs::create_dir_all(tree.path("proc/7/fd")).unwrap();
        for fd in 0..2_000 {
            tree.file(&format!("proc/7/fd/{fd}"), "");
        }
        tree.file("proc/8/fd/3", "");
        let dir = |pid: u32| Dir::open(&tree.path(&format!("proc/{pid}"))).unwrap();
        let mut fds = Fds::new();
        let (many, whole) = fds.of(&dir(7)).unwrap();
        assert_eq!((many.len(), whole), (MOST_OF_ONE, false));
        assert_eq!(fds.of(&dir(8)).unwrap(), (vec![3], true));
        while fds.left > 0 {
            assert!(!fds.of(&dir(7)).unwrap().1);
        }
        assert_eq!(fds.of(&dir(8)).unwrap(), (vec![], false));
    }
}
