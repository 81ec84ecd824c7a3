//! What `ipwatch-ipam` asks before a DEL: whether what is stuck in the container's own netns has its address.

use super::*;
use crate::contract::{HeldCall, HeldQuestion, HeldState};
use crate::fact::{Holder, Link, Sight};

const SANDBOX: &str = "8f4c1b2a9d7e6f5041322314a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e";
const PATH: &str = "/run/netns/cni-1";
const PARKED: &str = "ipwatch-parked-0f3c9a12-7-1";

fn link(ifindex: u32, peer: u32, peer_nsid: Option<i32>) -> Link {
    Link {
        ifindex,
        name: format!("dev{ifindex}"),
        kind: Some("veth".into()),
        peer: Some(peer),
        peer_nsid,
        up: true,
        ..Link::default()
    }
}

/// A pod with its IP reserved by host-local.
fn engine() -> Engine {
    engine_of("host-local", "/net/10.0.0.5")
}

/// A pod with its IP reserved by this store, under this key.
fn engine_of(store: &str, key: &str) -> Engine {
    let mut engine = Engine::new(Settings::default(), BootNs(MS));
    let reservation = Reservation {
        store: store.into(),
        network: "net".into(),
        key: key.into(),
        ip: Ipv4Addr::new(10, 0, 0, 5).into(),
        container_id: Some(SANDBOX.into()),
        ifname: Some("eth0".into()),
        pod: None,
        since: None,
    };
    let attachment = crate::fact::Attachment {
        container_id: SANDBOX.into(),
        ifname: "eth0".into(),
        network: "net".into(),
        netns_path: Some(PATH.into()),
        ips: vec![(Ipv4Addr::new(10, 0, 0, 5).into(), 24)],
        made: None,
        pod: None,
    };
    let holder = Holder::Mount {
        mount_ns: 1,
        path: PATH.into(),
        pid: 1,
        comm: None,
        cgroup: None,
        foreign: false,
    };
    let scope = Scope::Reservations { store: store.into() };
    let store = Source { name: store.into(), status: SourceStatus::Active, detail: String::new() };
    let sight =
        Sight { teardown_end: true, release: true, addresses: true, calls: true, tasks: true };
    let mut facts = snapshot();
    facts.extend([
        fact(1, Observation::Sight(sight)),
        fact(1, Observation::Source(store)),
        fact(2, Observation::Link { netns: POD, link: link(2, 20, Some(0)) }),
        fact(2, Observation::Link { netns: HOST, link: link(20, 2, POD.nsid) }),
        fact(2, Observation::Holder { netns: POD, holder }),
        fact(2, Observation::Attachment(attachment)),
        fact(3, Observation::Began(scope.clone())),
        fact(3, Observation::Reservation(reservation)),
        fact(3, ended(scope, 3)),
    ]);
    engine.step(&facts, BootNs(5_000 * MS));
    engine
}

fn del(netns: Option<u64>) -> HeldQuestion {
    HeldQuestion {
        call: HeldCall::Del,
        store: "host-local".into(),
        network: "net".into(),
        container: SANDBOX.into(),
        ifname: Some("eth0".into()),
        netns,
        ..HeldQuestion::default()
    }
}

fn state(engine: &Engine, asked: &HeldQuestion, ms: u64) -> Option<HeldState> {
    engine.held(asked, BootNs(ms * MS)).addresses.first().map(|one| one.state)
}

