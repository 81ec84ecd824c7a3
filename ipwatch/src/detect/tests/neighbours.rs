//! Two MACs for one IP: which are in conflict, and which only appear to be.

use super::*;
use crate::fact::{Claim, ClaimKind, Mac, Neighbour};
use crate::finding::Severity;

pub(super) const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
pub(super) const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const C: Mac = Mac([2, 0, 0, 0, 0, 0xc]);
const BRIDGE: Mac = Mac([2, 0, 0, 0, 0, 1]);
const OTHER: NetnsRef = NetnsRef { cookie: Some(8), inode: Some(80), nsid: Some(4) };
const THIRD: NetnsRef = NetnsRef { cookie: Some(9), inode: Some(90), nsid: Some(5) };
const IP: [u8; 4] = [10, 0, 0, 5];
pub(super) const REACHABLE: u16 = 0x02;
const STALE: u16 = 0x04;
const PERMANENT: u16 = 0x80;
const CNI0: u32 = 4;

pub(super) fn link(ifindex: u32, kind: &str, mac: Mac) -> Link {
    Link {
        ifindex,
        name: format!("{kind}{ifindex}"),
        mac: Some(mac),
        kind: Some(kind.into()),
        up: true,
        ..Link::default()
    }
}

pub(super) fn neighbour(ifindex: u32, ip: [u8; 4], mac: Option<Mac>, state: u16) -> Neighbour {
    let ip = Ipv4Addr::from(ip).into();
    Neighbour { ifindex, ip, mac, state, claimed: None, admin: false }
}

/// Facts about the host's bridge `cni0`, to which the pod is connected by a veth with MAC A.
struct Wire(Case);

impl Wire {
    /// Only the bridge; nobody has the IP.
    fn bare() -> Self {
        let mut case = Case::bare();
        case.at(2, Observation::Link { netns: HOST, link: link(CNI0, "bridge", BRIDGE) });
        Self(case)
    }

    /// A pod on the bridge with this MAC; its device has the index 2.
    fn pod(&mut self, ms: u64, netns: NetnsRef, mac: Mac) {
        let port = netns.inode.unwrap();
        let end = Link {
            peer: Some(2),
            peer_nsid: netns.nsid,
            master: Some(CNI0),
            ..link(port, "veth", Mac([2, 0, 0, 0, 1, 1]))
        };
        self.0.at(ms, Observation::Link { netns: HOST, link: end });
        let eth0 = Link { peer: Some(port), peer_nsid: Some(0), ..link(2, "veth", mac) };
        self.0.at(ms, Observation::Link { netns, link: eth0 });
    }

    fn address(&mut self, ms: u64, netns: NetnsRef, ip: [u8; 4]) {
        let address = Address { key: key(ip), scope: Some(0), flags: Some(0) };
        self.0.at(ms, Observation::Address { netns, address });
    }

    /// Two pods that both have the IP.
    fn two() -> Self {
        let mut wire = Self::bare();
        wire.pod(3, POD, A);
        wire.pod(3, OTHER, B);
        wire.address(4, POD, IP);
        wire.address(4, OTHER, IP);
        wire
    }

    fn entry(&mut self, ms: u64, neighbour: Neighbour) {
        self.0.at(ms, Observation::Neighbour { netns: HOST, neighbour });
    }

    /// The bridge's entry for the IP accepts this MAC.
    fn takes(&mut self, ms: u64, mac: Mac) {
        self.entry(ms, neighbour(CNI0, IP, Some(mac), REACHABLE));
    }

    /// The bridge's entry rejects `mac`, and keeps `stays`.
    fn refuses(&mut self, ms: u64, mac: Mac, stays: Mac) {
        let lost = Neighbour { claimed: Some(mac), ..neighbour(CNI0, IP, Some(stays), REACHABLE) };
        self.entry(ms, lost);
    }

