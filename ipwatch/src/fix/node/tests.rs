use super::*;
use crate::fact::{AddressKey, Hop, Origin, Route, RouteKey};

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

#[test]
fn a_container_with_its_own_pids_is_not_the_node() {
    assert!(sees_all_processes("pid:[4026531836]".as_ref()));
    for other in ["pid:[4026532201]", "pid:[40265318360]", ""] {
        assert!(!sees_all_processes(other.as_ref()), "{other}");
    }
}

#[test]
fn netns_that_ended_are_told_from_those_that_do_not_open() {
    let task = |pid| NetnsPath::Task { pid, tid: pid };
    let list = |all: &[(u32, &[u32])]| {
        let doors = |pids: &[u32]| pids.iter().map(|pid| task(*pid)).collect();
        all.iter().map(|(inode, pids)| (*inode, doors(pids))).collect::<BTreeMap<_, Vec<_>>>()
    };
    let failed = list(&[(7, &[70, 71]), (8, &[80]), (9, &[])]);
    // 8 is the inode of a new one, and 10 is new.
    let now = list(&[(7, &[71, 72]), (8, &[81]), (9, &[90]), (10, &[100])]);
    assert_eq!(of_these(&failed, now).into_keys().collect::<Vec<_>>(), [7, 9]);
    assert_eq!(of_these(&failed, list(&[(10, &[100])])).len(), 0, "churn");
}

#[test]
fn half_a_list_of_mounts_is_no_list() {
    let ended = |complete| {
        let scope = Scope::Mounts { mount_ns: 1 };
        fact(Observation::Ended { scope, began: BootNs(1), complete })
    };
    for (facts, whole) in [
        (vec![], false),
        (vec![ended(true)], true),
        (vec![ended(true), ended(false)], false),
        (vec![ended(false), ended(true)], false),
    ] {
        assert_eq!(are_all_complete(&facts), whole, "{facts:?}");
    }
}

#[test]
fn half_a_list_of_addresses_is_no_proof() {
    let scope = Scope::Addresses { netns: NetnsRef::inode(1) };
    for (complete, ok) in [(true, true), (false, false)] {
        let ended = Observation::Ended { scope: scope.clone(), began: BootNs(1), complete };
        assert_eq!(note(&[fact(ended)], "the node", &mut BTreeMap::new()).is_ok(), ok);
    }
    assert!(note(&[], "the node", &mut BTreeMap::new()).is_err());
}

#[test]
fn what_is_mounted_elsewhere_or_more_than_once_is_left() {
    let found = |holders: Vec<Holder>, complete: bool| {
        let netns = NetnsRef::inode(7);
        let mut facts: Vec<Fact> =
            holders.into_iter().map(|holder| fact(Observation::Holder { netns, holder })).collect();
        facts.push(fact(Observation::HoldersSearched { netns, complete }));
        facts
    };
    let mount = |pid: u32, path: &str| Holder::Mount {
        mount_ns: 1,
        path: path.to_owned(),
        pid,
        comm: None,
        cgroup: None,
        foreign: pid != 1,
    };
    let fd = || Holder::Fd { pid: 9, fd: 3, comm: "agent".to_owned() };
    let judge = |facts: Vec<Fact>| match is_whole(&facts) {
        true => only_mount(&facts, "/run/netns/a"),
        false => Err("half a search".to_owned()),
    };
    assert_eq!(judge(found(vec![mount(1, "/run/netns/a")], true)), Ok(()));
    for (holders, complete) in [
        (vec![], true),
        (vec![mount(1, "/run/netns/a")], false),
        (vec![mount(1, "/run/netns/b")], true),
        (vec![mount(9, "/run/netns/a")], true),
        (vec![mount(1, "/run/netns/a"); 2], true),
        (vec![mount(1, "/run/netns/a"), fd()], true),
    ] {
        assert!(judge(found(holders.clone(), complete)).is_err(), "{holders:?} {complete}");
    }
}
