//! Learns a netns: its names, then its links, addresses, neighbours and routes, and the nsids that it uses for the
//! netns at the other ends of its links.

use std::collections::BTreeSet;
use std::io;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::SocketFlags;
use rustix::thread::ThreadNameSpaceType;

use super::netns_open::{self, Nsfs};
use super::socket::{BUFFER, Socket};
use super::talk::{Table, Talk};
use super::{diag, driver};
use crate::clock;
use crate::fact::NetnsPath;
use crate::fact::{Fact, Holder, NetnsRef, Observation, Origin};

/// Maximum number of neighbour entries of one netns that are looked up one by one. For more entries, a dump of the
/// table costs less.
const MOST_LOOKED_UP: usize = 256;

/// Queries the kernel about netns, one at a time. It blocks, and its thread enters other netns for the few microseconds
/// that it takes to open a socket there: it needs its own thread.
///
/// No socket or fd of a netns is kept beyond one call, because it would keep a netns alive whose end is to be observed.
#[derive(Debug)]
pub struct Requests {
    own: OwnedFd,
    host: NetnsRef,
    nsfs: Nsfs,
    socket: Socket,
    buffer: Vec<u8>,
    sequence: u32,
    stranded: bool,
    /// `setns` applies to one thread: this value is invalid on any other.
    not_send: PhantomData<*const ()>,
}

/// Why a netns could not be adopted.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// No door could be opened. The netns may have ended, or a door exists that is not known yet.
    #[error("the network namespace cannot be opened: {0}")]
    Closed(String),
    /// A door led to another netns: a pid, a path or an inode was reused.
    #[error("expected the network namespace {wanted:?}, but found {found:?}")]
    Mismatch {
        /// Every name that was known of the wanted netns.
        wanted: NetnsRef,
        /// The names of the netns that was opened last.
        found: NetnsRef,
    },
    /// The kernel refused a request that should succeed.
    #[error("{0}: {1}")]
    Kernel(&'static str, #[source] io::Error),
    /// The thread is in another netns and could not return. The thread must end now, and this value with it.
    #[error("the thread could not return to the host's netns")]
    Stranded,
}

impl AdoptError {
    /// Whether the thread must end.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        matches!(self, AdoptError::Stranded)
    }
}

impl Requests {
    /// For the netns of the calling thread, which is taken to be the host's.
    ///
    /// # Errors
    /// A netlink socket cannot be opened, or `/proc` cannot be read.
    pub fn new() -> io::Result<Self> {
        let own = netns_open::own()?;
        let nsfs = Nsfs::of(&own)?;
        let socket = request_socket()?;
        let host = NetnsRef {
            cookie: socket.netns_cookie().ok(),
            inode: Some(nsfs.inode(&own)?),
            nsid: None,
        };
        Ok(Self {
            own,
            host,
            nsfs,
            socket,
            buffer: vec![0; BUFFER],
            sequence: 0,
            stranded: false,
            not_send: PhantomData,
        })
    }

    /// The names of the host's netns: cookie (5.14+) and inode; never an nsid.
    #[must_use]
    pub fn host(&self) -> NetnsRef {
        self.host
    }

    /// Dumps the links, addresses, neighbours and routes of the host.
    ///
    /// # Errors
    /// [`AdoptError::Stranded`]. Any other failure makes a dump incomplete.
    pub fn dump_host(&mut self) -> Result<Vec<Fact>, AdoptError> {
        self.usable()?;
        let mut facts = Vec::new();
        let mut talk =
            Talk { socket: &self.socket, buffer: &mut self.buffer, sequence: &mut self.sequence };
        dump_own(&mut talk, self.host, &mut facts);
        dump(&mut talk, Table::Neighbours, self.host, &mut facts);
        driver::name_all(&mut facts);
        Ok(facts)
    }

