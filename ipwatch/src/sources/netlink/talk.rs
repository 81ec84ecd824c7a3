//! Requests to the kernel over one netlink socket: nsids and dumps.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkExtentMask, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage};
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use netlink_packet_route::route::{RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::parse;
use super::socket::Socket;
use crate::clock;
use crate::fact::{Fact, NetnsRef, Observation, Origin, Scope};
use crate::reading;

/// Maximum number of facts from one dump. A longer dump could be an attack on our memory: it is cut and reported as
/// incomplete.
const MOST: usize = 65_536;

/// How often a dump is tried if the table changes during it (`NLM_F_DUMP_INTR`).
const TRIES: usize = 4;

/// A socket, with a buffer and a sequence number that outlive this value.
pub(super) struct Talk<'a> {
    pub(super) socket: &'a Socket,
    pub(super) buffer: &'a mut [u8],
    pub(super) sequence: &'a mut u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Table {
    Links,
    Addresses,
    Neighbours,
    /// What bridges report about their ports: the VLANs.
    Ports,
    /// Unicast routes, default or to single IPs; the kernel leaves other route types out.
    Routes,
}

impl Table {
    /// The scope that a dump of this table enumerates completely. A dump of ports proves nothing about missing ones.
    fn scope(self, netns: NetnsRef) -> Option<Scope> {
        match self {
            Table::Links => Some(Scope::Links { netns }),
            Table::Addresses => Some(Scope::Addresses { netns }),
            Table::Neighbours => Some(Scope::Neighbours { netns }),
            Table::Ports => None,
            Table::Routes => Some(Scope::Routes { netns }),
        }
    }

    /// The requests; about another netns than the socket's if `of` names one. Only links and addresses support that:
    /// `neigh_valid_dump_req`, for example, knows no target netns.
    fn requests(self, of: Option<i32>) -> Vec<RouteNetlinkMessage> {
        let mut link = LinkMessage::default();
        match self {
            Table::Links => {
                link.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
                link.attributes.extend(of.map(LinkAttribute::IfNetnsId));
                vec![RouteNetlinkMessage::GetLink(link)]
            }
            Table::Addresses => {
                let mut message = AddressMessage::default();
                message.attributes.extend(of.map(AddressAttribute::TargetNetNsId));
                vec![RouteNetlinkMessage::GetAddress(message)]
            }
            Table::Neighbours => {
                vec![RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default())]
            }
            Table::Ports => {
                let vlans = LinkExtentMask::BrvlanCompressed;
                link.header.interface_family = AddressFamily::Bridge;
                link.attributes.push(LinkAttribute::ExtMask(vec![vlans]));
                vec![RouteNetlinkMessage::GetLink(link)]
            }
            Table::Routes => [AddressFamily::Inet, AddressFamily::Inet6].map(routes).into(),
        }
    }
}

fn routes(family: AddressFamily) -> RouteNetlinkMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family;
    message.header.kind = RouteType::Unicast;
    RouteNetlinkMessage::GetRoute(message)
}

/// How one pass through a table ended.
enum Walk {
    Complete,
    /// The table changed during the dump: entries may be missing or duplicated.
    Interrupted,
    /// More than [`MOST`] facts, or messages that could not be parsed.
    Cut,
}

