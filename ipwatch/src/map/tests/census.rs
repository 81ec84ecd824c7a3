//! More netns than are kept.

use super::*;
use crate::fact::{Scope, Unreported};
use std::collections::BTreeMap;

const IN_ALL: usize = 64;
const POD: NetnsRef = NetnsRef { cookie: Some(8), inode: Some(80), nsid: Some(4) };

/// A feed that answers what is asked, and counts how often each netns was read.
struct Node {
    feed: Feed,
    read: BTreeMap<u64, usize>,
    /// Those that cannot be opened.
    shut: std::ops::Range<u64>,
}

/// The names of a user's nth netns.
fn strange(n: u32) -> NetnsRef {
    full(1_000 + u64::from(n), 1_000 + n, 100 + n as i32)
}

fn source(name: SourceName) -> Observation {
    let (name, status) = (name.into(), crate::fact::SourceStatus::Active);
    Observation::Source(Source { name, status, detail: String::new() })
}

impl Node {
    fn new(left_out: usize) -> Self {
        let mut feed = Feed::new(ALL);
        feed.map.bound_netns(IN_ALL, left_out);
        feed.tell_from(Origin::Netlink, source(SourceName::Netlink));
        feed.tell_from(Origin::Procfs, source(SourceName::Procfs));
        let mut node = Self { feed, read: BTreeMap::new(), shut: 0..0 };
        node.answer(HOST);
        node
    }

    /// As an adoption does.
    fn answer(&mut self, netns: NetnsRef) {
        let feed = &mut self.feed;
        feed.tell_from(Origin::Netlink, Observation::Netns { netns });
        let (uid, nested) = if netns.cookie > Some(999) { (65_534, true) } else { (0, false) };
        feed.tell_from(Origin::Netlink, Observation::NetnsUser { netns, uid, nested });
        let scope = Scope::Addresses { netns };
        let began = feed.tell_from(Origin::Netlink, Observation::Began(scope.clone()));
        feed.tell_from(Origin::Netlink, Observation::Ended { scope, began, complete: true });
        *self.read.entry(netns.cookie.unwrap()).or_default() += 1;
    }

    /// Lets so many seconds pass, and reads what is to be read.
    fn settle(&mut self, seconds: u64) {
        for _ in 0..seconds * 10 {
            for want in self.feed.wants(100) {
                let Request::Adopt { netns, .. } = want else { continue };
                if self.shut.contains(&netns.cookie.unwrap()) {
                    let scope = Scope::Addresses { netns };
                    let began = self.feed.at;
                    let ended = Observation::Ended { scope, began, complete: false };
                    self.feed.tell_from(Origin::Netlink, ended);
                } else {
                    self.answer(netns);
                }
            }
            self.feed.map.assert_netns_count();
        }
    }

    /// A user makes these netns.
    fn flood(&mut self, of: std::ops::Range<u32>) {
        for n in of {
            self.feed.tell(Observation::NetnsCreated { netns: strange(n) });
        }
        self.feed.map.assert_netns_count();
    }

    fn kept(&self) -> usize {
        self.feed.map.all_netns().filter(|entry| !entry.host).count()
    }

    fn has(&self, netns: NetnsRef) -> bool {
        self.feed.map.find(&netns).is_some()
    }

    fn walk(&mut self, found: impl Iterator<Item = NetnsRef>) {
        let began = self.feed.tell_from(Origin::Snapshot, Observation::Began(Scope::Netns));
        for netns in found {
            let netns = NetnsRef { nsid: None, ..netns };
            self.feed.tell_at(began, Origin::Snapshot, Observation::Netns { netns });
        }
        let ended = Observation::Ended { scope: Scope::Netns, began, complete: true };
        self.feed.tell_at(began, Origin::Snapshot, ended);
        self.feed.map.assert_netns_count();
    }

    /// Events were lost, so that everything is read again.
    fn lose(&mut self) {
        self.feed.tell(Observation::Lost { count: None, calls: false });
        self.feed.map.reopen_all(self.feed.at);
    }

