#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and read files of their own"
)]

use std::fs;

use super::*;
use crate::testing::{BOOT, Network};

const NET: &str = "10.88.7.0/24";

fn place<'a>(net: &'a Network, dir: &'a Path) -> Place<'a> {
    Place { state_dir: dir, socket: net.daemon.socket(), boot: Some(BOOT), bin: &net.path }
}

/// Without a cookie (Linux before 5.14) the daemon finds the holder by the store and the network alone.
#[test]
fn a_release_by_hand_names_the_store_and_the_network() {
    let Some(net) = Network::new(&[NET]) else { return };
    let told = |parked: &'static str| {
        net.daemon.answers(move |target| {
            let is_named = target.contains("store=host-local") && target.contains("network=net");
            let parked = if is_named { parked } else { "unknown" };
            format!(
                r#"{{"schema":"ipwatch/v1","held":{{
                "addresses":[{{"ip":"10.88.7.2","state":"held"}}],
                "parked":[{{"ip":"10.88.7.2","state":"{parked}"}}]}}}}"#
            )
        });
    };
    told("held");
    net.add("c1");
    let dir = net.state_dir();
    let entry = State::read(&dir, "net").unwrap().parked.remove(0);
    assert_eq!(Parked::read(&entry.id).unwrap().cookie, 0);
    let release = || release_network(place(&net, &dir), "net", false, None).unwrap();
    let Outcome { released, kept } = release();
    assert!(released.is_empty() && kept.len() == 1 && kept[0].is_held, "{kept:?}");
    told("unknown");
    let Outcome { released, kept } = release();
    assert!(released.is_empty() && kept.len() == 1 && !kept[0].is_held, "{kept:?}");
    told("free");
    let Outcome { released, kept } = release();
    assert!(kept.is_empty(), "{kept:?}");
    assert!(released.len() == 1 && released[0].outcome.is_ok() && !released[0].still_held);
    assert_eq!(net.parked(), [] as [&str; 0]);
}

#[test]
fn what_is_released_by_force_is_said_to_be_held() {
    let Some(net) = Network::new(&[NET]) else { return };
    net.daemon.holds(&["10.88.7.2"]);
    net.add("c1");
    let dir = net.state_dir();
    let Outcome { released, kept } = release_network(place(&net, &dir), "net", true, None).unwrap();
    assert!(kept.is_empty(), "{kept:?}");
    assert!(released.len() == 1 && released[0].outcome.is_ok() && released[0].still_held);
    assert!(released[0].entry.who.contains("pid 4903 (cat)"), "{:?}", released[0].entry);
    assert_eq!(net.parked(), [] as [&str; 0]);
}

/// A full disk, or a read-only one.
#[test]
fn a_state_file_that_cannot_be_written_hides_nothing() {
    let Some(net) = Network::new(&[NET]) else { return };
    net.daemon.holds(&["10.88.7.2"]);
    net.add("c1");
    let file = net.state_dir().join("net.parked");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    fs::write(file.join("x"), "").unwrap();
    assert_eq!(load(&net.call("DEL", "c1")).unwrap().parked.len(), 1);
    net.daemon.holds(&[]);
    net.del("c1");
    assert_eq!(net.stored().len(), 0, "{:?}", net.stored());
}

/// The runtime's directory of plugins was moved after the address was parked.
#[test]
fn a_delegate_that_was_moved_releases_too() {
    let Some(mut net) = Network::new(&[NET]) else { return };
    let old = net.dir.path().join("old");
    fs::create_dir(&old).unwrap();
    std::os::unix::fs::symlink("/usr/lib/cni/host-local", old.join("host-local")).unwrap();
    let new = std::mem::replace(&mut net.path, vec![old.clone()]);
    net.daemon.holds(&["10.88.7.2"]);
    net.add("c1");
    fs::remove_dir_all(old).unwrap();
    net.path = new;
    net.daemon.holds(&[]);
    net.del("c1");
    assert_eq!(net.parked(), [] as [&str; 0]);
    // The same by hand.
    net.daemon.holds(&["10.88.7.4"]);
    net.add("c2");
    let mut state = State::read(&net.state_dir(), "net").unwrap();
    state.parked.iter_mut().for_each(|entry| entry.path = vec!["/nowhere".into()]);
    state.write(&net.state_dir(), "net").unwrap();
    net.daemon.holds(&[]);
    let dir = net.state_dir();
    let Outcome { released, .. } = release_network(place(&net, &dir), "net", false, None).unwrap();
    assert!(released.len() == 1 && released[0].outcome.is_ok(), "{released:?}");
}

