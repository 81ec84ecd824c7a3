//! The credentials of a client on a Unix socket, and whether it may connect.
//!
//! The file's mode already keeps others out. This is a second barrier, for a socket that was opened up with chmod or
//! passed on as an fd.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Maximum number of groups of a peer; Linux allows 65,536, users have a few dozen.
const MOST_GROUPS: usize = 1024;

/// The credentials of the peer when it connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    /// Its primary group and its supplementary ones.
    pub(crate) gids: Vec<u32>,
}

/// The users that may connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) uid: u32,
    /// The group of the socket's file.
    pub(crate) gid: Option<u32>,
}

impl Access {
    /// Admits root, our own user, and members of the socket's group.
    pub(crate) fn admits(&self, peer: &Peer) -> bool {
        peer.uid == 0
            || peer.uid == self.uid
            || self.gid.is_some_and(|gid| peer.gids.contains(&gid))
    }
}

impl Peer {
    /// Reads the credentials from the kernel.
    pub(crate) fn of(socket: impl AsFd) -> io::Result<Self> {
        let credentials = credentials(socket.as_fd())?;
        let mut gids = supplementary(socket.as_fd())?;
        gids.push(credentials.gid);
        Ok(Self { uid: credentials.uid, gids })
    }
}

/// `SO_PEERCRED`. Not through rustix, which treats pid 0 as an error: a peer in a pid namespace that is not below
/// ours has pid 0 (`pid_vnr` in `cred_to_ucred`, net/core/sock.c). Only the user is needed.
pub(super) fn credentials(socket: impl AsFd) -> io::Result<libc::ucred> {
    let mut credentials = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: libc::gid_t::MAX };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes into `credentials`, which is as long, and the length it wrote
    // into `bytes`; both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut bytes,
        )
    };
    if result == 0 && bytes as usize == size_of::<libc::ucred>() {
        Ok(credentials)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The supplementary groups of the peer (`SO_PEERGROUPS`, 4.13).
fn supplementary(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let mut gids: Vec<libc::gid_t> = vec![0; MOST_GROUPS];
    let mut bytes = size_of_val(gids.as_slice()) as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes into `gids`, which is as long, and the length
    // it wrote into `bytes`; both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERGROUPS,
            gids.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    if result != 0 {
        let error = io::Error::last_os_error();
        // The peer has more groups than there is room for, and nothing was written. It is then judged by its user and
        // primary group only, which can only refuse it.
        let too_many = error.raw_os_error() == Some(libc::ERANGE);
        return if too_many { Ok(Vec::new()) } else { Err(error) };
    }
    gids.truncate(bytes as usize / size_of::<libc::gid_t>());
    Ok(gids)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn root_ourselves_and_the_group_are_let_in() {
        let access = Access { uid: 500, gid: Some(987) };
        let peer = |uid, gids: &[u32]| Peer { uid, gids: gids.to_vec() };
        assert!(access.admits(&peer(0, &[])));
        assert!(access.admits(&peer(500, &[])));
        assert!(access.admits(&peer(1000, &[1000, 987])));
        assert!(!access.admits(&peer(1000, &[1000])));
        let closed = Access { uid: 0, gid: None };
        assert!(!closed.admits(&peer(1000, &[0, 987])));
    }

    #[test]
    fn the_kernel_tells_who_we_are() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = Peer::of(&one).unwrap();
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert!(peer.gids.contains(&rustix::process::getegid().as_raw()));
        for gid in rustix::process::getgroups().unwrap() {
            assert!(peer.gids.contains(&gid.as_raw()));
        }
    }
}
