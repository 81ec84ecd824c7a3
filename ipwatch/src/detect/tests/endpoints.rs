//! Calico's endpoints: living pods without one, and endpoints of pods that no longer exist.

use std::collections::BTreeMap;

use sha1::{Digest as _, Sha1};

use super::ipam::SEEN;
use super::neighbours::{A, B, REACHABLE, link, neighbour};
use super::sandboxes::{ID, UID, mount_of, not_ready, pod_name, sandbox};
use super::silence::route;
use super::*;
use crate::fact::{Attachment, CniCommand, Endpoint, Hop, Life, Pod, Reservation, Sandbox, Scope};
use crate::finding::Severity;

/// The pod's old sandbox, of which only the id is left.
const OLD: &str = "bb4c1b2a9d7e6f5041322314a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e";
/// The key format of Calico's first datastore.
const KEY: &str = "/calico/v1/host/node/workload/k8s/shop.api-0/endpoint/eth0";
/// `printf shop.api-0 | sha1sum`.
const DEVICE: &str = "calieb97322ec89";
const CALI: u32 = 9;
const IP: [u8; 4] = [10, 0, 0, 5];
const GATEWAY: [u8; 4] = [169, 254, 1, 1];
const OTHER: NetnsRef = NetnsRef { cookie: Some(8), inode: Some(80), nsid: Some(4) };

fn endpoint(store: &str, pod: &str, container: Option<&str>) -> Endpoint {
    Endpoint {
        store: store.into(),
        key: KEY.replace("api-0", pod),
        namespace: "shop".into(),
        pod: pod.into(),
        container: container.map(str::to_owned),
        device: Some(DEVICE.into()),
        ips: vec![Ipv4Addr::from(IP).into()],
    }
}

fn gone(store: &str) -> Observation {
    Observation::EndpointGone { store: store.into(), key: KEY.into() }
}

fn alive() -> Vec<Observation> {
    vec![Observation::Sandbox(sandbox(Life::Alive, "Ready"))]
}

impl Case {
    /// A pod made by Calico, with an endpoint in its datastore.
    fn wired(store: &str) -> Self {
        let mut case = Self::unlisted(store);
        case.endpoints(12, store, vec![endpoint(store, "api-0", Some(ID))], true);
        case
    }

    /// The same pod before its datastore has reported anything.
    fn unlisted(store: &str) -> Self {
        let mut case = Self::with_runtime();
        case.at(1, Observation::Sight(SEEN));
        let end = Link { peer: Some(2), peer_nsid: POD.nsid, ..link(CALI, "veth", B) };
        case.at(2, Observation::Link { netns: HOST, link: Link { name: DEVICE.into(), ..end } });
        let eth0 = Link { peer: Some(CALI), peer_nsid: Some(0), ..link(2, "veth", A) };
        case.at(2, Observation::Link { netns: POD, link: eth0 });
        case.at(2, route(HOST, IP, 32, Hop { ifindex: CALI, gateway: None }));
        let gateway = Some(Ipv4Addr::from(GATEWAY).into());
        case.at(2, route(POD, [0; 4], 0, Hop { ifindex: 2, gateway }));
        case.source(store, SourceStatus::Active);
        case.list(11, alive());
        case
    }

    /// A listing of a datastore.
    fn endpoints(&mut self, ms: u64, store: &str, all: Vec<Endpoint>, complete: bool) {
        let scope = || Scope::Endpoints { store: store.into() };
        self.at(ms, Observation::Began(scope()));
        all.into_iter().for_each(|one| self.at(ms, Observation::Endpoint(one)));
        self.at(ms, Observation::Ended { scope: scope(), began: BootNs(ms * MS), complete });
        self.wants(ms);
    }

    /// The findings once the runtime has confirmed that the pod lives, and the datastore that its report is complete.
    fn settled(&mut self, ms: u64) -> Vec<Candidate> {
        for store in ["calico", "kubernetes"] {
            self.at(ms, Observation::EndpointsConfirmed { store: store.into() });
        }
        self.list(ms, alive());
        let mut found = self.then(ms + 1);
        found.retain(|one| one.code == Code::EndpointMissing);
        found
    }

    #[track_caller]
    fn well(&mut self, ms: u64, why: &str) {
        assert_eq!(self.settled(ms), [], "{why}");
    }
}

fn text(found: &Candidate) -> String {
    found.evidence.iter().map(|item| format!("{}: {}\n", item.source, item.text)).collect()
}

