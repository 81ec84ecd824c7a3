//! Tests: forms that must not occur in any remedy, hint or runbook; and consistency of the commands in the contract's
//! examples.

use std::path::{Path, PathBuf};

use crate::contract::{Body, Document, Run, Step};

pub(super) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

pub(super) fn text(path: &Path) -> std::io::Result<String> {
    crate::bounded::read_text(path, 4 << 20)
}

/// Every text file in a directory, recursively.
pub(super) fn files(dir: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            files(&path, found);
        } else if let Ok(text) = text(&path) {
            found.push((path, text));
        }
    }
}

/// What is wrong with a line, if anything.
fn forbidden(line: &str) -> Option<&'static str> {
    let has = |word: &str| line.contains(word);
    // In the words of a command: `-m` of `nsenter` may be combined with other flags.
    let short = |program: &str, letter: char| {
        let mut words = line.split(['`', ' ']).skip_while(|word| *word != program).skip(1);
        words.any(|word| {
            let flags = word.strip_prefix('-').filter(|flags| !flags.starts_with('-'));
            flags.is_some_and(|flags| flags.contains(letter))
        })
    };
    if has("nsenter")
        && (has("--mount") || has("--all") || short("nsenter", 'm') || short("nsenter", 'a'))
    {
        return Some("it runs what a container has: umount -N, or no command");
    }
    if has("nsenter -t") {
        return Some("--net=/proc/PID/ns/net says what is entered");
    }
    let kills = ["    kill ", "`kill PID", "`kill -9 PID", ": kill {", "\"kill {"];
    if kills.iter().any(|kill| has(kill)) && !has("/stat && kill") {
        return Some("the pid may be another process's by now: compare its start time");
    }
    if has("-N PID ") && !has("&& umount ") {
        return Some("the pid may be another process's by now: compare it first");
    }
    if has("grep -q \"^$") || has("grep -q '^$") {
        return Some("an id that only begins alike is another one");
    }
    let reservation = has("/networks/") || has("$ip") || has("IP");
    if has("rm -- \"$") && !(has("flock") && (has("= \"$2\" ] &&") || has("! -s"))) {
        return Some("a reservation is removed under the store's lock, if it is still the same");
    }
    if (has("rm /var/lib/cni") || has("rm IP")) && reservation {
        return Some("a reservation is removed under the store's lock, if it is still the same");
    }
    if has("ipwatch check") && has("&& ") && has("crictl") {
        return Some("check says no to an IP that is reserved");
    }
    if has("kubectl delete overlapping") || (has("kubectl") && has("patch ippools") && has(" -p "))
    {
        return Some("nothing tells whether it is still the same");
    }
    if has("docker rm -f") {
        return Some("it ends a container that was started again");
    }
    has("ipam release --ip").then_some("nothing guards it")
}

#[test]
fn what_is_forbidden_is_seen() {
    for line in [
        "    nsenter --mount=/proc/1/ns/mnt umount /x",
        "run `nsenter -t 1 -m umount`",
        "    nsenter -t PID -n ip neigh",
        "    kill PID…",
        "then `kill -9 PID`",
        "    umount -f -N PID PATH",
        "flock lock sh -c 'head -n 1 \"$1\" | grep -q \"^$2\" && rm -- \"$1\"' sh IP ID",
        "  rm -- \"$ip\"",
        "ipwatch check 10.0.0.1 && crictl inspectp x",
        "kubectl delete overlappingrangeipreservations.whereabouts.cni.cncf.io 10.0.0.1",
        "docker rm -f ID",
    ] {
        assert!(forbidden(line).is_some(), "{line}");
    }
    for line in [
        "    nsenter --net=PATH ip -d link show",
        "    grep -qE 'x' /proc/PID/task/PID/stat && kill -9 PID",
        "- **`kill -9` again.** It is pending",
        "    readlink /proc/PID/ns/mnt | grep -qxF 'mnt:[N]' && umount -N PID PATH",
    ] {
        assert_eq!(forbidden(line), None, "{line}");
    }
}

#[test]
fn no_runbook_remedy_or_hint_has_a_forbidden_form() {
    let mut all = Vec::new();
    for dir in ["docs", "deploy", "ipwatch/src/detect", "ipwatch/src/cluster", "ipwatch/src/cli"] {
        files(&repository().join(dir), &mut all);
    }
    let beside = ["detect", "cluster", "cli"].map(|room| format!("ipwatch/src/{room}.rs"));
    for file in ["README.md", "CHANGELOG.md"].into_iter().chain(beside.iter().map(String::as_str)) {
        let path = repository().join(file);
        let text = text(&path).unwrap();
        all.push((path, text));
    }
    assert!(all.len() > 100, "{}", all.len());
    let wrong: Vec<String> = (all.iter())
        .flat_map(|(path, text)| {
            let lines = text.lines().enumerate();
            lines.filter_map(move |(at, line)| {
                let why = forbidden(line)?;
                Some(format!("{}:{}: {why}\n    {}", path.display(), at + 1, line.trim()))
            })
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The command line of these runs.
fn written(runs: &[Run]) -> String {
    let mut out = String::new();
    for (at, run) in runs.iter().enumerate() {
        let words: Vec<String> = run.argv.iter().map(|word| super::command::quoted(word)).collect();
        out.push_str(&words.join(" "));
        if let Some(to) = &run.to {
            out.push_str(&format!(" > {}", super::command::quoted(to)));
        }
        if at + 1 < runs.len() {
            out.push_str(if run.pipe { " | " } else { " && " });
        }
    }
    out
}

#[test]
fn the_examples_of_the_contract_say_the_same_three_times() {
    let path = repository().join("docs/contract/scan.json");
    let document: Document = serde_json::from_str(&text(&path).unwrap()).unwrap();
    let Body::Findings(findings) = document.body else { panic!("findings") };
    for finding in findings {
        assert!(!finding.steps.is_empty(), "{}", finding.id);
        let line = |step: &Step| match &step.command {
            Some(command) => format!("{}: {command}", step.what),
            None => step.what.clone(),
        };
        let lines: Vec<String> = finding.steps.iter().map(line).collect();
        assert_eq!(finding.remediation, lines);
        for step in &finding.steps {
            assert_eq!(written(&step.runs), step.command.clone().unwrap_or_default());
        }
    }
}

#[test]
fn what_an_older_version_wrote_still_reads() {
    let path = repository().join("docs/contract/scan.json");
    let mut document: serde_json::Value = serde_json::from_str(&text(&path).unwrap()).unwrap();
    for finding in document["findings"].as_array_mut().unwrap() {
        finding.as_object_mut().unwrap().remove("steps");
        let finding: crate::contract::Finding = serde_json::from_value(finding.clone()).unwrap();
        assert!(finding.steps.is_empty() && !finding.remediation.is_empty());
    }
}
