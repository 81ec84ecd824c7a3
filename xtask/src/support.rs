//! `cargo xtask support`: what is seen on each stock kernel, event by event, as reported by `doctor` there.
//!
//! The reports are kept in `docs/support/*.json`, and the tables of `docs/support/README.md` are generated from them,
//! so that the tables claim only what was seen. For systems that were not tested, they say so and what to expect from
//! their kernels.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};

use crate::vm::{self, Stock};
use crate::{build, place};

/// Systems that were not tested here: name, kernels by their own documentation, and what to expect from them.
const NOT_RUN: [(&str, &str, &str); 13] = [
    (
        "RHEL 8",
        "4.18 with newer BPF",
        "not supported: whether its BPF suffices is not known; else netlink and procfs",
    ),
    ("RHEL 9", "5.14 with newer BPF", "as on 5.10, with cookies of network namespaces"),
    (
        "Ubuntu 20.04",
        "5.4; HWE 5.15",
        "5.4: no ring buffer and no probe, netlink and procfs; 5.15: as on 5.10, with cookies",
    ),
    ("Ubuntu 22.04", "5.15; HWE 6.8", "5.15: as on 5.10, with cookies; 6.8: as on 6.12"),
    ("Ubuntu 24.04", "6.8; HWE newer", "as on 6.12"),
    ("Amazon Linux 2", "4.14, 5.4, 5.10", "5.10: as on Debian's; the older: netlink and procfs"),
    ("Amazon Linux 2023", "6.1, 6.12", "as on Debian's"),
    (
        "Bottlerocket",
        "5.10, 5.15, 6.1, 6.12 by variant; lockdown=integrity since 1.1",
        "as on the nearest version below; as 6.12 under integrity shows, that takes nothing away",
    ),
    ("Container-Optimized OS", "5.10 to 6.6 by milestone", "as on the nearest version below"),
    (
        "Talos",
        "6.1 and newer by release; Secure Boot images up to 1.13: lockdown=confidentiality",
        "as on the nearest version below; those images: as on 6.12 under confidentiality",
    ),
    (
        "arm64, Debian 12",
        "6.1, 6.12",
        "`cargo xtask test --only arm64` runs a part of the tests; fentry from 6.4 or so",
    ),
    (
        "any system",
        "5.8 to 5.9",
        "probes, but netns-list by procfs (`BPF_PROG_TEST_RUN` of a raw tracepoint is 5.10)",
    ),
    ("any system", "before 5.8, or without BTF", "no probe: netlink and procfs"),
];

/// Boots these kernels, or all, keeps the reports, and regenerates the tables. `--table` boots none.
pub(crate) fn command(names: &[&str]) -> Result<()> {
    if names != ["--table"] {
        ask(names)?;
    }
    let readme = directory().join("README.md");
    let text = fs::read_to_string(&readme)?;
    Ok(fs::write(readme, with_tables(&text, &tables(&read()?))?)?)
}

fn ask(names: &[&str]) -> Result<()> {
    let mut kernels = names.iter().map(|name| vm::named(name)).collect::<Result<Vec<_>>>()?;
    if kernels.is_empty() {
        kernels = vm::usual(true);
    }
    let binaries = build::for_tests()?;
    for kernel in kernels {
        let document = serde_json::from_str(&vm::doctor(kernel, &binaries)?)
            .with_context(|| format!("not JSON, on Linux {}", kernel.name))?;
        let text = serde_json::to_string_pretty(&shown(&document)?)?;
        fs::write(directory().join(format!("{}.json", kernel.name)), text + "\n")?;
    }
    Ok(())
}

fn directory() -> PathBuf {
    place::repository().join("docs/support")
}

/// The part of a VM's output (a `doctor` document and its kernel) that is kept: the kernel, the rung of each event,
/// and its canary verdict. Counts and times are dropped: they belong to that boot.
fn shown(document: &Value) -> Result<Value> {
    let probes = document["doctor"]["probes"].as_array().context("no probes")?;
    let event = |probe: &Value| {
        let keys = ["event", "rung", "status", "why"];
        let known = keys.iter().filter(|key| !probe[**key].is_null());
        let mut kept: Map<_, _> =
            known.map(|key| ((*key).to_owned(), probe[*key].clone())).collect();
        let canary = &probe["canary"];
        for (key, value) in [("canary", &canary["verdict"]), ("canary-why", &canary["why"])] {
            if !value.is_null() {
                kept.insert(key.to_owned(), value.clone());
            }
        }
        // The kernel half emits no record for a healthy task, so the event was counted.
        if canary["verdict"] == "seen" && canary["micros"].is_null() {
            kept.insert("canary".to_owned(), "counted".into());
        }
        Value::Object(kept)
    };
    Ok(json!({
        "kernel": document["kernel"],
        "events": probes.iter().map(event).collect::<Vec<_>>(),
    }))
}

/// The kept reports, by kernel name.
fn read() -> Result<BTreeMap<String, Value>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(directory())?.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            all.insert(name, serde_json::from_str(&fs::read_to_string(&path)?)?);
        }
    }
    Ok(all)
}