#[test]
pub(super) fn a_living_pod_whose_endpoint_went_is_found_with_its_proof() {
    let mut case = Case::wired("calico");
    case.well(60_000, "it has one");
    case.at(100_000, gone("calico"));
    case.well(109_000, "within its grace");
    let [found] = case.settled(111_000).try_into().unwrap();
    assert_eq!((found.code, found.severity), (Code::EndpointMissing, Severity::Critical));
    assert_eq!((found.since, found.observed), (BootNs(100_000 * MS), BootNs(111_000 * MS)));
    assert_eq!(found.subject.pod.as_ref().unwrap().name.as_deref(), Some("api-0"));
    let proof = text(&found);
    for part in [
        "calico: the endpoint of shop/api-0 was removed: /calico/v1/host/node/workload/k8s/shop.api-0/endpoint/eth0, for \
         container 8f4c1b2a9d7e",
        "calico: its complete list has no endpoint of shop/api-0",
        "containerd: sandbox 8f4c1b2a9d7e, attempt 1 is Ready",
        "netlink: calieb97322ec89 leads to its netns, net:[70] (cookie 7)",
        "route to 10.0.0.5/32 is through calieb97322ec89",
    ] {
        assert!(proof.contains(part), "{part} is not in\n{proof}");
    }
    let [again] = case.settled(112_000).try_into().unwrap();
    assert!((again.key == found.key) && again.observed > found.observed, "a second look");
    case.at(120_000, Observation::Endpoint(endpoint("calico", "api-0", Some(ID))));
    case.well(140_000, "it came back");
}

#[test]
pub(super) fn an_endpoint_that_names_another_container_is_not_its_own() {
    let mut case = Case::wired("calico");
    case.at(100_000, Observation::Endpoint(endpoint("calico", "api-0", Some(OLD))));
    let [found] = case.settled(111_000).try_into().unwrap();
    assert!(
        text(&found).contains("belongs to another container")
            && text(&found).contains("container bb4c1b2a9d7e")
    );
    case.at(120_000, Observation::Endpoint(endpoint("calico", "api-0", None)));
    case.well(140_000, "it names none");
}

#[test]
pub(super) fn what_the_api_server_says_of_a_pod_is_no_page() {
    let pod = Pod {
        uid: UID.into(),
        namespace: "shop".into(),
        name: "api-0".into(),
        phase: None,
        ips: Vec::new(),
        deletion: None,
        grace: None,
        mirror_of: None,
    };
    let mut case = Case::wired("kubernetes");
    case.at(50_000, gone("kubernetes"));
    case.well(80_000, "the API server does not have this pod");
    case.at(81_000, Observation::Pod(pod.clone()));
    let [found] = case.settled(111_000).try_into().unwrap();
    assert_eq!(found.severity, Severity::Warning);
    assert!(text(&found).contains("no Calico address in its annotations"));
    case.at(112_000, Observation::Pod(Pod { deletion: Some(7), ..pod }));
    case.well(113_000, "it is being deleted");
}

#[test]
fn each_innocent_lookalike_is_left_alone() {
    let mut case = Case::wired("calico");
    case.at(100_000, gone("calico"));
    case.call(100_001, 500, CniCommand::Del, ID);
    case.well(140_000, "its own DEL");

    let mut case = Case::wired("calico");
    case.call(99_000, 500, CniCommand::Add, ID);
    case.at(100_000, gone("calico"));
    case.well(120_000, "its ADD runs");

    let mut case = Case::wired("calico");
    case.at(100_000, gone("calico"));
    let newer = Sandbox { id: OLD.into(), pid: None, ..sandbox(Life::Alive, "Ready") };
    case.at(100_001, Observation::Sandbox(newer));
    let both = |case: &mut Case| {
        let other = Sandbox { id: OLD.into(), pid: None, ..sandbox(Life::Alive, "Ready") };
        case.list(140_000, [alive(), vec![Observation::Sandbox(other)]].concat());
        case.codes_at(140_001)
    };
    assert_eq!(both(&mut case), [], "which of the two counts nobody knows");

    let mut case = Case::wired("calico");
    let plain = Link { peer: Some(2), peer_nsid: POD.nsid, ..link(CALI, "veth", B) };
    case.at(
        50,
        Observation::Link { netns: HOST, link: Link { name: "eni12345678901".into(), ..plain } },
    );
    case.at(100_000, gone("calico"));
    case.well(140_000, "a device of the VPC CNI");

    let mut case = Case::wired("calico");
    case.at(100_000, gone("calico"));
    let host_network = Sandbox { host_network: true, ..sandbox(Life::Alive, "Ready") };
    case.list(140_000, vec![Observation::Sandbox(host_network)]);
    assert_eq!(case.codes_at(140_001), [], "on the node's own network");

    let mut case = Case::wired("calico");
    case.at(100_000, gone("calico"));
    case.list(140_000, not_ready());
    assert!(!case.codes_at(140_001).contains(&Code::EndpointMissing), "it is dead");
}

