//! What `ipwatch-ipam` asks before an ADD: whether whoever had an address from a store still has it. And what is said of
//! an address that it has parked.

use super::dispute::device;
use super::ipam::{NEW, SEEN, ip, reservation};
use super::sandboxes::{ID, PATH, mount_of, other};
use super::*;
use crate::fact::{Attachment, CniCommand};
use crate::map::{Given, Hold, StoreNetwork};

const THIRD: &str = "cc4c1b2a9d7e6f5041322314a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e";
const PARKED: &str = "ipwatch-parked-0f3c9a12-7-1";
const PLACE: StoreNetwork<'_> = StoreNetwork { store: "host-local", network: "cbr0" };
/// Another pod's netns, with the address of the first one on its device too.
const NEXT: NetnsRef = NetnsRef { cookie: Some(8), inode: Some(80), nsid: Some(9) };

impl Case {
    /// A pod with a reserved IP, and a pair to the node.
    fn on_a_pair() -> Self {
        let mut case = Self::reserved();
        case.pair(POD, 20);
        case
    }

    fn pair(&mut self, netns: NetnsRef, end: u32) {
        self.at(20, Observation::Link { netns, link: device(2, "veth", (end, Some(0))) });
        let link = device(end, "veth", (2, netns.nsid));
        self.at(20, Observation::Link { netns: HOST, link });
    }

    /// The answer to an ADD of 10.0.0.5 for a container.
    fn hold(&mut self, ms: u64, container: &str) -> &'static str {
        self.wants(ms);
        match self.0.hold(PLACE, ip(5), container, BootNs(ms * MS)) {
            Hold::Nobody => "nobody",
            Hold::Unknown => "unknown",
            Hold::Leaving(..) => "leaving",
            Hold::Still(_, Given::Released(_)) => "released",
            Hold::Still(_, Given::Reserved) => "reserved",
            Hold::Still(_, Given::Cached) => "cached",
        }
    }
}

#[test]
fn whoever_had_it_from_this_store_and_has_it_still_is_told() {
    let mut case = Case::on_a_pair();
    assert_eq!(case.hold(1_000, NEW), "reserved", "that it was freed is not heard of yet");
    assert_eq!(case.hold(1_000, ID), "nobody", "an ADD that is repeated");
    case.release(2_000, 5);
    assert_eq!(case.hold(2_001, NEW), "released");
    case.reserve(2_100, 5, NEW);
    assert_eq!(case.hold(2_101, NEW), "released");
    case.at(3_000, Observation::NetnsDying { netns: POD });
    assert_eq!(case.hold(3_001, NEW), "leaving", "its teardown has begun");
    assert_eq!(case.hold(5_001, NEW), "released", "its teardown hangs");
    case.at(6_000, Observation::NetnsGone { netns: POD });
    assert_eq!(case.hold(6_001, NEW), "nobody");
}

#[test]
fn after_a_restart_the_runtimes_cache_tells() {
    let mut case = Case::with_runtime();
    case.source("host-local", SourceStatus::Active);
    case.at(1, Observation::Sight(SEEN));
    case.pair(POD, 20);
    case.store(12, vec![]);
    assert_eq!(case.hold(1_000, NEW), "nobody", "no store is known to have given it");
    case.cached(1_001, "cbr0");
    assert_eq!(case.hold(1_002, NEW), "cached");
    case.cached(1_003, "other");
    assert_eq!(case.hold(1_004, NEW), "nobody");
}

#[test]
fn another_network_and_a_device_that_leads_nowhere_do_not_count() {
    let mut case = Case::on_a_pair();
    case.release(2_000, 5);
    let place = StoreNetwork { network: "other", ..PLACE };
    assert!(matches!(case.0.hold(place, ip(5), NEW, BootNs(2_001 * MS)), Hold::Nobody));
    let place = StoreNetwork { store: "whereabouts", ..PLACE };
    assert!(!matches!(case.0.hold(place, ip(5), NEW, BootNs(2_001 * MS)), Hold::Still(..)));
    let mut apart = Case::reserved();
    apart.release(2_000, 5);
    assert_eq!(apart.hold(2_001, NEW), "nobody", "nothing leads from the node to it");
}

