//! A netns whose events were not all reported is read again, it alone, and counts as incomplete until then.

use super::*;
use crate::fact::Unreported;

const FLOODED: NetnsRef = NetnsRef { cookie: Some(7), inode: Some(70), nsid: Some(3) };
const OTHER: NetnsRef = NetnsRef { cookie: Some(8), inode: Some(80), nsid: Some(4) };

/// Two pods' netns and the host's, all read.
fn feed() -> Feed {
    let mut feed = Feed::new(ALL);
    feed.tell_from(Origin::Netlink, Observation::Source(source(SourceName::Netlink)));
    feed.tell_from(Origin::Procfs, Observation::Source(source(SourceName::Procfs)));
    for netns in [HOST, FLOODED, OTHER] {
        feed.tell(Observation::Netns { netns });
        dump(&mut feed, netns, &[]);
    }
    feed.wants(1_000);
    feed
}

fn source(name: SourceName) -> Source {
    Source { name: name.into(), status: SourceStatus::Active, detail: String::new() }
}

/// A dump of addresses that begins now.
fn dump(feed: &mut Feed, netns: NetnsRef, found: &[u8]) {
    let began = begin(feed, netns);
    end(feed, netns, began, found);
}

fn begin(feed: &mut Feed, netns: NetnsRef) -> BootNs {
    feed.tell_from(Origin::Netlink, Observation::Began(Scope::Addresses { netns }))
}

fn end(feed: &mut Feed, netns: NetnsRef, began: BootNs, found: &[u8]) {
    for last in found {
        let what = Observation::Address { netns, address: address(*last) };
        feed.tell_at(began, Origin::Netlink, what);
    }
    let scope = Scope::Addresses { netns };
    feed.tell_at(feed.at, Origin::Netlink, Observation::Ended { scope, began, complete: true });
}

fn held_back(netns: NetnsRef, addresses: u64) -> Observation {
    Observation::LostIn { netns, unreported: Unreported { addresses, ..Unreported::default() } }
}

fn overrun(netns: NetnsRef) -> Observation {
    Observation::LostIn { netns, unreported: Unreported { overrun: 1, ..Unreported::default() } }
}

/// The netns that are to be read now.
fn readings(feed: &mut Feed, after_ms: u64) -> Vec<NetnsRef> {
    let netns = |want| match want {
        Request::Adopt { netns, .. } => Some(netns),
        Request::Host => Some(HOST),
        _ => None,
    };
    feed.wants(after_ms).into_iter().filter_map(netns).collect()
}

fn is_incomplete(feed: &Feed, netns: NetnsRef) -> bool {
    let id = feed.map.find(&netns).unwrap();
    feed.map.netns(id).unwrap().is_incomplete()
}

#[test]
fn it_alone_is_read_again_and_that_it_was_not_is_said() {
    for lost in [held_back(FLOODED, 9), overrun(FLOODED)] {
        let mut feed = feed();
        assert!(feed.map.verdict(ip(1), None).free, "{:?}", feed.map.verdict(ip(1), None).reasons);
        feed.tell(lost);
        let verdict = feed.map.verdict(ip(1), None);
        let why = "net:[70] is being read again, because events of it were lost: nobody knows";
        assert_eq!((verdict.free, verdict.reasons), (false, vec![why.to_owned()]));
        assert!(!feed.map.knows_all_addresses());
        assert_eq!(readings(&mut feed, 0), [FLOODED]);
        dump(&mut feed, FLOODED, &[2]);
        assert!(!is_incomplete(&feed, FLOODED) && feed.map.knows_all_addresses());
        assert!(feed.map.verdict(ip(1), None).free);
        assert_eq!(feed.ips(), [ip(2)]);
        assert_eq!(readings(&mut feed, 120_000), []);
    }
}

