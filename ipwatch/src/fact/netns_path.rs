//! Ways into a netns: the map names them, and a source opens the netns by one.

use super::Holder;

/// A way to get an fd of a netns, which is used and closed at once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum NetnsPath {
    /// The netns of a task: `/proc/PID/task/TID/ns/net`.
    Task {
        /// Process id.
        pid: u32,
        /// Thread id.
        tid: u32,
    },
    /// An nsfs mount, reached through `/proc/PID/root`.
    Mount {
        /// A process that sees the mount.
        pid: u32,
        /// The path that this process sees.
        path: String,
    },
    /// An nsfs fd of a process: `/proc/PID/fd/FD`.
    Fd {
        /// Process id.
        pid: u32,
        /// Its fd.
        fd: u32,
    },
    /// A socket of a process: `pidfd_getfd`, then `SIOCGSKNS`.
    Socket {
        /// Process id.
        pid: u32,
        /// Its fd.
        fd: u32,
    },
    /// `open_by_handle_at` on nsfs with the netns's inode and id (6.18+; it fails on earlier kernels).
    Handle,
}

impl NetnsPath {
    /// The door that a holder provides, if any.
    #[must_use]
    pub fn through(holder: &Holder) -> Option<Self> {
        match holder {
            Holder::Mount { pid, path, .. } => Some(Self::Mount { pid: *pid, path: path.clone() }),
            Holder::Fd { pid, fd, .. } => Some(Self::Fd { pid: *pid, fd: *fd }),
            Holder::Socket { pid, fd, .. } => Some(Self::Socket { pid: *pid, fd: *fd }),
            Holder::Orphan { .. } | Holder::Candidate { .. } => None,
        }
    }
}
