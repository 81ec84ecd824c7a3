//! Receives changes in every netns through three sockets.
//!
//! One socket is for links, addresses and nsids, one for neighbours, one for routes, so that a storm of neighbour or
//! route messages cannot cost an address event. The second and the third join the NSID group too, because the kernel
//! reuses nsids at once and the sockets are read at different speeds: a message must not be assigned to the netns that
//! has its nsid *now* (see [`Lag`]).
//!
//! A netns that floods is paused and read again ([`Budgets`]), so that a flood costs neither much time nor, by an overrun,
//! a reading of the whole node.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustix::net::SocketFlags;
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use tokio::sync::mpsc;

use super::budget::Budgets;
use super::netns_open;
use super::parse;
use super::requests::request_socket;
use super::sieve;
use super::socket::{BUFFER, Received, Socket};
use super::talk::Talk;
use crate::clock;
use crate::fact::{
    BootNs, Fact, NetnsRef, Observation, Origin, Source, SourceName, SourceStatus, Unreported,
};
use crate::sources::pace::Pace;
use crate::sources::ready::ready;
use crate::sources::{Closed, Emit};

/// Receive buffer in bytes: about 20,000 queued messages, which the kernel counts as 832 bytes each.
const QUEUE: usize = 16 << 20;

/// Maximum number of datagrams read before their facts are sent.
const BATCH: usize = 512;

const LINK: u32 = 1; // RTNLGRP_*, linux/rtnetlink.h
const NEIGH: u32 = 3;
const IPV4_IFADDR: u32 = 5;
const IPV4_ROUTE: u32 = 7;
const IPV6_IFADDR: u32 = 9;
const IPV6_ROUTE: u32 = 11;
const NSID: u32 = 28;

/// What must be dumped again because the kernel dropped messages. Sent after everything that was still queued has been
/// sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lost {
    /// Links, addresses or nsids.
    Links,
    Neighbours,
    Routes,
}

impl Lost {
    /// Messages about one netns that are passed on at once: of links and addresses as many as 4,000 addresses cause that are
    /// removed with their device; of the others twice as many as are kept of one netns, so that filling one, or emptying it,
    /// is no flood.
    fn at_once(self) -> u64 {
        match self {
            Lost::Links => 4_000,
            Lost::Neighbours => 8_192,
            Lost::Routes => 16_384,
        }
    }
}

/// Statistics of the sockets since the start.
#[derive(Debug, Default)]
pub struct Counters {
    pub messages: AtomicU64,
    /// Messages that could not be parsed.
    pub malformed: AtomicU64,
    /// Number of overruns: the receive buffer was full.
    pub overruns: AtomicU64,
    /// Datagrams that the kernel dropped in these overruns.
    pub dropped: AtomicU64,
}

/// The sockets, which have joined their groups and queue messages.
#[derive(Debug)]
pub struct Listener {
    links: Channel,
    neighbours: Channel,
    routes: Channel,
    own: Own,
    lag: Lag,
    counters: Arc<Counters>,
    /// The last reported status of each socket.
    told: Vec<Observation>,
}

impl Listener {
    /// Joins the groups: from now on messages are queued until [`run`](Self::run) reads them. Must be called before the
    /// first dump, so that no change is missed in between. `host` names the netns of the calling thread
    /// ([`Requests::host`](super::Requests::host)).
    ///
    /// # Errors
    /// A netlink socket cannot be opened. A missing capability is not an error; it makes the source degraded.
    pub fn open(host: NetnsRef) -> io::Result<Self> {
        let links = [LINK, IPV4_IFADDR, IPV6_IFADDR, NSID];
        let routes = [IPV4_ROUTE, IPV6_ROUTE, NSID];
        Ok(Self {
            links: Channel::open(SourceName::Netlink, Lost::Links, &links, None)?,
            neighbours: Channel::open(
                SourceName::Neighbours,
                Lost::Neighbours,
                &[NEIGH, NSID],
                None,
            )?,
            routes: Channel::open(SourceName::Routes, Lost::Routes, &routes, Some(&sieve::ROUTES))?,
            own: Own::of(host)?,
            lag: Lag::default(),
            counters: Arc::default(),
            told: Vec::new(),
        })
    }

    /// Opens new sockets after one has failed, in the calling thread's netns, which must be that of
    /// [`open`](Self::open). Messages sent in between are lost.
    ///
    /// # Errors
    /// As [`open`](Self::open); the old sockets stay.
    pub fn reopen(&mut self) -> io::Result<()> {
        let mut new = Self::open(self.own.host)?;
        for (old, new) in [
            (&self.links, &mut new.links),
            (&self.neighbours, &mut new.neighbours),
            (&self.routes, &mut new.routes),
        ] {
            (new.overruns, new.dropped_before) = (old.overruns, old.all_dropped());
        }
        let (counters, told) = (Arc::clone(&self.counters), std::mem::take(&mut self.told));
        *self = Self { counters, told, ..new };
        Ok(())
    }

