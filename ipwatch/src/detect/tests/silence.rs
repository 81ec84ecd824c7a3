//! Neighbours that do not answer: a pod's IP on the node's side, a pod's gateway.

use super::neighbours::{A, B, REACHABLE, link, neighbour};
use super::sandboxes::ID;
use super::*;
use crate::fact::{Attachment, Hop, Mac, PodName, Route, RouteKey};
use crate::finding::Severity;

const IP: [u8; 4] = [10, 0, 0, 5];
const GATEWAY: [u8; 4] = [169, 254, 1, 1];
const INCOMPLETE: u16 = 0x01;
const FAILED: u16 = 0x20;
const PERMANENT: u16 = 0x80;
/// The node's end of the pod's pair.
const CALI: u32 = 9;

/// A pair, a route to the IP through it, and a gateway that no device has.
fn wired() -> Case {
    let mut case = Case::pod();
    let end = Link { peer: Some(2), peer_nsid: POD.nsid, ..link(CALI, "veth", B) };
    case.at(2, Observation::Link { netns: HOST, link: end });
    let eth0 = Link { peer: Some(CALI), peer_nsid: Some(0), ..link(2, "veth", A) };
    case.at(2, Observation::Link { netns: POD, link: eth0 });
    case.at(2, route(HOST, IP, 32, Hop { ifindex: CALI, gateway: None }));
    let gateway = Some(Ipv4Addr::from(GATEWAY).into());
    case.at(2, route(POD, [0; 4], 0, Hop { ifindex: 2, gateway }));
    case.wants(3);
    case
}

/// The pod, in the CNI result cache.
pub(super) fn attachment() -> Attachment {
    Attachment {
        container_id: ID.into(),
        ifname: "eth0".into(),
        network: "k8s-pod-network".into(),
        netns_path: None,
        pod: Some(PodName { namespace: "shop".into(), name: "api-0".into(), uid: None }),
        ips: vec![(Ipv4Addr::from(IP).into(), 32)],
        made: None,
    }
}

/// A pod as Calico makes it.
fn calico() -> Case {
    let mut case = wired();
    case.at(2, Observation::Attachment(attachment()));
    case.wants(3);
    case
}

pub(super) fn route(netns: NetnsRef, to: [u8; 4], prefix_len: u8, hop: Hop) -> Observation {
    let key = RouteKey { to: Ipv4Addr::from(to).into(), prefix_len, table: 254, priority: 0 };
    Observation::Route { netns, route: Route { key, hops: vec![hop] } }
}

impl Case {
    /// Netlink reports an entry.
    fn entry(
        &mut self,
        ms: u64,
        netns: NetnsRef,
        on: u32,
        ip: [u8; 4],
        mac: Option<Mac>,
        state: u16,
    ) {
        let what = Observation::Neighbour { netns, neighbour: neighbour(on, ip, mac, state) };
        self.0.apply(&Fact { at: BootNs(ms * MS), origin: Origin::Netlink, what });
    }

    fn silent(&mut self, ms: u64) -> Vec<Candidate> {
        self.wants(ms);
        let mut found = detect(&self.0, BootNs(ms * MS), &Thresholds::default());
        let codes = [Code::NeighbourFailed, Code::GatewayNeighbourLost];
        found.retain(|one| codes.contains(&one.code));
        found
    }

    #[track_caller]
    fn only_silent(&mut self, ms: u64) -> Candidate {
        let found = self.silent(ms);
        assert_eq!(found.len(), 1, "{found:#?}");
        found.into_iter().next().unwrap()
    }

    #[track_caller]
    fn not_silent(&mut self, ms: u64, why: &str) {
        assert_eq!(self.silent(ms), [], "{why}");
    }
}

fn text(found: &Candidate) -> String {
    found.evidence.iter().map(|item| item.text.clone() + "\n").collect()
}

