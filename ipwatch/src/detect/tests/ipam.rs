//! The stores against the kernel: what is free and held, handed out twice, leaked, running out.

use super::sandboxes::{ID, PATH, UID, mount_of, not_ready, other, pod_name, sandbox};
use super::*;
use crate::fact::{
    Attachment, CniCall, CniCommand, Life, PodName, Range, RangePart, Reservation, Scope, Sight,
    Unreadable,
};
use crate::finding::Severity;

pub(super) const NEW: &str = "aa4c1b2a9d7e6f5041322314a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e";
pub(super) const SEEN: Sight =
    Sight { teardown_end: true, release: true, addresses: true, calls: true };

pub(super) fn ip(last: u8) -> std::net::IpAddr {
    Ipv4Addr::new(10, 0, 0, last).into()
}

pub(super) fn reservation(last: u8, id: &str) -> Reservation {
    Reservation {
        store: "host-local".into(),
        network: "cbr0".into(),
        key: format!("/var/lib/cni/networks/cbr0/{}", ip(last)),
        ip: ip(last),
        container_id: Some(id.into()),
        ifname: Some("eth0".into()),
        pod: None,
        since: None,
    }
}

impl Case {
    /// A pod that containerd knows, with its IP reserved in host-local, of which all is read.
    pub(super) fn reserved() -> Self {
        let mut case = Self::with_runtime();
        case.source("host-local", SourceStatus::Active);
        case.at(1, What::Sight(SEEN));
        // That it has pods is known from its second list on.
        case.list(11, vec![What::Sandbox(sandbox(Life::Alive, "Ready"))]);
        case.store(12, vec![What::Reservation(reservation(5, ID))]);
        case
    }

    /// A whole list of host-local's.
    pub(super) fn store(&mut self, ms: u64, all: Vec<What>) {
        let scope = Scope::Reservations { store: "host-local".into() };
        self.at(ms, What::Began(scope.clone()));
        all.into_iter().for_each(|what| self.at(ms, what));
        self.at(ms, What::Ended { scope, began: BootNs(ms * MS), complete: true });
        self.wants(ms);
    }

    pub(super) fn reserve(&mut self, ms: u64, last: u8, id: &str) {
        self.at(ms, What::Reservation(reservation(last, id)));
    }

    pub(super) fn release(&mut self, ms: u64, last: u8) {
        let key = reservation(last, "").key;
        self.at(ms, What::ReservationGone { store: "host-local".into(), key });
    }

    pub(super) fn range(&mut self, ms: u64, first: u8, last: u8) {
        let part = RangePart { first: ip(first), last: ip(last), except: Vec::new() };
        self.at(
            ms,
            What::Range(Range {
                store: "host-local".into(),
                network: "cbr0".into(),
                path: "/etc/cni/net.d/10-flannel.conflist".into(),
                data_dir: Some("/var/lib/cni/networks/cbr0".into()),
                sets: vec![vec![part]],
            }),
        );
    }

    pub(super) fn call(&mut self, ms: u64, pid: u32, command: CniCommand, id: &str) {
        self.call_for(ms, pid, command, id, None);
    }

    pub(super) fn call_for(
        &mut self,
        ms: u64,
        pid: u32,
        command: CniCommand,
        id: &str,
        pod: Option<PodName>,
    ) {
        let call = CniCall {
            task: call_key(pid),
            parent: 1,
            plugin: "/opt/cni/bin/bridge".into(),
            command,
            container_id: Some(id.into()),
            netns_path: (id == ID).then(|| PATH.into()),
            ifname: Some("eth0".into()),
            pod,
        };
        self.at(ms, What::CniBegan(call));
    }

    pub(super) fn call_ended(&mut self, ms: u64, pid: u32, status: u32) {
        self.at(ms, What::CniEnded { task: call_key(pid), status: Some(status), signal: None });
    }

    pub(super) fn then(&mut self, ms: u64) -> Vec<Candidate> {
        self.wants(ms);
        detect(&self.0, BootNs(ms * MS), &Policy::default())
    }

    pub(super) fn codes_at(&mut self, ms: u64) -> Vec<Code> {
        self.then(ms).iter().map(|found| found.code).collect()
    }

    pub(super) fn cached(&mut self, ms: u64, network: &str) {
        self.at(
            ms,
            What::Attachment(Attachment {
                container_id: ID.into(),
                ifname: "eth0".into(),
                network: network.into(),
                netns_path: Some(PATH.into()),
                ips: vec![(ip(5), 24)],
                made: None,
                pod: Some(pod_name()),
            }),
        );
    }