#[test]
fn a_del_waits_only_for_what_is_proven_to_be_stuck() {
    let mut engine = engine();
    assert_eq!(state(&engine, &del(None), 5_000), Some(HeldState::Free), "it may be leaving");
    engine.step(&[exiting(10_000)], BootNs(10_001 * MS));
    assert_eq!(state(&engine, &del(None), 10_001), Some(HeldState::Free), "just killed");
    let mut at = 40_000;
    while state(&engine, &del(None), at) != Some(HeldState::Held) {
        assert!(at < 300_000, "it fires: {:?}", engine.ledger().findings(true));
        engine.step(&[look(at)], BootNs(at * MS));
        at += 20_000;
    }
    let firing = engine.ledger().findings(false);
    assert!(firing.iter().any(|one| one.status == Status::Firing), "{firing:?}");
    let told = engine.held(&del(None), BootNs(at * MS)).addresses.remove(0);
    assert!(told.who.starts_with("10.0.0.5 is still held by pid 10 (java)"), "{}", told.who);
    assert!(told.who.contains("ipwatch explain "), "{}", told.who);
    assert_eq!(told.for_secs, at / 1000 - 10, "since it began to exit");
    // The interface plugin takes the device away.
    assert_eq!(state(&engine, &del(Some(70)), at), Some(HeldState::Free));
    // It was given another netns, which has nothing of it.
    assert_eq!(state(&engine, &del(Some(71)), at), Some(HeldState::Held));
    // Another container, network, store or interface.
    for other in [
        HeldQuestion { container: "other".into(), ..del(None) },
        HeldQuestion { network: "other".into(), ..del(None) },
        HeldQuestion { store: "whereabouts".into(), ..del(None) },
        HeldQuestion { ifname: Some("net1".into()), ..del(None) },
    ] {
        assert_eq!(state(&engine, &other, at), None, "{other:?}");
    }
    // An ADD that got its IP.
    let ips = vec![Ipv4Addr::new(10, 0, 0, 5).into()];
    let add = HeldQuestion { call: HeldCall::Add, container: "new".into(), ips, ..del(None) };
    assert_eq!(state(&engine, &add, at), Some(HeldState::Held));
    // One that is parked for it.
    let parked = |cookie| {
        let parked = vec![(Ipv4Addr::new(10, 0, 0, 5).into(), cookie)];
        let asked = HeldQuestion { parked, ..HeldQuestion::default() };
        engine.held(&asked, BootNs(at * MS)).parked[0].state
    };
    assert_eq!((parked(7), parked(8)), (HeldState::Held, HeldState::Free));
}

/// An ADD that got the pod's IP, after the pod's reservation was removed.
fn add(ms: u64) -> (HeldQuestion, BootNs) {
    let ips = vec![Ipv4Addr::new(10, 0, 0, 5).into()];
    let asked = HeldQuestion { call: HeldCall::Add, container: "new".into(), ips, ..del(None) };
    (asked, BootNs(ms * MS))
}

fn released(ms: u64) -> Fact {
    fact(
        ms,
        Observation::ReservationGone { store: "host-local".into(), key: "/net/10.0.0.5".into() },
    )
}

/// `cleanup_net` hangs: a netns that waits for its teardown still has its device and its IP.
#[test]
fn a_netns_whose_teardown_hangs_still_has_its_ip() {
    let mut engine = engine();
    engine.step(&[released(6_000)], BootNs(6_000 * MS));
    engine.step(&[fact(9_000, Observation::NetnsDying { netns: POD })], BootNs(9_000 * MS));
    let held = |engine: &Engine, ms| {
        let (mut asked, now) = add(ms);
        asked.parked = vec![(asked.ips[0], 7)];
        let mut told = engine.held(&asked, now);
        (told.addresses.remove(0), told.parked.remove(0).state)
    };
    let (own, parked) = held(&engine, 9_500);
    assert_eq!(
        (own.state, parked),
        (HeldState::Leaving, HeldState::Held),
        "it may be over at once"
    );
    let (own, parked) = held(&engine, 20_000);
    assert_eq!((own.state, parked), (HeldState::Held, HeldState::Held));
    assert!(own.who.contains("by the network namespace, whose teardown hangs"), "{}", own.who);
    engine.step(&[fact(21_000, Observation::NetnsGone { netns: POD })], BootNs(21_000 * MS));
    let (own, parked) = held(&engine, 21_000);
    assert_eq!((own.state, parked), (HeldState::Free, HeldState::Free));
}