    /// Opens a netns through the first door that works and that agrees with every name in `netns`. Reads its other
    /// names, and assigns an nsid if it has none (unless `observe_only`), so that its events are received from then on.
    /// Only then dumps its contents: all links, addresses and routes; of its neighbours only the gateways and the
    /// entries in `neighbours`, which the caller already knows.
    ///
    /// # Errors
    /// No door opens it. A dump that fails is not an error; its [`Observation::Ended`] is then not complete.
    pub fn adopt(
        &mut self,
        netns: NetnsRef,
        doors: &[NetnsPath],
        neighbours: &[(u32, IpAddr)],
        observe_only: bool,
    ) -> Result<Vec<Fact>, AdoptError> {
        self.usable()?;
        let (fd, socket, mut found) = self.enter_any(netns, doors)?;
        if found.nsid.is_none() && !observe_only {
            found.nsid = self.assign(fd.as_fd())?;
        }
        let user = netns_open::user_of(fd.as_fd());
        drop(fd);
        let mut facts = vec![seen(Observation::Netns { netns: found })];
        match user {
            Ok(user) => {
                let (uid, nested) = (user.unwrap_or(0), user.is_some());
                facts.push(seen(Observation::NetnsUser { netns: found, uid, nested }));
            }
            Err(error) => tracing::debug!(netns = ?found, %error, "whose it is"),
        }
        // A socket of that netns, not a dump by nsid from here: neighbours need it anyway, and a
        // dump from here would number IFLA_LINK_NETNSID as the host does, not as that netns does
        // (`rtnl_dump_ifinfo` fills it for the asking netns, `rtmsg_ifinfo` for the device's own).
        let mut talk =
            Talk { socket: &socket, buffer: &mut self.buffer, sequence: &mut self.sequence };
        dump_own(&mut talk, found, &mut facts);
        look_up_neighbours(&mut talk, found, neighbours, &mut facts);
        // `socket` still holds the netns, so its nsid cannot be reused.
        let numbers = facts.iter().filter_map(peer_nsid).collect();
        self.tell_peers(found, numbers, &mut facts);
        driver::name_all(&mut facts);
        Ok(facts)
    }

    /// Resolves nsids in the numbering of a netns to the netns that they mean.
    ///
    /// # Errors
    /// No door opens it. Nsids that lead nowhere are left out.
    pub fn peers(
        &mut self,
        netns: NetnsRef,
        doors: &[NetnsPath],
        numbers: BTreeSet<i32>,
    ) -> Result<Vec<Fact>, AdoptError> {
        self.usable()?;
        // While one of these is open, the nsid cannot be reused.
        let (_fd, _socket, found) = self.enter_any(netns, doors)?;
        let mut facts = Vec::new();
        self.tell_peers(found, numbers, &mut facts);
        Ok(facts)
    }

    /// Resolves the nsids by which the links of `netns` name the netns of their peers.
    ///
    /// The peer is nearly always in the host's netns, which need not have an nsid for itself, so that a single request
    /// suffices. Otherwise all nsids of the netns are requested at once (`rtnl_net_dumpid`).
    fn tell_peers(&mut self, netns: NetnsRef, mut unknown: BTreeSet<i32>, facts: &mut Vec<Fact>) {
        let Some(nsid) = netns.nsid.filter(|_| !unknown.is_empty()) else { return };
        // The facts carry the time of the request: if a peer ends meanwhile, the answer must not revive it.
        let (host, at) = (self.host, clock::now());
        let mut talk =
            Talk { socket: &self.socket, buffer: &mut self.buffer, sequence: &mut self.sequence };
        let mut known = Vec::new();
        match talk.nsid_in(nsid, self.own.as_fd()) {
            Ok(Some(there)) if unknown.remove(&there) => known.push((there, host)),
            Ok(_) => {}
            Err(error) => tracing::debug!(?netns, %error, "the host's number there"),
        }
        if !unknown.is_empty() {
            match talk.numbers(nsid) {
                Ok(pairs) => {
                    let wanted = pairs.into_iter().filter(|(there, _)| unknown.contains(there));
                    known.extend(wanted.map(|(there, here)| (there, NetnsRef::nsid(here))));
                }
                Err(error) => tracing::debug!(?netns, %error, "its numbers for other netns"),
            }
        }
        facts.extend(known.into_iter().map(|(nsid, peer)| {
            let what = Observation::PeerNetns { netns, nsid, peer };
            Fact { at, origin: Origin::Netlink, what }
        }));
    }

    /// Dumps links and addresses of a netns again by its nsid, without a door. Neighbours cannot be dumped that way and
    /// are not reported.
    ///
    /// The nsid may belong to another netns by now: a caller that knows a door should use [`adopt`](Self::adopt), which
    /// checks.
    ///
    /// # Errors
    /// [`AdoptError::Closed`] if the netns has no nsid, or if its nsid is no longer assigned.
    pub fn dump(&mut self, netns: NetnsRef) -> Result<Vec<Fact>, AdoptError> {
        self.usable()?;
        let nsid = netns.nsid.ok_or_else(|| AdoptError::Closed("no nsid".to_owned()))?;
        // Without strict checking the kernel would dump this thread's own netns.
        if !self.socket.strict().map_err(|error| AdoptError::Kernel("strict checking", error))? {
            let old = "before 4.20 the kernel does not report other netns by nsid";
            return Err(AdoptError::Closed(old.to_owned()));
        }
        let mut facts = Vec::new();
        let mut talk = self.talk();
        for table in [Table::Links, Table::Addresses] {
            if let Err(error) = talk.dump(table, netns, Some(nsid), &mut facts) {
                tracing::debug!(?netns, ?table, %error, "dump by nsid");
                if error.raw_os_error() == Some(libc::EINVAL) {
                    return Err(AdoptError::Closed(format!("nsid {nsid} is nobody's")));
                }
            }
        }
        renumber(&mut talk, nsid, &mut facts);
        driver::name_all(&mut facts);
        Ok(facts)
    }

