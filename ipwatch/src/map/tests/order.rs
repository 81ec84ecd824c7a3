//! Facts that arrive late, twice or out of order: events, netlink's echoes of them, and dumps.

use super::*;

#[test]
fn late_word_of_a_dead_netns_does_not_revive_it() {
    let mut feed = Feed::new(ALL);
    let began = feed.tell(Observation::Netns { netns: full(7, 70, 3) });
    feed.tell(Observation::NetnsGone { netns: NetnsRef::cookie(7) });
    let address = Observation::Address { netns: full(7, 70, 3), address: address(1) };
    feed.tell_at(began, Origin::Netlink, address);
    assert!(feed.ips().is_empty());
    assert_eq!(feed.map.all_netns().count(), 1);
}

/// A walk carries the time at which it began, and may have found the previous owner of the inode and the nsid.
#[test]
fn late_word_of_who_had_a_name_before_does_not_take_it_away() {
    let mut feed = Feed::new(ALL);
    let began = feed.tell(Observation::Netns { netns: HOST });
    let born = feed.tell(Observation::NetnsCreated { netns: full(8, 70, 3) });
    feed.tell(Observation::Address { netns: NetnsRef::cookie(8), address: address(1) });
    feed.tell_at(began, Origin::Snapshot, Observation::Netns { netns: full(7, 70, 3) });
    feed.tell_at(began, Origin::Snapshot, Observation::Netns { netns: full(6, 71, 3) });
    assert_eq!(feed.ips(), [ip(1)]);
    assert!(feed.map.find(&NetnsRef::cookie(7)).is_none(), "it is dead");
    feed.tell_at(born.plus(1), Origin::Snapshot, Observation::Netns { netns: full(9, 70, 3) });
    assert!(feed.ips().is_empty(), "the kernel gives a name out again when its owner is gone");
}

/// Netlink's message about the previous owner of the nsid is read, and gets its time, after the nsid was reused.
#[test]
fn a_late_end_by_nsid_hides_nobody_for_good() {
    let mut feed = Feed::new(NONE);
    feed.tell(Observation::Netns { netns: full(8, 70, 3) });
    feed.tell_from(Origin::Netlink, Observation::NetnsDying { netns: NetnsRef::nsid(3) });
    feed.tell(Observation::Netns { netns: NetnsRef::nsid(3) });
    feed.tell(Observation::Address { netns: NetnsRef::nsid(3), address: address(1) });
    feed.tell_from(
        Origin::Snapshot,
        Observation::Netns { netns: NetnsRef { nsid: None, ..full(8, 70, 3) } },
    );
    feed.tell(Observation::Netns { netns: full(8, 70, 3) });
    let id = feed.map.find(&NetnsRef::cookie(8)).unwrap();
    assert_eq!(feed.map.find(&NetnsRef::nsid(3)), Some(id));
    assert_eq!(feed.ips(), [ip(1)]);
}

#[test]
fn a_dying_netns_keeps_its_addresses_until_the_end_where_that_is_seen() {
    let mut feed = Feed::new(ALL);
    feed.tell(Observation::Netns { netns: full(7, 70, 3) });
    feed.tell(Observation::Address { netns: NetnsRef::cookie(7), address: address(1) });
    feed.tell(Observation::NetnsDying { netns: NetnsRef::nsid(3) });
    let view = feed.map.addresses(&Selector::Ip(None));
    assert_eq!(view[0].netns.state.as_deref(), Some("dying"));
    // The nsid is free at once and soon belongs to another netns.
    feed.tell(Observation::Address { netns: NetnsRef::nsid(3), address: address(2) });
    assert_eq!(feed.ips(), [ip(1), ip(2)]);
    feed.tell(Observation::NetnsGone { netns: NetnsRef::cookie(7) });
    assert_eq!(feed.ips(), [ip(2)]);
}

#[test]
fn a_dump_neither_revives_nor_overwrites() {
    let mut feed = Feed::new(NONE);
    let netns = full(7, 70, 3);
    feed.tell(Observation::Address { netns, address: address(1) });
    let began = feed.tell(Observation::Netns { netns });
    feed.tell(Observation::AddressGone { netns, key: key(1) });
    feed.tell(Observation::Address { netns, address: address(3) });
    // The dump read 1 before its removal, and 2, but not yet 3.
    let dump = |what| Fact { at: began, origin: Origin::Netlink, what };
    let scope = Scope::Addresses { netns };
    feed.map.apply(&dump(Observation::Began(scope.clone())));
    feed.map.apply(&dump(Observation::Address { netns, address: address(1) }));
    feed.map.apply(&dump(Observation::Address { netns, address: address(2) }));
    feed.map.apply(&dump(Observation::Ended { scope, began, complete: true }));
    assert_eq!(feed.ips(), [ip(2), ip(3)]);
}

