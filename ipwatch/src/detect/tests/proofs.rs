//! The effect of each proof on a grace: the table of docs/confidence.md.

use super::ipam::*;
use super::pods::pod;
use super::sandboxes::{ID, UID, mount_of, other, sandbox};
use super::*;
use crate::fact::{Holder, Life, Sandbox, Sight};

/// The proofs (nothing left in the kernel, no call, no pod), and the remainder of a grace of 30 s, in ms.
const TABLE: [((bool, bool, bool), u64); 8] = [
    ((false, false, false), 30_000),
    ((true, false, false), 10_000),
    ((false, true, false), 10_000),
    ((false, false, true), 10_000),
    ((true, true, false), 3_000),
    ((true, false, true), 3_000),
    ((false, true, true), 3_000),
    ((true, true, true), 0),
];
/// When the sandbox is removed, in ms.
const GONE: u64 = 2_000;

/// A sandbox without a netns.
fn bare() -> Observation {
    let alive = sandbox(Life::Alive, "Ready");
    Observation::Sandbox(Sandbox { id: NEW.into(), netns_path: None, pid: None, ..alive })
}

/// `calls`: calls are observed; `no_pod`: the pod was deleted, otherwise pods are not queried.
fn case(calls: bool, no_pod: bool) -> Case {
    let mut case = Case::reserved();
    if !calls {
        case.at(13, Observation::Sight(Sight { calls: false, ..SEEN }));
    }
    if no_pod {
        case.source("kubernetes", SourceStatus::Active);
        case.pods(20, vec![pod(UID)]);
        case.at(1_900, Observation::PodGone { uid: UID.into() });
    }
    case
}

#[test]
fn each_proof_shortens_the_grace_of_a_reservation() {
    for (proofs, grace) in TABLE {
        let (empty, calls, no_pod) = proofs;
        let mut case = case(calls, no_pod);
        if empty {
            case.gone(1_500);
        } else {
            // A sandbox whose netns was never seen.
            case.reserve(900, 9, NEW);
            case.list(1_000, vec![Observation::Sandbox(sandbox(Life::Alive, "Ready")), bare()]);
        }
        let rest = || match empty {
            true => other(),
            false => vec![Observation::Sandbox(sandbox(Life::Alive, "Ready"))],
        };
        case.list(GONE, rest());
        let is_told = |case: &mut Case, at: u64| {
            case.list(at, rest());
            case.codes_at(at + 1).contains(&Code::IpamReservationLeaked)
        };
        if grace > 0 {
            assert!(!is_told(&mut case, GONE + grace - 10), "{proofs:?}: too soon");
        }
        assert!(is_told(&mut case, GONE + grace + 10), "{proofs:?}: too late");
    }
}

#[test]
fn each_proof_shortens_the_grace_of_a_netns() {
    let mount = || mount_of(super::sandboxes::PATH, 1, 1);
    let agent = || Holder::Fd { pid: 9, fd: 3, comm: "agent".into() };
    for (proofs, grace) in TABLE {
        let (empty, calls, no_pod) = proofs;
        let mut case = case(calls, no_pod);
        case.empty(1_500);
        // What an fd keeps is not empty, whatever else is proven.
        let holders = if empty { vec![mount()] } else { vec![mount(), agent()] };
        case.list(GONE, other());
        case.searched(GONE, &holders);
        let is_told = |case: &mut Case, at: u64| {
            case.list(at, other());
            case.searched(at, &holders);
            case.codes_at(at + 1).contains(&Code::NetnsLeaked)
        };
        if grace > 0 {
            assert!(!is_told(&mut case, GONE + grace - 10), "{proofs:?}: too soon");
        }
        assert!(is_told(&mut case, GONE + grace + 10), "{proofs:?}: too late");
    }
}

/// The API server, or the kubelet, reports all pods after the sandbox was removed, and this pod is not among them.
#[test]
fn a_list_of_all_pods_without_the_pod_proves_that_there_is_none() {
    for source in ["kubernetes", "kubelet"] {
        let told = |listed: Option<u64>| {
            let mut case = case(false, false);
            case.source(source, SourceStatus::Active);
            case.pods(20, vec![pod(UID)]);
            case.gone(1_500);
            case.list(GONE, other());
            if let Some(at) = listed {
                case.pods(at, Vec::new());
            }
            (1..40).map(|step| GONE + step * 1_000 + 10).find(|at| {
                case.list(*at, other());
                case.codes_at(at + 1).contains(&Code::IpamReservationLeaked)
            })
        };
        // The netns was seen to end: one proof without the list, two with it.
        assert_eq!(told(None), Some(GONE + 10_010), "{source}");
        assert_eq!(told(Some(GONE + 100)), Some(GONE + 3_010), "{source}");
    }
}