    /// Lists the TCP connections in a netns that have no process and that the kernel is still closing. They hold the
    /// netns.
    ///
    /// # Errors
    /// No door opens it. Also [`AdoptError::Closed`] if the kernel does not support the request (`CONFIG_INET_DIAG`).
    pub fn orphans(
        &mut self,
        netns: NetnsRef,
        doors: &[NetnsPath],
    ) -> Result<Vec<Holder>, AdoptError> {
        self.usable()?;
        let (fd, ..) = self.enter_any(netns, doors)?;
        let socket = match self.visit(fd.as_fd(), diag_socket) {
            Err(AdoptError::Kernel(_, error)) => return Err(diag_error(error)),
            socket => socket?,
        };
        drop(fd);
        let mut talk =
            Talk { socket: &socket, buffer: &mut self.buffer, sequence: &mut self.sequence };
        diag::orphans(&mut talk).map_err(diag_error)
    }

    /// Enters through the first door that leads to `wanted`. Returns an fd and a socket of the netns, and its names.
    fn enter_any(
        &mut self,
        wanted: NetnsRef,
        doors: &[NetnsPath],
    ) -> Result<(OwnedFd, Socket, NetnsRef), AdoptError> {
        let (mut wrong, mut closed) = (None, Vec::new());
        for door in doors {
            match self.enter(wanted, door) {
                Err(error) if error.is_fatal() => return Err(error),
                Err(AdoptError::Closed(why)) => closed.push(why),
                Err(error) => wrong = Some(error),
                Ok(entered) => return Ok(entered),
            }
        }
        // A door to a wrong netns is more informative than a closed door.
        Err(wrong.unwrap_or_else(|| match closed.as_slice() {
            [] => AdoptError::Closed("no door is known".to_owned()),
            all => AdoptError::Closed(all.join("; ")),
        }))
    }

    fn enter(
        &mut self,
        wanted: NetnsRef,
        door: &NetnsPath,
    ) -> Result<(OwnedFd, Socket, NetnsRef), AdoptError> {
        let closed = |error: io::Error| AdoptError::Closed(format!("{door:?}: {error}"));
        let fd = self.nsfs.open(door, wanted).map_err(closed)?;
        let inode = Some(self.nsfs.inode(&fd).map_err(closed)?);
        let mut found = NetnsRef { inode, ..NetnsRef::default() };
        // The inode is compared first, which avoids entering a wrong netns.
        agree(wanted, found)?;
        if inode == self.host.inode {
            return Err(AdoptError::Mismatch { wanted, found: self.host }); // never given an nsid
        }
        let socket = self.visit(fd.as_fd(), request_socket).map_err(|error| match error {
            AdoptError::Kernel("setns", error) => closed(error),
            error => error,
        })?;
        found.cookie = socket.netns_cookie().ok();
        agree(wanted, found)?;
        let nsid = self.talk().nsid(fd.as_fd());
        found.nsid = nsid.map_err(|error| AdoptError::Kernel("RTM_GETNSID", error))?;
        if wanted.nsid.is_some() && wanted.nsid != found.nsid {
            return Err(AdoptError::Mismatch { wanted, found });
        }
        Ok((fd, socket, found))
    }

    /// Opens a socket in another netns. The socket stays in that netns wherever it is used, so the thread is away only
    /// for a few system calls.
    fn visit(
        &mut self,
        netns: BorrowedFd<'_>,
        make: fn() -> io::Result<Socket>,
    ) -> Result<Socket, AdoptError> {
        enter_netns(netns).map_err(|error| AdoptError::Kernel("setns", error.into()))?;
        let socket = make();
        if enter_netns(self.own.as_fd()).is_err() {
            self.stranded = true;
            return Err(AdoptError::Stranded);
        }
        socket.map_err(|error| AdoptError::Kernel("a socket in another netns", error))
    }

    fn assign(&mut self, netns: BorrowedFd<'_>) -> Result<Option<i32>, AdoptError> {
        let mut talk = self.talk();
        match talk.assign_nsid(netns) {
            // EEXIST: another process assigned an nsid since the check.
            Err(error) if error.raw_os_error() != Some(libc::EEXIST) => {
                Err(AdoptError::Kernel("RTM_NEWNSID", error))
            }
            _ => talk.nsid(netns).map_err(|error| AdoptError::Kernel("RTM_GETNSID", error)),
        }
    }

    fn talk(&mut self) -> Talk<'_> {
        Talk { socket: &self.socket, buffer: &mut self.buffer, sequence: &mut self.sequence }
    }

    fn usable(&self) -> Result<(), AdoptError> {
        if self.stranded { Err(AdoptError::Stranded) } else { Ok(()) }
    }
}

