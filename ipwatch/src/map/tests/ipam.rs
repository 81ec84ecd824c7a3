//! Reservations and ranges, against a model that counts everything anew each time.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::fact::{Range, RangePart, Reservation, Unreadable};

fn reservation(last: u8, id: u8) -> Reservation {
    Reservation {
        store: "host-local".into(),
        network: "net".into(),
        key: format!("/net/{}", ip(last)),
        ip: ip(last),
        container_id: Some(format!("c{id}")),
        ifname: None,
        pod: None,
        since: None,
    }
}

fn part(first: u8, last: u8, except: &[u8]) -> RangePart {
    RangePart { first: ip(first), last: ip(last), except: except.iter().map(|n| ip(*n)).collect() }
}

fn range(sets: Vec<Vec<RangePart>>) -> Range {
    let (store, network, path) = ("host-local".into(), "net".into(), "/a.conflist".into());
    Range { store, network, path, data_dir: Some("/net".into()), shares: false, sets }
}

fn gone(last: u8) -> Observation {
    Observation::ReservationGone { store: "host-local".into(), key: reservation(last, 0).key }
}

fn scope() -> Scope {
    Scope::Reservations { store: "host-local".into() }
}

#[test]
fn a_pod_takes_one_of_each_set_and_the_tightest_decides() {
    let mut feed = Feed::new(ALL);
    let v6 = |last: u16| std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last).into();
    let wide = RangePart { first: v6(1), last: v6(0xffff), except: vec![v6(1)] };
    let sets = vec![vec![wide], vec![part(1, 6, &[1]), part(10, 12, &[])]];
    feed.tell(Observation::Range(range(sets)));
    let usage = |feed: &Feed| feed.map.ranges().next().unwrap().usage();
    assert_eq!(usage(&feed), Usage { usable: 8, used: 0, free: 8 });
    for last in [2, 11, 20] {
        feed.tell(Observation::Reservation(reservation(last, last)));
    }
    assert_eq!(usage(&feed), Usage { usable: 8, used: 2, free: 6 });
    let of_v6 = Reservation { ip: v6(9), key: "/net/fd00::9".into(), ..reservation(9, 9) };
    feed.tell(Observation::Reservation(of_v6));
    assert_eq!(usage(&feed), Usage { usable: 8, used: 2, free: 6 });
}

/// An IP that `check` rejects is not counted as available.
#[test]
fn what_is_up_without_a_reservation_cannot_be_handed_out() {
    let mut feed = Feed::new(ALL);
    feed.tell(Observation::Range(range(vec![vec![part(1, 6, &[1])]])));
    let source = |status| {
        let name = SourceName::Netlink.as_str().to_owned();
        Observation::Source(Source { name, status, detail: String::new() })
    };
    let view = |feed: &Feed| {
        let one = feed.map.ranges_view(feed.at, &Thresholds::default()).remove(0);
        (one.free, one.held, one.available)
    };
    assert_eq!(view(&feed), (5, None, None), "what is up is not known");
    feed.tell(source(SourceStatus::Active));
    feed.tell(Observation::Netns { netns: full(7, 70, 3) });
    // Reserved and up; only up; the gateway's, which is not handed out; another network's.
    feed.tell(Observation::Reservation(reservation(2, 2)));
    for last in [2, 3, 1, 9] {
        feed.tell(Observation::Address { netns: full(7, 70, 3), address: address(last) });
    }
    assert_eq!(view(&feed), (4, Some(1), Some(3)));
    assert!(!feed.map.verdict(ip(3), None).free, "as check says");
    feed.tell(source(SourceStatus::Down));
    assert_eq!(view(&feed), (4, None, None));
}

