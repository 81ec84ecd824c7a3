//! DELs that fail, DELs of an old sandbox that hit the new one, and devices that lead nowhere.

use super::ipam::{NEW, SEEN, ip, reservation};
use super::sandboxes::{ID, not_ready, pod_name, sandbox};
use super::*;
use crate::fact::{CniCommand, Life, Reservation, Sandbox};

/// The pod's old sandbox, of which only the id is left.
const OLD: &str = "bb4c1b2a9d7e6f5041322314a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e";

fn address() -> AddressKey {
    AddressKey { ifindex: 2, local: ip(5), prefix_len: 24, peer: None }
}

fn del_of_old(case: &mut Case, ms: u64) {
    case.call_for(ms, 500, CniCommand::Del, OLD, Some(pod_name()));
}

#[test]
pub(super) fn a_del_that_takes_the_new_sandboxs_address_is_told() {
    let mut case = Case::reserved();
    del_of_old(&mut case, 1_000);
    assert_eq!(case.codes_at(1_001), [], "kubelet repeats it as a matter of course");
    case.at(1_010, Observation::AddressGone { netns: POD, key: address() });
    case.call_ended(1_020, 500, 0);
    assert_eq!(case.codes_at(1_100), [], "its own DEL may be heard of late");
    let next = case.0.agenda(BootNs(1_100 * MS), &Thresholds::default()).next.unwrap();
    assert!(next <= BootNs(1_600 * MS), "{next:?}");
    let [found] = case.then(1_600).try_into().unwrap();
    assert_eq!((found.code, found.subject.ip), (Code::CniDelHitsSuccessor, Some(ip(5))));
    let proof: Vec<&str> = found.evidence.iter().map(|item| item.text.as_str()).collect();
    assert!(proof[0].contains(&OLD[..12]), "{proof:?}");
    let address = Address { key: address(), scope: Some(0), flags: Some(0) };
    case.at(1_650, Observation::Address { netns: POD, address });
    assert_eq!(case.codes_at(1_700), [], "it came back");
}

#[test]
pub(super) fn a_del_that_takes_the_new_sandboxs_reservation_is_told() {
    let mut case = Case::reserved();
    del_of_old(&mut case, 1_000);
    case.call_ended(1_020, 500, 0);
    case.release(2_900, 5);
    assert!(case.codes_at(2_901).contains(&Code::CniDelHitsSuccessor));
}

#[test]
fn a_reservation_that_another_is_given_is_not_back() {
    let mut case = Case::reserved();
    del_of_old(&mut case, 1_000);
    case.release(1_010, 5);
    case.call_ended(1_020, 500, 0);
    let of = |found: &[Candidate], code| found.iter().find(|one| one.code == code).cloned();
    let found = case.then(9_000);
    let del = of(&found, Code::CniDelHitsSuccessor).unwrap();
    let root = Some((del.code, del.key));
    // The IP is free and up because of the DEL: one cause, one page.
    assert_eq!(of(&found, Code::IpReleasedButHeld).unwrap().caused_by, root);
    case.reserve(9_500, 5, NEW);
    let found = case.then(9_600);
    let del = of(&found, Code::CniDelHitsSuccessor).expect("it is worse than before");
    assert!(del.evidence.iter().any(|item| item.text.contains("released 10.0.0.5")), "{del:#?}");
    assert_eq!(of(&found, Code::IpConflictImminent).unwrap().caused_by, root);
    case.reserve(9_700, 5, ID);
    assert!(!case.codes_at(9_800).contains(&Code::CniDelHitsSuccessor), "it came back");
}

/// A finding as the ledger keeps it over a restart.
fn kept(mut found: Vec<Candidate>) -> Finding {
    found.retain(|one| one.code == Code::CniDelHitsSuccessor);
    let [found] = found.try_into().unwrap();
    let mut life = crate::ledger::life::Life::default();
    let calendar = crate::clock::Calendar { wall_offset: 0 };
    life.observe(BootNs(1), &calendar, &[found], &BTreeSet::new());
    life.open().next().unwrap().finding.clone()
}

