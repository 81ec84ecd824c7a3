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
