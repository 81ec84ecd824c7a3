//! What the kernel treats as one address or as two; limits on addresses, and how they are shared.

use super::*;

/// A pod's netns that was dumped before the probes report it.
fn dumped(feed: &mut Feed) -> NetnsRef {
    let netns = full(7, 70, 3);
    feed.tell(Observation::Netns { netns });
    let scope = Scope::Addresses { netns };
    let began = feed.tell(Observation::Began(scope.clone()));
    feed.tell_at(began, Origin::Netlink, Observation::Ended { scope, began, complete: true });
    netns
}

fn on_eth0(local: &str, prefix_len: u8, peer: Option<&str>) -> Address {
    let ip = |text: &str| text.parse().unwrap();
    let key = AddressKey { ifindex: 2, local: ip(local), prefix_len, peer: peer.map(ip) };
    Address { key, scope: Some(0), flags: Some(0x80) }
}

/// Keys of tenures that were reported to begin and to end, in order.
fn tenures(feed: &mut Feed) -> Vec<String> {
    let tell = |event| match event {
        TenureEvent::Held { key, .. } => Some(format!("+{key}")),
        TenureEvent::Released { key, ended_by, .. } => Some(format!("-{key} {ended_by}")),
        TenureEvent::Moved { from, to, .. } => Some(format!("{from} -> {to}")),
        TenureEvent::Named { .. } => None,
    };
    feed.map.take_tenures().into_iter().filter_map(tell).collect()
}

/// `ip -6 addr change` writes the peer of an existing address (`inet6_addr_modify`, net/ipv6/addrconf.c): no deletion
/// of the former one is ever reported.
#[test]
fn an_ipv6_address_whose_peer_changes_is_one() {
    for (sight, origin) in [(ALL, Origin::Probe), (NONE, Origin::Netlink)] {
        let mut feed = Feed::new(sight);
        let netns = dumped(&mut feed);
        let with = |peer| on_eth0("fd77::1", 128, peer);
        for peer in [None, Some("fd77::2"), Some("fd77::3")] {
            feed.tell_from(origin, Observation::Address { netns, address: with(peer) });
            assert_eq!(feed.ips().len(), 1, "with the peer {peer:?}");
        }
        assert_eq!(tenures(&mut feed), ["+cookie:7/2/fd77::1/128"]);
        let key = with(Some("fd77::3")).key;
        feed.tell_from(origin, Observation::AddressGone { netns, key });
        assert!(feed.ips().is_empty(), "nothing is left of it");
        assert_eq!(tenures(&mut feed), ["-cookie:7/2/fd77::1/128 address-deleted"]);
    }
}

/// The history divides what it keeps by it.
#[test]
fn whose_a_tenure_was_is_told_at_its_end() {
    let mut feed = Feed::new(ALL);
    let netns = dumped(&mut feed);
    let address = on_eth0("10.0.0.1", 24, None);
    let ends = |feed: &mut Feed| {
        feed.tell(Observation::Address { netns, address: address.clone() });
        feed.tell(Observation::AddressGone { netns, key: address.key });
        feed.map.take_tenures().into_iter().find_map(|event| match event {
            TenureEvent::Released { whose, .. } => Some(whose),
            _ => None,
        })
    };
    assert_eq!(ends(&mut feed), Some(TenantKind::User(None)));
    feed.tell(Observation::NetnsUser { netns, uid: 1_000, nested: false });
    assert_eq!(ends(&mut feed), Some(TenantKind::User(Some(1_000))));
    feed.tell(Observation::NetnsUser { netns, uid: 0, nested: false });
    assert_eq!(ends(&mut feed), Some(TenantKind::Root));
}

/// A device has an IPv6 address once (`ipv6_chk_same_addr`), and its prefix is never changed in place: another prefix
/// means another tenure, and that the end of the first was missed.
#[test]
fn an_ipv6_address_with_another_prefix_stands_in_place_of_the_first() {
    let mut feed = Feed::new(ALL);
    let netns = dumped(&mut feed);
    feed.tell(Observation::Address { netns, address: on_eth0("fd77::1", 128, None) });
    feed.tell(Observation::Address { netns, address: on_eth0("fd77::1", 64, None) });
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

/// `__inet_insert_ifa` (net/ipv4/devinet.c) refuses the same IP only with the same mask and subnet.
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
        feed.tell(Observation::Address { netns, address: address.clone() });
    }
    assert_eq!(feed.ips().len(), 5);
    for (gone, left) in all.iter().zip([4, 3, 2, 1, 0]) {
        feed.tell(Observation::AddressGone { netns, key: gone.key });
        assert_eq!(feed.ips().len(), left, "after {gone:?}");
    }
}

