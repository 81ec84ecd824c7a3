//! Routes, ports and nsids for other netns.

use super::*;
use crate::fact::{Hop, LinkDetail, Route, RouteKey};

const A: NetnsRef = NetnsRef { cookie: Some(7), inode: Some(70), nsid: Some(1) };
const B: NetnsRef = NetnsRef { cookie: Some(8), inode: Some(80), nsid: Some(2) };

fn hop(ifindex: u32, last: u8) -> Hop {
    Hop { ifindex, gateway: Some(ip(last)) }
}

const DEFAULT: RouteKey =
    RouteKey { to: IpAddr::V4(Ipv4Addr::UNSPECIFIED), prefix_len: 0, table: 254, priority: 0 };

fn route(hops: &[Hop]) -> Observation {
    Observation::Route { netns: A, route: Route { key: DEFAULT, hops: hops.to_vec() } }
}

fn gone(hops: &[Hop]) -> Observation {
    Observation::RouteGone { netns: A, key: DEFAULT, hops: hops.to_vec() }
}

fn link(ifindex: u32) -> Link {
    Link { ifindex, name: format!("d{ifindex}"), up: true, ..Link::default() }
}

fn hops(feed: &Feed) -> Vec<Hop> {
    let entry = feed.map.netns(feed.map.find(&A).unwrap()).unwrap();
    entry.routes().flat_map(|(_, hops, _)| hops.to_vec()).collect()
}

#[test]
fn a_route_changes_and_goes_hop_by_hop() {
    let mut feed = Feed::new(ALL);
    feed.tell(route(&[hop(2, 1)]));
    feed.tell(route(&[hop(2, 2), hop(3, 3)]));
    assert_eq!(hops(&feed), [hop(2, 2), hop(3, 3)], "replaced");
    feed.tell(gone(&[hop(2, 2)]));
    assert_eq!(hops(&feed), [hop(3, 3)]);
    feed.tell(gone(&[hop(9, 9)]));
    assert_eq!(hops(&feed), [hop(3, 3)], "another of the same key");
    feed.tell(gone(&[hop(3, 3)]));
    assert_eq!(hops(&feed), []);
    feed.tell(route(&[hop(2, 1)]));
    feed.tell(gone(&[]));
    assert_eq!(hops(&feed), []);
}

#[test]
fn a_dump_tells_of_routes_with_one_key_one_by_one() {
    let mut feed = Feed::new(ALL);
    feed.tell(route(&[hop(2, 9)]));
    let at = feed.at.plus(MS);
    for last in [1, 2, 1] {
        feed.tell_at(at, Origin::Netlink, route(&[hop(2, last)]));
    }
    assert_eq!(hops(&feed), [hop(2, 1), hop(2, 2)]);
}

#[test]
fn a_device_that_goes_down_takes_its_routes_along() {
    let mut feed = Feed::new(ALL);
    for ifindex in [2, 3] {
        feed.tell(Observation::Link { netns: A, link: link(ifindex) });
    }
    feed.tell(route(&[hop(2, 1), hop(3, 2)]));
    feed.tell(Observation::Link { netns: A, link: Link { up: false, ..link(2) } });
    assert_eq!(hops(&feed), [hop(3, 2)]);
    feed.tell(Observation::LinkGone { netns: A, ifindex: 3 });
    assert_eq!(hops(&feed), []);

    // Routes come by a socket of their own, sometimes before the device is reported.
    feed.tell(route(&[hop(4, 1)]));
    feed.tell(Observation::Link { netns: A, link: Link { up: false, ..link(4) } });
    feed.tell(Observation::Link { netns: A, link: link(4) });
    assert_eq!(hops(&feed), [hop(4, 1)]);
}

#[test]
fn a_port_is_isolated_until_more_is_told_of_its_link() {
    let mut feed = Feed::new(ALL);
    let isolated = |feed: &Feed| {
        let entry = feed.map.netns(feed.map.find(&A).unwrap()).unwrap();
        entry.link(2).map(|link| link.isolated)
    };
    let port = |isolated| Observation::Port { netns: A, ifindex: 2, isolated };
    feed.tell(port(true)); // of nobody
    feed.tell(Observation::Link { netns: A, link: link(2) });
    assert_eq!(isolated(&feed), Some(false));
    feed.tell(port(true));
    assert_eq!(isolated(&feed), Some(true));
    feed.tell_at(BootNs(1), Origin::Netlink, port(false));
    assert_eq!(isolated(&feed), Some(true), "old news");
    feed.tell(Observation::Link { netns: A, link: link(2) });
    assert_eq!(isolated(&feed), Some(false));
}

/// A netns that is known and was dumped.
fn known(feed: &mut Feed, netns: NetnsRef) {
    feed.tell(Observation::Netns { netns });
    let scope = Scope::Addresses { netns };
    let began = feed.tell_from(Origin::Netlink, Observation::Began(scope.clone()));
    feed.tell_from(Origin::Netlink, Observation::Ended { scope, began, complete: true });
}