    fn is_free(&self) -> bool {
        self.feed.map.verdict(ip(1), None).free
    }
}

/// Each is read once, so that it is known whose it is and that nothing connects it with the node; then the newest are
/// given up, and no fact about them makes them anew.
#[test]
fn of_one_users_many_netns_the_newest_are_left_out() {
    let mut node = Node::new(1_000);
    node.answer(POD);
    node.flood(0..200);
    assert_eq!(node.kept(), IN_ALL);
    assert!(!node.is_free(), "nobody has looked into the others");
    let reason = format!("{} network namespaces are not kept: nobody knows", 201 - IN_ALL);
    assert!(node.feed.map.verdict(ip(1), None).reasons.contains(&reason));
    node.settle(20);
    assert_eq!((node.kept(), node.feed.map.left_out()), (IN_ALL, 201 - IN_ALL));
    assert!(node.has(POD) && node.is_free(), "{:?}", node.feed.map.verdict(ip(1), None).reasons);
    assert!((0..200).all(|n| node.read.get(&(1_000 + n)) == Some(&1)), "{:?}", node.read);
    let said = "uid 65534: 137 network namespaces not kept".to_owned();
    assert_eq!(node.feed.map.said_of_unkept_netns(), Some(said));
    let unkept = [(NotKept { kind: "netns", of: "users" }, 137)].into();
    assert_eq!(node.feed.map.unkept_by_kind(), unkept);
    let left = (0..200).find(|n| !node.has(strange(*n))).unwrap();
    for netns in [strange(left), NetnsRef::inode(1_000 + left), NetnsRef::nsid(100 + left as i32)] {
        node.feed.tell(Observation::Address { netns, address: address(1) });
        node.feed.tell(Observation::Task(task(100, netns)));
        node.feed.tell(Observation::Holder {
            netns,
            holder: Holder::Fd { pid: 5, fd: 1, comm: "x".into() },
        });
    }
    node.walk((0..200).map(strange).chain([HOST, POD]));
    node.settle(60);
    assert_eq!((node.kept(), node.feed.map.left_out()), (IN_ALL, 201 - IN_ALL));
    assert!(node.feed.ips().is_empty());
    assert!(node.read.values().all(|count| *count == 1), "{:?}", node.read);
}

/// What root mounts, what a runtime says is a sandbox's, and what belongs to root's user namespace has a place at once.
#[test]
fn what_root_and_runtimes_name_is_taken_in_at_a_users_cost() {
    let mut node = Node::new(1_000);
    node.flood(0..100);
    node.settle(10);
    // One after the other, each new and thus left out at first.
    let by_mount = full(20, 200, 20);
    node.feed.tell(Observation::NetnsCreated { netns: by_mount });
    assert!(!node.has(by_mount));
    let own = Holder::Mount {
        mount_ns: 9,
        path: PATH.into(),
        pid: 7,
        comm: None,
        cgroup: None,
        foreign: true,
    };
    node.feed.tell(Observation::Holder { netns: NetnsRef::inode(200), holder: own });
    assert!(!node.has(by_mount), "anybody can mount it where nobody else sees it");
    node.feed.tell(Observation::Holder { netns: NetnsRef::inode(200), holder: mounted_at(PATH) });
    assert!(node.has(by_mount));
    node.feed.tell(sandbox(Some(77)));
    let by_pid = full(21, 210, 21);
    node.feed.tell(Observation::NetnsCreated { netns: by_pid });
    node.feed.tell(Observation::Task(task(76, by_pid)));
    assert!(!node.has(by_pid));
    node.feed.tell(Observation::Task(task(77, by_pid)));
    assert!(node.has(by_pid));
    assert_eq!(node.feed.map.tasks_of(77).count(), 1);
    let by_user = full(22, 220, 22);
    node.feed.tell(Observation::NetnsCreated { netns: by_user });
    node.feed.tell(Observation::NetnsUser { netns: by_user, uid: 0, nested: false });
    assert!(node.has(by_user));
    node.flood(100..300);
    node.settle(20);
    assert!([by_mount, by_pid, by_user].iter().all(|netns| node.has(*netns)));
    assert_eq!(node.kept(), IN_ALL);
}

