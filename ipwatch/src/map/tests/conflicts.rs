//! Conflicts cached from one settling to the next must equal those computed anew, whatever happens in between.

use proptest::prelude::*;

use super::*;
use crate::fact::{Claim, ClaimKind, Link, Mac, Neighbour};

const BRIDGE: u32 = 4;
const ETH0: u32 = 2;
/// Steps of the clock, in ms: around the times after which a claim's meaning changes.
const PAUSES: [u64; 8] = [1, 40, 99, 101, 501, 1_001, 2_001, 61_000];

/// Two IPs, three MACs, three pods on one bridge.
#[derive(Debug, Clone)]
enum Step {
    Claim { ip: u8, mac: u8, kind: u8 },
    Takes { ip: u8, mac: u8, refused: Option<u8> },
    Hand { ip: u8, mac: u8 },
    Address { pod: u8, ip: u8, tried: bool },
    Gone { pod: u8, ip: u8 },
    Failed { pod: u8, ip: u8 },
    Link { pod: u8, mac: u8, wired: bool },
    Unlink { pod: u8 },
    Dies { pod: u8 },
    Share { shared: bool },
    Pause { which: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let (ip, mac, pod) = (0..2u8, 0..3u8, 0..3u8);
    prop_oneof![
        4 => (ip.clone(), mac.clone(), 0..3u8).prop_map(|(ip, mac, kind)| Step::Claim { ip, mac, kind }),
        3 => (ip.clone(), mac.clone(), prop::option::of(0..3u8))
            .prop_map(|(ip, mac, refused)| Step::Takes { ip, mac, refused }),
        1 => (ip.clone(), mac.clone()).prop_map(|(ip, mac)| Step::Hand { ip, mac }),
        3 => (pod.clone(), ip.clone(), any::<bool>())
            .prop_map(|(pod, ip, tried)| Step::Address { pod, ip, tried }),
        1 => (pod.clone(), ip.clone()).prop_map(|(pod, ip)| Step::Gone { pod, ip }),
        1 => (pod.clone(), ip).prop_map(|(pod, ip)| Step::Failed { pod, ip }),
        2 => (pod.clone(), mac, any::<bool>()).prop_map(|(pod, mac, wired)| Step::Link { pod, mac, wired }),
        1 => pod.clone().prop_map(|pod| Step::Unlink { pod }),
        1 => pod.prop_map(|pod| Step::Dies { pod }),
        1 => any::<bool>().prop_map(|shared| Step::Share { shared }),
        3 => (0..8u8).prop_map(|which| Step::Pause { which }),
    ]
}

fn pod(n: u8) -> NetnsRef {
    full(100 + u64::from(n), 70 + u32::from(n), n.into())
}

fn mac(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, 0xa + n])
}

fn link(ifindex: u32, kind: &str, mac: Mac) -> Link {
    let (name, kind) = (format!("{kind}{ifindex}"), Some(kind.into()));
    Link { ifindex, name, mac: Some(mac), kind, up: true, ..Link::default() }
}

fn wire(feed: &mut Feed, n: u8, mac: Mac, wired: bool) {
    let port = 10 + u32::from(n);
    let (peer, peer_nsid, master) = (Some(ETH0), Some(n.into()), wired.then_some(BRIDGE));
    let end = link(port, "veth", Mac([2, 0, 0, 0, 1, n]));
    feed.tell(Observation::Link { netns: HOST, link: Link { peer, peer_nsid, master, ..end } });
    let (peer, peer_nsid) = (Some(port), Some(0));
    let eth0 = Link { peer, peer_nsid, ..link(ETH0, "veth", mac) };
    feed.tell(Observation::Link { netns: pod(n), link: eth0 });
}

fn address_of(n: u8, tried: bool) -> Address {
    let key = AddressKey { ifindex: ETH0, ..key(n) };
    // IFA_F_TENTATIVE: duplicate address detection is running.
    Address { key, scope: Some(0), flags: Some(if tried { 0x40 } else { 0 }) }
}

