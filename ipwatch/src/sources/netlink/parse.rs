//! Parses rtnetlink messages into [`Observation`]s.
//!
//! Framing and headers are parsed by netlink-packet-core and -route. Attributes are read one by one, because the
//! ready-made message types decode every attribute and reject the whole message if one of them is unexpected: a
//! container could make its device, and so its IPs, invisible by a device name that is not UTF-8.

mod link;
mod route;

use std::net::{IpAddr, Ipv4Addr};

use netlink_packet_core::{DecodeError, NetlinkBuffer, NlaBuffer, NlasIterator};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::AddressHeader;
use netlink_packet_route::neighbour::NeighbourHeader;

use crate::fact::{Address, AddressKey, Mac, Neighbour, NetnsRef, Observation};

/// One netlink message within a datagram.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message<'a> {
    /// `RTM_*` or `NLMSG_*`.
    pub(super) kind: u16,
    /// `NLM_F_*`.
    pub(super) flags: u16,
    /// Sequence number; an answer has that of its request.
    pub(super) sequence: u32,
    pub(super) payload: &'a [u8],
}

/// The messages of a datagram. The iterator ends after an error, because the start of the next message is then unknown.
pub(super) fn messages(datagram: &[u8]) -> impl Iterator<Item = Result<Message<'_>, DecodeError>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let bytes = std::mem::take(&mut rest);
        let whole = match NetlinkBuffer::new_checked(bytes) {
            Ok(whole) => whole,
            Err(error) => return Some(Err(error)),
        };
        let len = whole.length() as usize;
        rest = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(Ok(Message {
            kind: whole.message_type(),
            flags: whole.flags(),
            sequence: whole.sequence_number(),
            payload: &bytes[HEADER..len], // new_checked: HEADER <= len <= bytes.len()
        }))
    })
}

const HEADER: usize = 16;

/// Reports the contents of a link, address, neighbour or route message of `netns`, usually one observation. Any other
/// message yields nothing, including NSID messages ([`nsid`]).
pub(super) fn tell(
    kind: u16,
    payload: &[u8],
    netns: NetnsRef,
    put: &mut impl FnMut(Observation),
) -> Result<(), DecodeError> {
    match kind {
        libc::RTM_NEWLINK => return link::tell(payload, netns, put),
        libc::RTM_DELLINK => return link::tell_gone(payload, netns, put),
        _ => {}
    }
    one(kind, payload, netns).map(|told| told.into_iter().for_each(put))
}

fn one(kind: u16, payload: &[u8], netns: NetnsRef) -> Result<Option<Observation>, DecodeError> {
    match kind {
        libc::RTM_NEWADDR => {
            Ok(address(payload)?.map(|address| Observation::Address { netns, address }))
        }
        libc::RTM_DELADDR => {
            Ok(address(payload)?.map(|gone| Observation::AddressGone { netns, key: gone.key }))
        }
        libc::RTM_NEWNEIGH => {
            Ok(neighbour(payload)?.map(|neighbour| Observation::Neighbour { netns, neighbour }))
        }
        libc::RTM_DELNEIGH => Ok(neighbour(payload)?.map(|gone| Observation::NeighbourGone {
            netns,
            ifindex: gone.ifindex,
            ip: gone.ip,
        })),
        libc::RTM_NEWROUTE | libc::RTM_DELROUTE => route::what(kind, payload, netns),
        _ => Ok(None),
    }
}

/// The nsid in an `RTM_NEWNSID` or `RTM_DELNSID`; `None` if the netns has none (-1).
pub(super) fn nsid(payload: &[u8]) -> Result<Option<i32>, DecodeError> {
    Ok(numbered(payload)?.0)
}

/// Both nsids in an answer about the numbering of another netns: the number there, and the number here.
pub(super) fn nsids(payload: &[u8]) -> Result<Option<(i32, i32)>, DecodeError> {
    let (there, here) = numbered(payload)?;
    Ok(there.zip(here))
}

fn numbered(payload: &[u8]) -> Result<(Option<i32>, Option<i32>), DecodeError> {
    const RTGENMSG: usize = 4; // struct rtgenmsg, padded
    let (mut id, mut current) = (None, None);
    for attribute in attributes(payload, RTGENMSG) {
        let attribute = attribute?;
        match attribute.kind() {
            NETNSA_NSID => id = number(&attribute),
            NETNSA_CURRENT_NSID => current = number(&attribute),
            _ => {}
        }
    }
    let known = |id: Option<i32>| id.filter(|&id| id >= 0);
    Ok((known(id), known(current)))
}

