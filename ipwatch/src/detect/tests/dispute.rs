//! When a mismatch between a store and the kernel counts: calls that excuse it and calls that do not, states from
//! before ipwatch's start, what counts as one network.

use super::ipam::{NEW, SEEN, call_key, ip, reservation};
use super::sandboxes::{ID, mount_of};
use super::*;
use crate::fact::{Attachment, CniCall, CniCommand, Reservation, Scope};

impl Case {
    /// ipwatch starts, and host-local does not have the IP of a pod whose cached result names its network.
    pub(super) fn unreserved(ms: u64) -> Self {
        let mut case = Self::with_runtime();
        case.at(1, Observation::Sight(SEEN));
        case.source("host-local", SourceStatus::Active);
        case.cached(5, "cbr0");
        case.range(6, 2, 254);
        case.store(ms, Vec::new());
        case
    }

    /// A DEL begins whose runtime does not find the netns any more.
    pub(super) fn del_without_netns(&mut self, ms: u64) {
        let call = CniCall {
            task: call_key(500),
            parent: 1,
            plugin: "/opt/cni/bin/bridge".into(),
            command: CniCommand::Del,
            container_id: Some(ID.into()),
            netns_path: None,
            ifname: Some("eth0".into()),
            pod: None,
        };
        self.at(ms, Observation::CniBegan(call));
    }
}

#[test]
fn a_del_that_is_repeated_neither_ends_nor_delays_what_is_told() {
    let mut case = Case::reserved();
    case.call(1_900, 500, CniCommand::Del, ID);
    case.release(2_000, 5);
    case.call_ended(2_700, 500, 0);
    assert_eq!(case.codes_at(4_701), [Code::IpReleasedButHeld]);
    case.call(60_000, 501, CniCommand::Del, ID);
    assert_eq!(case.codes_at(60_100), [Code::IpReleasedButHeld], "it runs again");
    case.reserve(60_200, 5, NEW);
    let both = [Code::IpReleasedButHeld, Code::IpConflictImminent];
    assert_eq!(case.codes_at(60_201), both);
    case.call_ended(60_500, 501, 0);
    assert_eq!(case.codes_at(60_501), both);
}

/// A busy node: the release is heard of 1.5 s after the DEL that made it, and the address goes after that.
#[test]
fn a_release_that_is_heard_of_late_is_still_its_dels() {
    let mut case = Case::reserved();
    case.call(1_200, 500, CniCommand::Del, ID);
    case.call_ended(1_700, 500, 0);
    case.release(3_200, 5);
    assert_eq!(case.codes_at(3_600), []);
    assert_eq!(case.codes_at(3_701), [Code::IpReleasedButHeld]);
}

#[test]
fn dels_without_end_excuse_nothing() {
    let mut case = Case::reserved();
    case.call(1_900, 500, CniCommand::Del, ID);
    case.release(2_000, 5);
    case.call_ended(119_000, 500, 0);
    assert_eq!(case.codes_at(119_001), []);
    case.call(119_010, 501, CniCommand::Del, ID);
    let next = case.0.agenda(BootNs(119_020 * MS), &Thresholds::default()).next.unwrap();
    assert!(next <= BootNs(122_000 * MS), "{next:?}");
    assert_eq!(case.codes_at(122_001), [Code::IpReleasedButHeld]);
}

#[test]
fn a_del_that_knows_no_netns_excuses_little() {
    let mut case = Case::reserved();
    case.del_without_netns(1_900);
    case.release(2_000, 5);
    assert_eq!(case.codes_at(2_090), [], "it runs");
    case.call_ended(2_100, 500, 0);
    assert_eq!(case.codes_at(2_390), []);
    assert_eq!(case.codes_at(2_401), [Code::IpReleasedButHeld], "within a second");
}

#[test]
fn an_add_that_has_given_the_ip_excuses_no_release() {
    for (status, expected) in [(0, &[Code::IpReleasedButHeld][..]), (1, &[])] {
        let mut case = Case::reserved();
        case.call(1_000, 499, CniCommand::Add, ID);
        case.call_ended(1_850, 499, status);
        case.del_without_netns(1_900);
        case.release(2_000, 5);
        case.call_ended(2_100, 500, 0);
        assert_eq!(case.codes_at(2_401), expected, "{status}");
    }
}

