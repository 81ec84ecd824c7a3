//! Rules of the map, one test each. `detail`: sources that report less than others; `order`: events out of order; `incomplete`: events
//! that one netns lost; `census`: more netns than are kept;
//! `model`: random sequences; `visits`: who enters a netns that is empty; `topology`: links and routes; `reach`: who can reach whom.

mod addresses;
mod blocks;
mod calls;
mod census;
mod conflicts;
mod detail;
mod endings;
mod fittings;
mod incomplete;
mod ipam;
mod leaks;
mod looks;
mod missed;
mod model;
mod order;
mod owner;
mod reach;
mod runs;
mod topology;
mod verdict;
mod visits;

use std::net::{IpAddr, Ipv4Addr};

use super::request::Request;
use super::*;
use crate::contract::{HolderKind, Prefix, Selector};
use crate::fact::NetnsPath;
use crate::fact::{
    Address, AddressKey, Attachment, Holder, Life, Link, Look, NetnsRef, PodName, Presence,
    Sandbox, Sender, Task, TaskKey,
};

const MS: u64 = 1_000_000;
const HOST: NetnsRef = NetnsRef { cookie: Some(1), inode: Some(4_026_531_840), nsid: None };

fn ip(last: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, last).into()
}

fn key(last: u8) -> AddressKey {
    AddressKey { ifindex: 2, local: ip(last), prefix_len: 24, peer: None }
}

fn address(last: u8) -> Address {
    Address { key: key(last), scope: Some(0), flags: Some(0x80) }
}

fn task(pid: u32, netns: NetnsRef) -> Task {
    Task {
        key: TaskKey { pid, tid: pid, start: 100 },
        netns,
        comm: format!("t{pid}"),
        parent: None,
        exiting: false,
        killed: false,
        state: None,
        idle: None,
    }
}

const ID: &str = "8f4c1b2a9d7e6f5041322314a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e";
const PATH: &str = "/run/netns/cni-1";

/// A runtime's report of the sandbox [`ID`], whose netns is mounted at [`PATH`].
fn sandbox(pid: Option<u32>) -> Observation {
    Observation::Sandbox(Sandbox {
        runtime: "containerd".into(),
        id: ID.into(),
        pod: Some(PodName { namespace: "shop".into(), name: "web-0".into(), uid: None }),
        attempt: Some(0),
        name: None,
        life: Life::Alive,
        word: "Ready".into(),
        created: None,
        ips: Vec::new(),
        netns_path: Some(PATH.into()),
        pid,
        host_network: false,
    })
}

/// A map with a clock that advances 1 ms with each fact.
struct Feed {
    map: NodeMap,
    at: BootNs,
}

impl Feed {
    fn new(sight: Sight) -> Self {
        Self::with(NodeMap::new(false), sight)
    }

    fn with(map: NodeMap, sight: Sight) -> Self {
        let mut feed = Self { map, at: BootNs(1_000 * MS) };
        feed.tell(Observation::Boot(Boot {
            boot_id: "boot".into(),
            node: "node".into(),
            kernel: "6.12".into(),
            wall_offset: 0,
            host: HOST,
        }));
        feed.tell(Observation::Sight(sight));
        feed
    }

    fn tell(&mut self, what: Observation) -> BootNs {
        self.tell_from(Origin::Probe, what)
    }

    fn tell_from(&mut self, origin: Origin, what: Observation) -> BootNs {
        self.at = self.at.plus(MS);
        self.map.apply(&Fact { at: self.at, origin, what });
        self.at
    }

    fn tell_at(&mut self, at: BootNs, origin: Origin, what: Observation) {
        self.map.apply(&Fact { at, origin, what });
    }

    fn ips(&self) -> Vec<IpAddr> {
        let all = self.map.addresses(&Selector::Ip(None));
        all.into_iter().filter_map(|view| view.ip).collect()
    }

    fn wants(&mut self, after_ms: u64) -> Vec<Request> {
        self.at = self.at.plus(after_ms * MS);
        self.map.agenda(self.at, &Thresholds::default()).wants
    }
}