#[test]
fn after_a_restart_a_loss_holds_until_it_is_made_good_or_its_loser_is_gone() {
    let mut case = Case::reserved();
    del_of_old(&mut case, 1_000);
    case.at(1_010, Observation::AddressGone { netns: POD, key: address() });
    case.then(1_100);
    let of_address = kept(case.then(1_600));
    let holds = |case: &Case, finding| still_holds(&case.0, finding, case.0.now());
    let again = Case::reserved();
    assert!(!holds(&again, &of_address), "it came back");
    let mut again = Case::reserved();
    again.at(1_000, Observation::AddressGone { netns: POD, key: address() });
    assert!(holds(&again, &of_address));
    again.source("containerd", SourceStatus::Down);
    assert!(holds(&again, &of_address), "nobody knows");
    again.source("containerd", SourceStatus::Active);
    again.list(1_100, not_ready());
    assert!(!holds(&again, &of_address), "it is dead");

    let mut case = Case::reserved();
    del_of_old(&mut case, 1_000);
    case.release(1_010, 5);
    let of_reservation = kept(case.then(1_100));
    assert!(!holds(&Case::reserved(), &of_reservation), "it is reserved again");
    let mut again = Case::reserved();
    again.release(1_000, 5);
    assert!(holds(&again, &of_reservation));
    again.call(1_010, 500, CniCommand::Del, ID);
    assert!(!holds(&again, &of_reservation), "its own DEL");
}

#[test]
fn a_loss_does_not_end_by_its_age() {
    let mut case = Case::reserved();
    del_of_old(&mut case, 1_000);
    case.at(1_010, Observation::AddressGone { netns: POD, key: address() });
    case.call_ended(1_020, 500, 0);
    case.then(1_100);
    case.call(7_200_000, 501, CniCommand::Add, NEW);
    assert_eq!(case.codes_at(7_200_001), [Code::CniDelHitsSuccessor]);
}

#[test]
fn what_goes_later_or_by_its_own_del_is_not_its_doing() {
    let mut case = Case::reserved();
    del_of_old(&mut case, 1_000);
    case.call_ended(1_020, 500, 0);
    case.at(3_100, Observation::AddressGone { netns: POD, key: address() });
    assert_eq!(case.codes_at(3_101), []);
    assert_eq!(case.codes_at(3_601), [], "more than two seconds later");
    let mut case = Case::reserved();
    del_of_old(&mut case, 1_000);
    case.call(1_001, 501, CniCommand::Del, ID);
    case.at(1_010, Observation::AddressGone { netns: POD, key: address() });
    assert_eq!(case.codes_at(1_100), []);
    assert_eq!(case.codes_at(1_600), [], "its own DEL runs");
    let mut case = Case::reserved();
    del_of_old(&mut case, 1_000);
    case.at(1_010, Observation::AddressGone { netns: POD, key: address() });
    assert_eq!(case.codes_at(4_100), [], "of its own DEL nobody has heard yet");
    case.call(1_005, 501, CniCommand::Del, ID);
    assert_eq!(case.codes_at(4_600), [], "its own DEL was heard of late");
    let mut case = Case::reserved();
    del_of_old(&mut case, 1_000);
    case.at(1_010, Observation::AddressGone { netns: POD, key: address() });
    case.list(1_050, not_ready());
    assert_eq!(case.codes_at(1_100), []);
    assert_eq!(case.codes_at(1_600), [], "it is dead");
}

#[test]
fn a_del_of_the_newest_sandbox_has_no_successor() {
    let mut case = Case::reserved();
    let older =
        Sandbox { id: OLD.into(), created: Some(5), pid: None, ..sandbox(Life::Alive, "Ready") };
    let newer = Sandbox { created: Some(9), ..sandbox(Life::Alive, "Ready") };
    case.list(500, vec![Observation::Sandbox(newer), Observation::Sandbox(older)]);
    case.call_for(1_000, 500, CniCommand::Del, ID, Some(pod_name()));
    assert_eq!(case.0.late_dels().count(), 0);
    del_of_old(&mut case, 1_100);
    assert_eq!(case.0.late_dels().count(), 1);
}

