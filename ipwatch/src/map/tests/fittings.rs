//! Links, neighbours and routes of untrusted netns, and of those that a runtime vouches for.

use std::ops::Range;

use super::*;
use crate::fact::{Hop, Neighbour, Route, RouteKey, Scope, Vlans};

const POD: NetnsRef = NetnsRef { cookie: Some(8), inode: Some(80), nsid: Some(4) };
/// Enough for a few netns.
const IN_ALL: usize = 256 * 1024;

fn bounded() -> Feed {
    let mut feed = Feed::new(ALL);
    feed.map.bound_fittings(IN_ALL);
    feed
}

/// The names of the nth netns that no runtime vouches for.
fn strange(n: u32) -> NetnsRef {
    full(100 + u64::from(n), 1_000 + n, 100 + n as i32)
}

fn link(ifindex: u32) -> Link {
    Link { ifindex, name: format!("d{ifindex}"), up: true, ..Link::default() }
}

fn neighbour(k: u32) -> Neighbour {
    let (ip, state) = (Ipv4Addr::from_bits(0x0b00_0000 + k).into(), 0x80);
    Neighbour { ifindex: 2, ip, mac: None, state, claimed: None, admin: true }
}

fn route(k: u32) -> Route {
    let to = Ipv4Addr::from_bits(0x0c00_0000 + k).into();
    let key = RouteKey { to, prefix_len: 32, table: 254, priority: 0 };
    Route { key, hops: vec![Hop { ifindex: 2, gateway: None }] }
}

/// Adds this many entries of each kind.
fn fill(feed: &mut Feed, netns: NetnsRef, count: u32) {
    for k in 0..count {
        feed.tell(Observation::Link { netns, link: link(2 + k) });
        feed.tell(Observation::Neighbour { netns, neighbour: neighbour(k) });
        feed.tell(Observation::Route { netns, route: route(k) });
        feed.tell(Observation::PeerNetns { netns, nsid: k as i32, peer: HOST });
        let vlans = (0..8).map(|id| Vlans {
            first: 2 * id + 1,
            last: 2 * id + 1,
            pvid: false,
            untagged: false,
        });
        feed.tell(Observation::Vlans { netns, ifindex: 2 + k, vlans: vlans.collect() });
    }
}

/// What the map has of a netns.
fn entry(feed: &Feed, netns: NetnsRef) -> &Netns {
    feed.map.netns(feed.map.find(&netns).unwrap()).unwrap()
}

/// Number of links, neighbours and routes that are kept.
fn kept(feed: &Feed, netns: NetnsRef) -> [usize; 3] {
    let entry = entry(feed, netns);
    [entry.links().count(), entry.neighbours().count(), entry.routes().count()]
}

/// A runtime reports the netns as its sandbox's.
fn vouch(feed: &mut Feed) {
    feed.tell(Observation::Netns { netns: POD });
    feed.tell(Observation::Holder { netns: POD, holder: mounted_at(PATH) });
    feed.tell(sandbox(None));
    feed.wants(1);
}

#[test]
fn strangers_share_what_pods_and_the_host_leave() {
    let mut feed = bounded();
    vouch(&mut feed);
    fill(&mut feed, POD, 10);
    for n in 0..20 {
        fill(&mut feed, strange(n), 100);
    }
    fill(&mut feed, HOST, 200);
    assert_eq!(kept(&feed, POD), [10, 10, 10], "nobody takes it from a pod");
    assert_eq!(kept(&feed, HOST), [200, 200, 200], "nor from the host");
    let of: Vec<usize> = (0..20).map(|n| kept(&feed, strange(n)).iter().sum()).collect();
    let all: usize = of.iter().sum();
    assert!(all * 224 < IN_ALL && of.iter().all(|one| *one > 0), "{of:?}");
    // A later pod takes room from them.
    fill(&mut feed, POD, 60);
    assert_eq!(kept(&feed, POD), [60, 60, 60]);
    assert!(feed.map.beyond_bounds() > 1_000, "{}", feed.map.beyond_bounds());
    feed.map.assert_fittings_count();
}