/// A runtime tells of a sandbox whose first process was seen before, in a netns that is not kept.
#[test]
fn the_first_process_of_a_sandbox_is_looked_for() {
    let mut node = Node::new(1_000);
    node.flood(0..100);
    let netns = full(21, 210, 21);
    node.feed.tell(Observation::NetnsCreated { netns });
    node.feed.tell(Observation::Task(task(77, netns)));
    node.feed.wants(0);
    node.feed.tell(sandbox(Some(77)));
    assert!(node.feed.wants(0).contains(&Request::Walk { everywhere: false }));
}

#[test]
fn names_leave_with_their_netns() {
    let mut node = Node::new(1_000);
    node.flood(0..100);
    assert_eq!(node.feed.map.left_out(), 36);
    node.feed.tell(Observation::NetnsGone { netns: NetnsRef::cookie(1_099) });
    node.feed.tell(Observation::NetnsDying { netns: NetnsRef::nsid(198) });
    assert_eq!(node.feed.map.left_out(), 35, "a teardown is no end yet");
    node.feed.tell(Observation::NetnsGone { netns: NetnsRef::cookie(1_098) });
    assert_eq!(node.feed.map.left_out(), 34);
    node.feed.tell(Observation::Address { netns: NetnsRef::nsid(198), address: address(1) });
    // An inode that is another netns's by now.
    node.feed.tell(Observation::NetnsCreated { netns: full(5_000, 1_097, 3) });
    assert_eq!(node.feed.map.left_out(), 35, "that netns, and the next with the nsid");
    node.walk((0..70).map(strange).chain([HOST]));
    assert_eq!(node.feed.map.left_out(), 35, "their ends will be told");
    node.lose();
    node.walk((0..70).map(strange).chain([HOST]));
    assert_eq!(node.feed.map.left_out(), 7, "a walk does not find what is known by its nsid alone");
}

#[test]
fn they_are_taken_in_again_when_there_is_room() {
    let mut node = Node::new(1_000);
    node.flood(0..100);
    node.settle(10);
    for n in 0..100 {
        if node.has(strange(n)) && n % 2 == 0 {
            node.feed.tell(Observation::NetnsGone { netns: strange(n) });
        }
    }
    let gone = IN_ALL - node.kept();
    node.settle(10);
    assert_eq!(node.feed.map.left_out(), 36_usize.saturating_sub(gone - 8), "an eighth stays free");
    for n in 0..60 {
        node.feed.tell(Observation::NetnsGone { netns: strange(n) });
    }
    node.settle(10);
    assert_eq!((node.feed.map.left_out(), node.feed.map.said_of_unkept_netns()), (0, None));
}

/// Where even the names are too many, nothing is made of those that are not known, and that there are such is said.
#[test]
fn more_than_can_be_named_are_known_to_be_there() {
    let mut node = Node::new(10);
    node.flood(0..100);
    node.settle(10);
    assert_eq!((node.kept(), node.feed.map.left_out()), (IN_ALL, 10));
    let said = node.feed.map.said_of_unkept_netns().unwrap();
    assert!(said.ends_with("further network namespaces are not even counted"), "{said}");
    assert!(!node.is_free());
    let mounted = full(20, 200, 20);
    node.feed.tell(Observation::Holder { netns: mounted, holder: mounted_at(PATH) });
    assert!(node.has(mounted));
    // The walk finds some that are not remembered, and the next one none.
    node.walk((0..100).map(strange).chain([HOST, mounted]));
    assert!(!node.is_free());
    for n in 70..100 {
        node.feed.tell(Observation::NetnsGone { netns: strange(n) });
    }
    node.walk((0..70).map(strange).chain([HOST, mounted]));
    node.settle(10);
    assert!(node.is_free(), "{:?}", node.feed.map.verdict(ip(1), None).reasons);
}

