//! Detectors: pure functions from the map to what is wrong. One file a finding, named as its code.
//!
//! A detector looks only at what the map knows. It never reads the absence of a fact as a fact: what
//! a source has not told is unknown, and [`blind`] names the codes that cannot be judged meanwhile.

mod cause;
mod cni_del_failing;
mod cni_del_hits_successor;
mod correlate;
mod device_held_by_dead_sandbox;
mod endpoint_missing;
mod evidence;
mod gateway_neighbour_lost;
mod ip_conflict_imminent;
mod ip_duplicate;
mod ip_held_by_dead_sandbox;
mod ip_held_by_deleted_pod;
mod ip_held_by_stuck_process;
mod ip_released_but_held;
mod ipam_range_exhausting;
mod ipam_reservation_leaked;
mod ipam_store_unreadable;
mod mount_leak_blocks_removal;
mod neighbour_conflict;
mod neighbour_failed;
mod netns_leaked;
mod netns_teardown_stuck;
mod run;
mod sandbox_crash_loop;
#[cfg(test)]
pub(crate) mod tests;
mod veth_orphaned;

use std::collections::BTreeSet;

pub use run::Detection;
use run::{Again, Detector};

use crate::fact::BootNs;
use crate::finding::{Candidate, Code, Finding};
use crate::map::{Kinds, LOOP_WINDOW, NodeMap, Thresholds};

/// Codes that rest on a grace which begins when something is first told: after a restart they cannot be
/// found again at once.
const SLOW: [Code; 16] = [
    Code::IpHeldByDeadSandbox,
    Code::IpHeldByDeletedPod,
    Code::DeviceHeldByDeadSandbox,
    Code::NetnsLeaked,
    Code::NetnsTeardownStuck,
    Code::MountLeakBlocksRemoval,
    Code::IpReleasedButHeld,
    Code::IpConflictImminent,
    Code::IpamReservationLeaked,
    Code::IpamStoreUnreadable,
    Code::CniDelFailing,
    Code::EndpointMissing,
    Code::VethOrphaned,
    Code::NeighbourConflict,
    Code::NeighbourFailed,
    Code::GatewayNeighbourLost,
];
/// Codes that rest on what happened within the last ten minutes: a restart forgets that.
const BY_THE_PAST: [Code; 2] = [Code::SandboxCrashLoop, Code::IpamRangeExhausting];
/// What a runtime and a search take to answer twice.
const SETTLES: u64 = 60_000_000_000;

/// What the stores and the kernel disagree on: worked out once for both codes. What may be in dispute depends on all
/// that is known of an IP, and what is found tells the time.
const DISPUTED: Detector =
    Detector::Whole { on: Kinds::IPAM, beyond: Kinds::NONE, detect: disputed };

fn disputed(map: &NodeMap, now: BootNs, _thresholds: &Thresholds) -> run::Judged {
    let disputes = map.disputes(now);
    let mut found = ip_released_but_held::detect(map, &disputes, now);
    found.extend(ip_conflict_imminent::detect(map, &disputes, now));
    (found, Again::always_if(map.has_doubtful_ips()))
}

/// In the order in which what they find is told.
const DETECTORS: &[Detector] = &[
    ip_held_by_stuck_process::DETECTOR,
    ip_held_by_dead_sandbox::DETECTOR,
    ip_held_by_deleted_pod::DETECTOR,
    device_held_by_dead_sandbox::DETECTOR,
    netns_leaked::DETECTOR,
    netns_teardown_stuck::DETECTOR,
    mount_leak_blocks_removal::DETECTOR,
    sandbox_crash_loop::DETECTOR,
    DISPUTED,
    ipam_reservation_leaked::DETECTOR,
    ipam_range_exhausting::DETECTOR,
    ipam_store_unreadable::DETECTOR,
    cni_del_hits_successor::DETECTOR,
    cni_del_failing::DETECTOR,
    endpoint_missing::DETECTOR,
    veth_orphaned::DETECTOR,
    ip_duplicate::DETECTOR,
    neighbour_conflict::DETECTOR,
    neighbour_failed::DETECTOR,
    gateway_neighbour_lost::DETECTOR,
];

/// Everything that is wrong at `now`, from scratch.
#[must_use]
pub fn detect(map: &NodeMap, now: BootNs, thresholds: &Thresholds) -> Vec<Candidate> {
    let mut all = Detection::default();
    all.update(map, now, thresholds);
    all.found().to_vec()
}

/// Codes of which what an earlier run found may not have been found again yet, `age` ns after the start.
#[must_use]
pub fn patient(age: u64, thresholds: &Thresholds) -> Vec<Code> {
    let Thresholds { leak_age, sandbox_grace, teardown_grace, .. } = *thresholds;
    let graces = leak_age + sandbox_grace + teardown_grace;
    let slow = SLOW.iter().filter(|_| age < graces + SETTLES);
    let past = BY_THE_PAST.iter().filter(|_| age < LOOP_WINDOW + SETTLES);
    slow.chain(past).copied().collect()
}