#[test]
fn nothing_is_concluded_from_a_datastore_that_is_silent_or_anothers() {
    let mut case = Case::wired("calico");
    case.at(100_000, gone("calico"));
    assert_eq!(case.settled(111_000).len(), 1);
    let is_blind =
        |case: &Case| blind(&case.0, &Thresholds::default()).contains(&Code::EndpointMissing);
    assert!(!is_blind(&case));
    case.source("calico", SourceStatus::Down);
    case.well(112_000, "it does not answer");
    assert!(is_blind(&case), "and nothing of it is over");
    case.source("calico", SourceStatus::Active);
    case.endpoints(113_000, "calico", Vec::new(), false);
    case.well(140_000, "it was cut short");
    assert!(is_blind(&case));
    case.endpoints(141_000, "calico", Vec::new(), true);
    assert_eq!(case.settled(160_000).len(), 1, "it has none");
    // It knows this node by another name, or belongs to another cluster.
    let mut case = Case::unlisted("calico");
    case.well(20, "nothing is told yet");
    case.endpoints(21, "calico", Vec::new(), true);
    case.well(60_000, "it never had one of this node");
    assert!(is_blind(&case));
    assert!(!is_blind(&Case::with_runtime()), "there is no Calico");
    let mut case = Case::with_runtime();
    case.source("calico", SourceStatus::Down);
    assert!(!is_blind(&case), "nobody is going to tell of endpoints: of blocks, maybe");
    case.at(20, Observation::Began(Scope::Endpoints { store: "calico".into() }));
    assert!(is_blind(&case), "it has been silent since the start");
}

#[test]
fn the_runtime_is_asked_right_after_the_datastores_word() {
    let mut case = Case::wired("calico");
    case.at(100_000, gone("calico"));
    let ask = Request::Runtime { runtime: "containerd".into() };
    assert!(case.wants(110_000).contains(&ask));
    case.list(110_100, alive());
    assert!(case.wants(115_100).contains(&ask), "a second time");
    case.list(115_200, alive());
    assert!(!case.wants(130_000).contains(&ask));
    case.at(131_000, Observation::EndpointsConfirmed { store: "calico".into() });
    assert!(case.wants(131_001).contains(&ask), "its word is older than the datastore's");
    case.list(131_100, alive());
    assert_eq!(case.codes_at(131_101), [Code::EndpointMissing]);
    // Not with each report of the datastore as long as the finding lasts.
    case.at(400_000, Observation::EndpointsConfirmed { store: "calico".into() });
    case.list(400_100, alive());
    case.at(402_000, Observation::EndpointsConfirmed { store: "calico".into() });
    assert!(!case.wants(402_001).contains(&ask));
}

#[test]
fn the_datastore_too_must_have_said_so_since() {
    let mut case = Case::wired("calico");
    case.at(100_000, gone("calico"));
    case.list(111_000, alive());
    assert_eq!(case.codes_at(111_001), [], "it has said nothing since: its answer may hang");
    case.at(111_002, Observation::EndpointsConfirmed { store: "calico".into() });
    assert_eq!(case.codes_at(111_003), [Code::EndpointMissing]);
}

#[test]
fn what_is_listed_anew_is_not_known_meanwhile() {
    let mut case = Case::wired("calico");
    case.at(100_000, Observation::Began(Scope::Endpoints { store: "calico".into() }));
    case.at(100_001, gone("calico"));
    case.well(140_000, "the list is not over");
    let scope = Scope::Endpoints { store: "calico".into() };
    case.at(150_000, Observation::Ended { scope, began: BootNs(100_000 * MS), complete: true });
    case.well(159_000, "what came after the list began may still be on its way");
    assert_eq!(case.settled(161_000).len(), 1);
}