/// The columns: every kernel of a long run, including those that were not run yet.
fn columns() -> Vec<Stock> {
    let mut kernels = vm::usual(true);
    // From the oldest to the newest; locked kernels after the unlocked one.
    let place = |kernel: &Stock| {
        let order = ["5.10", "6.1", "6.12", "6.12-integrity", "6.12-confidentiality", "sid"];
        order.iter().position(|name| *name == kernel.name)
    };
    kernels.sort_by_key(place);
    kernels
}

fn tables(all: &BTreeMap<String, Value>) -> String {
    let columns = columns();
    let of = |kernel: &Stock| all.get(kernel.name);
    let mut events: Vec<&str> = Vec::new();
    for event in all.values().flat_map(|one| one["events"].as_array().into_iter().flatten()) {
        if let Some(name) = event["event"].as_str()
            && !events.contains(&name)
        {
            events.push(name);
        }
    }
    let mut text = String::new();
    let mut row = |cells: Vec<String>| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    };
    let head = columns.iter().map(|kernel| kernel.name.replace('-', ", "));
    row(["Event".to_owned()].into_iter().chain(head).collect());
    row(vec!["---".to_owned(); columns.len() + 1]);
    let version = |kernel: &Stock| match of(kernel).map(|one| &one["kernel"]) {
        Some(release) => release.as_str().unwrap_or("?").to_owned(),
        None => "not run".to_owned(),
    };
    row(["`uname -r`".to_owned()].into_iter().chain(columns.iter().map(version)).collect());
    for event in events {
        let cell = |kernel: &Stock| of(kernel).map_or("not run".to_owned(), |one| cell(one, event));
        row([event.to_owned()].into_iter().chain(columns.iter().map(cell)).collect());
    }
    text.push_str(
        "\nNot run:\n\n| System | Kernel, as documented | What to expect |\n| --- | --- | --- |\n",
    );
    for (system, kernels, expect) in NOT_RUN {
        let _ = writeln!(text, "| {system} | {kernels} | {expect} |");
    }
    text
}

/// One event on one kernel: the rung, in italics if a better one was refused, and the canary's verdict.
fn cell(one: &Value, name: &str) -> String {
    let event = one["events"].as_array().into_iter().flatten().find(|event| event["event"] == name);
    let Some(event) = event else { return "not run".to_owned() };
    let rung = event["rung"].as_str().unwrap_or("?");
    let stands = match event["status"].as_str() {
        Some("active") => format!("`{rung}`"),
        Some("missing") => "**not seen**".to_owned(),
        _ => format!("*{rung}*"),
    };
    match event["canary"].as_str() {
        Some("not-seen") => format!("{stands}, **not seen**"),
        Some(verdict) => format!("{stands}, {}", verdict.replace('-', " ")),
        None => stands,
    }
}

/// The text between these two lines is generated.
const BEGIN: &str = "<!-- made by `cargo xtask support`: begin -->\n";
const END: &str = "<!-- end -->";

fn with_tables(text: &str, tables: &str) -> Result<String> {
    let (before, rest) = text.split_once(BEGIN).context("no mark of the beginning")?;
    let (_, after) = rest.split_once(END).context("no mark of the end")?;
    Ok(format!("{before}{BEGIN}{tables}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_what_was_seen() {
        let text = fs::read_to_string(directory().join("README.md")).unwrap();
        let made = with_tables(&text, &tables(&read().unwrap())).unwrap();
        assert!(text == made, "docs/support/README.md is not what `cargo xtask support` makes");
    }

    #[test]
    fn a_kernel_that_was_not_run_claims_nothing() {
        let event = json!({ "event": "sigkill", "rung": "tp_btf", "status": "active" });
        let one = json!({ "kernel": "6.1.0", "events": [event] });
        let all = BTreeMap::from([("6.1".to_owned(), one)]);
        let made = tables(&all);
        let row = made.lines().find(|line| line.starts_with("| sigkill")).unwrap();
        assert_eq!(
            (row.matches("not run").count(), row.matches("`tp_btf`").count()),
            (5, 1),
            "{row}"
        );
        let proven = json!({ "events": [
            { "event": "a", "rung": "fentry", "status": "active", "canary": "counted" },
            { "event": "b", "rung": "kprobe", "status": "degraded", "canary": "not-seen" },
        ] });
        assert_eq!(cell(&proven, "a"), "`fentry`, counted");
        assert_eq!(cell(&proven, "b"), "*kprobe*, **not seen**");
        let later =
            json!({ "events": [{ "event": "cni-call", "rung": "none", "status": "missing" }] });
        assert_eq!(
            (cell(&later, "cni-call").as_str(), cell(&later, "x").as_str()),
            ("**not seen**", "not run")
        );
    }

    #[test]
    fn no_count_is_kept() {
        let canary = json!({ "verdict": "seen", "ago_secs": 1 });
        let probe = json!({ "event": "sigkill", "rung": "tp_btf", "hook": "h", "status": "active", "seen": 3, "canary": canary });
        let kept = shown(&json!({ "kernel": "6.1.0", "doctor": { "probes": [probe] } })).unwrap();
        assert_eq!(
            kept,
            json!({ "kernel": "6.1.0", "events": [{ "event": "sigkill", "rung": "tp_btf", "status": "active", "canary": "counted" }] })
        );
    }
}
