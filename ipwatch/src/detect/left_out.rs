//! Open findings that nothing finds any more although they may hold: what they are about is not judged, not kept, or not told,
//! because there is more of it than there is room for (`map/{seats,told}.rs`, `map/kernel/crowd.rs`).
//!
//! That something is left out does not mean that it is over, and it does not make anything else unknown: each of these
//! findings is judged by itself.

use super::{
    Detection, ip_conflict_imminent, ip_duplicate, ip_released_but_held, neighbour_conflict,
};
use crate::fact::{BootNs, NetnsRef};
use crate::finding::{Code, Finding, finding_id};
use crate::map::NodeMap;

/// Whether an open finding that is not found may hold.
pub fn may_hold(detection: &Detection, map: &NodeMap, now: BootNs) -> impl Fn(&Finding) -> bool {
    let not_told = leaves_out(map, now);
    move |finding| {
        detection.leaves_out(map, finding)
            || lacks_its_task(map, finding)
            || not_told && is_left_out(map, finding, now)
    }
}

/// Whether the process that a finding is about may be one that is not kept.
fn lacks_its_task(map: &NodeMap, finding: &Finding) -> bool {
    let netns = finding.subject.netns.as_ref();
    let netns = netns.filter(|_| finding.code == Code::IpHeldByStuckProcess);
    netns.is_some_and(|one| {
        map.lacks_leaving(&NetnsRef { cookie: one.cookie, inode: one.inode, nsid: one.nsid })
    })
}

/// Whether anything is left out: if not, what is not found is over.
fn leaves_out(map: &NodeMap, now: BootNs) -> bool {
    !map.left_out_duplicates().is_empty()
        || !map.has_all_duplicates_of_users()
        || map.leaves_out_disputes()
        || map.leaves_out_conflicts(now)
}

/// Whether what an open finding is about is left out, or, if it is about a netns of a user, nobody knows.
fn is_left_out(map: &NodeMap, finding: &Finding, now: BootNs) -> bool {
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
