//! Explains why a task cannot exit: the file systems that its kernel stack points at, the processes that should answer
//! for them, and the processes that wait for the task.
//!
//! Nothing here enters a file system: mountinfo, links under `/proc`, and sysfs suffice.

use std::collections::HashSet;
use std::io;

use super::files::Dir;
use super::mounts::{self, Mount};
use super::{Proc, look, namespaces};
use crate::clock;
use crate::fact::{BootNs, FileSystem, Look, Presence};

/// Maximum number of file systems reported for one task.
const MOST: usize = 16;
/// Maximum number of different file systems that are considered.
const CANDIDATES: usize = 1024;
/// Time limit in nanoseconds for one task, because others must be examined too.
const LONGEST: u64 = 1_000_000_000;

pub(super) const PF_EXITING: u32 = 0x4; // linux/sched.h

/// What must answer before a task continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Behind {
    Fuse,
    Nfs,
    Smb,
    Ceph,
    Plan9,
    Device,
}

use Behind::{Ceph, Device, Fuse, Nfs, Plan9, Smb};

/// Prefixes of the functions that a task waits in.
const FRAMES: [(&str, Behind); 33] = [
    ("request_wait_answer", Fuse),
    ("fuse_", Fuse),
    ("__fuse_", Fuse),
    ("nfs_", Nfs),
    ("nfs3_", Nfs),
    ("nfs4_", Nfs),
    ("_nfs4_", Nfs),
    ("rpc_", Nfs),
    ("__rpc_", Nfs),
    ("xprt_", Nfs),
    ("cifs_", Smb),
    ("smb2_", Smb),
    ("smb3_", Smb),
    ("SMB2_", Smb),
    ("compound_send_recv", Smb),
    ("ceph_", Ceph),
    ("__ceph_", Ceph),
    ("p9_", Plan9),
    ("v9fs_", Plan9),
    ("ext4_", Device),
    ("xfs_", Device),
    ("btrfs_", Device),
    ("f2fs_", Device),
    ("jbd2_", Device),
    ("start_this_handle", Device),
    ("blk_", Device),
    ("__blk", Device),
    ("submit_bio_wait", Device),
    ("__wait_on_buffer", Device),
    ("sb_start_write", Device),
    ("dm_", Device),
    ("md_", Device),
    ("raid", Device),
];

/// Functions that wait for a page or a request of any file system.
const ANY: [&str; 4] =
    ["io_schedule", "folio_wait_bit", "wait_on_page_bit", "wait_on_page_writeback"];

impl Behind {
    const ALL: [Self; 6] = [Fuse, Nfs, Smb, Ceph, Plan9, Device];

    /// What a stack points at: more than one if file systems are stacked, all if the stack only shows that something is
    /// being read or written.
    fn in_stack(look: &Look) -> Vec<Self> {
        let frames = || look.wchan.iter().chain(&look.stack);
        let mut found = Vec::new();
        for frame in frames() {
            let known = FRAMES.iter().find(|(name, _)| frame.starts_with(name));
            // A server that waits for requests (`fuse_dev_do_read`) does not wait for an answer.
            if let Some(&(_, behind)) = known
                && !frame.starts_with("fuse_dev_")
                && !found.contains(&behind)
            {
                found.push(behind);
            }
        }
        if !found.is_empty() {
            return found;
        }
        if frames().any(|frame| ANY.iter().any(|name| frame.starts_with(name))) {
            return Self::ALL.to_vec();
        }
        if frames().any(|frame| frame == "percpu_rwsem_wait")
            && !frames().any(|frame| for_cgroups(frame))
        {
            return vec![Device]; // frozen (`sb_start_write`, which is inlined)
        }
        Vec::new()
    }

    /// What a file system depends on.
    fn of(mount: &Mount<'_>) -> Option<Self> {
        match mount.fs_type {
            b"nfs" | b"nfs4" => Some(Nfs),
            b"cifs" | b"smb3" => Some(Smb),
            b"ceph" => Some(Ceph),
            b"9p" => Some(Plan9),
            b"fuse" | b"fuseblk" | b"virtiofs" => Some(Fuse),
            other if other.starts_with(b"fuse.") => Some(Fuse),
            _ => mount.source.starts_with(b"/dev/").then_some(Device),
        }
    }
}

/// `cgroup_threadgroup_rwsem`, the other common percpu rwsem, which has nothing to do with file systems.
fn for_cgroups(frame: &str) -> bool {
    frame.starts_with("cgroup_") || matches!(frame, "exit_signals" | "copy_process")
}

/// What is mounted, if that is a server or a device. A FUSE or 9p mount can put any text there, and some put their
/// password.
fn source(mount: &Mount<'_>, behind: Behind) -> String {
    const LONGEST: usize = 256;
    if matches!(behind, Fuse | Plan9) {
        return String::new();
    }
    let text = mounts::text(mount.source);
    // `//user:password@server/share`.
    let server = text.split_once("//").map_or(text.as_str(), |(_, rest)| rest);
    let (host, path) = server.split_at(server.find('/').unwrap_or(server.len()));
    let plain = match host.rsplit_once('@') {
        Some((_, host)) => format!("//{host}{path}"),
        None => text,
    };
    plain.chars().take(LONGEST).collect()
}