/// Both have the same time: which came first is unknown, and a deletion is reported only once.
#[test]
fn what_goes_at_the_moment_that_a_dump_begins_is_not_revived() {
    let mut feed = Feed::new(NONE);
    let netns = full(7, 70, 3);
    feed.tell(Observation::Address { netns, address: address(1) });
    let began = feed.tell(Observation::AddressGone { netns, key: key(1) });
    let scope = Scope::Addresses { netns };
    for what in [
        Observation::Began(scope.clone()),
        Observation::Address { netns, address: address(1) },
        Observation::Ended { scope, began, complete: true },
    ] {
        feed.tell_at(began, Origin::Netlink, what);
    }
    assert!(feed.ips().is_empty());
}

#[test]
fn only_a_complete_dump_sweeps() {
    for complete in [false, true] {
        let mut feed = Feed::new(NONE);
        let netns = full(7, 70, 3);
        feed.tell(Observation::Address { netns, address: address(1) });
        let scope = Scope::Addresses { netns };
        let began = feed.tell(Observation::Began(scope.clone()));
        feed.tell(Observation::Ended { scope, began, complete });
        assert_eq!(feed.ips().is_empty(), complete);
    }
}

#[test]
fn netlink_does_not_undo_what_probes_told_in_order() {
    let mut feed = Feed::new(ALL);
    let netns = full(7, 70, 3);
    let scope = Scope::Addresses { netns };
    let began = feed.tell(Observation::Netns { netns });
    feed.tell(Observation::Ended { scope, began, complete: true });
    feed.tell(Observation::Address { netns, address: address(1) });
    feed.tell(Observation::AddressGone { netns, key: key(1) });
    feed.tell_from(Origin::Netlink, Observation::Address { netns, address: address(1) });
    assert!(feed.ips().is_empty());
    feed.tell(Observation::Address { netns, address: address(1) });
    feed.tell_from(Origin::Netlink, Observation::AddressGone { netns, key: key(1) });
    assert_eq!(feed.ips(), [ip(1)]);
}

/// A pod's netns that was dumped before the probes report it.
fn dumped(feed: &mut Feed) -> NetnsRef {
    let netns = full(7, 70, 3);
    feed.tell(Observation::Netns { netns });
    dump(feed, netns, &[]);
    netns
}

/// One dump of addresses, as an adoption reports it: all with the time at which it began.
fn dump(feed: &mut Feed, netns: NetnsRef, found: &[u8]) {
    let scope = Scope::Addresses { netns };
    let began = feed.tell_from(Origin::Netlink, Observation::Began(scope.clone()));
    for last in found {
        let what = Observation::Address { netns, address: address(*last) };
        feed.tell_at(began, Origin::Netlink, what);
    }
    feed.tell_at(began, Origin::Netlink, Observation::Ended { scope, began, complete: true });
}

#[test]
fn a_late_echo_of_an_addition_does_not_hold_off_its_deletion() {
    let mut feed = Feed::new(ALL);
    let netns = dumped(&mut feed);
    let up = feed.tell(Observation::Address { netns, address: address(1) });
    feed.tell_at(
        up.plus(9 * MS),
        Origin::Netlink,
        Observation::Address { netns, address: address(1) },
    );
    feed.tell_at(up.plus(MS), Origin::Probe, Observation::AddressGone { netns, key: key(1) });
    assert!(feed.ips().is_empty());
}

#[test]
fn a_late_echo_of_a_deletion_does_not_bury_what_came_after() {
    let mut feed = Feed::new(ALL);
    let netns = dumped(&mut feed);
    feed.tell(Observation::Address { netns, address: address(1) });
    let down = feed.tell(Observation::AddressGone { netns, key: key(1) });
    let echo = Observation::AddressGone { netns, key: key(1) };
    feed.tell_at(down.plus(9 * MS), Origin::Netlink, echo);
    let up = Observation::Address { netns, address: address(1) };
    feed.tell_at(down.plus(MS), Origin::Probe, up);
    assert_eq!(feed.ips(), [ip(1)]);
}