fn mounted_at(path: &str) -> Holder {
    Holder::Mount {
        mount_ns: 1,
        path: path.into(),
        pid: 1,
        comm: None,
        cgroup: None,
        foreign: false,
    }
}

/// Whether holders are to be searched for.
fn searches(wants: &[Request]) -> bool {
    wants.iter().any(|want| matches!(want, Request::Holders { .. }))
}

const ALL: Sight =
    Sight { teardown_end: true, release: true, addresses: true, calls: true, tasks: true };
const NONE: Sight =
    Sight { teardown_end: false, release: false, addresses: false, calls: false, tasks: false };

fn full(cookie: u64, inode: u32, nsid: i32) -> NetnsRef {
    NetnsRef { cookie: Some(cookie), inode: Some(inode), nsid: Some(nsid) }
}

#[test]
fn names_learned_apart_become_one_netns() {
    let mut feed = Feed::new(NONE);
    feed.tell(Observation::Address { netns: NetnsRef::nsid(3), address: address(1) });
    feed.tell(Observation::Task(task(
        10,
        NetnsRef { cookie: Some(7), inode: Some(70), nsid: None },
    )));
    assert_eq!(feed.map.all_netns().count(), 3);
    feed.tell(Observation::Netns { netns: full(7, 70, 3) });
    assert_eq!(feed.map.all_netns().count(), 2);
    let found = feed.map.addresses(&Selector::Ip(Some(Prefix { ip: ip(1), len: 32 })));
    assert_eq!(found[0].netns.cookie, Some(7));
    assert_eq!(found[0].holders[0].pid, Some(10));
}

#[test]
fn a_reused_inode_is_another_netns() {
    let mut feed = Feed::new(ALL);
    feed.tell(Observation::Netns { netns: full(7, 70, 3) });
    feed.tell(Observation::Address { netns: NetnsRef::cookie(7), address: address(1) });
    // Its end was not observed, but its inode appears with another cookie.
    feed.tell(Observation::Netns {
        netns: NetnsRef { cookie: Some(8), inode: Some(70), nsid: None },
    });
    assert!(feed.ips().is_empty());
    feed.tell(Observation::Task(task(10, NetnsRef::inode(70))));
    let found = feed.map.addresses(&Selector::Netns(Some("70".into())));
    assert_eq!((found.len(), found[0].netns.cookie), (1, Some(8)));
}

#[test]
fn a_reused_nsid_is_another_netns() {
    let mut feed = Feed::new(NONE);
    feed.tell(Observation::Netns { netns: full(7, 70, 3) });
    feed.tell(Observation::Address { netns: NetnsRef::nsid(3), address: address(1) });
    feed.tell(Observation::NetnsDying { netns: NetnsRef::nsid(3) });
    feed.tell(Observation::Address { netns: NetnsRef::nsid(3), address: address(2) });
    assert_eq!(feed.ips(), [ip(2)]);
    feed.tell(Observation::Netns { netns: full(8, 70, 3) });
    let found = feed.map.addresses(&Selector::Ip(None));
    assert_eq!((found.len(), found[0].netns.cookie), (1, Some(8)));
}

#[test]
fn a_link_that_leaves_takes_its_addresses_along() {
    let mut feed = Feed::new(NONE);
    let netns = full(7, 70, 3);
    feed.tell(Observation::Address { netns, address: address(1) });
    feed.tell(Observation::LinkGone { netns, ifindex: 2 });
    assert!(feed.ips().is_empty());
}