    /// The pod's processes and its netns have gone.
    pub(super) fn gone(&mut self, ms: u64) {
        self.at(ms, What::TaskReleased { task: KEY });
        self.at(ms, What::NetnsGone { netns: POD });
        self.wants(ms);
    }
}

pub(super) fn call_key(pid: u32) -> TaskKey {
    TaskKey { pid, tid: pid, start: 1 }
}

fn text(found: &Candidate) -> String {
    found.evidence.iter().map(|item| item.text.as_str()).collect::<Vec<_>>().join("\n")
}

#[test]
fn an_ip_that_is_freed_while_it_is_held_is_told_within_a_second() {
    let mut case = Case::reserved();
    assert_eq!(case.codes_at(1_000), []);
    case.release(2_000, 5);
    assert_eq!(case.codes_at(2_001), [], "the word of a DEL may be on its way");
    let [found] = case.then(2_400).try_into().unwrap();
    assert_eq!((found.code, found.severity), (Code::IpReleasedButHeld, Severity::Critical));
    assert_eq!((found.subject.ip, found.since), (Some(ip(5)), BootNs(2_000 * MS)));
    assert_eq!(found.subject.pod.as_ref().unwrap().name.as_deref(), Some("api-0"));
    assert!(text(&found).contains("/var/lib/cni/networks/cbr0/10.0.0.5"), "{}", text(&found));
    case.reserve(3_000, 5, ID);
    assert_eq!(case.codes_at(3_001), [], "it was given back");
}

#[test]
fn the_agenda_says_when_to_look_again() {
    let mut case = Case::reserved();
    case.release(2_000, 5);
    let next = case.0.agenda(BootNs(2_001 * MS), &Policy::default()).next.unwrap();
    assert!(next <= BootNs(2_300 * MS), "{next:?}");
}

#[test]
fn while_the_holders_del_runs_nothing_is_said() {
    let mut case = Case::reserved();
    case.call(1_900, 500, CniCommand::Del, ID);
    case.release(2_000, 5);
    assert_eq!(case.codes_at(10_000), [], "macvlan frees the IP first");
    case.call_ended(11_000, 500, 0);
    assert_eq!(case.codes_at(12_950), [], "its word may come a little later");
    assert_eq!(case.codes_at(13_001), [Code::IpReleasedButHeld]);
    case.at(14_000, What::NetnsDying { netns: POD });
    assert_eq!(case.codes_at(14_001), [], "now it goes");
}

#[test]
fn a_del_that_hangs_for_ever_excuses_nothing() {
    let mut case = Case::reserved();
    case.call(1_900, 500, CniCommand::Del, ID);
    case.release(2_000, 5);
    assert_eq!(case.codes_at(100_000), []);
    assert_eq!(case.codes_at(130_000), [Code::IpReleasedButHeld]);
}

#[test]
fn where_calls_are_not_seen_a_release_has_more_time() {
    let mut case = Case::reserved();
    case.at(13, What::Sight(Sight { calls: false, ..SEEN }));
    case.release(2_000, 5);
    assert_eq!(case.codes_at(6_900), []);
    assert_eq!(case.codes_at(7_001), [Code::IpReleasedButHeld]);
}

#[test]
fn after_a_restart_the_cache_tells_whose_network_it_is() {
    let mut case = Case::with_runtime();
    case.at(1, What::Sight(SEEN));
    case.source("host-local", SourceStatus::Active);
    case.cached(5, "cbr0");
    case.range(6, 2, 254);
    assert_eq!(case.codes_at(1_000), [], "the store has not told all");
    case.store(2_000, Vec::new());
    assert_eq!(case.codes_at(33_000), [Code::IpReleasedButHeld]);
    let mut other = Case::with_runtime();
    other.source("host-local", SourceStatus::Active);
    other.cached(5, "calico");
    other.range(6, 2, 254);
    other.store(2_000, Vec::new());
    assert_eq!(other.codes_at(60_000), [], "a conflist that is left over");
}

#[test]
fn nobody_is_told_of_an_ip_that_no_store_is_known_to_have() {
    let mut case = Case::with_runtime();
    case.source("host-local", SourceStatus::Active);
    case.range(6, 2, 254);
    case.store(2_000, Vec::new());
    assert_eq!(case.codes_at(60_000), []);
}

