//! Contents of a netns: addresses, routes, neighbours, and claims to an IP. Links are in `link.rs`.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Number of events in one netns that were not reported, at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Unreported {
    /// Events of addresses and devices, because the netns or its owner caused too many; and of neighbours and routes where
    /// netlink was read.
    pub addresses: u64,
    /// Updates of neighbour entries, likewise. Netlink reports them too.
    pub neighbours: u64,
    /// Claims of IPs, likewise. The next packet repeats a claim.
    pub claims: u64,
    /// Events of tasks, likewise.
    pub tasks: u64,
    /// Events of addresses and devices, because the ring buffer was full.
    pub overrun: u64,
}

impl Unreported {
    /// Whether addresses or devices of the netns may be other than what was reported.
    #[must_use]
    pub fn concerns_addresses(&self) -> bool {
        self.addresses > 0 || self.overrun > 0
    }
}

/// A hardware address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            *byte = parts
                .next()
                .filter(|part| part.len() == 2)
                .and_then(|part| u8::from_str_radix(part, 16).ok())
                .ok_or_else(|| format!("{text:?} is not a MAC address"))?;
        }
        match parts.next() {
            None => Ok(Self(bytes)),
            Some(_) => Err(format!("{text:?} is not a MAC address")),
        }
    }
}

impl Serialize for Mac {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Mac {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// An address as a message identifies it. The kernel's own identity is `map::AddressId`: for IPv6 neither the prefix
/// nor the peer counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AddressKey {
    /// The device's index.
    pub ifindex: u32,
    /// `IFA_LOCAL`, else `IFA_ADDRESS`: the address of this netns.
    pub local: IpAddr,
    /// Prefix length.
    pub prefix_len: u8,
    /// `IFA_ADDRESS` if it differs from `local`: the far end of a point-to-point link. It is **not** held here. For
    /// IPv4 it may be 0.0.0.0, which is not the same as none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<IpAddr>,
}

/// An address on a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// Its identity.
    #[serde(flatten)]
    pub key: AddressKey,
    /// `RT_SCOPE_*`: 0 global, 253 link, 254 host. `None` if the source does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<u8>,
    /// `IFA_F_*` bits (tentative 0x40, dadfailed 0x08, permanent 0x80, secondary 0x01). `None` if the source does not
    /// report them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flags: Option<u32>,
}

/// An ARP or NDP entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbour {
    /// The device of the entry.
    pub ifindex: u32,
    /// The neighbour's IP.
    pub ip: IpAddr,
    /// Its MAC, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// `NUD_*` bits: 0x01 incomplete, 0x02 reachable, 0x04 stale, 0x08 delay, 0x10 probe,
    /// 0x20 failed, 0x40 noarp, 0x80 permanent.
    pub state: u16,
    /// The MAC of an update that the entry rejected (`tp_btf/neigh_update`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed: Option<Mac>,
    /// Whether it was set manually (`NEIGH_UPDATE_F_ADMIN`).
    #[serde(default)]
    pub admin: bool,
}

/// The identity of a route (`fib_table_insert`, `fib6_add_rt2node`; without the type of service).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RouteKey {
    /// The destination; the unspecified address for the default route.
    pub to: IpAddr,
    /// 0, 32 or 128: only default routes and routes to single IPs are reported.
    pub prefix_len: u8,
    /// Its table: 254 is `main`. Routes of table 255, `local`, are not reported.
    pub table: u32,
    /// Its metric.
    #[serde(default)]
    pub priority: u32,
}

/// A unicast route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Its identity.
    #[serde(flatten)]
    pub key: RouteKey,
    /// The next hops, at least one; bounded.
    pub hops: Vec<Hop>,
}

/// One next hop of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Hop {
    /// The device, in the same netns.
    pub ifindex: u32,
    /// The router; absent if the destination itself is on the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

/// A claim to an IP on a link, in an ARP packet or a neighbour advertisement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Claim {
    /// The device that received it.
    pub ifindex: u32,
    /// The IP.
    pub ip: IpAddr,
    /// The MAC that claims the IP.
    pub mac: Mac,
    /// The kind of packet.
    pub kind: ClaimKind,
}

/// Packets that claim an IP. RFC 5227's probes, whose sender IP is 0.0.0.0, claim none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimKind {
    /// A request whose sender has the IP.
    Request,
    /// A reply.
    Reply,
    /// Sender and target are the same IP: RFC 5227's announcement, gratuitous ARP, an unsolicited advertisement.
    Announcement,
}