#[test]
fn the_hosts_addresses_follow_the_same_rules() {
    let mut feed = Feed::new(ALL);
    dump(&mut feed, HOST, &[]);
    feed.tell(Observation::Address { netns: HOST, address: address(1) });
    feed.tell(Observation::AddressGone { netns: HOST, key: key(1) });
    feed.tell_from(Origin::Netlink, Observation::Address { netns: HOST, address: address(1) });
    assert!(feed.ips().is_empty());
}

#[test]
fn a_dump_after_a_loss_brings_back_what_was_lost() {
    let mut feed = Feed::new(ALL);
    let netns = dumped(&mut feed);
    feed.tell(Observation::Lost { count: None, calls: true });
    dump(&mut feed, netns, &[4]);
    assert_eq!(feed.ips(), [ip(4)]);
}

#[test]
fn a_walk_that_began_before_a_loss_does_not_make_up_for_it() {
    let mut feed = Feed::new(ALL);
    let netns = full(7, 70, 3);
    feed.tell(Observation::Address { netns, address: address(1) });
    let early = feed.tell_from(Origin::Snapshot, Observation::Began(Scope::Netns));
    feed.tell(Observation::NetnsDying { netns });
    feed.tell(Observation::Lost { count: Some(1), calls: true });
    let ended = |began| Observation::Ended { scope: Scope::Netns, began, complete: true };
    feed.tell_at(early, Origin::Snapshot, ended(early));
    assert_eq!(feed.ips(), [ip(1)], "dying, and its end may still be told");
    let late = feed.tell_from(Origin::Snapshot, Observation::Began(Scope::Netns));
    feed.tell_at(late, Origin::Snapshot, ended(late));
    assert!(feed.ips().is_empty());
}

#[test]
fn an_end_told_by_other_names_than_are_known_is_an_end() {
    let mut feed = Feed::new(ALL);
    feed.tell(Observation::Holder {
        netns: NetnsRef::inode(70),
        holder: Holder::Mount {
            mount_ns: 1,
            path: "/run/netns/x".into(),
            pid: 1,
            comm: None,
            cgroup: None,
            foreign: false,
        },
    });
    let netns = NetnsRef { cookie: Some(7), inode: Some(70), nsid: None };
    feed.tell(Observation::NetnsGone { netns });
    assert_eq!(feed.map.all_netns().count(), 1, "the host's alone");
}

#[test]
fn a_netns_known_by_its_nsid_alone_ends_with_it() {
    let mut feed = Feed::new(ALL);
    feed.tell_from(
        Origin::Netlink,
        Observation::Address { netns: NetnsRef::nsid(3), address: address(1) },
    );
    feed.tell_from(Origin::Netlink, Observation::NetnsDying { netns: NetnsRef::nsid(3) });
    assert!(feed.ips().is_empty());
}

#[test]
fn the_end_of_a_former_owner_does_not_end_the_next_one() {
    let mut feed = Feed::with(NodeMap::new(true), ALL);
    let first = full(7, 70, 3);
    feed.tell(Observation::Address { netns: first, address: address(1) });
    let died = feed.tell(Observation::NetnsDying { netns: first });
    // Netlink is faster than the ring: the next netns with this inode is reported before the end of the first.
    let next = full(8, 70, 3);
    feed.tell_from(Origin::Netlink, Observation::Netns { netns: next });
    feed.tell_from(Origin::Netlink, Observation::Address { netns: next, address: address(2) });
    feed.tell_at(died, Origin::Probe, Observation::NetnsGone { netns: first });
    assert_eq!(feed.ips(), [ip(2)]);
}

#[test]
fn a_runtime_that_says_its_name_is_not_waited_for_under_the_former_one() {
    let mut map = NodeMap::new(false);
    let mut tell = |at, what| map.apply(&Fact { at: BootNs(at), origin: Origin::Runtime, what });
    let source = |name: &str, status| {
        Observation::Source(Source { name: name.into(), status, detail: String::new() })
    };
    let scope = || Scope::Runtime { runtime: "containerd".into() };
    tell(1, source("runtime (/a.sock)", SourceStatus::Down));
    tell(2, Observation::SourceGone { name: "runtime (/a.sock)".into() });
    tell(3, Observation::Began(scope()));
    tell(4, Observation::Ended { scope: scope(), began: BootNs(3), complete: true });
    tell(5, source("containerd", SourceStatus::Active));
    assert!(map.runtimes_answer());
    assert_eq!(map.sources().len(), 1);
}

