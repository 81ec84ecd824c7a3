//! Open findings about what is not told, because there is more of it than a list has places for (`map/told.rs`).
//!
//! That something is not in such a list does not mean that it is over, and it does not make anything else unknown: each of
//! these findings is judged by itself, by what the map has of its IP.

use super::neighbour_conflict;
use crate::fact::BootNs;
use crate::finding::{Code, Finding, finding_id};
use crate::map::NodeMap;

/// Whether anything is left out: if not, what is not found is over.
#[must_use]
pub fn leaves_out(map: &NodeMap, now: BootNs) -> bool {
    map.leaves_out_conflicts(now)
}

/// Whether what an open finding is about is left out.
#[must_use]
pub fn is_left_out(map: &NodeMap, finding: &Finding, now: BootNs) -> bool {
    let Some(ip) = finding.subject.ip else { return false };
    let is_it = |key: Option<String>| {
        key.is_some_and(|key| finding_id(finding.code, &key) == finding.id)
    };
    match finding.code {
        Code::NeighbourConflict => {
            let all = map.conflicts_of(ip, now);
            all.iter().any(|one| is_it(neighbour_conflict::key_of(map, one)))
        }
        _ => false,
    }
}
