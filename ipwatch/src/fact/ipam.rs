//! What the stores of IPAM plugins say: which IPs are reserved, for whom, and out of which ranges.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::PodName;
use crate::prefix::number;

/// One IP that a store has handed out. Each fact is whole: what it lacks the store does not tell.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reservation {
    /// Name of the store, which is its source's: `host-local`, `terway`, `aws-vpc-cni`, `cilium`,
    /// `libnetwork`, `netavark`.
    pub store: String,
    /// The network in that store. Hostile text.
    pub network: String,
    /// What names this reservation within its store: a file's path, with what leads to the entry in it
    /// where a file holds many. Store and key are its identity. Hostile text.
    pub key: String,
    /// The IP.
    pub ip: IpAddr,
    /// For which container; absent where the store names a pod alone. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// For which interface in the container. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ifname: Option<String>,
    /// For which pod. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodName>,
    /// When it was written, Unix time in nanoseconds, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<i64>,
}

/// What a network can hand out. A pod gets one IP from **each** set; the parts of a set are alternatives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// As [`Reservation::store`].
    pub store: String,
    /// As [`Reservation::network`].
    pub network: String,
    /// The file that says so. Hostile text.
    pub path: String,
    /// Directory of the network's reservations, where the store has one for each network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<String>,
    /// It hands out no IP that another network of its store has reserved.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shares: bool,
    /// The sets; at least one.
    pub sets: Vec<Vec<RangePart>>,
}

/// Consecutive IPs that can be handed out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangePart {
    /// The first.
    pub first: IpAddr,
    /// The last, of the same family, not below `first`.
    pub last: IpAddr,
    /// IPs between them that are never handed out: the gateway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<IpAddr>,
}

impl RangePart {
    /// Whether this IP can come from it.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.first.is_ipv4()
            && self.first <= ip
            && ip <= self.last
            && !self.except.contains(&ip)
    }

    /// How many IPs it has, saturating (an IPv6 /64 has more than anybody can use).
    #[must_use]
    pub fn usable(&self) -> u64 {
        let span = number(self.last).saturating_sub(number(self.first)).saturating_add(1);
        let within = |ip: &&IpAddr| self.first <= **ip && **ip <= self.last;
        let except = self.except.iter().filter(within).count() as u128;
        u64::try_from(span.saturating_sub(except)).unwrap_or(u64::MAX)
    }
}

/// A part of what a store hands out, of which the reservations of other nodes are not told, only how many there are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// As [`Reservation::store`].
    pub store: String,
    /// Its key in the store. Hostile text.
    pub key: String,
    /// Its first IP. Absent: not understood.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<IpAddr>,
    /// How many of its IPs are taken, by whichever node. Absent: nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<u32>,
}

/// A file of a store that says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unreadable {
    /// As [`Reservation::store`].
    pub store: String,
    /// The file. Hostile text.
    pub path: String,
    /// What is wrong with it, one line.
    pub reason: String,
    /// What its owner makes of that, one line, where it is known: a plugin that skips it, a kubelet that
    /// tries for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// The IP that its owner does not hand out for it all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takes: Option<IpAddr>,
}
