//! The vocabulary between the sources and the map: what was seen, when, and by which source.
//!
//! A [`Fact`] is plain data. Sources create facts, [`crate::map`] applies them, `ipwatch record` writes one JSON
//! document per line and `ipwatch replay` reads them back. A fact never says what something *means*: the map and the
//! detectors decide that. Facts contain no secret: no environment, no process argument, no file content beyond the
//! fields named here.
//!
//! - `observation`: everything that a fact can report; `node`: the node, and how well its sources see it.
//! - `gate`: which facts of a source are admitted.
//! - `netns_path`, `cgroup`: shared knowledge of sources and the map that is not part of facts: the ways into a netns, and
//!   the meaning of cgroup paths.
//! - The others: the subjects of each kind of fact.

#![warn(missing_docs)]

pub mod cgroup;
mod cni;
mod endpoint;
mod gate;
mod hang;
mod ipam;
mod link;
mod names;
mod netns_path;
mod network;
mod node;
mod observation;
mod pod;
mod runtime;
mod sandbox;
mod scope;
mod source;
mod task;

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use serde::{Deserialize, Serialize};

pub use cni::{CniCall, CniCommand};
pub use endpoint::Endpoint;
pub use gate::Gate;
pub use hang::{Cleanup, ContainerMount, FileSystem, Process};
pub use ipam::{Block, Configured, Range, RangePart, Reservation, Unreadable};
pub use link::{Link, LinkDetail, Parent, Vlans};
pub use names::{Name, is_legal_device};
pub use netns_path::NetnsPath;
pub use network::{
    Address, AddressKey, Claim, ClaimKind, Hop, Mac, Neighbour, Route, RouteKey, Unreported,
};
pub use node::{Boot, Sight, Source, SourceStatus};
pub use observation::Observation;
pub use pod::Pod;
pub use runtime::{Container, Engine, Life, Monitor, RuntimeProcess, Sandbox};
pub use sandbox::{Attachment, PodName};
pub use scope::Scope;
pub use source::{SourceName, store};
pub use task::{CpuLimit, Holder, Look, Presence, Progress, Sender, Task, TaskKey, Unanswered};

/// Prefix of the canary's IPv6 addresses: 64 bits in the range for documentation (RFC 3849). The canary creates a
/// duplicate of such an address to check that it is reported. Another ipwatch on the node sees the duplicate too.
pub(crate) const CANARY: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x6970, 0x7761, 0, 0, 0, 0);

/// Whether an address is a canary's. No pod has such an address, because it is not routed.
pub(crate) fn is_canary(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.octets()[..8] == CANARY.octets()[..8])
}

/// A moment on `CLOCK_BOOTTIME`, in nanoseconds: it orders everything within one boot and continues to count during
/// suspend.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct BootNs(pub u64);

impl BootNs {
    /// This moment plus `ns` nanoseconds, saturating.
    #[must_use]
    pub fn plus(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// Nanoseconds since `earlier`; 0 when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// One observation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fact {
    /// When the fact was true. A kernel event has the kernel's own time, a netlink message the time it was read, and an
    /// entry of a dump the time the dump **began**, so that it never overrides an event in between.
    pub at: BootNs,
    /// Where the fact comes from.
    pub origin: Origin,
    /// What was observed.
    #[serde(flatten)]
    pub what: Observation,
}

/// Where a fact comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// An eBPF program, at the moment of the event.
    Probe,
    /// An eBPF snapshot (iterator or netns walk).
    Snapshot,
    /// rtnetlink: a multicast message or a dump.
    Netlink,
    /// Files under `/proc`.
    Procfs,
    /// The CNI result cache.
    Cni,
    /// A container runtime's API.
    Runtime,
    /// The Kubernetes API server.
    Kubernetes,
    /// An IPAM plugin's store.
    Ipam,
    /// ARP packets on the node's own links.
    Wire,
    /// The daemon itself.
    Daemon,
}

impl Origin {
    /// The source to which rejected names are attributed, if a fact names no other.
    #[must_use]
    pub fn source(self) -> &'static str {
        match self {
            Origin::Probe | Origin::Snapshot => SourceName::Probes.as_str(),
            Origin::Netlink => SourceName::Netlink.as_str(),
            Origin::Procfs => SourceName::Procfs.as_str(),
            Origin::Cni => SourceName::Cni.as_str(),
            Origin::Runtime => SourceName::Runtime.as_str(),
            Origin::Kubernetes => SourceName::Kubernetes.as_str(),
            Origin::Wire => SourceName::Arp.as_str(),
            // Their facts name a store, or are never rejected.
            Origin::Ipam => "ipam",
            Origin::Daemon => "daemon",
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::Probe => "probe",
            Origin::Snapshot => "snapshot",
            Origin::Netlink => "netlink",
            Origin::Procfs => "procfs",
            Origin::Cni => "cni",
            Origin::Runtime => "runtime",
            Origin::Kubernetes => "kubernetes",
            Origin::Ipam => "ipam",
            Origin::Wire => "wire",
            Origin::Daemon => "daemon",
        })
    }
}

/// The names by which a source knows a netns; at least one is set.
///
/// Only the cookie (`net->net_cookie`, 5.14+) identifies a netns: it is never reused within a boot. The nsfs inode and
/// the nsid are reused as soon as they are free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct NetnsRef {
    /// `net->net_cookie`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cookie: Option<u64>,
    /// `net->ns.inum`, the number in `net:[…]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inode: Option<u32>,
    /// The netns's id in the daemon's own netns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nsid: Option<i32>,
}

impl NetnsRef {
    /// A netns known only by its cookie.
    #[must_use]
    pub fn cookie(cookie: u64) -> Self {
        Self { cookie: Some(cookie), ..Self::default() }
    }

    /// A netns known only by its nsfs inode.
    #[must_use]
    pub fn inode(inode: u32) -> Self {
        Self { inode: Some(inode), ..Self::default() }
    }

    /// A netns known only by its nsid.
    #[must_use]
    pub fn nsid(nsid: i32) -> Self {
        Self { nsid: Some(nsid), ..Self::default() }
    }
}