fn adoptions(feed: &mut Feed, after_ms: u64) -> usize {
    feed.wants(after_ms).iter().filter(|want| matches!(want, Request::Adopt { .. })).count()
}

#[test]
fn what_netlink_says_and_no_probe_told_has_the_netns_read_anew() {
    let mut feed = Feed::new(ALL);
    let netns = dumped(&mut feed);
    adoptions(&mut feed, 1);
    feed.tell_from(Origin::Netlink, Observation::Address { netns, address: address(1) });
    assert_eq!(adoptions(&mut feed, 400), 0, "the probe's word may be on its way");
    assert_eq!(adoptions(&mut feed, 200), 1);

    let mut feed = Feed::new(ALL);
    let netns = dumped(&mut feed);
    adoptions(&mut feed, 1);
    feed.tell(Observation::Address { netns, address: address(1) });
    assert_eq!(adoptions(&mut feed, 2_000), 0);
    feed.tell_from(Origin::Netlink, Observation::AddressGone { netns, key: key(1) });
    assert_eq!(adoptions(&mut feed, 600), 1, "its end was missed");

    let mut feed = Feed::new(ALL);
    dump(&mut feed, HOST, &[]);
    feed.tell_from(Origin::Netlink, Observation::AddressGone { netns: HOST, key: key(1) });
    assert!(!feed.wants(600).contains(&Request::Host), "nobody knows that one");
    feed.tell_from(Origin::Netlink, Observation::Address { netns: HOST, address: address(1) });
    assert!(feed.wants(600).contains(&Request::Host));
}

#[test]
fn what_netlink_repeats_raises_no_doubt_whoever_is_first() {
    let mut feed = Feed::new(ALL);
    let netns = dumped(&mut feed);
    adoptions(&mut feed, 1);
    let there = Observation::Address { netns, address: address(1) };
    let gone = Observation::AddressGone { netns, key: key(1) };
    for _ in 0..3 {
        feed.tell_from(Origin::Netlink, there.clone());
        feed.tell(there.clone());
        feed.tell_from(Origin::Netlink, gone.clone());
        feed.tell(gone.clone());
        feed.tell(there.clone());
        feed.tell_from(Origin::Netlink, there.clone());
        feed.tell(gone.clone());
        feed.tell_from(Origin::Netlink, gone.clone());
    }
    feed.tell(there.clone());
    feed.tell_from(Origin::Netlink, there);
    assert_eq!(adoptions(&mut feed, 5_000), 0);
}

/// Without probes the end of a netns may go unreported, if its nsid was removed before it was known to belong to it.
/// Its inode is reused by another netns, which netlink reports by the nsid and the list of mounts by the inode.
#[test]
fn a_netns_with_the_inode_of_one_whose_end_was_not_told_is_read() {
    let mut feed = Feed::new(NONE);
    let (old, new) = (full(7, 70, 3), full(8, 70, 4));
    let began = feed.tell_from(Origin::Netlink, Observation::Netns { netns: old });
    let scope = Scope::Addresses { netns: old };
    feed.tell_from(Origin::Netlink, Observation::Ended { scope, began, complete: true });
    feed.tell_from(
        Origin::Netlink,
        Observation::Address { netns: NetnsRef::nsid(4), address: address(1) },
    );
    let mut opened = 0;
    for _ in 0..50 {
        for want in feed.wants(100) {
            match want {
                Request::Walk { .. } => {
                    feed.tell(Observation::Netns { netns: NetnsRef::inode(70) });
                }
                Request::Adopt { netns, .. } if netns == old => {
                    opened += 1;
                    feed.tell(Observation::NetnsClosed { netns });
                }
                _ => {}
            }
        }
    }
    assert!(opened > 0, "the door of the other one is never opened");
    feed.tell_from(Origin::Netlink, Observation::Netns { netns: new });
    let found = feed.map.addresses(&Selector::Netns(Some("70".into())));
    assert_eq!((found.len(), found[0].netns.cookie, found[0].ip), (1, Some(8), Some(ip(1))));
    assert_eq!(feed.map.find(&old), None);
}