/// A release failed after 90 days of uptime, and then the node was booted.
#[test]
fn a_boot_ends_every_wait() {
    let Some(net) = Network::new(&[NET]) else { return };
    net.daemon.holds(&["10.88.7.2"]);
    net.add("c1");
    let mut state = State::read(&net.state_dir(), "net").unwrap();
    state.parked[0].next_try = u64::MAX;
    state.write(&net.state_dir(), "net").unwrap();
    let mut call = net.call("DEL", "c1");
    call.boot = Some("ffffffff".to_owned()).into();
    assert!(call.serve().unwrap().is_ok());
    assert_eq!(net.stored().len(), 0, "{:?}", net.stored());
}

fn entry(cookie: u64, ips: &[&str]) -> Entry {
    Entry {
        id: Parked { boot: BOOT.into(), cookie, nonce: cookie }.id(),
        ifname: crate::name::IFNAME.into(),
        ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
        config: Value::Null,
        path: Vec::new(),
        unanswered_since: None,
        next_try: 0,
        who: String::new(),
    }
}

fn answers(told: &[(&str, Holding)]) -> Vec<Address> {
    let one = |(ip, state): &(&str, Holding)| Address {
        ip: ip.parse().unwrap(),
        state: *state,
        netns: crate::ask::Netns::default(),
        who: String::new(),
        critical: false,
        for_secs: 0,
    };
    told.iter().map(one).collect()
}

/// Of the first netns nothing is left, and its entry could not be released; then the address was parked for another one.
#[test]
fn an_answer_is_that_of_one_netns() {
    let mut state = State { parked: vec![entry(7, &["10.88.7.2"]), entry(9, &["10.88.7.2"])] };
    let told = answers(&[("10.88.7.2", Holding::Free), ("10.88.7.2", Holding::Held)]);
    let over: Vec<bool> =
        verdicts(&told, Some(BOOT), 5, &mut state).iter().map(|one| one.over).collect();
    assert_eq!(over, [true, false]);
}

#[test]
fn one_family_that_is_held_or_not_known_keeps_both() {
    let judge = |told: &[(&str, Holding)], now| {
        let mut both = State { parked: vec![entry(7, &["10.88.7.2", "fd00:88::2"])] };
        both.parked[0].unanswered_since = Some(0);
        let verdict = verdicts(&answers(told), Some(BOOT), now, &mut both)[0];
        (verdict.over, verdict.held, both.parked[0].unanswered_since)
    };
    let (v4, v6) = ("10.88.7.2", "fd00:88::2");
    assert_eq!(judge(&[(v4, Holding::Free), (v6, Holding::Held)], 9_000), (false, true, None));
    assert_eq!(
        judge(&[(v4, Holding::Leaving), (v6, Holding::Unknown)], 9_000),
        (false, true, None)
    );
    assert_eq!(judge(&[(v4, Holding::Free), (v6, Holding::Unknown)], 9), (false, false, Some(0)));
    assert_eq!(judge(&[(v4, Holding::Free), (v6, Holding::Free)], 9), (true, false, None));
    // An answer about another address, or none, is no answer about this one.
    assert_eq!(judge(&[(v4, Holding::Free), (v4, Holding::Free)], 9), (false, false, Some(0)));
    assert_eq!(judge(&[(v4, Holding::Free)], 9), (false, false, Some(0)));
    assert_eq!(judge(&[], UNPROVEN + 1), (true, false, Some(0)));
}