#[test]
fn a_taken_ip_that_is_handed_out_is_told_at_once() {
    let mut case = Case::reserved();
    case.release(2_000, 5);
    case.call(9_000, 600, CniCommand::Add, NEW);
    case.reserve(9_010, 5, NEW);
    let found = case.then(9_010);
    let codes: Vec<Code> = found.iter().map(|one| one.code).collect();
    assert_eq!(codes, [Code::IpReleasedButHeld, Code::IpConflictImminent]);
    assert_eq!(found[1].caused_by.as_ref().unwrap().0, Code::IpReleasedButHeld);
    assert!(
        text(&found[1]).contains("bridge ADD is under way for aa4c1b2a9d7e"),
        "{}",
        text(&found[1])
    );
    case.gone(10_000);
    assert_eq!(case.codes_at(10_001), [], "the holder went");
}

#[test]
fn a_handover_within_the_old_ones_del_is_none() {
    let mut case = Case::reserved();
    case.call(1_900, 500, CniCommand::Del, ID);
    case.release(2_000, 5);
    case.reserve(2_005, 5, NEW);
    assert_eq!(case.codes_at(2_600), []);
    case.call_ended(2_700, 500, 0);
    case.at(2_800, What::NetnsGone { netns: POD });
    assert_eq!(case.codes_at(60_000), []);
}

#[test]
fn another_network_with_the_same_range_is_none() {
    let mut case = Case::reserved();
    let elsewhere = Reservation {
        network: "isolated".into(),
        key: "/var/lib/cni/networks/isolated/10.0.0.5".into(),
        ..reservation(5, NEW)
    };
    case.at(2_000, What::Reservation(elsewhere.clone()));
    assert_eq!(case.codes_at(60_000), [], "its own reservation is there");
    let mut case = Case::with_runtime();
    case.at(1, What::Sight(SEEN));
    case.source("host-local", SourceStatus::Active);
    case.cached(5, "cbr0");
    case.store(12, vec![What::Reservation(elsewhere.clone())]);
    assert_eq!(case.codes_at(60_000), [], "its network is another one");
    let mut case = Case::with_runtime();
    case.at(1, What::Sight(SEEN));
    case.source("host-local", SourceStatus::Active);
    case.store(12, vec![What::Reservation(elsewhere)]);
    assert_eq!(case.codes_at(60_000), [], "nothing is known of its network");
    case.cached(61_000, "isolated");
    assert_eq!(case.codes_at(61_001), [Code::IpConflictImminent], "the same one");
}

#[test]
fn a_netns_of_people_is_in_nobodys_way() {
    let mut case = Case::pod();
    case.at(1, What::Sight(SEEN));
    case.source("host-local", SourceStatus::Active);
    case.store(12, vec![What::Reservation(reservation(5, NEW))]);
    assert_eq!(case.codes_at(60_000), []);
    case.release(61_000, 5);
    assert_eq!(case.codes_at(120_000), []);
}

#[test]
fn a_pod_whose_owner_is_not_known_yet_is_its_own() {
    let mut case = Case::pod();
    case.source("containerd", SourceStatus::Active);
    case.source("host-local", SourceStatus::Active);
    case.at(1, What::Sight(SEEN));
    case.list(10, other());
    case.reserve(500, 5, ID);
    case.at(510, What::Holder { netns: POD, holder: mount_of(PATH, 1, 1) });
    assert_eq!(case.codes_at(600), []);
    case.list(900, vec![What::Sandbox(sandbox(Life::Alive, "Ready"))]);
    assert_eq!(case.codes_at(1_000), []);
}

#[test]
fn a_release_makes_its_cause_urgent() {
    let mut case = Case::reserved();
    case.killed(1_000);
    case.look(6_100, Look { state: 'D', shared_pending: SIGKILL, ..hanging() });
    let [found] = case.then(6_200).try_into().unwrap();
    assert_eq!(found.severity, Severity::Warning);
    case.release(7_000, 5);
    let found = case.then(8_000);
    assert_eq!(
        (found[0].code, found[0].severity),
        (Code::IpHeldByStuckProcess, Severity::Critical)
    );
    assert_eq!(found[1].caused_by, Some((found[0].code, found[0].key.clone())));
}

#[test]
fn a_reservation_without_its_container_is_a_leak_when_its_runtime_had_it() {
    let mut case = Case::reserved();
    case.list(1_000, not_ready());
    case.gone(1_500);
    case.list(2_000, other());
    assert_eq!(case.codes_at(31_000), [], "within its grace");
    case.list(32_100, other());
    let [found] = case.then(32_200).try_into().unwrap();
    assert_eq!((found.code, found.subject.ip), (Code::IpamReservationLeaked, Some(ip(5))));
    assert!(found.remediation.iter().any(|line| line.contains("flock")));
    case.source("containerd", SourceStatus::Down);
    assert_eq!(case.codes_at(33_000), []);
    assert!(blind(&case.0, &Policy::default()).contains(&Code::IpamReservationLeaked));
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
    case.at(1_000, What::AddressGone { netns: POD, key: address });
    case.list(600_000, vec![What::Sandbox(sandbox(Life::Alive, "Ready"))]);
    assert_eq!(case.codes_at(600_001), [], "gVisor takes the address off the device");
}

