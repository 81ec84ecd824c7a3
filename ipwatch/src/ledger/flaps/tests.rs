use super::*;
use std::sync::Arc;

use crate::clock::WallMs;
use crate::contract::Container;
use crate::ledger::tenure::Open;
use crate::map::{Begun, Named};

const SEC: u64 = 1_000_000_000;

/// What happened to a tenure, with the row that tells of it.
#[derive(Debug)]
enum Told {
    Own(Row),
    Within(Row),
    No,
}

/// 2026-01-01, and so many milliseconds.
fn date(ms: u64) -> WallMs {
    WallMs(1_767_225_600_000 + ms as i64)
}

/// An address that was added and removed in this netns at this time, in ms.
fn comes_and_goes(flaps: &mut Flaps, netns: u64, ip: &str, ms: u64, vouched: bool) -> Told {
    let mut open = Open::default();
    let ip = ip.parse().unwrap();
    let key = TenureKey { netns: Identity::Cookie(netns), ifindex: 2, ip, prefix_len: 24 };
    let netns = crate::contract::Netns::default();
    open.held(key, Begun { ip, netns, from: date(ms), preexisting: false });
    if vouched {
        let container = Container { id: Some("c0ffee".to_owned()), ..Container::default() };
        open.named(&key, &Arc::new(Named { container: Some(container), pod: None }));
    }
    let row = open.released(&key, date(ms + 1), "address-deleted").unwrap();
    match flaps.ended(&key, &row, BootNs(ms * SEC / 1000)) {
        Kept::Own => Told::Own(row),
        Kept::Within(longer) => Told::Within(longer),
        Kept::No => Told::No,
    }
}

#[test]
fn one_that_flaps_has_a_budget_and_one_row_tells_of_the_rest() {
    let mut flaps = Flaps::default();
    let mut own = 0;
    let mut last = None;
    for n in 0..4_812 {
        match comes_and_goes(&mut flaps, 7, "10.0.0.1", 10 * n, true) {
            Told::Own(_) => own += 1,
            Told::Within(row) => last = Some(row.tenure()),
            Told::No => panic!("there is a row of this address"),
        }
    }
    assert!((128..=160).contains(&own), "{own}");
    let last = last.unwrap();
    assert_eq!(last.to, Some(date(48_111).to_string()));
    assert!(last.times.is_some_and(|times| times > 1), "{last:?}");
    assert_eq!(flaps.lost(), 0);
    // Other netns are not affected.
    let other = comes_and_goes(&mut flaps, 8, "10.0.0.2", 48_120, true);
    assert!(matches!(other, Told::Own(_)), "{other:?}");
    // An hour later the budget is full again.
    let again = comes_and_goes(&mut flaps, 7, "10.0.0.1", 3_600_000, true);
    assert!(matches!(again, Told::Own(_)), "{again:?}");
}

#[test]
fn each_time_is_counted_once() {
    let mut flaps = Flaps::default();
    let mut rows: HashMap<[u8; 33], u64> = HashMap::new();
    for n in 0..1_000 {
        let kept = comes_and_goes(&mut flaps, 7, "10.0.0.1", n, true);
        let (Told::Own(row) | Told::Within(row)) = kept else { panic!("{kept:?}") };
        rows.insert(row.name().0, row.tenure().times.unwrap_or(1).into());
    }
    assert_eq!(rows.values().sum::<u64>(), 1_000);
}

#[test]
fn many_addresses_and_many_netns_leave_no_more() {
    let mut flaps = Flaps::default();
    let mut own = 0_u64;
    for n in 0..10_000_u64 {
        let ip = format!("10.1.{}.{}", n / 250, n % 250);
        own += u64::from(matches!(comes_and_goes(&mut flaps, 7, &ip, n / 10, false), Told::Own(_)));
    }
    assert!((128..=130).contains(&own), "{own}");
    assert_eq!(own + flaps.lost(), 10_000, "the others are counted");
    // One tenure in each of many netns, beyond the number that is remembered.
    let mut own = 0;
    for n in 0..10_000_u64 {
        let kept = comes_and_goes(&mut flaps, 100 + n, "10.0.0.1", 1_000, false);
        own += u64::from(matches!(kept, Told::Own(_)));
    }
    assert!(own <= 2048, "{own}");
    assert!(flaps.netns.len() <= MAX_NETNS);
    // Tenures of a pod are kept nevertheless.
    let kept = comes_and_goes(&mut flaps, 9, "10.0.0.9", 1_001, true);
    assert!(matches!(kept, Told::Own(_)), "{kept:?}");
}