#[test]
fn an_exiting_task_holds_until_it_is_released() {
    let mut feed = Feed::new(ALL);
    let netns = full(7, 70, 3);
    feed.tell(Observation::Address { netns, address: address(1) });
    feed.tell(Observation::Task(task(10, netns)));
    feed.tell(Observation::TaskExiting { task: task(10, netns).key });
    let holders = feed.map.addresses(&Selector::Ip(None)).remove(0).holders;
    assert_eq!((holders[0].kind, holders[0].exiting), (HolderKind::Process, Some(true)));
    feed.tell(Observation::TaskReleased { task: task(10, netns).key });
    assert!(feed.map.addresses(&Selector::Ip(None)).remove(0).holders.is_empty());
    // A snapshot that read the task earlier must not revive it.
    let at = BootNs(feed.at.0 - MS);
    feed.tell_at(at, Origin::Snapshot, Observation::Task(task(10, netns)));
    assert_eq!(feed.map.sizes().2, 0);
}

#[test]
fn a_task_that_moves_takes_its_hold_along() {
    let mut feed = Feed::new(ALL);
    feed.tell(Observation::Task(task(10, full(7, 70, 3))));
    feed.tell(Observation::Task(task(10, full(8, 80, 4))));
    let holders = |feed: &Feed, netns: &str| {
        feed.map.addresses(&Selector::Netns(Some(netns.into()))).remove(0).holders.len()
    };
    assert_eq!((holders(&feed, "70"), holders(&feed, "80")), (0, 1));
    feed.tell(Observation::Task(task(10, HOST)));
    assert_eq!((holders(&feed, "80"), feed.map.sizes().2), (0, 0));
}

#[test]
fn a_netns_without_tasks_is_searched_and_else_held_by_the_kernel() {
    let mut feed = Feed::new(ALL);
    let netns = full(7, 70, 3);
    feed.tell(Observation::Netns { netns });
    assert!(!searches(&feed.wants(1)), "too early: the first process is not in yet");
    assert!(searches(&feed.wants(1_000)));
    let kinds = |feed: &Feed| {
        let view = feed.map.addresses(&Selector::Netns(Some("70".into()))).remove(0);
        view.holders.iter().map(|holder| holder.kind).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&feed), [], "nothing is claimed before the search has ended");
    feed.tell(Observation::HoldersSearched { netns, complete: false });
    assert_eq!(kinds(&feed), [], "an incomplete search proves nothing");
    feed.tell(Observation::HoldersSearched { netns, complete: true });
    assert_eq!(kinds(&feed), [], "it may have fallen between the last holder's end and its own");
    feed.tell(Observation::HoldersSearched { netns, complete: true });
    assert_eq!(kinds(&feed), [HolderKind::Kernel]);
    let holder = Holder::Mount {
        mount_ns: 1,
        path: "/run/netns/x".into(),
        pid: 1,
        comm: None,
        cgroup: None,
        foreign: false,
    };
    feed.tell(Observation::Holder { netns, holder });
    assert_eq!(kinds(&feed), [HolderKind::Mount]);
}

#[test]
fn a_candidate_is_told_beside_the_kernels_reference_once_two_searches_found_it() {
    let mut feed = Feed::new(ALL);
    let netns = full(7, 70, 3);
    feed.tell(Observation::Netns { netns });
    let search = |feed: &mut Feed, found: &[(u32, u32)]| {
        // All facts of a search have the time of its beginning.
        feed.at = feed.at.plus(MS);
        for (pid, unread) in found {
            let (fd, comm) = (5, "keeper".to_owned());
            let holder = Holder::Candidate { pid: *pid, fd, comm, unread: *unread };
            feed.tell_at(feed.at, Origin::Procfs, Observation::Holder { netns, holder });
        }
        let ended = Observation::HoldersSearched { netns, complete: true };
        feed.tell_at(feed.at, Origin::Procfs, ended);
    };
    let told = |feed: &Feed| {
        let view = feed.map.addresses(&Selector::Netns(Some("70".into()))).remove(0);
        let told = view.holders.iter().map(|one| (one.kind, one.pid, one.unread_fds));
        told.collect::<Vec<_>>()
    };
    search(&mut feed, &[(17, 1), (18, 1)]);
    assert_eq!(told(&feed), []);
    search(&mut feed, &[(17, 2), (19, 1)]);
    let kernel = (HolderKind::Kernel, None, None);
    let keeper = (HolderKind::Candidate, Some(17), Some(2));
    assert_eq!(told(&feed), [kernel, keeper], "18 has read, 19 may be about to");
    search(&mut feed, &[]);
    assert_eq!(told(&feed), [kernel], "nothing waits any more");
    search(&mut feed, &[(17, 1)]);
    search(&mut feed, &[(17, 1)]);
    let fd = Holder::Fd { pid: 4, fd: 5, comm: "x".into() };
    feed.tell(Observation::Holder { netns, holder: fd });
    assert_eq!(told(&feed), [(HolderKind::Fd, Some(4), None)], "a holder ends all guesses");
}

