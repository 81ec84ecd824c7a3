//! Consequences under their cause: one cause is one line and one page.
//!
//! A netns that several findings are about has one root: the process that hangs in it, else the sandbox
//! that is dead, else what keeps it alive. An agent that keeps mounts is the root of the netns that one of
//! these mounts holds. A teardown that hangs while sandboxes fail is why they fail, as far as anybody can
//! tell, and pages a person.

use std::collections::BTreeMap;

use crate::contract;
use crate::finding::{Candidate, Code, Severity};

/// Codes that can be the root of what else is wrong with the same netns, the deepest first.
const ROOTS: [Code; 3] = [Code::IpHeldByStuckProcess, Code::IpHeldByDeadSandbox, Code::NetnsLeaked];
/// Codes that follow from a root in the same netns.
const FOLLOW: [Code; 3] =
    [Code::IpHeldByDeadSandbox, Code::DeviceHeldByDeadSandbox, Code::NetnsLeaked];

/// Fills in `caused_by`, and raises what has become worse by it.
pub(super) fn fold(found: &mut [Candidate]) {
    raise(found);
    let mut roots: BTreeMap<NetnsKey, (usize, Code, String)> = BTreeMap::new();
    let mut agents: BTreeMap<u64, String> = BTreeMap::new();
    for candidate in found.iter() {
        if candidate.code == Code::MountLeakBlocksRemoval {
            let mount_ns = candidate.holders.iter().find_map(|holder| holder.mount_ns);
            agents.extend(mount_ns.map(|mount_ns| (mount_ns, candidate.key.clone())));
        }
        let rank = ROOTS.iter().position(|code| *code == candidate.code);
        if let (Some(rank), Some(netns)) = (rank, netns_key(candidate)) {
            let root = (rank, candidate.code, candidate.key.clone());
            let best = roots.entry(netns).or_insert_with(|| root.clone());
            if root.0 < best.0 {
                *best = root;
            }
        }
    }
    for candidate in found.iter_mut().filter(|candidate| FOLLOW.contains(&candidate.code)) {
        let root = netns_key(candidate).and_then(|netns| roots.get(&netns));
        candidate.caused_by = root
            .filter(|(_, code, _)| *code != candidate.code)
            .map(|(_, code, key)| (*code, key.clone()))
            .or_else(|| {
                let mut held = candidate.holders.iter().filter_map(|holder| holder.mount_ns);
                let agent = held.find_map(|mount_ns| agents.get(&mount_ns));
                let by_agent = agent.filter(|_| candidate.code == Code::NetnsLeaked);
                by_agent.map(|key| (Code::MountLeakBlocksRemoval, key.clone()))
            });
    }
}

/// A teardown that hangs is a nuisance until pods fail to start.
fn raise(found: &mut [Candidate]) {
    let stuck = found.iter().find(|candidate| candidate.code == Code::NetnsTeardownStuck);
    let Some(cause) = stuck.map(|stuck| (stuck.code, stuck.key.clone())) else { return };
    let mut fail = false;
    for candidate in found.iter_mut().filter(|one| one.code == Code::SandboxCrashLoop) {
        candidate.caused_by = Some(cause.clone());
        fail = true;
    }
    for candidate in found.iter_mut().filter(|one| one.code == cause.0 && fail) {
        candidate.severity = Severity::Critical;
    }
}

type NetnsKey = (Option<u64>, Option<u32>, Option<i32>);

fn netns_key(candidate: &Candidate) -> Option<NetnsKey> {
    let contract::Netns { cookie, inode, nsid, .. } = candidate.subject.netns.as_ref()?;
    Some((*cookie, *inode, *nsid))
}
