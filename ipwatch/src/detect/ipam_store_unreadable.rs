//! `ipam-store-unreadable`: a file of an IPAM store, or of the CNI result cache, is torn, empty or of a
//! version that nobody knows. What it said is unknown, to ipwatch and mostly to its owner too.

use super::cause::quoted;
use super::words::Proof;
use crate::fact::BootNs;
use crate::finding::{Candidate, Code, Severity, Subject};
use crate::map::{NodeMap, Policy, UnreadableEntry};

/// A file that is being written is torn for a moment, in ns.
const WRITING: u64 = 3_000_000_000;
/// Files that are told one by one.
const TOLD: usize = 64;

pub(super) fn detect(map: &NodeMap, now: BootNs, _policy: &Policy) -> Vec<Candidate> {
    let old = map.unreadable().filter(|entry| now.since(entry.since) >= WRITING);
    old.take(TOLD).map(|entry| candidate(map, entry, now)).collect()
}

fn candidate(map: &NodeMap, entry: &UnreadableEntry, now: BootNs) -> Candidate {
    let file = &entry.file;
    let mut proof = Proof::new(map);
    proof.tell(&file.store, entry.told, format!("{}: {}", file.path, file.reason));
    let impact = match &file.effect {
        Some(effect) => format!("{} says nothing: {effect}.", file.path),
        None => format!("{} says nothing: which IPs it reserves is unknown.", file.path),
    };
    let path = quoted(&file.path);
    Candidate {
        code: Code::IpamStoreUnreadable,
        key: format!("{}/{}", file.store, file.path),
        severity: Severity::Warning,
        subject: Subject::default(),
        holders: Vec::new(),
        evidence: proof.done(),
        since: entry.since,
        observed: now,
        impact,
        remediation: vec![
            format!("Look at it: ls -l {path}; head -c 200 {path} | od -c | head"),
            format!("Keep it, then move it away: cp -p {path} /root/ && rm {path}"),
            "Do not: remove the whole directory, the others are of living pods".to_owned(),
        ],
        caused_by: None,
        preexisting: false,
    }
}
