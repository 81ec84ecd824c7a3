//! The owner of a netns, while its sandbox is still being made in another.

use super::*;
use crate::fact::{CniCall, CniCommand};

const INIT: u32 = 10;
/// The netns of a runtime that does not run in the host's.
const RUNTIMES: NetnsRef = NetnsRef { cookie: Some(7), inode: Some(70), nsid: Some(3) };
const PODS: NetnsRef = NetnsRef { cookie: Some(8), inode: Some(80), nsid: Some(4) };

/// The runtime's own process, and the first process of a sandbox that is being made.
fn being_made(feed: &mut Feed, cgroup: &str) {
    feed.tell(Observation::Task(task(5, RUNTIMES)));
    feed.tell(Observation::Task(task(INIT, RUNTIMES)));
    feed.tell(Observation::Cgroup { task: task(INIT, RUNTIMES).key, path: cgroup.into() });
    feed.wants(1);
}

/// The runtime's report when the sandbox is made.
fn told(feed: &mut Feed) {
    feed.tell(Observation::Task(task(INIT, PODS)));
    feed.tell(sandbox(Some(INIT)));
    feed.wants(1);
}

fn owner(feed: &Feed, netns: &NetnsRef) -> Option<String> {
    let id = feed.map.find(netns).unwrap();
    feed.map.netns(id).unwrap().owner().map(|owner| owner.sandbox.clone())
}

fn added(netns_path: &str) -> Observation {
    Observation::CniBegan(CniCall {
        task: TaskKey { pid: 500, tid: 500, start: 1 },
        parent: 1,
        plugin: "/opt/cni/bin/ptp".into(),
        command: CniCommand::Add,
        container_id: Some(ID.into()),
        netns_path: Some(netns_path.into()),
        ifname: Some("eth0".into()),
        pod: None,
    })
}

#[test]
fn a_guess_ends_when_the_sandbox_is_surely_anothers() {
    let mut feed = Feed::new(ALL);
    being_made(&mut feed, &format!("/system.slice/{ID}"));
    assert_eq!(owner(&feed, &RUNTIMES).as_deref(), Some(ID), "nothing says otherwise yet");
    feed.tell(Observation::Holder { netns: PODS, holder: mounted_at(PATH) });
    told(&mut feed);
    assert_eq!(owner(&feed, &PODS).as_deref(), Some(ID));
    assert_eq!(owner(&feed, &RUNTIMES), None);
    // Later facts about the netns do not bring the owner back.
    feed.tell(Observation::Holder { netns: RUNTIMES, holder: mounted_at("/run/netns/far") });
    feed.wants(1);
    assert_eq!(owner(&feed, &RUNTIMES), None);
    assert_eq!(feed.map.sandbox_of(feed.map.find(&RUNTIMES).unwrap()).1, None);
}

#[test]
fn one_that_is_mounted_elsewhere_is_not_guessed() {
    for (path, guessed) in [(PATH, false), ("/proc/10/ns/net", true)] {
        let mut feed = Feed::new(ALL);
        feed.tell(Observation::Holder { netns: RUNTIMES, holder: mounted_at("/run/netns/far") });
        feed.tell(added(path));
        being_made(&mut feed, &format!("/system.slice/{ID}"));
        assert_eq!(owner(&feed, &RUNTIMES).is_some(), guessed, "{path}");
    }
}

/// A mount in a mount namespace whose paths are chosen by the root user of a container.
fn mounted_elsewhere_at(path: &str) -> Holder {
    let Holder::Mount { path, pid, comm, cgroup, .. } = mounted_at(path) else { unreachable!() };
    Holder::Mount { mount_ns: 5, path, pid, comm, cgroup, foreign: true }
}

#[test]
fn a_mount_in_a_containers_mount_namespace_makes_no_owner() {
    for (holder, owned) in [(mounted_elsewhere_at(PATH), false), (mounted_at(PATH), true)] {
        let mut feed = Feed::new(ALL);
        feed.tell(Observation::Task(task(5, RUNTIMES)));
        feed.tell(Observation::Holder { netns: RUNTIMES, holder });
        feed.tell(sandbox(Some(INIT)));
        feed.tell(added(PATH));
        feed.wants(1);
        assert_eq!(owner(&feed, &RUNTIMES).is_some(), owned);
        // It holds the netns all the same.
        let id = feed.map.find(&RUNTIMES).unwrap();
        assert_eq!(feed.map.netns(id).unwrap().holders().count(), 1);
    }
}

#[test]
fn nor_does_it_take_one_away() {
    let mut feed = Feed::new(ALL);
    feed.tell(Observation::Holder { netns: PODS, holder: mounted_elsewhere_at("/run/netns/far") });
    told(&mut feed);
    assert_eq!(owner(&feed, &PODS).as_deref(), Some(ID), "its first process is in it");
}