/// Whether what an earlier run found still holds, where this run can never find it again: nobody but that run
/// saw it happen.
#[must_use]
pub fn still_holds(map: &NodeMap, finding: &Finding, now: BootNs) -> bool {
    finding.code == Code::CniDelHitsSuccessor && cni_del_hits_successor::holds(map, finding, now)
}

/// Codes that cannot be judged now, because a source of theirs does not answer, or because what stood
/// before ipwatch did has not been looked at long enough: their findings must not be resolved.
#[must_use]
pub fn blind(map: &NodeMap, thresholds: &Thresholds) -> BTreeSet<Code> {
    let mut blind = blind_by_sources(map);
    blind_for_now(map, thresholds, &mut blind);
    blind
}

/// What [`blind_by_sources`] says changes with these, and with how sources stand.
const SOURCES_SAY: Kinds =
    Kinds::RUNTIMES.and(Kinds::PODS).and(Kinds::IPAM).and(Kinds::CALLS).and(Kinds::ENDPOINTS);

/// Codes of which a source does not answer, or has not told all.
fn blind_by_sources(map: &NodeMap) -> BTreeSet<Code> {
    let answers = |sources: &[&str]| sources.iter().all(|source| map.answers(source));
    let mut blind = BTreeSet::new();
    if !answers(ip_held_by_stuck_process::SOURCES) {
        blind.insert(Code::IpHeldByStuckProcess);
    }
    if !answers(&["procfs"]) {
        blind.extend([Code::NetnsTeardownStuck, Code::MountLeakBlocksRemoval]);
    }
    if !answers(&["procfs", "netlink"]) || !map.runtimes_answer() {
        blind.extend([
            Code::IpHeldByDeadSandbox,
            Code::DeviceHeldByDeadSandbox,
            Code::NetnsLeaked,
            Code::SandboxCrashLoop,
            Code::MountLeakBlocksRemoval,
        ]);
    }
    let runtime = answers(&["procfs", "netlink"]) && map.runtimes_answer();
    if !runtime || !(map.pods_answer() || map.pods_are_off()) {
        blind.insert(Code::IpHeldByDeletedPod);
    }
    blind_to_ipam(map, &mut blind);
    blind
}

/// Codes that cannot be judged at this moment, whatever sources say.
fn blind_for_now(map: &NodeMap, thresholds: &Thresholds, blind: &mut BTreeSet<Code>) {
    if ip_held_by_stuck_process::undecided(map, thresholds) {
        blind.insert(Code::IpHeldByStuckProcess);
    }
    if map.is_unsettled() || !map.has_all_duplicates() {
        blind.insert(Code::IpDuplicate);
    }
    if !map.has_all_conflicts(map.now()) {
        blind.insert(Code::NeighbourConflict);
    }
}

/// The same of what rests on IPAM stores and CNI calls.
fn blind_to_ipam(map: &NodeMap, blind: &mut BTreeSet<Code>) {
    // One that was never there is not missed; one that has told before and is silent is.
    let whole = map.stores().all(|store| map.answers(store));
    if !whole || !map.answers("netlink") {
        blind.extend([
            Code::IpReleasedButHeld,
            Code::IpConflictImminent,
            Code::IpamReservationLeaked,
            Code::IpamRangeExhausting,
            Code::IpamStoreUnreadable,
            Code::CniDelHitsSuccessor,
            Code::CniDelFailing,
        ]);
    }
    if !map.ranges_are_counted() {
        blind.insert(Code::IpamRangeExhausting);
    }
    // There are more than are looked at.
    if !map.has_all_disputes() {
        blind.extend([Code::IpReleasedButHeld, Code::IpConflictImminent]);
    }
    if !map.runtimes_answer() {
        blind.extend([Code::IpamReservationLeaked, Code::CniDelHitsSuccessor, Code::CniDelFailing]);
    }
    if !map.endpoints_answer() || !map.answers("netlink") || !map.runtimes_answer() {
        blind.insert(Code::EndpointMissing);
    }
    if !map.endpoints_are_followed() {
        blind.insert(Code::CniDelHitsSuccessor);
    }
    // They were seen before.
    if map.calls_seen_since().is_none() && map.call_histories().next().is_some() {
        blind.insert(Code::CniDelFailing);
    }
    if !map.answers("netlink") {
        blind.extend([Code::VethOrphaned, Code::IpDuplicate]);
    }
    // What is silent is not at peace.
    if !neighbour_conflict::SOURCES.iter().all(|source| map.answers(source)) {
        blind.extend([Code::NeighbourConflict, Code::NeighbourFailed, Code::GatewayNeighbourLost]);
    }
}