#[test]
fn what_stood_before_may_be_half_of_a_del_that_nobody_saw() {
    let mut case = Case::unreserved(2_000);
    assert_eq!(case.codes_at(20_000), [], "a slow one");
    let [found] = case.then(32_001).try_into().unwrap();
    assert_eq!((found.code, found.since), (Code::IpReleasedButHeld, BootNs(2_000 * MS)));
    assert!(found.preexisting);
    let mut handed = Case::with_runtime();
    handed.at(1, Observation::Sight(SEEN));
    handed.source("host-local", SourceStatus::Active);
    handed.cached(5, "cbr0");
    handed.store(2_000, vec![Observation::Reservation(reservation(5, NEW))]);
    assert_eq!(handed.codes_at(20_000), [], "its DEL may have run when ipwatch began");
    assert_eq!(handed.codes_at(32_001), [Code::IpConflictImminent]);
}

#[test]
fn an_address_that_was_seen_to_come_did_not_stand_before() {
    let mut case = Case::unreserved(2_000);
    let key = AddressKey { ifindex: 2, local: ip(5), prefix_len: 24, peer: None };
    case.at(4_000, Observation::AddressGone { netns: POD, key });
    let address = Address { key, scope: Some(0), flags: Some(0) };
    case.at(5_000, Observation::Address { netns: POD, address });
    let [found] = case.then(36_000).try_into().unwrap();
    assert_eq!((found.since, found.preexisting), (BootNs(5_000 * MS), false));
}

/// A netns is used for another container, and the run of its ADD is told after what it did.
#[test]
fn an_ip_that_comes_up_with_its_reservation_may_be_the_new_containers() {
    for (came, counts) in [(9_990, 12_000), (10_050, 12_050), (7_000, 10_000)] {
        let mut case = Case::reserved();
        case.call(1_900, 500, CniCommand::Del, ID);
        case.release(2_000, 5);
        let key = AddressKey { ifindex: 2, local: ip(5), prefix_len: 24, peer: None };
        case.at(2_100, Observation::AddressGone { netns: POD, key });
        case.call_ended(2_200, 500, 0);
        let address = Address { key, scope: Some(0), flags: Some(0) };
        let up = Observation::Address { netns: POD, address };
        if came < 10_000 {
            case.at(came, up);
            case.reserve(10_000, 5, NEW);
        } else {
            case.reserve(10_000, 5, NEW);
            case.at(came, up);
        }
        assert_eq!(case.codes_at(counts - 1), [], "{came}");
        assert_eq!(case.codes_at(counts), [Code::IpConflictImminent], "{came}");
    }
}

/// A pod is stuck at once: its IP is freed and handed to the next pod within two seconds. What it had until the release is
/// not the new one's.
#[test]
fn an_ip_that_was_up_before_its_release_is_not_the_new_containers() {
    let mut case = Case::reserved();
    let key = AddressKey { ifindex: 2, local: ip(5), prefix_len: 24, peer: None };
    case.at(1_400, Observation::AddressGone { netns: POD, key });
    let address = Address { key, scope: Some(0), flags: Some(0) };
    case.at(1_500, Observation::Address { netns: POD, address });
    case.release(2_000, 5);
    case.reserve(3_100, 5, NEW);
    assert!(case.codes_at(3_101).contains(&Code::IpConflictImminent));
}

#[test]
fn a_store_that_is_degraded_or_listed_anew_takes_nothing_back() {
    let mut case = Case::unreserved(2_000);
    assert_eq!(case.codes_at(32_001), [Code::IpReleasedButHeld]);
    case.source("host-local", SourceStatus::Degraded);
    assert_eq!(case.codes_at(33_000), [Code::IpReleasedButHeld], "another file is torn");
    case.source("host-local", SourceStatus::Active);
    case.store(40_000, Vec::new());
    let [found] = case.then(40_001).try_into().unwrap();
    assert_eq!((found.code, found.since), (Code::IpReleasedButHeld, BootNs(2_000 * MS)));
    case.reserve(41_000, 5, ID);
    assert_eq!(case.codes_at(41_001), []);
    let mut case = Case::unreserved(2_000);
    case.source("host-local", SourceStatus::Degraded);
    assert_eq!(case.codes_at(60_000), [], "a part of it was unknown all the time");
}

/// Another netns, in which 10.0.0.6 is up for a container of its own.
const NEXT: NetnsRef = NetnsRef { cookie: Some(8), inode: Some(80), nsid: Some(9) };
const MEMBER: &str = "bb4c1b2a9d7e6f5041322314a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e";

pub(super) fn device(ifindex: u32, kind: &str, (peer, peer_nsid): (u32, Option<i32>)) -> Link {
    Link {
        ifindex,
        name: format!("dev{ifindex}"),
        mac: None,
        kind: Some(kind.into()),
        master: None,
        peer: Some(peer),
        peer_nsid,
        up: true,
        loopback: false,
        ..Link::default()
    }
}

impl Case {
    fn link(&mut self, netns: NetnsRef, link: Link) {
        self.at(3, Observation::Link { netns, link });
    }

