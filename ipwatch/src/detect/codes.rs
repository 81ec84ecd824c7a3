//! What each code needs: one row for each code, or the program does not compile. Names and runbooks, which layers below
//! the detectors use too, are in `contract/codes.rs`.

use std::collections::BTreeSet;

use super::run::Detector;
use super::{
    cni_del_failing, cni_del_hits_successor, device_held_by_dead_sandbox, endpoint_missing,
    gateway_neighbour_lost, ip_duplicate, ip_held_by_dead_sandbox, ip_held_by_deleted_pod,
    ip_held_by_stuck_process, ipam_range_exhausting, ipam_reservation_leaked,
    ipam_store_unreadable, mount_leak_blocks_removal, neighbour_conflict, neighbour_failed,
    netns_leaked, netns_teardown_stuck, sandbox_crash_loop, veth_orphaned,
};
use crate::fact::SourceName;
use crate::finding::Code;
use crate::map::{LOOP_WINDOW, NodeMap, Thresholds};

/// What the detectors need to know of a code.
pub(super) struct Entry {
    /// If any of these is not met, findings neither open nor end.
    pub(super) needs: &'static [Need],
    /// Nor while this returns true, whatever the state of the sources.
    pub(super) waits: Option<fn(&NodeMap, &Thresholds) -> bool>,
    /// For how long after a restart a finding of an earlier run may not have been found again.
    pub(super) warm_up: WarmUp,
    /// The detector that finds it.
    pub(super) found: Found,
}

/// The detector of a code.
pub(super) enum Found {
    By(&'static Detector),
    /// The detector of the previous code, which finds both.
    TheLast,
}

/// A source that must answer, or data that must be complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    Procfs,
    Netlink,
    Neighbours,
    /// Every container runtime.
    Runtimes,
    /// The API server or the kubelet, if either is configured.
    Pods,
    /// Every IPAM store that has completed a listing. One that never did is not missed.
    Stores,
    /// The number of taken IPs of each range.
    RangeCounts,
    /// The endpoints of a CNI's datastore.
    Endpoints,
    /// The changes of these endpoints.
    EndpointsFollowed,
    /// Runs of CNI plugins, if they were observed before.
    Calls,
}

impl Need {
    const ALL: [Self; 10] = [
        Self::Procfs,
        Self::Netlink,
        Self::Neighbours,
        Self::Runtimes,
        Self::Pods,
        Self::Stores,
        Self::RangeCounts,
        Self::Endpoints,
        Self::EndpointsFollowed,
        Self::Calls,
    ];

    fn is_met(self, map: &NodeMap) -> bool {
        match self {
            Self::Procfs => map.answers(SourceName::Procfs),
            Self::Netlink => map.answers(SourceName::Netlink),
            // A silent source does not mean that there is no problem.
            Self::Neighbours => map.answers(SourceName::Neighbours),
            Self::Runtimes => map.runtimes_answer(),
            Self::Pods => map.pods_answer() || map.pods_are_off(),
            Self::Stores => map.stores().all(|store| map.store_answers(store)),
            Self::RangeCounts => map.ranges_are_counted(),
            Self::Endpoints => map.endpoints_answer(),
            Self::EndpointsFollowed => map.endpoints_are_followed(),
            Self::Calls => {
                map.calls_seen_since().is_some() || map.call_histories().next().is_none()
            }
        }
    }
}

/// The needs that are met.
pub(super) fn met(map: &NodeMap) -> BTreeSet<Need> {
    Need::ALL.into_iter().filter(|need| need.is_met(map)).collect()
}

/// How long a code takes after a restart.
pub(super) enum WarmUp {
    /// It is found again at once.
    None,
    /// It depends on a grace, which begins with the first report.
    Graces,
    /// It depends on events of the last ten minutes, which a restart forgets.
    Past,
}

/// Time for a runtime and a search to answer twice, in ns.
const SETTLES: u64 = 60_000_000_000;

impl WarmUp {
    pub(super) fn ns(&self, thresholds: &Thresholds) -> u64 {
        let Thresholds { leak_age, sandbox_grace, teardown_grace, .. } = *thresholds;
        match self {
            Self::None => 0,
            Self::Graces => leak_age + sandbox_grace + teardown_grace + SETTLES,
            Self::Past => LOOP_WINDOW + SETTLES,
        }
    }
}

/// Every detector once, in the order in which findings are reported: that of [`Code::ALL`].
pub(super) fn detectors() -> impl Iterator<Item = &'static Detector> {
    judged().map(|(_, detector)| detector)
}

/// The same, each with the first code that it finds.
pub(super) fn judged() -> impl Iterator<Item = (Code, &'static Detector)> {
    Code::ALL.iter().filter_map(|code| match entry(*code).found {
        Found::By(detector) => Some((*code, detector)),
        Found::TheLast => None,
    })
}

