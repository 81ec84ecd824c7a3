//! Whether an IP can be given to a new container.

use super::*;
use crate::contract::Verdict;
use crate::fact::{Range, RangePart, Reservation, Source, SourceStatus};

/// A host with 10.0.0.1/24, a network that hands out 10.0.0.128 to 10.0.0.191, and one reservation.
fn feed() -> Feed {
    let mut feed = Feed::new(ALL);
    for name in ["netlink", "procfs", "host-local"] {
        let (status, detail) = (SourceStatus::Active, String::new());
        feed.tell(Observation::Source(Source { name: name.into(), status, detail }));
    }
    feed.tell(Observation::Address { netns: HOST, address: address(1) });
    let part = RangePart { first: ip(128), last: ip(191), except: Vec::new() };
    let (store, network, path) = ("host-local".into(), "net".into(), "/a.conflist".into());
    let sets = vec![vec![part]];
    feed.tell(Observation::Range(Range {
        store,
        network,
        path,
        data_dir: Some("/net".into()),
        shares: false,
        sets,
    }));
    feed.tell(Observation::Reservation(Reservation {
        store: "host-local".into(),
        network: "net".into(),
        key: "/net/10.0.0.130".into(),
        ip: ip(130),
        container_id: Some("3d1f2a9d7e6f5041322314a5b6c7d8e9".into()),
        ifname: None,
        pod: None,
        since: None,
    }));
    feed
}

fn asked(feed: &Feed, ip: &str) -> Verdict {
    feed.map.verdict(ip.parse().unwrap(), None)
}

#[test]
fn what_no_host_can_have_is_not_free() {
    let feed = feed();
    for ip in ["0.0.0.0", "::", "127.0.0.1", "::1", "224.0.0.5", "ff02::1", "255.255.255.255"] {
        let verdict = asked(&feed, ip);
        assert_eq!(verdict.reasons, ["no container can have this address"], "{ip}");
        assert!(!verdict.free);
    }
    let why = |ip| asked(&feed, ip).reasons;
    assert_eq!(why("10.0.0.0"), ["it is the network address of 10.0.0.0/24"]);
    assert_eq!(why("10.0.0.255"), ["it is the broadcast address of 10.0.0.0/24"]);
    assert_eq!(why("10.0.0.254"), [""; 0]);
}

#[test]
fn the_edges_of_a_containers_network_are_no_hosts_addresses() {
    let mut feed = feed();
    let given = |last: [u8; 2], length| (Ipv4Addr::new(10, 1, last[0], last[1]).into(), length);
    feed.tell(Observation::Attachment(crate::fact::Attachment {
        container_id: "one".into(),
        ifname: "eth0".into(),
        network: "other".into(),
        netns_path: None,
        ips: vec![
            given([7, 20], 27),
            given([8, 8], 31),
            given([9, 9], 32),
            ("fd00::7".parse().unwrap(), 64),
        ],
        made: None,
        pod: None,
    }));
    let why = |ip| asked(&feed, ip).reasons;
    assert_eq!(why("10.1.7.0"), ["it is the network address of 10.1.7.0/27"]);
    assert_eq!(why("10.1.7.31"), ["it is the broadcast address of 10.1.7.0/27"]);
    for ip in ["10.1.7.1", "10.1.7.32", "10.1.8.8", "10.1.8.9", "10.1.9.9", "fd00::"] {
        assert_eq!(why(ip), [""; 0], "{ip}");
    }
}

#[test]
fn what_a_pool_hands_out_is_an_address_of_a_host() {
    let mut feed = feed();
    let address = Address { key: AddressKey { prefix_len: 26, ..key(129) }, ..address(129) };
    feed.tell(Observation::Address { netns: HOST, address });
    assert_eq!(asked(&feed, "10.0.0.128").reasons, [""; 0], "the first of 10.0.0.128/26");
}

#[test]
fn whether_a_pool_has_it_is_told() {
    let feed = feed();
    let within = asked(&feed, "10.0.0.140");
    assert_eq!((within.free, within.in_pool, within.pools), (true, Some(true), vec!["net".into()]));
    let without = asked(&feed, "8.8.8.8");
    assert_eq!((without.free, without.in_pool, without.pools), (true, Some(false), vec![]));
}

#[test]
fn a_container_is_meant_by_the_beginning_of_its_id() {
    let feed = feed();
    let free = |container: &str| feed.map.verdict(ip(130), Some(container)).free;
    assert!(free("3d1f2a9d7e6f5041322314a5b6c7d8e9"));
    assert!(free("3d1f2a9d7e6f"), "as crictl and docker print it");
    assert!(!free("3d1f2a9d7e6"), "too short to be of one container alone");
    assert!(!free("3d1f2a9d7e60"));
    assert!(!free(""));
    assert!(!feed.map.verdict(ip(130), None).free);
}