    /// A known pod without a cached result, and a member of host-local's network.
    fn with_member() -> Self {
        let mut case = Self::with_runtime();
        case.at(1, Observation::Sight(SEEN));
        case.source("host-local", SourceStatus::Active);
        case.member("cbr0");
        case.range(6, 2, 254);
        case.store(2_000, vec![Observation::Reservation(reservation(6, MEMBER))]);
        case
    }

    fn member(&mut self, network: &str) {
        let key = AddressKey { ifindex: 2, local: ip(6), prefix_len: 24, peer: None };
        let address = Address { key, scope: Some(0), flags: Some(0) };
        self.at(3, Observation::Address { netns: NEXT, address });
        let task = task(TaskKey { pid: 30, tid: 30, start: 100 }, NEXT);
        self.at(3, Observation::Task(task));
        let path = "/run/netns/cni-2";
        self.at(3, Observation::Holder { netns: NEXT, holder: mount_of(path, 1, 1) });
        self.at(
            3,
            Observation::Attachment(Attachment {
                container_id: MEMBER.into(),
                ifname: "eth0".into(),
                network: network.into(),
                netns_path: Some(path.into()),
                ips: vec![(ip(6), 24)],
                made: None,
                pod: None,
            }),
        );
    }

    /// Both are attached to one bridge. `back`: the netns that the host's end of the pod's pair refers to.
    fn bridged(&mut self, back: Option<i32>) {
        self.link(POD, device(2, "veth", (20, Some(0))));
        self.link(NEXT, device(2, "veth", (21, Some(0))));
        self.link(HOST, Link { master: Some(5), ..device(20, "veth", (2, back)) });
        self.link(HOST, Link { master: Some(5), ..device(21, "veth", (2, NEXT.nsid)) });
    }
}

#[test]
fn one_bridge_is_one_network_if_the_hosts_end_says_whose_it_is() {
    for (back, expected) in
        [(POD.nsid, vec![Code::IpConflictImminent]), (Some(7), vec![]), (None, vec![])]
    {
        let mut case = Case::with_member();
        case.bridged(back);
        case.reserve(3_000, 5, NEW);
        assert_eq!(case.codes_at(3_001), expected, "{back:?}: a pod within a container's pod");
    }
}

#[test]
fn one_parent_is_one_network_if_it_is_known_to_be_the_hosts() {
    let mut case = Case::with_member();
    for netns in [POD, NEXT] {
        case.link(netns, device(2, "macvlan", (4, Some(0))));
    }
    case.link(HOST, device(4, "bond", (0, None)));
    case.reserve(3_000, 5, NEW);
    assert_eq!(case.codes_at(3_001), [], "0 may be any netns");
    for (netns, end) in [(POD, 40), (NEXT, 41)] {
        case.link(netns, device(3, "veth", (end, Some(0))));
        case.link(HOST, device(end, "veth", (3, netns.nsid)));
    }
    assert_eq!(case.codes_at(3_002), [Code::IpConflictImminent]);
}

#[test]
fn without_a_cached_result_the_bridge_says_what_range_it_is_of() {
    let mut case = Case::with_member();
    assert_eq!(case.codes_at(60_000), [], "nothing says whose network it is");
    case.bridged(POD.nsid);
    let [found] = case.then(60_001).try_into().unwrap();
    assert_eq!((found.code, found.preexisting), (Code::IpReleasedButHeld, true));
    case.release(61_000, 6);
    let still = case.codes_at(61_001);
    assert!(!still.contains(&Code::IpConflictImminent), "{still:?}");
}

#[test]
fn a_network_that_its_store_calls_otherwise_is_known_by_its_members() {
    let terway = |last, id| {
        let (store, network) = ("terway".into(), "eni-1".into());
        Observation::Reservation(Reservation { store, network, ..reservation(last, id) })
    };
    for (own, expected) in [("terway", vec![Code::IpConflictImminent]), ("other", vec![])] {
        let mut case = Case::with_runtime();
        case.at(1, Observation::Sight(SEEN));
        case.source("terway", SourceStatus::Active);
        case.cached(5, own);
        case.member("terway");
        case.at(3_000, terway(6, MEMBER));
        case.wants(3_000);
        let scope = Scope::Reservations { store: "terway".into() };
        case.at(4_000, Observation::Began(scope.clone()));
        case.at(4_000, terway(6, MEMBER));
        case.at(4_000, Observation::Ended { scope, began: BootNs(4_000 * MS), complete: true });
        case.at(5_000, terway(5, NEW));
        assert_eq!(case.codes_at(5_001), expected, "{own}");
    }
}