    /// Makes the address socket fail whenever it is used.
    #[cfg(test)]
    pub(crate) fn break_socket(&mut self) {
        self.links.socket = Socket::broken();
    }

    #[must_use]
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Reads until it fails. `lost` should have room for a few entries: while it is full, nothing is read.
    ///
    /// # Errors
    /// [`Stopped::Closed`] when the daemon shuts down; [`Stopped::Io`] when a socket fails.
    pub async fn run(&mut self, emit: &Emit, lost: &mpsc::Sender<Lost>) -> Result<(), Stopped> {
        let Self { links, neighbours, routes, own, lag, counters, told } = self;
        let states = [&*links, neighbours, routes].map(|channel| channel.state(counters));
        let news: Vec<Observation> = states.iter().map(|state| state.what.clone()).collect();
        // The caller that restarts this reports when it works again, so an unchanged status is not repeated.
        if *told != news {
            emit.send(states.into()).await?;
            *told = news;
        }
        let (link_ready, neigh_ready) = (links.ready()?, neighbours.ready()?);
        let route_ready = routes.ready()?;
        let mut buffer = vec![0; BUFFER];
        let mut pace = Pace::new(clock::now());
        loop {
            let due = [&*links, neighbours, routes].into_iter().filter_map(|one| one.budgets.due());
            let due = due.min();
            // `biased`: addresses always come first.
            let (channel, ready) = tokio::select! {
                biased;
                ready = link_ready.readable() => (&mut *links, ready?),
                ready = neigh_ready.readable() => (&mut *neighbours, ready?),
                ready = route_ready.readable() => (&mut *routes, ready?),
                () = until(due), if due.is_some() => {
                    let facts = dropped([links, neighbours, routes]);
                    emit.send(facts).await?;
                    continue;
                }
            };
            let mut reader = Reader { own: &mut *own, lag: &mut *lag, counters: &*counters };
            let (mut facts, empty) = channel.read(&mut buffer, &mut reader)?;
            settle(ready, empty);
            facts.extend(dropped([channel]));
            emit.send(facts).await?;
            if channel.overrun && (empty || channel.since_overrun > QUEUE_LEN) {
                channel.overrun = false;
                lag.forget();
                emit.send(vec![channel.state(counters)]).await?;
                lost.send(channel.kind).await.map_err(|_| Closed)?;
                let states = [&*links, neighbours, routes].map(|channel| channel.state(counters));
                *told = states.map(|state| state.what).into();
            }
            if empty {
                pace.after_read().await;
            }
        }
    }
}

/// More datagrams than the queue can hold: after this many, everything that was queued at the overrun has been read,
/// even if a storm goes on and the queue is never empty.
const QUEUE_LEN: usize = QUEUE / 512;

/// What was dropped of netns that flood, as facts, if it must be told now.
fn dropped<const N: usize>(channels: [&mut Channel; N]) -> Vec<Fact> {
    let now = clock::now();
    let all = channels.into_iter().flat_map(|channel| channel.budgets.dropped(now));
    let fact = |(nsid, addresses)| {
        let unreported = Unreported { addresses, ..Unreported::default() };
        let what = Observation::LostIn { netns: NetnsRef::nsid(nsid), unreported };
        Fact { at: now, origin: Origin::Netlink, what }
    };
    all.map(fact).collect()
}

async fn until(due: Option<BootNs>) {
    let left = due.map_or(0, |due| due.since(clock::now()));
    tokio::time::sleep(Duration::from_nanos(left)).await;
}

fn settle(mut ready: AsyncFdReadyGuard<'_, OwnedFd>, empty: bool) {
    if empty {
        ready.clear_ready();
    }
}

