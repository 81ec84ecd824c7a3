//! What nodes say is foreign text, also about their own names.

use super::super::{plain, sample};
use super::*;
use crate::contract::SCHEMA;

const AGENTS: Agents<'static> = Agents { namespace: "ipwatch", flags: &[] };

fn fleet(change: impl Fn(&mut FleetNode)) -> Fleet {
    let node = |n: usize| {
        let documents = vec![sample("scan.json")];
        let mut node = FleetNode {
            node: format!("node-{n}"),
            pod: format!("ipwatch-{n}"),
            error: None,
            documents,
        };
        change(&mut node);
        node
    };
    let nodes = (1..3).map(node).collect();
    Fleet {
        schema: SCHEMA.to_owned(),
        taken_at: "2026-01-02T03:10:11.000Z".to_owned(),
        nodes,
        nodes_unlisted: None,
    }
}

#[test]
fn nothing_of_a_node_reaches_the_terminal_or_a_shell_unescaped() {
    let hostile = "x\u{1b}]52;c;aGk=\u{7} $(reboot)\n\u{202e}";
    let fleet = fleet(|node| {
        node.node = hostile.to_owned();
        node.pod = hostile.to_owned();
        if let Some(Document { body: Body::Findings(findings), .. }) = node.documents.first_mut() {
            for finding in findings {
                finding.id = format!("{hostile}{}", finding.id);
                finding.impact = hostile.to_owned();
            }
        }
    });
    let silent = Fleet {
        nodes: vec![FleetNode {
            node: hostile.to_owned(),
            pod: String::new(),
            error: Some(hostile.to_owned()),
            documents: Vec::new(),
        }],
        nodes_unlisted: Some(hostile.to_owned()),
        ..fleet.clone()
    };
    let view = plain(&sample("scan.json"));
    for fleet in [fleet, silent] {
        let ip = "10.0.3.17".parse().unwrap();
        for text in [findings(&fleet, None, &AGENTS, view).0, super::ip(&fleet, ip, view).0] {
            assert!(!text.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{text:?}");
            let next = text.lines().find(|line| line.starts_with("Next: ")).unwrap_or_default();
            assert!(!next.contains("$("), "{next}");
        }
    }
}

#[test]
fn the_worst_comes_first_and_consequences_are_folded() {
    let fleet = fleet(|_| ());
    let view = plain(&sample("scan.json"));
    let (text, found) = findings(&fleet, None, &AGENTS, view);
    assert!(found);
    let rows: Vec<&str> =
        text.lines().filter(|line| line.starts_with(char::is_uppercase)).collect();
    assert!(rows[0].starts_with("SEV") && rows[1].starts_with("WARN"), "{text}");
    assert!(text.contains(" · 2 consequences folded, critical (--all)"), "{text}");
    let (all, _) = findings(&fleet, None, &AGENTS, View { all: true, ..view });
    assert!(all.lines().count() > text.lines().count(), "{all}");
}

#[test]
fn no_node_hides_what_another_says_of_the_same() {
    let fleet = fleet(|node| {
        let Some(Document { body: Body::Findings(findings), .. }) = node.documents.first_mut()
        else {
            panic!("findings")
        };
        if node.node == "node-1" {
            findings.retain(|finding| finding.caused_by.is_none());
            findings.iter_mut().for_each(|finding| finding.severity = Severity::Info);
        }
    });
    let view = plain(&sample("scan.json"));
    let (text, _) = findings(&fleet, None, &AGENTS, view);
    assert!(text.starts_with("2 nodes   1 cause, 1 critical\n"), "{text}");
    assert!(text.contains("node-2 +1") && text.contains(" · 2 consequences folded"), "{text}");
    assert!(text.contains("exec -n ipwatch ipwatch-2 "), "the worse one explains it: {text}");
}

#[test]
fn what_is_beyond_the_page_of_an_ip_is_counted() {
    let past = |node: &mut FleetNode| {
        let mut history = sample("query-history.json");
        let Body::History(list) = &mut history.body else { panic!("history") };
        let over = list.iter().find(|tenure| tenure.to.is_some()).unwrap().clone();
        *list = vec![over; 15];
        let mut reserved = sample("query-ipam.json");
        let ip = reserved.reservations[0].ip;
        reserved.reservations.retain(|entry| entry.ip == ip);
        let one = reserved.reservations[0].clone();
        reserved.reservations = vec![one; 12];
        node.documents = vec![history, reserved];
    };
    let ip = sample("query-ipam.json").reservations[0].ip;
    let (text, _) = super::ip(&fleet(past), ip, plain(&sample("scan.json")));
    assert!(text.contains("… and 10 earlier owners (-o json)\n"), "{text}");
    assert!(text.contains("… and 4 more reservations (-o json)\n"), "{text}");
}
