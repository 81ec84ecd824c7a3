//! What the map does not know and could: the engine returns requests, the daemon passes each to a source, and the
//! answer comes back as facts.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::TenantKind;
use crate::fact::{BootNs, NetnsPath, NetnsRef, TaskKey};

/// One thing to find out.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Request {
    /// List the netns and the tasks in them: a fact mentioned a netns that has not been found yet.
    Walk {
        /// The list did not have it: search the mounts of every mount namespace, where nothing lists the netns.
        everywhere: bool,
    },
    /// Open this netns by one of its doors, learn all its names (an nsid is assigned if it has none, unless the
    /// configuration forbids it) and read its contents.
    Adopt {
        /// The names known so far. The opened netns must match every one of them.
        netns: NetnsRef,
        /// Ways in, the cheapest first.
        doors: Vec<NetnsPath>,
        /// Device and IP of each known neighbour entry, to be looked up again.
        neighbours: Vec<(u32, IpAddr)>,
    },
    /// Open this netns and resolve these peer nsids to netns.
    Peers {
        /// The names known so far, as for [`Request::Adopt`].
        netns: NetnsRef,
        /// Ways in, the cheapest first.
        doors: Vec<NetnsPath>,
        /// The nsids to resolve, as numbered in this netns.
        numbers: BTreeSet<i32>,
    },
    /// Dump the host's links, addresses and neighbours again.
    Host,
    /// Search every mount namespace, fd and socket for what holds these netns, which have no known tasks.
    Holders { netns: Vec<Sought> },
    /// Look at a task that is exiting or killed.
    Look { task: TaskKey },
    /// List the threads of a process that still hold a netns: its leader has exited.
    Threads {
        /// The process.
        pid: u32,
    },
    /// Read the cgroup of a process, which names its container.
    Cgroup { task: TaskKey },
    /// List everything that a runtime has again.
    Runtime {
        /// Name of its source.
        runtime: String,
    },
    /// Search every mount namespace for mounts of these dead containers.
    ContainerMounts { ids: Vec<String> },
    /// Check whether the kernel's worker is tearing down a netns.
    Cleanup,
}

/// A netns whose holders are to be searched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sought {
    pub netns: NetnsRef,
    pub whose: TenantKind,
    /// When its last complete search began, or else when it was first seen.
    pub since: BootNs,
}
