//! One IP in two netns: reported where they can reach each other, and nowhere else.

use std::net::IpAddr;

use super::ipam::{NEW, ip};
use super::sandboxes::{mount_of, sandbox};
use super::*;
use crate::contract::Prefix;
use crate::fact::{
    Claim, ClaimKind, Hop, Life, LinkDetail, Mac, PodName, Route, RouteKey, Sandbox, Vlans,
};
use crate::finding::Severity;

/// The netns of container `n`. Its nsid on the host is 10 + n, and its end of the pair there is 100 + n.
fn netns(n: u32) -> NetnsRef {
    NetnsRef { cookie: Some(100 + u64::from(n)), inode: Some(1_000 + n), nsid: Some(10 + n as i32) }
}

fn link(ifindex: u32, kind: &str) -> Link {
    let (name, kind) = (format!("dev{ifindex}"), Some(kind.to_owned()));
    Link { ifindex, name, kind, up: true, ..Link::default() }
}

fn veth(ifindex: u32, peer: u32, peer_nsid: Option<i32>) -> Link {
    Link { peer: Some(peer), peer_nsid, ..link(ifindex, "veth") }
}

fn bridge(ifindex: u32, vlan_filtering: bool) -> Link {
    Link { detail: Some(LinkDetail::Bridge { vlan_filtering }), ..link(ifindex, "bridge") }
}

impl Case {
    fn there(&mut self, netns: NetnsRef, link: Link) {
        self.at(1, Observation::Link { netns, link });
    }

    /// Containers, each with a pair to the host and the master of the host's end.
    fn containers(all: impl IntoIterator<Item = (u32, Option<u32>)>) -> Self {
        let mut case = Self::pod();
        for master in [5, 6] {
            case.there(HOST, bridge(master, false));
        }
        for (n, master) in all {
            case.there(netns(n), veth(2, 100 + n, Some(0)));
            case.there(HOST, Link { master, ..veth(100 + n, 2, netns(n).nsid) });
        }
        case
    }

    fn on_one_bridge() -> Self {
        Self::containers([(1, Some(5)), (2, Some(5))])
    }

    fn has(&mut self, ms: u64, n: u32, last: u8, prefix_len: u8) {
        let key = AddressKey { ifindex: 2, local: ip(last), prefix_len, peer: None };
        self.at(
            ms,
            Observation::Address {
                netns: netns(n),
                address: Address { key, scope: None, flags: None },
            },
        );
    }

    /// Both have 10.0.0.9.
    fn both(mut self) -> Self {
        self.has(1_000, 1, 9, 24);
        self.has(2_000, 2, 9, 24);
        self
    }

    /// The findings once an overlap has lasted.
    fn lasting(&self) -> Vec<Candidate> {
        detect(&self.0, self.0.now().plus(300 * MS), &Thresholds::default())
    }

    /// A store reserves the IP, without naming an owner.
    pub(super) fn witnessed(mut self, last: u8) -> Self {
        let key = format!("/var/lib/cni/networks/net/10.0.0.{last}");
        let (store, network) = ("host-local".to_owned(), "net".to_owned());
        let ifname = Some("eth0".to_owned());
        let reservation = crate::fact::Reservation {
            store,
            network,
            key,
            ip: ip(last),
            container_id: None,
            ifname,
            pod: None,
            since: None,
        };
        self.at(1, Observation::Reservation(reservation));
        self
    }

    fn twice(&self) -> Vec<Candidate> {
        let mut found = self.lasting();
        found.retain(|one| one.code == Code::IpDuplicate);
        found
    }
}

#[test]
pub(super) fn two_on_one_bridge_are_told_once_it_hurts() {
    let mut case = Case::on_one_bridge().witnessed(9);
    case.has(1_000, 1, 9, 24);
    assert_eq!(case.lasting(), []);
    case.has(2_000, 2, 9, 24);
    let [found] = case.twice().try_into().unwrap();
    assert_eq!((found.severity, found.since), (Severity::Critical, BootNs(2_000 * MS)));
    assert_eq!((found.subject.ip, found.preexisting), (Some(ip(9)), false));
    assert_eq!(found.subject.netns.unwrap().cookie, netns(2).cookie);
    let proof: Vec<String> = found.evidence.into_iter().map(|item| item.text).collect();
    let proof = proof.join("\n");
    for part in ["net:[1001]", "net:[1002]", "\"bridge dev5\" of the host", "came up on dev2"] {
        assert!(proof.contains(part), "{part} is not in\n{proof}");
    }
    assert!(
        found.impact.as_str().contains("net:[1002] (cookie 102), which came second"),
        "{}",
        found.impact
    );
    // After a restart they are found in the other order.
    let mut again = Case::on_one_bridge();
    again.has(1_000, 2, 9, 24);
    again.has(2_000, 1, 9, 24);
    assert_eq!(again.twice()[0].key, found.key);
    let key = AddressKey { ifindex: 2, local: ip(9), prefix_len: 24, peer: None };
    case.at(3_000, Observation::AddressGone { netns: netns(1), key });
    assert_eq!(case.lasting(), []);
}