/// Who connects a netns that was left out has it read again, and then it stays.
#[test]
fn one_that_gets_connected_is_read_again_and_kept() {
    let mut node = Node::new(1_000);
    node.flood(0..100);
    node.settle(10);
    assert!(node.is_free());
    let left = (0..100).map(strange).find(|netns| !node.has(*netns)).unwrap();
    let dummy = Link { ifindex: 2, kind: Some("dummy".into()), ..Link::default() };
    node.feed.tell(Observation::Link { netns: left, link: dummy });
    assert!(node.is_free(), "it leads nowhere");
    let eth0 = Link {
        ifindex: 3,
        name: "eth0".into(),
        kind: Some("veth".into()),
        peer: Some(7),
        peer_nsid: Some(0),
        up: true,
        ..Link::default()
    };
    node.feed.tell(Observation::Link { netns: left, link: eth0.clone() });
    assert!(!node.is_free());
    for _ in 0..100 {
        for want in node.feed.wants(100) {
            let Request::Adopt { netns, .. } = want else { continue };
            if netns.cookie == left.cookie {
                node.feed.tell(Observation::Link { netns, link: eth0.clone() });
                node.feed.tell(Observation::PeerNetns { netns, nsid: 0, peer: HOST });
            }
            node.answer(netns);
        }
    }
    assert!(node.has(left) && node.is_free(), "{:?}", node.feed.map.verdict(ip(1), None).reasons);
    node.flood(100..200);
    node.settle(20);
    assert!(node.has(left), "an IP of the node may be in it");
}

/// What was lost in one that is not kept may be a device.
#[test]
fn one_whose_events_were_lost_is_read_again() {
    let mut node = Node::new(1_000);
    node.flood(0..100);
    node.settle(10);
    let left = (0..100).map(strange).find(|netns| !node.has(*netns)).unwrap();
    let unreported = Unreported { addresses: 3, ..Unreported::default() };
    node.feed.tell(Observation::LostIn { netns: left, unreported });
    assert!(!node.is_free());
    node.settle(10);
    assert!(node.is_free());
    assert_eq!(node.read.get(&left.cookie.unwrap()), Some(&2));
    assert_eq!(node.read.values().sum::<usize>(), 1 + 100 + 1, "that one alone");
    node.feed.tell(Observation::LostInUsers);
    assert!(!node.is_free());
}

#[test]
fn a_task_that_moves_to_one_that_is_not_kept_leaves_where_it_was() {
    let mut node = Node::new(1_000);
    node.feed.tell(Observation::Netns { netns: POD });
    node.feed.tell(Observation::Task(task(100, POD)));
    node.flood(0..100);
    node.feed.tell(Observation::Task(task(100, strange(99))));
    assert_eq!(node.feed.map.tasks_of(100).count(), 0);
    assert!(node.feed.map.all_netns().all(|entry| entry.tasks().len() == 0));
}

/// One with tasks or addresses goes after one without.
#[test]
fn the_useless_ones_are_given_up_first() {
    let mut node = Node::new(1_000);
    node.flood(0..IN_ALL as u32);
    for n in 40..60 {
        node.feed.tell(Observation::Task(task(100 + n, strange(n))));
    }
    node.settle(3);
    for n in 60..64 {
        node.feed.tell(Observation::Address { netns: strange(n), address: address(1) });
    }
    node.flood(64..100);
    node.settle(10);
    assert!((40..64).all(|n| node.has(strange(n))));
    assert!((0..4).all(|n| node.has(strange(n))), "the oldest of the others stay");
    assert!(!node.has(strange(39)));
}