#[test]
fn one_that_answers_again_is_given_time_to_tell() {
    let mut case = Case::wired("calico");
    case.source("calico", SourceStatus::Down);
    case.at(100_000, gone("calico"));
    case.well(200_000, "it is down");
    let status = SourceStatus::Active;
    let source = Source { name: "calico".into(), status, detail: String::new() };
    case.at(200_000, Observation::Source(source));
    case.well(200_001, "it has just come back");
    assert_eq!(case.settled(211_000).len(), 1);
}

#[test]
fn only_a_datastore_of_ours_keeps_a_late_del_open() {
    let is_blind =
        |case: &Case| blind(&case.0, &Thresholds::default()).contains(&Code::CniDelHitsSuccessor);
    let mut case = Case::unlisted("calico");
    case.endpoints(21, "calico", Vec::new(), true);
    assert!(!is_blind(&case), "it never had one of this node");
    let mut case = Case::wired("calico");
    assert!(!is_blind(&case));
    case.source("calico", SourceStatus::Down);
    assert!(is_blind(&case));
}

#[test]
pub(super) fn an_endpoint_whose_pod_is_gone_is_context() {
    let stale = Endpoint { device: None, ..endpoint("calico", "old-1", Some(OLD)) };
    let of = |cached: bool| {
        let mut case = Case::wired("calico");
        case.at(50, Observation::Endpoint(stale.clone()));
        if cached {
            let pod = Some(crate::fact::PodName { name: "old-1".into(), ..pod_name() });
            let attachment = Attachment {
                container_id: OLD.into(),
                pod,
                ips: Vec::new(),
                ..super::silence::attachment()
            };
            case.at(50, Observation::Attachment(attachment));
        }
        case
    };
    let mut case = of(true);
    case.well(300_000, "not for long enough");
    let [found] = case.settled(301_000).try_into().unwrap();
    assert_eq!((found.code, found.severity), (Code::EndpointMissing, Severity::Info));
    assert!(text(&found).contains("no runtime has bb4c1b2a9d7e"), "{}", text(&found));
    let mut other = of(false);
    other.well(600_000, "it may be that of another node that had this name");
    let device = Endpoint { device: Some(DEVICE.into()), ..stale.clone() };
    case.at(302_000, Observation::Endpoint(device));
    case.well(700_000, "its device is there");
}

/// A node with many pods; a wiped datastore keeps only every tenth endpoint.
#[test]
fn each_of_many_that_are_lost_at_once_is_found_with_what_is_its_own() {
    const PODS: u32 = 1_000;
    let named = |n: u32| format!("many-{n}");
    let id = |n: u32| format!("{n:08x}{}", &OLD[8..]);
    let device = |n: u32| {
        let digest = Sha1::digest(format!("shop.{}", named(n)));
        let hash: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("cali{}", &hash[..11])
    };
    let netns = |n: u32| NetnsRef {
        cookie: Some(1_000 + u64::from(n)),
        inode: Some(10_000 + n),
        nsid: Some(100 + n.cast_signed()),
    };
    let sandbox_of = |n: u32| Sandbox {
        id: id(n),
        pod: Some(crate::fact::PodName { name: named(n), uid: None, ..pod_name() }),
        netns_path: Some(format!("/run/netns/many-{n}")),
        pid: None,
        ..sandbox(Life::Alive, "Ready")
    };
    let has = |n: u32| Endpoint {
        device: Some(device(n)),
        ..endpoint("calico", &named(n), Some(&id(n)))
    };
    let living = || {
        alive().into_iter().chain((0..PODS).map(|n| Observation::Sandbox(sandbox_of(n)))).collect()
    };
    let mut case = Case::unlisted("calico");
    case.0.1.get_mut().steps = Steps::Asked;
    for n in 0..PODS {
        let path = format!("/run/netns/many-{n}");
        case.at(5, Observation::Holder { netns: netns(n), holder: mount_of(&path, 1, 1) });
        let end = Link { peer: Some(2), peer_nsid: netns(n).nsid, ..link(1_000 + n, "veth", B) };
        case.at(5, Observation::Link { netns: HOST, link: Link { name: device(n), ..end } });
        let eth0 = Link { peer: Some(1_000 + n), peer_nsid: Some(0), ..link(2, "veth", A) };
        case.at(5, Observation::Link { netns: netns(n), link: eth0 });
        let [_, _, high, low] = n.to_be_bytes();
        let local = Ipv4Addr::from([10, 1, high, low]).into();
        let key = AddressKey { ifindex: 2, local, prefix_len: 32, peer: None };
        let address = Address { key, scope: Some(0), flags: Some(0) };
        case.at(5, Observation::Address { netns: netns(n), address });
    }
    case.list(12, living());
    let all = (0..PODS).map(has).chain([endpoint("calico", "api-0", Some(ID))]);
    case.endpoints(13, "calico", all.collect(), true);
    let lost = || (0..PODS).filter(|n| n % 10 != 0);
    for n in lost() {
        case.at(100_000, Observation::EndpointGone { store: "calico".into(), key: has(n).key });
    }
    case.list(111_000, living());
    let counted = |case: &mut Case, ms| {
        let mut found = case.then(ms);
        found.retain(|one| one.code == Code::EndpointMissing);
        found
    };
    assert_eq!(counted(&mut case, 111_001), [], "the datastore has said nothing since");
    case.at(111_002, Observation::EndpointsConfirmed { store: "calico".into() });
    let found = counted(&mut case, 111_003);
    let proofs: BTreeMap<String, String> = found
        .iter()
        .map(|one| (one.subject.pod.as_ref().unwrap().name.clone().unwrap(), text(one)))
        .collect();
    assert_eq!((proofs.len(), found.len()), (900, 900));
    for n in lost() {
        let proof = &proofs[&named(n)];
        let lost = format!("the endpoint of shop/{} was removed: {}", named(n), has(n).key);
        let leads = format!("{} leads to its netns, net:[{}]", device(n), 10_000 + n);
        assert!(proof.contains(&lost) && proof.contains(&leads), "{n}: {proof}");
    }
}

