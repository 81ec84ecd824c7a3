//! A container of dockerd or podman.

/// A running container.
#[derive(Debug, Clone)]
pub struct Container {
    pub name: String,
    pub id: String,
    /// Pid of its first process.
    pub pid: u32,
    /// Inode of its netns.
    pub netns: u64,
    pub ip: String,
}