/// Thousands of netns of one user are one tenant's: another user's netns, and root's, which nobody vouches for, keep
/// what they have, although they have more than any of his.
#[test]
fn many_netns_of_one_user_take_nothing_from_others() {
    let mut feed = bounded();
    let (roots, others) = (strange(5_000), strange(5_001));
    for (netns, uid) in [(roots, 0), (others, 1_000)] {
        feed.tell(Observation::NetnsUser { netns, uid, nested: false });
        fill(&mut feed, netns, 40);
    }
    for n in 0..1_000 {
        feed.tell(Observation::NetnsUser { netns: strange(n), uid: 65_534, nested: false });
        fill(&mut feed, strange(n), 3);
    }
    assert_eq!((kept(&feed, roots), kept(&feed, others)), ([40; 3], [40; 3]));
    let said = feed.map.said_of_short().unwrap();
    assert!(said.starts_with("; uid 65534: "), "{said}");
    for kind in [" links, ", " neighbours, ", " routes, ", " not kept, of "] {
        assert!(said.contains(kind), "{said}");
    }
    assert!(!said.contains("uid 1000") && !said.contains("root"), "{said}");
    let unkept = feed.map.unkept_by_kind();
    assert!(unkept.values().sum::<u64>() == feed.map.beyond_bounds(), "{unkept:?}");
    for kind in ["links", "neighbours", "routes", "vlans"] {
        assert!(unkept.contains_key(&NotKept { kind, of: "users" }), "{unkept:?}");
    }
    assert!(unkept.keys().all(|what| what.of == "users"), "{unkept:?}");
    feed.map.assert_fittings_count();
}

/// Whose it is may turn out after it was filled.
#[test]
fn who_is_known_later_is_counted_with_his_own() {
    let mut feed = bounded();
    for n in 0..200 {
        fill(&mut feed, strange(n), 3);
        feed.tell(Observation::NetnsUser { netns: strange(n), uid: 65_534, nested: false });
    }
    fill(&mut feed, strange(5_000), 60);
    assert_eq!(kept(&feed, strange(5_000)), [60; 3], "he has more in all");
    feed.map.assert_fittings_count();
}

#[test]
fn what_was_given_up_is_read_anew_once_there_is_room() {
    let mut feed = bounded();
    for n in 0..4 {
        feed.tell(Observation::Netns { netns: strange(n) });
        fill(&mut feed, strange(n), 100);
    }
    assert!(entry(&feed, strange(3)).beyond_bounds() > 0);
    for n in 0..3 {
        feed.tell(Observation::NetnsGone { netns: strange(n) });
    }
    let read = |want: &Request| matches!(want, Request::Adopt { netns, .. } if netns.cookie == strange(3).cookie);
    let mut asked = false;
    for _ in 0..4 {
        asked |= feed.wants(60_000).iter().any(read);
    }
    assert!(asked, "there is room");
    let netns = strange(3);
    let began = feed.tell(Observation::Began(Scope::Links { netns }));
    fill(&mut feed, netns, 100);
    let scope = Scope::Routes { netns };
    feed.tell_at(began, Origin::Netlink, Observation::Ended { scope, began, complete: true });
    assert_eq!((kept(&feed, netns), entry(&feed, netns).beyond_bounds()), ([100, 100, 100], 0));
    feed.map.assert_fittings_count();
}

/// Near the memory that the daemon may have half is kept, and users give first.
#[test]
fn while_memory_is_short_users_give_half() {
    let mut feed = bounded();
    vouch(&mut feed);
    fill(&mut feed, POD, 60);
    for n in 0..20 {
        feed.tell(Observation::NetnsUser { netns: strange(n), uid: 65_534, nested: true });
        fill(&mut feed, strange(n), 100);
    }
    feed.tell_from(Origin::Daemon, Observation::Memory { short: true });
    feed.map.assert_fittings_count();
    assert_eq!(kept(&feed, POD), [60; 3]);
    assert!(feed.map.said_of_memory().is_some());
    fill(&mut feed, strange(30), 100);
    feed.map.assert_fittings_count();
    feed.tell_from(Origin::Daemon, Observation::Memory { short: false });
    assert_eq!(feed.map.said_of_memory(), None);
    fill(&mut feed, strange(31), 30);
    assert_eq!(kept(&feed, strange(31)), [30; 3], "there is room again");
    feed.map.assert_fittings_count();
}

