//! Folds consequences under their cause: one cause is one line and one page.
//!
//! The findings about a netns have one root: the process that hangs in it, else the dead sandbox, else what keeps the
//! netns alive, else the pod's deletion. An agent that keeps mounts is the root of a netns that only these mounts hold.
//! A teardown that hangs while sandboxes fail is taken as the cause of that, and becomes critical.
//!
//! A duplicate IP follows from why the first holder still has it, else from its having been handed out.
//!
//! A late DEL is the cause of a missing endpoint and of a lost gateway, and of a released IP if it released that.
//!
//! A consequence never begins before its cause: what was there before has another cause, and stays a finding of its own.
//! A range that runs out is the consequence of leaks only if their IPs were taken before.
//!
//! If an IP is held and free to hand out, or handed out already, its root becomes critical. Leaks are the cause of a
//! range that runs out, and get its severity.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::{ip_duplicate, neighbour_conflict};
use crate::contract;
use crate::fact::BootNs;
use crate::finding::{Candidate, Code, Severity};
use crate::map::{Holding, NodeMap, RangeEntry, Thresholds};

/// Codes that can be the root of other findings about the same netns, the deepest first.
const ROOTS: [Code; 4] = [
    Code::IpHeldByStuckProcess,
    Code::IpHeldByDeadSandbox,
    Code::NetnsLeaked,
    Code::IpHeldByDeletedPod,
];
/// Codes that follow from a root in the same netns.
const FOLLOW: [Code; 6] = [
    Code::IpHeldByDeadSandbox,
    Code::IpHeldByDeletedPod,
    Code::DeviceHeldByDeadSandbox,
    Code::NetnsLeaked,
    Code::IpReleasedButHeld,
    Code::IpConflictImminent,
];
/// Codes for an IP that is held and can be given to others.
const FREE: [Code; 2] = [Code::IpReleasedButHeld, Code::IpConflictImminent];
/// Codes that remove an IP from a range permanently.
const LEAKS: [Code; 2] = [Code::IpamReservationLeaked, Code::NetnsLeaked];

/// Two sources may report one moment this far apart: a runtime without an event stream is asked every five seconds, and
/// its answer takes its time.
const APART: u64 = 7_000_000_000;

/// When a finding began; 0 if it was there before it could be observed.
fn begun(one: &Candidate) -> BootNs {
    if one.preexisting { BootNs::default() } else { one.since }
}

/// Whether what began at `cause` may be the cause of what holds since `since`.
fn precedes(cause: BootNs, since: BootNs) -> bool {
    cause <= since.plus(APART)
}

/// Fills in `caused_by`, and raises the severity of causes with severe consequences.
pub(super) fn fold(map: &NodeMap, now: BootNs, thresholds: &Thresholds, found: &mut [Candidate]) {
    raise(found);
    let duplicates = duplicates(map, found);
    raise_held(found, &duplicates);
    let mut roots: Roots = BTreeMap::new();
    let mut agents: BTreeMap<u64, String> = BTreeMap::new();
    for candidate in found.iter() {
        if candidate.code == Code::MountLeakBlocksRemoval {
            let mount_ns = candidate.holders.iter().find_map(|holder| holder.mount_ns);
            agents.extend(mount_ns.map(|mount_ns| (mount_ns, candidate.key.clone())));
        }
        let rank = ROOTS.iter().position(|code| *code == candidate.code);
        if let (Some(rank), Some(netns)) = (rank, netns_key(candidate)) {
            let root = (rank, candidate.code, candidate.key.clone(), begun(candidate));
            roots.entry(netns).or_default().push(root);
        }
    }
    roots.values_mut().for_each(|roots| roots.sort_by_key(|(rank, ..)| *rank));
    for candidate in found.iter_mut().filter(|candidate| FOLLOW.contains(&candidate.code)) {
        let rank = ROOTS.iter().position(|code| *code == candidate.code).unwrap_or(ROOTS.len());
        let all = netns_key(candidate).and_then(|netns| roots.get(&netns));
        let root = first_root(all, rank, candidate.since);
        candidate.caused_by = root.or_else(|| {
            let leaked = candidate.code == Code::NetnsLeaked;
            let agent = leaked.then(|| only_agents(candidate, &agents)).flatten();
            agent.map(|key| (Code::MountLeakBlocksRemoval, key.clone()))
        });
    }
    raise_agents(found);
    fold_releases(found);
    fold_conflicts(found);
    fold_duplicates(found, &roots, &duplicates);
    fold_neighbours(map, now, found, &duplicates);
    fold_endpoints(found);
    fold_ranges(map, now, thresholds, found);
}