/// A virtual function, which host-device moved into the pod, has no peer and no parent.
#[test]
fn a_device_of_the_machine_reaches_the_network() {
    let state = |kind: Option<&str>, loopback| {
        let mut engine = engine();
        let moved = Link {
            kind: kind.map(Into::into),
            peer: None,
            peer_nsid: None,
            loopback,
            ..link(2, 0, None)
        };
        let gone = Observation::LinkGone { netns: HOST, ifindex: 20 };
        let moved = Observation::Link { netns: POD, link: moved };
        let facts = [fact(6_000, gone), fact(6_000, moved), released(6_001)];
        engine.step(&facts, BootNs(6_001 * MS));
        let (asked, now) = add(60_000);
        engine.held(&asked, now).addresses[0].state
    };
    assert_eq!(state(None, false), HeldState::Held);
    // A process with NET_ADMIN in its own netns can make these, and they lead nowhere.
    assert_eq!(state(Some("tun"), false), HeldState::Free);
    assert_eq!(state(None, true), HeldState::Free);
}

/// The pod's IP is moved from its device to another one of this kind, which leads nowhere by itself.
fn moved_to(kind: Option<&str>, ms: u64) -> Vec<Fact> {
    let local = Ipv4Addr::new(10, 0, 0, 5).into();
    let was = AddressKey { ifindex: 2, local, prefix_len: 24, peer: None };
    let key = AddressKey { ifindex: 5, prefix_len: 32, ..was };
    let device = Link {
        kind: kind.map(Into::into),
        loopback: kind.is_none(),
        peer: None,
        ..link(5, 0, None)
    };
    let port = Link { master: (kind == Some("bridge")).then_some(5), ..link(2, 20, Some(0)) };
    vec![
        fact(ms, Observation::Link { netns: POD, link: device }),
        fact(ms, Observation::Link { netns: POD, link: port }),
        fact(
            ms,
            Observation::Address {
                netns: POD,
                address: Address { key, scope: Some(0), flags: Some(0) },
            },
        ),
        fact(ms + 1, Observation::AddressGone { netns: POD, key: was }),
    ]
}

/// Linux answers ARP for every local address of the netns (`arp_process`, net/ipv4/arp.c, with `arp_ignore` = 0): an IP on
/// `lo`, on a dummy or on a bridge is still up for the others as long as one device leads to them.
#[test]
fn an_ip_on_any_device_is_held_while_one_of_the_netns_leads_to_the_node() {
    for kind in [None, Some("dummy"), Some("bridge"), Some("vlan")] {
        let mut engine = engine();
        let mut facts = moved_to(kind, 6_000);
        facts.push(released(6_100));
        engine.step(&facts, BootNs(6_101 * MS));
        let held = |engine: &Engine, ms| {
            let (mut asked, now) = add(ms);
            asked.parked = vec![(asked.ips[0], 7)];
            let mut told = engine.held(&asked, now);
            (told.addresses.remove(0).state, told.parked.remove(0).state)
        };
        let both = (HeldState::Held, HeldState::Held);
        assert_eq!(held(&engine, 20_000), both, "{kind:?}");
        let ip = Ipv4Addr::new(10, 0, 0, 5).into();
        let verdict = engine.map().verdict(ip, None);
        assert!(!verdict.free && verdict.reasons[0].contains("has it on dev5"), "{verdict:?}");
        // Its device is gone: nothing leads there any more, and on the bridge it is as before.
        let gone = |netns, ifindex| fact(21_000, Observation::LinkGone { netns, ifindex });
        engine.step(&[gone(POD, 2), gone(HOST, 20)], BootNs(21_001 * MS));
        let parked = match kind {
            Some("bridge" | "vlan") => HeldState::Held,
            _ => HeldState::Free,
        };
        assert_eq!(held(&engine, 30_000), (HeldState::Free, parked), "{kind:?}");
    }
}

/// What is put on the node's own `lo`, dummies (`kube-ipvs0`) and bridges is for others to judge, and so is a netns that was
/// given nothing.
#[test]
fn service_ips_of_the_node_are_held_by_nobody() {
    for (netns, kind) in [(HOST, None), (HOST, Some("dummy")), (HOST, Some("bridge"))] {
        let mut engine = engine();
        let mut facts = moved_to(kind, 6_000);
        for fact in &mut facts {
            match &mut fact.what {
                Observation::Link { netns: of, .. } | Observation::Address { netns: of, .. } => {
                    *of = netns;
                }
                _ => {}
            }
        }
        facts.retain(|fact| match &fact.what {
            Observation::Link { link, .. } => link.ifindex == 5,
            _ => true,
        });
        facts.push(released(6_100));
        engine.step(&facts, BootNs(6_101 * MS));
        let (asked, now) = add(20_000);
        assert_eq!(engine.held(&asked, now).addresses[0].state, HeldState::Free, "{kind:?}");
    }
}