fn asks(feed: &mut Feed, after_ms: u64) -> usize {
    let wants = feed.wants(after_ms);
    wants.iter().filter(|want| matches!(want, Request::Peers { .. })).count()
}

fn macvlan() -> Observation {
    let kind = Some("macvlan".to_owned());
    Observation::Link {
        netns: A,
        link: Link { peer: Some(9), peer_nsid: Some(4), kind, ..link(2) },
    }
}

#[test]
fn a_link_to_a_netns_without_a_name_has_its_own_asked_for_it() {
    let mut feed = Feed::new(ALL);
    known(&mut feed, A);
    known(&mut feed, B);
    assert_eq!(asks(&mut feed, 1_000), 0);
    feed.tell(macvlan());
    assert_eq!(asks(&mut feed, 50), 0, "the answer may be on its way");
    assert_eq!(asks(&mut feed, 100), 1);
    known(&mut feed, A);
    feed.tell(Observation::PeerNetns { netns: A, nsid: 4, peer: B });
    let id = feed.map.find(&A).unwrap();
    assert_eq!(feed.map.peer_netns(id, 4), feed.map.find(&B));
    feed.tell(macvlan());
    assert_eq!(asks(&mut feed, 100_000), 0, "it is known now");

    // Its peer ends, and another netns has its nsid.
    feed.tell(Observation::NetnsGone { netns: B });
    assert_eq!(feed.map.peer_netns(id, 4), None);
    feed.tell(macvlan());
    assert_eq!(asks(&mut feed, 200), 1);
}

#[test]
fn nobody_is_asked_for_ever_for_a_name_that_never_comes() {
    let mut feed = Feed::new(ALL);
    known(&mut feed, A);
    let mut asked = 0;
    for _ in 0..200 {
        feed.tell(macvlan());
        asked += asks(&mut feed, 1_000);
        known(&mut feed, A);
    }
    assert_eq!(asked, 4);
}

#[test]
fn a_veth_that_the_host_names_needs_no_name() {
    let mut feed = Feed::new(ALL);
    known(&mut feed, A);
    let end = Link { peer: Some(2), peer_nsid: Some(1), ..link(9) };
    feed.tell(Observation::Link { netns: HOST, link: end.clone() });
    feed.tell(macvlan()); // as far as this goes, a veth
    assert_eq!(asks(&mut feed, 1_000), 0);
    let host = feed.map.host().unwrap();
    assert_eq!(feed.map.peer_netns(host, 1), feed.map.find(&A));
    // Index and nsid were reused, for the end of another link.
    feed.tell(Observation::Link { netns: HOST, link: Link { peer: Some(3), ..end } });
    feed.tell(macvlan());
    assert_eq!(asks(&mut feed, 1_000), 1);
}

#[test]
fn a_name_for_a_netns_known_by_half_stays_when_the_other_half_comes() {
    let mut feed = Feed::new(ALL);
    known(&mut feed, A);
    feed.tell(Observation::Netns { netns: NetnsRef { nsid: None, ..B } });
    feed.tell(Observation::PeerNetns { netns: A, nsid: 4, peer: NetnsRef::nsid(2) });
    feed.tell(Observation::Netns { netns: B });
    let id = feed.map.find(&A).unwrap();
    assert!(feed.map.find(&B).is_some());
    assert_eq!(feed.map.peer_netns(id, 4), feed.map.find(&B));
}

#[test]
fn the_vlans_of_a_bridge_that_came_later_are_asked_for_once() {
    let mut feed = Feed::new(ALL);
    known(&mut feed, A);
    let adopts = |feed: &mut Feed| {
        let wants = feed.wants(200);
        wants.iter().filter(|want| matches!(want, Request::Adopt { .. })).count()
    };
    assert_eq!(adopts(&mut feed), 0);
    let bridge = |vlan_filtering| {
        let detail = Some(LinkDetail::Bridge { vlan_filtering });
        Observation::Link {
            netns: A,
            link: Link { kind: Some("bridge".into()), detail, ..link(7) },
        }
    };
    feed.tell(bridge(false));
    assert_eq!(adopts(&mut feed), 0);
    feed.tell(bridge(true));
    assert_eq!(adopts(&mut feed), 1);
    known(&mut feed, A);
    feed.tell(bridge(true));
    assert_eq!(adopts(&mut feed), 0, "it was asked for");
}

#[test]
fn who_passes_through_is_no_news() {
    let mut feed = Feed::new(ALL);
    known(&mut feed, A);
    let id = feed.map.find(&A).unwrap();
    let residents = |feed: &Feed| {
        let views = feed.map.resident_views(id, feed.map.now());
        views.iter().filter_map(|holder| holder.pid).collect::<Vec<u32>>()
    };
    feed.tell(Observation::Task(task(10, A)));
    assert_eq!(residents(&feed), [10], "nobody has been there longer");
    feed.at = feed.at.plus(6_000 * MS);
    feed.tell(Observation::Task(task(11, A)));
    assert_eq!(residents(&feed), [10]);
    feed.at = feed.at.plus(6_000 * MS);
    feed.tell(Observation::Task(task(12, A)));
    assert_eq!(residents(&feed), [10, 11]);
}
