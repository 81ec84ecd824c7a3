//! Detectors: pure functions from the map to what is wrong. One file a finding, named as its code.
//!
//! A detector looks only at what the map knows. It never reads the absence of a fact as a fact: what
//! a source has not told is unknown, and [`blind`] names the codes that cannot be judged meanwhile.

mod cause;
mod device_held_by_dead_sandbox;
mod fold;
mod ip_held_by_dead_sandbox;
mod ip_held_by_stuck_process;
mod mount_leak_blocks_removal;
mod netns_leaked;
mod netns_teardown_stuck;
mod sandbox_crash_loop;
#[cfg(test)]
mod tests;
mod words;

use std::collections::BTreeSet;

use crate::fact::BootNs;
use crate::finding::{Candidate, Code};
use crate::map::{NodeMap, Policy};

/// Codes that rest on a grace which begins when something is first told: after a restart they cannot be
/// found again at once.
pub const SLOW: [Code; 5] = [
    Code::IpHeldByDeadSandbox,
    Code::DeviceHeldByDeadSandbox,
    Code::NetnsLeaked,
    Code::NetnsTeardownStuck,
    Code::MountLeakBlocksRemoval,
];

/// What every detector is.
type Detector = fn(&NodeMap, BootNs, &Policy) -> Vec<Candidate>;

/// Everything that is wrong at `now`.
#[must_use]
pub fn detect(map: &NodeMap, now: BootNs, policy: &Policy) -> Vec<Candidate> {
    const DETECTORS: &[Detector] = &[
        ip_held_by_stuck_process::detect,
        ip_held_by_dead_sandbox::detect,
        device_held_by_dead_sandbox::detect,
        netns_leaked::detect,
        netns_teardown_stuck::detect,
        mount_leak_blocks_removal::detect,
        sandbox_crash_loop::detect,
    ];
    let mut found: Vec<Candidate> =
        DETECTORS.iter().flat_map(|detect| detect(map, now, policy)).collect();
    fold::fold(&mut found);
    found
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
    blind
}