fn take(feed: &mut Feed, step: &Step) {
    match *step {
        Step::Claim { ip: n, mac: by, kind } => {
            let kind =
                [ClaimKind::Announcement, ClaimKind::Reply, ClaimKind::Request][usize::from(kind)];
            let claim = Claim { ifindex: BRIDGE, ip: ip(n), mac: mac(by), kind };
            feed.tell(Observation::Claimed { netns: HOST, claim });
        }
        Step::Takes { ip: n, mac: by, refused } => {
            let (mac, claimed) = (Some(mac(by)), refused.map(mac));
            let neighbour =
                Neighbour { ifindex: BRIDGE, ip: ip(n), mac, state: 2, claimed, admin: false };
            feed.tell(Observation::Neighbour { netns: HOST, neighbour });
        }
        Step::Hand { ip: n, mac: by } => {
            let mac = Some(mac(by));
            // NUD_PERMANENT, set by a person.
            let (state, claimed, admin) = (0x80, None, true);
            let neighbour = Neighbour { ifindex: BRIDGE, ip: ip(n), mac, state, claimed, admin };
            feed.tell(Observation::Neighbour { netns: HOST, neighbour });
        }
        Step::Address { pod: n, ip, tried } => {
            let address = address_of(ip, tried);
            feed.tell(Observation::Address { netns: pod(n), address });
        }
        Step::Gone { pod: n, ip } => {
            let key = address_of(ip, false).key;
            feed.tell(Observation::AddressGone { netns: pod(n), key });
        }
        Step::Failed { pod: n, ip: at } => {
            let offender = Some(mac(at));
            let failed =
                Observation::DadFailed { netns: pod(n), ifindex: ETH0, ip: ip(at), offender };
            feed.tell(failed);
        }
        Step::Link { pod: n, mac: of, wired } => wire(feed, n, mac(of), wired),
        Step::Unlink { pod: n } => {
            feed.tell(Observation::LinkGone { netns: pod(n), ifindex: ETH0 });
        }
        Step::Dies { pod: n } => {
            feed.tell(Observation::NetnsDying { netns: pod(n) });
        }
        Step::Share { shared } => {
            let all = shared.then(|| Prefix { ip: ip(0), len: 32 });
            feed.map.share(all.into_iter().collect());
        }
        Step::Pause { which } => feed.at = feed.at.plus(PAUSES[usize::from(which)] * MS),
    }
}

proptest! {
    #[test]
    fn what_is_kept_is_what_would_be_found_anew(steps in prop::collection::vec(step(), 1..60)) {
        let mut feed = Feed::new(ALL);
        feed.tell(Observation::Link { netns: HOST, link: link(BRIDGE, "bridge", Mac([2, 0, 0, 0, 0, 1])) });
        (0..3).for_each(|n| wire(&mut feed, n, mac(n), true));
        for step in &steps {
            take(&mut feed, step);
            feed.wants(1);
            let now = feed.at;
            let anew: Vec<Conflict> = feed.map.heard_conflicts(now).collect();
            let kept = feed.map.conflicts(now);
            let (heard, failed) = kept.split_at(anew.len().min(kept.len()));
            prop_assert_eq!(heard, &anew[..], "after {:?}", step);
            prop_assert!(failed.iter().all(|one| one.grounds == ConflictGrounds::Dad));
        }
    }
}

/// An announcement counts after its own two seconds, however soon after it the entry was accepted (found by the test
/// above).
#[test]
fn an_announcement_that_became_the_entry_counts_by_the_clock() {
    let mut feed = Feed::new(ALL);
    feed.tell(Observation::Link {
        netns: HOST,
        link: link(BRIDGE, "bridge", Mac([2, 0, 0, 0, 0, 1])),
    });
    (0..3).for_each(|n| wire(&mut feed, n, mac(n), true));
    let steps = [
        Step::Address { pod: 0, ip: 1, tried: false },
        Step::Claim { ip: 1, mac: 2, kind: 0 },
        Step::Pause { which: 4 },
        Step::Takes { ip: 1, mac: 2, refused: None },
        Step::Pause { which: 5 },
        Step::Pause { which: 4 },
    ];
    for step in &steps {
        take(&mut feed, step);
        feed.wants(1);
    }
    assert_eq!(feed.map.conflicts(feed.at).len(), 1);
}

/// Shows that the first test has conflicts to compare.
#[test]
fn two_answers_are_kept() {
    let mut feed = Feed::new(ALL);
    feed.tell(Observation::Link {
        netns: HOST,
        link: link(BRIDGE, "bridge", Mac([2, 0, 0, 0, 0, 1])),
    });
    (0..2).for_each(|n| wire(&mut feed, n, mac(n), true));
    for n in [0, 1] {
        take(&mut feed, &Step::Claim { ip: 0, mac: n, kind: 1 });
    }
    feed.wants(200);
    assert_eq!(feed.map.conflicts(feed.at).len(), 1);
    take(&mut feed, &Step::Pause { which: 7 });
    feed.wants(1);
    assert!(feed.map.conflicts(feed.at).is_empty(), "nobody was heard for a minute");
}

/// The nth netns of a user.
fn of_a_user(feed: &mut Feed, n: u32) -> NetnsRef {
    let netns = full(5_000 + u64::from(n), 5_000 + n, 5_000 + n as i32);
    feed.tell(Observation::NetnsUser { netns, uid: 65_534, nested: true });
    netns
}