#[test]
fn whoever_has_the_pid_may_have_been_on_his_way() {
    let mut feed = Feed::new(ALL);
    feed.tell(Observation::Task(task(INIT, RUNTIMES)));
    feed.tell(sandbox(Some(INIT)));
    feed.wants(1);
    assert_eq!(owner(&feed, &RUNTIMES).as_deref(), Some(ID), "its first process is in it");
    feed.tell(Observation::Holder { netns: PODS, holder: mounted_at(PATH) });
    feed.wants(1);
    for _ in 0..2 {
        assert_eq!(owner(&feed, &PODS).as_deref(), Some(ID));
        assert_eq!(owner(&feed, &RUNTIMES), None);
        feed.tell(Observation::Task(task(INIT, PODS)));
        feed.tell(sandbox(Some(INIT)));
        feed.wants(1);
    }
}

/// The next pod is given the IP of one that hangs, and only that IP is known of its netns yet.
#[test]
fn who_has_a_netns_of_its_own_is_not_guessed_by_its_ip_elsewhere() {
    let mut feed = Feed::new(ALL);
    feed.tell(Observation::Holder { netns: PODS, holder: mounted_at(PATH) });
    feed.tell(Observation::Task(task(INIT, PODS)));
    feed.tell(sandbox(Some(INIT)));
    feed.tell(Observation::Address { netns: PODS, address: address(5) });
    feed.tell(Observation::Attachment(Attachment {
        container_id: ID.into(),
        ifname: "eth0".into(),
        network: "net".into(),
        netns_path: Some(PATH.into()),
        ips: vec![(ip(5), 24)],
        made: None,
        pod: Some(PodName { namespace: "shop".into(), name: "ptp-0".into(), uid: None }),
    }));
    feed.wants(1);
    assert_eq!(owner(&feed, &PODS).as_deref(), Some(ID));
    let next = full(9, 90, 5);
    feed.tell(Observation::Address { netns: next, address: address(5) });
    feed.wants(2);
    assert_eq!(owner(&feed, &next), None);
    let id = feed.map.find(&next).unwrap();
    assert_eq!(feed.map.sandbox_of(id), (None, None));
}

/// A pod may have many addresses: a later one does not name the others again.
#[test]
fn each_tenure_is_named_once_and_all_of_them_when_the_owner_is_known() {
    let address = |last: u8| {
        let local = format!("10.0.0.{last}").parse().unwrap();
        let key = AddressKey { ifindex: 2, local, prefix_len: 24, peer: None };
        Observation::Address {
            netns: PODS,
            address: Address { key, scope: Some(0), flags: Some(0x80) },
        }
    };
    let named = |feed: &mut Feed| {
        let events = feed.map.take_tenures();
        let keys = events.into_iter().filter_map(|event| match event {
            TenureEvent::Named { key, who } if who.pod.is_some() => Some(key.to_string()),
            _ => None,
        });
        keys.collect::<Vec<_>>()
    };
    let mut feed = Feed::new(ALL);
    feed.tell(Observation::NetnsCreated { netns: PODS });
    feed.tell(address(1));
    feed.tell(address(2));
    assert_eq!(named(&mut feed), [""; 0], "nobody knows whose it is");
    told(&mut feed);
    assert_eq!(named(&mut feed), ["cookie:8/2/10.0.0.1/24", "cookie:8/2/10.0.0.2/24"]);
    feed.tell(address(3));
    assert_eq!(named(&mut feed), ["cookie:8/2/10.0.0.3/24"]);
}

/// Whoever adds thousands of addresses to a netns makes naming it no more work.
#[test]
fn naming_a_netns_by_its_ips_is_no_more_work_if_it_has_thousands() {
    let mut feed = Feed::new(ALL);
    let netns = full(7, 70, 3);
    let local = |n: u32| std::net::Ipv4Addr::from_bits(0x0b00_0000 + n).into();
    for n in 0..3_000 {
        let key = AddressKey { ifindex: 2, local: local(n), prefix_len: 32, peer: None };
        let address = Address { key, scope: Some(0), flags: Some(0x80) };
        feed.tell(Observation::Address { netns, address });
    }
    let cached = |id: String, ip| Attachment {
        container_id: id,
        ifname: "eth0".into(),
        network: "cbr0".into(),
        netns_path: None,
        ips: vec![(ip, 24)],
        made: None,
        pod: None,
    };
    for n in 0..100 {
        feed.tell(Observation::Attachment(cached(format!("c{n:03}"), ip(n))));
    }
    feed.tell(Observation::Attachment(cached("his".into(), local(2_999))));
    feed.wants(1);
    let id = feed.map.find(&netns).unwrap();
    crate::map::kernel::asked::ADDRESSES.set(0);
    let (container, _) = feed.map.sandbox_of(id);
    assert_eq!(container.and_then(|known| known.id).as_deref(), Some("his"));
    let asked = crate::map::kernel::asked::ADDRESSES.get();
    assert!(asked <= 101, "{asked} addresses were looked at for 101 results");
}
