//! Which room may use which: the arrows never turn. A room is a file or a folder of `ipwatch/src`.
#![allow(clippy::disallowed_methods, reason = "the files are our own source")]

use std::fs;
use std::path::{Path, PathBuf};

/// From the bottom to the top. A room uses what stands before it. Rooms of one line use each other, for the reason above
/// them.
const ORDER: &[&[&str]] = &[
    &["escape", "prefix"],
    &["fact"],
    &["clock"],
    // A read is bounded in size by the one and in time by the other.
    &["bounded", "reading"],
    // A finding is told in the contract's words, with commands that ask for findings.
    &["contract", "finding", "remedy"],
    &["map"],
    &["detect"],
    &["dial", "http", "tls"],
    &["api"],
    // The canary reads what the sources read, and its records are removed where they are read (law 12).
    &["canary", "sources"],
    &["ledger"],
    &["engine"],
    &["sinks"],
    &["metrics"],
    &["config"],
    &["daemon"],
    // `cluster` is a command, and its hostile test prints what the command prints.
    &["cli", "cluster"],
    &["fuzzing"],
];

/// Law 1: what no line of these rooms has.
const PURE: &[&str] = &["map", "detect", "engine"];
const IMPURE: &[&str] = &[
    "crate::sources",
    "crate::sinks",
    "crate::daemon",
    "crate::api",
    "std::fs",
    "std::thread",
    "std::process",
    "tokio::",
    "aya::",
    "Instant::now",
    "SystemTime",
    "clock::now",
];

fn rank(room: &str) -> Option<usize> {
    ORDER.iter().position(|line| line.contains(&room))
}

/// Every file that is part of the product, with its room and its text without comments and tests.
fn files() -> Vec<(PathBuf, String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut folders, mut found) = (vec![root.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            if path.extension().is_none_or(|end| end != "rs") {
                continue;
            }
            let own = path.strip_prefix(&root).unwrap().with_extension("");
            let parts: Vec<&str> = own.iter().filter_map(|part| part.to_str()).collect();
            let is_test = |part: &&str| *part == "testing" || part.ends_with("tests");
            if parts.iter().any(is_test) || matches!(parts[..], ["lib" | "main" | "rooms"]) {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let code = |line: &str| line.split("//").next().unwrap_or_default().to_owned() + "\n";
            let text = text.lines().map(code).collect();
            found.push((own.clone(), parts[0].to_owned(), text));
        }
    }
    found
}

/// The rooms that a text names.
fn used(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("crate::").map(|(at, word)| {
        let rest = &text[at + word.len()..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        &rest[..end.unwrap_or(rest.len())]
    })
}

#[test]
fn no_room_uses_one_above_it() {
    let files = files();
    assert!(files.len() > 300, "they are found: {}", files.len());
    let mut wrong = Vec::new();
    for (file, room, text) in &files {
        let Some(own) = rank(room) else { panic!("{} is in no room", file.display()) };
        // A name that is no room is a macro, or a room of tests.
        let above = used(text).filter(|name| rank(name).is_some_and(|theirs| theirs > own));
        wrong.extend(above.map(|name| format!("{} uses {name}", file.display())));
    }
    assert_eq!(wrong, [] as [String; 0]);
}

#[test]
fn what_is_pure_stays_so() {
    let mut wrong = Vec::new();
    for (file, room, text) in files() {
        let found = IMPURE.iter().filter(|word| PURE.contains(&&*room) && text.contains(**word));
        wrong.extend(found.map(|word| format!("{} has {word}", file.display())));
    }
    assert_eq!(wrong, [] as [String; 0]);
}
