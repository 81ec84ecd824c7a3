//! From when on an IP that one has and another is given counts: calls that excuse it and those that do not,
//! what stood before ipwatch, what is one network.

use super::ipam::{NEW, SEEN, ip, reservation};
use super::sandboxes::ID;
use super::*;
use crate::fact::{CniCommand, Scope};

impl Case {
    /// The pod's netns loses its name, as after `umount`.
    fn unmounted(&mut self, ms: u64) {
        let scope = Scope::Mounts { mount_ns: 1 };
        self.at(ms, What::Began(scope.clone()));
        self.at(ms, What::Ended { scope, began: BootNs(ms * MS), complete: true });
    }

    /// ipwatch starts, and host-local does not have the IP of a pod whose cached result names its network.
    fn unreserved(ms: u64) -> Self {
        let mut case = Self::with_runtime();
        case.at(1, What::Sight(SEEN));
        case.source("host-local", SourceStatus::Active);
        case.cached(5, "cbr0");
        case.range(6, 2, 254);
        case.store(ms, Vec::new());
        case
    }
}

#[test]
fn a_del_that_is_repeated_neither_ends_nor_delays_what_is_told() {
    let mut case = Case::reserved();
    case.call(1_900, 500, CniCommand::Del, ID);
    case.release(2_000, 5);
    case.call_ended(2_700, 500, 0);
    assert_eq!(case.codes_at(4_701), [Code::IpReleasedButHeld]);
    case.call(60_000, 501, CniCommand::Del, ID);
    assert_eq!(case.codes_at(60_100), [Code::IpReleasedButHeld], "it runs again");
    case.reserve(60_200, 5, NEW);
    let both = [Code::IpReleasedButHeld, Code::IpConflictImminent];
    assert_eq!(case.codes_at(60_201), both);
    case.call_ended(60_500, 501, 0);
    assert_eq!(case.codes_at(60_501), both);
}

#[test]
fn dels_without_end_excuse_nothing() {
    let mut case = Case::reserved();
    case.call(1_900, 500, CniCommand::Del, ID);
    case.release(2_000, 5);
    case.call_ended(119_000, 500, 0);
    assert_eq!(case.codes_at(119_001), []);
    case.call(119_010, 501, CniCommand::Del, ID);
    let next = case.0.agenda(BootNs(119_020 * MS), &Policy::default()).next.unwrap();
    assert!(next <= BootNs(122_000 * MS), "{next:?}");
    assert_eq!(case.codes_at(122_001), [Code::IpReleasedButHeld]);
}

#[test]
fn a_del_that_knows_no_netns_excuses_little() {
    let mut case = Case::reserved();
    case.unmounted(1_000);
    case.call(1_900, 500, CniCommand::Del, ID);
    case.release(2_000, 5);
    assert_eq!(case.codes_at(2_090), [], "it runs");
    case.call_ended(2_100, 500, 0);
    assert_eq!(case.codes_at(2_390), []);
    assert_eq!(case.codes_at(2_401), [Code::IpReleasedButHeld], "within a second");
}

#[test]
fn what_stood_before_may_be_half_of_a_del_that_nobody_saw() {
    let mut case = Case::unreserved(2_000);
    assert_eq!(case.codes_at(20_000), [], "a slow one");
    let [found] = case.then(32_001).try_into().unwrap();
    assert_eq!((found.code, found.since), (Code::IpReleasedButHeld, BootNs(2_000 * MS)));
    assert!(found.preexisting);
    let mut handed = Case::with_runtime();
    handed.at(1, What::Sight(SEEN));
    handed.source("host-local", SourceStatus::Active);
    handed.cached(5, "cbr0");
    handed.store(2_000, vec![What::Reservation(reservation(5, NEW))]);
    assert_eq!(handed.codes_at(20_000), [], "its DEL may have run when ipwatch began");
    assert_eq!(handed.codes_at(32_001), [Code::IpConflictImminent]);
}

#[test]
fn an_address_that_was_seen_to_come_did_not_stand_before() {
    let mut case = Case::unreserved(2_000);
    let key = AddressKey { ifindex: 2, local: ip(5), prefix_len: 24, peer: None };
    case.at(4_000, What::AddressGone { netns: POD, key });
    let address = Address { key, scope: Some(0), flags: Some(0) };
    case.at(5_000, What::Address { netns: POD, address });
    let [found] = case.then(36_000).try_into().unwrap();
    assert_eq!((found.since, found.preexisting), (BootNs(5_000 * MS), false));
}