fn address(payload: &[u8]) -> Result<Option<Address>, DecodeError> {
    let header = AddressHeader::parse(payload)?;
    if !is_ip(header.family) {
        return Ok(None);
    }
    let (mut local, mut named) = (None, None);
    let mut flags = u32::from(header.flags.bits());
    for attribute in attributes(payload, ADDRESS_HEADER) {
        let attribute = attribute?;
        match attribute.kind() {
            libc::IFA_LOCAL => local = ip(attribute.value()),
            libc::IFA_ADDRESS => named = ip(attribute.value()),
            IFA_FLAGS => flags = number(&attribute).map_or(flags, |all: i32| all as u32),
            _ => {}
        }
    }
    // If there is an IFA_LOCAL that differs, IFA_ADDRESS is the address of the remote end (inet_fill_ifaddr, devinet.c;
    // inet6_fill_ifaddr, addrconf.c).
    let Some(holds) = local.or(named) else {
        return Err(DecodeError::from("an address message without an address"));
    };
    // The kernel leaves an IPv4 peer of 0.0.0.0 out of the message.
    let unnamed = || holds.is_ipv4().then_some(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let peer = named.or_else(unnamed).filter(|&far| far != holds);
    let key =
        AddressKey { ifindex: header.index, local: holds, prefix_len: header.prefix_len, peer };
    Ok(Some(Address { key, scope: Some(header.scope.into()), flags: Some(flags) }))
}

fn neighbour(payload: &[u8]) -> Result<Option<Neighbour>, DecodeError> {
    let header = NeighbourHeader::parse(payload)?;
    // AF_BRIDGE: an entry of a forwarding database, which is sent to the same group.
    if !is_ip(header.family) {
        return Ok(None);
    }
    let (mut destination, mut hardware) = (None, None);
    for attribute in attributes(payload, NEIGHBOUR_HEADER) {
        let attribute = attribute?;
        match attribute.kind() {
            libc::NDA_DST => destination = ip(attribute.value()),
            libc::NDA_LLADDR => hardware = mac(attribute.value()),
            _ => {}
        }
    }
    let Some(ip) = destination else {
        return Err(DecodeError::from("a neighbour without an address"));
    };
    // A multicast address has no holder; each device has several such entries, in state NOARP.
    if ip.is_multicast() {
        return Ok(None);
    }
    Ok(Some(Neighbour {
        ifindex: header.ifindex,
        ip,
        mac: hardware,
        state: header.state.into(),
        claimed: None,
        admin: false,
    }))
}

const ADDRESS_HEADER: usize = 8; // struct ifaddrmsg
const NEIGHBOUR_HEADER: usize = 12; // struct ndmsg
const IFA_FLAGS: u16 = 8;
const NETNSA_NSID: u16 = 1;
const NETNSA_CURRENT_NSID: u16 = 5;

fn attributes(
    payload: &[u8],
    header: usize,
) -> impl Iterator<Item = Result<NlaBuffer<&[u8]>, DecodeError>> {
    NlasIterator::new(payload.get(header..).unwrap_or_default())
}

fn is_ip(family: AddressFamily) -> bool {
    matches!(family, AddressFamily::Inet | AddressFamily::Inet6)
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn mac(bytes: &[u8]) -> Option<Mac> {
    bytes.try_into().ok().map(Mac)
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    let v6 = || <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from);
    v4().or_else(v6)
}

fn number(attribute: &NlaBuffer<&[u8]>) -> Option<i32> {
    fixed(attribute.value()).map(i32::from_ne_bytes)
}

/// The value as an array, if it has exactly this length.
fn fixed<const N: usize>(value: &[u8]) -> Option<[u8; N]> {
    value.try_into().ok()
}

/// The attributes nested in an attribute, up to the first that cannot be parsed: kinds and values.
fn nested(value: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(value).map_while(|attribute| {
        let attribute = attribute.ok()?;
        let (kind, len) = (attribute.kind(), attribute.length().into());
        Some((kind, attribute.into_inner().get(4..len)?))
    })
}

/// A device index; 0 means none.
fn index(number: i32) -> Option<u32> {
    u32::try_from(number).ok().filter(|&index| index != 0)
}

#[cfg(test)]
mod tests;