/// What findings depend on most stays while anybody has what they depend on less.
#[test]
fn no_link_is_dropped_while_others_have_neighbours() {
    let mut feed = bounded();
    for n in 0..40 {
        let netns = strange(n);
        feed.tell(Observation::Link { netns, link: link(2) });
        for k in 0..20 {
            feed.tell(Observation::Neighbour { netns, neighbour: neighbour(k) });
        }
    }
    feed.tell_from(Origin::Daemon, Observation::Memory { short: true });
    feed.map.assert_fittings_count();
    assert!((0..40).all(|n| kept(&feed, strange(n))[0] == 1));
    let most = (0..40).map(|n| kept(&feed, strange(n))[1]).collect::<Vec<_>>();
    assert!(most.iter().all(|kept| (8..=20).contains(kept)), "{most:?}");
}

/// What a user puts into one netns takes no more room than the bound of one, long before the room of all is full.
#[test]
fn links_beyond_the_bound_of_one_netns_are_counted() {
    let mut feed = Feed::new(ALL);
    for k in 0..10_000 {
        feed.tell(Observation::Link { netns: strange(0), link: link(2 + k) });
    }
    let [links, _, _] = kept(&feed, strange(0));
    assert_eq!((links as u64, feed.map.beyond_bounds()), (8_192, 10_000 - 8_192));
    feed.tell(Observation::Link { netns: POD, link: link(2) });
    assert_eq!(kept(&feed, POD), [1, 0, 0], "others have room");
    feed.map.assert_fittings_count();
}

#[test]
fn neighbours_beyond_the_bound_of_one_netns_go_some_at_a_time() {
    let mut feed = Feed::new(ALL);
    for k in 0..5_000 {
        feed.tell(Observation::Neighbour { netns: strange(0), neighbour: neighbour(k) });
    }
    let [_, count, _] = kept(&feed, strange(0));
    assert!((3_800..=4_096).contains(&count), "{count}");
    let newest: IpAddr = Ipv4Addr::from_bits(0x0b00_0000 + 4_999).into();
    assert!(
        entry(&feed, strange(0)).neighbours().any(|known| known.neighbour.ip == newest),
        "the oldest went"
    );
}

/// A process that sleeps.
fn task_in(netns: NetnsRef, pid: u32) -> Task {
    Task { comm: "sleep".to_owned(), ..task(pid, netns) }
}

/// Processes with these pids begin.
fn begin(feed: &mut Feed, netns: NetnsRef, pids: Range<u32>) {
    for pid in pids {
        feed.tell(Observation::Task(task_in(netns, pid)));
    }
}

/// A netns of a user without rights.
fn of_a_user(feed: &mut Feed, n: u32) -> NetnsRef {
    let netns = strange(n);
    feed.tell(Observation::NetnsUser { netns, uid: 65_534, nested: true });
    netns
}

/// Number of tasks that are kept.
fn tasks(feed: &Feed, netns: NetnsRef) -> usize {
    entry(feed, netns).tasks().len()
}

/// Sleeping processes of one user, in one netns or in many, displace none of a pod's, and one of each netns is kept.
#[test]
fn tasks_of_a_user_displace_none_of_others() {
    let mut feed = Feed::new(ALL);
    feed.map.bound_tasks(1_000);
    vouch(&mut feed);
    begin(&mut feed, POD, 100..140);
    for n in 0..4 {
        let (netns, first) = (of_a_user(&mut feed, n), 10_000 + 1_000 * n);
        begin(&mut feed, netns, first..first + 500);
    }
    for n in 100..300 {
        let netns = of_a_user(&mut feed, n);
        begin(&mut feed, netns, 50_000 + n..50_001 + n);
    }
    assert_eq!(tasks(&feed, POD), 40);
    assert!((100..300).all(|n| tasks(&feed, strange(n)) == 1), "one is always kept");
    let theirs: usize = (0..4).map(|n| tasks(&feed, strange(n))).sum();
    assert!((700..=960).contains(&theirs), "{theirs}");
    let left_out = 2_000 - theirs;
    let said = format!("uid 65534: {left_out} tasks not kept, of 4 network namespaces");
    assert_eq!(feed.map.said_of_unkept_tasks(), Some(said));
    let unkept = NotKept { kind: "tasks", of: "users" };
    assert_eq!(feed.map.unkept_by_kind(), [(unkept, left_out as u64)].into());
    // A pod takes what it needs.
    begin(&mut feed, POD, 200..300);
    assert_eq!(tasks(&feed, POD), 140);
    feed.map.assert_tasks_count();
}

