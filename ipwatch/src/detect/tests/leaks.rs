//! Reservations without their containers, and ranges that run out.

use std::net::IpAddr;

use super::ipam::*;
use super::sandboxes::{ID, mount_of, not_ready, other, sandbox};
use super::*;
use crate::fact::{CniCall, CniCommand, Configured, Holder, Life, Range, RangePart, Reservation};
use crate::finding::Severity;

#[test]
pub(super) fn a_reservation_without_its_container_is_a_leak_when_its_runtime_had_it() {
    let mut case = Case::reserved();
    case.list(1_000, not_ready());
    case.gone(1_500);
    case.list(2_000, other());
    assert_eq!(case.codes_at(31_000), [], "within its grace");
    case.list(32_100, other());
    let [found] = case.then(32_200).try_into().unwrap();
    assert_eq!((found.code, found.subject.ip), (Code::IpamReservationLeaked, Some(ip(5))));
    assert!(found.remediation.iter().any(|line| line.line().contains("flock")));
    case.source("containerd", SourceStatus::Down);
    assert_eq!(case.codes_at(33_000), []);
    assert!(blind(&case.0, &Thresholds::default()).contains(&Code::IpamReservationLeaked));
    case.source("containerd", SourceStatus::Active);
    assert_eq!(case.codes_at(34_000), [Code::IpamReservationLeaked]);
    case.release(35_000, 5);
    assert_eq!(case.codes_at(35_001), []);
}

#[test]
fn a_container_that_its_runtime_still_has_leaks_nothing() {
    let mut case = Case::reserved();
    case.list(1_000, not_ready());
    case.gone(1_500);
    case.list(600_000, not_ready());
    assert_eq!(case.codes_at(600_001), [Code::CniDelFailing], "DEL is still to come");
    let mut case = Case::reserved();
    let address = AddressKey { ifindex: 2, local: ip(5), prefix_len: 24, peer: None };
    case.at(1_000, Observation::AddressGone { netns: POD, key: address });
    case.list(600_000, vec![Observation::Sandbox(sandbox(Life::Alive, "Ready"))]);
    assert_eq!(case.codes_at(600_001), [], "gVisor takes the address off the device");
}

#[test]
pub(super) fn a_reservation_that_no_runtime_knows_is_given_time() {
    let mut case = Case::reserved();
    case.reserve(1_000, 9, NEW);
    case.list(200_000, vec![Observation::Sandbox(sandbox(Life::Alive, "Ready"))]);
    assert_eq!(case.codes_at(200_001), [], "a slow ADD");
    case.list(301_100, vec![Observation::Sandbox(sandbox(Life::Alive, "Ready"))]);
    let [found] = case.then(301_200).try_into().unwrap();
    assert_eq!((found.code, found.subject.ip), (Code::IpamReservationLeaked, Some(ip(9))));
    assert!(text(&found).contains("DEL was never run"), "{}", text(&found));
    case.call(302_000, 700, CniCommand::Del, NEW);
    assert_eq!(case.codes_at(302_001), [], "it is being given back");
}

/// Anybody can make a netns in a user namespace and give it every IP of the node's ranges.
#[test]
fn what_a_user_has_in_a_netns_of_his_own_hides_no_leak() {
    let users = NetnsRef { cookie: Some(77), inode: Some(4_077), nsid: None };
    let key = AddressKey { ifindex: 2, local: ip(5), prefix_len: 24, peer: None };
    let address = || Address { key, scope: None, flags: None };
    let mut case = Case::reserved();
    case.list(1_000, not_ready());
    case.gone(1_500);
    case.at(1_600, Observation::Address { netns: users, address: address() });
    case.list(2_000, other());
    case.list(32_100, other());
    assert_eq!(case.codes_at(32_200), [], "it may be the container's");
    case.at(32_300, Observation::NetnsUser { netns: users, uid: 1_000, nested: false });
    assert_eq!(case.codes_at(63_000), [Code::IpamReservationLeaked]);
    // But what root has there.
    let roots = NetnsRef { cookie: Some(78), inode: Some(4_078), nsid: None };
    case.at(120_001, Observation::Address { netns: roots, address: address() });
    assert_eq!(case.codes_at(120_002), []);
}