/// Enough for one more, and too few to take in what has been read.
#[test]
fn what_was_not_read_finds_a_place_while_there_is_any() {
    let mut node = Node::new(1_000);
    node.flood(0..100);
    for n in 0..4 {
        node.feed.tell(Observation::NetnsGone { netns: strange(n) });
    }
    node.settle(20);
    assert!(node.is_free(), "{:?}", node.feed.map.verdict(ip(1), None).reasons);
    assert!((4..100).all(|n| node.read.get(&(1_000 + n)) == Some(&1)), "{:?}", node.read);
}

/// To be kept is not to be known: the events of the time before were dropped.
#[test]
fn one_that_was_taken_in_is_unclear_until_it_has_been_read() {
    let mut node = Node::new(1_000);
    node.flood(0..100);
    node.settle(10);
    let left = (0..100).map(strange).find(|netns| !node.has(*netns)).unwrap();
    let unreported = Unreported { addresses: 3, ..Unreported::default() };
    node.feed.tell(Observation::LostIn { netns: left, unreported });
    let mut wants = Vec::new();
    while !node.has(left) {
        wants.extend(node.feed.wants(100));
    }
    wants.extend(node.feed.wants(5_000));
    let reasons = node.feed.map.verdict(ip(1), None).reasons;
    assert_eq!(
        reasons,
        ["1 network namespaces that were not kept have not been read yet: nobody knows"]
    );
    node.answer(left);
    assert!(node.is_free());
    // What root names is taken in at once, and is not known sooner either.
    node.flood(100..101);
    node.feed.tell(Observation::Holder { netns: strange(100), holder: mounted_at(PATH) });
    assert!(node.has(strange(100)) && !node.is_free());
}

/// A cgroup with a container's name, and an IP that some cached result names: both are anybody's to make.
#[test]
fn nobody_keeps_others_from_being_read_by_what_he_can_make_himself() {
    let mut node = Node::new(1_000);
    node.flood(0..IN_ALL as u32);
    node.settle(3);
    for n in 0..IN_ALL as u32 {
        let netns = strange(n);
        node.feed.tell(Observation::Task(task(1_000 + n, netns)));
        let path = format!("/user.slice/libpod-{:064x}.scope", n + 1);
        node.feed.tell(Observation::Cgroup { task: task(1_000 + n, netns).key, path });
        node.feed.tell(Observation::Address { netns, address: address(1) });
    }
    node.settle(3);
    let owned = node.feed.map.all_netns().filter(|entry| entry.owner().is_some()).count();
    assert_eq!(owned, IN_ALL, "by cgroup");
    node.flood(100..110);
    node.settle(20);
    assert!((100..110).all(|n| node.read.contains_key(&(1_000 + n))), "{:?}", node.read);
}

/// Who may connect his netns with others may do so with all of them: the rest must be read all the same.
#[test]
fn where_nothing_yields_the_newest_of_whoever_has_most_make_room_for_what_nobody_has_read() {
    let mut node = Node::new(1_000);
    node.flood(0..IN_ALL as u32);
    node.settle(3);
    for n in 0..IN_ALL as u32 {
        let netns = strange(n);
        let (ifindex, name) = (3, "eth0".to_owned());
        let (kind, peer) = (Some("veth".to_owned()), Some(10 + n));
        let link = Link { ifindex, name, kind, peer, peer_nsid: Some(0), ..Link::default() };
        node.feed.tell(Observation::Link { netns, link });
        node.feed.tell(Observation::PeerNetns { netns, nsid: 0, peer: HOST });
    }
    node.flood(100..140);
    node.settle(60);
    assert!((100..140).all(|n| node.read.get(&(1_000 + n)) == Some(&1)), "{:?}", node.read);
    assert!((0..32).all(|n| node.has(strange(n))), "the oldest stay");
}