#[test]
fn a_reservation_that_no_runtime_knows_is_given_time() {
    let mut case = Case::reserved();
    case.reserve(1_000, 9, NEW);
    case.list(200_000, vec![What::Sandbox(sandbox(Life::Alive, "Ready"))]);
    assert_eq!(case.codes_at(200_001), [], "a slow ADD");
    case.list(301_100, vec![What::Sandbox(sandbox(Life::Alive, "Ready"))]);
    let [found] = case.then(301_200).try_into().unwrap();
    assert_eq!((found.code, found.subject.ip), (Code::IpamReservationLeaked, Some(ip(9))));
    assert!(text(&found).contains("DEL was never run"), "{}", text(&found));
    case.call(302_000, 700, CniCommand::Del, NEW);
    assert_eq!(case.codes_at(302_001), [], "it is being given back");
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
    case.at(1, What::Sight(SEEN));
    case.source("terway", SourceStatus::Active);
    case.list(11, vec![What::Sandbox(sandbox(Life::Alive, "Ready"))]);
    let (store, network) = ("terway".into(), "eni-1".into());
    case.at(12, What::Reservation(Reservation { store, network, ..reservation(5, ID) }));
    case.list(1_000, not_ready());
    case.gone(1_500);
    case.list(2_000, other());
    case.list(600_000, other());
    assert_eq!(case.codes_at(600_001), []);
    case.list(663_000, other());
    assert_eq!(case.codes_at(663_001), [Code::IpamReservationLeaked]);
}

/// Without any runtime.
fn alone() -> Case {
    let mut case = Case::pod();
    case.source("runtime", SourceStatus::Disabled);
    case.source("host-local", SourceStatus::Active);
    case.at(1, What::Sight(SEEN));
    case
}

#[test]
fn without_a_runtime_only_what_cannot_be_otherwise_is_a_leak() {
    let mut case = alone();
    case.store(12, vec![What::Reservation(reservation(9, NEW))]);
    assert_eq!(case.codes_at(3_600_000), [], "silence proves nothing");
}