#[test]
fn a_del_whose_end_was_lost_hides_no_leak() {
    let mut case = Case::reserved();
    case.call(900, 500, CniCommand::Del, ID);
    case.list(1_000, not_ready());
    case.gone(1_500);
    case.list(2_000, other());
    case.list(120_000, other());
    assert_eq!(case.codes_at(120_001), [], "it runs");
    case.list(121_000, other());
    assert_eq!(case.codes_at(121_001), [Code::IpamReservationLeaked]);
}

#[test]
fn an_ip_that_terway_keeps_for_a_pod_that_may_come_back_is_no_leak() {
    let mut case = Case::with_runtime();
    case.at(1, Observation::Sight(SEEN));
    case.source("terway", SourceStatus::Active);
    case.list(11, vec![Observation::Sandbox(sandbox(Life::Alive, "Ready"))]);
    let (store, network) = ("terway".into(), "eni-1".into());
    case.at(12, Observation::Reservation(Reservation { store, network, ..reservation(5, ID) }));
    case.list(1_000, not_ready());
    case.gone(1_500);
    case.list(2_000, other());
    case.list(600_000, other());
    assert_eq!(case.codes_at(600_001), []);
    case.list(663_000, other());
    assert_eq!(case.codes_at(663_001), [Code::IpamReservationLeaked]);
}

/// A node without any runtime.
fn alone() -> Case {
    let mut case = Case::pod();
    case.source("runtime", SourceStatus::Disabled);
    case.source("host-local", SourceStatus::Active);
    case.at(1, Observation::Sight(SEEN));
    case
}

#[test]
fn without_a_runtime_only_what_cannot_be_otherwise_is_a_leak() {
    let mut case = alone();
    case.store(12, vec![Observation::Reservation(reservation(9, NEW))]);
    assert_eq!(case.codes_at(3_600_000), [], "silence proves nothing");
}

#[test]
pub(super) fn what_was_written_before_the_boot_is_a_leak_soon_after_it() {
    let mut case = alone();
    let boot = crate::fact::Boot {
        boot_id: "boot".into(),
        node: "node".into(),
        kernel: String::new(),
        wall_offset: 1_000_000_000_000_000,
        host: HOST,
    };
    case.at(2, Observation::Boot(boot));
    let of = |last, since| {
        Observation::Reservation(Reservation { since: Some(since), ..reservation(last, NEW) })
    };
    let (before, after) = (999_000_000_000_000, 1_000_000_500_000_000);
    case.store(12, vec![of(9, before), of(10, after)]);
    assert_eq!(case.codes_at(299_000), [], "runtimes clean up after a boot");
    let [found] = case.then(300_001).try_into().unwrap();
    assert_eq!(found.subject.ip, Some(ip(9)));
    assert!(text(&found).contains("before the last boot"), "{}", text(&found));
}

#[test]
fn an_add_without_a_del_is_a_leak_when_its_netns_has_gone() {
    let mut case = alone();
    // Anybody can mount a netns at that path in a mount namespace of his own.
    let users = NetnsRef { cookie: Some(77), inode: Some(4_077), nsid: None };
    let Holder::Mount { mount_ns, path, pid, comm, cgroup, .. } =
        mount_of("/run/netns/cni-9", 2, 7)
    else {
        panic!("a mount")
    };
    let holder = Holder::Mount { mount_ns, path, pid, comm, cgroup, foreign: true };
    case.at(3, Observation::Holder { netns: users, holder });
    case.at(3, Observation::Holder { netns: POD, holder: mount_of("/run/netns/cni-9", 1, 1) });
    let call = CniCall {
        task: call_key(500),
        parent: 1,
        plugin: "/opt/cni/bin/bridge".into(),
        command: CniCommand::Add,
        container_id: Some(NEW.into()),
        netns_path: Some("/run/netns/cni-9".into()),
        ifname: Some("eth0".into()),
        pod: None,
    };
    case.store(12, Vec::new());
    case.at(500, Observation::CniBegan(call));
    case.reserve(510, 5, NEW);
    case.call_ended(520, 500, 0);
    assert_eq!(case.codes_at(60_000), []);
    case.gone(60_500);
    assert_eq!(case.codes_at(90_000), [], "within its grace");
    let [found] = case.then(90_600).try_into().unwrap();
    assert_eq!((found.code, found.subject.ip), (Code::IpamReservationLeaked, Some(ip(5))));
    assert!(text(&found).contains("DEL was never run"), "{}", text(&found));
}