    fn packet(&mut self, ms: u64, ip: [u8; 4], mac: Mac, kind: ClaimKind) {
        let claim = Claim { ifindex: CNI0, ip: Ipv4Addr::from(ip).into(), mac, kind };
        self.0.at(ms, Observation::Claimed { netns: HOST, claim });
    }

    fn found(&mut self, ms: u64) -> Vec<Candidate> {
        self.0.wants(ms);
        let mut found = detect(&self.0.0, BootNs(ms * MS), &Thresholds::default());
        found.retain(|one| one.code == Code::NeighbourConflict);
        found
    }

    #[track_caller]
    fn only(&mut self, ms: u64) -> Candidate {
        let found = self.found(ms);
        assert_eq!(found.len(), 1, "{found:#?}");
        found.into_iter().next().unwrap()
    }

    #[track_caller]
    fn none(&mut self, ms: u64, why: &str) {
        assert_eq!(self.found(ms), [], "{why}");
    }
}

fn key(ip: [u8; 4]) -> AddressKey {
    AddressKey { ifindex: 2, local: Ipv4Addr::from(ip).into(), prefix_len: 24, peer: None }
}

fn proof(found: &Candidate) -> String {
    found.evidence.iter().map(|item| format!("{}: {}\n", item.source, item.text)).collect()
}