#[test]
pub(super) fn a_del_that_fails_twice_while_its_ip_is_reserved_is_told() {
    let mut case = Case::reserved();
    case.call(1_000, 500, CniCommand::Del, ID);
    case.call_ended(1_100, 500, 1);
    assert_eq!(case.codes_at(1_101), [], "once is nothing");
    case.call(20_000, 501, CniCommand::Del, ID);
    case.call_ended(20_100, 501, 1);
    let text = "plugin type=\"bridge\" failed (delete): netlink: permission denied";
    let (container_id, command) = (ID.to_owned(), CniCommand::Del);
    case.at(20_101, Observation::CniError { container_id, command, text: text.into() });
    let [found] = case.then(20_200).try_into().unwrap();
    assert_eq!((found.code, found.subject.ip), (Code::CniDelFailing, Some(ip(5))));
    assert!(found.evidence.iter().any(|item| item.text.contains("permission denied")));
    let removes =
        |found: &Candidate| found.remediation.iter().any(|step| step.line().contains("rmp"));
    assert!(!removes(&found), "its runtime does not say that it is dead");
    case.list(20_300, not_ready());
    assert!(case.then(21_000).iter().any(removes));
    case.call(30_000, 502, CniCommand::Del, ID);
    case.call_ended(30_100, 502, 0);
    assert_eq!(case.codes_at(30_101), []);
}

/// Three DELs, each of which fails because `plugin` within it does, after it has run another one or not.
fn three_dels_fail(case: &mut Case, plugin: &str, delegates: bool) {
    for n in 0..3 {
        let (at, pid) = (20_000 + n * 1_000, 500 + 10 * u32::try_from(n).unwrap());
        case.call(at, pid, CniCommand::Del, ID);
        case.del_within(at + 1, pid + 1, pid, plugin);
        if delegates {
            case.del_within(at + 2, pid + 2, pid + 1, "host-local");
            case.call_ended(at + 3, pid + 2, 1);
        }
        case.call_ended(at + 4, pid + 1, 1);
        case.call_ended(at + 5, pid, 1);
    }
}

/// The pod's process was killed, and hangs.
fn that_hangs() -> Case {
    let mut case = Case::reserved();
    case.at(13, Observation::Task(task(KEY, POD)));
    case.killed(1_000);
    case.look(10_000, hanging());
    case
}

#[test]
fn a_del_that_is_put_off_does_not_fail() {
    let fails = |case: &mut Case| case.codes_at(30_000).contains(&Code::CniDelFailing);
    let mut case = that_hangs();
    three_dels_fail(&mut case, "ipwatch-ipam", false);
    assert!(!fails(&mut case), "it waits for what hangs");
    // One that is not put off counts as ever.
    case.call(31_000, 600, CniCommand::Del, ID);
    case.call_ended(31_100, 600, 1);
    case.call(32_000, 601, CniCommand::Del, ID);
    case.call_ended(32_100, 601, 1);
    assert!(case.codes_at(32_200).contains(&Code::CniDelFailing));
}

#[test]
fn what_only_looks_like_a_del_that_is_put_off_fails() {
    let fails = |case: &mut Case| case.codes_at(30_000).contains(&Code::CniDelFailing);
    let mut case = that_hangs();
    three_dels_fail(&mut case, "ipwatch-ipam", true);
    assert!(fails(&mut case), "host-local failed");
    let mut case = that_hangs();
    three_dels_fail(&mut case, "host-local", false);
    assert!(fails(&mut case), "another plugin");
    let mut case = Case::reserved();
    three_dels_fail(&mut case, "ipwatch-ipam", false);
    assert!(fails(&mut case), "nothing hangs there: its configuration is broken, say");
}