/// A user can give a netns of his own every IP of a range.
#[test]
fn what_a_user_has_where_nothing_leads_takes_no_ip_from_anybody() {
    let mut feed = Feed::new(ALL);
    feed.tell(Observation::Range(range(vec![vec![part(1, 6, &[1])]])));
    let name = SourceName::Netlink.as_str().to_owned();
    let (status, detail) = (SourceStatus::Active, String::new());
    feed.tell(Observation::Source(Source { name, status, detail }));
    let netns = full(7, 70, 3);
    let held = |feed: &Feed| {
        let one = feed.map.ranges_view(feed.at, &Thresholds::default()).remove(0);
        let rejected = feed.map.verdict(ip(3), None).reasons;
        let is_named = rejected.iter().any(|reason| reason.contains("70"));
        (one.held, one.available, is_named)
    };
    feed.tell(Observation::Address { netns, address: address(3) });
    assert_eq!(held(&feed), (Some(1), Some(4), true), "nobody knows whose it is");
    feed.tell(Observation::NetnsUser { netns, uid: 1_000, nested: false });
    assert_eq!(held(&feed), (Some(1), Some(4), true), "it has not been read");
    let scope = Scope::Addresses { netns };
    let began = feed.tell(Observation::Began(scope.clone()));
    feed.tell_at(began, Origin::Netlink, Observation::Address { netns, address: address(3) });
    feed.tell_at(began, Origin::Netlink, Observation::Ended { scope, began, complete: true });
    assert_eq!(held(&feed), (Some(0), Some(5), false));
    // Root connects it with the node.
    let (kind, peer_nsid) = (Some("veth".to_owned()), netns.nsid);
    let link = Link { ifindex: 5, peer: Some(6), kind, peer_nsid, ..Link::default() };
    feed.tell(Observation::Link { netns: HOST, link });
    assert_eq!(held(&feed), (Some(1), Some(4), true));
}

#[test]
fn a_torn_file_takes_its_ip_all_the_same() {
    let mut feed = Feed::new(ALL);
    feed.tell(Observation::Range(range(vec![vec![part(1, 6, &[1])]])));
    let used = |feed: &Feed| feed.map.ranges().next().unwrap().usage().used;
    let torn = |last: u8, path: String| Unreadable {
        store: "host-local".into(),
        path,
        reason: "it is empty".into(),
        effect: None,
        takes: Some(ip(last)),
    };
    feed.tell(Observation::StoreUnreadable(torn(3, reservation(3, 0).key)));
    feed.tell(Observation::StoreUnreadable(torn(4, format!("/other/{}", ip(4)))));
    assert_eq!(used(&feed), 1, "the other one is of another network");
    let (store, path) = ("host-local".into(), reservation(3, 0).key);
    feed.tell(Observation::StoreReadable { store, path });
    assert_eq!(used(&feed), 0);
    feed.tell(Observation::Reservation(reservation(3, 1)));
    feed.tell(Observation::StoreUnreadable(torn(3, reservation(3, 0).key)));
    assert_eq!(used(&feed), 1, "what it said before stands, and counts once");
}

#[test]
fn a_directory_whose_name_only_begins_alike_is_of_another_network() {
    let mut feed = Feed::new(ALL);
    feed.tell(Observation::Range(range(vec![vec![part(1, 6, &[1])]])));
    let other = Reservation { key: format!("/network/{}", ip(3)), ..reservation(3, 1) };
    feed.tell(Observation::Reservation(other));
    assert_eq!(feed.map.ranges().next().unwrap().usage().used, 0);
}

#[test]
fn parts_that_overlap_hand_out_an_ip_once() {
    let mut feed = Feed::new(ALL);
    feed.tell(Observation::Range(range(vec![vec![part(1, 6, &[1, 4]), part(4, 10, &[])]])));
    assert_eq!(feed.map.ranges().next().unwrap().usage().usable, 9);
}

