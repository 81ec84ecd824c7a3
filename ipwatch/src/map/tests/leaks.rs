//! Reservations without their containers, in large numbers.

use super::*;
use crate::fact::{Attachment, Range, RangePart, Reservation};

/// A reservation written before the boot: without a runtime that alone makes it a leak.
pub(super) fn old(network: &str, n: u16) -> Observation {
    let [high, low] = n.to_be_bytes();
    let ip: IpAddr = Ipv4Addr::new(10, 1, high, low).into();
    Observation::Reservation(Reservation {
        store: "host-local".into(),
        network: network.into(),
        key: format!("/{network}/{ip}"),
        ip,
        container_id: Some(format!("{network}-{n}")),
        ifname: None,
        pod: None,
        since: Some(-3_600_000_000_000),
    })
}

fn range(path: &str) -> Observation {
    let part = RangePart {
        first: Ipv4Addr::new(10, 1, 0, 0).into(),
        last: Ipv4Addr::new(10, 1, 255, 255).into(),
        except: Vec::new(),
    };
    Observation::Range(Range {
        store: "host-local".into(),
        network: "many".into(),
        path: path.into(),
        data_dir: Some("/many".into()),
        shares: false,
        sets: vec![vec![part]],
    })
}

fn without_runtime() -> Feed {
    let mut feed = Feed::new(ALL);
    let (name, status, detail) = ("runtime".into(), SourceStatus::Disabled, String::new());
    feed.tell(Observation::Source(Source { name, status, detail }));
    feed
}

fn leaked(feed: &Feed) -> Vec<usize> {
    let thresholds = Thresholds::default();
    feed.map.ranges().map(|range| feed.map.leaked_in(range, feed.at, &thresholds).len()).collect()
}

/// 0 would mean that somebody looked.
#[test]
fn without_a_runtime_only_a_proven_leak_is_counted() {
    let told = |feed: &Feed| {
        let [range] = &feed.map.ranges_view(feed.at, &Thresholds::default())[..] else { panic!() };
        (range.used, range.leaked)
    };
    let mut feed = without_runtime();
    feed.tell(range("/a.conflist"));
    assert_eq!(told(&feed), (0, Some(0)), "nothing is reserved");
    let Observation::Reservation(new) = old("many", 1) else { unreachable!() };
    feed.tell(Observation::Reservation(Reservation { since: None, ..new }));
    feed.wants(400_000);
    assert_eq!(told(&feed), (1, None));
    feed.tell(old("many", 2));
    feed.wants(400_000);
    assert_eq!(told(&feed), (2, Some(1)), "a lower bound");
}

#[test]
fn the_leaks_of_one_network_hide_none_of_another() {
    let mut feed = without_runtime();
    for n in 0..1_000 {
        feed.tell(old("many", n));
    }
    feed.tell(old("one", 2_000));
    feed.wants(400_000);
    let told = |network: &str| feed.map.leaks().filter(|it| *it.entry.network == *network).count();
    assert_eq!((told("many"), told("one")), (64, 1));
}

#[test]
fn so_many_are_asked_about_in_turns_and_counted_as_they_change() {
    let mut feed = without_runtime();
    feed.tell(range("/a.conflist"));
    for n in 0..5_000 {
        feed.tell(old("many", n));
    }
    feed.wants(400_000);
    assert_eq!(leaked(&feed), [2_048]);
    let next = feed.map.agenda(feed.at, &Thresholds::default()).next.unwrap();
    assert!(next <= feed.at.plus(20 * MS), "{next:?}");
    feed.wants(20);
    assert_eq!(leaked(&feed), [5_000]);
    // Changes reported in the meantime.
    feed.tell(Observation::ReservationGone {
        store: "host-local".into(),
        key: "/many/10.1.0.9".into(),
    });
    assert_eq!(leaked(&feed), [4_999]);
    feed.tell(range("/b.conflist"));
    assert_eq!(leaked(&feed), [4_999, 4_999]);
    assert!(feed.map.is_leaked("host-local", "/many/10.1.0.8"));
    // One of them turns out to have a netns.
    feed.tell(Observation::Holder { netns: full(7, 70, 3), holder: mounted_at("/run/netns/x") });
    feed.tell(Observation::Attachment(Attachment {
        container_id: "many-8".into(),
        ifname: "eth0".into(),
        network: "many".into(),
        netns_path: Some("/run/netns/x".into()),
        ips: Vec::new(),
        made: None,
        pod: None,
    }));
    for _ in 0..6 {
        feed.wants(1_000);
    }
    assert!(!feed.map.is_leaked("host-local", "/many/10.1.0.8"));
    assert_eq!(leaked(&feed), [4_998, 4_998]);
}

#[test]
fn the_end_of_a_netns_that_is_guessed_by_its_ip_proves_nothing() {
    for (path, bereft) in [(None, false), (Some("/run/netns/x"), true)] {
        let mut feed = Feed::new(ALL);
        let netns = full(7, 70, 3);
        feed.tell(Observation::Holder { netns, holder: mounted_at("/run/netns/x") });
        feed.tell(Observation::Address { netns, address: address(5) });
        feed.tell(Observation::Attachment(Attachment {
            container_id: "one".into(),
            ifname: "eth0".into(),
            network: "net".into(),
            netns_path: path.map(str::to_owned),
            ips: vec![(ip(5), 24)],
            made: None,
            pod: None,
        }));
        feed.tell(Observation::Reservation(Reservation {
            store: "host-local".into(),
            network: "net".into(),
            key: "/net/10.0.0.5".into(),
            ip: ip(5),
            container_id: Some("one".into()),
            ifname: None,
            pod: None,
            since: None,
        }));
        feed.wants(1);
        let id = feed.map.find(&netns).unwrap();
        assert_eq!(feed.map.netns(id).unwrap().owner().unwrap().sandbox, "one");
        feed.tell(Observation::NetnsGone { netns });
        let entry = feed.map.reservations_of(ip(5)).next().unwrap();
        assert_eq!(entry.bereft.is_some(), bereft);
    }
}
