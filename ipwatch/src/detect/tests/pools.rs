//! Calico's pools: they belong to the whole cluster; a node knows the owners of its own IPs, and of the others only
//! their number.

use super::ipam::ip;
use super::sandboxes::{ID, sandbox};
use super::*;
use crate::fact::{Block, Life, Range, RangePart, Reservation, Scope};
use crate::finding::Severity;

fn blocks() -> Scope {
    Scope::Blocks { store: "calico".into() }
}

fn block(n: u8, taken: Option<u32>) -> Observation {
    let key = format!("ipamblocks/10-0-0-{}-30", n * 4);
    Observation::Block(Block { store: "calico".into(), key, first: Some(ip(n * 4)), taken })
}

/// A pool of a /26 in blocks of four: one block is this node's, with one IP for its pod; the others are full.
fn full(others: u8) -> Case {
    let mut case = Case::with_runtime();
    for name in ["calico", "calico-pools"] {
        case.source(name, SourceStatus::Active);
    }
    let part = RangePart { first: ip(0), last: ip(63), except: Vec::new() };
    case.at(
        12,
        Observation::Range(Range {
            store: "calico".into(),
            network: "default-ipv4-ippool".into(),
            path: "ippools/default-ipv4-ippool".into(),
            data_dir: None,
            shares: false,
            sets: vec![vec![part]],
        }),
    );
    let scope = Scope::Reservations { store: "calico".into() };
    case.at(12, Observation::Began(scope.clone()));
    case.at(12, block(0, Some(1)));
    (1..=others).for_each(|n| case.at(12, block(n, Some(4))));
    case.at(
        12,
        Observation::Reservation(Reservation {
            store: "calico".into(),
            network: "k8s-pod-network".into(),
            key: "ipamblocks/10-0-0-0-30/1".into(),
            ip: ip(1),
            container_id: Some(ID.into()),
            ifname: None,
            pod: None,
            since: None,
        }),
    );
    case.at(12, Observation::Ended { scope, began: BootNs(12 * MS), complete: true });
    case.at(12, Observation::Ended { scope: blocks(), began: BootNs(12 * MS), complete: true });
    case.list(13, vec![Observation::Sandbox(sandbox(Life::Alive, "Ready"))]);
    case
}

fn exhausting(case: &mut Case, ms: u64) -> Vec<Candidate> {
    let mut found = case.then(ms);
    found.retain(|one| one.code == Code::IpamRangeExhausting);
    found
}

#[test]
pub(super) fn a_pool_that_other_nodes_have_filled_is_told_of_with_what_is_known() {
    assert_eq!(exhausting(&mut full(10), 1_000), [], "there is enough");
    let mut case = full(15);
    let [found] = exhausting(&mut case, 1_000).try_into().unwrap();
    assert_eq!(found.severity, Severity::Warning);
    assert_eq!(found.subject.network.as_deref(), Some("default-ipv4-ippool"));
    let proof: Vec<&str> = found.evidence.iter().map(|item| item.text.as_str()).collect();
    let proof = proof.join("\n");
    for part in [
        "default-ipv4-ippool: 61 of 64 taken, 0 of them leaked, 3 free; range 10.0.0.0-10.0.0.63",
        "configured in ippools/default-ipv4-ippool",
        "10.0.0.1: pod shop/api-0",
        "and 60 more, on this node or on others",
    ] {
        assert!(proof.contains(part), "{part} is not in\n{proof}");
    }
    assert!(
        found.impact.as_str().contains("3 pods can still start in the cluster"),
        "{}",
        found.impact
    );
    let lines = lines(&found);
    assert!(lines.contains("calicoctl ipam check") && !lines.contains("cordon"), "{lines}");
    case.at(1_001, block(0, Some(4)));
    let [found] = exhausting(&mut case, 1_002).try_into().unwrap();
    assert_eq!(found.severity, Severity::Critical, "nothing is left");
    case.at(
        1_003,
        Observation::BlockGone { store: "calico".into(), key: "ipamblocks/10-0-0-60-30".into() },
    );
    case.at(1_003, block(14, Some(0)));
    assert_eq!(exhausting(&mut case, 1_004), [], "there is enough again");
}

