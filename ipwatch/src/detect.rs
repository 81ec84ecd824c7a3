//! Detectors: pure functions from the map to what is wrong. One file a finding, named as its code.
//!
//! A detector looks only at what the map knows. It never reads the absence of a fact as a fact: what
//! a source has not told is unknown, and [`blind`] names the codes that cannot be judged meanwhile. What each code needs,
//! and which detector finds it, is the table in `codes`.

mod cause;
mod cni_del_failing;
mod cni_del_hits_successor;
mod codes;
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
use crate::map::{Kinds, NodeMap, Thresholds};

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
    let warms_up = |code: &Code| age < codes::entry(*code).warm_up.ns(thresholds);
    Code::ALL.iter().copied().filter(warms_up).collect()
}

/// Whether what an earlier run found still holds, where this run can never find it again: nobody but that run
/// saw it happen.
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

/// What [`blind_by_sources`] says changes with these, and with how sources stand.
const SOURCES_SAY: Kinds =
    Kinds::RUNTIMES.and(Kinds::PODS).and(Kinds::IPAM).and(Kinds::CALLS).and(Kinds::ENDPOINTS);

/// Codes of which a source does not answer, or has not told all.
fn blind_by_sources(map: &NodeMap) -> BTreeSet<Code> {
    let met = codes::met(map);
    let is_blind = |code: &Code| codes::entry(*code).needs.iter().any(|need| !met.contains(need));
    Code::ALL.iter().copied().filter(is_blind).collect()
}

/// Codes that cannot be judged at this moment, whatever sources say.
fn blind_for_now(map: &NodeMap, thresholds: &Thresholds, blind: &mut BTreeSet<Code>) {
    let waits = |code: &Code| codes::entry(*code).waits.is_some_and(|waits| waits(map, thresholds));
    blind.extend(Code::ALL.iter().copied().filter(waits));
}