#[test]
fn a_warm_pool_is_no_leak() {
    let mut case = Case::reserved();
    let pool = Reservation { container_id: None, ..reservation(40, "") };
    case.at(1_000, Observation::Reservation(pool));
    case.list(3_600_000, vec![Observation::Sandbox(sandbox(Life::Alive, "Ready"))]);
    assert_eq!(case.codes_at(3_600_001), []);
}

#[test]
pub(super) fn a_range_that_leaks_run_out_by_is_told_under_them() {
    let mut case = Case::reserved();
    case.range(13, 2, 6);
    assert_eq!(case.codes_at(14), [], "one of five");
    case.reserve(1_000, 2, NEW);
    case.reserve(1_000, 3, NEW);
    assert_eq!(case.codes_at(1_001), [Code::IpamRangeExhausting], "two are left");
    case.list(302_000, vec![Observation::Sandbox(sandbox(Life::Alive, "Ready"))]);
    case.reserve(302_000, 4, "a4");
    case.reserve(302_000, 6, "a6");
    let found = case.then(302_100);
    let range = found.iter().find(|one| one.code == Code::IpamRangeExhausting).unwrap();
    assert_eq!(range.severity, Severity::Critical);
    assert!(range.impact.as_str().starts_with("0 pods can still start"), "{}", range.impact);
    assert!(range.impact.as_str().contains("2 after the leaked IPs are freed"), "{}", range.impact);
    let leaks: Vec<_> =
        found.iter().filter(|one| one.code == Code::IpamReservationLeaked).collect();
    assert_eq!(leaks.len(), 1, "one cause");
    assert_eq!(leaks[0].severity, Severity::Critical, "it is why");
    assert_eq!(range.caused_by, Some((leaks[0].code, leaks[0].key.clone())));
    assert!(text(range).contains("10.0.0.2: leaked"), "{}", text(range));
}

#[test]
pub(super) fn a_range_that_is_low_stays_so_while_a_pod_comes_and_goes() {
    let mut case = Case::reserved();
    case.range(13, 2, 6);
    case.reserve(1_000, 2, NEW);
    case.reserve(1_000, 3, NEW);
    assert_eq!(case.codes_at(1_001), [Code::IpamRangeExhausting], "two are left");
    case.release(2_000, 3);
    assert_eq!(case.codes_at(2_001), [Code::IpamRangeExhausting], "three are");
    case.release(3_000, 2);
    assert_eq!(case.codes_at(3_001), []);
    let mut case = Case::reserved();
    case.range(13, 5, 5);
    assert_eq!(case.codes_at(14), [], "a fixed address is meant to be taken");
}

/// `podman rm` removes the address, and releases the reservation 10 to 240 ms later.
#[test]
fn an_ip_that_goes_shortly_before_its_reservation_is_no_leak() {
    let gone = || {
        let mut case = alone();
        case.source("containerd", SourceStatus::Active);
        case.at(1, Observation::Sight(SEEN));
        case.list(11, other());
        case.store(12, vec![Observation::Reservation(reservation(5, NEW))]);
        case.list(600_000, other());
        assert_eq!(case.codes_at(600_001), []);
        let key = AddressKey { ifindex: 2, local: ip(5), prefix_len: 24, peer: None };
        case.at(600_500, Observation::AddressGone { netns: POD, key });
        case.list(600_510, other());
        assert_eq!(case.codes_at(600_520), [], "it goes");
        case
    };
    let mut case = gone();
    case.release(600_740, 5);
    assert_eq!(case.codes_at(640_000), []);
    let mut case = gone();
    case.list(630_600, other());
    assert_eq!(case.codes_at(630_700), [Code::IpamReservationLeaked], "it stayed");
}

/// What the node's CNI configurations name besides.
#[derive(Clone, Copy, PartialEq)]
enum Named {
    /// The network of the living pod, which has an IP of the old network no more.
    New,
    /// Its own network too, without a range: flannel before its `subnet.env`, `usePodCidr`.
    Old,
    /// Multus, whose networks the API server has.
    Meta,
    /// Only the network of nobody's pod: the runtimes read another directory.
    Other,
}

