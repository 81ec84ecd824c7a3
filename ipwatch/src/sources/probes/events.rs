//! Turns the kernel half's records into facts. Pure, except that the file of a CNI plugin is checked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};

use ipwatch_common::{
    AF_INET, AF_INET6, ARP_REQUEST, AddressRecord, CallEndRecord, CallRecord, CallRefusedRecord,
    ClaimRecord, FileRecord, Header, MoveRecord, NeighbourRecord, NetnsRecord, TaskRecord, Wire,
    kind,
};

use super::calls;
use crate::fact::{
    Address, AddressKey, BootNs, Claim, ClaimKind, Fact, Holder, Mac, Name, Neighbour, NetnsRef,
    Observation, Origin, Task, TaskKey,
};

/// `include/linux/sched.h`: the task is in `do_exit`.
pub(super) const PF_EXITING: u32 = 0x4;
/// `SIGKILL` as a bit of a signal set.
pub(super) const KILL_BIT: u64 = 1 << 8;
/// Nanoseconds in one tick of `/proc/PID/stat`: USER_HZ is 100 everywhere except on Alpha.
pub(crate) const TICK: u64 = 10_000_000;
/// `include/uapi/linux/neighbour.h`.
const NUD_VALID: u8 = 0xde;
const NUD_NOARP: u8 = 0x40;
const NUD_PERMANENT: u8 = 0x80;
/// `include/net/neighbour.h`.
const NEIGH_UPDATE_F_OVERRIDE: u32 = 0x1;
/// Bit 7 since 5.16 and bit 31 before, where bit 7 was unused.
const NEIGH_UPDATE_F_ADMIN: u32 = 0x8000_0080;

/// A record that no version of the kernel half writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a record of kind {kind} and {size} bytes")]
pub(super) struct Malformed {
    kind: u16,
    size: usize,
}

/// Number of records read, by kind.
#[derive(Debug, Default)]
pub(super) struct Counters([AtomicU64; kind::COUNT]);

