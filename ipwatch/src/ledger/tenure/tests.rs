use proptest::prelude::*;

use super::*;
use crate::contract::{Container, Pod};
use crate::map::Identity;

fn begun(ip: &str, from: &str) -> Begun {
    Begun {
        ip: ip.parse().unwrap(),
        netns: Netns { cookie: Some(7), ..Netns::default() },
        from: WallMs::parse(from).unwrap(),
        preexisting: false,
    }
}

/// The key of a tenure that a test calls so.
fn key(name: &str) -> TenureKey {
    let number = name.bytes().map(u64::from).sum();
    let ip = "10.0.0.1".parse().unwrap();
    TenureKey { netns: Identity::Cookie(number), ifindex: 2, ip, prefix_len: 24 }
}

fn pod(name: &str) -> Option<Pod> {
    Some(Pod { name: Some(name.to_owned()), ..Pod::default() })
}

fn api_0() -> Arc<Named> {
    Arc::new(Named { container: None, pod: pod("api-0") })
}

const T1: &str = "2026-01-01T00:00:01.000Z";
const T2: &str = "2026-01-01T00:00:02.000Z";

fn at(date: &str) -> WallMs {
    WallMs::parse(date).unwrap()
}

/// As the file returns it to the next run.
fn reread(row: &Row) -> Row {
    Row::read(row.hash(), row.name(), &row.json()).unwrap()
}

#[test]
fn a_tenure_begins_learns_and_ends() {
    let (mut open, k) = (Open::default(), key("k"));
    let row = open.held(k, begun("10.0.0.1", T1)).unwrap();
    assert_eq!((row.ended(), row.name().from()), (0, millis(T1)));

    assert!(open.named(&k, &api_0()).is_some());
    assert!(open.named(&k, &api_0()).is_none(), "nothing new");
    assert!(open.named(&key("other"), &api_0()).is_none());

    let row = open.released(&k, at(T2), "address-deleted").unwrap();
    assert_eq!(row.ended(), millis(T2));
    let ended = row.tenure();
    assert_eq!((ended.pod, ended.to.as_deref()), (pod("api-0"), Some(T2)));
    assert_eq!(ended.ended_by.as_deref(), Some("address-deleted"));
    assert!(open.released(&k, at(T2), "address-deleted").is_none());
}

#[test]
fn what_becomes_known_later_adds_to_what_is_known() {
    let (mut open, k) = (Open::default(), key("k"));
    open.held(k, begun("10.0.0.1", T1));
    open.named(&k, &api_0());
    let container = Some(Container { id: Some("c0ffee".to_owned()), ..Container::default() });
    let more = Named { container: container.clone(), pod: None };
    let row = open.named(&k, &Arc::new(more)).unwrap();
    assert_eq!((row.tenure().container, row.tenure().pod), (container.clone(), pod("api-0")));
    assert!(open.named(&k, &api_0()).is_none(), "less is known: nothing to write");
    let row = open.named(&k, &Arc::new(Named { container: None, pod: pod("api-1") })).unwrap();
    assert_eq!((row.tenure().container, row.tenure().pod), (container, pod("api-1")));
}

#[test]
fn one_that_is_held_already_goes_on() {
    let (mut open, k) = (Open::default(), key("k"));
    let first = open.held(k, begun("10.0.0.1", T1)).unwrap();
    open.named(&k, &api_0());
    assert!(open.held(k, begun("10.0.0.1", T2)).is_none(), "less is known: nothing to write");
    let mut more = begun("10.0.0.1", T2);
    more.netns.inode = Some(5);
    let row = open.held(k, more).unwrap();
    assert_eq!(row.name(), first.name());
    let known = row.tenure();
    assert_eq!((known.from.as_str(), known.pod), (T1, pod("api-0")));
}

#[test]
fn settling_ends_what_is_not_alive() {
    let mut open = Open::default();
    open.held(key("a"), begun("10.0.0.1", T1));
    open.held(key("b"), begun("10.0.0.2", T1));
    let ended = open.settle(&HashSet::from([key("a")]), at(T2), "unseen");
    let ips: Vec<String> = ended.iter().map(|row| row.tenure().ip.to_string()).collect();
    assert_eq!(ips, ["10.0.0.2"]);
    assert!(open.contains(&key("a")) && !open.contains(&key("b")));
}

#[test]
fn settling_ends_what_an_earlier_run_left_and_nobody_holds() {
    let (mut earlier, mut open) = (Open::default(), Open::default());
    let rows = ["a", "b"].map(|name| earlier.held(key(name), begun("10.0.0.1", T1)).unwrap());
    assert!(open.continue_from(rows.iter().map(reread).collect()).is_empty());
    assert!(open.contains(&key("a")) && open.tenure(&key("b")).is_some());
    let ended = open.settle(&HashSet::from([key("a")]), at(T2), "unseen");
    assert_eq!(ended.iter().map(Row::name).collect::<Vec<_>>(), [rows[1].name()]);
    let row = open.released(&key("a"), at(T2), "address-deleted").unwrap();
    assert_eq!((row.name(), row.hash()), (rows[0].name(), rows[0].hash()));
    assert!(!open.contains(&key("a")));
}

