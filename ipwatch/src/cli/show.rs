//! Turns documents into text for people. Pure: depends only on document and layout.

mod addresses;
pub(super) mod card;
mod cluster;
pub(super) mod event;
pub(super) mod family;
pub(super) mod findings;
mod fix;
pub(super) mod fleet;
pub(super) mod ip;
mod ipam;
pub(super) mod lists;
mod probes;
pub(super) mod story;
pub(super) mod tree;

use super::text;
use super::view::View;
use crate::contract::{Body, Document, SourceState};
use crate::escape::escape;
use crate::fact::SourceStatus;
use crate::finding::Finding;

/// The text of a document.
pub(super) fn document(document: &Document, view: View) -> String {
    match &document.body {
        Body::Addresses(list) => addresses::table(list, view),
        Body::Findings(list) => findings::table(document, list, view),
        Body::Neighbours(list) => lists::neighbours(list, view),
        Body::History(list) => lists::history(list, view),
        Body::Probes(list) => probes::table(document, list, view),
        Body::Ranges(list) => ipam::ipam(list, document, view),
        Body::Verdict(verdict) => ipam::verdict(verdict),
        Body::Cluster(cluster) => cluster::table(document, cluster, view),
        Body::Fix(fix) => fix::table(fix, view),
        Body::Held(held) => ipam::held(held, view),
    }
}

/// A document of addresses as trees; `findings` are the open findings. Other documents have no trees and remain
/// tables.
pub(super) fn trees(document_of: &Document, findings: &[Finding], view: View) -> String {
    match &document_of.body {
        Body::Addresses(list) => tree::render(list, findings, view),
        _ => document(document_of, view),
    }
}

/// `sources 4/5 (docker down → unknown)`: how many sources are active.
pub(super) fn sources(document: &Document) -> String {
    let (active, asked) = active(&document.sources);
    let down = document.sources.iter().any(|source| source.status == SourceStatus::Down);
    let unknown = if down { " → unknown" } else { "" };
    let blind = match text::blind_names(document).as_str() {
        "" => String::new(),
        blind => format!(" ({blind}{unknown})"),
    };
    escape(&format!("sources {active}/{asked}{blind}")).into_owned()
}

/// How many sources are active, of how many that are not disabled.
pub(super) fn active(sources: &[SourceState]) -> (usize, usize) {
    let with = |status: SourceStatus| sources.iter().filter(|one| one.status == status).count();
    (with(SourceStatus::Active), sources.len() - with(SourceStatus::Disabled))
}

/// A document of `docs/contract/`.
#[cfg(test)]
pub(in crate::cli) fn sample(name: &str) -> Document {
    serde_json::from_str(&sample_text(name)).unwrap()
}

#[cfg(test)]
pub(in crate::cli) fn sample_text(name: &str) -> String {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/contract");
    let path = std::path::Path::new(directory).join(name);
    crate::bounded::read_text(&path, 1 << 20).unwrap()
}

/// The layout used in tests.
#[cfg(test)]
fn plain(document: &Document) -> View {
    View {
        now: text::Now::of(document),
        wide: false,
        headers: true,
        all: false,
        asked: true,
        pods: false,
        width: None,
        ascii: false,
        paint: super::table::Paint(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Event;

    const DOCUMENTS: &[&str] = &[
        "query-ip.json",
        "query-ip-reach.json",
        "query-netns.json",
        "scan.json",
        "query-neigh.json",
        "query-history.json",
        "query-ipam.json",
        "check.json",
        "held.json",
        "cluster-scan.json",
        "fix.json",
        "doctor.json",
    ];

    #[test]
    fn every_document_of_the_contract_means_the_same_after_a_round_trip() {
        for name in DOCUMENTS {
            let file: serde_json::Value = serde_json::from_str(&sample_text(name)).unwrap();
            assert_eq!(serde_json::to_value(sample(name)).unwrap(), file, "{name}");
        }
    }

    #[test]
    fn every_event_of_the_contract_means_the_same_after_a_round_trip() {
        let text = sample_text("watch.jsonl");
        let mut seen = 0;
        for line in text.lines() {
            let file: serde_json::Value = serde_json::from_str(line).unwrap();
            let event: Event = serde_json::from_value(file.clone()).unwrap();
            assert_eq!(serde_json::to_value(event).unwrap(), file);
            seen += 1;
        }
        assert_eq!(seen, 6);
    }

    #[test]
    fn nothing_a_terminal_acts_on_is_left_in_any_text() {
        for name in DOCUMENTS {
            let sample = sample(name);
            for wide in [false, true] {
                let text = document(&sample, View { wide, all: true, ..plain(&sample) });
                assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{name}: {text:?}");
                assert!(text.lines().all(|line| line.trim_end() == line), "{name}: {text}");
            }
        }
    }

    #[test]
    fn headers_go_when_unwanted() {
        // A verdict is not a table.
        for name in DOCUMENTS.iter().filter(|name| **name != "check.json") {
            let sample = sample(name);
            let with = document(&sample, plain(&sample));
            let without = document(&sample, View { headers: false, ..plain(&sample) });
            assert!(without.lines().count() < with.lines().count(), "{name}");
        }
    }

    #[test]
    fn the_sources_that_do_not_tell_all_are_named() {
        let mut document = sample("scan.json");
        assert_eq!(sources(&document), "sources 5/6 (cni degraded)");
        document.sources[0].status = SourceStatus::Disabled;
        document.sources[1].status = SourceStatus::Down;
        assert_eq!(sources(&document), "sources 3/5 (cni degraded, netlink down → unknown)");
        document.sources.truncate(1);
        assert_eq!(sources(&document), "sources 0/0");
    }
}