#[test]
fn the_hosts_netns_is_read_likewise() {
    let mut feed = feed();
    feed.tell(overrun(HOST));
    assert_eq!(readings(&mut feed, 0), [HOST]);
    assert!(is_incomplete(&feed, HOST));
    dump(&mut feed, HOST, &[]);
    assert!(!is_incomplete(&feed, HOST));
}

/// What was lost while the dump ran may be missing from it.
#[test]
fn a_dump_that_began_before_the_loss_is_not_the_last_one() {
    let mut feed = feed();
    feed.tell(held_back(FLOODED, 9));
    assert_eq!(readings(&mut feed, 0), [FLOODED]);
    let began = begin(&mut feed, FLOODED);
    feed.tell(held_back(FLOODED, 9));
    end(&mut feed, FLOODED, began, &[2]);
    assert!(is_incomplete(&feed, FLOODED));
    assert_eq!(readings(&mut feed, 10), [], "not so soon");
    assert_eq!(readings(&mut feed, 500), [FLOODED]);
    dump(&mut feed, FLOODED, &[3]);
    assert!(!is_incomplete(&feed, FLOODED));
    assert_eq!(feed.ips(), [ip(3)]);
}

#[test]
fn an_endless_flood_costs_few_readings_and_none_of_others() {
    let mut feed = feed();
    let mut all = Vec::new();
    for _ in 0..600 {
        feed.tell(held_back(FLOODED, 1_000));
        // Netlink repeats what no probe has told.
        feed.tell_from(
            Origin::Netlink,
            Observation::Address { netns: FLOODED, address: address(5) },
        );
        let read = readings(&mut feed, 100);
        for netns in &read {
            dump(&mut feed, *netns, &[]);
        }
        all.extend(read);
    }
    assert!((8..=16).contains(&all.len()), "{} in a minute", all.len());
    assert!(all.iter().all(|netns| *netns == FLOODED), "{all:?}");
    let (said, _) = feed.map.said_of_held_back(feed.at).unwrap();
    assert!(said.ends_with("net:[70]: 600000 held back, read again"), "{said}");
    assert_eq!(feed.map.said_of_held_back(feed.at.plus(61_000 * MS)), None);
}

/// A netns that takes long to be read is not opened again meanwhile: everybody's wait in one queue.
#[test]
fn one_that_is_being_read_is_not_opened_again_meanwhile() {
    let mut feed = feed();
    let mut all = Vec::new();
    for _ in 0..500 {
        feed.tell(held_back(FLOODED, 1_000));
        all.extend(readings(&mut feed, 100));
    }
    assert_eq!(all, [FLOODED], "50 seconds");
    dump(&mut feed, FLOODED, &[]);
    assert!(!is_incomplete(&feed, FLOODED));
}

/// One user's many netns are read at a pace that all of them share; a pod's is not concerned.
#[test]
fn many_netns_of_one_user_share_a_pace() {
    let mut feed = feed();
    let of = |n: u32| full(100 + u64::from(n), 1_000 + n, 100 + n as i32);
    let users: Vec<NetnsRef> = (0..50).map(of).collect();
    for netns in &users {
        feed.tell(Observation::Netns { netns: *netns });
        feed.tell(Observation::NetnsUser { netns: *netns, uid: 65_534, nested: false });
        dump(&mut feed, *netns, &[]);
    }
    feed.wants(120_000);
    for round in 0..2 {
        let (mut all, began) = (Vec::new(), feed.at);
        for _ in 0..10 {
            let each = users.iter().map(|netns| held_back(*netns, 9));
            let lost = if round == 0 { each.collect() } else { vec![Observation::LostInUsers] };
            for what in lost {
                feed.tell(what);
            }
            feed.tell(held_back(OTHER, 9));
            let read = readings(&mut feed, 100);
            read.iter().for_each(|netns| dump(&mut feed, *netns, &[]));
            all.extend(read);
        }
        let others = all.iter().filter(|netns| **netns == OTHER).count();
        assert!((1..=3).contains(&others), "{others}");
        let theirs = all.iter().filter(|netns| users.contains(netns)).count();
        let tenths = feed.at.since(began) / (100 * MS);
        assert!(
            (8..=tenths as usize + 1).contains(&theirs),
            "{theirs} in {tenths} tenths of a second"
        );
        feed.wants(120_000);
        users.iter().chain([&OTHER, &FLOODED]).for_each(|netns| dump(&mut feed, *netns, &[]));
    }
    assert!(feed.map.knows_all_addresses());
}

