//! The recordings of field cases with sources that are down: each in turn, and all at once. What is not heard makes no
//! finding and ends none.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::field::{CASES, recording};
use super::tests::replayed;
use super::{Player, lines};
use crate::fact::{BootNs, Fact, Observation, Origin, Source, SourceStatus};
use crate::finding::{Change, ChangeKind, Code};

const SECOND: u64 = 1_000_000_000;
/// Who tells of the node, by what their facts say.
const ORIGINS: [&[&str]; 7] = [
    &["probe", "snapshot"],
    &["netlink"],
    &["procfs"],
    &["cni"],
    &["runtime"],
    &["kubernetes"],
    &["ipam"],
];

/// Each in turn, and all of them. Of the longest recording, in which nothing is to be found, all of them alone.
fn outages(name: &str) -> Vec<Vec<&'static str>> {
    let each = ORIGINS.iter().filter(|_| name != "flood-of-neighbours");
    each.map(|origins| origins.to_vec()).chain([ORIGINS.concat()]).collect()
}

/// The recording without what these told but that they are down.
fn without(record: &[u8], origins: &[&str]) -> Vec<u8> {
    let mut kept = Vec::new();
    for line in lines(record) {
        let mut line: Value = serde_json::from_slice(&line.unwrap()).unwrap();
        let of = line["origin"].as_str().map(str::to_owned);
        let is_source = line["what"] == "source";
        let probes = origins.contains(&"probe");
        if is_source && probes && ["probes", "arp"].contains(&line["name"].as_str().unwrap()) {
            line["status"] = json!("down");
        } else if probes && line["what"] == "sight" {
            for key in ["teardown_end", "release", "addresses", "calls", "tasks"] {
                line[key] = json!(false);
            }
        } else if of.is_some_and(|of| origins.contains(&of.as_str())) {
            if !is_source {
                continue;
            }
            line["status"] = json!("down");
        }
        kept.extend(serde_json::to_vec(&line).unwrap());
        kept.push(b'\n');
    }
    kept
}

#[test]
fn what_was_never_heard_makes_no_finding() {
    for (name, expected) in CASES {
        let record = recording(name);
        for origins in outages(name) {
            let findings = replayed(&without(&record, &origins));
            let fired = findings.iter().filter(|finding| finding.firing_at.is_some());
            let fired: BTreeSet<&str> = fired.map(|finding| finding.code.as_str()).collect();
            let false_ones: Vec<&str> =
                fired.into_iter().filter(|code| !expected.contains(code)).collect();
            assert!(false_ones.is_empty(), "{name} without {origins:?}: {false_ones:?}");
        }
    }
}

/// The sources of a recording that these told of.
fn sources(record: &[u8], origins: &[&str]) -> BTreeSet<String> {
    let all = lines(record).map(|line| serde_json::from_slice::<Value>(&line.unwrap()).unwrap());
    let named = all.filter(|line| line["what"] == "source").filter(|line| {
        let of = line["origin"].as_str().unwrap();
        origins.contains(&of) || (of == "daemon" && origins.contains(&"probe"))
    });
    named.map(|line| line["name"].as_str().unwrap().to_owned()).collect()
}

/// What changes within an hour after the end of a recording, when these sources are down from then on.
fn an_hour_without(record: &[u8], down: &BTreeSet<String>) -> Vec<Change> {
    let mut player = Player::default();
    lines(record).for_each(|line| player.play(&line.unwrap()).unwrap());
    let (end, mut engine) = (player.at, player.engine.unwrap());
    let facts: Vec<Fact> = down
        .iter()
        .map(|name| {
            let (name, status) = (name.clone(), SourceStatus::Down);
            let what = Observation::Source(Source { name, status, detail: "gone".to_owned() });
            Fact { at: end.plus(1), origin: Origin::Daemon, what }
        })
        .collect();
    let mut changes = engine.step(&facts, end.plus(1)).changes;
    for after in [1, 10, 60, 600, 3_600] {
        let now: BootNs = end.plus(after * SECOND);
        changes.extend(engine.step(&[], now).changes);
    }
    changes
}

#[test]
fn what_is_not_heard_any_more_begins_and_ends_nothing() {
    let of = |changes: &[Change], kind: ChangeKind| -> BTreeSet<(&'static str, String)> {
        let such = changes.iter().filter(|change| change.change == kind);
        let such = such.filter(|change| change.finding.code != Code::IpamStoreUnreadable);
        such.map(|change| (change.finding.code.as_str(), change.finding.id.clone())).collect()
    };
    let mut kept = 0;
    for (name, _) in CASES {
        let record = recording(name);
        let heard = an_hour_without(&record, &BTreeSet::new());
        let (began, ended) = (of(&heard, ChangeKind::Opened), of(&heard, ChangeKind::Resolved));
        for origins in outages(name) {
            let down = sources(&record, &origins);
            let silent = an_hour_without(&record, &down);
            for (kind, before) in [(ChangeKind::Opened, &began), (ChangeKind::Resolved, &ended)] {
                let now = of(&silent, kind);
                let more: Vec<_> = now.difference(before).collect();
                assert!(more.is_empty(), "{name} without {down:?}: {kind:?} {more:?}");
            }
            if origins.len() == ORIGINS.concat().len() {
                let all = [ChangeKind::Opened, ChangeKind::Resolved].map(|kind| of(&silent, kind));
                assert!(all.iter().all(BTreeSet::is_empty), "{name}: everything is down: {all:?}");
                kept += 1;
            }
        }
    }
    assert_eq!(kept, CASES.len());
}
