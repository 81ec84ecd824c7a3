//! Hostile names in every output: terminal output in each format, the journal, spans, log records, Events and
//! metrics. A foreign name must not control a terminal or create a line or field, and its length must be limited.

use clap::ValueEnum as _;
use serde_json::Value;

use super::args::{Cli, Format};
use super::output::Out;
use super::show::{sample, story};
use super::view::View;
use crate::contract::{Body, Document};
use crate::finding::{Change, ChangeKind, Finding};
use crate::testing::words::words;
use crate::{metrics, sinks};

/// A document of each kind.
const DOCUMENTS: [&str; 8] = [
    "doctor.json",
    "query-history.json",
    "query-ip.json",
    "query-ip-reach.json",
    "query-ipam.json",
    "query-neigh.json",
    "query-netns.json",
    "scan.json",
];
/// Fields whose values others choose, or that quote such values.
const FOREIGN: [&str; 15] = [
    "comm",
    "detail",
    "hook",
    "impact",
    "interface",
    "mount_ns_comm",
    "mount_path",
    "name",
    "namespace",
    "network",
    "note",
    "path",
    "text",
    "uid",
    "what",
];
/// Maximum size of a sent field, in bytes: a journal field is the longest.
const LONGEST: usize = 16 << 10;

/// The same with this word in each of these fields.
pub(super) fn with(word: &str, value: &mut Value) {
    match value {
        Value::Object(object) => {
            for (field, value) in object {
                match value {
                    // `refused` has kinds of names, not names.
                    _ if field == "refused" => {}
                    Value::String(text) if FOREIGN.contains(&field.as_str()) => {
                        word.clone_into(text);
                    }
                    value => with(word, value),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| with(word, value)),
        _ => {}
    }
}

pub(super) fn document(name: &str, word: &str) -> Document {
    let mut value = serde_json::to_value(sample(name)).unwrap();
    with(word, &mut value);
    serde_json::from_value(value).unwrap()
}

/// The output for a document in each format.
fn printed(document: &Document) -> Vec<(String, String)> {
    let mut printed = Vec::new();
    for format in Format::value_variants() {
        let name = format.to_possible_value().unwrap().get_name().to_owned();
        let line = ["ipwatch", "-o", &name, "query", "ip"];
        let out = Out::new(&Cli::read(line.map(Into::into).into()).unwrap().global);
        let view = View { all: true, ..out.view(document) };
        printed.push((name.clone(), out.render(document, view).unwrap()));
        if let Body::Findings(all) = &document.body {
            printed
                .push((format!("{name} explain"), story::render(document, all, all, true, view)));
        }
    }
    printed
}

/// The texts about a finding that leave the node or are logged.
fn sent(finding: &Finding) -> Vec<(String, String)> {
    let kinds = [ChangeKind::Opened, ChangeKind::Updated, ChangeKind::Resolved];
    kinds
        .iter()
        .flat_map(|kind| sinks::tests::texts(&Change::new(*kind, finding.clone())))
        .collect()
}

/// Not by `escape`, which it is about: no control character, and none that is invisible or turns the direction.
pub(super) fn is_harmless(text: &str) -> bool {
    let unseen = ['\u{200b}', '\u{202e}', '\u{2066}', '\u{feff}', '\u{e0041}'];
    text.lines().all(|line| !line.chars().any(|c| c.is_control() || unseen.contains(&c)))
}

#[test]
fn no_word_of_a_stranger_steers_a_terminal_or_makes_a_line() {
    for name in DOCUMENTS {
        // YAML writes a text of several lines as an indented block.
        let lines = |word: &str| -> Vec<usize> {
            let printed = printed(&document(name, word)).into_iter();
            let printed = printed.filter(|(format, _)| !format.starts_with("yaml"));
            printed.map(|(_, text)| text.lines().count()).collect()
        };
        // A word that is quoted, as most of the corpus is.
        let plain = lines("a word");
        for word in words() {
            for (format, text) in printed(&document(name, &word)) {
                assert!(
                    is_harmless(&text),
                    "{name} as {format}: {:?}",
                    &word[..word.len().min(80)]
                );
            }
            assert_eq!(lines(&word), plain, "{name}: {:?}", &word[..word.floor_char_boundary(80)]);
        }
    }
}

#[test]
fn no_word_of_a_stranger_forges_a_field_of_what_is_sent_or_logged() {
    let findings = |word: &str| match document("scan.json", word).body {
        Body::Findings(findings) => findings,
        _ => panic!("findings"),
    };
    for word in words() {
        for (plain, finding) in findings("a word").iter().zip(findings(&word)) {
            let (plain, told) = (sent(plain), sent(&finding));
            let names = |all: &[(String, String)]| {
                all.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>()
            };
            assert_eq!(names(&plain), names(&told), "the same fields");
            for ((_, plain), (field, text)) in plain.iter().zip(&told) {
                assert!(is_harmless(text), "{field}: {text:?}");
                assert!(text.len() <= LONGEST, "{field} has {} bytes", text.len());
                assert!(text.lines().count() <= plain.lines().count().max(1), "{field}: {text}");
            }
        }
        let page = metrics::page_of(&word);
        assert!(is_harmless(&page), "{page}");
        assert_eq!(page.lines().count(), metrics::page_of("a word").lines().count(), "{page}");
    }
}
