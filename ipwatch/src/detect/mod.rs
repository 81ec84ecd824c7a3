//! Detectors: pure functions from the map to what is wrong. One file a finding, named as its code.
//!
//! A detector looks only at what the map knows. It never reads the absence of a fact as a fact: what
//! a source has not told is unknown, and [`blind`] names the codes that cannot be judged meanwhile.

mod ip_held_by_stuck_process;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use crate::fact::BootNs;
use crate::finding::{Candidate, Code};
use crate::map::{NodeMap, Policy};

/// Everything that is wrong at `now`.
#[must_use]
pub fn detect(map: &NodeMap, now: BootNs, policy: &Policy) -> Vec<Candidate> {
    ip_held_by_stuck_process::detect(map, now, policy)
}

/// Codes that cannot be judged now, because a source of theirs does not answer, or because what stood
/// before ipwatch did has not been looked at long enough: their findings must not be resolved.
#[must_use]
pub fn blind(map: &NodeMap, policy: &Policy) -> BTreeSet<Code> {
    let answers = |sources: &[&str]| sources.iter().all(|source| map.answers(source));
    let mut blind = BTreeSet::new();
    if !answers(ip_held_by_stuck_process::SOURCES)
        || ip_held_by_stuck_process::undecided(map, policy)
    {
        blind.insert(Code::IpHeldByStuckProcess);
    }
    blind
}
