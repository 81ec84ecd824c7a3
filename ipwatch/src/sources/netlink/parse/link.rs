//! Parses a link message: the device, the attributes of its kind, and the VLANs of a bridge port.
//!
//! Nested attributes that cannot be parsed are skipped, so that a device with unexpected attributes is still reported.

use std::net::IpAddr;

use netlink_packet_core::DecodeError;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::link::{LinkFlags, LinkHeader};

use super::{attributes, fixed, index, ip, mac, nested, number, text};
use crate::fact::{Link, LinkDetail, NetnsRef, Observation, Parent, Vlans};

const HEADER: usize = 16; // struct ifinfomsg
pub(super) const IFLA_PARENT_DEV_NAME: u16 = 56;
pub(super) const IFLA_PARENT_DEV_BUS_NAME: u16 = 57;

/// Maximum number of ranges read of one device: every VLAN, each with its own flags.
const MAX_VLANS: usize = 4094;

pub(super) fn tell(
    payload: &[u8],
    netns: NetnsRef,
    put: &mut impl FnMut(Observation),
) -> Result<(), DecodeError> {
    let header = LinkHeader::parse(payload)?;
    match header.interface_family {
        AddressFamily::Unspec => {
            if let Some(link) = link(&header, payload)? {
                put(Observation::Link { netns, link });
            }
        }
        // Also sent when a port's bridge settings change (`br_ifinfo_notify`, br_netlink.c).
        AddressFamily::Bridge => port(&header, payload, netns, put)?,
        _ => {}
    }
    Ok(())
}

pub(super) fn tell_gone(
    payload: &[u8],
    netns: NetnsRef,
    put: &mut impl FnMut(Observation),
) -> Result<(), DecodeError> {
    let header = LinkHeader::parse(payload)?;
    let ifindex = header.index;
    match header.interface_family {
        AddressFamily::Unspec => put(Observation::LinkGone { netns, ifindex }),
        // The port left its bridge (`br_del_if`); the device still exists.
        AddressFamily::Bridge => put(Observation::Vlans { netns, ifindex, vlans: Vec::new() }),
        _ => {}
    }
    Ok(())
}

fn link(header: &LinkHeader, payload: &[u8]) -> Result<Option<Link>, DecodeError> {
    let mut link = Link {
        ifindex: header.index,
        up: header.flags.contains(LinkFlags::Up),
        loopback: header.flags.contains(LinkFlags::Loopback),
        ..Link::default()
    };
    let (mut bus, mut parent) = (None, None);
    for attribute in attributes(payload, HEADER) {
        let attribute = attribute?;
        match attribute.kind() {
            libc::IFLA_IFNAME => link.name = text(attribute.value()),
            libc::IFLA_ADDRESS => link.mac = mac(attribute.value()),
            libc::IFLA_MASTER => link.master = number(&attribute).and_then(index),
            libc::IFLA_LINK => link.peer = number(&attribute).and_then(index),
            libc::IFLA_LINK_NETNSID => link.peer_nsid = number(&attribute).filter(|&id| id >= 0),
            libc::IFLA_LINKINFO => info(attribute.value(), &mut link),
            IFLA_PARENT_DEV_BUS_NAME => bus = Some(text(attribute.value())),
            IFLA_PARENT_DEV_NAME => parent = Some(text(attribute.value())),
            // A wireless extensions event reuses RTM_NEWLINK and contains only the name of the link
            // (`rtnetlink_ifinfo_prep`, wext-core.c).
            libc::IFLA_WIRELESS => return Ok(None),
            _ => {}
        }
    }
    if link.name.is_empty() {
        return Err(DecodeError::from("a link without a name"));
    }
    // Both are present or neither (`rtnl_fill_ifinfo`: only if the device's parent is on a bus).
    link.parent = bus.zip(parent).map(|(bus, address)| Parent { bus, address, driver: None });
    Ok(Some(link))
}

/// `IFLA_LINKINFO`: the kind, the attributes of that kind, and those of the master's kind.
fn info(value: &[u8], link: &mut Link) {
    const KIND: u16 = 1; // IFLA_INFO_*, linux/if_link.h
    const DATA: u16 = 2;
    const SLAVE_KIND: u16 = 4;
    const SLAVE_DATA: u16 = 5;
    let (mut data, mut port_of, mut port) = (&[][..], String::new(), &[][..]);
    for (kind, value) in nested(value) {
        match kind {
            KIND => link.kind = Some(text(value)),
            DATA => data = value,
            SLAVE_KIND => port_of = text(value),
            SLAVE_DATA => port = value,
            _ => {}
        }
    }
    link.detail = link.kind.as_deref().and_then(|kind| detail(kind, data));
    link.isolated = port_of == "bridge" && isolated(port).unwrap_or(false);
}

