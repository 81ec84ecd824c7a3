//! Whereabouts' pools, which belong to the whole cluster: what this node can report about them.

use super::ipam::{NEW, SEEN, ip};
use super::sandboxes::sandbox;
use super::*;
use crate::fact::{Attachment, Life, PodName, Range, RangePart, Reservation, Scope};

fn id(n: u8) -> String {
    format!("{n:02x}{}", &NEW[2..])
}

fn allocation(offset: u8, podref: Option<&str>) -> Observation {
    let pod = podref.and_then(|podref| podref.split_once('/')).map(|(namespace, name)| PodName {
        namespace: namespace.into(),
        name: name.into(),
        uid: None,
    });
    Observation::Reservation(Reservation {
        store: "whereabouts".into(),
        network: "10.0.0.0-27".into(),
        key: format!("ippools/kube-system/10.0.0.0-27/{offset}"),
        ip: ip(offset),
        container_id: Some(id(offset)),
        ifname: None,
        pod,
        since: None,
    })
}

/// This node still has the result of the ADD from before the crash.
fn cached(offset: u8) -> Observation {
    Observation::Attachment(Attachment {
        container_id: id(offset),
        ifname: "net1".into(),
        network: "ipvlan".into(),
        netns_path: None,
        ips: vec![(ip(offset), 27)],
        made: None,
        pod: None,
    })
}

/// A pool of five IPs, as a NetworkAttachmentDefinition defines it.
fn pool(network: &str, definition: &str, shares: bool) -> Observation {
    Observation::Range(Range {
        store: "whereabouts".into(),
        network: network.into(),
        path: format!("network-attachment-definitions/shop/{definition}"),
        data_dir: None,
        shares,
        sets: vec![vec![RangePart { first: ip(10), last: ip(14), except: Vec::new() }]],
    })
}

/// A /27 of which only five IPs are usable, according to the NetworkAttachmentDefinition, with five allocations: two of
/// this node's pods from before its crash, three of others.
fn crashed() -> Case {
    let mut case = Case::with_runtime();
    for name in ["whereabouts", "cni"] {
        case.source(name, SourceStatus::Active);
    }
    case.at(1, Observation::Sight(SEEN));
    case.list(11, alive());
    case.at(12, pool("10.0.0.0-27", "ipvlan", true));
    let scope = Scope::Reservations { store: "whereabouts".into() };
    case.at(12, Observation::Began(scope.clone()));
    for (offset, podref) in
        [(10, None), (11, Some("shop/db-1")), (12, Some("shop/x")), (13, None), (14, Some("a/b"))]
    {
        case.at(12, allocation(offset, podref));
    }
    case.at(12, Observation::Ended { scope, began: BootNs(12 * MS), complete: true });
    case.wants(12);
    case
}

fn alive() -> Vec<Observation> {
    vec![Observation::Sandbox(sandbox(Life::Alive, "Ready"))]
}

fn later(case: &mut Case) -> Vec<Candidate> {
    for ms in [100_000, 400_000, 401_000, 402_000] {
        case.list(ms, alive());
        case.wants(ms);
    }
    case.then(403_000)
}