#[test]
fn that_a_pod_is_gone_stays_proven_when_its_source_falls_silent() {
    let mut case = case(true, true);
    case.gone(1_500);
    case.list(GONE, other());
    case.list(GONE + 20, other());
    assert!(case.codes_at(GONE + 21).contains(&Code::IpamReservationLeaked));
    case.source("kubernetes", SourceStatus::Down);
    case.list(GONE + 1_000, other());
    assert!(case.codes_at(GONE + 1_001).contains(&Code::IpamReservationLeaked));
}

#[test]
fn that_no_plugin_was_run_stays_proven_when_runs_are_lost_later() {
    let lost = || Observation::Lost { count: None, calls: true };
    let leak = |case: &mut Case, at: u64| {
        case.list(at, other());
        let mut all = case.then(at + 1).into_iter();
        all.find(|one| one.code == Code::IpamReservationLeaked).map(|one| one.key)
    };
    // 3 s remain of the grace.
    let known = || {
        let mut case = case(true, false);
        case.gone(1_500);
        case.list(GONE, other());
        case
    };
    let mut late = known();
    let key = leak(&mut late, GONE + 3_010);
    assert!(key.is_some());
    late.at(GONE + 6_000, lost());
    assert_eq!(leak(&mut late, GONE + 6_010), key, "the same finding, for the same cause");
    late.at(GONE + 7_000, Observation::Sight(Sight { calls: false, ..SEEN }));
    assert_eq!(leak(&mut late, GONE + 7_010), key);
    late.call(GONE + 8_000, 500, crate::fact::CniCommand::Del, ID);
    assert_eq!(leak(&mut late, GONE + 8_010), None, "it is being given back");
    let mut early = known();
    early.at(GONE + 1_000, lost());
    assert_eq!(leak(&mut early, GONE + 3_010), None, "a DEL may have been among them");
    assert!(leak(&mut early, GONE + 10_010).is_some());
}

#[test]
fn what_may_still_clean_up_keeps_its_grace() {
    // A pod that the API server has.
    let mut living = case(true, false);
    living.source("kubernetes", SourceStatus::Active);
    living.pods(20, vec![pod(UID)]);
    living.gone(1_500);
    living.list(GONE, other());
    living.list(GONE + 2_990, other());
    assert!(!living.codes_at(GONE + 2_991).contains(&Code::IpamReservationLeaked));
    // A DEL that has just ended: its runtime continues.
    let mut ended = case(true, true);
    ended.call(1_000, 500, crate::fact::CniCommand::Del, ID);
    ended.gone(1_500);
    ended.list(GONE, other());
    ended.call_ended(4_000, 500, 0);
    ended.list(5_900, other());
    assert!(!ended.codes_at(5_901).contains(&Code::IpamReservationLeaked), "two seconds ago");
    ended.list(6_100, other());
    assert!(ended.codes_at(6_101).contains(&Code::IpamReservationLeaked));
    // No plugin is run for it: that none is running proves nothing.
    let mut docker = Case::with_runtime();
    docker.at(1, Observation::Sight(SEEN));
    docker.empty(1_500);
    docker.list(GONE, other());
    let holders = [mount_of(super::sandboxes::PATH, 1, 1)];
    docker.searched(GONE, &holders);
    docker.searched(GONE + 9_900, &holders);
    assert!(!docker.codes().contains(&Code::NetnsLeaked));
    docker.searched(GONE + 10_100, &holders);
    assert!(docker.codes().contains(&Code::NetnsLeaked), "the search alone is a proof");
    // A netns without an IP is not urgent, and dockerd takes up to a minute.
    let mut without = case(true, true);
    let address = AddressKey { ifindex: 2, local: ip(5), prefix_len: 24, peer: None };
    without.at(1_000, Observation::AddressGone { netns: POD, key: address });
    without.empty(1_500);
    without.list(GONE, other());
    let search = |case: &mut Case, at: u64| {
        case.list(at, other());
        case.searched(at, &[mount_of(super::sandboxes::PATH, 1, 1)]);
        case.codes_at(at + 1).contains(&Code::NetnsLeaked)
    };
    assert!(!search(&mut without, GONE + 89_000));
    assert!(search(&mut without, GONE + 90_100));
}
