//! IPs behind separate pairs of one router (Calico, ptp, the VPC CNI): no broadcast gets from one to the other, but
//! only one of them can have the IP.

use std::net::IpAddr;

use super::plan::{DevId, Kind, Plan};
use super::{Endpoint, Meeting};
use crate::fact::LinkDetail;
use crate::map::{NetnsId, NodeMap};

/// `RT_TABLE_MAIN`.
const MAIN: u32 = 254;

/// The router's end of a pair.
#[derive(Debug, Clone, Copy)]
pub(super) struct Port {
    pub(super) netns: NetnsId,
    /// The routing table used for this device.
    pub(super) table: u32,
    ifindex: u32,
}

/// The router at the other end of a device, if that end is only a router's port.
pub(super) fn port(map: &NodeMap, plan: &Plan, dev: DevId) -> Option<Port> {
    let own = &plan.devs[dev];
    let end = plan.devs.get(own.lower.filter(|_| own.kind == Kind::Veth && own.carries)?)?;
    let Endpoint { netns, ifindex } = end.at;
    if netns == own.at.netns || !end.uppers.is_empty() || own.enslaved {
        return None;
    }
    let table = if end.enslaved {
        let vrf = map.netns(netns)?.link(plan.devs[end.master?].at.ifindex)?;
        let Some(LinkDetail::Vrf { table }) = vrf.detail else { return None };
        table
    } else {
        MAIN
    };
    Some(Port { netns, table, ifindex })
}

impl Port {
    /// The router's end.
    pub(super) fn ifindex(self) -> u32 {
        self.ifindex
    }
}

/// Whether an endpoint has an IP without a network: its router is told of it by a route.
pub(super) fn is_single(map: &NodeMap, at: Endpoint, ip: IpAddr) -> bool {
    map.netns(at.netns).is_some_and(|netns| {
        netns.on_device(at.ifindex, ip).any(|(_, known)| known.prefix_len == len(ip))
    })
}

/// The devices by which a router sends what is for an IP.
pub(super) fn ways(
    map: &NodeMap,
    router: NetnsId,
    table: u32,
    ip: IpAddr,
) -> impl Iterator<Item = u32> {
    let router = map.netns(router).into_iter();
    router.flat_map(move |router| router.hops_to(ip, table)).map(|hop| hop.ifindex)
}

/// Whether two endpoints, each behind a port of its own, have the same IP to a router. [`super::duplicates`] knows the same
/// of many at once.
fn meet(
    map: &NodeMap,
    (a, of_a, ip): (Endpoint, Port, IpAddr),
    (b, of_b, other): (Endpoint, Port, IpAddr),
) -> bool {
    let apart = of_a.ifindex != of_b.ifindex;
    if ip != other || !apart || (of_a.netns, of_a.table) != (of_b.netns, of_b.table) {
        return false;
    }
    let routed = || {
        let mut ways = ways(map, of_a.netns, of_a.table, ip);
        ways.any(|way| [of_a.ifindex, of_b.ifindex].contains(&way))
    };
    (is_single(map, a, ip) && is_single(map, b, ip)) || routed()
}

/// The router by which two addresses meet.
pub(super) fn meeting(
    map: &NodeMap,
    plan: &Plan,
    a: (Endpoint, IpAddr),
    b: (Endpoint, IpAddr),
) -> Option<Meeting> {
    let of_a = port(map, plan, plan.find(a.0)?)?;
    let of_b = port(map, plan, plan.find(b.0)?)?;
    meet(map, (a.0, of_a, a.1), (b.0, of_b, b.1)).then_some(Meeting::Router(of_a.netns))
}

/// Prefix length of a single IP.
fn len(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}
