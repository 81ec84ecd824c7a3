//! What is one address and what are two, as the kernel has it; and how many are kept, and whose.

use super::*;

/// A pod's netns that was dumped before the probes tell of it.
fn dumped(feed: &mut Feed) -> NetnsRef {
    let netns = full(7, 70, 3);
    feed.tell(What::Netns { netns });
    let scope = Scope::Addresses { netns };
    let began = feed.tell(What::Began(scope.clone()));
    feed.tell_at(began, Origin::Netlink, What::Ended { scope, began, complete: true });
    netns
}

fn on_eth0(local: &str, prefix_len: u8, peer: Option<&str>) -> Address {
    let ip = |text: &str| text.parse().unwrap();
    let key = AddressKey { ifindex: 2, local: ip(local), prefix_len, peer: peer.map(ip) };
    Address { key, scope: Some(0), flags: Some(0x80) }
}

/// Keys of tenures that were told to begin and to end, in order.
fn tenures(feed: &mut Feed) -> Vec<String> {
    let tell = |event| match event {
        TenureEvent::Held { key, .. } => Some(format!("+{key}")),
        TenureEvent::Released { key, ended_by, .. } => Some(format!("-{key} {ended_by}")),
        TenureEvent::Named { .. } => None,
    };
    feed.map.take_tenures().into_iter().filter_map(tell).collect()
}

/// `ip -6 addr change` writes the peer of an address that stands (`inet6_addr_modify`, net/ipv6/addrconf.c): no
/// deletion of the former one is ever told.
#[test]
fn an_ipv6_address_whose_peer_changes_is_one() {
    for (sight, origin) in [(ALL, Origin::Probe), (NONE, Origin::Netlink)] {
        let mut feed = Feed::new(sight);
        let netns = dumped(&mut feed);
        let with = |peer| on_eth0("fd77::1", 128, peer);
        for peer in [None, Some("fd77::2"), Some("fd77::3")] {
            feed.tell_from(origin, What::Address { netns, address: with(peer) });
            assert_eq!(feed.ips().len(), 1, "with the peer {peer:?}");
        }
        assert_eq!(tenures(&mut feed), ["+cookie:7/2/fd77::1/128"]);
        let key = with(Some("fd77::3")).key;
        feed.tell_from(origin, What::AddressGone { netns, key });
        assert!(feed.ips().is_empty(), "nothing is left of it");
        assert_eq!(tenures(&mut feed), ["-cookie:7/2/fd77::1/128 address-deleted"]);
    }
}

/// A device has an IPv6 address once (`ipv6_chk_same_addr`), and its prefix is never changed in place: with another
/// one it is another tenure, whose end of the first was missed.
#[test]
fn an_ipv6_address_with_another_prefix_stands_in_place_of_the_first() {
    let mut feed = Feed::new(ALL);
    let netns = dumped(&mut feed);
    feed.tell(What::Address { netns, address: on_eth0("fd77::1", 128, None) });
    feed.tell(What::Address { netns, address: on_eth0("fd77::1", 64, None) });
    let view = feed.map.addresses(&Selector::Ip(None));
    assert_eq!(view.iter().map(|address| address.prefix_len).collect::<Vec<_>>(), [Some(64)]);
    assert_eq!(
        tenures(&mut feed),
        [
            "+cookie:7/2/fd77::1/128",
            "-cookie:7/2/fd77::1/128 address-deleted",
            "+cookie:7/2/fd77::1/64"
        ]
    );
}

/// `__inet_insert_ifa` (net/ipv4/devinet.c) refuses the same IP only with the same mask and for the same subnet.
#[test]
fn an_ipv4_address_stands_once_for_each_mask_and_subnet() {
    let mut feed = Feed::new(ALL);
    let netns = dumped(&mut feed);
    let all = [
        on_eth0("10.0.0.1", 24, None),
        on_eth0("10.0.0.1", 32, None),
        on_eth0("10.0.0.1", 32, Some("10.0.0.2")),
        on_eth0("10.0.0.1", 32, Some("10.0.0.3")),
        on_eth0("10.0.0.1", 24, Some("0.0.0.0")),
        // The subnet counts, not the peer within it.
        on_eth0("10.0.0.1", 24, Some("10.0.0.9")),
    ];
    for address in &all {
        feed.tell(What::Address { netns, address: address.clone() });
    }
    assert_eq!(feed.ips().len(), 5);
    for (gone, left) in all.iter().zip([4, 3, 2, 1, 0]) {
        feed.tell(What::AddressGone { netns, key: gone.key });
        assert_eq!(feed.ips().len(), left, "after {gone:?}");
    }
}

/// The key of a tenure has no peer: it lasts as long as one of those that share it.
#[test]
fn a_tenure_ends_with_the_last_address_of_its_key() {
    let mut feed = Feed::new(ALL);
    let netns = dumped(&mut feed);
    let [first, second] = ["10.0.0.2", "10.0.0.3"].map(|peer| on_eth0("10.0.0.1", 32, Some(peer)));
    for address in [&first, &second] {
        feed.tell(What::Address { netns, address: address.clone() });
    }
    feed.tell(What::AddressGone { netns, key: first.key });
    let held = "+cookie:7/2/10.0.0.1/32";
    assert_eq!(tenures(&mut feed), [held, held], "the ledger takes the second for the first");
    feed.tell(What::AddressGone { netns, key: second.key });
    let released = "-cookie:7/2/10.0.0.1/32 address-deleted";
    assert_eq!(tenures(&mut feed), [released]);
    for address in [&first, &second] {
        feed.tell(What::Address { netns, address: address.clone() });
    }
    feed.tell(What::NetnsGone { netns });
    let ended = tenures(&mut feed);
    let released = ended.iter().filter(|told| told.starts_with('-')).count();
    assert_eq!(released, 1, "{ended:?}");
}