/// The key of a tenure has no peer: the tenure lasts as long as one of the addresses that share the key.
#[test]
fn a_tenure_ends_with_the_last_address_of_its_key() {
    let mut feed = Feed::new(ALL);
    let netns = dumped(&mut feed);
    let [first, second] = ["10.0.0.2", "10.0.0.3"].map(|peer| on_eth0("10.0.0.1", 32, Some(peer)));
    for address in [&first, &second] {
        feed.tell(Observation::Address { netns, address: address.clone() });
    }
    feed.tell(Observation::AddressGone { netns, key: first.key });
    let held = "+cookie:7/2/10.0.0.1/32";
    assert_eq!(tenures(&mut feed), [held, held], "the ledger takes the second for the first");
    feed.tell(Observation::AddressGone { netns, key: second.key });
    let released = "-cookie:7/2/10.0.0.1/32 address-deleted";
    assert_eq!(tenures(&mut feed), [released]);
    for address in [&first, &second] {
        feed.tell(Observation::Address { netns, address: address.clone() });
    }
    feed.tell(Observation::NetnsGone { netns });
    let ended = tenures(&mut feed);
    let released = ended.iter().filter(|told| told.starts_with('-')).count();
    assert_eq!(released, 1, "{ended:?}");
}

const IN_ALL: usize = 4_096;
const IN_ONE: usize = 256;

fn bounded() -> Feed {
    let mut feed = Feed::new(NONE);
    feed.map.bound_addresses(IN_ONE, IN_ALL);
    feed
}

/// The names of the nth netns of a hostile user.
fn hostile(n: u32) -> NetnsRef {
    full(100 + u64::from(n), 1_000 + n, 100 + n as i32)
}

/// Gives a netns this many addresses, each with an IP of its own or, with `forms`, one IP with as many peers.
fn fill(feed: &mut Feed, n: u32, addresses: u32, forms: bool) {
    for k in 0..addresses {
        let address = if forms {
            on_eth0("11.0.0.1", 32, Some(&Ipv4Addr::from_bits(0x0c00_0000 + k).to_string()))
        } else {
            on_eth0(&Ipv4Addr::from_bits(0x0b00_0000 + (n << 14) + k).to_string(), 32, None)
        };
        feed.tell(Observation::Address { netns: hostile(n), address });
    }
}

fn kept(feed: &Feed, netns: NetnsRef) -> usize {
    let id = feed.map.find(&netns).unwrap();
    feed.map.netns(id).unwrap().addresses().count()
}

fn kept_in_all(feed: &Feed) -> usize {
    feed.map.all_netns().map(|netns| netns.addresses().count()).sum()
}

#[test]
fn nobody_fills_the_room_of_others() {
    for forms in [false, true] {
        let mut feed = bounded();
        for n in 0..17 {
            fill(&mut feed, n, IN_ONE as u32, forms);
        }
        let pod = full(7, 70, 3);
        for last in 0..8 {
            feed.tell(Observation::Address { netns: pod, address: address(last) });
        }
        // A netns with few addresses keeps them, whatever others do.
        fill(&mut feed, 17, IN_ONE as u32, forms);
        fill(&mut feed, 3, IN_ONE as u32, forms);
        assert_eq!(kept(&feed, pod), 8, "one IP in many forms: {forms}");
        let all = kept_in_all(&feed);
        assert!((IN_ALL - IN_ONE..=IN_ALL).contains(&all), "{all}");
        let shares: Vec<usize> = (0..18).map(|n| kept(&feed, hostile(n))).collect();
        let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
        assert!(most - least < IN_ONE / 4, "they share it: {shares:?}");
        assert!(feed.map.beyond_bounds() > 500);
    }
}

