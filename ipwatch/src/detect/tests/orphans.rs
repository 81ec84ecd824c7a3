//! Routes of the node by a pod's device to IPs that the pod does not have.

use super::neighbours::{A, B, link};
use super::silence::{attachment, route};
use super::*;
use crate::fact::{Hop, RouteKey, Scope};

const CALI: u32 = 9;
const IP: [u8; 4] = [10, 0, 0, 5];
const FLOATING: [u8; 4] = [10, 9, 9, 9];
/// `printf shop.api-0 | sha1sum`.
const DEVICE: &str = "calieb97322ec89";
const AGE: u64 = 300_000;

fn key(ip: [u8; 4]) -> AddressKey {
    AddressKey { ifindex: 2, local: Ipv4Addr::from(ip).into(), prefix_len: 24, peer: None }
}

/// The pod's pair, and routes to its own IP and to another one.
fn routed(device: &str, dumped: bool) -> Case {
    let mut case = Case::pod();
    let end = Link { peer: Some(2), peer_nsid: POD.nsid, ..link(CALI, "veth", B) };
    case.at(2, Observation::Link { netns: HOST, link: Link { name: device.into(), ..end } });
    case.at(
        2,
        Observation::Link { netns: POD, link: Link { peer: Some(CALI), ..link(2, "veth", A) } },
    );
    case.at(2, Observation::Attachment(attachment()));
    for ip in [IP, FLOATING] {
        case.at(2, route(HOST, ip, 32, Hop { ifindex: CALI, gateway: None }));
    }
    let scope = Scope::Addresses { netns: POD };
    case.at(2, Observation::Ended { scope, began: BootNs(0), complete: dumped });
    case
}

fn orphans(case: &mut Case, ms: u64) -> Vec<Candidate> {
    case.wants(ms);
    let mut found = detect(&case.0, BootNs(ms * MS), &Thresholds::default());
    found.retain(|one| one.code == Code::VethOrphaned);
    found
}

#[test]
pub(super) fn a_route_to_an_ip_that_the_pod_lost_is_an_orphan_and_names_the_pod() {
    let mut case = routed(DEVICE, true);
    assert_eq!(orphans(&mut case, 2 * AGE), [], "one IP is there, the other is translated to it");
    case.at(2 * AGE + 1, Observation::AddressGone { netns: POD, key: key(IP) });
    assert_eq!(orphans(&mut case, 4 * AGE), [], "gVisor has none on the device, and answers");
    let mut case = routed(DEVICE, true);
    let address = Address { key: key([10, 0, 0, 6]), scope: Some(0), flags: None };
    case.at(2 * AGE, Observation::Address { netns: POD, address });
    case.at(2 * AGE + 1, Observation::AddressGone { netns: POD, key: key(IP) });
    assert_eq!(orphans(&mut case, 2 * AGE + 40_000), []);
    assert_eq!(orphans(&mut case, 3 * AGE + 39_999), [], "not for long enough");
    let found = orphans(&mut case, 3 * AGE + 40_000);
    let ips: Vec<_> = found.iter().filter_map(|one| one.subject.ip).collect();
    assert_eq!(ips, [Ipv4Addr::from(IP), Ipv4Addr::from(FLOATING)]);
    let text: Vec<&str> = found[0].evidence.iter().map(|item| item.text.as_str()).collect();
    let text = text.join("\n");
    for part in [
        "10.0.0.5/32 is through calieb97322ec89",
        "has 10.0.0.6/24 on veth2",
        "name of pod shop/api-0's",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    case.at(
        3 * AGE + 50_000,
        Observation::Address {
            netns: POD,
            address: Address { key: key(IP), scope: Some(0), flags: Some(0) },
        },
    );
    assert_eq!(orphans(&mut case, 3 * AGE + 80_000), [], "it has it again");
}

#[test]
fn the_last_route_of_the_node_ends_with_its_finding() {
    let mut case = routed(DEVICE, true);
    let address = Address { key: key([10, 0, 0, 6]), scope: Some(0), flags: None };
    case.at(2 * AGE, Observation::Address { netns: POD, address });
    case.at(2 * AGE + 1, Observation::AddressGone { netns: POD, key: key(IP) });
    orphans(&mut case, 2 * AGE + 40_000);
    assert_eq!(orphans(&mut case, 4 * AGE).len(), 2);
    for ip in [IP, FLOATING] {
        let to = Ipv4Addr::from(ip).into();
        let key = RouteKey { to, prefix_len: 32, table: 254, priority: 0 };
        case.at(4 * AGE + 1, Observation::RouteGone { netns: HOST, key, hops: Vec::new() });
    }
    assert_eq!(orphans(&mut case, 5 * AGE), [], "the node has no route left");
}

#[test]
fn what_is_not_known_is_no_orphan() {
    let gone = Observation::AddressGone { netns: POD, key: key(IP) };
    let innocents = [
        ("its addresses were not read whole", routed(DEVICE, false), gone.clone()),
        ("people's device", routed("blue", true), gone),
        ("its netns goes", routed(DEVICE, true), Observation::NetnsDying { netns: POD }),
        ("its netns is gone", routed(DEVICE, true), Observation::NetnsGone { netns: POD }),
    ];
    for (why, mut case, what) in innocents {
        case.at(1_000, what);
        orphans(&mut case, 40_000);
        assert_eq!(orphans(&mut case, 3 * AGE), [], "{why}");
    }
}

/// Who only visits a netns makes nothing of it gVisor's, and no command goes through him.
#[test]
fn a_visitor_changes_nothing_of_an_orphan() {
    let found = |is_visited: bool, has_another: bool| {
        let mut case = routed(DEVICE, true);
        if has_another {
            let address = Address { key: key([10, 0, 0, 6]), scope: Some(0), flags: None };
            case.at(1_000, Observation::Address { netns: POD, address });
        }
        case.at(1_001, Observation::AddressGone { netns: POD, key: key(IP) });
        let mount = super::sandboxes::mount_of(super::sandboxes::PATH, 1, 1);
        case.at(1_002, Observation::Holder { netns: POD, holder: mount });
        case.empty(1_003);
        let visitor = task(TaskKey { pid: 70, tid: 70, start: 50 }, POD);
        orphans(&mut case, 40_000);
        if is_visited {
            case.at(69_999, Observation::Task(visitor.clone()));
            orphans(&mut case, 70_000);
            case.at(70_001, Observation::TaskReleased { task: visitor.key });
            case.at(AGE + 69_999, Observation::Task(visitor));
        }
        orphans(&mut case, AGE + 70_000)
    };
    for has_another in [false, true] {
        let unseen = found(false, has_another);
        assert_eq!(unseen.len(), 2);
        assert!(lines(&unseen[0]).contains("ip route del"), "{}", lines(&unseen[0]));
        assert_eq!(found(true, has_another), unseen);
    }
}