#[test]
fn late_word_neither_revives_nor_overwrites_a_reservation() {
    let mut feed = Feed::new(ALL);
    let early = feed.tell(Observation::Began(scope()));
    feed.tell(Observation::Reservation(reservation(5, 1)));
    feed.tell(gone(5));
    feed.tell_at(early, Origin::Ipam, Observation::Reservation(reservation(5, 1)));
    assert_eq!(feed.map.reservations().count(), 0);
    assert_eq!(feed.map.releases_of(ip(5)).count(), 1);
    feed.tell(Observation::Reservation(reservation(6, 2)));
    feed.tell_at(
        early,
        Origin::Ipam,
        Observation::Ended { scope: scope(), began: early, complete: true },
    );
    assert_eq!(feed.map.reservations_of(ip(6)).count(), 1, "it came after the list began");
}

fn pod(uid: Option<&str>) -> Option<PodName> {
    Some(PodName { namespace: "shop".into(), name: "api-0".into(), uid: uid.map(Into::into) })
}

#[test]
fn more_said_of_the_same_pod_is_no_release() {
    let mut feed = Feed::new(ALL);
    let of_pod = |uid| Reservation { container_id: None, pod: pod(uid), ..reservation(5, 1) };
    feed.tell(Observation::Reservation(of_pod(None)));
    let first = feed.map.reservations_of(ip(5)).next().unwrap().first_seen;
    feed.tell(Observation::Reservation(of_pod(Some("u1"))));
    let entry = feed.map.reservations_of(ip(5)).next().unwrap();
    assert_eq!(entry.pod.as_deref().unwrap().uid.as_deref(), Some("u1"));
    assert_eq!((entry.first_seen, feed.map.releases_of(ip(5)).count()), (first, 0));
    feed.tell(Observation::Reservation(of_pod(Some("u2"))));
    assert_eq!(feed.map.releases_of(ip(5)).count(), 1, "another pod of that name");
    feed.tell(Observation::Reservation(Reservation { pod: pod(None), ..reservation(6, 1) }));
    feed.tell(Observation::Reservation(Reservation { pod: pod(Some("u1")), ..reservation(6, 1) }));
    assert_eq!(feed.map.releases_of(ip(6)).count(), 0);
}

/// A netns with 10.0.0.5 that an attachment assigns to `c1`, by its path or only by its IP.
fn owned(path: Option<&str>) -> Feed {
    let mut feed = Feed::new(ALL);
    let holder = Holder::Mount {
        mount_ns: 1,
        path: "/run/netns/a".into(),
        pid: 1,
        comm: None,
        cgroup: None,
        foreign: false,
    };
    feed.tell(Observation::Netns { netns: full(7, 70, 3) });
    feed.tell(Observation::Address { netns: NetnsRef::cookie(7), address: address(5) });
    feed.tell(Observation::Holder { netns: NetnsRef::cookie(7), holder });
    feed.tell(Observation::Attachment(Attachment {
        container_id: "c1".into(),
        ifname: "eth0".into(),
        network: "net".into(),
        netns_path: path.map(Into::into),
        ips: vec![(ip(5), 24)],
        made: None,
        pod: pod(None),
    }));
    feed.tell(Observation::Reservation(reservation(5, 1)));
    feed.wants(1);
    feed
}

#[test]
fn where_its_own_reservation_is_nothing_is_doubtful() {
    let mut feed = owned(Some("/run/netns/a"));
    let isolated = Reservation {
        network: "isolated".into(),
        key: "/isolated/10.0.0.5".into(),
        ..reservation(5, 2)
    };
    feed.tell(Observation::Reservation(isolated));
    feed.wants(1);
    assert!(!feed.map.has_doubtful_ips(), "two networks with one range");
    feed.tell(gone(5));
    feed.wants(1);
    assert!(feed.map.has_doubtful_ips());
    let named = Reservation { container_id: None, pod: pod(None), ..reservation(5, 1) };
    feed.tell(Observation::Reservation(named));
    feed.wants(1);
    assert!(!feed.map.has_doubtful_ips(), "by its pod");
}