/// Why [`Listener::run`] ended.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    #[error(transparent)]
    Closed(#[from] Closed),
    /// A socket failed.
    #[error("netlink socket: {0}")]
    Io(#[from] io::Error),
}

/// One socket and its status.
#[derive(Debug)]
struct Channel {
    name: SourceName,
    kind: Lost,
    socket: Socket,
    /// Why it receives less than it should.
    degraded: Option<String>,
    overrun: bool,
    since_overrun: usize,
    overruns: u64,
    dropped: u32,
    /// Datagrams dropped by the sockets that this one replaced.
    dropped_before: u64,
    budgets: Budgets,
}

impl Channel {
    fn open(
        name: SourceName,
        kind: Lost,
        groups: &[u32],
        sieve: Option<&[libc::sock_filter]>,
    ) -> io::Result<Self> {
        let socket = Socket::open(SocketFlags::NONBLOCK)?;
        if let Some(sieve) = sieve {
            socket.filter(sieve)?;
        }
        let mut degraded = None;
        if !socket.receive_buffer(QUEUE)? {
            degraded = Some("small receive buffer: CAP_NET_ADMIN is missing".to_owned());
        }
        if let Err(error) = socket.listen_all_nsid() {
            degraded = Some(format!(
                "receives events of the host's netns only: NETLINK_LISTEN_ALL_NSID (CAP_NET_BROADCAST): {error}"
            ));
        }
        for &group in groups {
            socket.join(group)?;
        }
        Ok(Self {
            name,
            kind,
            socket,
            degraded,
            overrun: false,
            since_overrun: 0,
            overruns: 0,
            dropped: 0,
            dropped_before: 0,
            budgets: Budgets::new(kind.at_once()),
        })
    }

    fn all_dropped(&self) -> u64 {
        self.dropped_before + u64::from(self.dropped)
    }

    /// A duplicate of the socket's fd, to wait on.
    fn ready(&self) -> io::Result<AsyncFd<OwnedFd>> {
        ready(self.socket.as_fd().try_clone_to_owned()?, Interest::READABLE)
    }

    /// Reads until the queue is empty (returns true) or a batch is full (returns false).
    fn read(
        &mut self,
        buffer: &mut [u8],
        reader: &mut Reader<'_>,
    ) -> io::Result<(Vec<Fact>, bool)> {
        let mut facts = Vec::new();
        for _ in 0..BATCH {
            match self.socket.receive(buffer) {
                Ok(received) => {
                    self.since_overrun = self.since_overrun.saturating_add(1);
                    if received.truncated {
                        self.lost(reader.counters); // no message is this large: cannot be told
                    }
                    if received.from_kernel {
                        let bytes = &buffer[..received.len];
                        reader.datagram(self.kind, bytes, received, &mut self.budgets, &mut facts);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok((facts, true));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Returned once, before the messages that are still queued (`netlink_overrun`, af_netlink.c).
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    self.lost(reader.counters);
                }
                Err(error) => return Err(error),
            }
        }
        Ok((facts, false))
    }

    fn lost(&mut self, counters: &Counters) {
        self.overrun = true;
        self.since_overrun = 0;
        self.overruns += 1;
        counters.overruns.fetch_add(1, Relaxed);
        if let Ok(dropped) = self.socket.dropped() {
            counters.dropped.fetch_add(u64::from(dropped.wrapping_sub(self.dropped)), Relaxed);
            self.dropped = dropped;
        }
    }

    /// The status, as a fact.
    fn state(&self, counters: &Counters) -> Fact {
        let mut detail = self.degraded.clone().unwrap_or_default();
        if self.overruns > 0 {
            let separator = if detail.is_empty() { "" } else { "; " };
            detail += &format!(
                "{separator}overrun {} times since the start ({} messages), each time read again",
                self.overruns,
                self.all_dropped()
            );
        }
        tracing::debug!(source = %self.name, detail, ?counters, "netlink");
        let degraded = self.degraded.is_some();
        let status = if degraded { SourceStatus::Degraded } else { SourceStatus::Active };
        let source = Source { name: self.name.into(), status, detail };
        Fact { at: clock::now(), origin: Origin::Netlink, what: Observation::Source(source) }
    }
}

/// What is needed to parse a datagram.
struct Reader<'a> {
    own: &'a mut Own,
    lag: &'a mut Lag,
    counters: &'a Counters,
}

impl Reader<'_> {
    fn datagram(
        &mut self,
        kind: Lost,
        bytes: &[u8],
        received: Received,
        budgets: &mut Budgets,
        facts: &mut Vec<Fact>,
    ) {
        let at = clock::now();
        for message in parse::messages(bytes) {
            self.counters.messages.fetch_add(1, Relaxed);
            let mut put = |what| facts.push(Fact { at, origin: Origin::Netlink, what });
            let told = message.and_then(|message| {
                self.message(kind, message, (received.nsid, at), budgets, &mut put)
            });
            if let Err(error) = told {
                self.counters.malformed.fetch_add(1, Relaxed);
                tracing::debug!(?kind, ?received, %error, "malformed message");
            }
        }
    }

    fn message(
        &mut self,
        kind: Lost,
        message: parse::Message<'_>,
        (from, at): (Option<i32>, BootNs),
        budgets: &mut Budgets,
        put: &mut impl FnMut(Observation),
    ) -> Result<(), netlink_packet_core::DecodeError> {
        let netns = self.own.netns(from);
        if matches!(message.kind, libc::RTM_NEWNSID | libc::RTM_DELNSID) {
            // An nsid in the numbering of another netns means nothing here.
            if netns != self.own.host {
                return Ok(());
            }
            let Some(id) = parse::nsid(message.payload)? else { return Ok(()) };
            if message.kind == libc::RTM_DELNSID {
                budgets.ended(id);
            }
            self.numbered(kind, message.kind, id).into_iter().for_each(put);
            return Ok(());
        }
        // The two sockets have not both read that the former netns of this nsid ended.
        if from.is_some_and(|nsid| self.lag.disagree(kind, nsid)) {
            tracing::trace!(?netns, ?kind, "a netns that changed its nsid");
            return Ok(());
        }
        if netns != self.own.host && from.is_some_and(|nsid| !budgets.take(nsid, at)) {
            return Ok(());
        }
        parse::tell(message.kind, message.payload, netns, put)
    }

    /// Handles an nsid that was assigned or freed. Only the first socket reports it: the copy of another socket, which
    /// is read later, would end the next netns with that nsid.
    fn numbered(&mut self, kind: Lost, message: u16, nsid: i32) -> Option<Observation> {
        let dying = message == libc::RTM_DELNSID;
        if dying {
            self.lag.ended(kind, nsid);
        }
        match (kind, dying) {
            (Lost::Neighbours | Lost::Routes, _) => None,
            (Lost::Links, true) => Some(Observation::NetnsDying { netns: NetnsRef::nsid(nsid) }),
            (Lost::Links, false) => {
                let netns = match self.own.learn(nsid) {
                    true => NetnsRef { nsid: Some(nsid), ..self.own.host },
                    false => NetnsRef::nsid(nsid),
                };
                Some(Observation::Netns { netns })
            }
        }
    }
}

