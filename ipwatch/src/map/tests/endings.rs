//! Teardowns of netns, as they are reported for traces.

use super::*;
use crate::fact::Cleanup;

fn worker() -> Cleanup {
    Cleanup { pid: 77, state: 'D', wchan: Some("msleep".into()), stack: Vec::new(), message: None }
}

/// Makes a netns with an IP and begins its teardown. Returns when it began.
fn dying(feed: &mut Feed) -> BootNs {
    feed.tell(Observation::Netns { netns: full(7, 70, 3) });
    feed.tell(Observation::Address { netns: NetnsRef::cookie(7), address: address(1) });
    feed.tell(Observation::NetnsDying { netns: NetnsRef::cookie(7) })
}

#[test]
fn a_teardown_is_told_when_it_has_ended_with_what_the_netns_had() {
    let mut feed = Feed::new(ALL);
    let asked = dying(&mut feed);
    assert!(feed.map.take_endings().is_empty());
    let finished = feed.tell(Observation::NetnsGone { netns: NetnsRef::cookie(7) });
    let told = feed.map.take_endings();
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].asked, told[0].finished), (asked, Some(finished)));
    assert_eq!((told[0].netns.cookie, &*told[0].ips), (Some(7), &[ip(1)][..]));
    assert!(!told[0].told && told[0].looks.is_empty());
}

#[test]
fn one_that_hangs_is_told_once_and_keeps_every_look() {
    let mut feed = Feed::new(ALL);
    let asked = dying(&mut feed);
    let look = |feed: &mut Feed, after: u64| {
        let at = asked.plus(after * 1_000 * MS);
        feed.tell_at(at, Origin::Procfs, Observation::Cleanup { worker: Some(worker()) });
    };
    look(&mut feed, 1);
    assert!(feed.map.take_endings().is_empty(), "a second is no hang");
    look(&mut feed, 6);
    let told = feed.map.take_endings();
    assert_eq!((told.len(), told[0].finished, told[0].looks.len()), (1, None, 1));
    look(&mut feed, 16);
    assert!(feed.map.take_endings().is_empty(), "told once");
    feed.at = asked.plus(20_000 * MS);
    feed.tell(Observation::NetnsGone { netns: NetnsRef::cookie(7) });
    let told = feed.map.take_endings();
    assert!(told[0].told && told[0].finished.is_some());
    assert_eq!(told[0].looks.len(), 2);
    assert_eq!(told[0].looks[1].wchan.as_deref(), Some("msleep"));
}

#[test]
fn those_for_which_there_is_no_room_are_counted() {
    let mut feed = Feed::new(ALL);
    let begin = |feed: &mut Feed, n: u32| {
        feed.tell(Observation::Netns { netns: full(n.into(), n, n.cast_signed()) });
        feed.tell(Observation::NetnsDying { netns: NetnsRef::cookie(n.into()) });
    };
    for n in 10_001..=12_051 {
        begin(&mut feed, n);
        feed.tell(Observation::NetnsGone { netns: NetnsRef::cookie(n.into()) });
    }
    assert_eq!((feed.map.take_endings().len(), feed.map.take_untold_endings()), (2_048, 3));
    assert_eq!(feed.map.take_untold_endings(), 0);
    // Nor can an unlimited number of teardowns be tracked at a time.
    (20_001..=22_050).for_each(|n| begin(&mut feed, n));
    assert_eq!(feed.map.take_untold_endings(), 2);
}

/// `unhash_nsid` (net/core/net_namespace.c, 6.12) frees the nsid of an ending netns before it sends RTM_DELNSID: a new
/// netns may have the nsid by then.
#[test]
fn a_netns_that_is_called_dead_by_its_nsid_alone_is_opened_again() {
    let mut feed = Feed::new(ALL);
    let cookie = NetnsRef::cookie(7);
    let adopted = |feed: &mut Feed| {
        feed.tell(Observation::Netns { netns: full(7, 70, 3) });
        let netns = full(7, 70, 3);
        let began = feed.tell(Observation::Began(Scope::Addresses { netns }));
        feed.tell_at(began, Origin::Netlink, Observation::Address { netns, address: address(2) });
        let ended = Observation::Ended { scope: Scope::Addresses { netns }, began, complete: true };
        feed.tell(ended);
    };
    let opened = |feed: &mut Feed, after_ms: u64| {
        let asks = |want: &Request| matches!(want, Request::Adopt { netns, .. } if netns.cookie == Some(7));
        feed.wants(after_ms).iter().any(asks)
    };
    // The previous netns had the nsid too, and its address is still in the map.
    feed.tell(Observation::Address { netns: NetnsRef::nsid(3), address: address(1) });
    adopted(&mut feed);
    assert!(!opened(&mut feed, 1_000));
    feed.tell(Observation::NetnsDying { netns: NetnsRef::nsid(3) });
    let id = feed.map.find(&cookie).unwrap();
    assert!(feed.map.netns(id).unwrap().dying.is_some());
    assert!(opened(&mut feed, 100), "whether it lives");
    adopted(&mut feed);
    let netns = feed.map.netns(id).unwrap();
    assert_eq!((netns.dying, netns.names.nsid), (None, Some(3)));
    assert_eq!(netns.addresses().map(|(key, _)| key.local).collect::<Vec<_>>(), [ip(2)]);

    feed.tell(Observation::NetnsDying { netns: NetnsRef::nsid(3) });
    assert!(opened(&mut feed, 100));
    feed.tell(Observation::NetnsClosed { netns: cookie });
    assert!(feed.map.netns(id).unwrap().dying.is_some(), "nothing opens it");
    assert!(!opened(&mut feed, 60_000), "once");

    // A cookie cannot mean another netns.
    adopted(&mut feed);
    feed.tell(Observation::NetnsDying { netns: cookie });
    assert!(!opened(&mut feed, 60_000));
}

