//! What something that hangs may hang on: file systems, mounts that were left behind, and the kernel's
//! own worker.

use serde::{Deserialize, Serialize};

/// A process, named for people.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its name. Hostile text.
    pub comm: String,
}

/// A mounted file system behind which somebody else must answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSystem {
    /// `fuse`, `fuse.sshfs`, `nfs4`, `cifs`, `ceph`, `ext4`, …
    pub fs_type: String,
    /// What is mounted, as mountinfo says: `server:/path`, a device. Hostile text.
    pub source: String,
    /// Where, in the task's mount namespace. Hostile text.
    pub point: String,
    /// Minor number of the device it shows as. For FUSE the number of its connection
    /// (`/sys/fs/fuse/connections/N`).
    pub minor: u32,
    /// FUSE: requests that the server has not answered (`waiting` of its connection).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<u32>,
    /// FUSE: processes that have the connection open (`/dev/fuse`) and should answer. With `sure`
    /// false, all that have any connection open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<Process>,
    /// The kernel told which connection each server has (`fuse_connection` in fdinfo), or there is only
    /// one that it can be.
    #[serde(default)]
    pub sure: bool,
}

/// A mount that belongs to a container: its root file system, its `/dev/shm`, its netns file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerMount {
    /// The container or sandbox whose id is in the path.
    pub container_id: String,
    /// The mount namespace it stands in.
    pub mount_ns: u64,
    /// It is the mount namespace of the node itself, where a runtime makes its mounts.
    pub host: bool,
    /// Where, in that mount namespace. Hostile text.
    pub path: String,
    /// `overlay`, `tmpfs`, `nsfs`, …
    pub fs_type: String,
    /// Processes of that mount namespace, a few.
    pub processes: Vec<Process>,
    /// Cgroup path of the first of them, in the hierarchy that names containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
}

/// The kernel worker that runs `cleanup_net` (net/core/net_namespace.c), caught at it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cleanup {
    /// Its pid.
    pub pid: u32,
    /// Its state letter.
    pub state: char,
    /// Kernel function it sleeps in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wchan: Option<String>,
    /// Kernel stack, innermost first, function names without addresses; empty when unreadable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<String>,
    /// The kernel's newest complaint about it (`unregister_netdevice: waiting for …`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