/// R5: the DEL of an old sandbox is repeated, and removes the endpoint of the StatefulSet's new pod with the same name
/// and releases its IP, which the next pod is given.
#[test]
pub(super) fn the_late_del_of_r5_is_found_with_all_that_follows_from_it() {
    let mut case = Case::wired("calico");
    let reservation = |id: Option<&str>, pod: &str| {
        Observation::Reservation(Reservation {
            store: "calico".into(),
            network: String::new(),
            key: "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-26/5".into(),
            ip: Ipv4Addr::from(IP).into(),
            container_id: id.map(str::to_owned),
            ifname: None,
            pod: Some(crate::fact::PodName {
                namespace: "shop".into(),
                name: pod.into(),
                uid: None,
            }),
            since: None,
        })
    };
    case.at(20, reservation(None, "api-0"));
    let scope = Scope::Reservations { store: "calico".into() };
    case.at(20, Observation::Ended { scope, began: BootNs(19 * MS), complete: true });
    case.at(
        30,
        Observation::Neighbour { netns: HOST, neighbour: neighbour(CALI, IP, Some(A), REACHABLE) },
    );
    assert_eq!(case.codes_at(90_000), []);

    case.call_for(100_000, 500, CniCommand::Del, OLD, Some(pod_name()));
    case.at(100_010, gone("calico"));
    case.call_ended(100_020, 500, 0);
    // Felix removes the routes and proxy ARP, so the gateway does not answer.
    let key = crate::fact::RouteKey {
        to: Ipv4Addr::from(IP).into(),
        prefix_len: 32,
        table: 254,
        priority: 0,
    };
    case.at(100_100, Observation::RouteGone { netns: HOST, key, hops: Vec::new() });
    case.at(
        100_500,
        Observation::Neighbour { netns: POD, neighbour: neighbour(2, GATEWAY, None, 0x01) },
    );
    let first = case.then(100_600);
    let [first] = first.try_into().unwrap();
    assert_eq!(first.code, Code::CniDelHitsSuccessor, "at the DEL itself");
    assert!(text(&first).contains("calico: calico released the endpoint of sandbox 8f4c1b2a9d7e"));

    case.at(110_999, Observation::EndpointsConfirmed { store: "calico".into() });
    case.list(111_000, alive());
    let found = case.then(111_001);
    let codes: Vec<Code> = found.iter().map(|one| one.code).collect();
    let expected = [Code::CniDelHitsSuccessor, Code::EndpointMissing, Code::GatewayNeighbourLost];
    assert_eq!(codes, expected);
    let root = Some((Code::CniDelHitsSuccessor, first.key.clone()));
    assert!(found[1..].iter().all(|one| one.caused_by == root), "{found:#?}");

    // The IP is free in the store too, and another pod on this node is given it: the second ARP entry.
    case.at(120_000, reservation(None, "next-0"));
    let end = Link { peer: Some(2), peer_nsid: OTHER.nsid, ..link(19, "veth", B) };
    case.at(120_001, Observation::Link { netns: HOST, link: end });
    let eth0 = Link { peer: Some(19), peer_nsid: Some(0), ..link(2, "veth", B) };
    case.at(120_001, Observation::Link { netns: OTHER, link: eth0 });
    let local = Ipv4Addr::from(IP).into();
    let key = AddressKey { ifindex: 2, local, prefix_len: 32, peer: None };
    let address = Address { key, scope: Some(0), flags: Some(0) };
    case.at(120_002, Observation::Address { netns: OTHER, address });
    case.at(120_003, route(HOST, IP, 32, Hop { ifindex: 19, gateway: None }));
    case.at(
        120_004,
        Observation::Neighbour { netns: HOST, neighbour: neighbour(19, IP, Some(B), REACHABLE) },
    );
    case.list(140_000, alive());
    let codes: Vec<Code> = case.then(140_001).iter().map(|one| one.code).collect();
    for code in expected.iter().chain(&[Code::IpDuplicate]) {
        assert!(codes.contains(code), "{code} is not in {codes:?}");
    }
}