#[test]
pub(super) fn the_pool_of_a_node_that_crashed_is_full_and_two_of_it_can_be_had_back() {
    let mut case = crashed();
    case.at(13, cached(10));
    case.at(13, cached(11));
    let found = later(&mut case);
    let range = found.iter().find(|one| one.code == Code::IpamRangeExhausting).unwrap();
    let text = &range.evidence[0].text;
    assert!(text.contains("5 of 5 taken, 2 of them leaked, 0 free"), "{text}");
    assert!(
        range.impact.as_str().contains("0 pods can still start in the cluster")
            && range.impact.as_str().contains(", 2 after the leaked IPs are freed."),
        "{}",
        range.impact
    );
    let leaks: Vec<&Candidate> =
        found.iter().filter(|one| one.code == Code::IpamReservationLeaked).collect();
    let [leaks] = leaks[..] else { panic!("one cause is one finding: {leaks:#?}") };
    assert_eq!(leaks.subject.ips().collect::<Vec<_>>(), [ip(10), ip(11)]);
    let proof = leaks.evidence.iter().map(|item| item.text.clone());
    let text = proof.chain([lines(leaks)]).collect::<Vec<_>>().join("\n");
    for part in [
        "whereabouts reserves 10.0.0.11 for pod \"shop/db-1\"",
        "ippools/kube-system/10.0.0.0-27/11",
        "patch ippools.whereabouts.cni.cncf.io -n kube-system 10.0.0.0-27 --type=json",
        r#"{"op":"test","path":"/spec/allocations/11/id","value":"0b"#,
        r#"{"op":"test","path":"/spec/allocations/11/podref","value":"shop/db-1"}"#,
        "ipwatch cluster scan",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(
        !text.contains("kubectl delete"),
        "which overlapping reservation it is, nobody here knows: {text}"
    );
    assert_eq!(text.matches("ipwatch cluster scan").count(), 1, "once for all: {text}");
    let first = &leaks.evidence[0].text;
    assert!(!first.contains("pod "), "it has no pod reference: {first}");
}

#[test]
fn what_a_silent_api_server_said_of_its_pools_does_not_count() {
    let mut case = crashed();
    case.at(13, cached(10));
    assert_eq!(later(&mut case).len(), 2, "the range and one leak");
    case.source("whereabouts", SourceStatus::Down);
    assert_eq!(case.then(404_000), []);
    let blind = blind(&case.0, &Thresholds::default());
    assert!(blind.contains(&Code::IpamReservationLeaked), "and nothing of it is over");
}

#[test]
pub(super) fn what_may_be_another_nodes_is_unknown() {
    let mut case = crashed();
    let found = later(&mut case);
    assert!(!found.iter().any(|one| one.code == Code::IpamReservationLeaked), "{found:#?}");
    let range = found.iter().find(|one| one.code == Code::IpamRangeExhausting).unwrap();
    assert!(range.evidence[0].text.contains("5 of 5 taken, 0 of them leaked"), "{range:#?}");
    assert_eq!(range.severity, Severity::Critical, "what other nodes need is not known here");
    assert!(range.remediation[1].line().contains("other nodes are unknown"), "{range:#?}");
}

#[test]
fn a_pod_of_this_node_that_its_runtime_forgot_has_leaked() {
    let mut case = crashed();
    let mut own = sandbox(Life::Alive, "Ready");
    (own.id, own.pid, own.netns_path) = (id(13), None, None);
    case.list(1_000, [alive(), vec![Observation::Sandbox(own)]].concat());
    let found = later(&mut case);
    let leaks: Vec<_> = found
        .iter()
        .filter(|one| one.code == Code::IpamReservationLeaked)
        .filter_map(|one| one.subject.ip)
        .collect();
    assert_eq!(leaks, [ip(13)]);
}

/// An IP that one pool has handed out is not available in another pool of the same network name.
#[test]
fn pools_that_overlap_share_what_is_taken_and_what_leaked() {
    let taken = |network: &str, shares: bool| {
        let mut case = crashed();
        case.at(13, cached(10));
        case.at(13, pool(network, "other", shares));
        let found = later(&mut case);
        let of = |one: &&Candidate| one.subject.network.as_deref() == Some(network);
        let range = found.iter().filter(of).find(|one| one.code == Code::IpamRangeExhausting);
        range.map(|range| {
            let items = range.evidence.iter().map(|item| item.text.as_str());
            items.collect::<Vec<_>>().join("\n")
        })
    };
    let text = taken("10.0.0.0-28", true).expect("nothing is left in it");
    assert!(text.contains("5 of 5 taken, 1 of them leaked, 0 free"), "{text}");
    assert!(
        text.contains("10.0.0.12: pod \"shop/x\" (container \"0c4c1b2a9d7e\"), by 10.0.0.0-27"),
        "{text}"
    );
    assert_eq!(taken("10.0.0.0-28", false), None, "its definition says that it does not share");
    assert_eq!(taken("net-10.0.0.0-28", true), None, "of another network name");
    // A released reservation is free in both.
    let mut case = crashed();
    case.at(13, pool("10.0.0.0-28", "other", true));
    for offset in 10..15 {
        let key = format!("ippools/kube-system/10.0.0.0-27/{offset}");
        case.at(14, Observation::ReservationGone { store: "whereabouts".into(), key });
    }
    let free: Vec<u64> = case.0.ranges().map(|range| range.usage().free).collect();
    assert_eq!(free, [5, 5]);
}