#[test]
pub(super) fn a_pods_ip_that_failed_is_found_and_worse_when_it_is_tried_again() {
    let mut case = calico();
    case.entry(5_000, HOST, CALI, IP, Some(A), REACHABLE);
    case.entry(9_000, HOST, CALI, IP, None, FAILED);
    let found = case.only_silent(9_001);
    assert_eq!((found.code, found.severity), (Code::NeighbourFailed, Severity::Info));
    assert_eq!(found.subject.pod.as_ref().unwrap().name.as_deref(), Some("api-0"));
    let proof = text(&found);
    for part in [
        "10.0.0.5 last answered on veth9",
        "(FAILED), 1 time",
        "route to 10.0.0.5/32 is through veth9",
    ] {
        assert!(proof.contains(part), "{part} is not in\n{proof}");
    }
    case.entry(9_100, HOST, CALI, IP, None, FAILED);
    assert_eq!(case.only_silent(9_101).severity, Severity::Info, "twice told");
    case.entry(13_000, HOST, CALI, IP, None, FAILED);
    let again = case.only_silent(13_001);
    assert_eq!((again.severity, again.observed), (Severity::Warning, BootNs(13_000 * MS)));
    assert_eq!(again.key, found.key);
    case.entry(14_000, HOST, CALI, IP, Some(A), REACHABLE);
    case.not_silent(14_001, "it answers");
}

#[test]
fn an_entry_that_is_dropped_while_it_failed_is_remembered_and_then_stale() {
    let mut case = calico();
    case.entry(9_000, HOST, CALI, IP, None, FAILED);
    let ip = Ipv4Addr::from(IP).into();
    case.at(10_000, Observation::NeighbourGone { netns: HOST, ifindex: CALI, ip });
    assert_eq!(case.silent(10_001).len(), 1, "a full table drops these first");
    assert_eq!(case.silent(128_999).len(), 1);
    case.not_silent(129_000, "nobody has asked for two minutes");
}

#[test]
fn what_is_asked_for_is_given_three_seconds() {
    let mut case = calico();
    case.entry(9_000, HOST, CALI, IP, None, INCOMPLETE);
    case.not_silent(11_999, "it may still answer");
    let next = case.0.agenda(BootNs(11_999 * MS), &Thresholds::default()).next;
    assert!(next.is_some_and(|next| next <= BootNs(12_000 * MS)), "{next:?}");
    assert_eq!(case.only_silent(12_000).code, Code::NeighbourFailed);
}

#[test]
fn the_innocent_may_be_silent() {
    let ip = std::net::IpAddr::from(Ipv4Addr::from(IP));
    let key = AddressKey { ifindex: 2, local: ip, prefix_len: 24, peer: None };
    let innocents = [
        ("the pod's netns is dying", Observation::NetnsDying { netns: POD }),
        ("the IP is gone", Observation::AddressGone { netns: POD, key }),
    ];
    for (why, what) in innocents {
        let mut case = calico();
        case.at(8_000, what);
        case.entry(9_000, HOST, CALI, IP, None, FAILED);
        case.not_silent(9_001, why);
    }
    let mut case = wired();
    case.entry(9_000, HOST, CALI, IP, None, FAILED);
    case.entry(9_000, POD, 2, GATEWAY, None, FAILED);
    case.not_silent(9_001, "a netns of people");
    let mut case = calico();
    case.entry(2_900, HOST, CALI, IP, None, FAILED);
    case.not_silent(2_901, "its link may not be up yet");
    let mut case = calico();
    case.entry(9_000, HOST, 5, IP, None, FAILED);
    case.not_silent(9_001, "another device than the one that leads to it");
    let mut case = calico();
    let other = [10, 0, 0, 6];
    case.entry(9_000, HOST, CALI, other, None, FAILED);
    case.not_silent(9_001, "an IP that nobody has");
    let mut case = calico();
    let upper = Link { peer: Some(3), peer_nsid: Some(0), ..link(2, "macvlan", A) };
    case.at(2, Observation::Link { netns: HOST, link: link(3, "dummy", B) });
    case.at(2, Observation::Link { netns: POD, link: upper });
    case.at(2, Observation::PeerNetns { netns: POD, nsid: 0, peer: HOST });
    case.entry(9_000, HOST, 3, IP, None, FAILED);
    case.not_silent(9_001, "the kernel keeps a macvlan and its parent apart");
}