/// The usual state after a node changed its CNI.
#[test]
fn what_is_reserved_where_nobody_hands_out_is_information() {
    let leaked_beside = |torn: Option<&str>, range: bool, alive: bool, named: &[Named]| {
        let mut case = Case::reserved();
        if let Some(path) = torn {
            let file = crate::fact::Unreadable {
                store: "host-local".into(),
                path: path.into(),
                reason: "it is empty".into(),
                effect: None,
                takes: None,
            };
            case.at(14, Observation::StoreUnreadable(file));
        }
        if range {
            case.range(13, 2, 200);
        }
        if !alive {
            case.release(14, 5);
            case.cached(14, "new");
        }
        for named in named {
            let (name, elsewhere) = match named {
                Named::New => ("new", false),
                Named::Old => ("cbr0", false),
                Named::Meta => ("multus-cni-network", true),
                Named::Other => ("podman", false),
            };
            let network = Configured {
                store: "host-local".into(),
                name: name.into(),
                path: "/etc/cni/net.d/1.conflist".into(),
                elsewhere,
            };
            case.at(14, Observation::Configured(network));
        }
        case.reserve(1_000, 9, NEW);
        case.list(301_100, vec![Observation::Sandbox(sandbox(Life::Alive, "Ready"))]);
        let found = case.then(301_200);
        let found = found.iter().find(|one| one.code == Code::IpamReservationLeaked).unwrap();
        (found.severity, lines(found).contains("Remove its directory"))
    };
    let leaked =
        |range: bool, alive: bool, named: &[Named]| leaked_beside(None, range, alive, named);
    let warned = (Severity::Warning, false);
    let new = [Named::New];
    assert_eq!(leaked(true, false, &new), warned);
    assert_eq!(leaked(false, true, &new), warned, "a living pod has one of it");
    assert_eq!(leaked(false, false, &new), (Severity::Info, true));
    assert_eq!(leaked(false, false, &[]), warned, "nothing is known of configurations");
    assert_eq!(leaked(false, false, &[Named::New, Named::Old]), warned, "its range is unknown");
    assert_eq!(leaked(false, false, &[Named::New, Named::Meta]), warned, "the API server has more");
    assert_eq!(leaked(false, false, &[Named::Other]), warned, "not what the runtimes read");
    let beside = |torn: &str| leaked_beside(Some(torn), false, false, &new);
    let backup = "/var/lib/cni/networks/cbr0.bak/10.0.0.7";
    assert_eq!(
        beside(backup),
        (Severity::Info, true),
        "a file of a network that none names either"
    );
    assert_eq!(beside("/var/lib/cni/networks/new/10.0.0.7"), warned, "of a configured one");
    assert_eq!(beside("/etc/cni/net.d/2.conflist"), warned, "it may name the network");
}

/// The leak of the pod's network.
fn leaked(found: &[Candidate]) -> &Candidate {
    let mut all = found.iter().filter(|one| one.code == Code::IpamReservationLeaked);
    let one = all.next().expect("a leak");
    assert!(all.next().is_none(), "one cause is one finding: {found:#?}");
    one
}

/// These IPs have leaked, from a range that ends with `last`.
fn of_one_cause(last: u8, leaked: std::ops::Range<u8>) -> Case {
    let mut case = Case::reserved();
    case.range(13, 2, last);
    case.list(1_000, not_ready());
    let of = |last| Observation::Reservation(reservation(last, NEW));
    case.store(1_100, leaked.map(of).collect());
    for ms in [301_200, 302_000] {
        case.list(ms, not_ready());
    }
    case
}

#[test]
pub(super) fn what_leaked_by_one_cause_is_one_finding() {
    let mut case = of_one_cause(20, 6..20);
    let found = case.found();
    let all = leaked(&found);
    let ips: Vec<IpAddr> = (6..20).map(ip).collect();
    assert_eq!(all.subject.ips().collect::<Vec<_>>(), ips);
    assert_eq!((all.subject.ip, all.subject.several()), (None, Some(14)));
    let said = all.impact.as_str();
    assert!(
        said.starts_with("\"cbr0\": 5 of 19 free, 14 leaked because CNI DEL was never run. "),
        "{said}"
    );
    let told = lines(all);
    for ip in &ips {
        assert!(told.contains(&format!("Free {ip} under")), "{ip}: {told}");
        assert!(text(all).contains(&format!("{ip} for container")), "{ip}: {}", text(all));
    }
    assert_eq!(told.matches("Do not: ").count(), 1, "{told}");

    let key = all.key.clone();
    case.release(303_000, 6);
    let found = case.found();
    let rest = leaked(&found);
    assert_eq!(rest.key, key, "the cause is the same");
    assert_eq!(rest.subject.ips().collect::<Vec<_>>(), ips[1..]);
    for last in 7..19 {
        case.release(304_000, last);
    }
    let found = case.found();
    let last = leaked(&found);
    assert_eq!((&last.key, last.subject.ip), (&key, Some(ip(19))), "of one its IP is told");
}