/// Whether a netns has a task at all is known of each, however many there are.
#[test]
fn of_each_netns_one_task_is_kept() {
    let mut feed = Feed::new(ALL);
    feed.map.bound_tasks(50);
    for n in 0..100 {
        let netns = of_a_user(&mut feed, n);
        begin(&mut feed, netns, 1_000 + n..1_001 + n);
    }
    assert!((0..100).all(|n| tasks(&feed, strange(n)) == 1));
    assert_eq!(feed.map.said_of_unkept_tasks(), None);
    feed.map.assert_tasks_count();
}

/// The first task of a netns is always kept: whoever moves one after the other away from there has no more of them kept.
#[test]
fn tasks_that_move_together_are_no_more_than_others() {
    let mut feed = Feed::new(ALL);
    feed.map.bound_tasks(10);
    for netns in [strange(0), strange(1)] {
        feed.tell(Observation::NetnsUser { netns, uid: 65_534, nested: true });
    }
    for n in 0..100 {
        for netns in [strange(1), strange(0)] {
            feed.tell(Observation::Task(task_in(netns, 1_000 + n)));
            feed.map.assert_tasks_count();
        }
    }
    assert_eq!((tasks(&feed, strange(0)), tasks(&feed, strange(1))), (10, 0));
    assert!(feed.map.said_of_unkept_tasks().is_some());
}

/// What is killed may hold an IP: it is kept in place of what sleeps, and is dismissed for nothing.
#[test]
fn what_is_killed_is_kept_before_what_sleeps() {
    let mut feed = Feed::new(ALL);
    feed.map.bound_tasks(64);
    let netns = of_a_user(&mut feed, 0);
    begin(&mut feed, netns, 100..200);
    let killed = |pid| Task { killed: true, ..task_in(netns, pid) };
    (0..10).for_each(|n| {
        feed.tell(Observation::Task(killed(500 + n)));
    });
    assert_eq!((tasks(&feed, netns), feed.map.leaving().count()), (64, 10));
    vouch(&mut feed);
    begin(&mut feed, POD, 1_000..1_054);
    assert_eq!((tasks(&feed, POD), feed.map.leaving().count()), (54, 10));
    feed.map.assert_tasks_count();
}

/// A killed task, which may be stuck.
fn killed_in(netns: NetnsRef, pid: u32) -> Task {
    Task { killed: true, ..task_in(netns, pid) }
}

/// Processes with these pids are killed, and hang.
fn hang(feed: &mut Feed, netns: NetnsRef, pids: Range<u32>) {
    for pid in pids {
        feed.tell(Observation::Task(killed_in(netns, pid)));
        feed.map.assert_tasks_count();
    }
}

/// Number of leaving tasks of a netns that are kept.
fn leaving(feed: &Feed, netns: NetnsRef) -> usize {
    let id = feed.map.find(&netns).unwrap();
    feed.map.leaving().filter(|task| task.netns == id).count()
}

/// A user whose largest netns has nothing but processes that hang, and others that sleep: those that sleep give first, and
/// then those that hang, down to one of each netns.
#[test]
fn what_hangs_in_a_pod_is_kept_while_a_user_has_more_than_one_of_each_netns() {
    let mut feed = Feed::new(ALL);
    feed.map.bound_tasks(100);
    vouch(&mut feed);
    let (hung, asleep) = (of_a_user(&mut feed, 0), of_a_user(&mut feed, 1));
    hang(&mut feed, hung, 10_000..10_060);
    begin(&mut feed, asleep, 20_000..20_040);
    hang(&mut feed, POD, 100..120);
    assert_eq!((tasks(&feed, POD), leaving(&feed, POD)), (20, 20));
    assert_eq!((leaving(&feed, hung), tasks(&feed, asleep)), (60, 20), "what sleeps gives first");
    hang(&mut feed, POD, 120..160);
    assert_eq!((tasks(&feed, POD), leaving(&feed, POD)), (60, 60));
    assert_eq!((leaving(&feed, hung), tasks(&feed, asleep)), (39, 1));
    // The room of the others is needed as well, by what sleeps in a pod too: one of each netns stays.
    begin(&mut feed, POD, 200..238);
    assert_eq!((tasks(&feed, POD), leaving(&feed, hung), tasks(&feed, asleep)), (98, 1, 1));
    let said = "uid 65534: 98 tasks not kept, of 2 network namespaces";
    assert_eq!(feed.map.said_of_unkept_tasks().as_deref(), Some(said));
    let unkept = NotKept { kind: "tasks", of: "users" };
    assert_eq!(feed.map.unkept_by_kind(), [(unkept, 98)].into());
    feed.map.assert_tasks_count();
}

