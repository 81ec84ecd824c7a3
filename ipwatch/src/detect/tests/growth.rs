//! How fast the ranges of networks fill up, and by what.

use super::ipam::*;
use super::sandboxes::sandbox;
use super::*;
use crate::fact::{Life, Range, RangePart, Reservation, Sandbox};

fn id(n: u64) -> String {
    format!("{n:02x}{}", &NEW[2..])
}

/// A sandbox whose netns is never seen.
fn short_lived(n: u64) -> Observation {
    let alive = sandbox(Life::Alive, "Ready");
    Observation::Sandbox(Sandbox { id: id(n), netns_path: None, pid: None, ..alive })
}

fn living() -> Observation {
    Observation::Sandbox(sandbox(Life::Alive, "Ready"))
}

fn slash_24() -> Observation {
    let part = RangePart { first: ip(1), last: ip(254), except: Vec::new() };
    Observation::Range(Range {
        store: "host-local".into(),
        network: "cbr0".into(),
        path: "/etc/cni/net.d/10.conflist".into(),
        data_dir: Some("/var/lib/cni/networks/cbr0".into()),
        shares: false,
        sets: vec![vec![part]],
    })
}

fn range_of(found: &[Candidate]) -> Option<&Candidate> {
    found.iter().find(|one| one.code == Code::IpamRangeExhausting)
}

/// A crash loop that leaks an IP each second fills a /24 within four minutes.
#[test]
fn a_range_that_leaks_full_is_foreseen_by_the_rate_of_its_leaks() {
    let mut case = Case::reserved();
    case.0.1.borrow_mut().steps = Steps::Asked;
    case.at(900, slash_24());
    let mut told = Vec::new();
    for n in 0..240 {
        let at = 1_000 + n * 1_000;
        case.reserve(at, u8::try_from(n).unwrap() + 6, &id(n));
        case.list(at + 1, vec![living(), short_lived(n)]);
        if n % 10 == 0 {
            let found = case.then(at + 2);
            let severity = range_of(&found).map(|one| one.severity);
            if told.last().is_none_or(|(_, before)| *before != severity) {
                told.push((n, severity));
            }
        }
    }
    let at = |severity| told.iter().find(|(_, one)| *one == severity).map(|(n, _)| *n);
    let (warned, critical) = (at(Some(Severity::Warning)), at(Some(Severity::Critical)));
    assert!(warned.is_some_and(|n| (125..=145).contains(&n)), "at half of it: {told:?}");
    assert!(critical.is_some_and(|n| (185..=205).contains(&n)), "at three quarters: {told:?}");
}

/// A burst of pods is no growth, however fast it is.
#[test]
fn a_range_that_pods_fill_within_minutes_is_foreseen_when_few_are_left() {
    let mut case = Case::reserved();
    case.0.1.borrow_mut().steps = Steps::Asked;
    case.at(900, slash_24());
    for n in 0..220 {
        let at = 1_000 + n * 1_000;
        case.reserve(at, u8::try_from(n).unwrap() + 6, &id(n));
        let all = (0..=n).map(short_lived).chain([living()]);
        if n % 10 == 0 {
            case.list(at + 1, all.collect());
            assert!(range_of(&case.then(at + 2)).is_none(), "{n}");
        }
    }
}

/// What a store already reserves when it is read for the first time is no growth: the range may have been configured
/// before.
#[test]
fn that_a_store_is_read_is_no_growth() {
    /// In ms.
    const HOUR: u64 = 3_600_000;
    let old =
        |last: u8| Reservation { since: Some(-1), container_id: None, ..reservation(last, "") };
    let mut case = Case::with_runtime();
    case.at(1, Observation::Sight(SEEN));
    case.source("host-local", SourceStatus::Active);
    case.range(13, 2, 6);
    case.wants(14);
    case.wants(2 * HOUR - 1_000);
    case.store(2 * HOUR, (2..=6).map(|last| Observation::Reservation(old(last))).collect());
    case.list(2 * HOUR + 1_000, vec![living()]);
    // Reservations that are two hours old, in a range that is full on purpose.
    case.list(2 * HOUR + HOUR / 2, vec![living()]);
    let found = case.then(2 * HOUR + HOUR / 2 + 1);
    assert_eq!(range_of(&found).map(|one| one.severity), Some(Severity::Info), "{found:#?}");
}

/// Leaks make a range low only if what living pods take would not.
#[test]
fn a_range_that_living_pods_fill_soon_is_no_consequence_of_its_leaks() {
    let mut case = Case::reserved();
    case.0.1.borrow_mut().steps = Steps::Asked;
    case.at(900, slash_24());
    let alive = |last| Reservation { container_id: None, ..reservation(last, "") };
    for n in 0..20 {
        case.reserve(1_000, 6 + n, &id(n.into()));
    }
    case.list(1_001, (0..20).map(short_lived).chain([living()]).collect());
    case.list(1_500, vec![living()]);
    for last in 30..105 {
        case.at(1_600, Observation::Reservation(alive(last)));
    }
    let mut at = 0;
    for n in 0..60 {
        at = 12_000 + u64::from(n) * 8_000;
        case.at(at, Observation::Reservation(alive(140 + n)));
        case.wants(at);
    }
    case.list(at + 1, vec![living()]);
    let found = case.then(at + 2);
    let range = range_of(&found).unwrap();
    assert_eq!(case.0.ranges().next().unwrap().usage().free, 98, "20 of 156 are leaked");
    assert_eq!((range.severity, &range.caused_by), (Severity::Warning, &None), "{found:#?}");
}

/// 110 pods are scheduled into a range with 125 IPs.
#[test]
fn growth_ends_with_the_pods_that_a_node_may_have() {
    let found = |limit: Option<u32>, pods_here: bool| {
        let mut case = Case::reserved();
        case.0.1.borrow_mut().steps = Steps::Asked;
        case.range(900, 2, 126);
        case.source("kubernetes", SourceStatus::Active);
        if let Some(pods) = limit {
            case.at(950, Observation::PodLimit { pods });
        }
        let uid = |n: u64| format!("{n:08}-8a5b-4c9d-9e8f-0123456789ab");
        let alive = |n: u64| Reservation {
            container_id: None,
            ..reservation(u8::try_from(n).unwrap() + 10, "")
        };
        let mut pods = vec![super::pods::pod(super::sandboxes::UID)];
        for n in 0..95 {
            let at = 12_000 + n * 5_000;
            if pods_here {
                pods.push(super::pods::pod(&uid(n)));
            }
            case.pods(at, pods.clone());
            case.at(at, Observation::Reservation(alive(n)));
            case.list(at, vec![living()]);
        }
        let at = 12_000 + 95 * 5_000;
        range_of(&case.then(at)).map(|one| one.severity)
    };
    assert_eq!(found(None, true), Some(Severity::Critical), "29 of 125 are left");
    assert_eq!(found(Some(250), true), Some(Severity::Critical), "more pods may come");
    assert_eq!(found(Some(110), true), None, "fourteen pods may come");
    assert_eq!(found(Some(110), false), Some(Severity::Critical), "no pods take these IPs");
}