/// A flood keeps nobody else from being judged. If the ring buffer was full, an address may have moved unseen.
#[test]
fn a_full_buffer_unsettles_and_a_flood_does_not() {
    let mut feed = feed();
    feed.tell(held_back(FLOODED, 9));
    assert!(!feed.map.is_unsettled());
    feed.tell(overrun(OTHER));
    assert!(feed.map.is_unsettled());
    feed.at = feed.at.plus(11_000 * MS);
    feed.tell(Observation::FirstAnswers);
    assert!(!feed.map.is_unsettled());
}

#[test]
fn tasks_that_were_not_told_are_read_and_no_netns() {
    let mut feed = feed();
    let walks = |wants: &[Request]| wants.contains(&Request::Walk { everywhere: false });
    let unreported = Unreported { tasks: 5, ..Unreported::default() };
    feed.tell(Observation::LostIn { netns: FLOODED, unreported });
    let wants = feed.wants(0);
    assert!(walks(&wants) && wants.len() == 1, "{wants:?}");
    assert!(!is_incomplete(&feed, FLOODED));
    feed.tell(Observation::LostIn { netns: FLOODED, unreported });
    assert!(!walks(&feed.wants(10)), "not so soon");
    assert!(walks(&feed.wants(500)));
}

/// Neighbours are reported by netlink as well, and claims by the next packet.
#[test]
fn neighbours_and_claims_have_nothing_read() {
    let mut feed = feed();
    let unreported = Unreported { neighbours: 5, claims: 5, ..Unreported::default() };
    feed.tell(Observation::LostIn { netns: FLOODED, unreported });
    assert_eq!(feed.wants(0), []);
    assert!(!is_incomplete(&feed, FLOODED));
    let (said, read) = feed.map.said_of_held_back(feed.at).unwrap();
    assert!(said.ends_with("net:[70]: 10 held back") && !read, "{said}");
}

/// A teardown may hang for hours, and a netns in teardown cannot be read.
#[test]
fn one_in_teardown_hides_nothing() {
    let mut feed = feed();
    feed.tell(held_back(FLOODED, 9));
    assert!(!feed.map.knows_all_addresses());
    feed.tell(Observation::NetnsDying { netns: FLOODED });
    assert!(feed.map.knows_all_addresses() && feed.map.verdict(ip(1), None).free);
}

/// A runtime makes user namespaces too: of those pods too many may be owed to be told one by one.
#[test]
fn pods_in_user_namespaces_are_among_those_that_are_not_told_one_by_one() {
    for (nested, is_read) in [(true, true), (false, false)] {
        let mut feed = feed();
        feed.tell(Observation::NetnsUser { netns: FLOODED, uid: 0, nested });
        feed.tell(Observation::NetnsUser { netns: OTHER, uid: 0, nested: false });
        feed.tell(Observation::LostInUsers);
        assert_eq!(is_incomplete(&feed, FLOODED), is_read);
        assert!(!is_incomplete(&feed, OTHER) && !is_incomplete(&feed, HOST));
    }
}

#[test]
fn of_one_that_has_ended_nothing_is_owed() {
    let mut feed = feed();
    feed.tell(Observation::NetnsGone { netns: FLOODED });
    feed.tell(held_back(FLOODED, 9));
    assert!(feed.map.find(&FLOODED).is_none(), "it is not revived");
    assert_eq!(readings(&mut feed, 1_000), []);
}