/// A blocking socket for requests, in the netns of the calling thread. Requests about that netns work without strict
/// checking: the parser skips what was not requested.
pub(super) fn request_socket() -> io::Result<Socket> {
    let socket = Socket::open(SocketFlags::empty())?;
    socket.strict()?;
    // The kernel answers within the send; the timeout only matters if an answer is lost.
    socket.receive_timeout(Duration::from_secs(5))?;
    Ok(socket)
}

/// A kernel without `sock_diag` for TCP returns ENOENT (`inet_diag_dump`), one without `sock_diag` EPROTONOSUPPORT.
fn diag_error(error: io::Error) -> AdoptError {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::EPROTONOSUPPORT | libc::EOPNOTSUPP) => {
            AdoptError::Closed(format!("sock_diag: {error}"))
        }
        _ => AdoptError::Kernel("sock_diag", error),
    }
}

fn diag_socket() -> io::Result<Socket> {
    let socket = Socket::diag()?;
    socket.receive_timeout(Duration::from_secs(1))?;
    Ok(socket)
}

fn enter_netns(netns: BorrowedFd<'_>) -> rustix::io::Result<()> {
    rustix::thread::move_into_thread_name_spaces(netns, ThreadNameSpaceType::NETWORK)
}

/// Dumps everything in a netns except its neighbours.
fn dump_own(talk: &mut Talk<'_>, netns: NetnsRef, facts: &mut Vec<Fact>) {
    dump(talk, Table::Links, netns, facts);
    if facts.iter().any(is_bridge) {
        dump(talk, Table::Ports, netns, facts);
    }
    dump(talk, Table::Addresses, netns, facts);
    dump(talk, Table::Routes, netns, facts);
}

fn dump(talk: &mut Talk<'_>, table: Table, netns: NetnsRef, facts: &mut Vec<Fact>) {
    if let Err(error) = talk.dump(table, netns, None, facts) {
        tracing::debug!(?netns, ?table, %error, "dump");
    }
}

/// Looks up a netns's neighbours: its gateways, and the `known` entries. `facts` must contain its routes. Falls back to
/// a dump.
fn look_up_neighbours(
    talk: &mut Talk<'_>,
    netns: NetnsRef,
    known: &[(u32, IpAddr)],
    facts: &mut Vec<Fact>,
) {
    let hops = facts.iter().filter_map(|fact| match &fact.what {
        Observation::Route { route, .. } => Some(&route.hops),
        _ => None,
    });
    let gateways = hops.flatten().filter_map(|hop| Some((hop.ifindex, hop.gateway?)));
    let keys: BTreeSet<_> = gateways.chain(known.iter().copied()).collect();
    if keys.len() <= MOST_LOOKED_UP {
        match talk.neighbours(&keys, netns, facts) {
            Ok(()) => return,
            Err(error) => tracing::debug!(?netns, %error, "neighbours by key"),
        }
    }
    dump(talk, Table::Neighbours, netns, facts);
}

fn is_bridge(fact: &Fact) -> bool {
    matches!(&fact.what, Observation::Link { link, .. } if link.kind.as_deref() == Some("bridge"))
}

fn peer_nsid(fact: &Fact) -> Option<i32> {
    match &fact.what {
        Observation::Link { link, .. } => link.peer_nsid,
        _ => None,
    }
}

/// Translates the `peer_nsid`s of a dump by nsid, which the kernel gives in the requesting netns's numbering, to the
/// numbering of the netns that contains the links.
fn renumber(talk: &mut Talk<'_>, seen_from: i32, facts: &mut [Fact]) {
    let mut known: Option<(i32, Option<i32>)> = None; // nearly always all peers are in one netns
    for fact in facts {
        let Observation::Link { link, .. } = &mut fact.what else { continue };
        let Some(here) = link.peer_nsid else { continue };
        let there = match known {
            Some((nsid, there)) if nsid == here => there,
            _ => talk.translate(here, seen_from).ok().flatten(),
        };
        known = Some((here, there));
        link.peer_nsid = there;
        if there.is_none() {
            link.peer = None; // an index without its netns would be looked up in the wrong one
        }
    }
}

/// Checks that the cookie and the inode are equal if both sides know them.
fn agree(wanted: NetnsRef, found: NetnsRef) -> Result<(), AdoptError> {
    fn differ<T: PartialEq>(one: Option<T>, other: Option<T>) -> bool {
        matches!((one, other), (Some(one), Some(other)) if one != other)
    }
    if differ(wanted.cookie, found.cookie) || differ(wanted.inode, found.inode) {
        return Err(AdoptError::Mismatch { wanted, found });
    }
    Ok(())
}

fn seen(what: Observation) -> Fact {
    Fact { at: clock::now(), origin: Origin::Netlink, what }
}

#[cfg(test)]
mod tests;
