//! Data of IPAM stores: which IPs are reserved, for which container, and from which ranges.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::PodName;
use crate::prefix::number;

/// One IP that a store has handed out. Each fact is complete: what it lacks is not in the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reservation {
    /// Name of the store, which is also its source's name, except for branch ENIs: see [`store`](super::store).
    pub store: String,
    /// The network in that store. Hostile text.
    pub network: String,
    /// Identifies this reservation within its store: a file's path, with the location of the entry in a file of many.
    /// Store and key are the identity. Hostile text.
    pub key: String,
    /// The IP.
    pub ip: IpAddr,
    /// The container that it is for; absent if the store names only a pod. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// The interface in the container. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ifname: Option<String>,
    /// The pod that it is for. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodName>,
    /// When it was written, as Unix time in nanoseconds, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<i64>,
}

/// The IPs that a network can hand out. A pod gets one IP from **each** set; the parts of a set are alternatives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// As [`Reservation::store`].
    pub store: String,
    /// As [`Reservation::network`].
    pub network: String,
    /// The file that defines it. Hostile text.
    pub path: String,
    /// Directory of the network's reservations, if the store has one for each network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<String>,
    /// Whether it hands out no IP that another network of its store has reserved.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shares: bool,
    /// The sets; at least one.
    pub sets: Vec<Vec<RangePart>>,
}

/// A network that a CNI configuration of the node names, whatever assigns its IPs, and whether or not its range is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configured {
    /// The store that reads the configurations, as [`Reservation::store`].
    pub store: String,
    /// The name of the network; empty if it has none. Hostile text.
    pub name: String,
    /// The file of the configuration. Hostile text.
    pub path: String,
    /// Whether its plugin adds pods to networks that are configured elsewhere: Multus to those that the API server has.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub elsewhere: bool,
}

/// Consecutive IPs that can be handed out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangePart {
    /// The first IP.
    pub first: IpAddr,
    /// The last IP, of the same family, not below `first`.
    pub last: IpAddr,
    /// IPs between them that are never handed out, such as the gateway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<IpAddr>,
}

impl RangePart {
    /// Whether this IP can be handed out.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.first.is_ipv4()
            && self.first <= ip
            && ip <= self.last
            && !self.except.contains(&ip)
    }

    /// Number of IPs, saturating (an IPv6 /64 has more than 2^64 - 1).
    #[must_use]
    pub fn usable(&self) -> u64 {
        let span = number(self.last).saturating_sub(number(self.first)).saturating_add(1);
        let within = |ip: &&IpAddr| self.first <= **ip && **ip <= self.last;
        let except = self.except.iter().filter(within).count() as u128;
        u64::try_from(span.saturating_sub(except)).unwrap_or(u64::MAX)
    }
}

/// A part of a range for which the store reports only the number of reservations, because other nodes' are not visible.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// As [`Reservation::store`].
    pub store: String,
    /// Its key in the store. Hostile text.
    pub key: String,
    /// Its first IP; absent if it could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<IpAddr>,
    /// Number of taken IPs, of all nodes; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<u32>,
}

/// A file of a store that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unreadable {
    /// As [`Reservation::store`].
    pub store: String,
    /// The file. Hostile text.
    pub path: String,
    /// What is wrong with it, in one line.
    pub reason: String,
    /// The effect on its owner, in one line, if known: a plugin that skips it, a kubelet that tries forever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// The IP that its owner nevertheless does not hand out because of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takes: Option<IpAddr>,
}