#[test]
fn which_came_second_is_not_said_when_nobody_saw() {
    let mut case = Case::on_one_bridge();
    for n in [1, 2] {
        let scope = crate::fact::Scope::Addresses { netns: netns(n) };
        case.at(900, Observation::Began(scope.clone()));
        case.has(900, n, 9, 24);
        case.at(900, Observation::Ended { scope, began: BootNs(900 * MS), complete: true });
    }
    let [found] = case.twice().try_into().unwrap();
    assert!(found.impact.as_str().contains("came at an unknown time"), "{}", found.impact);
    let mut seen = Case::on_one_bridge();
    seen.has(500, 1, 9, 24);
    let scope = crate::fact::Scope::Addresses { netns: netns(2) };
    seen.at(900, Observation::Began(scope));
    seen.has(900, 2, 9, 24);
    let [found] = seen.twice().try_into().unwrap();
    assert_eq!(found.subject.netns.unwrap().cookie, netns(1).cookie, "it was seen to come");
}

/// A quick pod's address is read in a dump before an event reports it: the creation time of its sandbox shows that it
/// came later.
#[test]
fn the_newer_one_is_ended_only_where_it_is_known() {
    let told = |created: Option<i64>| {
        let mut case = Case::on_one_bridge();
        case.has(500, 1, 9, 24);
        let path = "/run/netns/cni-2";
        case.at(800, Observation::Holder { netns: netns(2), holder: mount_of(path, 1, 1) });
        case.at(810, Observation::Began(crate::fact::Scope::Addresses { netns: netns(2) }));
        case.has(810, 2, 9, 24);
        assert_eq!(case.twice().len(), 1, "its sandbox is not known yet");
        let (id, netns_path) = ("b".repeat(64), Some(path.to_owned()));
        let pod = Some(PodName {
            namespace: "shop".into(),
            name: "web-4".into(),
            uid: Some("u-2".into()),
        });
        let made =
            Sandbox { id, pod, created, netns_path, pid: None, ..sandbox(Life::Alive, "Ready") };
        case.at(850, Observation::Sandbox(made));
        case.wants(901);
        let [found] = case.twice().try_into().unwrap();
        let ends =
            found.remediation.iter().any(|step| step.line().contains("kubectl delete --raw"));
        (found.subject.netns.unwrap().cookie, ends, found.impact.to_string())
    };
    let wall = |ms: i64| Some(ms * 1_000_000);
    let (second, ends, said) = told(wall(700));
    assert_eq!((second, ends), (netns(2).cookie, true), "{said}");
    assert!(said.contains("which came second"), "{said}");
    for created in [None, wall(400)] {
        let (_, ends, said) = told(created);
        assert!(!ends && said.contains("came at an unknown time"), "{created:?}: {said}");
    }
}

/// A reader must be able to find both sides: by pod, else by the netns's path and a process in it, by MAC and by port.
#[test]
fn both_sides_are_named_by_what_a_person_can_look_up() {
    let mut case = Case::on_one_bridge().witnessed(9);
    for n in [1, 2] {
        let mac = Some(Mac([2, 0, 0, 0, 9, n as u8]));
        case.there(netns(n), Link { mac, ..veth(2, 100 + n, Some(0)) });
    }
    let (key, path) = (TaskKey { pid: 7007, tid: 7007, start: 100 }, "/run/netns/vm7");
    case.at(2, Observation::Holder { netns: netns(2), holder: mount_of(path, 1, 1) });
    case.at(2, Observation::Task(task(key, netns(2))));
    // Anybody may mount it at any path in a mount namespace of their own.
    let forged = mount_of("/run/x", 9, 4242);
    case.at(2, Observation::Holder { netns: netns(2), holder: forged });
    let case = case.both();
    let found = detect(&case.0, case.0.now().plus(6_000 * MS), &Thresholds::default());
    let found = found.into_iter().find(|one| one.code == Code::IpDuplicate).unwrap();
    let text = lines(&found);
    let newer = "Stop the newer one (netns \"/run/netns/vm7\", pid 7007 ";
    assert!(text.contains(newer), "{text}");
    let impact = found.impact.as_str();
    assert!(impact.contains("and in netns \"/run/netns/vm7\", which came second"), "{impact}");
    let proof: Vec<String> = found.evidence.into_iter().map(|item| item.text).collect();
    let proof = proof.join("\n");
    for part in [
        "came up on dev2 (MAC 02:00:00:00:09:01, port dev101) of net:[1001]",
        "came up on dev2 (MAC 02:00:00:00:09:02, port dev102) of netns \"/run/netns/vm7\"",
    ] {
        assert!(proof.contains(part), "{part} is not in\n{proof}");
    }
}