#[test]
fn a_netns_is_opened_by_what_is_known_to_hold_it() {
    let mut feed = Feed::new(ALL);
    feed.tell(Observation::Task(task(10, full(7, 70, 3))));
    let wants = feed.wants(0);
    let Some(Request::Adopt { doors, .. }) = wants.first() else { panic!("{wants:?}") };
    assert_eq!(doors[0], NetnsPath::Task { pid: 10, tid: 10 });
    let scope = Scope::Addresses { netns: full(7, 70, 3) };
    let began = feed.at;
    feed.tell(Observation::Ended { scope, began, complete: true });
    let adopts = |wants: &[Request]| wants.iter().any(|want| matches!(want, Request::Adopt { .. }));
    assert!(!adopts(&feed.wants(120_000)), "once is enough");
}

#[test]
fn a_netns_is_unopened_until_it_was_read_or_twice_could_not_be() {
    let adopts = |wants: &[Request]| wants.iter().any(|want| matches!(want, Request::Adopt { .. }));
    let netns = full(7, 70, 3);
    let mut feed = Feed::new(ALL);
    feed.tell(Observation::Netns { netns });
    assert!(adopts(&feed.wants(0)));
    assert!(!adopts(&feed.wants(10_000)), "its thread is busy with others");
    feed.tell(Observation::Task(task(10, netns)));
    assert!(!adopts(&feed.wants(10)), "one is under way");
    assert!(feed.map.has_unopened());
    assert!(adopts(&feed.wants(60_000)), "its answer was lost");
    feed.tell(Observation::NetnsClosed { netns });
    assert!(feed.map.has_unopened());
    assert!(adopts(&feed.wants(30)));
    feed.tell(Observation::NetnsClosed { netns });
    assert!(!feed.map.has_unopened(), "unknown, and nothing to wait for");
    assert!(!adopts(&feed.wants(50)));
    feed.tell(Observation::Task(task(11, netns)));
    assert!(adopts(&feed.wants(0)), "by another door");
    let scope = Scope::Addresses { netns };
    feed.tell(Observation::Ended { scope: scope.clone(), began: feed.at, complete: false });
    assert!(feed.map.has_unopened() && adopts(&feed.wants(30)), "not whole");
    feed.tell(Observation::Ended { scope, began: feed.at, complete: true });
    assert!(!feed.map.has_unopened() && !adopts(&feed.wants(100_000)));
}

/// Its nsid belonged to another netns, whose end is reported after the new netns has been read.
#[test]
fn a_netns_that_was_read_too_early_is_read_again() {
    let adopts = |wants: &[Request]| wants.iter().any(|want| matches!(want, Request::Adopt { .. }));
    for provisional in [true, false] {
        let mut feed = Feed::with(NodeMap::new(provisional), NONE);
        feed.tell(Observation::Netns { netns: NetnsRef { cookie: None, ..full(0, 60, 3) } });
        feed.wants(0);
        feed.tell(Observation::Task(task(10, NetnsRef::inode(70))));
        assert!(adopts(&feed.wants(0)));
        let (began, netns) = (feed.at, NetnsRef { cookie: None, ..full(0, 70, 3) });
        feed.tell(Observation::NetnsGone { netns: NetnsRef::nsid(3) });
        feed.tell_at(began, Origin::Netlink, Observation::Netns { netns });
        let scope = Scope::Addresses { netns };
        feed.tell_at(feed.at, Origin::Netlink, Observation::Ended { scope, began, complete: true });
        assert!(adopts(&feed.wants(30)), "what was read was not taken");
    }
}

