//! The stores against the kernel: IPs that are free and held, and IPs that are handed out twice.

use super::sandboxes::{ID, PATH, mount_of, other, pod_name, sandbox};
use super::*;
use crate::fact::{
    Attachment, CniCall, CniCommand, Life, PodName, Range, RangePart, Reservation, Sandbox, Scope,
    Sight,
};
use crate::finding::Severity;
use crate::map::JUDGED;

pub(super) const NEW: &str = "aa4c1b2a9d7e6f5041322314a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e";
pub(super) const SEEN: Sight =
    Sight { teardown_end: true, release: true, addresses: true, calls: true, tasks: true };

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
    /// A pod that containerd knows, with its IP reserved in host-local; all sources have been read.
    pub(super) fn reserved() -> Self {
        let mut case = Self::with_runtime();
        case.source("host-local", SourceStatus::Active);
        case.at(1, Observation::Sight(SEEN));
        // From the second listing on, the runtime is known to have pods.
        case.list(11, vec![Observation::Sandbox(sandbox(Life::Alive, "Ready"))]);
        case.store(12, vec![Observation::Reservation(reservation(5, ID))]);
        case
    }

    /// A complete listing of host-local.
    pub(super) fn store(&mut self, ms: u64, all: Vec<Observation>) {
        let scope = Scope::Reservations { store: "host-local".into() };
        self.at(ms, Observation::Began(scope.clone()));
        all.into_iter().for_each(|what| self.at(ms, what));
        self.at(ms, Observation::Ended { scope, began: BootNs(ms * MS), complete: true });
        self.wants(ms);
    }

    pub(super) fn reserve(&mut self, ms: u64, last: u8, id: &str) {
        self.at(ms, Observation::Reservation(reservation(last, id)));
    }

    pub(super) fn release(&mut self, ms: u64, last: u8) {
        let key = reservation(last, "").key;
        self.at(ms, Observation::ReservationGone { store: "host-local".into(), key });
    }

    pub(super) fn range(&mut self, ms: u64, first: u8, last: u8) {
        let part = RangePart { first: ip(first), last: ip(last), except: Vec::new() };
        self.at(
            ms,
            Observation::Range(Range {
                store: "host-local".into(),
                network: "cbr0".into(),
                path: "/etc/cni/net.d/10-flannel.conflist".into(),
                data_dir: Some("/var/lib/cni/networks/cbr0".into()),
                shares: false,
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
        self.at(ms, Observation::CniBegan(call));
    }

    /// A plugin that `parent` runs for the pod's DEL, whose netns the runtime no longer finds.
    pub(super) fn del_within(&mut self, ms: u64, pid: u32, parent: u32, plugin: &str) {
        self.call_within(ms, (pid, parent), (CniCommand::Del, plugin), None);
    }

    /// A plugin that a call of `parent` runs for the pod.
    pub(super) fn call_within(
        &mut self,
        ms: u64,
        (pid, parent): (u32, u32),
        (command, plugin): (CniCommand, &str),
        netns_path: Option<&str>,
    ) {
        let call = CniCall {
            task: call_key(pid),
            parent,
            plugin: format!("/opt/cni/bin/{plugin}"),
            command,
            container_id: Some(ID.into()),
            netns_path: netns_path.map(Into::into),
            ifname: Some("eth0".into()),
            pod: None,
        };
        self.at(ms, Observation::CniBegan(call));
    }

    pub(super) fn call_ended(&mut self, ms: u64, pid: u32, status: u32) {
        self.at(
            ms,
            Observation::CniEnded { task: call_key(pid), status: Some(status), signal: None },
        );
    }

    pub(super) fn then(&mut self, ms: u64) -> Vec<Candidate> {
        self.wants(ms);
        detect(&self.0, BootNs(ms * MS), &Thresholds::default())
    }

    pub(super) fn codes_at(&mut self, ms: u64) -> Vec<Code> {
        self.then(ms).iter().map(|found| found.code).collect()
    }

    pub(super) fn cached(&mut self, ms: u64, network: &str) {
        self.at(
            ms,
            Observation::Attachment(Attachment {
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

    /// The pod's processes and its netns have ended.
    pub(super) fn gone(&mut self, ms: u64) {
        self.at(ms, Observation::TaskReleased { task: KEY });
        self.at(ms, Observation::NetnsGone { netns: POD });
        self.wants(ms);
    }
}

pub(super) fn call_key(pid: u32) -> TaskKey {
    TaskKey { pid, tid: pid, start: 1 }
}

pub(super) fn text(found: &Candidate) -> String {
    found.evidence.iter().map(|item| item.text.as_str()).collect::<Vec<_>>().join("\n")
}

#[test]
pub(super) fn an_ip_that_is_freed_while_it_is_held_is_told_within_a_second() {
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

/// An untrusted netns with an IP of the range is not the pod that the IP was reserved for.
#[test]
fn an_ip_that_a_stranger_has_too_is_not_held_by_the_pod() {
    let stranger = NetnsRef { cookie: Some(88), inode: Some(880), nsid: None };
    let mut case = Case::reserved();
    case.cached(900, "cbr0");
    case.at(900, Observation::Netns { netns: stranger });
    let key = AddressKey { ifindex: 2, local: ip(5), prefix_len: 24, peer: None };
    let address = Address { key, scope: Some(0), flags: Some(0x80) };
    case.at(901, Observation::Address { netns: stranger, address });
    case.wants(902);
    case.call(1_500, 500, CniCommand::Del, ID);
    case.release(1_600, 5);
    case.call_ended(1_700, 500, 0);
    case.gone(1_800);
    case.list(1_900, other());
    for ms in [2_000, 4_000, 6_000, 40_000] {
        assert!(!case.codes_at(ms).contains(&Code::IpReleasedButHeld), "after {ms} ms");
    }
}

#[test]
fn the_agenda_says_when_to_look_again() {
    let mut case = Case::reserved();
    case.release(2_000, 5);
    let next = case.0.agenda(BootNs(2_001 * MS), &Thresholds::default()).next.unwrap();
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
    case.at(14_000, Observation::NetnsDying { netns: POD });
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
    case.at(13, Observation::Sight(Sight { calls: false, ..SEEN }));
    case.release(2_000, 5);
    assert_eq!(case.codes_at(6_900), []);
    assert_eq!(case.codes_at(7_001), [Code::IpReleasedButHeld]);
}

#[test]
pub(super) fn after_a_restart_the_cache_tells_whose_network_it_is() {
    let mut case = Case::with_runtime();
    case.at(1, Observation::Sight(SEEN));
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
pub(super) fn a_taken_ip_that_is_handed_out_is_told_at_once() {
    let mut case = Case::reserved();
    case.release(2_000, 5);
    case.call(9_000, 600, CniCommand::Add, NEW);
    case.reserve(9_010, 5, NEW);
    let found = case.then(9_010);
    let codes: Vec<Code> = found.iter().map(|one| one.code).collect();
    assert_eq!(codes, [Code::IpReleasedButHeld, Code::IpConflictImminent]);
    assert_eq!(found[1].caused_by.as_ref().unwrap().0, Code::IpReleasedButHeld);
    assert!(
        text(&found[1]).contains("bridge ADD is running for aa4c1b2a9d7e"),
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
    case.at(2_800, Observation::NetnsGone { netns: POD });
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
    case.at(2_000, Observation::Reservation(elsewhere.clone()));
    assert_eq!(case.codes_at(60_000), [], "its own reservation is there");
    let mut case = Case::with_runtime();
    case.at(1, Observation::Sight(SEEN));
    case.source("host-local", SourceStatus::Active);
    case.cached(5, "cbr0");
    case.store(12, vec![Observation::Reservation(elsewhere.clone())]);
    assert_eq!(case.codes_at(60_000), [], "its network is another one");
    let mut case = Case::with_runtime();
    case.at(1, Observation::Sight(SEEN));
    case.source("host-local", SourceStatus::Active);
    case.store(12, vec![Observation::Reservation(elsewhere)]);
    assert_eq!(case.codes_at(60_000), [], "nothing is known of its network");
    case.cached(61_000, "isolated");
    assert_eq!(case.codes_at(61_001), [Code::IpConflictImminent], "the same one");
}

#[test]
fn a_netns_of_people_is_in_nobodys_way() {
    let mut case = Case::pod();
    case.at(1, Observation::Sight(SEEN));
    case.source("host-local", SourceStatus::Active);
    case.store(12, vec![Observation::Reservation(reservation(5, NEW))]);
    assert_eq!(case.codes_at(60_000), []);
    case.release(61_000, 5);
    assert_eq!(case.codes_at(120_000), []);
}

#[test]
fn a_pod_whose_owner_is_not_known_yet_is_its_own() {
    let mut case = Case::pod();
    case.source("containerd", SourceStatus::Active);
    case.source("host-local", SourceStatus::Active);
    case.at(1, Observation::Sight(SEEN));
    case.list(10, other());
    case.reserve(500, 5, ID);
    case.at(510, Observation::Holder { netns: POD, holder: mount_of(PATH, 1, 1) });
    assert_eq!(case.codes_at(600), []);
    case.list(900, vec![Observation::Sandbox(sandbox(Life::Alive, "Ready"))]);
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

/// The pod has `n` IPs that were reserved for it and are released.
fn released(n: u16) -> Case {
    let mut case = Case::reserved();
    for n in 0..n {
        let [high, low] = n.to_be_bytes();
        let ip = [10, 1, high, low];
        case.address(ip);
        let key = format!("/var/lib/cni/networks/cbr0/{}", Ipv4Addr::from(ip));
        let (store, ip) = ("host-local".to_owned(), Ipv4Addr::from(ip).into());
        let reservation = Reservation { key: key.clone(), ip, ..reservation(5, ID) };
        case.at(100, Observation::Reservation(reservation));
        case.at(2_000, Observation::ReservationGone { store, key });
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
        let pid = 100 + n;
        case.at(50, Observation::Task(task(TaskKey { pid, tid: pid, ..KEY }, POD)));
    }
    let [found] = case.then(60_000).try_into().unwrap();
    assert!(text(&found).contains("10.0.0.5/24 on device 2"), "{}", text(&found));
    assert!(text(&found).contains(", and 14 more"), "{}", text(&found));
    assert_eq!(found.holders.len(), 64);
}

#[test]
fn of_more_disputes_than_are_told_others_are_judged() {
    let of = |case: &mut Case| {
        let found = case.codes_at(60_000).len();
        (found, blind(&case.0, &Thresholds::default()).contains(&Code::IpReleasedButHeld))
    };
    assert_eq!(of(&mut released(512)), (512, false));
    assert_eq!(of(&mut released(513)), (512, false));
    // Another pod, with a higher IP.
    let mut case = released(513);
    let (netns, id) =
        (NetnsRef { cookie: Some(8), inode: Some(80), nsid: Some(9) }, "c".repeat(64));
    let path = "/run/netns/cni-8";
    case.at(20, Observation::Holder { netns, holder: mount_of(path, 1, 1) });
    let made = Sandbox {
        id: id.clone(),
        netns_path: Some(path.into()),
        pid: None,
        ..sandbox(Life::Alive, "Ready")
    };
    case.list(
        30,
        vec![Observation::Sandbox(sandbox(Life::Alive, "Ready")), Observation::Sandbox(made)],
    );
    let high = Ipv4Addr::new(10, 200, 0, 1).into();
    let key = AddressKey { ifindex: 2, local: high, prefix_len: 24, peer: None };
    case.at(
        40,
        Observation::Address { netns, address: Address { key, scope: Some(0), flags: Some(0) } },
    );
    let reserved = Reservation { key: "/cbr0/10.200.0.1".into(), ip: high, ..reservation(5, &id) };
    case.at(100, Observation::Reservation(reserved));
    let (store, key) = ("host-local".to_owned(), "/cbr0/10.200.0.1".to_owned());
    case.at(2_000, Observation::ReservationGone { store, key });
    let found = case.then(60_000);
    assert!(found.iter().any(|one| one.subject.ip == Some(high)), "{}", found.len());
}

/// A dispute that has no place any more stays open until the address goes.
#[test]
fn a_dispute_that_is_left_out_is_over_when_it_ends() {
    let mut case = released(512);
    let (mut life, last) = (Findings::default(), [10, 1, 1, 255]);
    let is_open = |case: &mut Case, life: &mut Findings, ms: u64| {
        case.wants(ms);
        live(&case.0, life, ms).contains(&Ipv4Addr::from(last).into())
    };
    assert!(is_open(&mut case, &mut life, 60_000));
    case.release(60_001, 5);
    assert!(is_open(&mut case, &mut life, 70_000));
    assert!(case.0.leaves_out_disputes() && !life.is_at_rest());
    let key =
        AddressKey { ifindex: 2, local: Ipv4Addr::from(last).into(), prefix_len: 24, peer: None };
    case.at(70_001, Observation::AddressGone { netns: POD, key });
    assert!(!is_open(&mut case, &mut life, 70_002));
}

/// IPs of the range in netns of a user that lead nowhere: they cost no work.
#[test]
fn what_a_user_has_where_nothing_leads_is_not_compared_with_the_stores() {
    let mut case = Case::reserved();
    case.range(20, 2, 254);
    case.0.1.get_mut().steps = Steps::Asked;
    for n in 0..50u32 {
        let netns = NetnsRef { cookie: Some(500 + u64::from(n)), inode: Some(500 + n), nsid: None };
        case.at(30, Observation::NetnsUser { netns, uid: 1_000, nested: true });
        let scope = Scope::Addresses { netns };
        case.at(31, Observation::Began(scope.clone()));
        for last in 2..50 {
            let key = AddressKey { ifindex: 2, local: ip(last), prefix_len: 24, peer: None };
            let address = Address { key, scope: Some(0), flags: Some(0) };
            case.at(31, Observation::Address { netns, address });
        }
        case.at(31, Observation::Ended { scope, began: BootNs(31 * MS), complete: true });
    }
    // One of them is a pod's.
    case.reserve(40, 6, NEW);
    JUDGED.set(0);
    assert_eq!(case.codes_at(60_000), []);
    assert!(JUDGED.get() <= 4, "{} comparisons", JUDGED.get());
}

/// A netns has IPs that are reserved for others, of which nobody knows whether they are of one network.
#[test]
fn what_has_not_changed_is_not_compared_with_the_stores_again() {
    let mut case = Case::reserved();
    case.0.1.get_mut().steps = Steps::Asked;
    let netns = NetnsRef { cookie: Some(500), inode: Some(500), nsid: None };
    for last in 20..60 {
        let key = AddressKey { ifindex: 2, local: ip(last), prefix_len: 24, peer: None };
        let address = Address { key, scope: Some(0), flags: Some(0) };
        case.at(30, Observation::Address { netns, address });
        case.reserve(40, last, NEW);
    }
    for expected in [40, 40, 0] {
        JUDGED.set(0);
        assert_eq!(case.codes_at(60_000), []);
        assert_eq!(JUDGED.get(), expected);
    }
    case.at(61_000, Observation::LinkGone { netns: HOST, ifindex: 77 });
    JUDGED.set(0);
    assert_eq!(case.codes_at(61_000), []);
    assert_eq!(JUDGED.get(), 40, "what is on one link may have changed");
}

/// An annotation ends with the pod's object, and whoever creates pods can write it: it is shown, and proves nothing.
#[test]
fn a_branch_eni_is_reserved_for_its_pod_and_no_finding_rests_on_it() {
    let eni = |pod: PodName| Reservation {
        store: crate::fact::store::AWS_BRANCH_ENI.into(),
        network: "eni-0f9c8b7a6d5e4f321".into(),
        key: "pods/shop/api-0/10.0.0.5".into(),
        container_id: None,
        ifname: None,
        pod: Some(pod),
        ..reservation(5, "")
    };
    let mut case = Case::with_runtime();
    case.at(1, Observation::Sight(SEEN));
    case.at(2_000, Observation::Reservation(eni(pod_name())));
    let verdict = case.0.verdict(ip(5), None);
    let told = verdict.reasons.iter().any(|why| why.contains("aws-branch-eni"));
    assert!(!verdict.free && !told && verdict.reservations.len() == 1, "{verdict:#?}");
    let [known] = &case.0.reservations_view(None, None, 9)[..] else { panic!() };
    assert_eq!((known.agree.as_deref(), known.kernel.len()), (Some("yes"), 1));
    // The object goes before the pod has ended.
    let key = "pods/shop/api-0/10.0.0.5".to_owned();
    let store = crate::fact::store::AWS_BRANCH_ENI.to_owned();
    case.at(3_000, Observation::ReservationGone { store, key });
    case.wants(60_000);
    assert_eq!(case.codes(), [], "nothing was released");
    // Somebody writes the IP of that pod into an annotation of his own.
    let other = PodName { namespace: "mallory".into(), name: "x".into(), uid: None };
    case.at(61_000, Observation::Reservation(eni(other.clone())));
    let unused = Reservation { ip: ip(77), key: "pods/mallory/x/10.0.0.77".into(), ..eni(other) };
    case.at(61_001, Observation::Reservation(unused));
    let verdict = case.0.verdict(ip(77), None);
    assert_eq!((verdict.in_pool, verdict.reservations.len()), (Some(false), 1));
    assert!(!verdict.reasons.iter().any(|why| why.contains("aws-branch-eni")), "{verdict:#?}");
    case.wants(120_000);
    assert_eq!(case.codes(), [], "nobody was given it");
    assert!(!case.0.store_counts(crate::fact::store::AWS_BRANCH_ENI));
}