fn pool(name: &str, first: u8, last: u8) -> Observation {
    let part = RangePart { first: ip(first), last: ip(last), except: Vec::new() };
    Observation::Range(Range {
        store: "calico".into(),
        network: name.into(),
        path: format!("ippools/{name}"),
        data_dir: None,
        shares: false,
        sets: vec![vec![part]],
    })
}

#[test]
pub(super) fn a_full_pool_beside_one_with_room_is_context() {
    let mut case = full(16);
    case.at(14, block(0, Some(4)));
    let [found] = exhausting(&mut case, 1_000).try_into().unwrap();
    assert_eq!(found.severity, Severity::Critical);
    case.at(1_001, pool("second", 64, 127));
    case.at(1_001, block(16, Some(1)));
    let [found] = exhausting(&mut case, 1_002).try_into().unwrap();
    assert_eq!(found.severity, Severity::Info, "ADD goes over to the second");
    assert_eq!(found.subject.network.as_deref(), Some("default-ipv4-ippool"));
    assert!(
        found.impact.as_str().contains("uses 1 other pool that has free IPs"),
        "{}",
        found.impact
    );
    assert!(found.evidence.iter().any(|item| item.text == "second: 1 of 64 taken"));
    assert!(!lines(&found).contains("Start no new pod"));
    let severities = |case: &mut Case, ms| -> Vec<Severity> {
        exhausting(case, ms).into_iter().map(|found| found.severity).collect()
    };
    // Until its usage is unknown, or it is full too.
    case.at(1_003, block(20, None));
    assert_eq!(severities(&mut case, 1_003), [Severity::Critical]);
    (16..32).for_each(|n| case.at(1_003, block(n, Some(4))));
    assert_eq!(severities(&mut case, 1_004), [Severity::Critical, Severity::Critical]);
}

#[test]
fn where_there_are_no_blocks_nobody_counts_them() {
    let mut case = Case::with_runtime();
    case.source("calico", SourceStatus::Disabled);
    case.source("calico-pools", SourceStatus::Active);
    case.at(12, pool("old", 0, 63));
    assert!(!blind(&case.0, &Thresholds::default()).contains(&Code::IpamRangeExhausting));
}

#[test]
fn what_is_taken_is_unknown_while_a_block_is() {
    let is_blind =
        |case: &Case| blind(&case.0, &Thresholds::default()).contains(&Code::IpamRangeExhausting);
    let mut case = full(15);
    assert_eq!((exhausting(&mut case, 1_000).len(), is_blind(&case)), (1, false));
    case.at(1_001, block(3, None));
    assert_eq!((exhausting(&mut case, 1_002).len(), is_blind(&case)), (0, true), "it is unknown");
    case.at(1_003, block(3, Some(4)));
    assert_eq!((exhausting(&mut case, 1_004).len(), is_blind(&case)), (1, false));
    case.at(1_005, Observation::Ended { scope: blocks(), began: BootNs(0), complete: false });
    assert_eq!(
        (exhausting(&mut case, 1_006).len(), is_blind(&case)),
        (0, true),
        "it was cut short"
    );
    case.at(1_007, Observation::Ended { scope: blocks(), began: BootNs(0), complete: true });
    assert_eq!((exhausting(&mut case, 1_008).len(), is_blind(&case)), (1, false));
    case.source("calico", SourceStatus::Down);
    assert_eq!((exhausting(&mut case, 1_009).len(), is_blind(&case)), (0, true), "it is silent");
    case.source("calico", SourceStatus::Active);
    case.source("calico-pools", SourceStatus::Down);
    assert_eq!((exhausting(&mut case, 1_010).len(), is_blind(&case)), (1, true), "of new pools");
}

/// Another node's reservations are not visible here: their absence means nothing.
#[test]
fn an_ip_of_a_pool_that_is_not_known_to_be_reserved_is_nobodys_fault() {
    let mut case = full(1);
    case.address([10, 0, 0, 9]);
    case.cached(14, "default-ipv4-ippool");
    let found = case.codes_at(200_000);
    assert!(
        !found.contains(&Code::IpConflictImminent) && !found.contains(&Code::IpReleasedButHeld),
        "{found:?}"
    );
}
