//! Stores that cannot be read, that are removed, and whose listings are incomplete.

use super::ipam::*;
use super::sandboxes::sandbox;
use super::*;
use crate::fact::{Configured, Life, Scope, Unreadable};
use crate::finding::Severity;

#[test]
pub(super) fn a_file_that_stays_unreadable_is_told() {
    let mut case = Case::reserved();
    let file = Unreadable {
        store: "cni".into(),
        path: "/var/lib/cni/results/x".into(),
        reason: "torn: it is empty".into(),
        effect: Some("kubelet tries KillPodSandbox for ever".into()),
        takes: None,
    };
    case.at(1_000, Observation::StoreUnreadable(file.clone()));
    assert_eq!(case.codes_at(1_500), [], "it is being written");
    let next = case.0.agenda(BootNs(1_500 * MS), &Thresholds::default()).next.unwrap();
    assert!(next <= BootNs(11_000 * MS), "{next:?}");
    assert_eq!(case.codes_at(10_900), [], "on a node that is short of CPU this takes seconds");
    let [found] = case.then(11_100).try_into().unwrap();
    assert_eq!(found.code, Code::IpamStoreUnreadable);
    assert!(found.impact.as_str().contains("for ever"));
    case.at(12_000, Observation::StoreReadable { store: file.store, path: file.path });
    assert_eq!(case.codes_at(12_001), []);
}

#[test]
fn an_unreadable_file_of_a_network_that_nobody_configures_is_information() {
    let told_by = |path: &str, named: &str, silent: bool| {
        let mut case = Case::reserved();
        case.release(14, 5);
        case.cached(14, "new");
        let network = Configured {
            store: "host-local".into(),
            name: named.into(),
            path: "/etc/cni/net.d/1.conflist".into(),
            elsewhere: false,
        };
        case.at(14, Observation::Configured(network));
        let file = Unreadable {
            store: "host-local".into(),
            path: path.into(),
            reason: "it is empty".into(),
            effect: Some("it stays taken".into()),
            takes: None,
        };
        case.at(1_000, Observation::StoreUnreadable(file));
        case.list(10_050, vec![Observation::Sandbox(sandbox(Life::Alive, "Ready"))]);
        let _ = case.codes_at(10_100);
        // That pods are in a configured network was seen, and stays true.
        if silent {
            case.source("containerd", SourceStatus::Down);
        }
        let found = case.then(11_100);
        let found = found.iter().find(|one| one.code == Code::IpamStoreUnreadable).unwrap();
        (found.severity, found.impact.as_str().contains("nobody hands out its IPs"))
    };
    let told = |path: &str, named: &str| told_by(path, named, false);
    let backup = "/var/lib/cni/networks/old.bak/10.0.0.5";
    assert_eq!(told_by(backup, "new", true), (Severity::Info, true), "the runtime is slow");
    assert_eq!(told(backup, "new"), (Severity::Info, true));
    let warned = (Severity::Warning, false);
    assert_eq!(told(backup, "other"), warned, "not what the runtimes read");
    assert_eq!(told("/var/lib/cni/networks/new/10.0.0.5", "new"), warned, "a pod may be given it");
    assert_eq!(told("/etc/cni/net.d/10-new.conflist", "new"), warned, "it may name networks");
}

#[test]
fn a_store_that_is_down_keeps_what_it_told() {
    let mut case = Case::reserved();
    case.source("host-local", SourceStatus::Down);
    let blind = blind(&case.0, &Thresholds::default());
    for code in [Code::IpReleasedButHeld, Code::IpConflictImminent, Code::IpamRangeExhausting] {
        assert!(blind.contains(&code), "{code}");
    }
}

#[test]
fn a_store_that_went_away_leaves_no_gap() {
    let mut case = Case::reserved();
    case.release(1_000, 5);
    case.at(1_001, Observation::SourceGone { name: "host-local".into() });
    assert_eq!(blind(&case.0, &Thresholds::default()), BTreeSet::new());
    let verdict = case.0.verdict(ip(99), None);
    assert!(verdict.free, "{:?}", verdict.reasons);
}

#[test]
fn a_truncated_list_frees_nothing() {
    let mut case = Case::reserved();
    let scope = Scope::Reservations { store: "host-local".into() };
    case.at(2_000, Observation::Began(scope.clone()));
    case.at(2_000, Observation::Ended { scope, began: BootNs(2_000 * MS), complete: false });
    assert_eq!(case.codes_at(10_000), []);
}