/// Netns of one user with neighbours that do not answer, more in all than is kept, displace none of a pod's or the host's.
#[test]
fn many_netns_of_one_user_displace_no_neighbour_of_others() {
    const FAILED: u16 = 0x20;
    const PERMANENT: u16 = 0x80;
    let mut feed = Feed::new(ALL);
    let entry = |ip: u32, state| {
        let ip = Ipv4Addr::from_bits(ip).into();
        let mac = (state == PERMANENT).then_some(mac(0));
        Neighbour { ifindex: ETH0, ip, mac, state, claimed: None, admin: mac.is_some() }
    };
    feed.tell(Observation::NetnsUser { netns: pod(0), uid: 0, nested: false });
    for netns in [HOST, pod(0)] {
        let [failed, fixed] = [entry(0x0a01_0001, FAILED), entry(0x0a01_0002, PERMANENT)];
        feed.tell(Observation::Neighbour { netns, neighbour: failed });
        feed.tell(Observation::Neighbour { netns, neighbour: fixed });
    }
    for n in 0..12 {
        let netns = of_a_user(&mut feed, n);
        for k in 0..600 {
            let (failed, fixed) =
                (entry(0x0b00_0000 + k, FAILED), entry(0x0c00_0000 + k, PERMANENT));
            feed.tell(Observation::Neighbour { netns, neighbour: failed });
            feed.tell(Observation::Neighbour { netns, neighbour: fixed });
        }
    }
    let fixed = entry(0x0a01_0002, PERMANENT);
    let gone = Observation::NeighbourGone { netns: pod(0), ifindex: ETH0, ip: fixed.ip };
    feed.tell(gone);
    feed.at = feed.at.plus(4_000 * MS);
    let now = feed.at;
    let of = |netns: &NetnsRef, keys: Vec<NetnsId>| {
        let id = feed.map.find(netns);
        keys.into_iter().filter(|one| Some(*one) == id).count()
    };
    let silent = || feed.map.silent(now).map(|((id, ..), _)| *id).collect::<Vec<_>>();
    assert_eq!((of(&pod(0), silent()), of(&HOST, silent())), (1, 1));
    assert_eq!(silent().len(), 4_096 + 1, "and the host's");
    let unfixed = feed.map.unfixed(now).map(|((id, ..), _)| *id).collect();
    assert_eq!(of(&pod(0), unfixed), 1);
    let said = feed.map.said_of_forgotten().unwrap();
    let all = 2 * (12 * 600 + 1 - 4_096);
    let expected = format!(
        "forgotten for want of room: uid 65534: {all} neighbours that are permanent or do not answer, of 12 network \
         namespaces"
    );
    assert_eq!(said, expected);
}

/// Four netns of one user with as many claims as are kept of all displace none of a pod's or the host's, and a conflict that
/// was found is forgotten last.
#[test]
fn four_netns_of_one_user_displace_no_claim_of_others() {
    let mut feed = Feed::new(ALL);
    let claim = |netns, ip: u32, n| {
        let ip = Ipv4Addr::from_bits(ip).into();
        let claim = Claim { ifindex: ETH0, ip, mac: mac(n), kind: ClaimKind::Reply };
        Observation::Claimed { netns, claim }
    };
    feed.tell(Observation::NetnsUser { netns: pod(0), uid: 0, nested: false });
    for netns in [HOST, pod(0)] {
        for n in 0..2 {
            feed.tell(claim(netns, 0x0a01_0001, n));
        }
    }
    feed.wants(1);
    assert_eq!(feed.map.conflicts(feed.at).len(), 2);
    let netns: Vec<NetnsRef> = (0..4).map(|n| of_a_user(&mut feed, n)).collect();
    let own = 0x0b00_0000;
    for n in 0..2 {
        feed.tell(claim(netns[0], own, n));
    }
    feed.wants(1);
    // One user's share would be gone after the third.
    for (n, netns) in (0..).zip(&netns) {
        for k in 1..4_500 {
            feed.tell(claim(*netns, own + n * 10_000 + k, 2));
        }
    }
    feed.wants(1);
    let found: Vec<Option<NetnsId>> =
        feed.map.conflicts(feed.at).into_iter().map(|found| Some(found.netns)).collect();
    for netns in [HOST, pod(0), netns[0]] {
        assert!(found.contains(&feed.map.find(&netns)), "{netns:?}: {found:?}");
    }
    // The user's are bounded by those of all, one of which is the pod's.
    let forgotten = 4 * 4_499 + 1 - (12_288 - 1);
    assert_eq!(feed.map.forgotten_claims(), forgotten);
    let said = feed.map.said_of_forgotten().unwrap();
    let whose = "forgotten for want of room: uid 65534: ";
    assert_eq!(said, format!("{whose}{forgotten} claims of IPs, of 4 network namespaces"));
}