#[test]
fn one_that_leaks_later_is_looked_at_twice_too() {
    let mut case = Case::reserved();
    case.range(13, 2, 20);
    case.reserve(1_000, 9, NEW);
    case.reserve(2_000, 10, NEW);
    let of = |case: &mut Case, ms| {
        case.list(ms, not_ready());
        leaked(&case.found()).subject.ips().collect::<Vec<_>>()
    };
    assert_eq!(of(&mut case, 301_100), [ip(9)]);
    assert_eq!(of(&mut case, 302_100), [ip(9)], "the other one is looked at the first time");
    assert_eq!(of(&mut case, 302_700), [ip(9), ip(10)]);
}

#[test]
fn of_many_leaks_the_oldest_are_listed_and_the_others_counted() {
    let case = of_one_cause(254, 20..120);
    let found = case.found();
    let all = leaked(&found);
    assert_eq!(all.subject.ips().count(), 64);
    assert_eq!(all.subject.several(), Some(100));
    assert!(all.impact.as_str().ends_with(" 36 more are not listed here."), "{}", all.impact);
    assert!(text(all).contains("and 40 more, for which the same is true"), "{}", text(all));
}

/// So that it can be compared with what kubelet, dockerd or podman has logged.
#[test]
fn a_range_that_is_full_quotes_the_error_of_its_own_ipam() {
    for (store, error) in [
        ("host-local", "ADD fails: no IP addresses available in range set."),
        ("whereabouts", "ADD fails: Could not allocate IP in range."),
        (
            "libnetwork",
            "a container does not start: no available IPv4 addresses on this network's address pools.",
        ),
        ("netavark", "a container does not start: failed to find free IP in range."),
    ] {
        let mut case = Case::with_runtime();
        case.source(store, SourceStatus::Active);
        let part = RangePart { first: ip(2), last: ip(3), except: Vec::new() };
        let range = Range {
            store: store.into(),
            network: "one".into(),
            path: "/one".into(),
            data_dir: None,
            shares: false,
            sets: vec![vec![part]],
        };
        case.at(12, Observation::Range(range));
        for last in [2, 3] {
            let (store, network) = (store.to_owned(), "one".to_owned());
            let key = format!("/one/{last}");
            case.at(
                13,
                Observation::Reservation(Reservation {
                    store,
                    network,
                    key,
                    ..reservation(last, NEW)
                }),
            );
        }
        case.wants(14);
        let found = case.found();
        let range = found.iter().find(|one| one.code == Code::IpamRangeExhausting).unwrap();
        assert!(range.impact.as_str().ends_with(error), "{store}: {}", range.impact);
        // The scheduler gives no containers of Docker's or podman's to this node.
        let of_pods = matches!(store, "host-local" | "whereabouts");
        let whom = if of_pods { "0 pods" } else { "0 containers" };
        assert!(range.impact.as_str().starts_with(whom), "{store}: {}", range.impact);
        let says = |what| range.remediation.iter().any(|step| step.line().contains(what));
        assert_eq!(says("cordon"), store == "host-local", "{store}");
        assert_eq!(says("reservation files"), store == "host-local", "{store}");
    }
}

/// The node crashed, and its runtime lost its state: the first pods after the boot need these IPs.
#[test]
fn what_was_written_before_the_boot_is_a_leak_at_once_where_the_runtimes_deny_it() {
    let told_at = |calls: bool| {
        let mut case = Case::with_runtime();
        let boot = Boot {
            boot_id: "boot".into(),
            node: "node".into(),
            kernel: String::new(),
            wall_offset: 1_000_000_000_000_000,
            host: HOST,
        };
        case.at(2, Observation::Boot(boot));
        case.source("host-local", SourceStatus::Active);
        case.at(1, Observation::Sight(crate::fact::Sight { calls, ..SEEN }));
        let before = Reservation { since: Some(999_000_000_000_000), ..reservation(9, NEW) };
        case.store(12, vec![Observation::Reservation(before)]);
        let listed = || vec![Observation::Sandbox(sandbox(Life::Alive, "Ready"))];
        case.list(20, listed());
        (1..400).map(|step| 20 + step * 1_000).find(|ms| {
            case.list(*ms, listed());
            case.codes_at(ms + 1).contains(&Code::IpamReservationLeaked)
        })
    };
    // Nothing of an earlier boot is left in the kernel: one proof, and two if plugins are observed.
    assert_eq!(told_at(true).map(|ms| ms / 1_000), Some(3));
    assert_eq!(told_at(false).map(|ms| ms / 1_000), Some(10));
}