/// A pod with more addresses than each of a thousand netns of a user's keeps them, and so does root's container.
#[test]
fn many_small_netns_take_nothing_from_a_larger_one() {
    let mut feed = bounded();
    let roots = full(7, 70, 3);
    feed.tell(Observation::NetnsUser { netns: roots, uid: 0, nested: false });
    for last in 0..8 {
        feed.tell(Observation::Address { netns: roots, address: address(last) });
    }
    for n in 0..3_000 {
        feed.tell(Observation::NetnsUser { netns: hostile(n), uid: 65_534, nested: false });
        fill(&mut feed, n, 2, false);
    }
    assert_eq!(kept(&feed, roots), 8);
    assert!(feed.map.beyond_bounds() > 500, "{}", feed.map.beyond_bounds());
    let said = feed.map.said_of_short().unwrap();
    let of_user = said.split_once("; uid 65534: ").map(|(_, of_user)| of_user);
    assert!(of_user.is_some_and(|said| said.contains(" addresses not kept, of ")), "{said}");
}

#[test]
fn the_host_has_room_of_its_own() {
    let mut feed = bounded();
    for n in 0..17 {
        fill(&mut feed, n, IN_ONE as u32, true);
    }
    for k in 0..IN_ONE as u32 + 5 {
        let address = on_eth0(&Ipv4Addr::from_bits(0x0a60_0000 + k).to_string(), 32, None);
        feed.tell(Observation::Address { netns: HOST, address });
    }
    assert_eq!(kept(&feed, HOST), IN_ONE);
    assert_eq!(feed.map.short().filter(|netns| netns.host).map(Netns::unkept).sum::<u64>(), 5);
}

#[test]
fn what_is_not_kept_is_unknown_and_read_anew_once_there_is_room() {
    let mut feed = bounded();
    feed.tell(Observation::Netns { netns: hostile(0) });
    // A netns was made for its first address.
    let first = Ipv4Addr::from_bits(0x0b00_0000);
    for n in 0..17 {
        fill(&mut feed, n, IN_ONE as u32, false);
    }
    feed.map.take_tenures();
    fill(&mut feed, 17, 64, false);
    let ended = tenures(&mut feed).into_iter().filter(|told| told.starts_with('-'));
    let (cut, others): (Vec<_>, Vec<_>) = ended.partition(|told| told.ends_with(" not-kept"));
    assert!((64..128).contains(&cut.len()), "{}", cut.len());
    assert!(others.is_empty(), "{others:?}");
    let doubts = |feed: &Feed, ip: IpAddr| {
        let verdict = feed.map.verdict(ip, None);
        let doubts = |reason: &&String| reason.contains(" has more addresses than the ");
        (verdict.free, verdict.reasons.iter().filter(doubts).count())
    };
    assert_eq!(doubts(&feed, first.into()), (false, 16), "listed are so many at most");
    let nobodys: IpAddr = "192.0.2.1".parse().unwrap();
    assert_eq!(doubts(&feed, nobodys).1, 16, "somebody may have it");
    let said = feed.map.said_of_short().unwrap();
    assert!(said.starts_with("; addresses kept by netns: net:["), "{said}");
    let reads = |feed: &mut Feed, after_ms| {
        let adopt =
            |want: &Request| matches!(want, Request::Adopt { netns, .. } if netns.cookie > Some(9));
        feed.wants(after_ms).iter().filter(|want| adopt(want)).count()
    };
    // They are new, and are read for that reason.
    for n in 0..18 {
        dump(&mut feed, n, true);
    }
    assert_eq!(reads(&mut feed, 60_000), 0, "there is no room");
    for n in 1..6 {
        feed.tell(Observation::NetnsGone { netns: hostile(n) });
    }
    assert_eq!(reads(&mut feed, 60_000), 4, "some at a time");
    let short = feed.map.short().count();
    for n in (0..18).filter(|n| !(1..6).contains(n)) {
        dump(&mut feed, n, false);
    }
    assert!(short > 10 && feed.map.short().next().is_none(), "{short}");
    assert_eq!(doubts(&feed, nobodys).1, 0);
}

