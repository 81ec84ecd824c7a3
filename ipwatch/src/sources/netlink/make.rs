//! What the canary creates in its own netns (`crate::canary`): addresses, a veth pair, a neighbour entry. Nothing in
//! this file is ever called in the host's netns.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::requests::request_socket;
use super::socket::Socket;
use super::talk::Talk;

/// In bytes. A request and its answer take a few hundred.
const BUFFER: usize = 8192;

/// Creates and changes objects in the netns in which the calling thread was when this was opened.
pub(crate) struct Maker {
    socket: Socket,
    buffer: Vec<u8>,
    sequence: u32,
}

/// Looks up the nsid that a netns has in the host's netns.
#[derive(Debug)]
pub(crate) struct Numbers {
    socket: Socket,
    buffer: Vec<u8>,
    sequence: u32,
}

impl Numbers {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { socket: request_socket()?, buffer: vec![0; BUFFER], sequence: 0 })
    }

    /// Answered without RTNL (`RTNL_FLAG_DOIT_UNLOCKED`, net/core/net_namespace.c).
    pub(crate) fn of(&mut self, netns: BorrowedFd<'_>) -> io::Result<Option<i32>> {
        let Self { socket, buffer, sequence } = self;
        Talk { socket, buffer, sequence }.nsid(netns)
    }
}

/// An address to add or to delete.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Given {
    pub(crate) ifindex: u32,
    pub(crate) ip: IpAddr,
    pub(crate) prefix_len: u8,
    pub(crate) peer: Option<IpAddr>,
    /// Skips duplicate address detection (`IFA_F_NODAD`).
    pub(crate) unasked: bool,
}

impl Maker {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { socket: request_socket()?, buffer: vec![0; BUFFER], sequence: 0 })
    }

    pub(crate) fn up(&mut self, ifindex: u32) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = ifindex;
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up;
        self.ask(RouteNetlinkMessage::SetLink(link), 0)
    }

    /// Creates a veth pair.
    pub(crate) fn veth(&mut self, names: [&str; 2]) -> io::Result<()> {
        let named = |name: &str| {
            let mut link = LinkMessage::default();
            link.attributes.push(LinkAttribute::IfName(name.to_owned()));
            link
        };
        let mut link = named(names[0]);
        link.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(named(names[1])))),
        ]));
        self.ask(RouteNetlinkMessage::NewLink(link), NLM_F_CREATE | NLM_F_EXCL)
    }

    pub(crate) fn move_to(&mut self, ifindex: u32, netns: BorrowedFd<'_>) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = ifindex;
        link.attributes.push(LinkAttribute::NetNsFd(netns.as_raw_fd()));
        self.ask(RouteNetlinkMessage::SetLink(link), 0)
    }

    /// Adds an address, or changes the peer of an existing one.
    pub(crate) fn give(&mut self, given: Given) -> io::Result<()> {
        let message = RouteNetlinkMessage::NewAddress(address(given));
        self.ask(message, NLM_F_CREATE | NLM_F_REPLACE)
    }

    pub(crate) fn take(&mut self, given: Given) -> io::Result<()> {
        self.ask(RouteNetlinkMessage::DelAddress(address(given)), 0)
    }

    /// Adds a permanent neighbour entry.
    pub(crate) fn neighbour(&mut self, ifindex: u32, ip: Ipv4Addr, mac: [u8; 6]) -> io::Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.ifindex = ifindex;
        message.header.state = NeighbourState::Permanent;
        message.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)));
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        self.ask(RouteNetlinkMessage::NewNeighbour(message), flags)
    }

    fn ask(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        let Self { socket, buffer, sequence } = self;
        Talk { socket, buffer, sequence }.change(message, flags)
    }
}

fn address(given: Given) -> AddressMessage {
    let Given { ifindex, ip, prefix_len, peer, unasked } = given;
    let mut message = AddressMessage::default();
    message.header.family = match ip {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    message.header.index = ifindex;
    message.header.prefix_len = prefix_len;
    message.attributes.push(AddressAttribute::Local(ip));
    message.attributes.push(AddressAttribute::Address(peer.unwrap_or(ip)));
    if unasked {
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    message
}