#[test]
fn more_than_two_are_one_finding_that_names_each() {
    let mut case = Case::containers((1..=4).map(|n| (n, Some(5))));
    for n in 1..=4 {
        case.has(1_000 + u64::from(n), n, 9, 24);
    }
    let [found] = case.twice().try_into().unwrap();
    assert_eq!(found.subject.netns.unwrap().cookie, Some(102), "who came second");
    let proof: Vec<String> = found.evidence.into_iter().map(|item| item.text).collect();
    let proof = proof.join("\n");
    for n in 1..=4 {
        let name = format!("net:[{}]", 1_000 + n);
        assert!(proof.contains(&name), "{name} is not in\n{proof}");
    }
}

/// A sandbox in a crash loop gets another netns each time.
#[test]
fn a_second_holder_that_is_made_anew_is_the_same_finding() {
    let mut case = Case::containers((1..=3).map(|n| (n, Some(5)))).both();
    let first = case.twice();
    let key = AddressKey { ifindex: 2, local: ip(9), prefix_len: 24, peer: None };
    case.at(3_000, Observation::AddressGone { netns: netns(2), key });
    assert_eq!(case.twice(), []);
    case.has(4_000, 3, 9, 24);
    let again = case.twice();
    assert_eq!((again.len(), &again[0].key), (1, &first[0].key));
    // On another bridge it is another finding.
    let other = Case::containers([(1, Some(6)), (2, Some(6))]).both();
    assert_ne!(other.twice()[0].key, first[0].key);
}

#[test]
fn where_they_do_not_meet_nothing_is_told() {
    let apart = Case::containers([(1, Some(5)), (2, Some(6))]).both();
    assert_eq!(apart.lasting(), [], "two bridges");
    let mut isolated = Case::on_one_bridge().both();
    assert_eq!(isolated.twice().len(), 1);
    for n in [1, 2] {
        let port = veth(100 + n, 2, netns(n).nsid);
        isolated.there(HOST, Link { master: Some(5), isolated: true, ..port });
    }
    assert_eq!(isolated.lasting(), [], "isolated ports");
    let mut down = Case::on_one_bridge().both();
    down.there(HOST, Link { up: false, ..bridge(5, false) });
    assert_eq!(down.lasting(), [], "a bridge that is down");
    let mut unknown = Case::on_one_bridge().both();
    unknown.there(HOST, link(5, "bridge"));
    assert_eq!(unknown.lasting(), [], "a bridge of which nothing is known");
}

#[test]
fn vlans_keep_them_apart_or_not() {
    let mut case = Case::on_one_bridge().both();
    case.there(HOST, bridge(5, true));
    assert_eq!(case.lasting(), [], "not told of");
    let vlan = |case: &mut Case, n: u32, id: u16| {
        let vlans = vec![Vlans { first: id, last: id, pvid: true, untagged: true }];
        case.at(3_000, Observation::Vlans { netns: HOST, ifindex: 100 + n, vlans });
    };
    vlan(&mut case, 1, 10);
    vlan(&mut case, 2, 20);
    assert_eq!(case.lasting(), []);
    vlan(&mut case, 2, 10);
    assert_eq!(case.twice().len(), 1);
}