#[test]
fn without_sight_of_the_end_no_teardown_is_told() {
    let mut feed = Feed::new(NONE);
    dying(&mut feed);
    assert!(feed.map.take_endings().is_empty());
}

const INODE: NetnsRef = NetnsRef { inode: Some(70), cookie: None, nsid: None };

fn opens(feed: &mut Feed) -> bool {
    let asks =
        |want: &Request| matches!(want, Request::Adopt { netns, .. } if netns.inode == Some(70));
    feed.wants(100).iter().any(asks)
}

/// The requested adoption: the netns is opened and dumped.
fn is_opened(feed: &mut Feed) {
    let netns = NetnsRef { cookie: Some(7), ..INODE };
    let began = feed.tell(Observation::Began(Scope::Addresses { netns }));
    feed.tell(Observation::Ended { scope: Scope::Addresses { netns }, began, complete: true });
}

/// A walk finds the netns mounted at these paths. Returns whether it is then opened.
fn walk(feed: &mut Feed, paths: &[&str]) -> bool {
    let began = feed.tell(Observation::Netns { netns: INODE });
    for path in paths {
        feed.tell(Observation::Holder { netns: INODE, holder: mounted_at(path) });
    }
    let scope = Scope::Mounts { mount_ns: 1 };
    feed.tell(Observation::Ended { scope, began, complete: true });
    opens(feed)
}

/// A snapshot finds these processes in the netns; the pid is also the tick of the start. Returns whether the netns is
/// then opened.
fn snapshot(feed: &mut Feed, pids: &[u32]) -> bool {
    let began = feed.tell(Observation::Began(Scope::Tasks));
    for pid in pids {
        let mut told = task(*pid, INODE);
        told.key.start = u64::from(*pid);
        feed.tell_from(Origin::Procfs, Observation::Task(told));
    }
    feed.tell(Observation::Ended { scope: Scope::Tasks, began, complete: true });
    opens(feed)
}

/// The kernel reuses the inode of a netns at once (`ns_alloc_inum`): where ends are not observed, a walk finds the
/// inode as before.
#[test]
fn an_inode_whose_mounts_are_all_others_is_opened_again() {
    let mut feed = Feed::new(NONE);
    assert!(walk(&mut feed, &["/run/netns/a"]), "it is new");
    is_opened(&mut feed);
    assert!(!walk(&mut feed, &["/run/netns/a"]));
    assert!(!walk(&mut feed, &["/run/netns/a", "/run/netns/copy"]), "one mount more");
    assert!(walk(&mut feed, &["/run/netns/copy"]), "that one was never opened by");
    is_opened(&mut feed);
    assert!(walk(&mut feed, &["/run/netns/b"]), "another netns, perhaps");
    assert!(!walk(&mut feed, &["/run/netns/b"]), "once");
    is_opened(&mut feed);
    assert!(!walk(&mut feed, &["/run/netns/b"]));
    assert!(!walk(&mut feed, &[]), "there is nothing to open it by");
    assert!(walk(&mut feed, &["/run/netns/c"]), "made anew");
    assert!(!walk(&mut feed, &["/run/netns/c"]));
}

/// In either order: its tasks ended, and it was mounted.
#[test]
fn one_that_tasks_held_is_opened_again_when_it_is_mounted() {
    for tasks_are_read_first in [false, true] {
        let mut feed = Feed::new(NONE);
        assert!(snapshot(&mut feed, &[100]), "it is new");
        is_opened(&mut feed);
        assert!(!snapshot(&mut feed, &[100]));
        if tasks_are_read_first {
            assert!(!snapshot(&mut feed, &[]), "there is nothing to open it by");
        }
        assert!(walk(&mut feed, &["/run/netns/a"]));
        is_opened(&mut feed);
        assert!(!snapshot(&mut feed, &[]));
    }
}

#[test]
fn one_whose_tasks_are_all_others_is_opened_again() {
    let mut feed = Feed::new(NONE);
    assert!(snapshot(&mut feed, &[100]), "it is new");
    is_opened(&mut feed);
    assert!(!snapshot(&mut feed, &[100, 101]), "one more");
    assert!(snapshot(&mut feed, &[115]), "another netns, perhaps");
    assert!(!snapshot(&mut feed, &[116]), "once");
    is_opened(&mut feed);
    assert!(!snapshot(&mut feed, &[116]));
}

#[test]
fn nothing_is_opened_again_where_ends_are_seen() {
    let mut feed = Feed::new(ALL);
    assert!(snapshot(&mut feed, &[100]), "it is new");
    is_opened(&mut feed);
    assert!(!snapshot(&mut feed, &[115]));
    assert!(!walk(&mut feed, &["/run/netns/a"]));
    assert!(!walk(&mut feed, &["/run/netns/b"]));
}