impl Talk<'_> {
    /// The nsid that a netns has here, if any.
    pub(super) fn nsid(&mut self, netns: BorrowedFd<'_>) -> io::Result<Option<i32>> {
        self.ask_nsid(vec![NsidAttribute::Fd(netns.as_raw_fd().cast_unsigned())])
    }

    /// The nsid in the netns `seen_from` for the netns that is `nsid` here, if any (4.20+).
    pub(super) fn translate(&mut self, nsid: i32, seen_from: i32) -> io::Result<Option<i32>> {
        self.ask_nsid(vec![NsidAttribute::Id(nsid), NsidAttribute::TargetNsid(seen_from)])
    }

    /// The nsid in the netns that is `nsid` here for the netns `of`, if any (4.20+).
    pub(super) fn nsid_in(&mut self, nsid: i32, of: BorrowedFd<'_>) -> io::Result<Option<i32>> {
        let of = NsidAttribute::Fd(of.as_raw_fd().cast_unsigned());
        self.ask_nsid(vec![of, NsidAttribute::TargetNsid(nsid)])
    }

    /// Assigns an nsid here to a netns; the kernel picks the lowest free one. EEXIST: it already has one.
    pub(super) fn assign_nsid(&mut self, netns: BorrowedFd<'_>) -> io::Result<()> {
        let mut message = NsidMessage::default();
        message.attributes.push(NsidAttribute::Fd(netns.as_raw_fd().cast_unsigned()));
        message.attributes.push(NsidAttribute::Id(-1));
        self.change(RouteNetlinkMessage::NewNsId(message), 0)
    }

    /// Creates, changes or deletes an object.
    pub(super) fn change(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.send(message, NLM_F_ACK | flags)?;
        self.answer(|_| Ok(()))
    }

    /// The nsids that the netns `nsid` uses for others, each with the nsid of the same netns here.
    pub(super) fn numbers(&mut self, nsid: i32) -> io::Result<Vec<(i32, i32)>> {
        let mut message = NsidMessage::default();
        message.attributes.push(NsidAttribute::TargetNsid(nsid));
        let mut pairs = Vec::new();
        self.each(RouteNetlinkMessage::GetNsId(message), |message| {
            // A message that cannot be parsed is skipped.
            let pair = parse::nsids(message.payload).ok().flatten();
            pairs.extend(pair.filter(|_| pairs.len() < MOST));
        })?;
        Ok(pairs)
    }

    /// Dumps a table into `facts`, between [`Observation::Began`] and [`Observation::Ended`]. If the dump fails,
    /// returns the error, and the end is not complete. `ask_of` names the netns to the kernel if it is not the socket's
    /// own.
    pub(super) fn dump(
        &mut self,
        table: Table,
        netns: NetnsRef,
        ask_of: Option<i32>,
        facts: &mut Vec<Fact>,
    ) -> io::Result<()> {
        let scope = table.scope(netns);
        let start = facts.len();
        let mut began = clock::now();
        let mut outcome = Ok(Walk::Interrupted);
        for _ in 0..TRIES {
            facts.truncate(start);
            began = clock::now();
            let mut put = |what| facts.push(Fact { at: began, origin: Origin::Netlink, what });
            scope.clone().map(Observation::Began).into_iter().for_each(&mut put);
            outcome = self.walk(table.requests(ask_of), netns, &mut put);
            if !matches!(outcome, Ok(Walk::Interrupted)) {
                break;
            }
        }
        let complete = matches!(outcome, Ok(Walk::Complete));
        if let Some(scope) = scope {
            let ended = Observation::Ended { scope, began, complete };
            facts.push(Fact { at: clock::now(), origin: Origin::Netlink, what: ended });
        }
        outcome.map(|_| ())
    }

    /// Looks up single neighbour entries of the socket's netns (`neigh_get`, 5.0+) and reports them in `facts` as an
    /// incomplete dump, which proves nothing about other entries. A real dump would be expensive: the kernel keeps the
    /// entries of all netns in one table, which never shrinks, and walks all of it (`neigh_dump_table`,
    /// net/core/neighbour.c).
    ///
    /// # Errors
    /// The kernel does not support the lookup; `facts` is then unchanged.
    pub(super) fn neighbours(
        &mut self,
        keys: &BTreeSet<(u32, IpAddr)>,
        netns: NetnsRef,
        facts: &mut Vec<Fact>,
    ) -> io::Result<()> {
        let (start, began) = (facts.len(), clock::now());
        let scope = Scope::Neighbours { netns };
        let put = |facts: &mut Vec<Fact>, at, what| {
            facts.push(Fact { at, origin: Origin::Netlink, what });
        };
        put(facts, began, Observation::Began(scope.clone()));
        for &(ifindex, ip) in keys {
            match self.neighbour(ifindex, ip, netns) {
                Ok(told) => told.into_iter().for_each(|what| put(facts, began, what)),
                // ENODEV: the device is gone, and the entry with it.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => {
                    put(facts, began, Observation::NeighbourGone { netns, ifindex, ip });
                }
                Err(error) => {
                    facts.truncate(start);
                    return Err(error);
                }
            }
        }
        put(facts, clock::now(), Observation::Ended { scope, began, complete: false });
        Ok(())
    }

    fn neighbour(
        &mut self,
        ifindex: u32,
        ip: IpAddr,
        netns: NetnsRef,
    ) -> io::Result<Option<Observation>> {
        let mut message = NeighbourMessage::default();
        message.header.ifindex = ifindex;
        let (family, destination) = match ip {
            IpAddr::V4(ip) => (AddressFamily::Inet, NeighbourAddress::Inet(ip)),
            IpAddr::V6(ip) => (AddressFamily::Inet6, NeighbourAddress::Inet6(ip)),
        };
        message.header.family = family;
        message.attributes.push(NeighbourAttribute::Destination(destination));
        self.send(RouteNetlinkMessage::GetNeighbour(message), 0)?;
        self.answer(|payload| {
            let mut told = None;
            parse::tell(libc::RTM_NEWNEIGH, payload, netns, &mut |what| told = Some(what))
                .map_err(invalid)?;
            Ok(told)
        })
    }

    fn walk(
        &mut self,
        requests: Vec<RouteNetlinkMessage>,
        netns: NetnsRef,
        put: &mut impl FnMut(Observation),
    ) -> io::Result<Walk> {
        let (mut interrupted, mut cut, mut count) = (false, false, 0);
        for request in requests {
            interrupted |= self.each(request, |message| {
                let mut put = |what| {
                    count += 1;
                    match count <= MOST {
                        true => put(what),
                        false => cut = true,
                    }
                };
                let told = parse::tell(message.kind, message.payload, netns, &mut put);
                cut |= told.is_err();
            })?;
        }
        Ok(match (interrupted, cut) {
            (true, _) => Walk::Interrupted,
            (_, true) => Walk::Cut,
            _ => Walk::Complete,
        })
    }

    /// Requests a dump and passes each message to `take`. Returns whether the dump was interrupted.
    fn each(
        &mut self,
        request: RouteNetlinkMessage,
        mut take: impl FnMut(parse::Message<'_>),
    ) -> io::Result<bool> {
        self.send(request, NLM_F_DUMP)?;
        let mut interrupted = false;
        loop {
            let received = self.receive()?;
            for message in parse::messages(&self.buffer[..received]) {
                let message = message.map_err(invalid)?;
                if message.sequence != *self.sequence {
                    continue; // a late answer to an earlier request
                }
                interrupted |= message.flags & libc::NLM_F_DUMP_INTR as u16 != 0;
                match libc::c_int::from(message.kind) {
                    libc::NLMSG_DONE | libc::NLMSG_ERROR => {
                        errno(message.payload)?;
                        return Ok(interrupted);
                    }
                    _ => take(message),
                }
            }
        }
    }

    fn ask_nsid(&mut self, attributes: Vec<NsidAttribute>) -> io::Result<Option<i32>> {
        let mut message = NsidMessage::default();
        message.attributes = attributes;
        self.send(RouteNetlinkMessage::GetNsId(message), 0)?;
        self.answer(|payload| parse::nsid(payload).map_err(invalid))
    }

    /// Reads the single answer to a request: an error, an acknowledgement, or a message.
    fn answer<T>(&mut self, read: impl Fn(&[u8]) -> io::Result<T>) -> io::Result<T> {
        loop {
            let received = self.receive()?;
            for message in parse::messages(&self.buffer[..received]) {
                let message = message.map_err(invalid)?;
                if message.sequence != *self.sequence {
                    continue;
                }
                if libc::c_int::from(message.kind) == libc::NLMSG_ERROR {
                    errno(message.payload)?;
                }
                return read(message.payload);
            }
        }
    }

    fn send(&mut self, request: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        *self.sequence = self.sequence.wrapping_add(1);
        let mut message =
            NetlinkMessage::new(Default::default(), NetlinkPayload::InnerMessage(request));
        message.header.flags = NLM_F_REQUEST | flags;
        message.header.sequence_number = *self.sequence;
        message.finalize();
        let len = message.buffer_len();
        let _reading = reading::rtnl()?;
        // The request is a header and a few attributes; the buffer holds 64 KiB.
        let bytes = self.buffer.get_mut(..len).ok_or(io::ErrorKind::InvalidInput)?;
        bytes.fill(0);
        message.serialize(bytes);
        self.socket.send(bytes)
    }

    /// Receives one datagram from the kernel into the buffer. Returns its length.
    pub(super) fn receive(&mut self) -> io::Result<usize> {
        // A dump continues within the read (`netlink_dump`, net/netlink/af_netlink.c), under the same lock.
        let _reading = reading::rtnl()?;
        loop {
            match self.socket.receive(self.buffer) {
                Ok(received) if !received.from_kernel => continue,
                Ok(received) if received.truncated => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "truncated answer"));
                }
                Ok(received) => return Ok(received.len),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// The errno at the start of NLMSG_DONE and NLMSG_ERROR: 0, or negative.
pub(super) fn errno(payload: &[u8]) -> io::Result<()> {
    let code = payload.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code.saturating_neg())) }
}

pub(super) fn invalid(error: netlink_packet_core::DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}