/// A DEL as well: what is stuck keeps the netns, and its IP on a bridge or a dummy with it.
#[test]
fn a_del_waits_for_an_ip_that_was_moved_to_another_device() {
    for kind in [Some("bridge"), Some("dummy")] {
        let mut engine = engine();
        engine.step(&moved_to(kind, 6_000), BootNs(6_002 * MS));
        engine.step(&[exiting(10_000)], BootNs(10_001 * MS));
        let mut at = 40_000;
        while state(&engine, &del(None), at) != Some(HeldState::Held) {
            assert!(at < 300_000, "it fires: {:?}", engine.ledger().findings(true));
            engine.step(&[look(at)], BootNs(at * MS));
            at += 20_000;
        }
    }
}

/// Whereabouts names its pools otherwise than CNI its networks, and only its DELs are put off.
#[test]
fn a_del_of_whereabouts_waits_as_well() {
    let mut engine = engine_of("whereabouts", "ippools/kube-system/10.0.0.0-24/5");
    let asked =
        HeldQuestion { store: "whereabouts".into(), network: "storage".into(), ..del(None) };
    engine.step(&[exiting(10_000)], BootNs(10_001 * MS));
    let mut at = 40_000;
    while state(&engine, &asked, at) != Some(HeldState::Held) {
        assert!(at < 300_000, "it fires: {:?}", engine.ledger().findings(true));
        engine.step(&[look(at)], BootNs(at * MS));
        at += 20_000;
    }
    // Whereabouts before 0.9 frees the IP of eth0 in the DEL of another interface.
    let other = HeldQuestion { ifname: Some("net1".into()), ..asked };
    assert_eq!(state(&engine, &other, at), Some(HeldState::Held));
}

/// After a restart a netns may be known without its cookie: it may be the one that an address is parked for.
#[test]
fn a_netns_without_a_cookie_may_be_any() {
    let parked = |engine: &Engine| {
        let parked = vec![(Ipv4Addr::new(10, 0, 0, 5).into(), 8)];
        engine.held(&HeldQuestion { parked, ..HeldQuestion::default() }, BootNs(9_000 * MS)).parked
            [0]
        .state
    };
    let mut engine = engine();
    assert_eq!(parked(&engine), HeldState::Free);
    let unknown = NetnsRef { cookie: None, inode: Some(90), nsid: None };
    let key = AddressKey {
        ifindex: 2,
        local: Ipv4Addr::new(10, 0, 0, 5).into(),
        prefix_len: 24,
        peer: None,
    };
    let address = Address { key, scope: Some(0), flags: Some(0) };
    engine.step(
        &[
            fact(6_000, Observation::Netns { netns: unknown }),
            fact(6_000, Observation::Address { netns: unknown, address }),
            fact(6_001, ended(Scope::Addresses { netns: unknown }, 6_000)),
        ],
        BootNs(6_001 * MS),
    );
    assert_eq!(parked(&engine), HeldState::Unknown);
}

/// `gateMax` counts from what the ledger has, not from what a second process or a new daemon finds.
#[test]
fn a_clock_that_was_set_back_puts_no_del_off() {
    let mut engine = engine();
    engine.step(&[exiting(10_000)], BootNs(10_001 * MS));
    let mut at = 40_000;
    while state(&engine, &del(None), at) != Some(HeldState::Held) {
        assert!(at < 300_000, "it fires");
        engine.step(&[look(at)], BootNs(at * MS));
        at += 20_000;
    }
    // Its date is an hour from now.
    let set = Observation::ClockSet { wall_offset: -3_600_000_000_000 };
    engine.step(&[fact(at, set)], BootNs(at * MS));
    assert_eq!(state(&engine, &del(None), at), Some(HeldState::Free));
    // Five seconds ahead of what it was: the ledger's date is what counts.
    let set = Observation::ClockSet { wall_offset: 5_000_000_000 };
    engine.step(&[fact(at, set)], BootNs(at * MS));
    let told = engine.held(&del(None), BootNs(at * MS)).addresses.remove(0);
    assert_eq!((told.state, told.for_secs), (HeldState::Held, at / 1000 - 10 + 5));
}

