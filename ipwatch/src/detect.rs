//! Detectors: pure functions from the map to what is wrong. One file for each finding, named after its code.
//!
//! A detector uses only what the map has. It never treats the absence of a fact as a fact: what a source has not
//! reported is unknown, and [`blind`] names the codes that cannot be judged meanwhile. The table in `codes` has the
//! needs and the detector of each code.

mod cause;
mod cni_del_failing;
mod cni_del_hits_successor;
mod codes;
mod correlate;
mod device_held_by_dead_sandbox;
mod endpoint_missing;
mod evidence;
mod exit_progress;
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
mod left_out;
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

pub use left_out::may_hold;
pub use run::Detection;
use run::{Again, Detector};

use crate::fact::BootNs;
use crate::finding::{Candidate, Code, Finding};
use crate::map::{Kinds, NodeMap, Thresholds};

/// Mismatches between the stores and the kernel, computed once for both codes. They depend on everything that is known
/// of an IP, and the findings contain the current time.
const DISPUTED: Detector =
    Detector::Whole { on: Kinds::IPAM, beyond: Kinds::NONE, detect: disputed };

fn disputed(map: &NodeMap, now: BootNs, _thresholds: &Thresholds) -> run::Judged {
    let disputes = map.disputes(now);
    let mut found = ip_released_but_held::detect(map, &disputes, now);
    found.extend(ip_conflict_imminent::detect(map, &disputes, now));
    (found, Again::always_if(map.has_disputed_ips()))
}

/// Everything that is wrong at `now`, from scratch.
#[must_use]
pub fn detect(map: &NodeMap, now: BootNs, thresholds: &Thresholds) -> Vec<Candidate> {
    let mut all = Detection::default();
    all.update(map, now, thresholds);
    all.found().to_vec()
}

/// Codes whose findings of an earlier run may not have been found again yet, `age` ns after the start.
#[must_use]
pub fn patient(age: u64, thresholds: &Thresholds) -> Vec<Code> {
    Code::ALL.iter().copied().filter(|code| warms_up(*code, age, thresholds)).collect()
}

/// Whether a finding of this code of an earlier run may not have been found again yet, `age` ns after the start.
#[must_use]
pub fn warms_up(code: Code, age: u64, thresholds: &Thresholds) -> bool {
    age < codes::entry(code).warm_up.ns(thresholds)
}

/// Whether a finding of an earlier run still holds, if this run can never find it again, because only that run observed
/// the event.
#[must_use]
pub fn still_holds(map: &NodeMap, finding: &Finding, now: BootNs) -> bool {
    finding.code == Code::CniDelHitsSuccessor && cni_del_hits_successor::holds(map, finding, now)
}

/// Why a process does not get out, in words, as far as the last looks at its threads tell.
#[must_use]
pub fn why_stuck(map: &NodeMap, pid: u32) -> Option<String> {
    let looks = map.tasks_of(pid).filter_map(|task| task.look.as_deref());
    looks.filter_map(|look| cause::Cause::of(&look.look).text()).map(|text| text.to_string()).next()
}

/// Codes that cannot be judged now, because a source of theirs does not answer, or because what stood
/// before ipwatch did has not been looked at long enough: their findings must not be resolved.
#[must_use]
pub fn blind(map: &NodeMap, thresholds: &Thresholds) -> BTreeSet<Code> {
    let mut blind = blind_by_sources(map);
    blind_for_now(map, thresholds, &mut blind);
    blind
}

/// The kinds that [`blind_by_sources`] depends on, besides the status of sources.
const SOURCES_SAY: Kinds =
    Kinds::RUNTIMES.and(Kinds::PODS).and(Kinds::IPAM).and(Kinds::CALLS).and(Kinds::ENDPOINTS);

/// Codes with a source that does not answer, or has not reported everything.
fn blind_by_sources(map: &NodeMap) -> BTreeSet<Code> {
    let met = codes::met(map);
    let is_blind = |code: &Code| codes::entry(*code).needs.iter().any(|need| !met.contains(need));
    Code::ALL.iter().copied().filter(is_blind).collect()
}

/// Codes that cannot be judged at this moment, whatever the state of the sources.
fn blind_for_now(map: &NodeMap, thresholds: &Thresholds, blind: &mut BTreeSet<Code>) {
    let waits = |code: &Code| codes::entry(*code).waits.is_some_and(|waits| waits(map, thresholds));
    blind.extend(Code::ALL.iter().copied().filter(waits));
}