/// After a restart beside a user's netns: a leftover of a pod is among those for which there was no room.
#[test]
fn nothing_leaks_as_long_as_netns_of_before_were_not_read() {
    let mut node = Node::new(1_000);
    let (name, status) = ("runtime".into(), crate::fact::SourceStatus::Disabled);
    node.feed.tell(Observation::Source(Source { name, status, detail: String::new() }));
    node.walk((0..200).map(strange).chain([HOST]));
    node.feed.tell(super::leaks::old("many", 1));
    let leaks = |node: &Node| node.feed.map.leaks().count();
    node.feed.wants(400_000);
    node.feed.wants(400_000);
    assert!(node.feed.map.has_unread_from_before());
    assert_eq!(leaks(&node), 0, "its IP may be in one of them");
    node.settle(600);
    assert!(!node.feed.map.has_unread_from_before());
    assert_eq!(leaks(&node), 1);
    // What comes later holds back no leak.
    node.flood(200..300);
    node.feed.tell(super::leaks::old("many", 2));
    node.feed.wants(400_000);
    assert_eq!(leaks(&node), 2);
}

/// Their beginnings were dropped, not missed.
#[test]
fn tasks_of_one_that_is_taken_in_are_no_missed_events() {
    let mut node = Node::new(1_000);
    let snapshot = |node: &mut Node, tasks: std::ops::Range<u32>| {
        let began = node.feed.tell_from(Origin::Snapshot, Observation::Began(Scope::Tasks));
        for n in tasks {
            let task = task(1_000 + n, strange(n));
            node.feed.tell_at(began, Origin::Snapshot, Observation::Task(task));
        }
        let ended = Observation::Ended { scope: Scope::Tasks, began, complete: true };
        node.feed.tell_at(began, Origin::Snapshot, ended);
    };
    snapshot(&mut node, 0..0);
    node.flood(0..100);
    // One is under way while they are taken in, and the next ones find their tasks.
    let under_way = node.feed.tell_from(Origin::Snapshot, Observation::Began(Scope::Tasks));
    node.settle(10);
    let ended = Observation::Ended { scope: Scope::Tasks, began: under_way, complete: true };
    node.feed.tell_at(under_way, Origin::Snapshot, ended);
    snapshot(&mut node, 64..100);
    node.feed.wants(10_000);
    snapshot(&mut node, 64..100);
    node.feed.wants(10_000);
    snapshot(&mut node, 64..100);
    assert!(node.feed.map.missed_events().values().all(|count| *count == 0));
    assert_eq!(node.feed.map.said_of_unkept_tasks(), None, "none is known to be missing");
}

/// Until its devices are removed, which may take as long as another netns's hang, an IP may be in it.
#[test]
fn one_that_was_not_read_is_unclear_until_its_teardown_has_ended() {
    let mut node = Node::new(1_000);
    node.flood(0..65);
    let left = (0..65).map(strange).find(|netns| !node.has(*netns)).unwrap();
    node.feed.tell(Observation::NetnsDying { netns: left });
    node.settle(10);
    node.walk((0..64).map(strange).chain([HOST]));
    assert!(!node.is_free());
    let of_another = NetnsRef { nsid: left.nsid, ..full(20, 200, 20) };
    node.feed.tell(Observation::NetnsCreated { netns: of_another });
    assert!(!node.is_free(), "its nsid is free, and says nothing more of it");
    node.feed.tell(Observation::NetnsGone { netns: NetnsRef { nsid: None, ..left } });
    node.settle(10);
    assert!(node.is_free(), "{:?}", node.feed.map.verdict(ip(1), None).reasons);
    // An end that was lost is noticed by the next walk.
    node.flood(100..200);
    node.feed.tell(Observation::NetnsDying { netns: strange(199) });
    node.settle(20);
    assert!(!node.is_free());
    node.lose();
    node.walk((0..64).chain(100..199).map(strange).chain([HOST, of_another]));
    node.settle(40);
    assert!(node.is_free(), "{:?}", node.feed.map.verdict(ip(1), None).reasons);
}