#[test]
fn a_clock_that_was_set_back_makes_no_negative_tenure() {
    let (mut open, k) = (Open::default(), key("k"));
    open.held(k, begun("10.0.0.1", T2));
    let ended = open.released(&k, at(T1), "device-gone").unwrap();
    assert_eq!(ended.tenure().to.as_deref(), Some(T2));
}

#[test]
fn the_earlier_run_knows_the_beginning() {
    let k = key("k");
    let mut earlier = Open::default();
    let old = reread(&earlier.held(k, begun("10.0.0.1", T1)).unwrap());
    let mut open = Open::default();
    let new = open.held(k, begun("10.0.0.1", T2)).unwrap();
    open.named(&k, &api_0());
    let superseded = open.continue_from(vec![old.clone()]);
    let names: Vec<RowKey> = superseded.iter().map(Row::name).collect();
    assert_eq!(names, [new.name()], "the younger row goes");
    let row = open.rows().find(|row| row.hash() == old.hash()).unwrap();
    assert_eq!(row.name(), old.name());
    let known = row.tenure();
    assert_eq!((known.from.as_str(), known.pod), (T1, pod("api-0")));
    assert!(open.continue_from(vec![old]).is_empty(), "the same row twice is one");
    assert_eq!(open.rows().count(), 1);
}

#[test]
fn one_that_moves_to_another_key_keeps_its_row_and_its_beginning() {
    let named = Netns { cookie: Some(7), nsid: Some(3), ..Netns::default() };
    let [a, b, c, d] = ["a", "b", "c", "d"].map(key);
    let mut open = Open::default();
    let old = open.held(a, begun("10.0.0.1", T1)).unwrap();
    let (row, superseded) = open.moved(&a, b, named.clone()).unwrap();
    assert_eq!((row.name(), superseded), (old.name(), None));
    let known = open.tenure(&b).unwrap();
    assert_eq!((known.from.as_str(), &known.netns), (T1, &named));
    assert!(!open.contains(&a) && open.moved(&a, b, named.clone()).is_none());

    let newer = open.held(c, begun("10.0.0.1", T2)).unwrap();
    let (row, superseded) = open.moved(&b, c, named.clone()).unwrap();
    let superseded = superseded.map(|row| row.name());
    assert_eq!((row.name(), superseded), (old.name(), Some(newer.name())), "the younger row goes");
    assert_eq!(open.tenure(&c).unwrap().from, T1);

    let younger = open.held(d, begun("10.0.0.1", T2)).unwrap();
    let (row, superseded) = open.moved(&d, c, Netns::default()).unwrap();
    let superseded = superseded.map(|row| row.name());
    assert_eq!((row.name(), superseded), (old.name(), Some(younger.name())), "whichever moves");
    assert_eq!(open.tenure(&c).unwrap().from, T1);
}

#[test]
fn a_prefix_is_a_range_of_names() {
    let name = |ip: &str| RowKey::new(ip.parse().unwrap(), 1, 9);
    let within = |prefix: Option<(&str, u8)>, ip: &str| {
        let prefix = prefix.map(|(ip, len)| Prefix { ip: ip.parse().unwrap(), len });
        let (first, last) = RowKey::range(prefix);
        (first..=last).contains(&name(ip))
    };
    assert!(within(Some(("10.0.0.0", 24)), "10.0.0.255"));
    assert!(!within(Some(("10.0.0.0", 24)), "10.0.1.0"));
    assert!(within(Some(("10.0.0.77", 24)), "10.0.0.1"), "host bits are ignored");
    assert!(within(Some(("10.0.0.1", 32)), "10.0.0.1"));
    assert!(!within(Some(("10.0.0.1", 32)), "10.0.0.2"));
    assert!(within(Some(("0.0.0.0", 0)), "255.255.255.255"));
    assert!(!within(Some(("0.0.0.0", 0)), "::1"), "families do not mix");
    assert!(within(Some(("::", 0)), "ffff::"));
    assert!(!within(Some(("::", 0)), "10.0.0.1"));
    assert!(within(Some(("fd00::", 64)), "fd00::ffff"));
    assert!(!within(Some(("fd00::", 64)), "fd00:0:0:1::"));
    assert!(within(None, "10.0.0.1") && within(None, "fe80::1"));
    assert!(within(Some(("10.0.0.1", 200)), "10.0.0.1"), "an impossible length is the longest");
}

proptest! {
    /// The byte range agrees with the arithmetic of addresses.
    #[test]
    fn ranges_agree_with_masks(net: u32, len in 0..=32_u8, ip: u32) {
        let prefix = Prefix { ip: IpAddr::V4(net.into()), len };
        let (first, last) = RowKey::range(Some(prefix));
        let name = RowKey::new(IpAddr::V4(ip.into()), 5, 5);
        let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
        prop_assert_eq!((first..=last).contains(&name), net & mask == ip & mask);
    }

    /// For one IP the newest comes first.
    #[test]
    fn names_order_newest_first(ip: [u8; 16], a: u64, b: u64, hash: u128) {
        let ip = IpAddr::V6(ip.into());
        let (one, other) = (RowKey::new(ip, a, hash), RowKey::new(ip, b, hash));
        prop_assert_eq!(one.cmp(&other), b.cmp(&a));
        prop_assert_eq!(one.from(), a);
    }
}