/// Tells a link of a netns, with a peer in another one.
fn link_of(feed: &mut Feed, netns: NetnsRef, kind: Option<&str>, peer_nsid: Option<i32>) {
    let kind = kind.map(str::to_owned);
    let link = Link {
        ifindex: 5,
        name: "d0".to_owned(),
        peer: Some(6),
        kind,
        peer_nsid,
        ..Link::default()
    };
    feed.tell(Observation::Link { netns, link });
}

/// Whoever fills a netns of their own takes from nobody the knowledge that an IP is free.
#[test]
fn what_a_user_hides_where_nothing_leads_is_nobody_elses() {
    let mut feed = bounded();
    let nobodys: IpAddr = "192.0.2.1".parse().unwrap();
    let uid = 65_534;
    let is_doubted = |feed: &Feed| {
        let verdict = feed.map.verdict(nobodys, None);
        verdict.reasons.iter().any(|reason| reason.contains(" more addresses than the "))
    };
    let full_one = |feed: &mut Feed, n: u32| {
        fill(feed, n, IN_ONE as u32 + 1, false);
        feed.tell(Observation::NetnsUser { netns: hostile(n), uid, nested: false });
    };
    fill(&mut feed, 0, IN_ONE as u32 + 1, false);
    assert!(is_doubted(&feed), "whose it is is not known");
    feed.tell(Observation::NetnsUser { netns: hostile(0), uid, nested: false });
    assert!(!is_doubted(&feed) && feed.map.short().count() == 1);
    // Pairs within it, to another one of theirs, and to one that nobody has named yet.
    link_of(&mut feed, hostile(0), Some("veth"), None);
    link_of(&mut feed, hostile(0), Some("veth"), Some(3));
    assert!(!is_doubted(&feed));
    full_one(&mut feed, 1);
    feed.tell(Observation::PeerNetns { netns: hostile(0), nsid: 3, peer: hostile(1) });
    assert!(!is_doubted(&feed));
    // Root connects that one with the host.
    link_of(&mut feed, HOST, Some("veth"), hostile(1).nsid);
    assert!(is_doubted(&feed));
    for (kind, nsid) in [(None, None), (Some("macvlan"), Some(9))] {
        let mut feed = bounded();
        full_one(&mut feed, 0);
        link_of(&mut feed, hostile(0), kind, nsid);
        assert!(is_doubted(&feed), "{kind:?}");
    }
    // An end of the host's that leads to a netns that is not known: it may be this one.
    let mut feed = bounded();
    full_one(&mut feed, 0);
    link_of(&mut feed, hostile(0), Some("veth"), Some(3));
    assert!(!is_doubted(&feed));
    link_of(&mut feed, HOST, Some("veth"), Some(900));
    assert!(is_doubted(&feed));
    // The root of a container makes a user namespace as well; in the node's own there are only root's.
    for nested in [true, false] {
        let mut feed = bounded();
        fill(&mut feed, 0, IN_ONE as u32 + 1, false);
        feed.tell(Observation::NetnsUser { netns: hostile(0), uid: 0, nested });
        assert_eq!(is_doubted(&feed), !nested);
    }
}

/// Dumps what is kept and, with `more`, also as much beyond that as the netns once had.
fn dump(feed: &mut Feed, n: u32, more: bool) {
    let (netns, scope) = (hostile(n), Scope::Addresses { netns: hostile(n) });
    let began = feed.tell(Observation::Began(scope.clone()));
    let id = feed.map.find(&netns).unwrap();
    let entry = feed.map.netns(id).unwrap();
    let known: Vec<IpAddr> = entry.addresses().map(|(key, _)| key.local).collect();
    let beyond = (0..IN_ONE as u32).map(|k| Ipv4Addr::from_bits(0x0b00_0000 + (n << 14) + k));
    let beyond = beyond.map(IpAddr::from).filter(|_| more && entry.unkept() > 0);
    for local in beyond.collect::<Vec<_>>().into_iter().chain(known) {
        let address = on_eth0(&local.to_string(), 32, None);
        feed.tell_at(began, Origin::Netlink, Observation::Address { netns, address });
    }
    feed.tell_at(began, Origin::Netlink, Observation::Ended { scope, began, complete: true });
}