#[test]
pub(super) fn a_gateway_that_does_not_answer_is_lost() {
    let mut case = calico();
    case.not_silent(8_000, "an idle pod has no entry");
    case.entry(9_000, POD, 2, GATEWAY, None, FAILED);
    let found = case.only_silent(9_001);
    assert_eq!((found.code, found.severity), (Code::GatewayNeighbourLost, Severity::Warning));
    let proof = text(&found);
    for part in
        ["via 169.254.1.1 on veth2", "the node's end of veth2 is veth9 (up, 02:00:00:00:00:0b)"]
    {
        assert!(proof.contains(part), "{part} is not in\n{proof}");
    }
    case.entry(9_500, POD, 2, GATEWAY, Some(B), REACHABLE);
    case.not_silent(9_501, "it answers");
    case.entry(20_000, POD, 2, IP, None, FAILED);
    case.not_silent(20_001, "no gateway of it");
}

/// The command would fail when he has left.
#[test]
fn no_command_about_a_lost_gateway_goes_through_who_passes() {
    let mut case = calico();
    case.entry(9_000, POD, 2, GATEWAY, None, FAILED);
    let before = lines(&case.only_silent(9_001));
    assert!(before.contains("/proc/10/task/10/ns/net"), "{before}");
    case.at(9_002, Observation::Task(task(TaskKey { pid: 7, tid: 7, start: 50 }, POD)));
    assert_eq!(lines(&case.only_silent(9_003)), before);
}

#[test]
pub(super) fn a_permanent_entry_that_goes_or_changes_is_lost_unless_it_is_right() {
    let mut case = calico();
    case.entry(5_000, POD, 2, GATEWAY, Some(B), PERMANENT);
    let ip = Ipv4Addr::from(GATEWAY).into();
    case.at(9_000, Observation::NeighbourGone { netns: POD, ifindex: 2, ip });
    case.not_silent(11_999, "the netns may be going");
    assert!(text(&case.only_silent(12_000)).contains("is gone; it was 02:00:00:00:00:0b"));
    case.entry(13_000, POD, 2, GATEWAY, Some(B), REACHABLE);
    case.not_silent(13_001, "it answers without");
    case.entry(14_000, POD, 2, GATEWAY, Some(A), PERMANENT);
    assert!(text(&case.only_silent(18_000)).contains("names 02:00:00:00:00:0a"));
    case.entry(19_000, POD, 2, GATEWAY, Some(B), PERMANENT);
    case.not_silent(23_000, "set again");
    // Replaced together with the MAC of the node's end.
    let end = Link { peer: Some(2), peer_nsid: POD.nsid, ..link(CALI, "veth", A) };
    case.at(24_000, Observation::Link { netns: HOST, link: end });
    case.entry(24_000, POD, 2, GATEWAY, Some(A), PERMANENT);
    case.not_silent(30_000, "it is the node's end's MAC");
}

#[test]
fn without_the_neighbours_nothing_of_it_is_over() {
    let mut case = calico();
    case.source("neighbours", SourceStatus::Down);
    let blind = blind(&case.0, &Thresholds::default());
    assert!(blind.contains(&Code::NeighbourFailed) && blind.contains(&Code::GatewayNeighbourLost));
}

#[test]
fn one_netns_pushes_out_no_permanent_entry_of_another() {
    let mut case = calico();
    case.entry(5_000, POD, 2, GATEWAY, Some(B), PERMANENT);
    let other = NetnsRef { cookie: Some(8), inode: Some(80), nsid: Some(4) };
    for n in 0..5_000u32 {
        let [_, _, c, d] = n.to_be_bytes();
        case.entry(6_000, other, 2, [10, 1, c, d], Some(B), PERMANENT);
    }
    let ip = Ipv4Addr::from(GATEWAY).into();
    case.at(9_000, Observation::NeighbourGone { netns: POD, ifindex: 2, ip });
    assert!(text(&case.only_silent(12_000)).contains("is gone"));
}
