//! FUSE: which connections have unanswered requests, and which processes should answer them.
//!
//! The number of a connection is the minor number of its file system's device (`fuse_conn_get_id`; `fc->dev`,
//! fs/fuse/inode.c). Nothing here accesses the file system itself.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{AtFlags, StatxFlags};

use super::Proc;
use super::fds::{Fds, Turn};
use super::files::Dir;
use crate::clock;
use crate::fact::{BootNs, FileSystem, Process};

/// Nanoseconds for which a list of servers is reused: the tasks of one pod hang at the same time.
const FRESH: u64 = 10_000_000_000;
/// Maximum number of remembered processes that have `/dev/fuse` open.
const MOST_OPENERS: usize = 1024;
/// Maximum number of servers reported for one file system.
const MOST_SERVERS: usize = 16;
/// Device number of `/dev/fuse` (`FUSE_MINOR` of `MISC_MAJOR`, linux/miscdevice.h).
const DEVICE: (u32, u32) = (10, 229);

/// The cached list of processes that have `/dev/fuse` open.
#[derive(Debug, Clone, Default)]
pub(super) struct Servers(Arc<Mutex<Option<Arc<Openers>>>>);

#[derive(Debug, Default)]
struct Openers {
    /// When the list was read.
    at: BootNs,
    all: Vec<Opener>,
    /// Whether every fd of every process was looked at.
    complete: bool,
}

#[derive(Debug)]
struct Opener {
    process: Process,
    /// Real user id, with which `fusermount` mounts.
    user: Option<u32>,
    /// The connections of its fds, if the kernel shows them.
    connections: BTreeSet<u32>,
}

impl Proc {
    /// Number of unanswered requests of a connection. `None` if fusectl is not mounted or has no such connection.
    pub(super) fn fuse_waiting(&self, connection: u32) -> Option<u32> {
        let path = self.sys.join(format!("fs/fuse/connections/{connection}/waiting"));
        crate::bounded::read_text(&path, 32).ok()?.trim().parse().ok()
    }

    /// Names the processes that should answer for a FUSE file system: those that the kernel names (`fuse_connection` in
    /// fdinfo, `fuse_dev_show_fdinfo`; not in 6.12, but in 6.18), or else every process that has the device open,
    /// limited to the mounting user's (`user_id=`) if there are any. If not all fds were looked at, the server may be one that
    /// was not seen: then none is named that the kernel does not name.
    pub(super) fn name_servers(&self, of: &mut FileSystem, user: Option<u32>, until: BootNs) {
        let openers = self.openers(until);
        let told = openers.all.iter().any(|opener| !opener.connections.is_empty());
        let serves = |opener: &&Opener| match told {
            true => opener.connections.contains(&of.minor),
            false => openers.complete,
        };
        let mut servers: Vec<&Opener> = openers.all.iter().filter(serves).collect();
        of.sure = (told || servers.len() == 1) && !servers.is_empty();
        if !told && servers.iter().any(|opener| user.is_some() && opener.user == user) {
            servers.retain(|opener| opener.user == user);
        }
        servers.truncate(MOST_SERVERS);
        of.servers = servers.into_iter().map(|opener| opener.process.clone()).collect();
    }

    fn openers(&self, until: BootNs) -> Arc<Openers> {
        let mut known = self.servers.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::now();
        let fresh = known.as_ref().filter(|openers| now.since(openers.at) < FRESH).cloned();
        let openers =
            fresh.unwrap_or_else(|| Arc::new(self.read_openers(now, until).unwrap_or_default()));
        *known = Some(Arc::clone(&openers));
        openers
    }

    fn read_openers(&self, at: BootNs, until: BootNs) -> io::Result<Openers> {
        let root = Dir::open(&self.root)?;
        let mut fds = Fds::new(&root, until)?;
        // In the order of pids, so that the same ones are told in the same order.
        let mut all: BTreeMap<u32, Opener> = BTreeMap::new();
        while all.len() < MOST_OPENERS
            && let Some(turn) = fds.next()
        {
            look(&turn, &mut all);
        }
        Ok(Openers { at, all: all.into_values().collect(), complete: fds.is_complete() })
    }
}

/// Adds this process to the openers, if one of these fds is of the device.
fn look(Turn { pid, dir, fds, .. }: &Turn, openers: &mut BTreeMap<u32, Opener>) {
    for fd in fds {
        let name = format!("fd/{fd}");
        let mut buffer = [0; 64];
        if !dir.link(&name, &mut buffer).is_ok_and(|link| link == b"/dev/fuse") {
            continue;
        }
        // A container can give any file this path.
        if !dir.path(&name).and_then(is_device).unwrap_or(false) {
            continue;
        }
        let opener = openers.entry(*pid).or_insert_with(|| Opener {
            process: Process { pid: *pid, comm: dir.comm() },
            user: user(dir),
            connections: BTreeSet::new(),
        });
        let info = dir.text(format!("fdinfo/{fd}")).unwrap_or_default();
        let number = info.lines().find_map(|line| line.strip_prefix("fuse_connection:"));
        opener.connections.extend(number.and_then(|number| number.trim().parse::<u32>().ok()));
    }
}

/// STATX_DONT_SYNC: the file system of the file answers from its cache.
fn is_device(file: OwnedFd) -> io::Result<bool> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(&file, c"", flags, StatxFlags::TYPE)?;
    let character = u32::from(stat.stx_mode) & libc::S_IFMT == libc::S_IFCHR;
    Ok(character && (stat.stx_rdev_major, stat.stx_rdev_minor) == DEVICE)
}

fn user(dir: &Dir) -> Option<u32> {
    let status = dir.text("status").ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests;
