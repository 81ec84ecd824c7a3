//! What the threads behind the dispatch are given to do.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::mpsc::SyncSender;

use tokio::sync::oneshot;

use crate::fact::{Door, Holder, NetnsRef, TaskKey};

/// For the thread `netns`.
pub(super) enum NetnsJob {
    Host,
    Adopt { netns: NetnsRef, doors: Vec<Door>, neighbours: Vec<(u32, IpAddr)> },
    Peers { netns: NetnsRef, doors: Vec<Door>, numbers: BTreeSet<i32> },
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
    /// Netns and tasks, and with `mounts` the netns mounts too.
    Snapshot {
        mounts: bool,
        done: Option<oneshot::Sender<()>>,
    },
    Walk,
    Tasks,
    /// Every list that probes give.
    Lists,
    Mounts,
    /// Those of every mount namespace.
    AllMounts,
    Holders(Vec<NetnsRef>),
    ContainerMounts(Vec<String>),
}

/// Ask for the orphans of these netns.
pub(super) struct Ask {
    pub(super) netns: Vec<(NetnsRef, Vec<Door>)>,
    pub(super) answer: SyncSender<Vec<Told>>,
}

/// What was learnt of one netns.
pub(super) enum Told {
    These(Vec<Holder>),
    /// There is no way in, or this kernel cannot be asked.
    NoWayIn,
    /// Not now.
    Unknown,
}
