//! Checks that every command that changes something has a precondition, in every case.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::hostile::{Line, as_meant, bare, tapes};
use super::*;
use crate::finding::finding_id;
use crate::remedy::{Command, NEVER, Run};

/// The findings of all cases with the original names.
fn found() -> Vec<Candidate> {
    tapes().iter().flat_map(|tape| as_meant(tape)).collect()
}

/// Whether the first run is a program whose status tells if something is unchanged.
fn asks(runs: &[Run]) -> bool {
    let piped = runs.iter().position(|run| !run.pipe).map_or(runs.len(), |last| last + 1);
    let says = |run: &Run| match &*run.argv[0] {
        "grep" => run.argv.iter().any(|word| word.starts_with("-q")),
        "test" => true,
        "sh" => run.argv[2].contains("exit 1") || run.argv[2].contains("[ -z"),
        _ => false,
    };
    runs[..piped].last().is_some_and(says) && piped < runs.len()
}

/// A request that tests first, or a script that compares under the store's lock.
fn carries_its_own(runs: &[Run]) -> bool {
    let words = || runs[0].argv.iter();
    match &*runs[0].argv[0] {
        "kubectl" => words().any(|word| word.starts_with("--patch=[{\"op\":\"test\"")),
        "flock" => words().any(|word| word.contains("] && rm -- ")),
        "sh" => words().any(|word| word.contains("[ ! -s \"$1\" ] && rm -- ")),
        _ => false,
    }
}

#[test]
fn whatever_changes_something_has_its_precondition_in_front() {
    let mut bare = BTreeSet::new();
    for one in found() {
        for step in one.remediation.iter().filter(|step| step.changes) {
            let runs = step.command.as_ref().unwrap().runs();
            if !asks(runs) && !carries_its_own(runs) {
                bare.insert(format!("{}: {}", one.code, step.line()));
            }
        }
    }
    assert!(bare.is_empty(), "{bare:#?}");
    let found = found();
    let told = |part| {
        let steps = found.iter().flat_map(|one| &one.remediation);
        steps.into_iter().any(|step| step.changes && step.line().contains(part))
    };
    let all = ["crictl stopp ", "crictl rmp ", "docker rm ", "umount -N ", " netns 1", "kubectl "];
    for part in all {
        assert!(told(part), "{part}: no case has it");
    }
}

/// Another open finding about the same IP is no precondition.
#[test]
fn a_precondition_asks_for_its_own_finding() {
    let mut others = BTreeSet::new();
    for one in found() {
        let id = finding_id(one.code, &one.key);
        for step in &one.remediation {
            let runs = step.command.iter().flat_map(Command::runs);
            let asks = runs.filter(|run| run.argv[..2] == ["ipwatch", "query"] && run.pipe);
            if asks.into_iter().any(|run| run.argv[3] != id) {
                others.insert(format!("{}: {}", one.code, step.line()));
            }
        }
    }
    assert!(others.is_empty(), "{others:#?}");
}

/// A command that ends a process or a container, or cordons a node, must check its finding: nothing else proves that
/// something is still wrong, because the process may be the same and its container known to its runtime again.
#[test]
fn what_ends_something_asks_for_its_finding() {
    let mut others = BTreeSet::new();
    let mut ends = BTreeSet::new();
    for one in found() {
        let id = finding_id(one.code, &one.key);
        for step in one.remediation.iter().filter(|step| step.changes) {
            let runs = step.command.as_ref().unwrap().runs();
            let program = &*runs.last().unwrap().argv[0];
            let patches = runs[0].argv[..2] == ["kubectl", "patch"];
            if patches || !["kill", "crictl", "docker", "kubectl"].contains(&program) {
                continue;
            }
            ends.insert(program.to_owned());
            if !runs[0].argv.contains(&id) {
                others.insert(format!("{}: {}", one.code, step.line()));
            }
        }
    }
    assert!(others.is_empty(), "{others:#?}");
    assert_eq!(ends.len(), 4, "{ends:?}");
}

/// Advice in prose must state its condition, and must not look like a command to paste.
#[test]
fn what_is_done_by_hand_says_on_which_condition() {
    const HARM: &[&str] = &[
        " abort",
        "/abort",
        "haw ",
        " directory",
        "route del",
        "elete ",
        "deleted",
        "elete ",
        "End the",
        "Unmount ",
        "emove ",
        "removed",
        "released",
    ];
    const PASTED: &[&str] = &["crictl rmp", "ip route del", "fsfreeze --", "mount -t", "rm -"];
    let mut loose = BTreeSet::new();
    for one in found() {
        for step in one.remediation.iter().filter(|step| !step.changes) {
            let text = bare(step.what.as_str());
            let never = text.starts_with(NEVER);
            let harms = step.command.is_none() && HARM.iter().any(|word| text.contains(word));
            let bound =
                ["only while", "only if", "no command"].iter().any(|part| text.contains(part));
            if (harms && !never && !bound) || PASTED.iter().any(|part| text.contains(part)) {
                loose.insert(format!("{}: {text}", one.code));
            }
        }
    }
    assert!(loose.is_empty(), "{loose:#?}");
}

/// `crictl` queries one runtime, by CRI: it does not know containers of Docker or Podman.
#[test]
fn crictl_is_told_only_of_what_a_cri_runtime_has() {
    let asked = |found: Vec<Candidate>| {
        let steps = found.into_iter().flat_map(|one| one.remediation);
        let commands = steps.filter_map(|step| step.command);
        let asks = |run: &Run| run.argv[0] == "crictl" && run.argv[1] != "pods";
        commands.filter(|one| one.runs().iter().any(asks)).map(|one| one.sh()).collect::<Vec<_>>()
    };
    assert!(asked(found()).iter().any(|line| line.contains("crictl inspectp ")));
    for runtime in ["docker", "podman", "containerd (/run/other.sock)", "nerdctl"] {
        let words = BTreeMap::from([("containerd".to_owned(), runtime.to_owned())]);
        let of_another = |tape: Vec<Line>| {
            let tape = tape.into_iter().map(|line| match line {
                Line::Fact(fact) => {
                    let mut value = serde_json::to_value(&fact).unwrap();
                    renamed(&mut value, &words);
                    Line::Fact(serde_json::from_value(value).map_or(fact, Box::new))
                }
                other => other,
            });
            tape.collect::<Vec<_>>()
        };
        let all = tapes().into_iter().flat_map(|tape| as_meant(&of_another(tape)));
        let told = asked(all.collect());
        assert!(told.is_empty(), "{runtime}: {told:#?}");
    }
}

/// Replaces every text that is exactly one of these words.
fn renamed(value: &mut Value, words: &BTreeMap<String, String>) {
    match value {
        Value::Object(object) => object.values_mut().for_each(|value| renamed(value, words)),
        Value::Array(list) => list.iter_mut().for_each(|value| renamed(value, words)),
        Value::String(text) => {
            if let Some(other) = words.get(text) {
                other.clone_into(text);
            }
        }
        _ => {}
    }
}
