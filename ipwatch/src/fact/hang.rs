//! Possible causes of a hang: file systems, leftover mounts, and the kernel's own worker.

use serde::{Deserialize, Serialize};

use super::BootNs;

/// A process, as shown to people.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its name. Hostile text.
    pub comm: String,
}

/// A mounted file system that depends on another party's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSystem {
    /// `fuse`, `fuse.sshfs`, `nfs4`, `cifs`, `ceph`, `ext4`, …
    pub fs_type: String,
    /// The source of the mount as in mountinfo: `server:/path`, a device. Hostile text.
    pub source: String,
    /// The mount point, in the task's mount namespace. Hostile text.
    pub point: String,
    /// Whether the mount point was seen from elsewhere, so that it is another path in that mount namespace: by a process
    /// in a chroot, or in another mount namespace.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub elsewhere: bool,
    /// Minor number of its device. For FUSE the number of its connection (`/sys/fs/fuse/connections/N`).
    pub minor: u32,
    /// FUSE: number of requests that the server has not answered (`waiting` of its connection).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<u32>,
    /// FUSE: processes that have the connection open (`/dev/fuse`) and should answer. If `sure` is false, all processes
    /// that have any connection open, or none if not every process could be looked at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<Process>,
    /// Whether the kernel reported the connection of each server (`fuse_connection` in fdinfo), or there is only one
    /// possible connection.
    #[serde(default)]
    pub sure: bool,
}

/// A mount that belongs to a container: its root file system, its `/dev/shm`, its netns file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerMount {
    /// The container or sandbox whose id is in the path.
    pub container_id: String,
    /// The mount namespace that contains it.
    pub mount_ns: u64,
    /// Whether this is the mount namespace of the node itself, where a runtime makes its mounts.
    pub host: bool,
    /// The mount point, in that mount namespace. Hostile text.
    pub path: String,
    /// `overlay`, `tmpfs`, `nsfs`, …
    pub fs_type: String,
    /// Some of the processes in that mount namespace.
    pub processes: Vec<Process>,
    /// Cgroup path of the first of them, in the hierarchy that names containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// When the oldest of these processes was started, if known. What they have mounted has been so for no longer,
    /// unless they have replaced others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<BootNs>,
}

/// The kernel worker that runs `cleanup_net` (net/core/net_namespace.c), found while it does so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cleanup {
    /// Its pid.
    pub pid: u32,
    /// Its state letter.
    pub state: char,
    /// Kernel function it sleeps in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wchan: Option<String>,
    /// Kernel stack, innermost first, function names without addresses; empty if unreadable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<String>,
    /// The kernel's last log message about it (`unregister_netdevice: waiting for …`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