/// Two netns have one address: of a pod whose reservation was removed, and of the next one, whose reservation was removed as
/// well. What is parked names the first one's cookie.
#[test]
fn what_is_parked_stays_while_another_netns_that_was_given_it_has_it() {
    const NEXT: NetnsRef = NetnsRef { cookie: Some(9), inode: Some(90), nsid: Some(4) };
    const OTHER: &str = "7a4c1b2a9d7e6f5041322314a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e";
    let path = "/run/netns/cni-2";
    let local = Ipv4Addr::new(10, 0, 0, 5).into();
    let reserved = |ms, id: &str| {
        let reservation = Reservation {
            store: "host-local".into(),
            network: "net".into(),
            key: "/net/10.0.0.5".into(),
            ip: local,
            container_id: Some(id.into()),
            ifname: Some("eth0".into()),
            pod: None,
            since: None,
        };
        fact(ms, Observation::Reservation(reservation))
    };
    let key = AddressKey { ifindex: 2, local, prefix_len: 24, peer: None };
    let attachment = crate::fact::Attachment {
        container_id: OTHER.into(),
        ifname: "eth0".into(),
        network: "net".into(),
        netns_path: Some(path.into()),
        ips: vec![(local, 24)],
        made: None,
        pod: None,
    };
    let holder = Holder::Mount {
        mount_ns: 1,
        path: path.into(),
        pid: 1,
        comm: None,
        cgroup: None,
        foreign: false,
    };
    let mut engine = engine();
    let next = [
        released(6_000),
        fact(6_100, Observation::Netns { netns: NEXT }),
        fact(6_100, Observation::Link { netns: NEXT, link: link(2, 30, Some(0)) }),
        fact(6_100, Observation::Link { netns: HOST, link: link(30, 2, NEXT.nsid) }),
        fact(6_100, Observation::Holder { netns: NEXT, holder }),
        reserved(6_200, OTHER),
        fact(6_300, Observation::Attachment(attachment)),
        fact(
            6_300,
            Observation::Address {
                netns: NEXT,
                address: Address { key, scope: Some(0), flags: Some(0) },
            },
        ),
        fact(6_400, ended(Scope::Addresses { netns: NEXT }, 6_100)),
    ];
    engine.step(&next, BootNs(6_500 * MS));
    let parked = |engine: &Engine, ms| {
        let (mut asked, now) = add(ms);
        asked.parked = vec![(local, 7)];
        let told = engine.held(&asked, now).parked.remove(0);
        (told.state, told.proof)
    };
    assert_eq!(parked(&engine, 6_500), (HeldState::Held, "cookie".into()));
    engine.step(&[released(7_000), reserved(7_100, PARKED)], BootNs(7_200 * MS));
    let gone = |ms, netns| fact(ms, Observation::NetnsGone { netns });
    engine.step(&[gone(20_000, POD)], BootNs(20_001 * MS));
    assert_eq!(parked(&engine, 20_001), (HeldState::Held, "released".into()));
    engine.step(&[gone(30_000, NEXT)], BootNs(30_001 * MS));
    assert_eq!(parked(&engine, 30_001).0, HeldState::Free);
}

/// A cleaner of leaks removed the parked reservation, and a pod was given the address after its holder had let go of it.
#[test]
fn what_is_parked_in_the_plugins_file_alone_is_free() {
    let mut engine = engine();
    engine.step(&[], BootNs(6_000 * MS));
    let (mut asked, now) = add(9_000);
    asked.parked = vec![(asked.ips[0], 8)];
    assert_eq!(engine.held(&asked, now).parked[0].state, HeldState::Free);
}
