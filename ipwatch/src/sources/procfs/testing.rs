//! A made-up `/proc` in a temporary directory.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::Proc;
use super::cgroup::Hierarchies;
use crate::fact::TaskKey;

/// The tree, removed with this value.
pub(super) struct Tree(tempfile::TempDir);

/// A task in the tree.
#[derive(Clone)]
pub(super) struct Made {
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) comm: &'static [u8],
    pub(super) state: char,
    pub(super) flags: u32,
    pub(super) start: u64,
    pub(super) threads: u32,
    pub(super) netns: Option<u32>,
    pub(super) status: &'static str,
    pub(super) cgroup: &'static str,
    pub(super) wchan: &'static str,
    pub(super) stack: &'static str,
}

impl Default for Made {
    fn default() -> Self {
        Self {
            pid: 40,
            tid: 40,
            comm: b"java",
            state: 'S',
            flags: 0x40_0000,
            start: 777,
            threads: 1,
            netns: Some(4_026_532_177),
            status: "Name:\tjava\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n",
            cgroup: "0::/\n",
            wchan: "0",
            stack: "",
        }
    }
}

impl Made {
    pub(super) fn key(&self) -> TaskKey {
        TaskKey { pid: self.pid, tid: self.tid, start: self.start }
    }

    fn stat(&self) -> Vec<u8> {
        let Self { pid, tid, state, flags, threads, start, .. } = self;
        let mut line = format!("{tid} (").into_bytes();
        line.extend(self.comm);
        let rest = format!(
            ") {state} {} {pid} {pid} 0 -1 {flags} 0 0 0 0 23 12 0 0 20 0 {threads} 0 {start} 0 0 \
             18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n",
            1
        );
        line.extend(rest.into_bytes());
        line
    }

    fn write(&self, dir: &Path) {
        fs::create_dir_all(dir.join("ns")).unwrap();
        fs::write(dir.join("stat"), self.stat()).unwrap();
        fs::write(dir.join("status"), self.status).unwrap();
        fs::write(dir.join("cgroup"), self.cgroup).unwrap();
        fs::write(dir.join("wchan"), self.wchan).unwrap();
        fs::write(dir.join("stack"), self.stack).unwrap();
        if let Some(netns) = self.netns {
            symlink(format!("net:[{netns}]"), dir.join("ns/net")).unwrap();
        }
    }
}

impl Tree {
    pub(super) fn new() -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        for dir in ["proc/self", "freezer", "unified"] {
            fs::create_dir_all(tree.path(dir)).unwrap();
        }
        fs::write(tree.path("proc/self/mountinfo"), "").unwrap();
        tree
    }

    pub(super) fn path(&self, below: &str) -> PathBuf {
        self.0.path().join(below)
    }

    /// Writes a file below the top, and creates its directories.
    pub(super) fn file(&self, below: &str, content: &str) {
        let path = self.path(below);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Creates a link below the top, and its directories.
    pub(super) fn link(&self, below: &str, text: &str) {
        let path = self.path(below);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(text, path).unwrap();
    }

    pub(super) fn task(&self, made: &Made) {
        made.write(&self.path(&format!("proc/{}/task/{}", made.pid, made.tid)));
        if made.pid == made.tid {
            made.write(&self.path(&format!("proc/{}", made.pid)));
        }
    }

    /// A process of a cgroup with so many fds, none of which is of interest.
    pub(super) fn many_fds(&self, pid: u32, cgroup: &str, fds: u32) {
        self.file(&format!("proc/{pid}/cgroup"), &format!("0::{cgroup}\n"));
        fs::create_dir_all(self.path(&format!("proc/{pid}/fd"))).unwrap();
        (0..fds).for_each(|fd| {
            symlink("/dev/null", self.path(&format!("proc/{pid}/fd/{fd}"))).unwrap()
        });
    }

    /// Its `/proc`, with every hierarchy.
    pub(super) fn proc(&self) -> Proc {
        let hierarchies = Hierarchies {
            freezer: Some(self.path("freezer")),
            cpu: Some(self.path("cpu")),
            unified: Some(self.path("unified")),
        };
        let servers = Default::default();
        let (root, sys, kmsg) = (self.path("proc"), self.path("sys"), self.path("kmsg"));
        let perils = Default::default();
        Proc { root, hierarchies, sys, kmsg, servers, perils }
    }
}
