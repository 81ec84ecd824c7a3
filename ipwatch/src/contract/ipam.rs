//! The part of the contract about ranges and reservations of IPAM stores: `query ipam` and `check`.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Container, Interface, Netns, Pod};

/// The reservation of an IP in an IPAM store.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Reservation {
    /// The store.
    pub store: String,
    /// The network in that store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Its key in the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The container that it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// The pod that it is for, if the store names one, as Whereabouts does by its `podref`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
}

/// A network in a store whose range is unknown, because the store does not tell it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpamNetwork {
    /// The store.
    pub store: String,
    /// The network in that store. Hostile text.
    pub network: String,
    /// Number of reserved IPs.
    pub reserved: u64,
}

/// What a network can hand out on this node, and how much of it is taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpamRange {
    /// The store.
    pub store: String,
    /// The network in that store. Hostile text.
    pub network: String,
    /// First and last IPs, `10.0.3.2-10.0.3.254`; the parts of a set are separated by `, `, sets by `; `.
    pub range: String,
    /// Number of pods that it has room for: a pod takes one IP of each set.
    pub usable: u64,
    /// Number of reserved IPs, of the set with the fewest free ones.
    pub used: u64,
    /// Number of IPs, of all sets, reserved for something that no longer exists. Absent if a source that this depends
    /// on does not answer, or if nothing is proven leaked and no runtime can judge what is reserved. Without a runtime,
    /// a lower bound: only leaks that are proven otherwise, such as those from before the boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaked: Option<u64>,
    /// Number of pods that can still be started, according to the store.
    pub free: u64,
    /// Number of IPs, of all sets, that are up on this node without a reservation in the store: `check` rejects them.
    /// Absent if not everything that is up is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<u64>,
    /// Number of pods that can still be started without one of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<u64>,
    /// The file that defines it. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Seconds until no IP is left at the rate of the last minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_left: Option<u64>,
}

/// One reserved IP, according to the store, the kernel and the runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpamEntry {
    /// The IP.
    pub ip: IpAddr,
    /// The store.
    pub store: String,
    /// The network in that store. Hostile text.
    pub network: String,
    /// Its key in the store. Hostile text.
    pub key: String,
    /// The container that it is for. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// The interface in that container. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ifname: Option<String>,
    /// The pod that it is for. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
    /// When it was written, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// The holders in the kernel. Empty: no netns of this node.
    pub kernel: Vec<IpamHolder>,
    /// State of the container according to the runtimes: `alive`, `dead`, `gone`, `denied` (all were queried), `nobody`
    /// (there is none to query). Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// `yes`: store, kernel and runtime agree. `held-by-another`, `leaked`, `parked` (`ipwatch-ipam` keeps it for
    /// whoever still has the IP), `idle` (nobody has the IP up, and
    /// nothing says that this is wrong). Absent: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agree: Option<String>,
}

/// A holder of an IP in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpamHolder {
    /// Its netns.
    pub netns: Netns,
    /// The device that has the IP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<Interface>,
    /// Its container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
    /// Its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
}

/// Whether an IP can be given to a new container on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The IP.
    pub ip: IpAddr,
    /// Whether it can: no netns on this node has it, and it is not reserved (for another container).
    pub free: bool,
    /// Why not, one reason per line; the first one is the strongest. Empty if the IP is free.
    pub reasons: Vec<String>,
    /// The networks of this node that can hand it out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<String>,
    /// Whether it belongs to a network of this node, or is reserved in one. If `false`, no known store would hand it
    /// out; `free` then only means that no netns on this node has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_pool: Option<bool>,
    /// The holders of the IP.
    pub holders: Vec<IpamHolder>,
    /// Its reservations.
    pub reservations: Vec<Reservation>,
    /// Ids of open findings about it.
    pub findings: Vec<String>,
}
