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
        let mut node = Self { feed, read: BTreeMap::new() };
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
                if let Request::Adopt { netns, .. } = want {
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
    assert_eq!(node.feed.map.left_out(), 34);
    node.feed.tell(Observation::Address { netns: NetnsRef::nsid(198), address: address(1) });
    // An inode that is another netns's by now.
    node.feed.tell(Observation::NetnsCreated { netns: full(5_000, 1_097, 3) });
    assert_eq!(node.feed.map.left_out(), 35, "that netns, and the next with the nsid");
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
