//! The names of the daemon's own netns, which is the host's, and of the pid namespace whose numbers `/proc` shows.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::fact::NetnsRef;

/// Inode of the node's first pid namespace (`PROC_PID_INIT_INO`, include/linux/proc_ns.h).
const FIRST_PID_NS: u32 = 0xEFFF_FFFC;

/// The pid namespace whose numbers `/proc` shows, unless it is the node's first. On a node that is itself a container
/// (kind, k3d, minikube, LXD) the kernel's own numbers differ. A container may also have the `/proc` of the first pid
/// namespace mounted.
pub(crate) fn pid_namespace() -> Option<u32> {
    let of = |process: &str| -> Option<u32> {
        let link = std::fs::read_link(format!("/proc/{process}/ns/pid")).ok()?;
        link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
    };
    of("1").or_else(|| of("self")).filter(|inode| *inode != FIRST_PID_NS)
}

/// The host's netns. Without a cookie on kernels before 5.14.
pub(crate) fn netns() -> io::Result<NetnsRef> {
    let inode = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
    let inode = u32::try_from(inode).map_err(io::Error::other)?;
    Ok(NetnsRef { cookie: cookie().ok(), inode: Some(inode), nsid: None })
}

fn cookie() -> io::Result<u64> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let mut cookie = 0u64;
    let mut size = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `size` bytes, which is the size of `cookie`, and `size`.
    let error = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut size,
        )
    };
    if error == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}