#[test]
fn addresses_that_nobody_gets_an_answer_from_do_not_count() {
    for (flags, count) in [(0x80, 1), (0xc0, 0), (0x88, 0)] {
        let mut case = Case::on_one_bridge();
        for n in [1, 2] {
            let local = "2001:db8::9".parse().unwrap();
            let key = AddressKey { ifindex: 2, local, prefix_len: 64, peer: None };
            let flags = Some(if n == 1 { 0x80 } else { flags });
            let address = Address { key, scope: Some(0), flags };
            case.at(1_000 + u64::from(n), Observation::Address { netns: netns(n), address });
        }
        assert_eq!(case.twice().len(), count, "{flags:x}");
    }
    let mut case = Case::on_one_bridge().both();
    case.at(2_500, Observation::NetnsDying { netns: netns(1) });
    assert_eq!(case.lasting(), [], "it is being torn down");
}

#[test]
fn link_local_addresses_and_far_ends_are_nobodys() {
    let mut case = Case::on_one_bridge();
    for n in [1, 2] {
        for (local, peer) in [
            ("169.254.1.1", None),
            ("fe80::1", None),
            (["10.0.0.21", "10.0.0.22"][n as usize - 1], Some(ip(1))),
        ] {
            let local = local.parse().unwrap();
            let key = AddressKey { ifindex: 2, local, prefix_len: 32, peer };
            let address = Address { key, scope: Some(0), flags: Some(0x80) };
            case.at(1_000, Observation::Address { netns: netns(n), address });
        }
    }
    assert_eq!(case.lasting(), []);
}

#[test]
fn what_is_shared_on_purpose_is_not_told() {
    let mut case = Case::on_one_bridge().both();
    case.0.share(vec!["192.0.2.0/24".parse::<Prefix>().unwrap()]);
    assert_eq!(case.twice().len(), 1);
    case.0.share(vec!["10.0.0.8/30".parse::<Prefix>().unwrap()]);
    assert_eq!(case.lasting(), []);
}

#[test]
fn a_gateway_that_is_the_same_on_every_bridge_is_one() {
    for (other, count) in [(1, 0), (2, 1)] {
        let mut case = Case::on_one_bridge();
        for (n, mac) in [(1, 1), (2, other)] {
            let mac = Some(Mac([2, 0, 0, 0, 0, mac]));
            case.there(netns(n), Link { mac, ..bridge(7, false) });
            case.there(netns(n), Link { master: Some(7), ..veth(2, 100 + n, Some(0)) });
            let key = AddressKey { ifindex: 7, local: ip(1), prefix_len: 24, peer: None };
            let address = Address { key, scope: Some(0), flags: Some(0x80) };
            case.at(1_000, Observation::Address { netns: netns(n), address });
        }
        assert_eq!(case.twice().len(), count);
    }
}

fn route(last: u8, table: u32, ifindex: u32) -> Observation {
    let key = RouteKey { to: ip(last), prefix_len: 32, table, priority: 0 };
    Observation::Route {
        netns: HOST,
        route: Route { key, hops: vec![Hop { ifindex, gateway: None }] },
    }
}

#[test]
pub(super) fn pairs_to_one_router_meet_there() {
    let mut single = Case::containers([(1, None), (2, None)]);
    single.has(1_000, 1, 9, 32);
    single.has(1_001, 2, 9, 32);
    let [found] = single.twice().try_into().unwrap();
    assert!(found.impact.as_str().contains("the router that is the host"), "{}", found.impact);
}

#[test]
pub(super) fn a_route_for_the_ip_alone_says_that_they_meet() {
    let mut routed = Case::containers([(1, None), (2, None)]).both();
    assert_eq!(routed.lasting(), [], "no route says that it is one network");
    routed.at(3_000, route(8, 254, 101));
    routed.at(3_000, route(9, 100, 101));
    routed.at(3_000, route(9, 254, 55));
    assert_eq!(routed.lasting(), [], "another IP, another table, elsewhere");
    routed.at(3_001, route(9, 254, 102));
    assert_eq!(routed.twice().len(), 1);
    routed.there(HOST, Link { master: Some(5), ..veth(101, 2, netns(1).nsid) });
    assert_eq!(routed.lasting(), [], "a bridge's port is no router's");
}

#[test]
fn another_vrf_is_another_router() {
    let mut case = Case::containers([(1, None), (2, Some(50))]);
    case.has(1_000, 1, 9, 32);
    case.has(1_001, 2, 9, 32);
    assert_eq!(case.lasting(), [], "what its master is, is not known");
    case.there(HOST, Link { detail: Some(LinkDetail::Vrf { table: 100 }), ..link(50, "vrf") });
    assert_eq!(case.lasting(), []);
    case.there(HOST, Link { master: Some(50), ..veth(101, 2, netns(1).nsid) });
    assert_eq!(case.twice().len(), 1, "both in one");
}