#[test]
fn a_task_that_moves_to_one_beyond_all_names_leaves_where_it_was() {
    let mut node = Node::new(10);
    node.feed.tell(Observation::Netns { netns: POD });
    node.feed.tell(Observation::Task(task(100, POD)));
    node.flood(0..100);
    node.feed.tell(Observation::Task(task(100, strange(99))));
    assert_eq!(node.feed.map.tasks_of(100).count(), 0);
}

/// Whoever has netns that are not kept makes nobody judge anything again by what happens in them.
#[test]
fn what_is_told_of_one_that_is_not_kept_changes_nothing() {
    let mut node = Node::new(1_000);
    node.flood(0..100);
    node.settle(10);
    let left = (0..100).map(strange).find(|netns| !node.has(*netns)).unwrap();
    let before = node.feed.map.tick();
    node.feed.tell(Observation::Address { netns: left, address: address(1) });
    node.feed.tell(Observation::AddressGone { netns: left, key: address(1).key });
    assert!(!node.feed.map.changed(Kinds::ALL, before));
}

/// A walk reads every process of the node.
#[test]
fn taking_in_asks_for_few_walks() {
    let mut node = Node::new(1_000);
    node.flood(0..400);
    let mut walks = 0;
    for _ in 0..300 {
        for want in node.feed.wants(100) {
            match want {
                Request::Adopt { netns, .. } => node.answer(netns),
                Request::Walk { .. } => walks += 1,
                _ => {}
            }
        }
    }
    assert!((1..=4).contains(&walks), "{walks}");
    assert!((0..400).all(|n| node.read.contains_key(&(1_000 + n))));
    for n in 0..400 {
        if node.has(strange(n)) {
            node.feed.tell(Observation::NetnsGone { netns: strange(n) });
        }
    }
    node.feed.wants(2_100);
    assert!((1..=20).contains(&node.kept()), "those that have been read, a few at a time");
}

/// What was lost may be the device that connects it.
#[test]
fn nothing_is_given_up_for_what_it_was_before_a_loss() {
    let mut node = Node::new(1_000);
    node.flood(0..100);
    node.settle(10);
    let kept = |node: &Node| (0..100).filter(|n| node.has(strange(*n))).collect::<Vec<_>>();
    let before = kept(&node);
    node.lose();
    for _ in 0..100 {
        node.feed.wants(100);
    }
    assert_eq!(kept(&node), before);
    assert!(!node.is_free());
    node.settle(300);
    assert!(node.is_free(), "{:?}", node.feed.map.verdict(ip(1), None).reasons);
}

/// A netns that an fd in flight holds alone cannot be opened before 6.18: whoever fills all places with such keeps nobody
/// from being read.
#[test]
fn what_cannot_be_opened_gives_its_place_to_what_may_be() {
    let mut node = Node::new(1_000);
    node.shut = 1_000..1_064;
    node.flood(0..IN_ALL as u32);
    node.settle(60);
    assert!(node.read.keys().all(|cookie| *cookie < 1_000));
    node.flood(100..140);
    node.settle(120);
    assert!((100..140).all(|n| node.read.contains_key(&(1_000 + n))), "{:?}", node.read);
    assert!(!node.is_free(), "nobody knows what is in the others");
}

/// `cleanup_net` takes netns from the list before it announces that they end.
#[test]
fn one_that_a_walk_does_not_find_is_unclear_until_its_end_is_told() {
    let mut node = Node::new(1_000);
    node.flood(0..65);
    node.walk((0..64).map(strange).chain([HOST]));
    node.feed.tell(Observation::NetnsDying { netns: strange(64) });
    node.settle(10);
    assert!(!node.is_free());
    node.feed.tell(Observation::NetnsGone { netns: strange(64) });
    assert!(node.is_free(), "{:?}", node.feed.map.verdict(ip(1), None).reasons);
}

