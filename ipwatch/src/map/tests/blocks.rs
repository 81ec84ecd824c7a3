//! Pools whose usage is reported by blocks.

use std::collections::BTreeMap;

use super::*;
use crate::fact::{Block, Range, RangePart, Reservation, Source, SourceStatus};

const POOLS: [u8; 2] = [1, 2];

fn ip(pool: u8, last: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, pool, last).into()
}

/// A pool of a /24.
fn pool(n: u8) -> Observation {
    Observation::Range(Range {
        store: "calico".into(),
        network: format!("pool-{n}"),
        path: format!("ippools/pool-{n}"),
        data_dir: None,
        shares: false,
        sets: vec![vec![RangePart { first: ip(n, 0), last: ip(n, 255), except: Vec::new() }]],
    })
}

fn block(key: &str, first: Option<IpAddr>, taken: Option<u32>) -> Observation {
    Observation::Block(Block { store: "calico".into(), key: key.into(), first, taken })
}

fn gone(key: &str) -> Observation {
    Observation::BlockGone { store: "calico".into(), key: key.into() }
}

fn ended(began: BootNs, complete: bool) -> Observation {
    Observation::Ended { scope: Scope::Blocks { store: "calico".into() }, began, complete }
}

/// Number of taken IPs of each pool, where known.
fn used(feed: &Feed) -> Vec<Option<u64>> {
    let used = |range| feed.map.is_counted(range).then(|| range.usage().used);
    feed.map.ranges().map(used).collect()
}

fn told() -> Feed {
    let mut feed = Feed::new(ALL);
    POOLS.into_iter().for_each(|n| {
        feed.tell(pool(n));
    });
    feed
}

#[test]
fn what_is_taken_is_known_while_every_block_is() {
    let mut feed = told();
    assert_eq!(used(&feed), [None, None], "nothing is told yet");
    assert!(!feed.map.ranges_are_counted());
    let began = feed.tell(Observation::Began(Scope::Blocks { store: "calico".into() }));
    feed.tell(block("a", Some(ip(1, 0)), Some(60)));
    feed.tell(block("b", Some(ip(1, 64)), Some(4)));
    assert_eq!(used(&feed), [None, None], "there may be more");
    feed.tell(ended(began, true));
    assert_eq!(used(&feed), [Some(64), Some(0)]);
    assert!(feed.map.ranges_are_counted());
    let view = feed.map.ranges_view(feed.at, &Thresholds::default());
    assert_eq!((view.len(), view[0].usable, view[0].used, view[0].free), (2, 256, 64, 192));

    feed.tell(block("b", Some(ip(1, 64)), None));
    assert_eq!(used(&feed), [None, Some(0)], "it does not say of all of its IPs");
    assert_eq!(feed.map.ranges_view(feed.at, &Thresholds::default()).len(), 1);
    feed.tell(block("b", Some(ip(1, 64)), Some(5)));
    feed.tell(block("c", None, None));
    assert_eq!(used(&feed), [None, None], "of which pool it is nobody knows");
    feed.tell(gone("c"));
    assert_eq!(used(&feed), [Some(65), Some(0)]);
    feed.tell(block("a", Some(ip(2, 0)), Some(60)));
    assert_eq!(used(&feed), [Some(5), Some(60)], "another block of that key");

    feed.tell(ended(feed.at, false));
    assert_eq!(used(&feed), [None, None], "the list was cut short");
    let began = feed.tell(Observation::Began(Scope::Blocks { store: "calico".into() }));
    feed.tell(block("b", Some(ip(1, 64)), Some(7)));
    feed.tell(ended(began, true));
    assert_eq!(used(&feed), [Some(7), Some(0)], "what it did not name is gone");
    feed.tell(Observation::SourceGone { name: "calico".into() });
    assert_eq!(used(&feed), [None, None]);
}

#[test]
fn what_is_told_late_changes_nothing() {
    let mut feed = told();
    let began = feed.at;
    feed.tell(block("a", Some(ip(1, 0)), Some(60)));
    feed.tell(ended(began, true));
    let late = BootNs(began.0);
    feed.tell_at(late, Origin::Probe, block("a", Some(ip(1, 0)), Some(1)));
    feed.tell_at(late, Origin::Probe, gone("a"));
    assert_eq!(used(&feed), [Some(60), Some(0)]);
}