pub(super) const fn entry(code: Code) -> Entry {
    match code {
        Code::IpHeldByStuckProcess => Entry {
            needs: &[Need::Procfs, Need::Netlink],
            waits: Some(ip_held_by_stuck_process::undecided),
            warm_up: WarmUp::None,
            found: Found::By(&ip_held_by_stuck_process::DETECTOR),
        },
        Code::IpHeldByDeadSandbox => Entry {
            needs: &[Need::Procfs, Need::Netlink, Need::Runtimes],
            waits: None,
            warm_up: WarmUp::Graces,
            found: Found::By(&ip_held_by_dead_sandbox::DETECTOR),
        },
        Code::IpHeldByDeletedPod => Entry {
            needs: &[Need::Procfs, Need::Netlink, Need::Runtimes, Need::Pods],
            waits: None,
            warm_up: WarmUp::Graces,
            found: Found::By(&ip_held_by_deleted_pod::DETECTOR),
        },
        Code::DeviceHeldByDeadSandbox => Entry {
            needs: &[Need::Procfs, Need::Netlink, Need::Runtimes],
            waits: None,
            warm_up: WarmUp::Graces,
            found: Found::By(&device_held_by_dead_sandbox::DETECTOR),
        },
        Code::NetnsLeaked => Entry {
            needs: &[Need::Procfs, Need::Netlink, Need::Runtimes],
            waits: None,
            warm_up: WarmUp::Graces,
            found: Found::By(&netns_leaked::DETECTOR),
        },
        Code::NetnsTeardownStuck => Entry {
            needs: &[Need::Procfs],
            waits: None,
            warm_up: WarmUp::Graces,
            found: Found::By(&netns_teardown_stuck::DETECTOR),
        },
        Code::MountLeakBlocksRemoval => Entry {
            needs: &[Need::Procfs, Need::Netlink, Need::Runtimes],
            waits: None,
            warm_up: WarmUp::Graces,
            found: Found::By(&mount_leak_blocks_removal::DETECTOR),
        },
        Code::SandboxCrashLoop => Entry {
            needs: &[Need::Procfs, Need::Netlink, Need::Runtimes],
            waits: None,
            warm_up: WarmUp::Past,
            found: Found::By(&sandbox_crash_loop::DETECTOR),
        },
        Code::IpReleasedButHeld => Entry {
            needs: &[Need::Netlink, Need::Stores],
            waits: None,
            warm_up: WarmUp::Graces,
            found: Found::By(&super::DISPUTED),
        },
        Code::IpConflictImminent => Entry {
            needs: &[Need::Netlink, Need::Stores],
            waits: None,
            warm_up: WarmUp::Graces,
            found: Found::TheLast,
        },
        Code::IpamReservationLeaked => Entry {
            needs: &[Need::Netlink, Need::Stores, Need::Runtimes],
            waits: None,
            warm_up: WarmUp::Graces,
            found: Found::By(&ipam_reservation_leaked::DETECTOR),
        },
        Code::IpamRangeExhausting => Entry {
            needs: &[Need::Netlink, Need::Stores, Need::RangeCounts],
            waits: None,
            warm_up: WarmUp::Past,
            found: Found::By(&ipam_range_exhausting::DETECTOR),
        },
        Code::IpamStoreUnreadable => Entry {
            needs: &[Need::Netlink, Need::Stores],
            waits: None,
            warm_up: WarmUp::Graces,
            found: Found::By(&ipam_store_unreadable::DETECTOR),
        },
        Code::CniDelHitsSuccessor => Entry {
            needs: &[Need::Netlink, Need::Stores, Need::Runtimes, Need::EndpointsFollowed],
            waits: None,
            warm_up: WarmUp::None,
            found: Found::By(&cni_del_hits_successor::DETECTOR),
        },
        Code::CniDelFailing => Entry {
            needs: &[Need::Netlink, Need::Stores, Need::Runtimes, Need::Calls],
            waits: None,
            warm_up: WarmUp::Graces,
            found: Found::By(&cni_del_failing::DETECTOR),
        },
        Code::EndpointMissing => Entry {
            needs: &[Need::Netlink, Need::Runtimes, Need::Endpoints],
            waits: None,
            warm_up: WarmUp::Graces,
            found: Found::By(&endpoint_missing::DETECTOR),
        },
        Code::VethOrphaned => Entry {
            needs: &[Need::Netlink],
            waits: None,
            warm_up: WarmUp::Graces,
            found: Found::By(&veth_orphaned::DETECTOR),
        },
        Code::IpDuplicate => Entry {
            needs: &[Need::Netlink],
            waits: Some(|map, _| map.is_unsettled() || !map.has_all_duplicates()),
            warm_up: WarmUp::None,
            found: Found::By(&ip_duplicate::DETECTOR),
        },
        Code::NeighbourConflict => Entry {
            needs: &[Need::Netlink, Need::Neighbours],
            waits: None,
            warm_up: WarmUp::Graces,
            found: Found::By(&neighbour_conflict::DETECTOR),
        },
        Code::NeighbourFailed => Entry {
            needs: &[Need::Netlink, Need::Neighbours],
            waits: None,
            warm_up: WarmUp::Graces,
            found: Found::By(&neighbour_failed::DETECTOR),
        },
        Code::GatewayNeighbourLost => Entry {
            needs: &[Need::Netlink, Need::Neighbours],
            waits: None,
            warm_up: WarmUp::Graces,
            found: Found::By(&gateway_neighbour_lost::DETECTOR),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_need_is_forgotten() {
        for need in Code::ALL.iter().flat_map(|code| entry(*code).needs) {
            assert!(Need::ALL.contains(need), "{need:?} is never met");
        }
    }
}