/// A file system that the task may wait for.
struct Candidate {
    fs: FileSystem,
    behind: Behind,
    /// `user_id=` of a FUSE mount.
    user: Option<u32>,
}

impl Candidate {
    fn new(mount: &Mount<'_>, behind: Behind, minor: u32) -> Self {
        let fs = FileSystem {
            fs_type: mounts::text(mount.fs_type),
            source: source(mount, behind),
            point: mounts::text(mount.point),
            elsewhere: false,
            minor,
            waiting: None,
            servers: Vec::new(),
            sure: false,
        };
        let user = (behind == Fuse).then(|| mount.option(b"user_id=")).flatten();
        Self { fs, behind, user }
    }

    /// Rank, the likeliest first. A FUSE connection without unanswered requests is not what a task waits for.
    fn rank(&self) -> u8 {
        match (self.behind, self.fs.waiting) {
            (Fuse, Some(0)) => 3,
            (Fuse, Some(_)) => 0,
            (Device, _) => 2,
            _ => 1,
        }
    }
}

impl Proc {
    /// Adds to a look what the task may wait for and who waits for it, if it is exiting or killed, still has a netns,
    /// and sleeps.
    pub(super) fn explain(&self, dir: &Dir, look: &mut Look) {
        let leaving = look.flags & PF_EXITING != 0 || look::Signals::of(look).killed();
        let sleeps = matches!(look.state, 'D' | 'S') && look.frozen != Some(true);
        if !leaving || !sleeps || !matches!(look.netns, Some(Presence::In(_))) {
            return;
        }
        let until = clock::now().plus(LONGEST);
        let behind = Behind::in_stack(look);
        if !behind.is_empty() {
            look.file_systems = self.file_systems(dir, &behind, until);
        }
        look.waited_for_by = self.waited_for_by(dir, until);
    }

    fn file_systems(&self, dir: &Dir, behind: &[Behind], until: BootNs) -> Vec<FileSystem> {
        let mut found: Vec<Candidate> = Vec::new();
        // One file system is mounted in many places, and a container's `/etc/hosts` is a mount too.
        let mut known = HashSet::new();
        let each = |line: &[u8]| {
            let Some(mount) = Mount::parse(line) else { return };
            let Some(kind) = Behind::of(&mount).filter(|kind| behind.contains(kind)) else {
                return;
            };
            let Some(device) = mount.device() else { return };
            if found.len() < CANDIDATES && known.insert((device, mount.source.to_vec())) {
                found.push(Candidate::new(&mount, kind, device.1));
            }
        };
        let elsewhere = match self.mounts_of(dir, until, each) {
            Ok(from_its_root) => !from_its_root,
            Err(error) => {
                tracing::debug!("no mountinfo of a task that hangs: {error}");
                true
            }
        };
        found.iter_mut().for_each(|candidate| candidate.fs.elsewhere = elsewhere);
        for candidate in found.iter_mut().filter(|candidate| candidate.behind == Fuse) {
            candidate.fs.waiting = self.fuse_waiting(candidate.fs.minor);
        }
        found.sort_by_key(Candidate::rank);
        found.truncate(MOST);
        for Candidate { fs, behind, user } in &mut found {
            // virtiofs is served by the host of a virtual machine.
            if *behind == Fuse && fs.waiting != Some(0) && fs.fs_type != "virtiofs" {
                self.name_servers(fs, *user, until);
            }
        }
        found.into_iter().map(|candidate| candidate.fs).collect()
    }

    /// Reads the mounts that a task sees. A task that has already released its root and working directory (`exit_fs`)
    /// shows none (`mounts_open_common`, fs/proc_namespace.c); then those of another process in the same mount
    /// namespace are read, or, if none is known, those of the first process.
    ///
    /// Returns whether the mount points are those of the task's mount namespace: a mountinfo has paths that begin at the
    /// root of its process (`show_mountinfo`, same file; 5.10 to 6.18), `umount -N` looks them up from the root of the
    /// namespace (`mntns_install`, fs/namespace.c).
    fn mounts_of(&self, dir: &Dir, until: BootNs, mut each: impl FnMut(&[u8])) -> io::Result<bool> {
        if let Ok(own) = dir.watched("mountinfo") {
            let under_way = self.perils.enter(clock::now(), dir);
            let _under_way = under_way.map_err(io::Error::other)?;
            mounts::lines_of(own, until, each)?;
            return Ok(namespaces::is_at_the_top(dir));
        }
        let root = Dir::open(&self.root)?;
        if let Ok(mount_ns) = dir.namespace("ns/mnt", "mnt") {
            for pid in root.numbers(".")? {
                let same = |dir: &Dir| dir.namespace("ns/mnt", "mnt").ok() == Some(mount_ns);
                let Some(dir) = root.dir(pid.to_string()).ok().filter(same) else { continue };
                if let Ok(theirs) = dir.watched("mountinfo") {
                    let under_way = self.perils.enter(clock::now(), &dir);
                    let _under_way = under_way.map_err(io::Error::other)?;
                    mounts::lines_of(theirs, until, each)?;
                    return Ok(namespaces::is_at_the_top(&dir));
                }
                if clock::now() > until {
                    break;
                }
            }
        }
        mounts::lines_of(root.dir("1")?.watched("mountinfo")?, until, &mut each)?;
        Ok(false)
    }
}

#[cfg(test)]
mod tests;
