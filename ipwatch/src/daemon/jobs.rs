//! The jobs of the threads behind the dispatch.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::mpsc::SyncSender;

use tokio::sync::oneshot;

use crate::fact::{Holder, NetnsPath, NetnsRef, TaskKey};
use crate::map::request::Sought;

/// For the thread `netns`.
pub(super) enum NetnsJob {
    Host,
    Adopt { netns: NetnsRef, doors: Vec<NetnsPath>, neighbours: Vec<(u32, IpAddr)> },
    Peers { netns: NetnsRef, doors: Vec<NetnsPath>, numbers: BTreeSet<i32> },
    Orphans(Ask),
}

/// For the thread `looks`.
pub(super) enum LookJob {
    Look(TaskKey),
    Threads(u32),
    Cgroup(TaskKey),
    Cleanup,
    Presence(u32, oneshot::Sender<Option<NetnsRef>>),
}

/// For the thread `search`.
pub(super) enum SearchJob {
    /// Netns and tasks; if `mounts` is set also the netns mounts.
    Snapshot {
        mounts: bool,
        done: Option<oneshot::Sender<()>>,
    },
    Walk,
    Tasks,
    /// Every list that the probes provide.
    Lists,
    Mounts,
    /// The netns mounts of every mount namespace.
    AllMounts,
    Holders(Vec<Sought>),
    ContainerMounts(Vec<String>),
}

/// A search for orphaned TCP connections in these netns.
pub(super) struct Ask {
    pub(super) netns: Vec<(NetnsRef, Vec<NetnsPath>)>,
    pub(super) answer: SyncSender<Vec<SocketHolders>>,
}

/// The result for one netns.
pub(super) enum SocketHolders {
    Known(Vec<Holder>),
    /// No door opens this netns, or the kernel has no such query.
    Unreachable,
    /// Could not be determined this time.
    Unknown,
}