fn detail(kind: &str, data: &[u8]) -> Option<LinkDetail> {
    match kind {
        "macvlan" | "macvtap" => {
            let mode = first(data, 1)?; // IFLA_MACVLAN_MODE
            Some(LinkDetail::Macvlan { mode: u32::from_ne_bytes(mode) })
        }
        "ipvlan" | "ipvtap" => {
            let mode = first(data, 1)?; // IFLA_IPVLAN_MODE
            let flags = first(data, 2); // IFLA_IPVLAN_FLAGS
            let flags = flags.map_or(0, u16::from_ne_bytes);
            Some(LinkDetail::Ipvlan { mode: u16::from_ne_bytes(mode), flags })
        }
        "vlan" => {
            let id = first(data, 1)?; // IFLA_VLAN_ID
            Some(LinkDetail::Vlan { id: u16::from_ne_bytes(id) })
        }
        "vrf" => {
            let table = first(data, 1)?; // IFLA_VRF_TABLE
            Some(LinkDetail::Vrf { table: u32::from_ne_bytes(table) })
        }
        "bridge" => {
            const IFLA_BR_VLAN_FILTERING: u16 = 7;
            let [on] = first(data, IFLA_BR_VLAN_FILTERING)?;
            Some(LinkDetail::Bridge { vlan_filtering: on != 0 })
        }
        "vxlan" => vxlan(data),
        _ => None,
    }
}

fn vxlan(data: &[u8]) -> Option<LinkDetail> {
    const ID: u16 = 1; // IFLA_VXLAN_*, linux/if_link.h
    const GROUP: u16 = 2;
    const LOCAL: u16 = 4;
    const PORT: u16 = 15;
    const GROUP6: u16 = 16;
    const LOCAL6: u16 = 17;
    const COLLECT_METADATA: u16 = 25;
    let (mut vni, mut by_packet, mut udp) = (None, false, None);
    let (mut remote, mut local): (Option<IpAddr>, Option<IpAddr>) = (None, None);
    for (kind, value) in nested(data) {
        match kind {
            ID => vni = fixed(value).map(u32::from_ne_bytes),
            COLLECT_METADATA => by_packet = fixed(value).is_some_and(|[on]: [u8; 1]| on != 0),
            GROUP | GROUP6 => remote = ip(value),
            LOCAL | LOCAL6 => local = ip(value),
            PORT => udp = fixed(value).map(u16::from_be_bytes),
            _ => {}
        }
    }
    let vni = vni.filter(|_| !by_packet);
    Some(LinkDetail::Vxlan { vni, remote, local, port: udp? })
}

/// What a bridge reports about its port, or about itself. Without VLANs it leaves `IFLA_AF_SPEC` out (`br_fill_ifinfo`,
/// br_netlink.c).
fn port(
    header: &LinkHeader,
    payload: &[u8],
    netns: NetnsRef,
    put: &mut impl FnMut(Observation),
) -> Result<(), DecodeError> {
    let ifindex = header.index;
    let (mut of_bridge, mut spec) = (false, None);
    for attribute in attributes(payload, HEADER) {
        let attribute = attribute?;
        match attribute.kind() {
            libc::IFLA_MASTER => of_bridge = true,
            libc::IFLA_AF_SPEC => spec = Some(vlans(attribute.value())),
            libc::IFLA_PROTINFO => {
                if let Some(isolated) = isolated(attribute.value()) {
                    put(Observation::Port { netns, ifindex, isolated });
                }
            }
            _ => {}
        }
    }
    if let Some(vlans) = spec.unwrap_or_else(|| of_bridge.then(Vec::new)) {
        put(Observation::Vlans { netns, ifindex, vlans });
    }
    Ok(())
}

/// `IFLA_BRPORT_ISOLATED` in a port's settings.
fn isolated(port: &[u8]) -> Option<bool> {
    const IFLA_BRPORT_ISOLATED: u16 = 33;
    let [on] = first(port, IFLA_BRPORT_ISOLATED)?;
    Some(on != 0)
}

/// `None` if the attribute is about something else (MRP, CFM), or from a network card with an embedded switch, whose
/// VLANs are the hardware's (`ndo_dflt_bridge_getlink`, rtnetlink.c; a bridge sends no flags).
fn vlans(spec: &[u8]) -> Option<Vec<Vlans>> {
    const FLAGS: u16 = 0; // IFLA_BRIDGE_*, linux/if_bridge.h
    const VLAN_INFO: u16 = 2;
    let (mut vlans, mut begun) = (Vec::new(), None);
    let (mut any, mut other) = (false, false);
    for (kind, value) in nested(spec) {
        match kind {
            FLAGS => return None,
            VLAN_INFO => {
                any = true;
                let told = fixed(value).and_then(|info| range(info, &mut begun));
                vlans.extend(told.filter(|_| vlans.len() < MAX_VLANS));
            }
            _ => other = true,
        }
    }
    (any || !other).then_some(vlans)
}

/// `struct bridge_vlan_info`: a VLAN, or one end of a range.
fn range(info: [u8; 4], begun: &mut Option<u16>) -> Option<Vlans> {
    const PVID: u16 = 2; // BRIDGE_VLAN_INFO_*
    const UNTAGGED: u16 = 4;
    const BEGIN: u16 = 8;
    const END: u16 = 16;
    let [a, b, c, d] = info;
    let (flags, vid) = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
    if flags & BEGIN != 0 {
        *begun = Some(vid);
        return None;
    }
    let first = match flags & END {
        0 => vid,
        _ => begun.take()?,
    };
    let vlans =
        Vlans { first, last: vid, pvid: flags & PVID != 0, untagged: flags & UNTAGGED != 0 };
    (first <= vid && vid < 4096).then_some(vlans)
}

/// The first attribute of a kind, if it has exactly this length.
fn first<const N: usize>(value: &[u8], wanted: u16) -> Option<[u8; N]> {
    nested(value).find(|(kind, _)| *kind == wanted).and_then(|(_, value)| fixed(value))
}