#[test]
fn a_netns_known_by_its_nsid_alone_asks_for_a_walk() {
    let mut feed = Feed::new(NONE);
    let walks = |feed: &mut Feed, after_ms| {
        feed.wants(after_ms).into_iter().find_map(|want| match want {
            Request::Walk { everywhere } => Some(everywhere),
            _ => None,
        })
    };
    feed.tell(Observation::Netns { netns: NetnsRef::nsid(3) });
    assert_eq!([0, 10, 200].map(|ms| walks(&mut feed, ms)), [Some(false), Some(false), Some(true)]);
    feed.tell(Observation::Netns { netns: full(7, 70, 3) });
    feed.wants(2_000);
    assert_eq!(walks(&mut feed, 10_000), None);
}

#[test]
fn a_killed_task_is_looked_at_after_its_grace_and_again() {
    let mut feed = Feed::new(ALL);
    let netns = full(7, 70, 3);
    let task = task(10, netns);
    let key = task.key;
    feed.tell(Observation::Task(task));
    let by = Sender { pid: 1, comm: "killer".into() };
    feed.tell(Observation::Signalled { pid: 10, tid: 10, signal: 9, group: true, by });
    let looks = |wants: &[Request]| wants.contains(&Request::Look { task: key });
    let look = Look { netns: Some(Presence::In(netns)), state: 'D', ..Look::default() };
    let look = Observation::Look { task: key, look: Box::new(look) };
    assert!(!looks(&feed.wants(2_400)), "within its grace");
    assert!(looks(&feed.wants(200)), "halfway");
    feed.tell(look.clone());
    assert!(!looks(&feed.wants(2_300)), "within its grace");
    assert!(looks(&feed.wants(200)));
    feed.tell(look);
    assert!(looks(&feed.wants(600)), "a second time, to be certain");
}

#[test]
fn a_pod_is_named_by_cgroup_and_cache() {
    let mut feed = Feed::new(ALL);
    let netns = full(7, 70, 3);
    let id = "a".repeat(64);
    feed.tell(Observation::Task(task(10, netns)));
    feed.tell(Observation::Address { netns, address: address(1) });
    let uid = "0a1b2c3d-1111-2222-3333-444455556666";
    let path = format!("/kubepods/besteffort/pod{uid}/{id}");
    feed.tell(Observation::Cgroup { task: task(10, netns).key, path });
    let pod = Some(PodName { namespace: "shop".into(), name: "api-0".into(), uid: None });
    feed.tell(Observation::Attachment(Attachment {
        made: None,
        container_id: id.clone(),
        ifname: "eth0".into(),
        network: "cbr0".into(),
        netns_path: None,
        ips: vec![(ip(1), 24)],
        pod,
    }));
    let view = feed.map.addresses(&Selector::Pod(Some("shop/api-0".into()))).remove(0);
    let pod = view.pod.unwrap();
    assert_eq!((pod.name.as_deref(), pod.uid.as_deref()), (Some("api-0"), Some(uid)));
    assert_eq!(view.container.unwrap().id, Some(id));
}

#[test]
fn tenures_begin_and_end_once() {
    let mut feed = Feed::new(ALL);
    let netns = full(7, 70, 3);
    feed.tell(Observation::Address { netns, address: address(1) });
    feed.tell(Observation::Netns { netns });
    feed.tell(Observation::NetnsGone { netns: NetnsRef::cookie(7) });
    let events = feed.map.take_tenures();
    let [
        TenureEvent::Held { key: held, .. },
        TenureEvent::Released { key: released, ended_by, .. },
    ] = events.as_slice()
    else {
        panic!("{events:?}")
    };
    assert_eq!(held, released);
    assert_eq!(*ended_by, "netns-gone");
}

