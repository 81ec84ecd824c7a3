//! The part of the contract about what IPAM stores hand out and reserve: `query ipam` and `check`.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Container, Interface, Netns, Pod};

/// What an IPAM store says of an IP.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Reservation {
    /// Which store.
    pub store: String,
    /// Which network of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Its key there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// For which container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// For which pod, where the store names one, as Whereabouts does by its `podref`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
}

/// What a network can hand out on this node, and how much of it is taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpamRange {
    /// Which store.
    pub store: String,
    /// Which network of it. Hostile text.
    pub network: String,
    /// First and last IPs, `10.0.3.2-10.0.3.254`; the parts of a set apart by `, `, sets by `; `.
    pub range: String,
    /// Pods that it has room for: a pod takes one IP of each set.
    pub usable: u64,
    /// IPs reserved, of the set that has the least left.
    pub used: u64,
    /// IPs reserved, of all sets, for what is gone. Absent: a source that says what is gone does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaked: Option<u64>,
    /// Pods that can still be started, by what the store reserves.
    pub free: u64,
    /// IPs, of all sets, that the store does not reserve and that are up on this node all the same: `check` refuses
    /// them. Absent: not everything that is up is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<u64>,
    /// Pods that can still be started without one of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<u64>,
    /// The file that says so. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Seconds until nothing is left, if it goes on as in the last minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_left: Option<u64>,
}

/// One reserved IP: what the store, the kernel and the runtime say of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpamEntry {
    /// The IP.
    pub ip: IpAddr,
    /// Which store.
    pub store: String,
    /// Which network of it. Hostile text.
    pub network: String,
    /// Its key there. Hostile text.
    pub key: String,
    /// For which container. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// For which interface in it. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ifname: Option<String>,
    /// For which pod. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
    /// When it was written, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Who has it in the kernel. Empty: no netns of this node.
    pub kernel: Vec<IpamHolder>,
    /// The runtimes' word on the container: `alive`, `dead`, `gone`, `denied` (all were asked), `nobody` (there is
    /// none to ask). Absent: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// `yes`: store, kernel and runtime agree. `held-by-another`, `leaked`, `parked` (`ipwatch-ipam` keeps it for
    /// whoever still has the IP), `idle` (nobody has the IP up, and
    /// nothing says that this is wrong). Absent: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agree: Option<String>,
}

/// Who has an IP in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpamHolder {
    /// Where it is up.
    pub netns: Netns,
    /// On which device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<Interface>,
    /// Whose container it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
    /// Whose pod it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
}

/// Whether an IP can be given to a new container on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The IP.
    pub ip: IpAddr,
    /// It can: nobody on this node has it, and it is reserved for nobody (else).
    pub free: bool,
    /// Why not, a line each; the first one weighs most. Empty when it is free.
    pub reasons: Vec<String>,
    /// The networks of this node that can hand it out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<String>,
    /// Whether it belongs to a network of this node, or is reserved in one. `false` says that no store known here would
    /// hand it out; `free` then says only that nobody on this node has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_pool: Option<bool>,
    /// Who has it.
    pub holders: Vec<IpamHolder>,
    /// For whom it is reserved.
    pub reservations: Vec<Reservation>,
    /// Ids of open findings about it.
    pub findings: Vec<String>,
}
