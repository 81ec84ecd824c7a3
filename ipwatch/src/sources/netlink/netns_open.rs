//! Opening a netns through a [`NetnsPath`].
//!
//! Except for the kernel's own files, everything behind a door may be hostile or hang: the path at which a container
//! mounted a netns can lead through a FUSE file system that never answers, and an fd number may meanwhile stand for a
//! fifo. Therefore nothing is opened for reading before it is known to be on nsfs, and no call is made that waits for a
//! file system.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};

use crate::fact::NetnsPath;
use crate::fact::NetnsRef;
use crate::reading;

/// The device number of nsfs, which contains nothing but namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Nsfs {
    major: u32,
    minor: u32,
}

impl Nsfs {
    /// The nsfs of `namespace`; there is only one (`nsfs_init` mounts it once).
    pub(super) fn of(namespace: impl AsFd) -> io::Result<Self> {
        let stat = stat(namespace)?;
        Ok(Self { major: stat.stx_dev_major, minor: stat.stx_dev_minor })
    }

    /// The inode number of a namespace; an error for any other file.
    pub(super) fn inode(self, fd: impl AsFd) -> io::Result<u32> {
        let stat = stat(fd)?;
        if (Self { major: stat.stx_dev_major, minor: stat.stx_dev_minor }) != self {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a namespace"));
        }
        u32::try_from(stat.stx_ino).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// Opens `door`. The result is a namespace; the caller must check which one, and whether it is a network namespace
    /// (`setns` refuses any other with EINVAL).
    pub(super) fn open(self, door: &NetnsPath, wanted: NetnsRef) -> io::Result<OwnedFd> {
        match door {
            NetnsPath::Task { pid, tid } => {
                let _reading = reading::file(*pid, "ns/net".as_ref())?;
                open(format!("/proc/{pid}/task/{tid}/ns/net").as_ref(), OFlags::RDONLY)
            }
            NetnsPath::Fd { pid, fd } => {
                self.reopen(open(format!("/proc/{pid}/fd/{fd}").as_ref(), OFlags::PATH)?)
            }
            NetnsPath::Mount { pid, path } => {
                let _reading =
                    reading::file(*pid, &Path::new("root").join(path.trim_start_matches('/')))?;
                self.reopen(mounted(*pid, path)?)
            }
            NetnsPath::Socket { pid, fd } => of_socket(*pid, *fd),
            NetnsPath::Handle => by_handle(wanted),
        }
    }

    /// Opens for reading what an O_PATH fd refers to. Opening the O_PATH fd called into no file system.
    fn reopen(self, path: OwnedFd) -> io::Result<OwnedFd> {
        self.inode(&path)?;
        open(format!("/proc/self/fd/{}", path.as_raw_fd()).as_ref(), OFlags::RDONLY)
    }
}

/// STATX_DONT_SYNC: a network file system or FUSE answers from its cache, without asking its server.
fn stat(fd: impl AsFd) -> io::Result<rustix::fs::Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    Ok(rustix::fs::statx(fd, c"", flags, StatxFlags::INO)?)
}

fn open(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens a path within the mount namespace and root of a process.
///
/// RESOLVE_CACHED (5.12+) makes the walk fail if it would have to ask a file system. The path to a mount point is
/// always in the dentry cache, because the mount pins it. The walk can also fail spuriously (a rename anywhere), so it
/// is tried three times.
fn mounted(pid: u32, path: &str) -> io::Result<OwnedFd> {
    const TRIES: usize = 3;
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let root = open(format!("/proc/{pid}/root").as_ref(), flags);
    // If init has a capability that we lack, its root is closed to us (`cap_ptrace_access_check`). In init's mount
    // namespace our own root is the same. In another mount namespace, what is found there is no netns, or one that the
    // caller detects as wrong.
    let root = match root {
        Err(error) if pid == 1 && error.kind() == io::ErrorKind::PermissionDenied => {
            open("/".as_ref(), flags)?
        }
        root => root?,
    };
    let resolve = ResolveFlags::CACHED
        | ResolveFlags::IN_ROOT
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS;
    let mut outcome = Err(rustix::io::Errno::AGAIN);
    for _ in 0..TRIES {
        outcome = rustix::fs::openat2(
            &root,
            path,
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
            resolve,
        );
        if outcome.as_ref().err() != Some(&rustix::io::Errno::AGAIN) {
            break;
        }
    }
    Ok(outcome?)
}

fn of_socket(pid: u32, fd: u32) -> io::Result<OwnedFd> {
    // Checked first, because closing a copy of another kind of file can make its file system wait (`filp_close` calls
    // `flush`).
    let mut link = [0u8; 32];
    let path = format!("/proc/{pid}/fd/{fd}");
    let len = rustix::fs::readlinkat_raw(rustix::fs::CWD, path, &mut link)?;
    if !link[..len].starts_with(b"socket:[") {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a socket"));
    }
    // `__pidfd_fget` (kernel/pid.c) waits for exec_update_lock, which an execve that hangs keeps locked.
    let _reading = reading::file(pid, "pidfd_getfd".as_ref())?;
    let pid = Pid::from_raw(pid.cast_signed()).ok_or(io::ErrorKind::InvalidInput)?;
    let process = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    netns_of_socket(process.as_fd(), fd)
}

/// Opens the netns in which a socket of another process was created (`SIOCGSKNS`, 4.9+; `pidfd_getfd`, 5.6+).
pub(in crate::sources) fn netns_of_socket(process: BorrowedFd<'_>, fd: u32) -> io::Result<OwnedFd> {
    let flags = PidfdGetfdFlags::empty();
    let socket = rustix::process::pidfd_getfd(process, fd.cast_signed(), flags)?;
    rustix::net::sockopt::socket_type(&socket)?; // ENOTSOCK for anything else
    // SAFETY: takes no argument; returns a new fd or -1.
    let netns = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS) };
    if netns < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made for us, open, and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(netns) })
}

