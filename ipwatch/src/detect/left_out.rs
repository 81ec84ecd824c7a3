//! Open findings about what is not told, because there is more of it than a list has places for (`map/told.rs`).
//!
//! That something is not in such a list does not mean that it is over, and it does not make anything else unknown: each of
//! these findings is judged by itself, by what the map has of its IP.

use super::{ip_conflict_imminent, ip_duplicate, ip_released_but_held, neighbour_conflict};
use crate::fact::BootNs;
use crate::finding::{Code, Finding, finding_id};
use crate::map::NodeMap;

/// Whether anything is left out: if not, what is not found is over.
#[must_use]
pub fn leaves_out(map: &NodeMap, now: BootNs) -> bool {
    !map.left_out_duplicates().is_empty()
        || !map.has_all_duplicates_of_users()
        || map.leaves_out_disputes()
        || map.leaves_out_conflicts(now)
}

/// Whether what an open finding is about is left out, or, if it is about a netns of a user, nobody knows.
#[must_use]
pub fn is_left_out(map: &NodeMap, finding: &Finding, now: BootNs) -> bool {
    let Some(ip) = finding.subject.ip else { return false };
    let is_it =
        |key: Option<String>| key.is_some_and(|key| finding_id(finding.code, &key) == finding.id);
    let is_users = || map.user_concerned(&finding.subject).is_some();
    match finding.code {
        Code::IpDuplicate => {
            let all = map.left_out_duplicates();
            let from = all.partition_point(|one| one.ip < ip);
            let mut of_ip = all[from..].iter().take_while(|one| one.ip == ip);
            of_ip.any(|one| is_it(ip_duplicate::key(map, one)))
                || !map.has_all_duplicates_of_users() && is_users()
        }
        Code::NeighbourConflict => {
            let all = map.conflicts_of(ip, now);
            all.iter().any(|one| is_it(neighbour_conflict::key_of(map, one)))
        }
        Code::IpReleasedButHeld => {
            let all = map.left_out_disputes(ip, now);
            all.iter().any(|one| is_it(ip_released_but_held::key_of(map, one)))
                || !map.has_all_disputes_of_users() && is_users()
        }
        Code::IpConflictImminent => {
            let all = map.left_out_disputes(ip, now);
            all.iter().any(|one| is_it(ip_conflict_imminent::key_of(map, one)))
                || !map.has_all_disputes_of_users() && is_users()
        }
        _ => false,
    }
}