/// The block's count includes this node's own reservations.
#[test]
fn a_reservation_of_this_node_counts_once() {
    let mut feed = told();
    feed.tell(block("a", Some(ip(1, 0)), Some(2)));
    feed.tell(ended(BootNs(0), true));
    feed.tell(Observation::Reservation(Reservation {
        store: "calico".into(),
        network: "k8s-pod-network".into(),
        key: "a/5".into(),
        ip: ip(1, 5),
        container_id: Some("c5".into()),
        ifname: None,
        pod: None,
        since: None,
    }));
    assert_eq!(used(&feed), [Some(2), Some(0)]);
    feed.tell(pool(1));
    let [first, second] = &feed.map.ranges().collect::<Vec<_>>()[..] else { panic!("two") };
    assert_eq!(feed.map.reserved_in(first).count(), 1, "it is of that pool");
    assert_eq!(feed.map.reserved_in(second).count(), 0);
    assert_eq!(used(&feed), [Some(2), Some(0)]);
    let within = |network: &str| feed.map.reservations_view(None, Some(network), 9).len();
    assert_eq!([within("pool-1"), within("pool-2"), within("k8s-pod-network")], [1, 0, 1]);
    let prefix = |text: &str| feed.map.pools_of(&text.parse().unwrap()).count();
    assert_eq!([prefix("10.0.1.5"), prefix("10.0.1.6"), prefix("0.0.0.0/0")], [1, 0, 1]);
    // A pool that is added again counts the existing blocks.
    feed.tell(Observation::Ended {
        scope: Scope::Ranges { store: "calico".into() },
        began: feed.at.plus(1),
        complete: true,
    });
    feed.tell(pool(1));
    assert_eq!(used(&feed), [Some(2)]);
}

#[test]
fn what_was_left_out_for_a_while_is_no_growth() {
    let mut feed = told();
    feed.tell(ended(BootNs(0), true));
    feed.wants(60_000);
    feed.tell(ended(BootNs(0), false));
    feed.wants(60_000);
    for taken in 0..9_u32 {
        feed.tell(block("a", Some(ip(1, 0)), Some(taken * 20)));
        feed.wants(60_000);
    }
    feed.tell(ended(BootNs(0), true));
    feed.wants(60_000);
    let range = feed.map.ranges().next().unwrap();
    assert_eq!((range.usage().used, range.time_left(feed.at)), (160, None));
}

#[test]
fn a_silent_source_of_pools_is_not_at_peace() {
    let mut feed = told();
    feed.tell(ended(BootNs(0), true));
    let source = |status| {
        Observation::Source(Source { name: "calico-pools".into(), status, detail: String::new() })
    };
    for (status, counted) in [
        (SourceStatus::Down, false),
        (SourceStatus::Active, true),
        (SourceStatus::Degraded, true),
        (SourceStatus::Disabled, true),
    ] {
        feed.tell(source(status));
        assert_eq!(feed.map.ranges_are_counted(), counted, "{status:?}");
    }
    let mut feed = Feed::new(ALL);
    feed.tell(source(SourceStatus::Down));
    assert!(feed.map.ranges_are_counted(), "it never had one");
}

/// Whatever is reported in whatever order, the sums are those of the existing blocks.
#[test]
fn the_sums_are_those_of_the_blocks_that_there_are() {
    let mut random: u64 = 7;
    let mut next = |below: u8| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        u8::try_from((random >> 33) % u64::from(below)).unwrap()
    };
    let mut feed = told();
    feed.tell(ended(BootNs(0), true));
    let mut model: BTreeMap<u8, (Option<IpAddr>, Option<u32>)> = BTreeMap::new();
    for _ in 0..2_000 {
        let key = next(12);
        if next(3) == 0 {
            feed.tell(gone(&key.to_string()));
            model.remove(&key);
        } else {
            // Some blocks of neither pool, some with unknown content.
            let first = (next(8) > 0).then(|| ip(next(4), key));
            let taken = (first.is_some() && next(8) > 0).then(|| u32::from(next(16)));
            feed.tell(block(&key.to_string(), first, taken));
            model.insert(key, (first, taken));
        }
        if next(5) == 0 {
            feed.tell(pool(1 + next(2)));
        }
        let expected = POOLS.map(|n| {
            let own = model.values().filter(|(first, _)| {
                first.is_none_or(|first| (ip(n, 0)..=ip(n, 255)).contains(&first))
            });
            own.map(|(_, taken)| taken.map(u64::from)).sum::<Option<u64>>()
        });
        assert_eq!(used(&feed), expected);
    }
}