#[test]
pub(super) fn a_refused_answer_is_a_conflict_and_both_are_named() {
    let mut wire = Wire(Wire::two().0.witnessed(5));
    wire.takes(1_000, A);
    wire.refuses(1_001, B, A);
    let found = wire.only(1_002);
    assert_eq!((found.severity, found.since), (Severity::Warning, BootNs(1_001 * MS)));
    assert_eq!(found.subject.ip, Some(Ipv4Addr::from(IP).into()));
    assert_eq!(found.key, "boot/10.0.0.5/cookie:1/4", "the bridge's");
    let text = proof(&found);
    for part in [
        "neighbours: bridge4 of net:[1] (cookie 1) took 02:00:00:00:00:0a for 10.0.0.5",
        "probe: bridge4 of net:[1] (cookie 1) rejected 02:00:00:00:00:0b",
        "02:00:00:00:00:0a is veth2 of net:[70]",
        "02:00:00:00:00:0b is veth2 of net:[80]",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert_eq!(found.observed, BootNs(1_002 * MS), "both still have it");
}

/// Netlink was read before the probe's ring buffer, and reports the entry after both answers.
#[test]
fn answers_count_that_are_told_after_netlinks_word_of_later() {
    let mut wire = Wire::two();
    let entry = neighbour(CNI0, IP, Some(A), REACHABLE);
    let what = Observation::Neighbour { netns: HOST, neighbour: entry };
    wire.0.0.apply(&Fact { at: BootNs(1_002 * MS), origin: Origin::Netlink, what });
    wire.takes(1_000, A);
    wire.refuses(1_001, B, A);
    assert!(proof(&wire.only(1_003)).contains("bridge4 of net:[1] (cookie 1) rejected"));
}

#[test]
fn a_third_one_is_no_other_conflict() {
    let mut wire = Wire::two();
    wire.takes(1_000, A);
    wire.refuses(1_001, B, A);
    let before = wire.only(1_002);
    wire.refuses(1_100, C, A);
    let after = wire.only(1_101);
    assert_eq!((&after.key, after.since), (&before.key, before.since));
    assert!(proof(&after).contains(&C.to_string()), "{after:#?}");
}

#[test]
fn it_is_over_at_once_when_one_leaves() {
    for gone in [
        Observation::NetnsGone { netns: OTHER },
        Observation::AddressGone { netns: OTHER, key: key(IP) },
    ] {
        let mut wire = Wire::two();
        wire.takes(1_000, A);
        wire.refuses(1_001, B, A);
        assert_eq!(wire.found(1_002).len(), 1);
        wire.0.at(2_000, gone.clone());
        wire.none(2_001, &format!("{gone:?}"));
    }
}

#[test]
fn one_that_is_not_on_this_node_is_said_to_be_elsewhere_and_heard_again_or_forgotten() {
    let mut wire = Wire::two();
    wire.0.at(5, Observation::NetnsGone { netns: OTHER });
    wire.takes(1_000, A);
    wire.refuses(1_001, B, A);
    let found = wire.only(1_500);
    assert!(proof(&found).contains(&format!("{B} is not on this node")), "{found:#?}");
    assert_eq!(found.observed, BootNs(1_001 * MS), "nothing was heard since");
    wire.refuses(5_000, B, A);
    assert_eq!(wire.only(5_001).observed, BootNs(5_000 * MS));
    assert_eq!(wire.found(64_000).len(), 1);
    wire.none(65_001, "not heard for a minute");
}

#[test]
fn a_refused_answer_alone_is_the_next_owner_of_the_ip() {
    let mut wire = Wire::bare();
    wire.takes(1_000, A);
    // A has ended; its entry changes for the last time, and B asks for another IP.
    wire.refuses(6_000, B, A);
    wire.none(6_001, "A was not heard for seconds");
    wire.takes(8_000, B);
    wire.none(8_001, "B took over");
    wire.takes(9_000, A);
    assert_eq!(wire.found(9_001).len(), 1, "A, B, and A again");
}

#[test]
fn a_later_pod_with_the_ip_is_no_conflict() {
    let mut wire = Wire::two();
    wire.0.at(5, Observation::AddressGone { netns: OTHER, key: key(IP) });
    wire.takes(1_000, A);
    wire.0.at(1_100, Observation::NetnsGone { netns: POD });
    wire.address(1_200, OTHER, IP);
    wire.packet(1_300, IP, B, ClaimKind::Announcement);
    wire.takes(1_301, B);
    wire.none(1_400, "the new one has it now");
    wire.packet(1_500, IP, B, ClaimKind::Reply);
    wire.none(5_000, "and uses it");
}

#[test]
fn fail_over_is_no_conflict_and_flapping_is() {
    let mut wire = Wire::bare();
    wire.takes(1_000, A);
    wire.packet(5_000, IP, B, ClaimKind::Announcement);
    wire.takes(5_000, B);
    wire.none(5_001, "one announced move");
    wire.packet(5_200, IP, A, ClaimKind::Request);
    wire.none(5_201, "A has not noticed yet");
    wire.packet(5_300, IP, B, ClaimKind::Announcement);
    wire.packet(20_000, IP, A, ClaimKind::Announcement);
    wire.takes(20_000, A);
    wire.none(20_001, "and one back");
    wire.packet(25_000, IP, B, ClaimKind::Reply);
    assert_eq!(wire.found(25_001).len(), 1, "B answers although A took it back");
}

#[test]
fn two_answers_at_once_are_a_conflict() {
    let mut wire = Wire::bare();
    wire.packet(1_000, IP, A, ClaimKind::Reply);
    wire.packet(1_500, IP, B, ClaimKind::Reply);
    let found = wire.only(1_501);
    assert!(proof(&found).contains("wire: 02:00:00:00:00:0b answered for 10.0.0.5"));
    let mut wire = Wire::bare();
    wire.packet(1_000, IP, A, ClaimKind::Reply);
    wire.packet(3_000, IP, B, ClaimKind::Reply);
    wire.none(3_001, "the one after the other");
}

#[test]
pub(super) fn a_packet_for_an_ip_of_ours_is_a_conflict() {
    let mut wire = Wire::bare();
    wire.pod(3, POD, A);
    wire.address(4, POD, IP);
    wire.packet(1_000, IP, A, ClaimKind::Request);
    wire.none(1_001, "its own");
    wire.packet(2_000, IP, B, ClaimKind::Request);
    wire.none(2_099, "its MAC may have changed");
    let found = wire.only(2_100);
    assert!(proof(&found).contains(&format!("{A} is veth2 of net:[70]")), "{found:#?}");
    // The node's own IP.
    let mut wire = Wire::bare();
    let address =
        Address { key: AddressKey { ifindex: CNI0, ..key(IP) }, scope: None, flags: None };
    wire.0.at(3, Observation::Address { netns: HOST, address });
    wire.packet(2_000, IP, B, ClaimKind::Reply);
    assert_eq!(wire.found(2_100).len(), 1);
}

#[test]
fn an_announcement_of_ours_counts_if_we_keep_the_ip() {
    let mut wire = Wire::bare();
    wire.pod(3, POD, A);
    wire.address(4, POD, IP);
    wire.packet(1_000, IP, B, ClaimKind::Announcement);
    wire.none(1_500, "it may be handed over");
    // The daemon looks again when the agenda says so.
    let mut now = BootNs(1_500 * MS);
    while wire.found(now.0 / MS).is_empty() && now < BootNs(10_000 * MS) {
        now = wire.0.0.agenda(now, &Thresholds::default()).next.unwrap();
    }
    assert_eq!(now, BootNs(3_000 * MS));
}

#[test]
fn a_claim_from_before_the_address_is_the_former_owner() {
    let mut wire = Wire::bare();
    wire.pod(3, POD, A);
    wire.packet(1_000, IP, B, ClaimKind::Reply);
    wire.address(1_500, POD, IP);
    wire.none(1_600, "B had it before");
    wire.packet(2_000, IP, B, ClaimKind::Reply);
    assert_eq!(wire.found(2_001).len(), 1, "and has it still");
}

#[test]
fn the_same_ip_on_another_link_is_no_conflict() {
    let mut wire = Wire::bare();
    wire.pod(3, POD, A);
    wire.address(4, POD, IP);
    wire.0.at(5, Observation::Link { netns: HOST, link: link(5, "bridge", C) });
    let claim = Claim { ifindex: 5, ip: Ipv4Addr::from(IP).into(), mac: B, kind: ClaimKind::Reply };
    wire.0.at(1_000, Observation::Claimed { netns: HOST, claim });
    wire.none(5_000, "another bridge");
}

#[test]
fn what_is_set_by_hand_is_no_claim() {
    let mut wire = Wire::bare();
    for (ms, mac) in [(1_000, A), (2_000, B), (3_000, A)] {
        let set = neighbour(CNI0, IP, Some(mac), PERMANENT);
        wire.entry(ms, Neighbour { admin: true, ..set });
    }
    wire.none(3_001, "permanent entries");
    for (ms, mac) in [(4_000, A), (5_000, B), (6_000, A)] {
        let set = neighbour(CNI0, IP, Some(mac), STALE);
        wire.entry(ms, Neighbour { admin: true, ..set });
    }
    wire.none(6_001, "others that a hand sets");
    let fixed = neighbour(CNI0, IP, Some(A), PERMANENT);
    wire.entry(7_000, Neighbour { claimed: Some(B), ..fixed });
    wire.none(7_001, "a hand says one thing, one packet another");
}

#[test]
fn a_device_and_what_is_made_of_it_are_one() {
    let mut wire = Wire::bare();
    wire.0.at(3, Observation::Link { netns: HOST, link: link(9, "veth", B) });
    let child = Link { peer: Some(9), peer_nsid: Some(0), ..link(2, "macvlan", A) };
    wire.0.at(3, Observation::Link { netns: POD, link: child });
    wire.address(4, POD, IP);
    wire.takes(1_000, A);
    wire.refuses(1_001, B, A);
    wire.none(1_002, "the parent speaks for its child");
    // Two devices of one netns answer for each other.
    let mut wire = Wire::bare();
    wire.pod(3, POD, A);
    wire.0.at(3, Observation::Link { netns: POD, link: link(3, "veth", B) });
    wire.address(4, POD, IP);
    wire.takes(1_000, A);
    wire.refuses(1_001, B, A);
    wire.none(1_002, "one netns");
}

#[test]
fn proxies_and_virtual_routers_answer_for_others() {
    let mut wire = Wire::bare();
    for last in 5..9 {
        wire.packet(1_000, [10, 0, 0, last], B, ClaimKind::Reply);
    }
    wire.packet(1_001, IP, A, ClaimKind::Reply);
    wire.none(1_002, "B answers for everybody");
    wire.packet(1_003, IP, B, ClaimKind::Request);
    assert_eq!(wire.found(1_004).len(), 1, "B uses the IP itself");
    let mut wire = Wire::bare();
    wire.packet(1_000, IP, A, ClaimKind::Reply);
    wire.packet(1_001, IP, Mac([0, 0, 0x5e, 0, 1, 7]), ClaimKind::Reply);
    wire.packet(1_001, IP, Mac([0, 0, 0x0c, 7, 0xac, 1]), ClaimKind::Reply);
    wire.packet(1_001, IP, Mac([0, 7, 0xb4, 0, 1, 1]), ClaimKind::Reply);
    wire.packet(1_001, IP, Mac([0, 7, 0xb4, 0, 1, 2]), ClaimKind::Reply);
    wire.none(1_002, "VRRP, HSRP, GLBP");
    let mut wire = Wire::two();
    wire.0.at(5, Observation::AddressGone { netns: OTHER, key: key(IP) });
    wire.packet(1_000, IP, A, ClaimKind::Reply);
    wire.packet(1_001, IP, BRIDGE, ClaimKind::Reply);
    wire.none(1_002, "the node's own proxy ARP");
    wire.packet(1_003, [169, 254, 1, 1], A, ClaimKind::Reply);
    wire.packet(1_004, [169, 254, 1, 1], B, ClaimKind::Reply);
    wire.none(1_005, "link-local");
}

#[test]
fn many_that_hear_one_conflict_are_one_finding() {
    let mut wire = Wire::two();
    wire.pod(3, THIRD, C);
    for netns in [HOST, THIRD] {
        let ifindex = if netns == HOST { CNI0 } else { 2 };
        let took = neighbour(ifindex, IP, Some(A), REACHABLE);
        let lost = Neighbour { claimed: Some(B), ..took.clone() };
        wire.0.at(1_000, Observation::Neighbour { netns, neighbour: took });
        wire.0.at(1_001, Observation::Neighbour { netns, neighbour: lost });
    }
    let found = wire.only(1_002);
    assert!(proof(&found).contains("net:[90]") && proof(&found).contains("net:[1]"));
}

#[test]
pub(super) fn a_failed_duplicate_detection_is_a_conflict_until_the_address_goes() {
    let mut wire = Wire::bare();
    wire.pod(3, POD, A);
    let ip: std::net::IpAddr = "fd00::5".parse().unwrap();
    let key = AddressKey { ifindex: 2, local: ip, prefix_len: 64, peer: None };
    let address = Address { key, scope: Some(0), flags: Some(0x40) };
    wire.0.at(4, Observation::Address { netns: POD, address });
    wire.none(5, "being tried out");
    let failed = |offender| Observation::DadFailed { netns: POD, ifindex: 2, ip, offender };
    wire.0.at(1_000, failed(Some(A)));
    wire.none(1_001, "its own question came back");
    wire.0.at(2_000, failed(Some(B)));
    let found = wire.only(2_001);
    assert!(proof(&found).contains(&format!("{B} answered when veth2")), "{found:#?}");
    assert_eq!(wire.only(500_000).observed, BootNs(500_000 * MS), "it stands");
    wire.0.at(500_001, Observation::AddressGone { netns: POD, key });
    wire.none(500_002, "gone");
    // From netlink's flag alone.
    let mut wire = Wire::bare();
    wire.pod(3, POD, A);
    let address = Address { key, scope: Some(0), flags: Some(0x48) };
    wire.0.at(4, Observation::Address { netns: POD, address });
    assert!(proof(&wire.only(5)).contains("unknown is not on this node"));
}

/// Another ipwatch on the node creates a duplicate to check that its probes report it.
#[test]
fn a_canarys_duplicate_is_no_conflict() {
    let failed = |ip: &str| {
        let mut wire = Wire::bare();
        wire.pod(3, POD, A);
        let key = AddressKey { ifindex: 2, local: ip.parse().unwrap(), prefix_len: 64, peer: None };
        let address = Address { key, scope: Some(0), flags: Some(0x48) };
        wire.0.at(4, Observation::Address { netns: POD, address });
        wire
    };
    failed("2001:db8:6970:7761::10").none(5, "nobody has such an address");
    failed("2001:db8:6970:7762::10").only(5);
}

#[test]
fn what_netlink_repeats_late_is_nobodys_turn() {
    let mut wire = Wire::bare();
    wire.takes(1_000, A);
    wire.takes(2_000, B);
    let late = neighbour(CNI0, IP, Some(A), REACHABLE);
    let what = Observation::Neighbour { netns: HOST, neighbour: late };
    wire.0.0.apply(&Fact { at: BootNs(2_001 * MS), origin: Origin::Netlink, what });
    wire.takes(2_002, B);
    wire.none(2_003, "an echo");
}

#[test]
fn claims_are_bounded_and_counted() {
    let mut wire = Wire::bare();
    for n in 0..5_000u32 {
        let [_, _, c, d] = n.to_be_bytes();
        wire.packet(1_000 + u64::from(n), [10, 1, c, d], A, ClaimKind::Reply);
    }
    assert_eq!(wire.0.0.forgotten_claims(), 5_000 - 4_096);
}

#[test]
fn without_the_neighbours_nothing_is_over() {
    let mut wire = Wire::two();
    wire.0.source("neighbours", SourceStatus::Down);
    assert!(blind(&wire.0.0, &Thresholds::default()).contains(&Code::NeighbourConflict));
}

#[test]
fn what_is_forgotten_of_a_proxy_counts_no_more() {
    let mut wire = Wire::bare();
    for last in 6..9 {
        wire.packet(1_000, [10, 0, 0, last], B, ClaimKind::Reply);
    }
    wire.packet(1_001, IP, A, ClaimKind::Reply);
    wire.packet(1_001, IP, B, ClaimKind::Reply);
    wire.none(1_002, "B answers for everybody");
    for n in 0..4_096u32 {
        let [_, _, c, d] = n.to_be_bytes();
        wire.packet(2_000, [10, 1, c, d], C, ClaimKind::Request);
    }
    wire.packet(3_000, IP, A, ClaimKind::Reply);
    wire.packet(3_000, IP, B, ClaimKind::Reply);
    assert_eq!(wire.found(3_001).len(), 1, "it answers for one");
}

/// Two MACs answer for an IP on a device. A MAC that requests the IP is no proxy.
fn contest(wire: &mut Wire, netns: NetnsRef, ip: [u8; 4]) {
    for mac in [A, B] {
        for kind in [ClaimKind::Request, ClaimKind::Reply] {
            let claim = Claim { ifindex: CNI0, ip: Ipv4Addr::from(ip).into(), mac, kind };
            wire.0.at(1_000, Observation::Claimed { netns, claim });
        }
    }
}

fn is_blind(wire: &Wire) -> bool {
    blind(&wire.0.0, &Thresholds::default()).contains(&Code::NeighbourConflict)
}

fn ips(found: &[Candidate]) -> Vec<[u8; 4]> {
    let ips = found.iter().filter_map(|one| one.subject.ip);
    ips.filter_map(|ip| if let std::net::IpAddr::V4(ip) = ip { Some(ip.octets()) } else { None })
        .collect()
}

#[test]
fn of_more_conflicts_than_are_told_others_are_judged() {
    let mut wire = Wire::bare();
    wire.0.0.1.get_mut().steps = Steps::Asked;
    for n in 0..513u16 {
        let [c, d] = n.to_be_bytes();
        contest(&mut wire, HOST, [10, 1, c, d]);
    }
    assert_eq!((wire.found(1_001).len(), is_blind(&wire)), (512, false));
}

/// A conflict that has no place any more stays open until it ends.
#[test]
fn a_conflict_that_is_left_out_is_over_when_it_ends() {
    let mut wire = Wire::bare();
    wire.0.0.1.get_mut().steps = Steps::Asked;
    for n in 1..513u16 {
        let [c, d] = n.to_be_bytes();
        contest(&mut wire, HOST, [10, 1, c, d]);
    }
    let (mut life, last) = (Findings::default(), Ipv4Addr::new(10, 1, 2, 0).into());
    let is_open = |wire: &mut Wire, life: &mut Findings, ms: u64| {
        wire.0.wants(ms);
        live(&wire.0.0, life, ms).contains(&last)
    };
    assert!(is_open(&mut wire, &mut life, 1_001));
    contest(&mut wire, HOST, [10, 1, 0, 0]);
    assert!(is_open(&mut wire, &mut life, 1_002));
    assert!(wire.0.0.leaves_out_conflicts(BootNs(1_002 * MS)) && !life.is_at_rest());
    assert!(!is_open(&mut wire, &mut life, 90_000), "nobody was heard for a minute");
}

/// Somebody who may send what he likes invents conflicts about low IPs. That about an IP which a pod has is told.
#[test]
fn conflicts_about_ips_that_nobody_has_hide_none_about_a_pods() {
    let mut wire = Wire::bare();
    wire.0.0.1.get_mut().steps = Steps::Asked;
    for n in 0..600u16 {
        let [c, d] = n.to_be_bytes();
        contest(&mut wire, HOST, [10, 0, c, d]);
    }
    wire.pod(3, POD, C);
    wire.0.at(3, Observation::NetnsUser { netns: POD, uid: 0, nested: false });
    wire.address(4, POD, [10, 200, 0, 1]);
    contest(&mut wire, HOST, [10, 200, 0, 1]);
    assert!(ips(&wire.found(3_000)).contains(&[10, 200, 0, 1]));
}

/// The same in netns of a user, also by addresses that duplicate address detection refuses.
#[test]
fn conflicts_in_a_users_netns_hide_none_of_others() {
    let mut wire = Wire::bare();
    wire.0.0.1.get_mut().steps = Steps::Asked;
    let netns = OTHER;
    wire.0.at(2, Observation::NetnsUser { netns, uid: 1_000, nested: true });
    for ifindex in [2, CNI0] {
        wire.0.at(2, Observation::Link { netns, link: link(ifindex, "veth", C) });
    }
    for n in 0..600u16 {
        let [c, d] = n.to_be_bytes();
        contest(&mut wire, netns, [10, 1, c, d]);
        let address = Address { key: key([10, 2, c, d]), scope: Some(0), flags: Some(0x08) };
        wire.0.at(2, Observation::Address { netns, address });
    }
    contest(&mut wire, HOST, [10, 200, 0, 1]);
    let found = ips(&wire.found(1_001));
    assert!(found.contains(&[10, 200, 0, 1]) && !is_blind(&wire));
    assert!(found.len() <= 512, "{} of a user and one of the node", found.len());
}

#[test]
fn an_announced_move_that_was_first_refused_is_no_conflict() {
    let mut wire = Wire::bare();
    wire.takes(1_000, A);
    // Within the entry's locktime.
    wire.packet(1_500, IP, B, ClaimKind::Announcement);
    wire.refuses(1_501, B, A);
    wire.packet(2_600, IP, B, ClaimKind::Announcement);
    wire.takes(2_601, B);
    wire.none(2_602, "A is silent since");
    wire.packet(4_000, IP, A, ClaimKind::Reply);
    assert_eq!(wire.found(4_001).len(), 1, "A has it still");
}

#[test]
fn an_ip_that_is_no_pods_and_not_the_nodes_is_the_lans_affair() {
    let answered = |mut wire: Wire| {
        wire.packet(1_000, IP, A, ClaimKind::Reply);
        wire.packet(1_001, IP, B, ClaimKind::Reply);
        wire.only(3_500).severity
    };
    assert_eq!(answered(Wire::bare()), Severity::Info, "a server with two cards, elsewhere");
    assert_eq!(answered(Wire::two()), Severity::Info, "netns of nobody that is known");
    let nodes = |mut wire: Wire, ifindex: u32| {
        let key = AddressKey { ifindex, ..key([10, 0, 0, 1]) };
        let address = Address { key, scope: Some(0), flags: Some(0) };
        wire.0.at(4, Observation::Address { netns: HOST, address });
        wire
    };
    let reserved = || Wire(Wire::bare().0.witnessed(5));
    assert_eq!(answered(reserved()), Severity::Info, "of another link, for all that is known");
    assert_eq!(answered(nodes(reserved(), 9)), Severity::Info, "of another link");
    assert_eq!(answered(nodes(reserved(), CNI0)), Severity::Warning, "a store reserves it here");
    // A pod that a runtime knows has the same IP on another bridge.
    let mut elsewhere = Wire(Case::with_runtime());
    elsewhere.0.at(2, Observation::Link { netns: HOST, link: link(CNI0, "bridge", BRIDGE) });
    assert_eq!(answered(elsewhere), Severity::Info);
    let mut own = Wire::bare();
    let key = AddressKey { ifindex: CNI0, ..key(IP) };
    let address = Address { key, scope: Some(0), flags: Some(0) };
    own.0.at(4, Observation::Address { netns: HOST, address });
    assert_eq!(answered(own), Severity::Warning, "the node has it");
}

/// Each group's MAC, and a similar MAC that belongs to a card.
#[test]
fn macs_of_first_hop_redundancy_are_no_conflict() {
    let cases = [
        ("VRRP and CARP", [0, 0, 0x5e, 0, 1, 7], [0, 0, 0x5e, 0, 3, 7]),
        ("VRRP for IPv6", [0, 0, 0x5e, 0, 2, 7], [0, 0, 0x5e, 1, 2, 7]),
        ("HSRP", [0, 0, 0x0c, 7, 0xac, 1], [0, 0, 0x0c, 7, 0xad, 1]),
        ("HSRP 2", [0, 0, 0x0c, 0x9f, 0xf0, 1], [0, 0, 0x0c, 0x9f, 0xe0, 1]),
        ("HSRP 2, the last group", [0, 0, 0x0c, 0x9f, 0xff, 0xff], [0, 0, 0x0c, 0xa0, 0xff, 0xff]),
        ("HSRP for IPv6", [0, 5, 0x73, 0xa0, 0x0f, 0xff], [0, 5, 0x73, 0xa0, 0x10, 0]),
        ("GLBP", [0, 7, 0xb4, 0, 1, 1], [0, 7, 0xb5, 0, 1, 1]),
        ("GLBP, the last group", [0, 7, 0xb4, 3, 0xff, 4], [0, 7, 0xb4, 4, 0, 4]),
    ];
    for (what, group, card) in cases {
        for (mac, count) in [(group, 0), (card, 1)] {
            let mut wire = Wire::bare();
            wire.packet(1_000, IP, A, ClaimKind::Reply);
            wire.packet(1_001, IP, Mac(mac), ClaimKind::Reply);
            assert_eq!(wire.found(1_002).len(), count, "{what}: {}", Mac(mac));
        }
    }
}