#[test]
fn a_guess_by_its_ip_bereaves_nobody() {
    for (path, bereft) in [(Some("/run/netns/a"), true), (None, false)] {
        let mut feed = owned(path);
        feed.tell(Observation::NetnsGone { netns: NetnsRef::cookie(7) });
        let entry = feed.map.reservations_of(ip(5)).next().unwrap();
        assert_eq!(entry.bereft.is_some(), bereft, "{path:?}");
    }
}

/// One operation on a store.
#[derive(Debug, Clone)]
enum Step {
    Reserve(u8, u8),
    Release(u8),
    List(Vec<(u8, u8)>),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..20u8, 0..4u8).prop_map(|(last, id)| Step::Reserve(last, id)),
        (0..20u8).prop_map(Step::Release),
        prop::collection::vec((0..20u8, 0..4u8), 0..20).prop_map(Step::List),
    ]
}

proptest! {
    /// Increments and dumps, in any order: lookups and counts equal the model's.
    #[test]
    fn reservations_equal_the_model(steps in prop::collection::vec(step(), 1..60), ranged in 0..60usize) {
        let mut feed = Feed::new(ALL);
        let mut model: BTreeMap<u8, u8> = BTreeMap::new();
        let sets = vec![vec![part(2, 9, &[4]), part(12, 15, &[])], vec![part(1, 10, &[])]];
        for (n, step) in steps.into_iter().enumerate() {
            if n == ranged {
                feed.tell(Observation::Range(range(sets.clone())));
            }
            match step {
                Step::Reserve(last, id) => {
                    feed.tell(Observation::Reservation(reservation(last, id)));
                    model.insert(last, id);
                }
                Step::Release(last) => {
                    feed.tell(gone(last));
                    model.remove(&last);
                }
                Step::List(all) => {
                    let began = feed.tell(Observation::Began(scope()));
                    model = all.iter().copied().collect();
                    for (last, id) in &model {
                        feed.tell_at(began, Origin::Ipam, Observation::Reservation(reservation(*last, *id)));
                    }
                    feed.tell_at(began, Origin::Ipam, Observation::Ended { scope: scope(), began, complete: true });
                }
            }
            feed.wants(1);
            let known: Vec<(IpAddr, String)> = feed
                .map
                .reservations()
                .map(|entry| (entry.ip, entry.container_id.as_deref().unwrap().to_owned()))
                .collect();
            let expected: Vec<(IpAddr, String)> =
                model.iter().map(|(last, id)| (ip(*last), format!("c{id}"))).collect();
            prop_assert_eq!(known, expected);
            for id in 0..4u8 {
                let of_it = feed.map.reservations_for(&format!("c{id}")).count();
                prop_assert_eq!(of_it, model.values().filter(|own| **own == id).count());
            }
            if let Some(entry) = feed.map.ranges().next() {
                let used = |parts: &Vec<RangePart>| {
                    let taken = model.keys().filter(|last| parts.iter().any(|p| p.contains(ip(**last))));
                    taken.count() as u64
                };
                let free = (11 - used(&sets[0])).min(10 - used(&sets[1]));
                prop_assert_eq!(entry.usage().free, free);
            }
        }
    }
}

#[test]
fn growth_is_that_of_the_last_minutes_however_seldom_it_was_looked_at() {
    let mut feed = Feed::new(ALL);
    feed.tell(Observation::Range(range(vec![vec![part(1, 190, &[])]])));
    let scope = Scope::Reservations { store: "host-local".into() };
    feed.tell(Observation::Ended { scope, began: feed.at, complete: true });
    for _ in 0..50 {
        feed.wants(60_000);
    }
    for minute in 0..10 {
        for n in 1..=10 {
            feed.tell(Observation::Reservation(reservation(minute * 10 + n, n)));
        }
        feed.wants(60_000);
    }
    let left = feed.map.ranges().next().unwrap().time_left(feed.at).unwrap();
    assert!(
        (8..=10).contains(&(left / 60_000_000_000)),
        "90 are left, and 10 go each minute: {left}"
    );
}
