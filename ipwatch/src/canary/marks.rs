//! What can be seen of the canary, and the records and facts that show it. Pure.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipwatch_common::{
    AddressRecord, CallEndRecord, CallRecord, ClaimRecord, Header, MoveRecord, NeighbourRecord,
    Netns, NetnsRecord, TaskRecord, Wire, kind,
};

use super::{ATTEMPTS, CONTAINER, ENDS, IPV4, IPV6, IPV6_PEERS, NEIGHBOUR_MAC, twice};
use crate::fact::TaskKey;
use crate::sources::probes::TICK;

/// An action of the canary that is reported if all is well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Mark {
    /// A child was forked.
    Fork,
    /// The child ran a program.
    Exec,
    /// The child began to exit.
    Exit,
    /// A task released its netns.
    Release,
    /// A task was freed.
    Free,
    /// The stage entered its netns.
    Join,
    /// A child was killed.
    Kill,
    /// A thread ended all others of its process.
    GroupExit,
    /// The netns was created.
    Created,
    /// Its teardown began.
    Dying,
    /// Its teardown ended.
    Gone,
    /// The IPv4 address was added.
    Ipv4Up,
    /// The IPv4 address was removed.
    Ipv4Down,
    /// The IPv6 address was added.
    Ipv6Up,
    /// The IPv6 address was removed.
    Ipv6Down,
    /// The IPv6 address became usable.
    Ipv6Ready,
    /// The peer of the IPv6 address changed.
    Ipv6Peer,
    /// The routes of the IPv6 address were removed.
    Ipv6Removed,
    /// An address turned out to be a duplicate.
    DadFailed,
    /// The device was moved.
    Moved,
    /// The neighbour entry was added.
    Neighbour,
    /// One end of the device sent an ARP request for the other.
    Claimed,
    /// The plugin was started.
    CallBegan,
    CallEnded,
    /// The netns walk listed the netns.
    NetnsListed,
    /// The task iterator listed the stage.
    TaskListed,
    /// The file iterator listed the stage's fd.
    FileListed,
}

impl Mark {
    /// The kind of event, if the kernel half only counts it for a healthy task: it writes no record, or only for tasks
    /// that live for some time. Only the growth of the counter during the canary's action can then be seen. The counter
    /// includes events of other tasks; those, too, show that the program runs and recognises such an event.
    pub(super) const fn counted(self) -> Option<u16> {
        match self {
            Mark::Fork => Some(kind::TASK_FORK),
            Mark::Exit => Some(kind::TASK_EXIT),
            Mark::Kill => Some(kind::SIGNAL),
            Mark::GroupExit => Some(kind::GROUP_EXIT),
            _ => None,
        }
    }
}

/// The content of one record, as far as needed to know whether it is the canary's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    /// When the event happened, in nanoseconds since boot.
    pub(super) at: u64,
    /// Its netns. All 0: none, or none any more.
    pub(super) netns: Netns,
    /// Its subject.
    pub(super) who: Who,
    /// Whether it is part of the end of a netns.
    pub(super) ends: bool,
    /// What it shows, if it is the canary's.
    pub(super) mark: Option<Mark>,
}

/// The subject of a record, if its netns does not identify it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    /// Only a netns.
    Netns,
    Task(TaskKey),
    /// A plugin that was started, and whether for the canary's container.
    Call(TaskKey, bool),
    /// A plugin that ended.
    CallEnd(TaskKey),
}

