//! The result of one look at the cluster, as data.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::fact::RangePart;
use crate::prefix::Prefix;

/// A list, and how complete it is.
#[derive(Debug, Clone)]
pub(super) struct Listed<T> {
    pub(super) items: T,
    pub(super) state: State,
}

/// How complete a list is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// Complete.
    All,
    /// This many entries cannot be parsed.
    Part(usize),
    /// The cluster has no such kind.
    Absent,
    /// Nothing is known; the reason.
    Unknown(String),
}

impl State {
    /// The less complete of two states: both looks know only what each of them knows.
    pub(super) fn worse<'a>(&'a self, other: &'a Self) -> &'a Self {
        let rank = |state: &Self| match state {
            Self::Absent => (0, 0),
            Self::All => (1, 0),
            Self::Part(n) => (2, *n),
            Self::Unknown(_) => (3, 0),
        };
        if rank(self) > rank(other) { self } else { other }
    }
}

#[cfg(any(test, feature = "fuzzing"))]
impl<T> Listed<T> {
    pub(super) fn all(items: T) -> Self {
        Self { items, state: State::All }
    }
}

impl<T> Listed<T> {
    /// Whether an element that is missing from the list does not exist.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.state, State::All | State::Absent)
    }
}

impl<T: Default> Default for Listed<T> {
    fn default() -> Self {
        Self { items: T::default(), state: State::Absent }
    }
}

/// The result of one look.
#[derive(Debug, Clone, Default)]
pub(super) struct Snapshot {
    pub(super) pools: Listed<Vec<Pool>>,
    pub(super) overlapping: Listed<Vec<Overlapping>>,
    /// The assignable bounds, by the name of the pool.
    pub(super) bounds: Listed<BTreeMap<String, Bounds>>,
    pub(super) blocks: Listed<Vec<Block>>,
    pub(super) handles: Listed<Vec<Handle>>,
    pub(super) calico_pools: Listed<Vec<CalicoPool>>,
    pub(super) nodes: Listed<BTreeMap<String, Node>>,
    pub(super) pods: Listed<Vec<Pod>>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Node {
    /// Since when the node does not answer, if so. The text comes from the server.
    pub(super) silent_since: Option<String>,
    /// The node reports that it is ready.
    pub(super) ready: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Pod {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// Empty if the pod has no node yet.
    pub(super) node: String,
    pub(super) phase: String,
    pub(super) host_network: bool,
    /// Its containers have ended for good.
    pub(super) ended: bool,
    pub(super) deleting: bool,
    pub(super) ips: Vec<IpAddr>,
    /// The networks that Multus reports. `None`: it reports nothing.
    pub(super) networks: Option<Vec<Attached>>,
    /// Multus' report cannot be parsed.
    pub(super) networks_wrong: bool,
    /// The pod asks Multus for networks.
    pub(super) wants_networks: bool,
    /// The requested networks as `namespace/name`, if Multus reports nothing. `None`: they cannot be parsed.
    pub(super) wanted: Option<Vec<String>>,
    /// The IPs that Calico reports.
    pub(super) calico: Vec<IpAddr>,
}

/// An IP on one network of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attached {
    pub(super) network: String,
    pub(super) ip: IpAddr,
    /// It is the pod's own IP, which is also in its `podIPs`.
    pub(super) default: bool,
}

impl Pod {
    /// `namespace/name`
    pub(super) fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// All known IPs of the pod.
    pub(super) fn all_ips(&self) -> impl Iterator<Item = IpAddr> {
        let attached = self.networks.iter().flatten().map(|one| one.ip);
        self.ips.iter().copied().chain(attached).chain(self.calico.iter().copied())
    }

    /// Whether the pod has a node, but no known IP yet.
    pub(super) fn is_being_made(&self) -> bool {
        !self.ended && !self.host_network && !self.node.is_empty() && self.ips.is_empty()
    }

    /// Whether the pod asks Multus for networks that are not reported, or the report cannot be parsed.
    pub(super) fn is_unsaid(&self) -> bool {
        let unsaid = self.networks_wrong || (self.wants_networks && self.networks.is_none());
        unsaid && !self.ended && !self.host_network
    }
}

/// Whereabouts' `IPPool`.
#[derive(Debug, Clone)]
pub(super) struct Pool {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) range: String,
    /// The part before the IP in the names of its overlapping reservations: `blue-`, or empty.
    pub(super) prefix: String,
    pub(super) allocations: Vec<Allocation>,
    /// Number of entries that are not allocations.
    pub(super) wrong: usize,
}

#[derive(Debug, Clone)]
pub(super) struct Allocation {
    pub(super) offset: u128,
    pub(super) ip: IpAddr,
    pub(super) id: String,
    /// `namespace/name`. `None` for entries of old versions.
    pub(super) podref: Option<String>,
    /// It belongs to an IPAMClaim, which outlives pods.
    pub(super) claimed: bool,
}

/// The assignable parts of a pool.
#[derive(Debug, Clone, Default)]
pub(super) struct Bounds {
    pub(super) parts: Vec<RangePart>,
    /// The NetworkAttachmentDefinitions that define them.
    pub(super) from: Vec<String>,
}

#[derive(Debug, Clone)]
pub(super) struct Overlapping {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// Its `resourceVersion`.
    pub(super) version: String,
    pub(super) podref: Option<String>,
    pub(super) claimed: bool,
}

/// Calico's `IPAMBlock`.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub(super) name: String,
    /// The node that takes IPs from this block.
    pub(super) host: Option<String>,
    pub(super) range: Prefix,
    pub(super) allocations: Vec<CalicoAllocation>,
    pub(super) wrong: usize,
    pub(super) deleted: bool,
}

#[derive(Debug, Clone)]
pub(super) struct CalicoAllocation {
    pub(super) ordinal: u128,
    pub(super) ip: IpAddr,
    pub(super) handle: Option<String>,
    /// Namespace and name. `None`: it belongs to a tunnel or a load balancer, or its owner is not recorded.
    pub(super) pod: Option<(String, String)>,
    pub(super) node: Option<String>,
}

#[derive(Debug, Clone)]
pub(super) struct Handle {
    pub(super) name: String,
    pub(super) id: String,
    pub(super) deleted: bool,
}

#[derive(Debug, Clone)]
pub(super) struct CalicoPool {
    pub(super) name: String,
    pub(super) range: Prefix,
}