/// Docker in Docker: each has a bridge of its own with the same range.
#[test]
fn five_hundred_overlapping_ranges_on_bridges_of_their_own_are_nothing() {
    let mut case = Case::pod();
    case.0.1.get_mut().steps = Steps::Asked;
    case.there(HOST, bridge(5, false));
    for n in 1..=500u32 {
        let (outer, inner) = (netns(n), netns(1_000 + n));
        case.there(HOST, Link { master: Some(5), ..veth(100 + n, 2, outer.nsid) });
        case.there(outer, veth(2, 100 + n, Some(0)));
        case.there(outer, bridge(3, false));
        case.there(outer, Link { master: Some(3), ..veth(4, 2, Some(1)) });
        case.there(inner, veth(2, 4, Some(0)));
        case.at(1, Observation::PeerNetns { netns: outer, nsid: 1, peer: inner });
        case.at(1, Observation::PeerNetns { netns: inner, nsid: 0, peer: outer });
        for (netns, ifindex, last) in [(outer, 3, 1), (inner, 2, 2)] {
            let local = Ipv4Addr::new(172, 17, 0, last).into();
            let key = AddressKey { ifindex, local, prefix_len: 16, peer: None };
            let address = Address { key, scope: Some(0), flags: Some(0x80) };
            case.at(1_000, Observation::Address { netns, address });
        }
    }
    assert_eq!(case.lasting(), []);
    // They are known: two on one of these bridges are reported.
    case.there(netns(1), Link { master: Some(3), ..veth(6, 2, Some(2)) });
    case.there(netns(3_000), veth(2, 6, None));
    case.at(1, Observation::PeerNetns { netns: netns(1), nsid: 2, peer: netns(3_000) });
    case.there(netns(3_000), veth(2, 6, Some(0)));
    case.at(1, Observation::PeerNetns { netns: netns(3_000), nsid: 0, peer: netns(1) });
    let local = Ipv4Addr::new(172, 17, 0, 2).into();
    let key = AddressKey { ifindex: 2, local, prefix_len: 16, peer: None };
    let address = Address { key, scope: Some(0), flags: Some(0x80) };
    case.at(1_001, Observation::Address { netns: netns(3_000), address });
    assert_eq!(case.twice().len(), 1);
}

#[test]
pub(super) fn it_follows_from_what_still_holds_the_ip() {
    let mut case = Case::on_one_bridge().witnessed(5);
    case.there(POD, veth(2, 103, Some(0)));
    case.there(HOST, Link { master: Some(5), ..veth(103, 2, POD.nsid) });
    case.killed(1_000);
    case.look(6_100, hanging());
    case.has(7_000, 2, 5, 24);
    let [root, found] = case.lasting().try_into().unwrap();
    assert_eq!((root.code, root.severity), (Code::IpHeldByStuckProcess, Severity::Critical));
    assert_eq!(found.code, Code::IpDuplicate);
    assert_eq!(found.caused_by, Some((root.code, root.key)));
}

#[test]
fn it_follows_from_having_been_handed_out() {
    let mut case = Case::reserved();
    case.there(HOST, bridge(5, false));
    case.there(POD, veth(2, 103, Some(0)));
    case.there(HOST, Link { master: Some(5), ..veth(103, 2, POD.nsid) });
    case.there(netns(2), veth(2, 102, Some(0)));
    case.there(HOST, Link { master: Some(5), ..veth(102, 2, netns(2).nsid) });
    case.release(20_000, 5);
    case.reserve(40_000, 5, NEW);
    case.has(40_100, 2, 5, 24);
    let found = case.then(40_400);
    let [released, handed, twice] = found.try_into().unwrap();
    assert_eq!(released.code, Code::IpReleasedButHeld);
    let cause = Some((released.code, released.key));
    assert_eq!((handed.code, &handed.caused_by), (Code::IpConflictImminent, &cause));
    assert_eq!((twice.code, &twice.caused_by), (Code::IpDuplicate, &cause), "one page");
}

#[test]
fn without_netlink_nothing_is_over() {
    let mut case = Case::on_one_bridge().both();
    assert!(!blind(&case.0, &Thresholds::default()).contains(&Code::IpDuplicate));
    case.source("netlink", SourceStatus::Down);
    assert!(blind(&case.0, &Thresholds::default()).contains(&Code::IpDuplicate));
}