/// The deepest of these roots above `rank` that is not younger than its consequence.
fn first_root(roots: Option<&Vec<Root>>, rank: usize, since: BootNs) -> Option<(Code, String)> {
    let mut roots = roots?.iter();
    let root = roots.find(|(own, _, _, begun)| *own < rank && precedes(*begun, since))?;
    Some((root.1, root.2.clone()))
}

/// The first agent whose mounts hold the netns, if nothing else does. Mounting `/` copies mounts that have leaked
/// before; without the copies the netns would still be held. When a mount was made is unknown: a search finds it later.
fn only_agents<'a>(candidate: &Candidate, agents: &'a BTreeMap<u64, String>) -> Option<&'a String> {
    let by_agent = candidate.holders.iter().map(|holder| agents.get(&holder.mount_ns?));
    let keys: Option<Vec<&String>> = by_agent.collect();
    keys?.first().copied()
}

/// Raises roots in a netns whose IP can be given to others, or already is, to critical.
fn raise_held(found: &mut [Candidate], duplicates: &[(usize, [NetnsKey; 2])]) {
    let free = found.iter().filter(|one| FREE.contains(&one.code)).filter_map(netns_key);
    let twice = duplicates.iter().filter(|(place, _)| found[*place].severity == Severity::Critical);
    let twice = twice.flat_map(|(_, both)| *both);
    let free: BTreeSet<NetnsKey> = free.chain(twice).collect();
    for candidate in found.iter_mut().filter(|one| ROOTS.contains(&one.code)) {
        if netns_key(candidate).is_some_and(|netns| free.contains(&netns)) {
            candidate.severity = Severity::Critical;
        }
    }
}

/// Raises an agent whose mounts hold netns to the severity of the worst of them: only the agent's finding pages.
fn raise_agents(found: &mut [Candidate]) {
    let mut worst: BTreeMap<String, Severity> = BTreeMap::new();
    for one in found.iter() {
        if let Some((Code::MountLeakBlocksRemoval, key)) = &one.caused_by {
            let severity = worst.entry(key.clone()).or_insert(one.severity);
            *severity = one.severity.max(*severity);
        }
    }
    for one in found.iter_mut().filter(|one| one.code == Code::MountLeakBlocksRemoval) {
        one.severity = worst.get(&one.key).map_or(one.severity, |worst| one.severity.max(*worst));
    }
}

/// An IP released by a late DEL is held by the pod that the DEL hit.
fn fold_releases(found: &mut [Candidate]) {
    let dels: BTreeMap<(NetnsKey, Option<IpAddr>), (String, BootNs)> = found
        .iter()
        .filter(|one| one.code == Code::CniDelHitsSuccessor)
        .filter_map(|one| Some(((netns_key(one)?, one.subject.ip), (one.key.clone(), begun(one)))))
        .collect();
    let released = |one: &&mut Candidate| one.code == Code::IpReleasedButHeld;
    for one in found.iter_mut().filter(released).filter(|one| one.caused_by.is_none()) {
        let del = netns_key(one).and_then(|netns| dels.get(&(netns, one.subject.ip)));
        let del = del.filter(|(_, since)| precedes(*since, one.since));
        one.caused_by = del.map(|(key, _)| (Code::CniDelHitsSuccessor, key.clone()));
    }
}