impl Counters {
    pub(super) fn count(&self, kind: u16) {
        if let Some(counter) = self.0.get(usize::from(kind)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn seen(&self, kind: u16) -> u64 {
        self.0.get(usize::from(kind)).map_or(0, |counter| counter.load(Ordering::Relaxed))
    }
}

/// Appends the facts of one record. Returns its kind.
///
/// # Errors
/// [`Malformed`]; nothing was appended.
pub(super) fn decode(bytes: &[u8], facts: &mut Vec<Fact>) -> Result<u16, Malformed> {
    let mut rest = bytes;
    let header = Header::take(&mut rest).ok_or(Malformed { kind: 0, size: bytes.len() })?;
    let malformed = Malformed { kind: header.kind, size: bytes.len() };
    if usize::from(header.size) != bytes.len() {
        return Err(malformed);
    }
    let at = BootNs(header.time);
    let origin = if header.kind == kind::CLAIM_ON_WIRE { Origin::Wire } else { Origin::Probe };
    let mut say = |what| facts.push(Fact { at, origin, what });
    match header.kind {
        kind::NETNS_CREATED | kind::NETNS_DYING | kind::NETNS_GONE => {
            say(netns_event(&whole::<NetnsRecord>(bytes).ok_or(malformed)?));
        }
        kind::TASK_FORK
        | kind::TASK_EXEC
        | kind::TASK_JOIN
        | kind::TASK_RELEASE
        | kind::TASK_FREE => {
            let record = whole::<TaskRecord>(bytes).ok_or(malformed)?;
            // Our own threads enter netns briefly to read them, and hold none. A task without a number in our pid
            // namespace could only be mistaken for another one.
            if record.pid != std::process::id() && is_shown(&record) {
                say(task_event(&record));
            }
        }
        kind::IPV4_UP..=kind::DAD_FAILED => {
            let record = whole::<AddressRecord>(bytes).ok_or(malformed)?;
            say(address_event(&record).ok_or(malformed)?);
        }
        kind::DEVICE_MOVED => {
            let record = whole::<MoveRecord>(bytes).ok_or(malformed)?;
            let (netns, to) = (netns_ref(&record.from), netns_ref(&record.to));
            // A move into the same netns changes nothing in the kernel, but succeeds (`__dev_change_net_namespace`,
            // net/core/dev.c, 5.10 to 6.18): the device keeps its addresses.
            if netns != to {
                say(Observation::LinkGone { netns, ifindex: record.from_ifindex });
            }
        }
        kind::NEIGHBOUR => {
            let record = whole::<NeighbourRecord>(bytes).ok_or(malformed)?;
            say(neighbour_event(&record).ok_or(malformed)?);
        }
        kind::CLAIM | kind::CLAIM_ON_WIRE => {
            say(claim_event(&whole::<ClaimRecord>(bytes).ok_or(malformed)?));
        }
        kind::CALL_BEGAN => {
            let record = whole::<CallRecord>(bytes).ok_or(malformed)?;
            // `None` if the command is not a CNI command: the program is in a plugin directory, but is not run as a
            // plugin.
            let began = calls::began(&record);
            // The file is checked only for an actual run.
            let doubtful = began.is_some() && calls::is_doubtful(&record);
            let said = if doubtful { Some(calls::refused(Name::PluginFile)) } else { began };
            said.into_iter().for_each(say);
        }
        kind::CALL_REFUSED => {
            let _: CallRefusedRecord = whole(bytes).ok_or(malformed)?;
            say(calls::refused(Name::PluginRun));
        }
        kind::CALL_ENDED => {
            say(calls::ended(&whole::<CallEndRecord>(bytes).ok_or(malformed)?));
        }
        _ => return Err(malformed),
    }
    Ok(header.kind)
}

/// Parses a record that must fill `bytes` completely.
pub(super) fn whole<T: Wire>(mut bytes: &[u8]) -> Option<T> {
    let record = T::take(&mut bytes)?;
    bytes.is_empty().then_some(record)
}

pub(super) fn netns_ref(netns: &ipwatch_common::Netns) -> NetnsRef {
    NetnsRef {
        cookie: (netns.cookie != 0).then_some(netns.cookie),
        inode: (netns.inode != 0).then_some(netns.inode),
        nsid: None,
    }
}

fn netns_event(record: &NetnsRecord) -> Observation {
    let netns = netns_ref(&record.netns);
    match record.header.kind {
        kind::NETNS_CREATED => Observation::NetnsCreated { netns },
        kind::NETNS_DYING => Observation::NetnsDying { netns },
        _ => Observation::NetnsGone { netns },
    }
}

fn task_event(record: &TaskRecord) -> Observation {
    match record.header.kind {
        kind::TASK_RELEASE | kind::TASK_FREE => {
            Observation::TaskReleased { task: task_key(record) }
        }
        _ => Observation::Task(task(record, None)),
    }
}

pub(super) fn task_key(record: &TaskRecord) -> TaskKey {
    TaskKey { pid: record.pid, tid: record.tid, start: record.start / TICK }
}

pub(super) fn task(record: &TaskRecord, state: Option<char>) -> Task {
    Task {
        key: task_key(record),
        netns: netns_ref(&record.netns),
        comm: comm(&record.comm),
        parent: (record.parent != 0).then_some(record.parent),
        exiting: record.flags & PF_EXITING != 0,
        killed: record.pending & KILL_BIT != 0,
        state,
        idle: (record.idle != 0).then_some(record.idle),
    }
}

/// Whether a task is visible in the daemon's pid namespace.
pub(super) fn is_shown(record: &TaskRecord) -> bool {
    record.pid != 0 && record.tid != 0
}

/// A task as reported by the task iterator.
pub(super) fn task_seen(record: &TaskRecord) -> Observation {
    Observation::Task(task(record, Some(state_letter(record.state, record.exit_state))))
}

/// A file as reported by the file iterator.
pub(super) fn file_seen(record: &FileRecord) -> Observation {
    let FileRecord { pid, fd, .. } = *record;
    let comm = comm(&record.comm);
    let holder = match record.socket {
        0 => Holder::Fd { pid, fd, comm },
        _ => Holder::Socket { pid, fd, comm },
    };
    Observation::Holder { netns: netns_ref(&record.netns), holder }
}

/// The state letter as in `/proc/PID/stat`: `__task_state_index` of include/linux/sched.h and `task_state_array` of
/// fs/proc/array.c, 6.1 to 6.18.
fn state_letter(state: u32, exit_state: u32) -> char {
    const TASK_IDLE: u32 = 0x402;
    const TASK_RTLOCK_WAIT: u32 = 0x1000;
    const TASK_FROZEN: u32 = 0x8000;
    /// TASK_REPORT: the states below TASK_DEAD.
    const REPORTED: u32 = 0x7f;
    if state & TASK_IDLE == TASK_IDLE {
        return 'I';
    }
    let hidden = state & (TASK_RTLOCK_WAIT | TASK_FROZEN) != 0;
    let reported = if hidden { 0x2 } else { (state | exit_state) & REPORTED };
    let letters = ['R', 'S', 'D', 'T', 't', 'X', 'Z', 'P'];
    // fls(): the highest bit is the index.
    letters.get((u32::BITS - reported.leading_zeros()) as usize).copied().unwrap_or('?')
}

/// A task name of at most 15 bytes, which may be any bytes.
pub(super) fn comm(bytes: &[u8; 16]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn ip(family: u8, bytes: [u8; 16]) -> Option<IpAddr> {
    match family {
        AF_INET => bytes.first_chunk::<4>().map(|four| Ipv4Addr::from(*four).into()),
        AF_INET6 => Some(Ipv6Addr::from(bytes).into()),
        _ => None,
    }
}

fn address_event(record: &AddressRecord) -> Option<Observation> {
    let netns = netns_ref(&record.netns);
    let local = ip(record.family, record.local)?;
    let peer = ip(record.family, record.peer)?;
    let ifindex = record.ifindex;
    let key = AddressKey {
        ifindex,
        local,
        prefix_len: record.prefix_len,
        // For IPv6, an unspecified peer means that there is none.
        peer: (peer != local && (local.is_ipv4() || !peer.is_unspecified())).then_some(peer),
    };
    Some(match record.header.kind {
        kind::IPV4_DOWN | kind::IPV6_DOWN | kind::IPV6_REMOVED => {
            Observation::AddressGone { netns, key }
        }
        kind::DAD_FAILED => {
            let offender = (record.has_offender != 0).then_some(Mac(record.offender));
            Observation::DadFailed { netns, ifindex, ip: local, offender }
        }
        _ => {
            let scope = match local {
                IpAddr::V4(_) => record.scope,
                IpAddr::V6(ip) => ipv6_scope(ip),
            };
            let address = Address { key, scope: Some(scope), flags: Some(record.flags) };
            Observation::Address { netns, address }
        }
    })
}

/// `rt_scope()` of include/net/addrconf.h and net/ipv6/addrconf.c.
fn ipv6_scope(ip: Ipv6Addr) -> u8 {
    const RT_SCOPE_UNIVERSE: u8 = 0;
    const RT_SCOPE_SITE: u8 = 200;
    const RT_SCOPE_LINK: u8 = 253;
    const RT_SCOPE_HOST: u8 = 254;
    match ip.segments()[0] & 0xffc0 {
        _ if ip.is_loopback() => RT_SCOPE_HOST,
        0xfe80 => RT_SCOPE_LINK,
        0xfec0 => RT_SCOPE_SITE,
        _ => RT_SCOPE_UNIVERSE,
    }
}

/// The entry as `__neigh_update` (net/core/neighbour.c, 6.1 to 6.18) is about to leave it.
fn neighbour_event(record: &NeighbourRecord) -> Option<Observation> {
    let admin = record.flags & NEIGH_UPDATE_F_ADMIN != 0;
    let overrides = record.flags & NEIGH_UPDATE_F_OVERRIDE != 0;
    let known = record.old_state & NUD_VALID != 0;
    let fixed = record.old_state & (NUD_NOARP | NUD_PERMANENT) != 0 && !admin;
    let claims = record.has_claim != 0 && record.claim != record.mac;
    // An entry that was set by an administrator changes only by another such update; a valid entry changes its MAC only
    // by an update that overrides.
    let loses = fixed || (claims && known && !overrides);
    let state = if loses { record.old_state } else { record.new_state };
    let mac = if record.has_claim != 0 && !loses { record.claim } else { record.mac };
    let neighbour = Neighbour {
        ifindex: record.ifindex,
        ip: ip(record.family, record.ip)?,
        mac: (state & NUD_VALID != 0).then_some(Mac(mac)),
        state: u16::from(state),
        claimed: (loses && claims).then_some(Mac(record.claim)),
        admin,
    };
    Some(Observation::Neighbour { netns: netns_ref(&record.netns), neighbour })
}

fn claim_event(record: &ClaimRecord) -> Observation {
    let kind = match record.operation {
        _ if record.announces != 0 => ClaimKind::Announcement,
        ARP_REQUEST => ClaimKind::Request,
        _ => ClaimKind::Reply,
    };
    let claim = Claim {
        ifindex: record.ifindex,
        ip: Ipv4Addr::from(record.ip).into(),
        mac: Mac(record.mac),
        kind,
    };
    Observation::Claimed { netns: netns_ref(&record.netns), claim }
}

#[cfg(test)]
mod tests;
