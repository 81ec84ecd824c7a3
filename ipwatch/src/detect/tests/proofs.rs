//! The effect of each proof on a grace: the table of docs/confidence.md.

use super::ipam::*;
use super::pods::pod;
use super::sandboxes::{ID, PATH, UID, mount_of, other, sandbox};
use super::*;
use crate::fact::{Engine, Holder, Life, Reservation, RuntimeProcess, Sandbox, Sight};

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
    let mount = || mount_of(PATH, 1, 1);
    let fd = || Holder::Fd { pid: 9, fd: 3, comm: "agent".into() };
    let socket = || Holder::Socket { pid: 9, fd: 3, comm: "agent".into() };
    let kept = TABLE.into_iter().flat_map(|row| [(row, fd()), (row, socket())]);
    for ((proofs, grace), agent) in kept {
        let (empty, calls, no_pod) = proofs;
        let mut case = case(calls, no_pod);
        case.empty(1_500);
        // What an fd or a socket keeps is not empty, whatever else is proven.
        let holders = if empty { vec![mount()] } else { vec![mount(), agent] };
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

/// A search that had to leave something out proves nothing, however long the netns has been without tasks.
#[test]
fn an_incomplete_search_finds_no_leak() {
    let mut case = case(true, true);
    case.empty(1_500);
    case.searched(1_600, &[mount_of(PATH, 1, 1)]);
    case.list(GONE, other());
    for second in 1..100 {
        let at = GONE + second * 1_000;
        case.list(at, other());
        case.at(at, Observation::HoldersSearched { netns: POD, complete: false });
        assert!(!case.codes_at(at + 1).contains(&Code::NetnsLeaked), "after {second} s");
    }
    case.searched(GONE + 100_000, &[mount_of(PATH, 1, 1)]);
    assert!(case.codes_at(GONE + 100_001).contains(&Code::NetnsLeaked));
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
        let netns = |listed: bool| {
            let mut case = case(false, false);
            case.source(source, SourceStatus::Active);
            case.pods(20, vec![pod(UID)]);
            case.empty(1_500);
            case.list(GONE, other());
            if listed {
                case.pods(GONE + 100, Vec::new());
            }
            (1..40).map(|step| GONE + step * 1_000 + 10).find(|at| {
                case.list(*at, other());
                case.searched(*at, &[mount_of(PATH, 1, 1)]);
                case.codes_at(at + 1).contains(&Code::NetnsLeaked)
            })
        };
        assert_eq!(netns(false), Some(GONE + 10_010), "{source}");
        assert_eq!(netns(true), Some(GONE + 3_010), "{source}");
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
    let holders = [mount_of(PATH, 1, 1)];
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
        case.searched(at, &[mount_of(PATH, 1, 1)]);
        case.codes_at(at + 1).contains(&Code::NetnsLeaked)
    };
    assert!(!search(&mut without, GONE + 89_000));
    assert!(search(&mut without, GONE + 90_100));
}

/// When the runtime is started, in ms, in the cases of a sandbox that no runtime has ever reported.
const STARTED: u64 = 20_000;

/// The one runtime of the node.
fn run(started: Option<u64>) -> Observation {
    let runtime = RuntimeProcess {
        pid: 800,
        engine: Engine::Containerd,
        started: started.map(|ms| BootNs(ms * MS)),
        sockets: Vec::new(),
        dirs: Vec::new(),
        asked: true,
        ignored: false,
    };
    Observation::RuntimeProcesses { runtimes: vec![runtime], monitors: Vec::new(), complete: true }
}

/// A netns that CNI's result cache names and a reservation, of two sandboxes that no runtime has ever reported, seen at
/// `seen` and dated as of the boot.
fn denied(seen: u64) -> Case {
    let mut case = Case::bare();
    case.source("containerd", SourceStatus::Active);
    case.source("host-local", SourceStatus::Active);
    case.at(1, Observation::Sight(SEEN));
    case.store(2, Vec::new());
    if seen > 1_000 {
        case.list(1_000, other());
    }
    case.at(seen, Observation::Netns { netns: POD });
    let local = ip(5);
    let key = AddressKey { ifindex: 2, local, prefix_len: 24, peer: None };
    let address = Address { key, scope: Some(0), flags: Some(0) };
    case.at(seen, Observation::Address { netns: POD, address });
    case.cached(seen, "cbr0");
    case.at(seen, Observation::Holder { netns: POD, holder: mount_of(PATH, 1, 1) });
    let dated = Reservation { since: Some(0), ..reservation(9, NEW) };
    case.store(seen, vec![Observation::Reservation(dated)]);
    if seen <= 1_000 {
        case.list(1_000, other());
    }
    case
}

/// How long after the start of the runtime, whose process is as it says, this code is found.
fn told(mut case: Case, process: Observation, code: Code) -> Option<u64> {
    case.at(STARTED + 1, process);
    (1..400).map(|second| second * 1_000 + 10).find(|after| {
        let at = STARTED + after;
        case.list(at, other());
        case.searched(at, &[mount_of(PATH, 1, 1)]);
        case.codes_at(at + 1).contains(&code)
    })
}

/// A sandbox that no runtime has ever reported may still be made. If every runtime was started after it was begun, none
/// is making it, and the table applies from then on. The default `leak_age` is five minutes.
#[test]
fn a_runtime_that_was_started_later_is_believed_at_once() {
    let young = Some(STARTED);
    // Of the netns the search is one proof, and that calls are observed another; of the reservation only the latter.
    assert_eq!(told(denied(900), run(young), Code::NetnsLeaked), Some(3_010));
    assert_eq!(told(denied(900), run(young), Code::IpamReservationLeaked), Some(10_010));
    for old in [Some(100), None] {
        let found = told(denied(900), run(old), Code::NetnsLeaked);
        assert!(found > Some(250_000), "it may be making it: {found:?}");
    }
}

/// What was seen after the runtime's start may be of this run of it, whatever its date: a clock that was set since the
/// boot makes what is younger look older.
#[test]
fn that_a_runtime_is_younger_is_no_matter_of_dates() {
    for code in [Code::NetnsLeaked, Code::IpamReservationLeaked] {
        let found = told(denied(STARTED + 1), run(Some(STARTED)), code);
        assert!(found > Some(250_000), "{code:?}: {found:?}");
        // The ADD was observed before the runtime was started.
        let mut case = denied(STARTED + 1);
        for (pid, id) in [(500, ID), (501, NEW)] {
            case.call(900, pid, crate::fact::CniCommand::Add, id);
            case.call_ended(1_000, pid, 0);
        }
        let found = told(case, run(Some(STARTED)), code);
        assert!(found < Some(20_000), "{code:?}: {found:?}");
    }
}

/// A netns of which only the inode is known may be another one than was seen first.
#[test]
fn a_netns_is_older_than_a_runtime_only_by_its_cookie() {
    let nameless = NetnsRef { cookie: None, ..POD };
    let mut case = denied(STARTED + 1);
    case.at(900, Observation::Netns { netns: nameless });
    case.at(STARTED + 1, Observation::Netns { netns: POD });
    let found = told(case, run(Some(STARTED)), Code::NetnsLeaked);
    assert!(found > Some(250_000), "{found:?}");
}