#[test]
pub(super) fn the_hosts_own_ip_counts() {
    let mut case = Case::on_one_bridge();
    case.has(1_000, 1, 9, 24);
    let key = AddressKey { ifindex: 5, local: ip(9), prefix_len: 24, peer: None };
    let address = Address { key, scope: None, flags: None };
    case.at(2_000, Observation::Address { netns: HOST, address });
    assert_eq!(case.twice().len(), 1, "a pod has the bridge's own");
    case.at(3_000, Observation::AddressGone { netns: HOST, key });
    assert_eq!(case.twice(), []);
}

#[test]
fn what_was_not_told_since_events_were_lost_may_be_gone() {
    let mut case = Case::on_one_bridge();
    case.has(1_000, 1, 9, 24);
    case.at(1_500, Observation::Lost { count: None, calls: true });
    case.has(2_000, 2, 9, 24);
    assert_eq!(case.twice(), [], "the first one's end may be what was lost");
    case.has(3_000, 1, 9, 24);
    assert_eq!(case.twice().len(), 1, "it was read again");
    case.at(4_000, Observation::Lost { count: None, calls: true });
    assert!(blind(&case.0, &Thresholds::default()).contains(&Code::IpDuplicate));
}

#[test]
fn what_two_share_hides_nothing_of_others_and_is_not_over() {
    let mut case = Case::containers((1..=3).map(|n| (n, Some(5))));
    for last in 10..=25 {
        case.has(1_000, 1, last, 24);
        case.has(2_000, 2, last, 24);
    }
    assert_eq!((case.twice().len(), is_blind(&case)), (16, false));
    for (n, ms) in [(1, 1_000), (2, 2_000)] {
        case.has(ms, n, 26, 24);
    }
    assert_eq!((case.twice().len(), is_blind(&case)), (16, false), "others' are judged");
    case.has(1_000, 1, 200, 24);
    case.has(2_000, 3, 200, 24);
    assert_eq!(case.twice().len(), 17, "that of two others");
}

#[test]
fn two_that_answer_follow_from_the_two_that_have_the_ip_and_from_no_others() {
    let mac = |n: u8| Mac([2, 0, 0, 0, 9, n]);
    let answers = |case: &mut Case, ifindex: u32, macs: [u8; 2]| {
        for n in macs {
            let claim = Claim { ifindex, ip: ip(9), mac: mac(n), kind: ClaimKind::Reply };
            case.at(5_000, Observation::Claimed { netns: HOST, claim });
        }
        let found = case.then(5_001);
        let twice = found.iter().find(|one| one.code == Code::IpDuplicate).unwrap();
        let root = Some((twice.code, twice.key.clone()));
        let mut heard = found.iter().filter(|one| one.code == Code::NeighbourConflict);
        (heard.next().unwrap().caused_by.clone(), root)
    };
    let two = || {
        let mut case = Case::on_one_bridge().both();
        for n in [1, 2] {
            case.there(netns(n), Link { mac: Some(mac(n as u8)), ..veth(2, 100 + n, Some(0)) });
        }
        case
    };
    let (cause, root) = answers(&mut two(), 5, [1, 2]);
    assert_eq!(cause, root);
    let (cause, _) = answers(&mut two(), 6, [7, 8]);
    assert_eq!(cause, None, "on another link");
}

/// The nth netns of a user.
fn of_a_user(n: u32) -> NetnsRef {
    netns(5_000 + n)
}

impl Case {
    /// Netns of a user on a bridge in the first of them, which leads nowhere else, all with these IPs.
    fn users(&mut self, count: u32, ips: impl Iterator<Item = IpAddr> + Clone) {
        for n in 0..count {
            let netns = of_a_user(n);
            self.at(1, Observation::NetnsUser { netns, uid: 1_000, nested: true });
        }
        self.there(of_a_user(0), bridge(2, false));
        for n in 1..count {
            let nsid = Some(n as i32);
            self.at(
                1,
                Observation::PeerNetns { netns: of_a_user(0), nsid: n as i32, peer: of_a_user(n) },
            );
            self.at(1, Observation::PeerNetns { netns: of_a_user(n), nsid: 0, peer: of_a_user(0) });
            self.there(of_a_user(0), Link { master: Some(2), ..veth(100 + n, 2, nsid) });
            self.there(of_a_user(n), veth(2, 100 + n, Some(0)));
        }
        for n in 0..count {
            for local in ips.clone() {
                let key = AddressKey { ifindex: 2, local, prefix_len: 24, peer: None };
                let address = Address { key, scope: None, flags: None };
                self.at(900, Observation::Address { netns: of_a_user(n), address });
            }
        }
    }
}

