//! FUSE: which connections wait, and which processes should answer.
//!
//! A connection's number is the minor number of the device that its file system shows as
//! (`fuse_conn_get_id`; `fc->dev`, fs/fuse/inode.c). Nothing here asks the file system itself.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{AtFlags, StatxFlags};

use super::Proc;
use super::files::{Dir, is_gone};
use crate::clock;
use crate::fact::{BootNs, FileSystem, Process};

/// For how long a list of servers is good, in nanoseconds: the tasks of one pod hang together.
const FRESH: u64 = 10_000_000_000;
/// Processes with `/dev/fuse` open that are remembered.
const MOST_OPENERS: usize = 1024;
/// Servers told of one file system.
const MOST_SERVERS: usize = 16;
/// Number of the device (`FUSE_MINOR` of `MISC_MAJOR`, linux/miscdevice.h).
const DEVICE: (u32, u32) = (10, 229);

/// Who has `/dev/fuse` open, as it was a moment ago.
#[derive(Debug, Clone, Default)]
pub(super) struct Servers(Arc<Mutex<Option<Arc<Openers>>>>);

#[derive(Debug, Default)]
struct Openers {
    /// When they were read.
    at: BootNs,
    all: Vec<Opener>,
    /// Every process could be read.
    complete: bool,
}

#[derive(Debug)]
struct Opener {
    process: Process,
    /// Real user id: what `fusermount` mounts with.
    user: Option<u32>,
    /// The connections that the kernel says its fds have.
    connections: BTreeSet<u32>,
}

impl Proc {
    /// Requests of a connection that nobody has answered yet; `None` where fusectl is not mounted or has
    /// no such connection.
    pub(super) fn fuse_waiting(&self, connection: u32) -> Option<u32> {
        let path = self.sys.join(format!("fs/fuse/connections/{connection}/waiting"));
        crate::bounded::read_text(&path, 32).ok()?.trim().parse().ok()
    }

    /// Says who should answer for a FUSE file system: whoever the kernel names (`fuse_connection` in
    /// fdinfo, `fuse_dev_show_fdinfo`; not in 6.12, there in 6.18), else everybody who has the device
    /// open, of the mounter's user (`user_id=`) if there is one such.
    pub(super) fn name_servers(&self, of: &mut FileSystem, user: Option<u32>, until: BootNs) {
        let openers = self.openers(until);
        let told = openers.all.iter().any(|opener| !opener.connections.is_empty());
        let serves = |opener: &&Opener| !told || opener.connections.contains(&of.minor);
        let mut servers: Vec<&Opener> = openers.all.iter().filter(serves).collect();
        of.sure = (told || (openers.complete && servers.len() == 1)) && !servers.is_empty();
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
        let mut found = Openers { at, all: Vec::new(), complete: true };
        for pid in root.numbers(".")? {
            if clock::now() > until || found.all.len() >= MOST_OPENERS {
                found.complete = false;
                break;
            }
            match root.dir(pid.to_string()).and_then(|dir| opener(pid, &dir)) {
                Ok(opener) => found.all.extend(opener),
                Err(error) => found.complete &= is_gone(&error),
            }
        }
        Ok(found)
    }
}

/// This process, if it has the device open.
fn opener(pid: u32, dir: &Dir) -> io::Result<Option<Opener>> {
    let mut found: Option<Opener> = None;
    for fd in dir.numbers("fd")? {
        let name = format!("fd/{fd}");
        let mut buffer = [0; 64];
        if !dir.link(&name, &mut buffer).is_ok_and(|link| link == b"/dev/fuse") {
            continue;
        }
        // A container may call any file so.
        if !dir.path(&name).and_then(is_device).unwrap_or(false) {
            continue;
        }
        let opener = found.get_or_insert_with(|| Opener {
            process: Process { pid, comm: dir.comm() },
            user: user(dir),
            connections: BTreeSet::new(),
        });
        let info = dir.text(format!("fdinfo/{fd}")).unwrap_or_default();
        let number = info.lines().find_map(|line| line.strip_prefix("fuse_connection:"));
        opener.connections.extend(number.and_then(|number| number.trim().parse::<u32>().ok()));
    }
    Ok(found)
}

/// DONT_SYNC: whatever file system it is on answers from what it has.
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