#[test]
fn what_was_written_before_the_boot_is_a_leak_soon_after_it() {
    let mut case = alone();
    let boot = crate::fact::Boot {
        boot_id: "boot".into(),
        node: "node".into(),
        kernel: String::new(),
        wall_offset: 1_000_000_000_000_000,
        host: HOST,
    };
    case.at(2, What::Boot(boot));
    let of = |last, since| {
        What::Reservation(Reservation { since: Some(since), ..reservation(last, NEW) })
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
    case.at(3, What::Holder { netns: POD, holder: mount_of("/run/netns/cni-9", 1, 1) });
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
    case.at(500, What::CniBegan(call));
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
fn a_range_that_leaks_run_out_by_is_told_under_them() {
    let mut case = Case::reserved();
    case.range(13, 2, 6);
    assert_eq!(case.codes_at(14), [], "one of five");
    case.reserve(1_000, 2, NEW);
    case.reserve(1_000, 3, NEW);
    assert_eq!(case.codes_at(1_001), [Code::IpamRangeExhausting], "two are left");
    case.list(302_000, vec![What::Sandbox(sandbox(Life::Alive, "Ready"))]);
    case.reserve(302_000, 4, "a4");
    case.reserve(302_000, 6, "a6");
    let found = case.then(302_100);
    let range = found.iter().find(|one| one.code == Code::IpamRangeExhausting).unwrap();
    assert_eq!(range.severity, Severity::Critical);
    assert!(range.impact.starts_with("Room for 0 pods more"), "{}", range.impact);
    assert!(range.impact.contains("for 2 if the leaks were freed"), "{}", range.impact);
    let leaks: Vec<_> =
        found.iter().filter(|one| one.code == Code::IpamReservationLeaked).collect();
    assert_eq!(leaks.len(), 2);
    assert_eq!(leaks[0].severity, Severity::Critical, "it is why");
    assert_eq!(leaks[1].caused_by, Some((leaks[0].code, leaks[0].key.clone())));
    assert_eq!(range.caused_by, leaks[1].caused_by);
    assert!(text(range).contains("10.0.0.2: leaked"), "{}", text(range));
}

#[test]
fn a_range_that_is_low_stays_so_while_a_pod_comes_and_goes() {
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

#[test]
fn a_file_that_stays_unreadable_is_told() {
    let mut case = Case::reserved();
    let file = Unreadable {
        store: "cni".into(),
        path: "/var/lib/cni/results/x".into(),
        reason: "torn: 0 bytes".into(),
        effect: Some("kubelet tries KillPodSandbox for ever".into()),
        takes: None,
    };
    case.at(1_000, What::StoreUnreadable(file.clone()));
    assert_eq!(case.codes_at(1_500), [], "it is being written");
    let next = case.0.agenda(BootNs(1_500 * MS), &Policy::default()).next.unwrap();
    assert!(next <= BootNs(4_000 * MS), "{next:?}");
    let [found] = case.then(4_100).try_into().unwrap();
    assert_eq!(found.code, Code::IpamStoreUnreadable);
    assert!(found.impact.contains("for ever"));
    case.at(5_000, What::StoreReadable { store: file.store, path: file.path });
    assert_eq!(case.codes_at(5_001), []);
}

#[test]
fn a_store_that_is_down_keeps_what_it_told() {
    let mut case = Case::reserved();
    case.source("host-local", SourceStatus::Down);
    let blind = blind(&case.0, &Policy::default());
    for code in [Code::IpReleasedButHeld, Code::IpConflictImminent, Code::IpamRangeExhausting] {
        assert!(blind.contains(&code), "{code}");
    }
}

#[test]
fn a_store_that_went_away_leaves_no_gap() {
    let mut case = Case::reserved();
    case.release(1_000, 5);
    case.at(1_001, What::SourceGone { name: "host-local".into() });
    assert_eq!(blind(&case.0, &Policy::default()), BTreeSet::new());
    let verdict = case.0.verdict(ip(99), None);
    assert!(verdict.free, "{:?}", verdict.reasons);
}

#[test]
fn a_truncated_list_frees_nothing() {
    let mut case = Case::reserved();
    let scope = Scope::Reservations { store: "host-local".into() };
    case.at(2_000, What::Began(scope.clone()));
    case.at(2_000, What::Ended { scope, began: BootNs(2_000 * MS), complete: false });
    assert_eq!(case.codes_at(10_000), []);
}

#[test]
fn a_warm_pool_is_no_leak() {
    let mut case = Case::reserved();
    let pool = Reservation { container_id: None, ..reservation(40, "") };
    case.at(1_000, What::Reservation(pool));
    case.list(3_600_000, vec![What::Sandbox(sandbox(Life::Alive, "Ready"))]);
    assert_eq!(case.codes_at(3_600_001), []);
    assert_eq!(UID.len(), 36);
}

/// The pod has `n` IPs that were reserved for it and are not any more.
fn released(n: u16) -> Case {
    let mut case = Case::reserved();
    for n in 0..n {
        let [high, low] = n.to_be_bytes();
        let ip = [10, 1, high, low];
        case.address(ip);
        let key = format!("/var/lib/cni/networks/cbr0/{}", Ipv4Addr::from(ip));
        let (store, ip) = ("host-local".to_owned(), Ipv4Addr::from(ip).into());
        let reservation = Reservation { key: key.clone(), ip, ..reservation(5, ID) };
        case.at(100, What::Reservation(reservation));
        case.at(2_000, What::ReservationGone { store, key });
    }
    case
}

#[test]
fn of_a_netns_with_many_addresses_and_tasks_some_are_listed() {
    let mut case = released(1);
    for n in 0..20 {
        case.address([10, 2, 0, n]);
    }
    for n in 0..200 {
        case.at(50, What::Task(task(TaskKey { tid: 100 + n, ..KEY }, POD)));
    }
    let [found] = case.then(60_000).try_into().unwrap();
    assert!(text(&found).contains("10.0.0.5/24 on device 2"), "{}", text(&found));
    assert!(text(&found).contains(", and 14 more"), "{}", text(&found));
    assert_eq!(found.holders.len(), 64);
}

#[test]
fn of_more_disputes_than_are_told_none_is_over() {
    let of = |case: &mut Case| {
        let found = case.codes_at(60_000).len();
        (found, blind(&case.0, &Policy::default()).contains(&Code::IpReleasedButHeld))
    };
    assert_eq!(of(&mut released(512)), (512, false));
    assert_eq!(of(&mut released(513)), (512, true));
}