/// A handle of a dead pod, a tunnel, and a container that may be another node's.
#[test]
pub(super) fn a_handle_of_a_dead_pod_of_this_node_has_leaked_and_a_tunnel_never() {
    let reservation = |ordinal: u8, container: Option<String>| {
        Observation::Reservation(Reservation {
            store: "calico".into(),
            network: "k8s-pod-network".into(),
            key: format!("ipamblocks/10-0-0-0-26/{ordinal}"),
            ip: super::ipam::ip(ordinal),
            container_id: container,
            ifname: None,
            pod: None,
            since: None,
        })
    };
    let id = |n: u8| format!("{n:02x}{}", &OLD[2..]);
    let mut case = Case::wired("calico");
    case.source("cni", SourceStatus::Active);
    let scope = || Scope::Reservations { store: "calico".into() };
    case.at(20, Observation::Began(scope()));
    case.at(20, reservation(0, None));
    case.at(20, reservation(5, Some(ID.to_owned())));
    case.at(20, reservation(6, Some(id(6))));
    case.at(20, reservation(7, Some(id(7))));
    case.at(20, Observation::Ended { scope: scope(), began: BootNs(20 * MS), complete: true });
    let cached = |n| Attachment {
        container_id: id(n),
        ips: vec![(super::ipam::ip(n), 32)],
        pod: None,
        ..super::silence::attachment()
    };
    case.at(21, Observation::Attachment(cached(6)));
    for ms in [100_000, 400_000, 401_000] {
        case.list(ms, alive());
    }
    let leaks = |case: &mut Case, ms| {
        let mut found = case.then(ms);
        found.retain(|one| one.code == Code::IpamReservationLeaked);
        found
    };
    let [found] = leaks(&mut case, 402_000).try_into().unwrap();
    assert_eq!(found.subject.ip, Some(super::ipam::ip(6)));
    assert!(text(&found).contains("calico reserves 10.0.0.6"), "{}", text(&found));
    let out = lines(&found);
    assert!(out.contains("calicoctl ipam show --ip=10.0.0.6"), "{out}");
    assert!(!out.contains("release --ip"), "nothing guards that: {out}");
    case.source("calico", SourceStatus::Down);
    assert_eq!(leaks(&mut case, 403_000), [], "what a silent datastore said does not count");
}

#[test]
fn after_a_restart_a_lost_endpoint_holds_until_it_is_there_again() {
    let mut case = Case::wired("calico");
    case.call_for(1_000, 500, CniCommand::Del, OLD, Some(pod_name()));
    case.at(1_010, gone("calico"));
    let mut found = case.then(1_100);
    found.retain(|one| one.code == Code::CniDelHitsSuccessor);
    let mut life = crate::ledger::life::Life::default();
    let calendar = crate::clock::Calendar { wall_offset: 0 };
    life.observe(BootNs(1), &calendar, &found, &BTreeSet::new());
    let kept = life.open().next().unwrap().finding.clone();
    let mut again = Case::wired("calico");
    let holds = |case: &Case| still_holds(&case.0, &kept, case.0.now());
    assert!(!holds(&again), "it is there");
    again.at(1_000, gone("calico"));
    assert!(holds(&again));
    again.at(1_100, Observation::Endpoint(endpoint("calico", "api-0", Some(OLD))));
    assert!(holds(&again), "it is another's");
}