/// The host's netns, and the nsid that it has *in itself*.
///
/// It has none until a request from the host asks about a device in another netns whose peer is on the host:
/// `peernet2id_alloc(host, host)` then assigns one and announces it like that of any other netns. On 6.18 the host's
/// own messages still arrive without that nsid; a message that carries it is treated as the host's.
#[derive(Debug)]
struct Own {
    host: NetnsRef,
    fd: OwnedFd,
    socket: Socket,
    buffer: Vec<u8>,
    sequence: u32,
    nsid: Option<i32>,
}

impl Own {
    fn of(host: NetnsRef) -> io::Result<Self> {
        let host = NetnsRef { nsid: None, ..host };
        let (fd, socket) = (netns_open::own()?, request_socket()?);
        let mut own = Self { host, fd, socket, buffer: vec![0; 4096], sequence: 0, nsid: None };
        own.ask();
        Ok(own)
    }

    /// Handles an nsid that was assigned. Returns whether it was assigned to the host itself.
    fn learn(&mut self, given: i32) -> bool {
        if self.nsid.is_none() {
            self.ask();
        }
        self.nsid == Some(given)
    }

    fn ask(&mut self) {
        let Self { fd, socket, buffer, sequence, .. } = self;
        match (Talk { socket, buffer, sequence }).nsid(fd.as_fd()) {
            Ok(nsid) => self.nsid = nsid,
            Err(error) => {
                self.socket.discard();
                tracing::debug!(%error, "own nsid");
            }
        }
    }

    /// The netns of a message that arrived with this nsid.
    fn netns(&self, from: Option<i32>) -> NetnsRef {
        match from {
            Some(nsid) if self.nsid != Some(nsid) => NetnsRef::nsid(nsid),
            _ => self.host,
        }
    }
}

/// For each nsid, how many more ends of it the first socket has read than the second or the third.
///
/// While that number is not 0, a message of the latter with that nsid may belong to the dead netns or to the next one,
/// and is dropped. Nothing is lost: the next netns is dumped after the first socket has reported it. After an overrun,
/// the numbers may never become equal; an entry therefore expires after [`APART`].
#[derive(Debug, Default)]
struct Lag(HashMap<(Lost, i32), (i32, BootNs)>);

/// Nanoseconds. The sockets never lag behind each other for this long.
const APART: u64 = 5_000_000_000;

impl Lag {
    fn ended(&mut self, read_by: Lost, nsid: i32) {
        match read_by {
            Lost::Links => {
                self.lead(Lost::Neighbours, nsid, 1);
                self.lead(Lost::Routes, nsid, 1);
            }
            behind => self.lead(behind, nsid, -1),
        }
    }

    fn lead(&mut self, over: Lost, nsid: i32, by: i32) {
        let now = clock::now();
        let (lead, told) = self.0.entry((over, nsid)).or_default();
        if now.since(*told) >= APART {
            *lead = 0;
        }
        *lead += by;
        *told = now;
        if *lead == 0 {
            self.0.remove(&(over, nsid));
        }
    }

    fn disagree(&self, reader: Lost, nsid: i32) -> bool {
        let known = self.0.get(&(reader, nsid));
        known.is_some_and(|(_, told)| clock::now().since(*told) < APART)
    }

    /// An overrun may have dropped the end of an nsid; the dumps that follow repair the state.
    fn forget(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests;