#[test]
fn the_bounds_are_as_large_as_a_node_needs() {
    let mut feed = Feed::new(NONE);
    fill(&mut feed, 0, 20_000, false);
    assert_eq!((kept(&feed, hostile(0)), feed.map.beyond_bounds()), (16_384, 20_000 - 16_384));
}

/// From 5.7 to 5.11 the kernel gives a netns its cookie when somebody first asks for it.
#[test]
fn a_cookie_that_comes_late_leaves_the_tenures_as_they_were_told() {
    let mut feed = Feed::new(ALL);
    let netns = NetnsRef { cookie: None, inode: Some(70), nsid: Some(3) };
    let scope = Scope::Addresses { netns };
    let began = feed.tell(Observation::Began(scope.clone()));
    feed.tell_at(began, Origin::Netlink, Observation::Address { netns, address: address(1) });
    feed.tell_at(began, Origin::Netlink, Observation::Ended { scope, began, complete: true });
    assert_eq!(tenures(&mut feed), ["+inode:70#0/2/10.0.0.1/24"]);
    let named = full(7, 70, 3);
    feed.tell(Observation::Address { netns: named, address: address(2) });
    feed.tell(Observation::AddressGone { netns: named, key: key(1) });
    assert_eq!(
        tenures(&mut feed),
        ["+inode:70#0/2/10.0.0.2/24", "-inode:70#0/2/10.0.0.1/24 address-deleted"]
    );
}

/// Without probes, netlink reports a netns by its nsid, and a walk of processes by its inode and cookie; that the nsid
/// belongs to it is learned later.
fn two_that_are_one(dumped: bool) -> Vec<String> {
    let mut feed = Feed::new(ALL);
    let by_nsid = NetnsRef { cookie: None, inode: None, nsid: Some(3) };
    let scope = Scope::Addresses { netns: by_nsid };
    let began = feed.tell(Observation::Began(scope.clone()));
    feed.tell_at(
        began,
        Origin::Netlink,
        Observation::Address { netns: by_nsid, address: address(1) },
    );
    if dumped {
        feed.tell_at(began, Origin::Netlink, Observation::Ended { scope, began, complete: true });
    }
    feed.tell(Observation::Netns {
        netns: NetnsRef { cookie: Some(7), inode: Some(70), nsid: None },
    });
    feed.tell(Observation::Netns { netns: full(7, 70, 3) });
    let mut told = tenures(&mut feed);
    feed.tell(Observation::AddressGone { netns: full(7, 70, 3), key: key(1) });
    // A tenure that has not been reported is reported with its end.
    told.push("the end:".to_owned());
    told.extend(tenures(&mut feed));
    told
}

#[test]
fn a_tenure_goes_on_when_two_netns_turn_out_to_be_one() {
    let told = two_that_are_one(true);
    assert_eq!(
        told,
        [
            "+nsid:3#0/2/10.0.0.1/24",
            "nsid:3#0/2/10.0.0.1/24 -> cookie:7/2/10.0.0.1/24",
            "the end:",
            "-cookie:7/2/10.0.0.1/24 address-deleted"
        ]
    );
}

#[test]
fn what_was_not_told_is_told_when_two_netns_turn_out_to_be_one() {
    let told = two_that_are_one(false);
    let new = "cookie:7/2/10.0.0.1/24";
    assert_eq!(told, [format!("+{new}"), "the end:".into(), format!("-{new} address-deleted")]);
}

/// The kernel reuses an inode at once (`ns_free_inum`), and without cookies nothing else distinguishes the two netns.
#[test]
fn an_inode_that_is_handed_out_again_is_another_netns() {
    let mut feed = Feed::new(NONE);
    let netns = NetnsRef { cookie: None, inode: Some(70), nsid: None };
    for generation in 0..2 {
        let scope = Scope::Addresses { netns };
        let began = feed.tell(Observation::Began(scope.clone()));
        feed.tell_at(began, Origin::Netlink, Observation::Address { netns, address: address(1) });
        feed.tell_at(began, Origin::Netlink, Observation::Ended { scope, began, complete: true });
        feed.tell(Observation::NetnsGone { netns });
        let key = format!("inode:70#{generation}/2/10.0.0.1/24");
        assert_eq!(tenures(&mut feed), [format!("+{key}"), format!("-{key} netns-gone")]);
    }
}
