//! One look at the cluster, as data: what is judged.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::fact::RangePart;
use crate::prefix::Prefix;

/// A list, and whether it is all that there is.
#[derive(Debug, Clone)]
pub(super) struct Listed<T> {
    pub(super) items: T,
    pub(super) state: State,
}

/// How much of a kind is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// Everything.
    All,
    /// So many entries are not understood.
    Part(usize),
    /// The cluster has no such objects.
    Absent,
    /// Nothing, and why.
    Unknown(String),
}

impl State {
    /// What only one of two looks knows, both do not.
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
    /// What is not in it is not there.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.state, State::All | State::Absent)
    }
}

impl<T: Default> Default for Listed<T> {
    fn default() -> Self {
        Self { items: T::default(), state: State::Absent }
    }
}

/// Everything that was seen in one look.
#[derive(Debug, Clone, Default)]
pub(super) struct Look {
    pub(super) pools: Listed<Vec<Pool>>,
    pub(super) overlapping: Listed<Vec<Overlapping>>,
    /// By the name of the pool: what may be handed out.
    pub(super) bounds: Listed<BTreeMap<String, Bounds>>,
    pub(super) blocks: Listed<Vec<Block>>,
    pub(super) handles: Listed<Vec<Handle>>,
    pub(super) calico_pools: Listed<Vec<CalicoPool>>,
    pub(super) nodes: Listed<BTreeMap<String, Node>>,
    pub(super) pods: Listed<Vec<Pod>>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Node {
    /// It does not answer, since when. Its text is the server's.
    pub(super) silent_since: Option<String>,
    /// It says that it is ready.
    pub(super) ready: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Pod {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// Empty: it has none yet.
    pub(super) node: String,
    pub(super) phase: String,
    pub(super) host_network: bool,
    /// Its containers have ended for good.
    pub(super) ended: bool,
    pub(super) deleting: bool,
    pub(super) ips: Vec<IpAddr>,
    /// What Multus says of its interfaces. Absent: it says nothing.
    pub(super) networks: Option<Vec<Attached>>,
    /// It says something else.
    pub(super) networks_wrong: bool,
    /// It asks Multus for networks of its own.
    pub(super) wants_networks: bool,
    /// Which, as `namespace/name`, where nobody says what it was given. Absent: that is not understood.
    pub(super) wanted: Option<Vec<String>>,
    /// What Calico says.
    pub(super) calico: Vec<IpAddr>,
}

/// An IP on one network of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attached {
    pub(super) network: String,
    pub(super) ip: IpAddr,
    /// It is the pod's own, which is in its `podIPs` too.
    pub(super) default: bool,
}

impl Pod {
    /// `namespace/name`
    pub(super) fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Every IP that it is known to have.
    pub(super) fn all_ips(&self) -> impl Iterator<Item = IpAddr> {
        let attached = self.networks.iter().flatten().map(|one| one.ip);
        self.ips.iter().copied().chain(attached).chain(self.calico.iter().copied())
    }

    /// It is on a node, and which IPs it has is not known yet.
    pub(super) fn is_being_made(&self) -> bool {
        !self.ended && !self.host_network && !self.node.is_empty() && self.ips.is_empty()
    }

    /// It asks Multus for networks, and nobody says what it was given; or what is said is not understood.
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
    /// What stands before the IP in the names of its overlapping reservations: `blue-`, or nothing.
    pub(super) prefix: String,
    pub(super) allocations: Vec<Allocation>,
    /// Entries that are no allocations.
    pub(super) wrong: usize,
}

#[derive(Debug, Clone)]
pub(super) struct Allocation {
    pub(super) offset: u128,
    pub(super) ip: IpAddr,
    pub(super) id: String,
    /// `namespace/name`. Absent in those of old versions.
    pub(super) podref: Option<String>,
    /// An IPAMClaim has it, and outlives pods.
    pub(super) claimed: bool,
}

/// What may be handed out of a pool.
#[derive(Debug, Clone, Default)]
pub(super) struct Bounds {
    pub(super) parts: Vec<RangePart>,
    /// The NetworkAttachmentDefinitions that say so.
    pub(super) from: Vec<String>,
}

#[derive(Debug, Clone)]
pub(super) struct Overlapping {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// Of this very state: its `resourceVersion`.
    pub(super) version: String,
    pub(super) podref: Option<String>,
    pub(super) claimed: bool,
}

/// Calico's `IPAMBlock`.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub(super) name: String,
    /// The node that takes IPs from it.
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
    /// Namespace and name. Absent: it is a tunnel's, a load balancer's, or nobody says whose.
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
