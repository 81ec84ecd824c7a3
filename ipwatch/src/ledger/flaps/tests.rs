use super::*;
use std::sync::Arc;

use crate::clock::WallMs;
use crate::contract::{Container, Pod};
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

const A: TenantKind = TenantKind::User(Some(1_000));
const B: TenantKind = TenantKind::User(Some(1_001));

/// An address that was added and removed in this netns at this time, in ms. What a pod has is named.
fn comes_and_goes(flaps: &mut Flaps, netns: u64, ip: &str, ms: u64, whose: TenantKind) -> Told {
    passes(flaps, netns, ip, ms, whose, whose == TenantKind::Pod)
}

fn passes(
    flaps: &mut Flaps,
    netns: u64,
    ip: &str,
    ms: u64,
    whose: TenantKind,
    named: bool,
) -> Told {
    let mut open = Open::default();
    let ip = ip.parse().unwrap();
    let key = TenureKey { netns: Identity::Cookie(netns), ifindex: 2, ip, prefix_len: 24 };
    let netns = crate::contract::Netns::default();
    open.held(key, Begun { ip, netns, from: date(ms), preexisting: false });
    if named {
        let container = Container { id: Some("c0ffee5a".repeat(8)), ..Container::default() };
        let (namespace, name) = (Some("shop".to_owned()), Some("api-7d9f8b6c54-x2x7q".to_owned()));
        let pod = Pod { namespace, name, ..Pod::default() };
        open.named(&key, &Arc::new(Named { container: Some(container), pod: Some(pod) }));
    }
    let row = open.released(&key, date(ms + 1), "address-deleted").unwrap();
    match flaps.ended(&key, &row, whose, BootNs(ms * SEC / 1000)) {
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
        match comes_and_goes(&mut flaps, 7, "10.0.0.1", 10 * n, TenantKind::Pod) {
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
    let other = comes_and_goes(&mut flaps, 8, "10.0.0.2", 48_120, TenantKind::Pod);
    assert!(matches!(other, Told::Own(_)), "{other:?}");
    // An hour later the budget is full again.
    let again = comes_and_goes(&mut flaps, 7, "10.0.0.1", 3_600_000, TenantKind::Pod);
    assert!(matches!(again, Told::Own(_)), "{again:?}");
}

#[test]
fn each_time_is_counted_once() {
    let mut flaps = Flaps::default();
    let mut rows: HashMap<[u8; 33], u64> = HashMap::new();
    for n in 0..1_000 {
        let kept = comes_and_goes(&mut flaps, 7, "10.0.0.1", n, TenantKind::Pod);
        let (Told::Own(row) | Told::Within(row)) = kept else { panic!("{kept:?}") };
        rows.insert(row.name().0, row.tenure().times.unwrap_or(1).into());
    }
    assert_eq!(rows.values().sum::<u64>(), 1_000);
}

#[test]
fn many_addresses_of_a_netns_leave_no_more() {
    for whose in [A, TenantKind::Root, TenantKind::Pod] {
        let mut flaps = Flaps::default();
        let mut own = 0_u64;
        for n in 0..10_000_u64 {
            let ip = format!("10.1.{}.{}", n / 250, n % 250);
            let kept = comes_and_goes(&mut flaps, 7, &ip, n / 10, whose);
            own += u64::from(matches!(kept, Told::Own(_)));
        }
        assert!((128..=130).contains(&own), "{whose}: {own}");
        assert_eq!(own + flaps.lost(), 10_000, "the others are counted");
        assert_eq!(flaps.lost_of(), [(whose, flaps.lost())]);
    }
}

/// How many of these of one tenure each get a row, in netns that were not seen before.
fn one_each(flaps: &mut Flaps, many: u64, whose: TenantKind, named: bool) -> u64 {
    let first = 1_000_000 * (flaps.lost() + 1);
    let own = |n: u64| passes(flaps, first + n, "10.0.0.1", 1_000, whose, named);
    (0..many).map(own).filter(|kept| matches!(kept, Told::Own(_))).count() as u64
}

#[test]
fn a_user_with_many_netns_costs_nobody_else_a_row() {
    let mut flaps = Flaps::default();
    // A container's name is a cgroup's, which a user can choose.
    let own = one_each(&mut flaps, 10_000, A, false) + one_each(&mut flaps, 10_000, A, true);
    assert!((BURST_OF_A_USER..BURST_OF_A_USER + 2).contains(&own), "{own}");
    for n in 0..100_000 {
        comes_and_goes(&mut flaps, 100 + n % 50, "10.0.0.1", 1_000, A);
    }
    for (whose, named) in
        [(B, false), (TenantKind::Root, false), (TenantKind::Root, true), (TenantKind::Pod, true)]
    {
        assert_eq!(one_each(&mut flaps, 1_000, whose, named), 1_000, "{whose} {named}");
    }
    // Whoever flaps beside him is still told of in one row.
    let mut rows = Vec::new();
    for n in 0..1_000 {
        match comes_and_goes(&mut flaps, 7, "10.0.0.9", 2_000 + n, TenantKind::Pod) {
            Told::No => panic!("there is a row of this address"),
            Told::Within(row) | Told::Own(row) => rows.push(row.name()),
        }
    }
    rows.dedup();
    assert!(rows.len() < 140, "{}", rows.len());
    assert_eq!(flaps.lost_of()[0].0, A);
}

#[test]
fn what_is_kept_of_users_is_bounded_however_many_there_are() {
    let mut flaps = Flaps::default();
    let mut own = 0;
    for uid in 0..1_000 {
        own += one_each(&mut flaps, 2_000, TenantKind::User(Some(uid)), false);
    }
    assert!(own <= (MAX_USERS as u64 + 1) * (BURST_OF_A_USER + 1), "{own}");
    assert_eq!(flaps.users.len(), MAX_USERS);
    let remembered = flaps.users.values().chain([&flaps.further_users]);
    assert!(remembered.into_iter().all(|user| user.netns.len() <= MAX_NETNS_OF_A_USER));
    assert_eq!(own + flaps.lost(), 2_000_000);
    assert_eq!(flaps.lost_of().len(), MAX_LOST);
    // Those that have rested for long make room for others.
    assert!(matches!(comes_and_goes(&mut flaps, 7, "10.0.0.1", 1 << 32, B), Told::Own(_)));
    assert!(flaps.users.len() < MAX_USERS);
}

#[test]
fn netns_of_root_that_nothing_names_share_first_rows_alone() {
    let mut flaps = Flaps::default();
    let own = one_each(&mut flaps, 10_000, TenantKind::Root, false);
    assert!(own <= BURST_OF_OTHERS + 1, "{own}");
    assert!(flaps.root.netns.len() <= MAX_NETNS);
    // Two that flap for an hour take nothing from one that comes once.
    let mut flaps = Flaps::default();
    for n in 0..360_000 {
        comes_and_goes(&mut flaps, n % 4, "10.0.0.1", n * 10, TenantKind::Root);
    }
    let once = comes_and_goes(&mut flaps, 9, "10.0.0.9", 3_600_000, TenantKind::Root);
    assert!(matches!(once, Told::Own(_)), "{once:?}");
    assert_eq!(flaps.lost(), 0);
}

/// The rows of a pod that flaps for an hour, as they are stored.
#[test]
fn an_hour_of_one_that_flaps_is_less_than_a_megabyte() {
    let mut flaps = Flaps::default();
    let mut rows = HashMap::new();
    for n in 0..720_000 {
        match comes_and_goes(&mut flaps, 7, "10.244.171.213", 5 * n, TenantKind::Pod) {
            Told::Own(row) | Told::Within(row) => rows.insert(row.name(), row),
            Told::No => panic!("there is a row of this address"),
        };
    }
    let bytes: usize = rows.iter().map(|(name, row)| name.0.len() + row.json().len()).sum();
    assert!(bytes < 1_000_000, "{bytes}");
    let times = |row: &Row| u64::from(row.tenure().times.unwrap_or(1));
    assert_eq!(rows.values().map(times).sum::<u64>(), 720_000);
}