#[test]
fn two_at_once_of_which_one_fails_are_none() {
    let mut case = Case::reserved();
    case.call(1_000, 500, CniCommand::Del, ID);
    case.call(1_001, 501, CniCommand::Del, ID);
    case.call_ended(1_100, 500, 1);
    case.call_ended(1_101, 501, 1);
    assert_eq!(case.codes_at(1_200), [], "in each other's way");
    case.release(1_300, 5);
    case.gone(1_300);
    case.call(5_000, 502, CniCommand::Del, ID);
    case.call_ended(5_100, 502, 1);
    assert_eq!(case.codes_at(5_200), [], "the network is gone all the same");
}

#[test]
pub(super) fn a_del_that_never_came_is_told_after_long() {
    let mut case = Case::reserved();
    case.list(1_000, not_ready());
    case.gone(1_100);
    case.list(300_000, not_ready());
    assert_eq!(case.codes_at(300_500), []);
    case.list(301_000, not_ready());
    let [found] = case.then(301_500).try_into().unwrap();
    assert_eq!((found.code, found.subject.ip), (Code::CniDelFailing, Some(ip(5))));
    case.at(1, Observation::Sight(crate::fact::Sight::default()));
    assert_eq!(case.codes_at(301_600), [], "calls are not seen");
}

#[test]
fn no_del_is_missed_where_no_plugin_frees_the_ip() {
    let mut case = Case::with_runtime();
    case.source("libnetwork", SourceStatus::Active);
    case.at(1, Observation::Sight(SEEN));
    case.list(11, vec![Observation::Sandbox(sandbox(Life::Alive, "Ready"))]);
    let store = "libnetwork".to_owned();
    case.at(12, Observation::Reservation(Reservation { store, ..reservation(5, ID) }));
    case.list(1_000, not_ready());
    case.gone(1_100);
    for ms in [300_000, 301_000, 302_000] {
        case.list(ms, not_ready());
    }
    assert_eq!(case.codes_at(302_500), [], "Docker runs no CNI plugin");
}

#[test]
fn calls_of_other_containers_are_other_calls() {
    let mut case = Case::reserved();
    for n in 0..4 {
        case.call(1_000 + n * 1_000, 500, CniCommand::Del, NEW);
        case.call_ended(1_100 + n * 1_000, 500, 1);
    }
    assert_eq!(case.codes_at(10_000), [], "nothing of it is left, and not for long");
    case.at(10_000, Observation::Reservation(reservation(9, NEW)));
    assert_eq!(case.codes_at(10_001), [Code::CniDelFailing]);
}

fn end(ifindex: u32, name: &str, peer: u32) -> Observation {
    let link = Link {
        ifindex,
        name: name.into(),
        mac: None,
        kind: Some("veth".into()),
        master: None,
        peer: Some(peer),
        peer_nsid: None,
        up: true,
        loopback: false,
        ..Link::default()
    };
    Observation::Link { netns: HOST, link }
}

#[test]
pub(super) fn a_pair_with_both_ends_on_the_node_is_an_orphan_when_it_is_old() {
    let mut case = Case::pod();
    case.at(1_000, end(20, "veth1a2b3c4d", 21));
    case.at(1_000, end(21, "eth0", 20));
    assert_eq!(case.codes_at(300_000), [], "an ADD is at work");
    let [found] = case.then(301_000).try_into().unwrap();
    assert_eq!(found.code, Code::VethOrphaned);
    case.at(302_000, Observation::LinkGone { netns: HOST, ifindex: 20 });
    assert_eq!(case.codes_at(302_001), []);
}

#[test]
fn pairs_of_people_and_of_pods_are_no_orphans() {
    let mut case = Case::pod();
    case.at(1, end(20, "cilium_host", 21));
    case.at(1, end(21, "cilium_net", 20));
    case.at(1, end(30, "veth0", 31));
    case.at(1, end(31, "veth1", 30));
    let Observation::Link { link, .. } = end(40, "veth1a2b3c4d", 2) else { panic!("a link") };
    case.at(1, Observation::Link { netns: HOST, link: Link { peer_nsid: Some(3), ..link } });
    assert_eq!(case.codes_at(3_600_000), []);
}