#[test]
fn one_that_a_walk_has_missed_is_read_once_another_finds_it() {
    let mut node = Node::new(1_000);
    node.flood(0..65);
    node.walk((0..64).map(strange).chain([HOST]));
    node.settle(10);
    assert!(!node.is_free() && !node.read.contains_key(&1_064));
    node.walk((0..65).map(strange).chain([HOST]));
    node.settle(20);
    assert!(node.read.contains_key(&1_064) && node.is_free(), "{:?}", node.read);
}

/// One of which links are not kept is not given up for good, as one is that nothing connects with the node.
#[test]
fn what_is_not_kept_of_one_may_connect_it() {
    let mut node = Node::new(1_000);
    node.feed.map.bound_fittings(0);
    node.flood(0..64);
    node.settle(10);
    let link = Link { ifindex: 2, name: "eth0".to_owned(), ..Link::default() };
    for netns in (0..64).map(strange) {
        node.feed.tell(Observation::Link { netns, link: link.clone() });
    }
    node.settle(10);
    node.flood(64..65);
    node.settle(20);
    assert!(node.read.contains_key(&1_064), "{:?}", node.read);
    assert!((0..64).all(|n| node.has(strange(n))));
}

/// By then the nsid may be another's.
#[test]
fn the_end_of_an_nsid_is_no_end_of_what_has_other_names() {
    let mut node = Node::new(1_000);
    node.flood(0..65);
    node.feed.tell(Observation::NetnsDying { netns: NetnsRef::nsid(164) });
    node.settle(20);
    assert!(node.read.contains_key(&1_064) && node.is_free(), "{:?}", node.read);
}

/// Something that is kept and leads to it has been connected.
#[test]
fn what_comes_within_reach_is_read_again() {
    let mut node = Node::new(1_000);
    node.flood(0..100);
    node.settle(10);
    let kept = (0..100).map(strange).find(|netns| node.has(*netns)).unwrap();
    let left: Vec<_> = (0..100).map(strange).filter(|netns| !node.has(*netns)).collect();
    let pair = |ifindex, peer_nsid| {
        let (name, kind) = (format!("v{ifindex}"), Some("veth".to_owned()));
        let (peer, peer_nsid) = (Some(7), Some(peer_nsid));
        let link = Link { ifindex, name, kind, peer, peer_nsid, ..Link::default() };
        Observation::Link { netns: kept, link }
    };
    node.feed.tell(pair(3, 5));
    assert!(node.is_free(), "its other end may be in any of those, which nothing connects");
    node.feed.tell(pair(4, 0));
    node.feed.tell(Observation::PeerNetns { netns: kept, nsid: 0, peer: HOST });
    assert!(!node.is_free());
    node.settle(60);
    assert!(left.iter().all(|netns| node.read[&netns.cookie.unwrap()] == 2), "{:?}", node.read);
}

#[test]
fn what_is_in_doubt_already_is_no_news() {
    let mut node = Node::new(1_000);
    node.flood(0..100);
    let before = node.feed.map.tick();
    let (kind, peer_nsid) = (Some("veth".to_owned()), Some(5));
    let link = Link { ifindex: 3, kind, peer_nsid, ..Link::default() };
    node.feed.tell(Observation::Link { netns: strange(99), link });
    assert!(!node.feed.map.changed(Kinds::ALL, before));
}

/// It was asked for before the netns was given up, and comes after it was taken in again.
#[test]
fn a_late_answer_is_of_the_time_before() {
    let mut node = Node::new(1_000);
    node.flood(0..65);
    let began = node.feed.at;
    node.feed.wants(1_000);
    let netns = strange(64);
    node.feed.tell(Observation::Holder { netns, holder: mounted_at(PATH) });
    assert!(node.has(netns));
    let ended = Observation::Ended { scope: Scope::Addresses { netns }, began, complete: true };
    node.feed.tell_from(Origin::Netlink, ended);
    let entry = node.feed.map.find(&netns).and_then(|id| node.feed.map.netns(id)).unwrap();
    assert_eq!(entry.opened, None);
}