/// A finding's root, or the finding itself.
fn root_of(one: &Candidate) -> (Code, String) {
    one.caused_by.clone().unwrap_or_else(|| (one.code, one.key.clone()))
}

/// An IP that is handed out while it is held follows from its release, if no deeper cause is known.
fn fold_conflicts(found: &mut [Candidate]) {
    let released = found.iter().filter(|one| one.code == Code::IpReleasedButHeld);
    let released = released
        .filter_map(|one| Some(((netns_key(one)?, one.subject.ip), (root_of(one), begun(one)))));
    let releases: BTreeMap<_, _> = released.collect();
    for candidate in found.iter_mut().filter(|one| one.code == Code::IpConflictImminent) {
        let release = netns_key(candidate)
            .and_then(|netns| releases.get(&(netns, candidate.subject.ip)))
            .filter(|_| candidate.caused_by.is_none())
            .filter(|(_, since)| precedes(*since, candidate.since));
        if let Some((root, _)) = release {
            candidate.caused_by = Some(root.clone());
        }
    }
}

/// The candidates about a duplicate IP with the netns of both holders, the older first.
fn duplicates(map: &NodeMap, found: &[Candidate]) -> Vec<(usize, [NetnsKey; 2])> {
    let view = |holding: &Holding| Some(key_of(&map.netns_view(map.netns(holding.at.netns)?)));
    let mut keys: BTreeMap<String, Vec<[NetnsKey; 2]>> = BTreeMap::new();
    for one in map.duplicates() {
        let both = view(&one.first).zip(view(&one.second));
        if let Some((key, (first, second))) = ip_duplicate::key(map, one).zip(both) {
            keys.entry(key).or_default().push([first, second]);
        }
    }
    let all = found.iter().enumerate().filter(|(_, one)| one.code == Code::IpDuplicate);
    let both = |key: &str| keys.get(key).into_iter().flatten().copied();
    all.flat_map(|(place, one)| both(&one.key).map(move |both| (place, both))).collect()
}

/// A duplicate follows from why one holder does not release the IP, or from its having been handed out while held.
fn fold_duplicates(found: &mut [Candidate], roots: &Roots, duplicates: &[(usize, [NetnsKey; 2])]) {
    for (place, both) in duplicates {
        let (ip, since) = (found[*place].subject.ip, found[*place].since);
        let deep = both.iter().find_map(|netns| first_root(roots.get(netns), ROOTS.len(), since));
        let cause = deep.or_else(|| {
            FREE.iter().find_map(|code| {
                let about = |one: &&Candidate| {
                    one.code == *code
                        && one.subject.ip == ip
                        && precedes(begun(one), since)
                        && netns_key(one).is_some_and(|netns| both.contains(&netns))
                };
                found.iter().find(about).map(root_of)
            })
        });
        found[*place].caused_by = found[*place].caused_by.take().or(cause);
    }
}

/// A neighbour conflict follows from a duplicate, if one of the duplicate's holders is a party to it.
fn fold_neighbours(
    map: &NodeMap,
    now: BootNs,
    found: &mut [Candidate],
    duplicates: &[(usize, [NetnsKey; 2])],
) {
    if duplicates.is_empty() || !found.iter().any(|one| one.code == Code::NeighbourConflict) {
        return;
    }
    let parties = neighbour_conflict::parties(map, now);
    let answers = |key: &str, both: &[NetnsKey; 2]| {
        let mut netns = parties.get(key).into_iter().flatten().filter_map(|id| map.netns(*id));
        netns.any(|netns| both.contains(&key_of(&map.netns_view(netns))))
    };
    for place in 0..found.len() {
        let one = &found[place];
        if one.code != Code::NeighbourConflict {
            continue;
        }
        let root = duplicates.iter().find(|(twice, both)| {
            found[*twice].subject.ip == one.subject.ip
                && precedes(begun(&found[*twice]), one.since)
                && answers(&one.key, both)
        });
        found[place].caused_by =
            root.map(|(twice, _)| (Code::IpDuplicate, found[*twice].key.clone()));
    }
}