/// Creating netns that cannot be opened makes the others be opened again once each, not for as long as they exist.
#[test]
fn netns_that_cannot_be_opened_have_the_others_opened_seldom() {
    let mut feed = Feed::new(NONE);
    let known = full(7, 70, 3);
    let began = feed.tell_from(Origin::Netlink, Observation::Netns { netns: known });
    let scope = Scope::Addresses { netns: known };
    feed.tell_from(
        Origin::Netlink,
        Observation::Ended { scope: scope.clone(), began, complete: true },
    );
    let mut opened = 0;
    for second in 0..600_u64 {
        // A new one every 20 s.
        if second % 20 == 0 {
            let netns = NetnsRef::nsid(100 + second as i32);
            feed.tell_from(Origin::Netlink, Observation::Address { netns, address: address(1) });
        }
        for want in feed.wants(1_000) {
            if let Request::Adopt { netns, .. } = want
                && netns == known
            {
                opened += 1;
                let (began, scope) = (feed.at, scope.clone());
                feed.tell_from(
                    Origin::Netlink,
                    Observation::Ended { scope, began, complete: true },
                );
            }
        }
    }
    assert!((1..=10).contains(&opened), "{opened} times in ten minutes");
}

/// Thousands of netns of a user's are opened a few at a time: a pod that a runtime tells of waits behind no more than
/// these, and so does root's container.
#[test]
fn nobody_waits_behind_all_netns_of_one_user() {
    let mut feed = Feed::new(ALL);
    let opened = |wants: &[Request]| -> Vec<u64> {
        let all = wants.iter().filter_map(|want| match want {
            Request::Adopt { netns, .. } => netns.cookie,
            _ => None,
        });
        all.collect()
    };
    for n in 0..1_000 {
        feed.tell(Observation::Netns { netns: full(1_000 + n, 1_000 + n as u32, n as i32 + 100) });
    }
    assert_eq!(opened(&feed.wants(10)).len(), 4);
    let (roots, pod) = (full(7, 70, 3), full(8, 80, 4));
    feed.tell(Observation::Netns { netns: roots });
    feed.tell(Observation::NetnsUser { netns: roots, uid: 0, nested: false });
    feed.tell(Observation::Netns { netns: pod });
    assert_eq!(opened(&feed.wants(10)), [7], "the pod is a stranger as yet");
    feed.tell(Observation::Holder { netns: pod, holder: mounted_at(PATH) });
    feed.tell(sandbox(None));
    let opens = [feed.wants(1), feed.wants(1)].concat();
    assert_eq!(opened(&opens), [8]);
    // Who is answered makes room for the newest and the oldest of those that wait.
    for cookie in [1_000, 1_001] {
        feed.tell(Observation::NetnsClosed {
            netns: full(cookie, cookie as u32, cookie as i32 - 900),
        });
    }
    assert_eq!(opened(&feed.wants(1)), [1_999, 1_004]);
}

/// After a loss everything is read again. A new netns, which may be a pod's, waits for one of a user's full ones, not for
/// all of them.
#[test]
fn a_new_netns_waits_for_one_that_a_user_has_filled() {
    let mut feed = Feed::new(ALL);
    let full_ones: Vec<NetnsRef> =
        (0..24).map(|n| full(1_000 + n, 1_000 + n as u32, n as i32 + 100)).collect();
    let answer = |feed: &mut Feed, netns: NetnsRef| {
        let scope = Scope::Addresses { netns };
        let began = feed.tell(Observation::Began(scope.clone()));
        feed.tell_at(began, Origin::Netlink, Observation::Ended { scope, began, complete: true });
    };
    for netns in &full_ones {
        feed.tell(Observation::NetnsUser { netns: *netns, uid: 65_534, nested: true });
        answer(&mut feed, *netns);
    }
    feed.map.reopen_all(feed.at);
    let asked = |feed: &mut Feed| -> Vec<NetnsRef> {
        let wants = feed.wants(1).into_iter();
        let asked = wants.filter_map(|want| match want {
            Request::Adopt { netns, .. } => Some(netns),
            _ => None,
        });
        asked.collect()
    };
    let mut under_way = asked(&mut feed);
    assert_eq!(under_way.len(), 1);
    let new = full(7, 70, 3);
    feed.tell(Observation::Netns { netns: new });
    assert_eq!(asked(&mut feed), [new], "at once");
    assert_eq!(asked(&mut feed), []);
    let mut read = 0;
    while let Some(netns) = under_way.pop() {
        answer(&mut feed, netns);
        under_way = asked(&mut feed);
        assert!(under_way.len() <= 1, "one after the other");
        read += 1;
    }
    assert_eq!(read, 24);
}