const SIOCGSKNS: libc::Ioctl = 0x894C; // linux/sockios.h

/// The user who made the user namespace that a netns belongs to, of nested ones the outermost below our own; `None` if it
/// belongs to our own.
///
/// A user may have many uids within his namespaces (subuids), but the outermost one is made with his own.
pub(super) fn user_of(netns: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let mut namespace = related(netns, NS_GET_USERNS)?;
    let (mut user, mut maker) = (None, 0);
    // So deep they are nested at most (`create_user_ns`: level > 32).
    for _ in 0..=32 {
        let outer = match related(namespace.as_fd(), NS_GET_PARENT) {
            Ok(outer) => outer,
            // Our own: whatever is outside of it is not shown (`ns_get_owner`, kernel/user_namespace.c).
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => return Ok(user),
            Err(error) => return Err(error),
        };
        // SAFETY: writes one uid_t, to a place that is ours.
        let asked = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_OWNER_UID, &raw mut maker) };
        if asked < 0 {
            return Err(io::Error::last_os_error());
        }
        user = Some(maker);
        namespace = outer;
    }
    Err(io::ErrorKind::InvalidData.into())
}

/// The namespace that an ioctl of nsfs leads to (4.9+; the owner 4.11+).
fn related(namespace: BorrowedFd<'_>, ask: libc::Ioctl) -> io::Result<OwnedFd> {
    // SAFETY: takes no argument; returns a new fd or -1.
    let found = unsafe { libc::ioctl(namespace.as_raw_fd(), ask) };
    if found < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made for us, open, and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(found) })
}

// linux/nsfs.h
const NS_GET_USERNS: libc::Ioctl = 0xb701;
const NS_GET_PARENT: libc::Ioctl = 0xb702;
const NS_GET_OWNER_UID: libc::Ioctl = 0xb704;

/// `struct file_handle` with nsfs's handle in it (`struct nsfs_file_handle`, linux/nsfs.h).
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    ns_id: u64,
    ns_type: u32,
    ns_inum: u32,
}

const _: () = assert!(size_of::<Handle>() == 24);

/// `open_by_handle_at` below FD_NSFS_ROOT (6.18+). It can open a netns that no path, fd or task leads to: one that only
/// an fd in flight or the kernel itself holds. `ns_id` is the cookie (`net->net_cookie`, which NS_GET_ID shows).
fn by_handle(wanted: NetnsRef) -> io::Result<OwnedFd> {
    const FD_NSFS_ROOT: i32 = -10003; // linux/fcntl.h
    const FILEID_NSFS: i32 = 0xf1; // linux/exportfs.h
    let (Some(ns_id), Some(ns_inum)) = (wanted.cookie, wanted.inode) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "cookie or inode unknown"));
    };
    let mut handle = Handle {
        bytes: (size_of::<Handle>() - 8) as u32,
        kind: FILEID_NSFS,
        ns_id,
        ns_type: libc::CLONE_NEWNET.cast_unsigned(),
        ns_inum,
    };
    // SAFETY: `handle` has the layout of struct file_handle, with as many bytes behind it as it says.
    let fd = unsafe {
        libc::open_by_handle_at(
            FD_NSFS_ROOT,
            (&raw mut handle).cast(),
            libc::O_RDONLY | libc::O_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made for us, open, and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The netns of the calling thread.
pub(super) fn own() -> io::Result<OwnedFd> {
    const OWN: &CStr = c"/proc/thread-self/ns/net";
    Ok(rustix::fs::open(OWN, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of another user's, `worst_hour::netns_that_are_full_take_no_memory` tells.
    #[test]
    fn our_own_netns_belongs_to_our_own_user_namespace() {
        assert_eq!(user_of(own().unwrap().as_fd()).unwrap(), None);
    }
}