/// A network of Docker with as many IPs as containers, a pool with one IP for each replica.
#[test]
fn a_range_that_is_full_on_purpose_is_no_emergency() {
    const HOUR: u64 = 3_600_000;
    let mut case = Case::reserved();
    let severity = |case: &mut Case, ms: u64| {
        case.list(ms, vec![Observation::Sandbox(sandbox(Life::Alive, "Ready"))]);
        let found = case.then(ms + 1);
        let range = found.into_iter().find(|one| one.code == Code::IpamRangeExhausting);
        range.map(|one| (one.severity, text(&one).contains("nothing indicates that")))
    };
    let old =
        |last: u8| Reservation { since: Some(-1), container_id: None, ..reservation(last, "") };
    case.range(13, 2, 6);
    case.wants(14);
    for last in [2, 3, 4, 6] {
        case.at(1_000, Observation::Reservation(old(last)));
    }
    assert_eq!(severity(&mut case, 2_000), Some((Severity::Critical, false)), "it has just grown");
    assert_eq!(severity(&mut case, HOUR / 2), Some((Severity::Critical, false)));
    assert_eq!(severity(&mut case, HOUR + 10_000), Some((Severity::Info, true)), "and stays so");
    // A container is replaced.
    case.release(HOUR + 20_000, 6);
    assert_eq!(severity(&mut case, HOUR + 21_000), Some((Severity::Info, true)));
    case.at(HOUR + 22_000, Observation::Reservation(old(6)));
    assert_eq!(severity(&mut case, HOUR + 23_000), Some((Severity::Info, true)));
    // The next pod gets none.
    let call = CniCall {
        task: call_key(700),
        parent: 1,
        plugin: "/opt/cni/bin/host-local".into(),
        command: CniCommand::Add,
        container_id: Some(NEW.into()),
        netns_path: None,
        ifname: Some("eth0".into()),
        pod: None,
    };
    case.at(HOUR + 30_000, Observation::CniBegan(call));
    case.call_ended(HOUR + 30_500, 700, 1);
    assert_eq!(severity(&mut case, HOUR + 31_000), Some((Severity::Critical, false)), "refused");
}

/// What was there first is no consequence.
#[test]
fn a_range_that_living_pods_fill_is_no_consequence_of_a_later_leak() {
    let range = |before: bool| {
        let mut case = Case::reserved();
        case.range(13, 2, 41);
        let alive = |last| Reservation { container_id: None, ..reservation(last, "") };
        if before {
            case.reserve(900, 41, NEW);
            case.reserve(900, 40, NEW);
        }
        for last in 6..40 {
            case.at(1_000, Observation::Reservation(alive(last)));
        }
        case.list(1_001, vec![Observation::Sandbox(sandbox(Life::Alive, "Ready"))]);
        if !before {
            for last in [2, 3] {
                case.at(1_500, Observation::Reservation(alive(last)));
            }
            assert!(case.codes_at(2_000).contains(&Code::IpamRangeExhausting));
            case.reserve(3_000, 40, NEW);
            case.reserve(3_000, 41, NEW);
        }
        case.list(304_000, vec![Observation::Sandbox(sandbox(Life::Alive, "Ready"))]);
        let found = case.then(304_001);
        let of = |code| found.iter().find(|one| one.code == code).cloned().unwrap();
        let (range, leak) = (of(Code::IpamRangeExhausting), of(Code::IpamReservationLeaked));
        let cause = (leak.code, leak.key.clone());
        (range.caused_by == Some(cause), range.caused_by.is_none(), leak.severity, case)
    };
    let (follows, _, _, mut case) = range(true);
    assert!(follows, "without them it would not be low");
    // The cause ends, and the range is low for another reason.
    for last in [40, 41] {
        case.release(305_000, last);
        let again = Reservation { container_id: None, ..reservation(last, "") };
        case.at(305_001, Observation::Reservation(again));
    }
    let found = case.then(305_100);
    let range_now = found.iter().find(|one| one.code == Code::IpamRangeExhausting).unwrap();
    assert_eq!(range_now.caused_by, None, "{found:#?}");
    let (_, alone, severity, _) = range(false);
    assert!(alone);
    assert_eq!(severity, Severity::Warning, "it is not why the range is low");
}
