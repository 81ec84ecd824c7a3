//! Reads every task outside the host's netns; used if no BPF iterator runs.

use std::io;

use super::files::{Dir, is_gone};
use super::look::{Signals, netns, stat};
use super::{Proc, fact};
use crate::clock;
use crate::fact::{Fact, NetnsRef, Observation, Origin, Scope, Task, TaskKey};

const PF_EXITING: u32 = 0x4; // linux/sched.h

/// Maximum number of threads of one process that are read; more make the snapshot incomplete.
const THREADS: usize = 65_536;

impl Proc {
    /// A snapshot of every task outside the netns `host`, bracketed by [`Scope::Tasks`]: each leader, and each thread
    /// that is in another netns than its leader or whose leader has none any more.
    ///
    /// # Errors
    /// `/proc` cannot be listed.
    pub fn tasks(&self, host: NetnsRef) -> io::Result<Vec<Fact>> {
        let began = clock::now();
        let mut snapshot = Snapshot { host: host.inode, facts: Vec::new(), complete: true };
        snapshot.put(Observation::Began(Scope::Tasks), began);
        let root = Dir::open(&self.root)?;
        for pid in root.numbers(".")? {
            match root.dir(pid.to_string()).and_then(|dir| snapshot.process(pid, &dir)) {
                Err(error) if !is_gone(&error) => snapshot.complete = false,
                _ => {}
            }
        }
        let complete = snapshot.complete;
        let mut facts = snapshot.facts;
        facts.push(fact(Observation::Ended { scope: Scope::Tasks, began, complete }));
        Ok(facts)
    }

    /// The threads of one process that hold another netns than `host` and than their leader; and the leader, if it is
    /// in another netns than `host`.
    ///
    /// # Errors
    /// `/proc` cannot be read. A process that has ended is not an error.
    pub fn threads(&self, pid: u32, host: NetnsRef) -> io::Result<Vec<Fact>> {
        let mut snapshot = Snapshot { host: host.inode, facts: Vec::new(), complete: true };
        match Dir::open(&self.root.join(pid.to_string()))
            .and_then(|dir| snapshot.process(pid, &dir))
        {
            Err(error) if !is_gone(&error) => Err(error),
            _ => Ok(snapshot.facts),
        }
    }

    /// The netns that a process is in, which may be the host's.
    ///
    /// # Errors
    /// The process is gone, or has no netns any more.
    pub fn netns_of(&self, pid: u32) -> io::Result<NetnsRef> {
        let dir = Dir::open(&self.root.join(pid.to_string()))?;
        dir.namespace("ns/net", "net").and_then(netns)
    }
}

struct Snapshot {
    host: Option<u32>,
    facts: Vec<Fact>,
    complete: bool,
}

impl Snapshot {
    fn process(&mut self, pid: u32, dir: &Dir) -> io::Result<()> {
        let leader = place(dir)?;
        let stat = stat(dir)?;
        if let Some(place) = self.elsewhere(leader) {
            self.task(pid, pid, place, dir)?;
        }
        if stat.num_threads <= 1 && leader.is_some() {
            return Ok(());
        }
        for tid in dir.numbers("task")?.into_iter().filter(|&tid| tid != pid).take(THREADS) {
            match dir.dir(format!("task/{tid}")).and_then(|dir| self.thread(pid, tid, leader, &dir))
            {
                Err(error) if !is_gone(&error) => self.complete = false,
                _ => {}
            }
        }
        self.complete &= stat.num_threads <= THREADS as i64;
        Ok(())
    }

    fn thread(&mut self, pid: u32, tid: u32, leader: Option<u32>, dir: &Dir) -> io::Result<()> {
        let place = place(dir)?;
        match self.elsewhere(place) {
            Some(inode) if place != leader => self.task(pid, tid, inode, dir),
            _ => Ok(()),
        }
    }

    fn task(&mut self, pid: u32, tid: u32, inode: u32, dir: &Dir) -> io::Result<()> {
        let at = clock::now();
        let stat = stat(dir)?;
        let task = Task {
            key: TaskKey { pid, tid, start: stat.starttime },
            netns: NetnsRef::inode(inode),
            comm: stat.comm,
            parent: u32::try_from(stat.ppid).ok(),
            exiting: stat.flags & PF_EXITING != 0,
            killed: Signals::read(dir)?.killed(),
            state: Some(stat.state),
            idle: None,
        };
        self.put(Observation::Task(task), at);
        Ok(())
    }

    fn elsewhere(&self, inode: Option<u32>) -> Option<u32> {
        inode.filter(|_| inode != self.host)
    }

    fn put(&mut self, what: Observation, at: crate::fact::BootNs) {
        self.facts.push(Fact { at, origin: Origin::Procfs, what });
    }
}

/// The netns of a task; `None` if it has released it.
fn place(dir: &Dir) -> io::Result<Option<u32>> {
    match dir.namespace("ns/net", "net").and_then(netns) {
        Ok(netns) => Ok(netns.inode),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
