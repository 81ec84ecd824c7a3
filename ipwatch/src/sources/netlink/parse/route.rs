//! Parses a route message. Only default routes and routes to single IPs are reported.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::DecodeError;

use super::{attributes, fixed, index, ip, nested, number};
use crate::fact::{Hop, NetnsRef, Observation, Route, RouteKey};

const HEADER: usize = 12; // struct rtmsg
const RTN_UNICAST: u8 = 1;
const RT_TABLE_LOCAL: u32 = 255;
/// Maximum number of next hops read of one route.
const MAX_HOPS: usize = 16;

pub(super) fn what(
    kind: u16,
    payload: &[u8],
    netns: NetnsRef,
) -> Result<Option<Observation>, DecodeError> {
    let gone = kind == libc::RTM_DELROUTE;
    let Some(Parsed { route, unicast }) = route(payload, gone)? else { return Ok(None) };
    let Route { key, hops } = route;
    Ok(match (unicast, gone) {
        (true, true) => Some(Observation::RouteGone { netns, key, hops }),
        // Only `RTA_NH_ID` is present: the next hops are those of a nexthop object, which this message does not
        // contain.
        (true, false) if hops.is_empty() => None,
        (true, false) => Some(Observation::Route { netns, route: Route { key, hops } }),
        // A blackhole route may have replaced a unicast route.
        (false, false) => Some(Observation::RouteGone { netns, key, hops: Vec::new() }),
        (false, true) => None,
    })
}

struct Parsed {
    route: Route,
    unicast: bool,
}

fn route(payload: &[u8], gone: bool) -> Result<Option<Parsed>, DecodeError> {
    const RTM_F_CLONED: u32 = 0x200;
    let Some(&[family, to_len, from_len, _, table, _, _, kind, a, b, c, d]) =
        payload.first_chunk::<HEADER>()
    else {
        return Err(DecodeError::buffer_too_small(payload.len(), HEADER));
    };
    let flags = u32::from_ne_bytes([a, b, c, d]);
    let (unspecified, full): (IpAddr, u8) = match libc::c_int::from(family) {
        libc::AF_INET => (Ipv4Addr::UNSPECIFIED.into(), 32),
        libc::AF_INET6 => (Ipv6Addr::UNSPECIFIED.into(), 128),
        _ => return Ok(None),
    };
    // A route for some source addresses only does not apply to the others.
    if (to_len != 0 && to_len != full) || from_len != 0 || flags & RTM_F_CLONED != 0 {
        return Ok(None);
    }
    let mut key =
        RouteKey { to: unspecified, prefix_len: to_len, table: table.into(), priority: 0 };
    let (mut to, mut only, mut hops) = (None, Next::default(), Vec::new());
    for attribute in attributes(payload, HEADER) {
        let attribute = attribute?;
        match attribute.kind() {
            libc::RTA_DST => to = ip(attribute.value()),
            libc::RTA_TABLE => {
                key.table = fixed(attribute.value()).map_or(key.table, u32::from_ne_bytes)
            }
            libc::RTA_PRIORITY => {
                key.priority = fixed(attribute.value()).map_or(0, u32::from_ne_bytes)
            }
            libc::RTA_OIF => only.ifindex = number(&attribute).and_then(index),
            libc::RTA_MULTIPATH => hops = multipath(attribute.value(), gone),
            kind => only.gateway = gateway(kind, attribute.value()).or(only.gateway),
        }
    }
    if to_len != 0 {
        let to = to.filter(|to| to.is_ipv4() == unspecified.is_ipv4());
        key.to = to.ok_or_else(|| DecodeError::from("a route to nowhere"))?;
    }
    if key.table == RT_TABLE_LOCAL || !may_be_held(key.to) {
        return Ok(None);
    }
    if hops.is_empty() {
        hops.extend(only.hop(flags, gone));
    }
    Ok(Some(Parsed { route: Route { key, hops }, unicast: kind == RTN_UNICAST }))
}

/// Routes to fe80:: and ff00:: exist for every device and lead to no particular host.
fn may_be_held(to: IpAddr) -> bool {
    match to {
        IpAddr::V4(to) => !to.is_multicast(),
        IpAddr::V6(to) => !to.is_multicast() && !to.is_unicast_link_local(),
    }
}

#[derive(Default)]
struct Next {
    ifindex: Option<u32>,
    gateway: Option<IpAddr>,
}

impl Next {
    /// `None` if the hop is dead (`RTNH_F_DEAD`), unless the route was deleted.
    fn hop(self, flags: u32, gone: bool) -> Option<Hop> {
        const RTNH_F_DEAD: u32 = 1;
        let hop = self.ifindex.map(|ifindex| Hop { ifindex, gateway: self.gateway });
        hop.filter(|_| gone || flags & RTNH_F_DEAD == 0)
    }
}

/// `RTA_GATEWAY`, or `RTA_VIA` for a gateway of the other address family.
fn gateway(kind: u16, value: &[u8]) -> Option<IpAddr> {
    match kind {
        libc::RTA_GATEWAY => ip(value),
        libc::RTA_VIA => ip(value.get(2..)?), // struct rtvia
        _ => None,
    }
}

/// A list of `struct rtnexthop`, each with its own attributes.
fn multipath(mut rest: &[u8], gone: bool) -> Vec<Hop> {
    const RTNEXTHOP: usize = 8;
    let mut hops = Vec::new();
    while hops.len() < MAX_HOPS {
        let Some(&[a, b, flags, _, c, d, e, f]) = rest.first_chunk::<RTNEXTHOP>() else { break };
        let len = usize::from(u16::from_ne_bytes([a, b]));
        let Some(value) = rest.get(RTNEXTHOP..len) else { break };
        let mut next = Next { ifindex: index(i32::from_ne_bytes([c, d, e, f])), gateway: None };
        for (kind, value) in nested(value) {
            next.gateway = gateway(kind, value).or(next.gateway);
        }
        hops.extend(next.hop(flags.into(), gone));
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    hops
}