/// Of which findings the log lines are counted: of those in netns that may be a user's, and of no other.
#[test]
fn whose_log_lines_a_finding_has() {
    use crate::contract::{Netns, Pod, Subject};
    let subject = |netns: NetnsRef| Subject {
        netns: Some(Netns { cookie: netns.cookie, inode: netns.inode, ..Netns::default() }),
        ..Subject::default()
    };
    let mut feed = Feed::new(ALL);
    let users = of_a_user(&mut feed, 0);
    feed.tell(Observation::Netns { netns: pod(0) });
    feed.tell(Observation::NetnsUser { netns: pod(1), uid: 0, nested: false });
    let concerned = |feed: &Feed, netns| feed.map.user_concerned(&subject(netns));
    assert_eq!(concerned(&feed, users), Some(Some(65_534)));
    assert_eq!(concerned(&feed, pod(0)), Some(None), "it has not been opened");
    assert_eq!(concerned(&feed, pod(1)), None, "root's");
    assert_eq!(concerned(&feed, HOST), None);
    assert_eq!(feed.map.user_concerned(&Subject::default()), None, "a reservation's");
    // A name that a user may have chosen makes the finding nobody else's.
    let named = Subject { pod: Some(Pod::default()), ..subject(users) };
    assert_eq!(feed.map.whose(&named), Whose::User(Some(65_534)));
    assert_eq!(feed.map.whose(&subject(pod(1))), Whose::Node, "root's");
    feed.tell(Observation::NetnsGone { netns: users });
    assert_eq!(concerned(&feed, users), Some(None), "no longer known");
    let named = Subject { pod: Some(Pod::default()), ..subject(users) };
    assert_eq!(feed.map.user_concerned(&named), None);
}

/// An address that the kernel rejected (IFA_F_PERMANENT, IFA_F_DADFAILED).
fn rejected(n: u32) -> Address {
    let local = std::net::Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(n)).into();
    let key = AddressKey { ifindex: ETH0, local, prefix_len: 64, peer: None };
    Address { key, scope: Some(0), flags: Some(0x88) }
}

fn rejected_of(feed: &Feed, netns: &NetnsRef) -> usize {
    let id = feed.map.find(netns);
    let dad = |one: &Conflict| one.grounds == ConflictGrounds::Dad && Some(one.netns) == id;
    feed.map.conflicts(feed.at).iter().filter(|one| dad(one)).count()
}

/// Thousands of addresses that the kernel rejected in a user's netns displace none of a pod's or the host's, and are no
/// thousands of conflicts.
#[test]
fn rejected_addresses_of_one_user_are_bounded_and_displace_none_of_others() {
    let mut feed = Feed::new(ALL);
    let device = |netns| Observation::Link { netns, link: link(ETH0, "veth", mac(0)) };
    feed.tell(Observation::NetnsUser { netns: pod(0), uid: 0, nested: false });
    let users: Vec<NetnsRef> = (0..6).map(|n| of_a_user(&mut feed, n)).collect();
    [HOST, pod(0)].iter().chain(&users).for_each(|netns| {
        feed.tell(device(*netns));
    });
    for netns in &users {
        for n in 0..500 {
            feed.tell(Observation::Address { netns: *netns, address: rejected(n) });
        }
    }
    for n in 500..520 {
        for netns in [HOST, pod(0)] {
            feed.tell(Observation::Address { netns, address: rejected(n) });
        }
    }
    feed.wants(1);
    assert_eq!((rejected_of(&feed, &HOST), rejected_of(&feed, &pod(0))), (20, 20));
    let his: usize = users.iter().map(|netns| rejected_of(&feed, netns)).sum();
    assert_eq!(his, 128 - 20, "all but the host's share so many");
    let said = feed.map.said_of_forgotten().unwrap();
    let count = 6 * 500 - his;
    assert_eq!(
        said,
        format!(
            "forgotten for want of room: uid 65534: {count} rejected addresses, of 6 network namespaces"
        )
    );
    // Read again and again they stay the same ones, and what is over makes room.
    let kept = |feed: &Feed| {
        feed.map.conflicts(feed.at).into_iter().map(|one| (one.netns, one.ip)).collect::<Vec<_>>()
    };
    let before = kept(&feed);
    for n in 0..500 {
        feed.tell(Observation::Address { netns: users[0], address: rejected(n) });
    }
    feed.wants(1);
    assert_eq!(kept(&feed), before);
    for n in 500..520 {
        feed.tell(Observation::AddressGone { netns: pod(0), key: rejected(n).key });
    }
    (0..3).for_each(|_| drop(feed.wants(1_001)));
    let his: usize = users.iter().map(|netns| rejected_of(&feed, netns)).sum();
    assert_eq!((his, rejected_of(&feed, &pod(0))), (128, 0));
}