/// A missing endpoint follows from a late DEL, and an unanswering gateway of the pod from either.
fn fold_endpoints(found: &mut [Candidate]) {
    const ROOTS: [Code; 2] = [Code::CniDelHitsSuccessor, Code::EndpointMissing];
    for (depth, code) in [(1, Code::EndpointMissing), (2, Code::GatewayNeighbourLost)] {
        for place in 0..found.len() {
            let one = &found[place];
            let Some(netns) = netns_key(one).filter(|_| one.code == code) else { continue };
            // The deeper root first: the DEL before the missing endpoint.
            let root = ROOTS[..depth].iter().find_map(|code| {
                let about = |root: &&Candidate| {
                    root.code == *code
                        && netns_key(root) == Some(netns)
                        && precedes(begun(root), one.since)
                };
                found.iter().find(about).map(|root| (root.code, root.key.clone()))
            });
            if let Some(root) = root {
                found[place].caused_by = Some(root);
            }
        }
    }
}

/// A range runs out because of its leaks, if it had enough IPs without them, and they were taken before: the root of the
/// first leak is the cause.
fn fold_ranges(map: &NodeMap, now: BootNs, thresholds: &Thresholds, found: &mut [Candidate]) {
    for place in 0..found.len() {
        if found[place].code != Code::IpamRangeExhausting {
            continue;
        }
        let Some(range) = map.ranges().find(|range| is_about(&found[place], range)) else {
            continue;
        };
        if !map.is_low_by_leaks(range, &map.leaked_in(range, now, thresholds), now) {
            continue;
        }
        let leak = found.iter().position(|one| {
            LEAKS.contains(&one.code)
                && one.caused_by.as_ref().is_none_or(|(code, _)| !LEAKS.contains(code))
                && one.subject.ips().any(|ip| {
                    range.contains(ip) && map.reservations_of(ip).any(|entry| range.is_of(entry))
                })
        });
        let Some(leak) = leak else { continue };
        let severity = found[place].severity;
        let root = found[leak].caused_by.clone();
        let root = root.unwrap_or_else(|| (found[leak].code, found[leak].key.clone()));
        for one in found.iter_mut().filter(|one| (one.code, &one.key) == (root.0, &root.1)) {
            one.severity = one.severity.max(severity);
        }
        found[place].caused_by = Some(root);
    }
}

fn is_about(candidate: &Candidate, range: &RangeEntry) -> bool {
    let (store, network) = (&range.range.store, &range.range.network);
    candidate.key == format!("{store}/{network}/{}", range.text())
}

/// A hanging teardown becomes critical only when pods fail to start.
fn raise(found: &mut [Candidate]) {
    let stuck = found.iter().find(|candidate| candidate.code == Code::NetnsTeardownStuck);
    let Some(stuck) = stuck else { return };
    let (cause, since) = ((stuck.code, stuck.key.clone()), begun(stuck));
    let mut fail = false;
    // Which of them follows is a question of time; that they fail meanwhile is none.
    for candidate in found.iter_mut().filter(|one| one.code == Code::SandboxCrashLoop) {
        if precedes(since, candidate.since) {
            candidate.caused_by = Some(cause.clone());
        }
        fail = true;
    }
    for candidate in found.iter_mut().filter(|one| one.code == cause.0 && fail) {
        candidate.severity = Severity::Critical;
    }
}

type NetnsKey = (Option<u64>, Option<u32>, Option<i32>);
/// A finding that others may follow from: its place in [`ROOTS`], its code and key, and since when it holds.
type Root = (usize, Code, String, BootNs);
/// The roots about each netns, the deepest first.
type Roots = BTreeMap<NetnsKey, Vec<Root>>;

fn netns_key(candidate: &Candidate) -> Option<NetnsKey> {
    candidate.subject.netns.as_ref().map(key_of)
}

fn key_of(netns: &contract::Netns) -> NetnsKey {
    (netns.cookie, netns.inode, netns.nsid)
}
