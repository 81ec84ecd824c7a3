//! The contract's examples with a word in every place where the contract has text, also in lists, except what `OWN` names.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::Event;
use crate::cli::show::sample_text;
use crate::contract::{Document, SCHEMA};

/// A document of each kind.
pub(super) const DOCUMENTS: [&str; 12] = [
    "check.json",
    "cluster-scan.json",
    "doctor.json",
    "fix.json",
    "held.json",
    "query-history.json",
    "query-ip-reach.json",
    "query-ip.json",
    "query-ipam.json",
    "query-neigh.json",
    "query-netns.json",
    "scan.json",
];

/// Words of ipwatch itself in fields that are text. They stay, because they decide which rows, columns and sentences are
/// shown: with another word in their place, the names beside them would not be printed. The same field may also have a
/// stranger's word, such as a runtime's for the state of a container; that one is replaced.
///
/// Three kinds of values stay as well: those of a type other than text (an IP, a MAC, a code, a severity), where no other
/// word can be read; dates ([`is_date`]); and ids of findings ([`is_id`]).
const OWN: [(&str, &[&str]); 8] = [
    // A document of another schema is refused.
    ("schema", &[SCHEMA]),
    // The daemon's own, which `--redact` keeps.
    ("version", &["0.1.0"]),
    ("status", &["active", "fallback", "degraded", "missing"]),
    ("verdict", &["seen", "not-seen", "not-tried"]),
    ("state", &["host", "dying", "REACHABLE", "STALE", "FAILED", "GONE"]),
    ("certainty", &["certain", "likely", "doubtful"]),
    ("agree", &["yes", "leaked", "unknown"]),
    ("runtime", &["alive", "dead", "denied"]),
];

/// RFC 3339, written by the daemon.
fn is_date(text: &str) -> bool {
    text.parse::<jiff::Timestamp>().is_ok()
}

/// A hash that the daemon computes. Findings refer to each other by it.
fn is_id(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

fn is_own(field: &str, text: &str) -> bool {
    let is_word = OWN.iter().any(|(own, words)| *own == field && words.contains(&text));
    is_word || is_date(text) || is_id(text)
}

/// An example, and where a word can stand in it.
struct Example {
    value: Value,
    /// JSON pointers.
    places: Vec<String>,
}

impl Example {
    fn of<T: DeserializeOwned>(text: &str) -> Self {
        let value: Value = serde_json::from_str(text).unwrap();
        let mut places = Vec::new();
        texts(&value, "", String::new(), &mut places);
        let mut example = Self { value, places: Vec::new() };
        // A document with a word where a type has no text cannot be read.
        places.retain(|place| {
            let filled = example.filled(std::slice::from_ref(place), "a word");
            serde_json::from_value::<T>(filled).is_ok()
        });
        assert!(!places.is_empty(), "nothing of it is a stranger's: {text}");
        example.places = places;
        example
    }

    fn filled(&self, places: &[String], word: &str) -> Value {
        let mut value = self.value.clone();
        for place in places {
            *value.pointer_mut(place).unwrap() = word.into();
        }
        value
    }

    fn with<T: DeserializeOwned>(&self, word: &str) -> T {
        serde_json::from_value(self.filled(&self.places, word)).unwrap()
    }
}

/// The places of every text that is not our own, also of those within lists.
fn texts(value: &Value, field: &str, at: String, found: &mut Vec<String>) {
    match value {
        // No field of the contract has a name that a pointer would escape.
        Value::Object(object) => object
            .iter()
            .for_each(|(field, value)| texts(value, field, format!("{at}/{field}"), found)),
        Value::Array(list) => list
            .iter()
            .enumerate()
            .for_each(|(index, value)| texts(value, field, format!("{at}/{index}"), found)),
        Value::String(text) if !is_own(field, text) => found.push(at),
        _ => {}
    }
}

/// This example with the word.
pub(in crate::cli) fn document(name: &str, word: &str) -> Document {
    static ALL: LazyLock<BTreeMap<&str, Example>> = LazyLock::new(|| {
        let read = |name: &'static str| (name, Example::of::<Document>(&sample_text(name)));
        DOCUMENTS.into_iter().map(read).collect()
    });
    ALL[name].with(word)
}

/// An event of each kind with the word.
pub(in crate::cli) fn events(word: &str) -> Vec<Event> {
    static ALL: LazyLock<Vec<Example>> = LazyLock::new(|| {
        let text = sample_text("watch.jsonl");
        // The event that some are missing has a number alone.
        let lines = text.lines().filter(|line| !line.contains("\"lagged\""));
        lines.map(Example::of::<Event>).collect()
    });
    ALL.iter().map(|event| event.with(word)).collect()
}

#[test]
fn a_word_stands_wherever_a_stranger_can_have_put_it() {
    let of = |name: &str| serde_json::to_string(&document(name, "WORD")).unwrap();
    for (name, texts) in [
        ("check.json", &["\"reasons\":[\"WORD\"]", "\"pools\":[\"WORD\""][..]),
        ("scan.json", &["\"remediation\":[\"WORD\"", "\"argv\":[\"WORD\"", "\"command\":\"WORD\""]),
        ("fix.json", &["\"proof\":[\"WORD\"", "\"why\":\"WORD\"", "\"ifname\":\"WORD\""]),
        ("cluster-scan.json", &["\"pods\":[\"WORD\"", "\"evidence\":[\"WORD\"", "\"id\":\"WORD\""]),
        ("query-history.json", &["\"plugin\":\"WORD\"", "\"container_id\":\"WORD\""]),
        ("query-netns.json", &["\"key\":\"WORD\"", "\"state\":\"WORD\"", "\"socket\":\"WORD\""]),
        ("doctor.json", &["\"why\":\"WORD\"", "\"status\":\"missing\"", "\"kernel\":\"WORD\""]),
    ] {
        let document = of(name);
        texts.iter().for_each(|text| assert!(document.contains(text), "{text}: {document}"));
    }
    let scan = of("scan.json");
    for own in ["ip-held-by-stuck-process", "k3f9q2m7x5wz4a6b", "2026-01-02T03:10:10.000Z"] {
        assert!(scan.contains(own), "{own}: {scan}");
    }
}