/// Links are not kept where there are too many, or while memory is short.
#[test]
fn a_device_that_is_not_kept_may_lead_to_the_node() {
    let mut case = Case::reserved();
    case.0.0.bound_fittings(0);
    case.pair(POD, 20);
    case.release(2_000, 5);
    assert_eq!(case.hold(2_001, NEW), "released");
}

#[test]
fn its_own_del_is_waited_for() {
    let mut case = Case::on_a_pair();
    case.call(1_900, 500, CniCommand::Del, ID);
    case.release(2_000, 5);
    assert_eq!(case.hold(2_001, NEW), "leaving");
    case.call_ended(2_100, 500, 0);
    assert_eq!(case.hold(2_200, NEW), "leaving", "netlink may be late");
    assert_eq!(case.hold(2_500, NEW), "released");
    let mut lost = Case::on_a_pair();
    lost.del_without_netns(1_950);
    lost.release(2_000, 5);
    assert_eq!(lost.hold(2_001, NEW), "released", "its DEL takes no device away");
    let mut hangs = Case::on_a_pair();
    hangs.call(1_900, 500, CniCommand::Del, ID);
    hangs.release(2_000, 5);
    assert_eq!(hangs.hold(5_000, NEW), "released", "one that hangs lets go of nothing");
    let mut blind = Case::on_a_pair();
    blind.at(1_500, Observation::Sight(crate::fact::Sight { calls: false, ..SEEN }));
    assert_eq!(blind.hold(1_600, NEW), "leaving", "a DEL may be running");
    blind.release(2_000, 5);
    assert_eq!(blind.hold(3_000, NEW), "leaving");
    assert_eq!(blind.hold(8_000, NEW), "released");
}

/// `ipwatch-ipam` returns an IP that is held and takes another one, all in one ADD: the sandbox keeps the other one.
#[test]
fn a_del_that_its_own_add_runs_takes_nothing_away() {
    let mut case = Case::on_a_pair();
    case.call(1_000, 500, CniCommand::Add, ID);
    case.call_within(1_010, (501, 500), (CniCommand::Add, "ipwatch-ipam"), Some(PATH));
    case.call_within(1_020, (502, 501), (CniCommand::Del, "host-local"), Some(PATH));
    case.call_ended(1_030, 502, 0);
    assert_eq!(case.hold(1_035, NEW), "leaving", "the ADD may fail");
    case.call_ended(1_040, 501, 0);
    case.call_ended(1_050, 500, 0);
    case.release(1_100, 5);
    assert_eq!(case.hold(1_101, NEW), "released");
    assert_eq!(case.0.call_history(ID).unwrap().del.first, None, "nobody has removed it");
    // The runtime's DEL runs one as well.
    case.call(1_200, 510, CniCommand::Del, ID);
    case.call_within(1_210, (511, 510), (CniCommand::Del, "host-local"), Some(PATH));
    assert_eq!(case.hold(1_211, NEW), "leaving");
    // And bridge does, when its ADD fails.
    let mut fails = Case::on_a_pair();
    fails.call(1_000, 500, CniCommand::Add, ID);
    fails.call_within(5_000, (501, 500), (CniCommand::Del, "host-local"), Some(PATH));
    fails.release(5_010, 5);
    assert_eq!(fails.hold(5_011, NEW), "leaving");
}

/// Whoever may configure addresses can have every one of a range.
#[test]
fn a_stranger_holds_nothing() {
    let stranger = NetnsRef { cookie: Some(88), inode: Some(880), nsid: Some(11) };
    let mut case = Case::on_a_pair();
    case.call(1_500, 500, CniCommand::Del, ID);
    case.release(1_600, 5);
    case.call_ended(1_700, 500, 0);
    case.gone(1_800);
    case.list(1_900, other());
    for (netns, end) in [(stranger, 21), (NEXT, 22)] {
        case.at(2_000, Observation::Netns { netns });
        case.pair(netns, end);
        for last in [5, 6] {
            let key = AddressKey { ifindex: 2, local: ip(last), prefix_len: 24, peer: None };
            let address = Address { key, scope: Some(0), flags: Some(0x80) };
            case.at(2_001, Observation::Address { netns, address });
        }
    }
    // One of them is a pod's, with an address of its own from this store, and may do what it likes in there.
    let path = "/run/netns/cni-2";
    case.at(2_002, Observation::Holder { netns: NEXT, holder: mount_of(path, 1, 1) });
    let own = Attachment {
        container_id: THIRD.into(),
        ifname: "eth0".into(),
        network: "cbr0".into(),
        netns_path: Some(path.into()),
        ips: vec![(ip(6), 24)],
        made: None,
        pod: None,
    };
    case.at(2_003, Observation::Attachment(own));
    case.at(2_004, Observation::Reservation(reservation(6, THIRD)));
    for ms in [2_100, 4_000, 40_000] {
        assert_eq!(case.hold(ms, NEW), "nobody", "after {ms} ms");
    }
    case.reserve(41_000, 5, NEW);
    assert_eq!(case.hold(41_001, NEW), "nobody");
}

