//! The recordings of field cases in `recordings/`, made by `cargo xtask recordings`: the engine must find what
//! `CASES` lists for each, and nothing else.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::tests::{replayed, spelled_out};

/// The name of a recording, and the codes of the findings that fire in it.
pub(super) const CASES: [(&str, &[&str]); 11] = [
    ("api-server-is-silent", &[]),
    ("del-never-called", &["ipam-range-exhausting", "ipam-reservation-leaked"]),
    ("del-of-an-old-sandbox", &["cni-del-hits-successor"]),
    ("device-busy", &["mount-leak-blocks-removal"]),
    ("duplicate-on-a-bridge", &["ip-duplicate"]),
    ("exit-group", &["ip-held-by-stuck-process"]),
    ("flood-of-neighbours", &[]),
    (
        "freed-while-held",
        &[
            "ip-conflict-imminent",
            "ip-held-by-dead-sandbox",
            "ip-held-by-deleted-pod",
            "ip-held-by-stuck-process",
            "ip-released-but-held",
            "ipam-range-exhausting",
            "mount-leak-blocks-removal",
        ],
    ),
    ("node-crash", &["ipam-range-exhausting", "netns-leaked"]),
    ("range-full", &["ipam-range-exhausting", "netns-leaked"]),
    ("whereabouts-after-a-crash", &["ipam-range-exhausting", "ipam-reservation-leaked"]),
];

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../recordings")
}

#[allow(clippy::disallowed_methods, reason = "files of the repository")]
fn file(name: &str) -> Vec<u8> {
    std::fs::read(directory().join(format!("{name}.jsonl"))).unwrap()
}

/// A recording without repetitions, whose lines may be changed one by one.
pub(super) fn recording(name: &str) -> Vec<u8> {
    spelled_out(&file(name))
}

#[test]
fn each_case_is_found_and_nothing_else() {
    for (name, expected) in CASES {
        let findings = replayed(&file(name));
        let fired = findings.iter().filter(|finding| finding.firing_at.is_some());
        let fired: BTreeSet<&str> = fired.map(|finding| finding.code.as_str()).collect();
        assert_eq!(fired, expected.iter().copied().collect(), "{name}");
        // Pending findings may only have the codes of firing ones; a healthy node must have none.
        let all: BTreeSet<&str> = findings.iter().map(|finding| finding.code.as_str()).collect();
        assert!(!expected.is_empty() || all.is_empty(), "{name}: {all:?}");
    }
}

#[test]
fn each_recording_has_a_case_and_names_no_machine() {
    let files = std::fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|file| file.extension().is_some_and(|end| end == "jsonl"));
    let names: BTreeSet<String> =
        files.map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    assert_eq!(names, CASES.map(|(name, _)| name.to_owned()).into());
    for name in names {
        let text = String::from_utf8(file(&name)).unwrap();
        assert!(text.len() < 600_000, "{name}: {} bytes", text.len());
        let own = ["/root/", "/home/", env!("CARGO_MANIFEST_DIR")];
        let named = own.iter().find(|path| text.contains(**path));
        assert_eq!(named, None, "{name}");
    }
}
