use super::*;
use crate::contract::Container;
use crate::ledger::tenure::Open;

const SEC: u64 = 1_000_000_000;

fn tenure(ip: &str, from: u64, vouched: bool) -> Tenure {
    let container = Container { id: Some("c0ffee".to_owned()), ..Container::default() };
    Tenure {
        ip: ip.parse().unwrap(),
        netns: crate::contract::Netns::default(),
        container: vouched.then_some(container),
        pod: None,
        from: date(from),
        preexisting: false,
        to: None,
        ended_by: None,
        times: None,
    }
}

fn date(ms: u64) -> String {
    format!("2026-01-01T00:{:02}:{:02}.{:03}Z", ms / 60_000, ms / 1000 % 60, ms % 1000)
}

/// An address that was added and removed in this netns at this time, in ms.
fn comes_and_goes(flaps: &mut Flaps, netns: u128, ip: &str, ms: u64, vouched: bool) -> Kept {
    let mut open = Open::default();
    let key = format!("{netns}/2/{ip}/24");
    open.held(&key, tenure(ip, ms, vouched));
    let (row, tenure) = open.released(&key, &date(ms + 1), "address-deleted").unwrap();
    flaps.ended(netns, row, &tenure, BootNs(ms * SEC / 1000))
}

#[test]
fn one_that_flaps_has_a_budget_and_one_row_tells_of_the_rest() {
    let mut flaps = Flaps::default();
    let mut own = 0;
    let mut last = None;
    for n in 0..4_812 {
        match comes_and_goes(&mut flaps, 7, "10.0.0.1", 10 * n, true) {
            Kept::Own(_) => own += 1,
            Kept::Within(row) => last = row.tenure(),
            Kept::No => panic!("there is a row of this address"),
        }
    }
    assert!((128..=160).contains(&own), "{own}");
    let last = last.unwrap();
    assert_eq!(last.to, Some(date(48_111)));
    assert!(last.times.is_some_and(|times| times > 1), "{last:?}");
    assert_eq!(flaps.lost(), 0);
    // Other netns are not affected.
    let other = comes_and_goes(&mut flaps, 8, "10.0.0.2", 48_120, true);
    assert!(matches!(other, Kept::Own(_)), "{other:?}");
    // An hour later the budget is full again.
    let again = comes_and_goes(&mut flaps, 7, "10.0.0.1", 3_600_000, true);
    assert!(matches!(again, Kept::Own(_)), "{again:?}");
}

#[test]
fn each_time_is_counted_once() {
    let mut flaps = Flaps::default();
    let mut rows: HashMap<[u8; 33], u64> = HashMap::new();
    for n in 0..1_000 {
        let kept = comes_and_goes(&mut flaps, 7, "10.0.0.1", n, true);
        let (Kept::Own(row) | Kept::Within(row)) = kept else { panic!("{kept:?}") };
        rows.insert(row.name.0, row.tenure().unwrap().times.unwrap_or(1).into());
    }
    assert_eq!(rows.values().sum::<u64>(), 1_000);
}

#[test]
fn many_addresses_and_many_netns_leave_no_more() {
    let mut flaps = Flaps::default();
    let mut own = 0_u64;
    for n in 0..10_000_u64 {
        let ip = format!("10.1.{}.{}", n / 250, n % 250);
        own += u64::from(matches!(comes_and_goes(&mut flaps, 7, &ip, n / 10, false), Kept::Own(_)));
    }
    assert!((128..=130).contains(&own), "{own}");
    assert_eq!(own + flaps.lost(), 10_000, "the others are counted");
    // One tenure in each of many netns, beyond the number that is remembered.
    let mut own = 0;
    for n in 0..10_000_u64 {
        let kept = comes_and_goes(&mut flaps, 100 + u128::from(n), "10.0.0.1", 1_000, false);
        own += u64::from(matches!(kept, Kept::Own(_)));
    }
    assert!(own <= 2048, "{own}");
    assert!(flaps.netns.len() <= MAX_NETNS);
    // Tenures of a pod are kept nevertheless.
    let kept = comes_and_goes(&mut flaps, 9, "10.0.0.9", 1_001, true);
    assert!(matches!(kept, Kept::Own(_)), "{kept:?}");
}