/// A user may name a cgroup as a runtime would, within the user's own session.
#[test]
fn a_users_own_cgroup_proves_no_container() {
    let hold = |slice: &str| {
        let mut case = Case::on_a_pair();
        case.release(2_000, 5);
        case.gone(2_001);
        case.at(2_002, Observation::Netns { netns: NEXT });
        case.pair(NEXT, 22);
        let key = AddressKey { ifindex: 2, local: ip(5), prefix_len: 24, peer: None };
        let address = Address { key, scope: Some(0), flags: Some(0x80) };
        case.at(2_003, Observation::Address { netns: NEXT, address });
        let key = TaskKey { pid: 77, tid: 77, start: 100 };
        case.at(2_003, Observation::Task(task(key, NEXT)));
        let path = format!("/{slice}/cri-containerd-{ID}.scope");
        case.at(2_004, Observation::Cgroup { task: key, path });
        case.reserve(2_100, 5, ID);
        case.hold(9_000, NEW)
    };
    assert_eq!(hold("system.slice"), "reserved");
    assert_eq!(hold("user.slice/user-1000.slice/user@1000.service"), "nobody");
}

#[test]
fn what_is_not_seen_is_unknown() {
    let mut case = Case::on_a_pair();
    case.source("netlink", SourceStatus::Down);
    assert_eq!(case.hold(1_000, NEW), "reserved", "what is known stays so");
    case.gone(1_001);
    assert_eq!(case.hold(1_002, NEW), "unknown");
    case.source("netlink", SourceStatus::Active);
    assert_eq!(case.hold(1_003, NEW), "nobody");
    case.source("host-local", SourceStatus::Down);
    assert_eq!(case.hold(1_004, NEW), "unknown");
    let mut nothing = Case::pod();
    assert_eq!(nothing.hold(1_000, NEW), "unknown", "no store has told of anything");
}

/// The plugin takes it back and parks it: nobody is said to have been given it, and who has it is not forgotten.
#[test]
fn what_is_parked_is_neither_handed_out_nor_freed() {
    let mut case = Case::on_a_pair();
    case.release(2_000, 5);
    case.reserve(2_100, 5, NEW);
    case.release(2_110, 5);
    case.reserve(2_120, 5, PARKED);
    for ms in [3_000, 10_000, 60_000] {
        assert_eq!(case.codes_at(ms), [], "after {ms} ms");
    }
    let [entry] = case.0.reservations_view(None, None, 9).try_into().unwrap();
    assert_eq!(entry.agree.as_deref(), Some("parked"));
    assert_eq!(case.0.disagreements(9).len(), 1, "`query ipam` lists it");
    assert!(case.0.hold_of(ip(5), 7).is_some() && case.0.hold_of(ip(5), 8).is_none());
    case.release(61_000, 5);
    assert_eq!(case.codes_at(62_000), [Code::IpReleasedButHeld]);
    case.reserve(63_000, 5, THIRD);
    assert_eq!(case.hold(63_001, THIRD), "released");
    assert!(case.codes_at(63_400).contains(&Code::IpConflictImminent));
}

#[test]
fn what_is_parked_is_no_leak_while_its_holder_is_up() {
    let mut case = Case::on_a_pair();
    case.release(2_000, 5);
    case.reserve(2_100, 5, PARKED);
    case.list(3_000, other());
    for ms in [10_000, 3_600_000, 7_200_000] {
        assert!(!case.codes_at(ms).contains(&Code::IpamReservationLeaked), "after {ms} ms");
    }
}