#[test]
fn a_kill_of_another_process_with_this_pid_is_not_this_ones() {
    let mut feed = Feed::new(ALL);
    let by = |comm: &str| Sender { pid: 1, comm: comm.into() };
    let signalled = |comm: &str| Observation::Signalled {
        pid: 10,
        tid: 10,
        signal: 9,
        group: true,
        by: by(comm),
    };
    feed.tell(signalled("monday"));
    feed.at = BootNs(100_000 * MS);
    let later =
        Task { key: TaskKey { pid: 10, tid: 10, start: 9_000 }, ..task(10, full(7, 70, 3)) };
    let key = later.key;
    feed.tell(Observation::Task(later));
    assert_eq!(feed.map.kill_of(&key), None);
    feed.tell(signalled("wednesday"));
    feed.tell(signalled("thursday"));
    assert_eq!(feed.map.kill_of(&key).map(|kill| kill.by.comm.as_str()), Some("wednesday"));
}

#[test]
fn a_cgroup_is_asked_for_until_it_is_told() {
    let mut feed = Feed::new(ALL);
    let task = task(10, full(7, 70, 3));
    let want = Request::Cgroup { task: task.key };
    let key = task.key;
    feed.tell(Observation::Task(task));
    assert!(feed.wants(0).contains(&want));
    assert!(!feed.wants(10).contains(&want));
    assert!(feed.wants(2_000).contains(&want), "the first answer was lost");
    feed.tell(Observation::Cgroup { task: key, path: "/kubepods/x".into() });
    assert!(!feed.wants(60_000).contains(&want));
}

#[test]
fn an_exiting_task_keeps_the_cgroup_it_had() {
    let mut feed = Feed::new(ALL);
    let task = task(10, full(7, 70, 3));
    let key = task.key;
    feed.tell(Observation::Task(task));
    feed.tell(Observation::Cgroup { task: key, path: "/kubepods/x".into() });
    feed.tell(Observation::TaskExiting { task: key });
    let look = Look {
        netns: Some(Presence::In(full(7, 70, 3))),
        cgroup: Some("/".into()),
        frozen: Some(false),
        ..Look::default()
    };
    feed.tell(Observation::Look { task: key, look: Box::new(look) });
    feed.tell(Observation::Cgroup { task: key, path: "/".into() });
    assert_eq!(feed.map.task(&key).and_then(|task| task.cgroup.as_deref()), Some("/kubepods/x"));
}

#[test]
fn a_snapshot_that_was_not_complete_only_raises_doubt() {
    let mut feed = Feed::new(ALL);
    let task = task(10, full(7, 70, 3));
    let key = task.key;
    feed.tell(Observation::Task(task));
    let began = feed.tell(Observation::Began(Scope::Tasks));
    feed.tell(Observation::Ended { scope: Scope::Tasks, began, complete: false });
    assert_eq!(feed.map.sizes().2, 1);
    assert!(feed.wants(1).contains(&Request::Look { task: key }));
    let look = Look { netns: Some(Presence::Gone), ..Look::default() };
    feed.tell(Observation::Look { task: key, look: Box::new(look) });
    assert_eq!(feed.map.sizes().2, 0);
}

#[test]
fn what_was_exiting_before_the_start_has_been_so_since_it_last_ran() {
    let netns = NetnsRef { cookie: Some(9), inode: Some(90), nsid: None };
    let exiting = |pid| Task { exiting: true, idle: Some(600 * MS), ..task(pid, netns) };
    let mut feed = Feed::new(Sight::default());
    let at = feed.tell_from(Origin::Snapshot, Observation::Task(exiting(1)));
    let since = |feed: &Feed, pid| feed.map.tasks_of(pid).next().unwrap().leaving_since();
    assert_eq!(since(&feed, 1), Some(BootNs(at.0 - 600 * MS)));
    // After the first snapshot, its exit would have been observed.
    let began = feed.tell(Observation::Began(Scope::Tasks));
    feed.tell(Observation::Ended { scope: Scope::Tasks, began, complete: true });
    let at = feed.tell_from(Origin::Snapshot, Observation::Task(exiting(2)));
    assert_eq!(since(&feed, 2), Some(at));
}