/// Parses a record. `None`: of a kind that the canary does not cause, or malformed.
pub(super) fn read(bytes: &[u8]) -> Option<Seen> {
    let header = Header::take(&mut &bytes[..])?;
    match header.kind {
        kind::NETNS_CREATED | kind::NETNS_DYING | kind::NETNS_GONE => {
            let record: NetnsRecord = whole(bytes)?;
            let mark = match header.kind {
                kind::NETNS_CREATED => Mark::Created,
                kind::NETNS_DYING => Mark::Dying,
                _ => Mark::Gone,
            };
            seen(header, record.netns, Who::Netns, Some(mark))
        }
        kind::TASK_FORK
        | kind::TASK_EXEC
        | kind::TASK_JOIN
        | kind::TASK_RELEASE
        | kind::TASK_FREE => {
            let record: TaskRecord = whole(bytes)?;
            let who = Who::Task(task(record.pid, record.tid, record.start));
            seen(header, record.netns, who, task_mark(header.kind))
        }
        kind::IPV4_UP..=kind::DAD_FAILED => {
            let record: AddressRecord = whole(bytes)?;
            seen(header, record.netns, Who::Netns, address_mark(header.kind, &record))
        }
        kind::DEVICE_MOVED => {
            let record: MoveRecord = whole(bytes)?;
            seen(header, record.from, Who::Netns, Some(Mark::Moved))
        }
        kind::NEIGHBOUR => {
            let record: NeighbourRecord = whole(bytes)?;
            // On a loopback device the IP of every neighbour entry is 0.0.0.0 (`arp_constructor`, net/ipv4/arp.c).
            let ours = record.has_claim != 0 && record.claim == NEIGHBOUR_MAC;
            seen(header, record.netns, Who::Netns, ours.then_some(Mark::Neighbour))
        }
        kind::CLAIM => {
            let record: ClaimRecord = whole(bytes)?;
            let ours = record.ip == ENDS[0].octets();
            seen(header, record.netns, Who::Netns, ours.then_some(Mark::Claimed))
        }
        kind::CALL_BEGAN => {
            let record: CallRecord = whole(bytes)?;
            let named = record.container_id.split(|byte| *byte == 0).next();
            let ours = named == Some(CONTAINER.as_bytes());
            let who = Who::Call(task(record.pid, record.pid, record.start), ours);
            seen(header, NOWHERE, who, Some(Mark::CallBegan))
        }
        kind::CALL_ENDED => {
            let record: CallEndRecord = whole(bytes)?;
            let who = Who::CallEnd(task(record.pid, record.pid, record.start));
            seen(header, NOWHERE, who, Some(Mark::CallEnded))
        }
        _ => None,
    }
}

const NOWHERE: Netns = Netns { cookie: 0, inode: 0, refs: 0 };

fn whole<T: Wire>(mut bytes: &[u8]) -> Option<T> {
    let record = T::take(&mut bytes)?;
    bytes.is_empty().then_some(record)
}

fn seen(header: Header, netns: Netns, who: Who, mark: Option<Mark>) -> Option<Seen> {
    let ends = matches!(
        header.kind,
        kind::NETNS_DYING
            | kind::NETNS_GONE
            | kind::IPV4_DOWN
            | kind::IPV6_DOWN
            | kind::IPV6_REMOVED
    );
    Some(Seen { at: header.time, netns, who, ends, mark })
}

fn task(pid: u32, tid: u32, start: u64) -> TaskKey {
    TaskKey { pid, tid, start: start / TICK }
}

fn task_mark(kind: u16) -> Option<Mark> {
    Some(match kind {
        kind::TASK_FORK => Mark::Fork,
        kind::TASK_EXEC => Mark::Exec,
        kind::TASK_JOIN => Mark::Join,
        kind::TASK_RELEASE => Mark::Release,
        kind::TASK_FREE => Mark::Free,
        _ => return None,
    })
}

fn address_mark(kind: u16, record: &AddressRecord) -> Option<Mark> {
    let ipv4 = |ip: Ipv4Addr| record.local[..4] == ip.octets();
    let ipv6 = |ip: Ipv6Addr| record.local == ip.octets();
    Some(match kind {
        kind::IPV4_UP if ipv4(IPV4) => Mark::Ipv4Up,
        kind::IPV4_DOWN if ipv4(IPV4) => Mark::Ipv4Down,
        kind::IPV6_UP if ipv6(IPV6) => Mark::Ipv6Up,
        kind::IPV6_DOWN if ipv6(IPV6) => Mark::Ipv6Down,
        kind::IPV6_READY if ipv6(IPV6) && record.peer == IPV6_PEERS[1].octets() => Mark::Ipv6Peer,
        kind::IPV6_READY if ipv6(IPV6) => Mark::Ipv6Ready,
        kind::IPV6_REMOVED if ipv6(IPV6) => Mark::Ipv6Removed,
        kind::DAD_FAILED if (0..ATTEMPTS).any(|attempt| ipv6(twice(attempt))) => Mark::DadFailed,
        _ => return None,
    })
}
