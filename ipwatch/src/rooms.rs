//! Tests which room may use which, so that dependencies have one direction. A room is a file or a folder of
//! `ipwatch/src`.
#![allow(clippy::disallowed_methods, reason = "the files are our own source")]

use std::fs;
use std::path::{Path, PathBuf};

/// From the bottom to the top. A room may use those before it. Rooms in the same line may use each other, for the
/// reason in the comment above them.
const ORDER: &[&[&str]] = &[
    &["escape", "nearest", "prefix", "rights"],
    &["fact"],
    &["clock"],
    // `bounded` limits a read in size, and `reading` in time.
    &["bounded", "reading"],
    &["contract"],
    &["remedy"],
    &["finding"],
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
    // A command that changes what the daemon only tells of.
    &["fix"],
    // `cluster` is a command, and its hostile test prints what the command prints.
    &["cli", "cluster"],
    &["fuzzing"],
];

/// Law 1: text that must not appear in these rooms.
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

/// Every file of the product, with its room and its text without comments and tests.
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
            let text = product(&fs::read_to_string(&path).unwrap());
            found.push((own.clone(), parts[0].to_owned(), text));
        }
    }
    found
}

/// The lines of a file without comments and test modules.
fn product(text: &str) -> String {
    let (mut found, mut lines) = (String::new(), text.lines().peekable());
    while let Some(line) = lines.next() {
        let next = lines.peek().copied().unwrap_or_default();
        if line == "#[cfg(test)]" && next.contains("mod ") && next.ends_with('{') {
            // rustfmt puts its closing brace at the margin. Blank lines replace the module, so that later lines keep
            // their numbers.
            found.push('\n');
            for _ in lines.by_ref().take_while(|line| *line != "}") {
                found.push('\n');
            }
        }
        found.push_str(line.split("//").next().unwrap_or_default());
        found.push('\n');
    }
    found
}

/// The rooms that a text names, and the line of each.
fn used(text: &str) -> Vec<(usize, &str)> {
    let word = |text: &str| {
        text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len())
    };
    let mut found = Vec::new();
    for (at, path) in text.match_indices("crate::") {
        let mut rest = &text[at + path.len()..];
        let mut name = |rest: &str| {
            let at = text.len() - rest.len();
            found.push((text[..at].lines().count(), &text[at..at + word(rest)]));
        };
        // A group: the first word at its own depth, and each word after a comma at that depth.
        let Some(group) = rest.strip_prefix('{') else {
            name(rest);
            continue;
        };
        rest = group.trim_start();
        name(rest);
        let mut depth = 0;
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => name(group[at + 1..].trim_start()),
                _ => {}
            }
        }
    }
    found
}

#[test]
fn what_a_file_uses_is_seen() {
    let text = "use crate::map::NodeMap; // crate::daemon
use crate::{
    fact::{Fact, Origin}, ledger,
};

#[cfg(test)]
mod any_tests {
    use crate::cli;
}

fn of(at: crate::clock::Time) {}
";
    let text = product(text);
    let seen: Vec<_> = used(&text).into_iter().filter(|(_, name)| !name.is_empty()).collect();
    assert_eq!(seen, [(1, "map"), (3, "fact"), (3, "ledger"), (11, "clock")]);
}

#[test]
fn no_room_uses_one_above_it() {
    let files = files();
    assert!(files.len() > 300, "they are found: {}", files.len());
    let mut wrong = Vec::new();
    for (file, room, text) in &files {
        let Some(own) = rank(room) else { panic!("{} is in no room", file.display()) };
        // A name that is not a room is a macro, or a room of tests.
        let is_above = |(_, name): &(usize, &str)| rank(name).is_some_and(|theirs| theirs > own);
        let above = used(text).into_iter().filter(is_above);
        wrong.extend(above.map(|(line, name)| format!("{}.rs:{line} uses {name}", file.display())));
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
