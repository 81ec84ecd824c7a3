use super::*;
use crate::fact::{AddressKey, BootNs, Hop, NetnsRef, Origin, Route, RouteKey};

fn fact(what: Observation) -> Fact {
    Fact { at: BootNs(1), origin: Origin::Netlink, what }
}

fn device(name: &str, index: u32) -> Interface {
    let kind = Some("veth".to_owned());
    Interface { name: Some(name.to_owned()), index, mac: None, kind, master: None }
}

fn link(name: &str, ifindex: u32, peer: u32) -> Link {
    let (name, kind) = (name.to_owned(), Some("veth".to_owned()));
    Link { ifindex, name, kind, peer: Some(peer), ..Link::default() }
}

/// The host's netns with these devices.
fn host(links: [Link; 2], complete: bool) -> Vec<Fact> {
    let netns = NetnsRef::inode(1);
    let ended = |scope| fact(Observation::Ended { scope, began: BootNs(1), complete });
    let scopes = [Scope::Links { netns }, Scope::Addresses { netns }, Scope::Routes { netns }];
    let mut facts: Vec<Fact> = scopes.map(ended).into();
    facts.extend(links.into_iter().map(|link| fact(Observation::Link { netns, link })));
    facts
}

#[test]
fn a_pair_goes_only_while_it_is_the_same_and_leads_nowhere() {
    let [one, other] = [device("veth1a2b3c4d", 41), device("veth5e6f7a8b", 42)];
    let ends = || [link("veth1a2b3c4d", 41, 42), link("veth5e6f7a8b", 42, 41)];
    let judge = |facts: &[Fact]| is_orphaned(facts, &one, &other);
    assert_eq!(judge(&host(ends(), true)), Ok(()));
    assert!(judge(&host(ends(), false)).is_err(), "half a list");
    type Change = fn(&mut [Link; 2]);
    let changes: [Change; 8] = [
        |ends| ends[0].name = "eth0".to_owned(),
        |ends| ends[1].name = "eth0".to_owned(),
        |ends| ends[1].ifindex = 43,
        |ends| ends[0].peer_nsid = Some(2),
        |ends| ends[1].peer = Some(77),
        |ends| ends[0].master = Some(5),
        |ends| ends[1].master = Some(5),
        |ends| ends[0].kind = Some("bridge".to_owned()),
    ];
    for (n, change) in changes.into_iter().enumerate() {
        let mut changed = ends();
        change(&mut changed);
        assert!(judge(&host(changed, true)).is_err(), "{n}");
    }
    let mut facts = host(ends(), true);
    let key =
        AddressKey { ifindex: 42, local: "10.0.3.9".parse().unwrap(), prefix_len: 24, peer: None };
    let address = crate::fact::Address { key, scope: None, flags: None };
    facts.push(fact(Observation::Address { netns: NetnsRef::inode(1), address }));
    assert!(judge(&facts).unwrap_err().contains("an address"));
}

#[test]
fn a_pair_that_something_rests_on_stays() {
    let [one, other] = [device("veth1a2b3c4d", 41), device("veth5e6f7a8b", 42)];
    let ends = || [link("veth1a2b3c4d", 41, 42), link("veth5e6f7a8b", 42, 41)];
    let netns = NetnsRef::inode(1);
    let with = |what: Observation| {
        let mut facts = host(ends(), true);
        facts.push(fact(what));
        is_orphaned(&facts, &one, &other)
    };
    for index in [41, 42] {
        let vlan = || Link { kind: Some("vlan".to_owned()), ..link("vlan7", 50, index) };
        let why = with(Observation::Link { netns, link: vlan() }).unwrap_err();
        assert!(why.contains("vlan7"), "{why}");
        let port = Link { master: Some(index), peer: None, ..vlan() };
        assert!(with(Observation::Link { netns, link: port }).is_err(), "{index}");
        // A pod's eth0: an index in another netns is another device's.
        let far = Link { peer_nsid: Some(3), ..vlan() };
        assert_eq!(with(Observation::Link { netns, link: far.clone() }), Ok(()));
        assert_eq!(
            child_of(&[fact(Observation::Link { netns, link: far })], [41, 42]),
            Some("vlan7")
        );
        assert_eq!(child_of(&[fact(Observation::Link { netns, link: vlan() })], [41, 42]), None);
        let to = "10.0.3.9".parse().unwrap();
        let key = RouteKey { to, prefix_len: 32, table: 254, priority: 0 };
        let route = |ifindex| Route { key, hops: vec![Hop { ifindex, gateway: None }] };
        let why = with(Observation::Route { netns, route: route(index) }).unwrap_err();
        assert!(why.contains("10.0.3.9/32"), "{why}");
        assert_eq!(with(Observation::Route { netns, route: route(2) }), Ok(()));
    }
}