/// The user's own tasks that hang are kept as before: they displace his that sleep, and none of each other.
#[test]
fn what_hangs_displaces_nothing_of_its_own_tenant_that_hangs() {
    let mut feed = Feed::new(ALL);
    feed.map.bound_tasks(50);
    let (one, other) = (of_a_user(&mut feed, 0), of_a_user(&mut feed, 1));
    hang(&mut feed, one, 1_000..1_050);
    begin(&mut feed, other, 2_000..2_001);
    // It has one that sleeps, and the one that hangs is worth more.
    hang(&mut feed, other, 3_000..3_010);
    assert_eq!((leaving(&feed, one), tasks(&feed, other), leaving(&feed, other)), (50, 1, 1));
    let said = "uid 65534: 10 tasks not kept, of 1 network namespaces";
    assert_eq!(feed.map.said_of_unkept_tasks().as_deref(), Some(said));
    feed.map.assert_tasks_count();
}

/// Another user, and a pod that has more than its part.
#[test]
fn what_hangs_is_shared_among_those_of_one_rank() {
    let mut feed = Feed::new(ALL);
    feed.map.bound_tasks(60);
    let one = of_a_user(&mut feed, 0);
    hang(&mut feed, one, 1_000..1_060);
    let other = strange(1);
    feed.tell(Observation::NetnsUser { netns: other, uid: 1_000, nested: true });
    hang(&mut feed, other, 2_000..2_060);
    assert_eq!((leaving(&feed, one), leaving(&feed, other)), (31, 30));
    // What sleeps takes nothing of what hangs.
    begin(&mut feed, strange(2), 3_000..3_010);
    assert_eq!((leaving(&feed, one), leaving(&feed, other)), (31, 30));
    assert_eq!(tasks(&feed, strange(2)), 1);
    // Neither of them takes anything of root's.
    let roots = strange(3);
    feed.tell(Observation::NetnsUser { netns: roots, uid: 0, nested: false });
    hang(&mut feed, roots, 4_000..4_060);
    assert_eq!((leaving(&feed, one), leaving(&feed, other), leaving(&feed, roots)), (1, 1, 60));
    hang(&mut feed, one, 5_000..5_010);
    assert_eq!((leaving(&feed, one), leaving(&feed, roots)), (1, 60));
    feed.map.assert_tasks_count();
}

/// When those that are kept have ended, the netns is not empty: the others are looked for.
#[test]
fn a_netns_whose_tasks_are_not_all_kept_is_not_empty() {
    let mut feed = Feed::new(ALL);
    feed.map.bound_tasks(10);
    let netns = of_a_user(&mut feed, 0);
    let all: Vec<Task> = (100..130).map(|pid| task_in(netns, pid)).collect();
    begin(&mut feed, netns, 100..130);
    let idle = |feed: &Feed| entry(feed, netns).idle_since().is_some();
    feed.wants(0);
    for task in &all[..10] {
        feed.tell(Observation::TaskReleased { task: task.key });
    }
    assert_eq!((tasks(&feed, netns), idle(&feed)), (0, false));
    let walk = Request::Walk { everywhere: false };
    assert!(feed.wants(1_001).contains(&walk), "the others are looked for");
    let look = |feed: &mut Feed, tasks: &[Task]| {
        let began = feed.at.plus(MS);
        for task in tasks {
            feed.tell_at(began, Origin::Snapshot, Observation::Task(task.clone()));
        }
        let ended = Observation::Ended { scope: Scope::Tasks, began, complete: true };
        feed.at = began;
        feed.tell_from(Origin::Snapshot, ended);
    };
    look(&mut feed, &all[10..]);
    assert_eq!((tasks(&feed, netns), idle(&feed)), (10, false));
    let said = feed.map.said_of_unkept_tasks().unwrap();
    assert_eq!(said, "uid 65534: 10 tasks not kept, of 1 network namespaces");
    // All have ended.
    look(&mut feed, &[]);
    assert_eq!((tasks(&feed, netns), idle(&feed)), (0, true));
    assert!(feed.map.said_of_unkept_tasks().is_none());
    assert_eq!(feed.map.missed_events().values().sum::<u64>(), 0);
    feed.map.assert_tasks_count();
}
