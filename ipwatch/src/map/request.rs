//! What the map does not know and could: the pure half asks, the daemon sends a source for it, and
//! the answer comes back as facts like any other.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::fact::{Door, NetnsRef, TaskKey};

/// One thing to find out.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Request {
    /// Read the list of netns and the tasks in them: something is heard of a netns that nobody has
    /// seen yet.
    Walk {
        /// It was read in vain: search the mounts of every mount namespace, where nothing lists the netns.
        everywhere: bool,
    },
    /// Open this netns by one of its doors, learn all its names (an nsid is assigned where there is
    /// none, unless the configuration forbids it) and read what is in it.
    Adopt {
        /// The names known so far. What is opened must agree with every one of them.
        netns: NetnsRef,
        /// Ways in, the cheapest first.
        doors: Vec<Door>,
        /// Devices and IPs of the neighbour entries that are known there, to be looked up again.
        neighbours: Vec<(u32, IpAddr)>,
    },
    /// Open this netns and learn which netns it calls by these numbers.
    Peers {
        /// The names known so far, as for [`Request::Adopt`].
        netns: NetnsRef,
        /// Ways in, the cheapest first.
        doors: Vec<Door>,
        /// The nsids there.
        numbers: BTreeSet<i32>,
    },
    /// Dump the host's links, addresses and neighbours once more.
    Host,
    /// Search every mount namespace, fd and socket for what holds these netns: no task is seen in
    /// them.
    Holders { netns: Vec<NetnsRef> },
    /// Look at a task that is exiting or killed for longer than it should be.
    Look { task: TaskKey },
    /// Tell which threads of a process still hold a netns: its leader has left.
    Threads {
        /// The process.
        pid: u32,
    },
    /// Read the cgroup of a process: it names its container.
    Cgroup { task: TaskKey },
    /// Ask a runtime once more for everything it has.
    Runtime {
        /// Name of its source.
        runtime: String,
    },
    /// Search every mount namespace for mounts of these containers, which are dead.
    ContainerMounts { ids: Vec<String> },
    /// See whether the kernel's worker is at tearing a netns down.
    Cleanup,
}