fn is_blind(case: &Case) -> bool {
    blind(&case.0, &Thresholds::default()).contains(&Code::IpDuplicate)
}

/// A user's many duplicates at low IPs, in netns that lead nowhere.
#[test]
fn what_a_user_has_many_times_hides_no_duplicate_of_others_and_leaves_none_open() {
    let mut case = Case::on_one_bridge();
    case.0.1.get_mut().steps = Steps::Asked;
    case.users(40, (1..=16).map(|last| Ipv4Addr::new(1, 0, 0, last).into()));
    let mut case = case.both();
    let own = |case: &Case| case.twice().iter().filter(|one| one.subject.ip == Some(ip(9))).count();
    assert_eq!((own(&case), is_blind(&case)), (1, false));
    let key = AddressKey { ifindex: 2, local: ip(9), prefix_len: 24, peer: None };
    case.at(3_000, Observation::AddressGone { netns: netns(1), key });
    assert_eq!((own(&case), is_blind(&case)), (0, false));
}

/// A user's netns that is wired to the pods' bridge has the IP of a pod, whoever had it first.
#[test]
fn a_users_duplicate_of_a_pods_ip_is_the_pods() {
    for (pod, user) in [(1_000, 2_000), (2_000, 1_000)] {
        let mut case = Case::containers((1..=3).map(|n| (n, Some(5))));
        case.0.1.get_mut().steps = Steps::Asked;
        case.users(40, (1..=16).map(|last| Ipv4Addr::new(1, 0, 0, last).into()));
        case.at(1, Observation::NetnsUser { netns: netns(1), uid: 0, nested: false });
        for n in [2, 3] {
            case.at(1, Observation::NetnsUser { netns: netns(n), uid: 1_000, nested: true });
        }
        // He has it twice, once before the other two.
        case.has(950, 3, 9, 24);
        case.has(pod, 1, 9, 24);
        case.has(user, 2, 9, 24);
        let told = case.0.duplicates().iter().filter(|one| one.ip == ip(9));
        let pods = case.0.find(&netns(1)).unwrap();
        let of_pod = told.filter(|one| [one.first.at.netns, one.second.at.netns].contains(&pods));
        assert!(of_pod.count() > 0, "the pod's at {pod}");
        assert!(case.twice().iter().any(|one| one.subject.ip == Some(ip(9))));
    }
}

/// Of more duplicates than are told, a finding stays open that is among the others, and ends with what it is about.
#[test]
fn what_is_left_out_is_over_when_it_ends() {
    let is_open =
        |case: &Case, life: &mut Findings, ms: u64| live(&case.0, life, ms).contains(&ip(26));
    let mut case = Case::on_one_bridge();
    for (n, ms) in [(1, 1_000), (2, 2_000)] {
        case.has(ms, n, 26, 24);
    }
    let mut life = Findings::default();
    assert!(is_open(&case, &mut life, 3_000));
    // Both come up anew after sixteen others.
    let key = AddressKey { ifindex: 2, local: ip(26), prefix_len: 24, peer: None };
    for n in [1, 2] {
        case.at(3_001, Observation::AddressGone { netns: netns(n), key });
        (10..=25).for_each(|last| case.has(3_002, n, last, 24));
    }
    (1..=2).for_each(|n| case.has(3_003, n, 26, 24));
    assert_eq!((case.0.duplicates().len(), case.0.left_out_duplicates().len()), (16, 1));
    assert!(is_open(&case, &mut life, 4_000), "it is pending, and holds");
    assert!(!life.is_at_rest(), "no candidate tells of its end");
    case.at(5_000, Observation::AddressGone { netns: netns(1), key });
    assert!(!is_open(&case, &mut life, 5_001));
}

/// An address that moves is added before it is deleted; keepalived takes up to 200 ms.
#[test]
fn an_overlap_of_a_moment_is_not_told_and_a_longer_one_is_when_the_clock_says_so() {
    let mut case = Case::on_one_bridge().both();
    assert_eq!(case.then(2_299), []);
    let next = case.0.agenda(BootNs(2_000 * MS), &Thresholds::default()).next;
    assert!(next.is_some_and(|next| next <= BootNs(2_300 * MS)), "{next:?}");
    assert_eq!(case.then(2_300).len(), 1);
}

