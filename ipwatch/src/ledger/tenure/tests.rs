use proptest::prelude::*;

use super::*;
use crate::contract::Netns;

fn tenure(ip: &str, from: &str) -> Tenure {
    Tenure {
        ip: ip.parse().unwrap(),
        netns: Netns { cookie: Some(7), ..Netns::default() },
        container: None,
        pod: None,
        from: from.to_owned(),
        preexisting: false,
        to: None,
        ended_by: None,
        times: None,
    }
}

fn pod(name: &str) -> Option<Pod> {
    Some(Pod { name: Some(name.to_owned()), ..Pod::default() })
}

const T1: &str = "2026-01-01T00:00:01.000Z";
const T2: &str = "2026-01-01T00:00:02.000Z";

#[test]
fn a_tenure_begins_learns_and_ends() {
    let mut open = Open::default();
    let row = open.held("k", tenure("10.0.0.1", T1)).unwrap();
    assert_eq!((row.ended, row.name.from()), (0, millis(T1)));

    assert!(open.named("k", None, pod("api-0")).is_some());
    assert!(open.named("k", None, pod("api-0")).is_none(), "nothing new");
    assert!(open.named("other", None, pod("api-0")).is_none());

    let (row, ended) = open.released("k", T2, "address-deleted").unwrap();
    assert_eq!(row.ended, millis(T2));
    assert_eq!((ended.pod, ended.to.as_deref()), (pod("api-0"), Some(T2)));
    assert_eq!(row.tenure().unwrap().ended_by.as_deref(), Some("address-deleted"));
    assert!(open.released("k", T2, "address-deleted").is_none());
}

#[test]
fn one_that_is_held_already_goes_on() {
    let mut open = Open::default();
    let first = open.held("k", Tenure { pod: pod("api-0"), ..tenure("10.0.0.1", T1) }).unwrap();
    assert!(open.held("k", tenure("10.0.0.1", T2)).is_none(), "less is known: nothing to write");
    let mut more = tenure("10.0.0.1", T2);
    more.netns.inode = Some(5);
    let row = open.held("k", more).unwrap();
    assert_eq!(row.name, first.name);
    let known = row.tenure().unwrap();
    assert_eq!((known.from.as_str(), known.pod), (T1, pod("api-0")));
}

#[test]
fn settling_ends_what_is_not_alive() {
    let mut open = Open::default();
    open.held("a", tenure("10.0.0.1", T1));
    open.held("b", tenure("10.0.0.2", T1));
    let ended = open.settle(&HashSet::from(["a".to_owned()]), T2, "unseen");
    let ips: Vec<String> = ended.iter().map(|(_, tenure)| tenure.ip.to_string()).collect();
    assert_eq!(ips, ["10.0.0.2"]);
    assert!(open.contains("a") && !open.contains("b"));
}

#[test]
fn a_clock_that_was_set_back_makes_no_negative_tenure() {
    let mut open = Open::default();
    open.held("k", tenure("10.0.0.1", T2));
    let (_, ended) = open.released("k", T1, "device-gone").unwrap();
    assert_eq!(ended.to.as_deref(), Some(T2));
}

#[test]
fn the_earlier_run_knows_the_beginning() {
    let mut earlier = Open::default();
    let old = earlier.held("k", tenure("10.0.0.1", T1)).unwrap();
    let mut open = Open::default();
    let new = open.held("k", Tenure { pod: pod("api-0"), ..tenure("10.0.0.1", T2) }).unwrap();
    assert_eq!(open.continue_from(old.clone()), Some(new.name), "the younger row goes");
    let row = open.get(old.hash).unwrap();
    assert_eq!(row.name, old.name);
    let known = row.tenure().unwrap();
    assert_eq!((known.from.as_str(), known.pod), (T1, pod("api-0")));
    assert_eq!(open.continue_from(old), None, "the same row twice is one");
}

#[test]
fn one_that_moves_to_another_key_keeps_its_row_and_its_beginning() {
    let named = Netns { cookie: Some(7), nsid: Some(3), ..Netns::default() };
    let mut open = Open::default();
    let old = open.held("a", tenure("10.0.0.1", T1)).unwrap();
    let (row, superseded) = open.moved("a", "b", named.clone()).unwrap();
    assert_eq!((row.name, superseded), (old.name, None));
    let known = open.tenure("b").unwrap();
    assert_eq!((known.from.as_str(), &known.netns), (T1, &named));
    assert!(!open.contains("a") && open.moved("a", "b", named.clone()).is_none());

    let newer = open.held("c", tenure("10.0.0.1", T2)).unwrap();
    let (row, superseded) = open.moved("b", "c", named.clone()).unwrap();
    assert_eq!((row.name, superseded), (old.name, Some(newer.name)), "the younger row goes");
    assert_eq!(open.tenure("c").unwrap().from, T1);

    let younger = open.held("d", tenure("10.0.0.1", T2)).unwrap();
    let (row, superseded) = open.moved("d", "c", Netns::default()).unwrap();
    assert_eq!((row.name, superseded), (old.name, Some(younger.name)), "whichever moves");
    assert_eq!(open.tenure("c").unwrap().from, T1);
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
