use super::*;
use crate::fact::{AddressKey, Origin};

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
    let mut facts = vec![ended(Scope::Links { netns }), ended(Scope::Addresses { netns })];
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
    let changes: [Change; 7] = [
        |ends| ends[0].name = "eth0".to_owned(),
        |ends| ends[1].name = "eth0".to_owned(),
        |ends| ends[1].ifindex = 43,
        |ends| ends[0].peer_nsid = Some(2),
        |ends| ends[1].peer = Some(77),
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