#[test]
fn without_a_witness_it_is_information_and_raises_nothing() {
    let found = Case::on_one_bridge().both().twice();
    assert_eq!(found[0].severity, Severity::Info);
    assert!(!lines(&found[0]).contains("cordon"), "{}", lines(&found[0]));
    let found = Case::on_one_bridge().both().witnessed(9).twice();
    assert_eq!(found[0].severity, Severity::Critical, "a store");
    let mut case = Case::on_one_bridge().both();
    let path = "/run/netns/cni-2";
    case.at(2_000, Observation::Holder { netns: netns(2), holder: mount_of(path, 1, 1) });
    let (id, netns_path) = ("b".repeat(64), Some(path.to_owned()));
    let made = Sandbox { id, netns_path, pid: None, ..sandbox(Life::Alive, "Ready") };
    case.at(2_000, Observation::Sandbox(made));
    case.wants(2_001);
    assert_eq!(case.twice()[0].severity, Severity::Critical, "a runtime");
}

/// A user can join two netns of his own by a pair, and give both an IP that some store reserves.
#[test]
fn a_reservation_is_no_witness_for_a_users_netns_that_merely_has_its_ip() {
    let mut case = Case::on_one_bridge().both().witnessed(9);
    for n in [1, 2] {
        case.at(2_000, Observation::NetnsUser { netns: netns(n), uid: 1_000, nested: false });
    }
    case.wants(2_001);
    assert_eq!(case.twice()[0].severity, Severity::Info);
    case.at(2_002, Observation::NetnsUser { netns: netns(2), uid: 0, nested: false });
    case.wants(2_003);
    assert_eq!(case.twice()[0].severity, Severity::Critical, "one of them is root's");
}

#[test]
fn a_reservation_for_another_netns_is_no_witness() {
    let mut case = Case::on_one_bridge().both().witnessed(9);
    assert_eq!(case.twice()[0].severity, Severity::Critical);
    let (path, id) = ("/run/netns/cni-3", "c".repeat(64));
    case.at(2_000, Observation::Holder { netns: POD, holder: mount_of(path, 1, 1) });
    let netns_path = Some(path.to_owned());
    let made = Sandbox { id: id.clone(), netns_path, pid: None, ..sandbox(Life::Alive, "Ready") };
    case.at(2_000, Observation::Sandbox(made));
    let known = case.0.reservations().next().unwrap();
    let reservation = crate::fact::Reservation {
        store: known.store.to_string(),
        network: known.network.to_string(),
        key: known.key.to_string(),
        ip: ip(9),
        container_id: Some(id),
        ifname: None,
        pod: None,
        since: None,
    };
    case.at(2_001, Observation::Reservation(reservation));
    case.wants(2_002);
    assert_eq!(case.twice()[0].severity, Severity::Info);
}

/// A user may name a cgroup as a runtime would wherever a part of the tree was delegated to the user.
#[test]
fn a_cgroup_is_a_witness_only_where_root_made_it() {
    let of = |slice: &str, user: Option<u32>| {
        let mut case = Case::on_one_bridge().both();
        if let Some(uid) = user {
            case.at(2, Observation::NetnsUser { netns: netns(2), uid, nested: false });
        }
        let key = TaskKey { pid: 77, tid: 77, start: 100 };
        case.at(2, Observation::Task(task(key, netns(2))));
        let path = format!("/{slice}/docker-{}.scope", "d".repeat(64));
        case.at(3, Observation::Cgroup { task: key, path });
        case.wants(2_001);
        case.twice()[0].severity
    };
    let severity = |slice: &str| of(slice, None);
    assert_eq!(severity("system.slice"), Severity::Critical);
    assert_eq!(severity("user.slice/user-1000.slice/user@1000.service"), Severity::Info);
    assert_eq!(severity("lxc.payload.web/system.slice"), Severity::Info, "root in a container");
    let pod = format!("kubepods/pod1/{}", "e".repeat(64));
    assert_eq!(severity(&pod), Severity::Info, "a pod's own cgroups");
    // A service with `User=` and `Delegate=yes`: the cgroup is the user's, and so is the user namespace.
    assert_eq!(of("system.slice/ci.service", Some(1000)), Severity::Info);
    assert_eq!(of("system.slice/ci.service", Some(0)), Severity::Critical);
}
