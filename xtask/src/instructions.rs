//! `cargo xtask instructions`: the cost of the pure half in instructions, which do not depend on the machine's load:
//! a replay of each recording, a first look at 1,000 netns, and events with 10 and with 1,000 netns.
//!
//! Counted by valgrind in the profile of the tests, so that a test run needs no further build. The figures are
//! committed (`ipwatch/benches/instructions.json`) and are valid for one compiler; `--accept` rewrites them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::shell::{command, output};
use crate::tally::Tally;
use crate::{build, place, setup};

/// More than this percentage of the committed figure is a failure.
const MOST: u64 = 110;

/// Functions in `ipwatch/benches/step.rs`.
const COUNTED: [&str; 3] = ["scan_of_1000_netns", "events_with_10_netns", "events_with_1000_netns"];

/// The committed figures.
#[derive(Serialize, Deserialize)]
struct Figures {
    /// The output of `rustc --version`.
    compiler: String,
    /// By the name of the workload.
    instructions: BTreeMap<String, u64>,
}

fn file() -> PathBuf {
    place::repository().join("ipwatch/benches/instructions.json")
}

/// Counts, and compares with the committed figures, or rewrites them.
pub(crate) fn command_line(args: &[&str]) -> Result<bool> {
    match args {
        [] => Ok(test()?.failed == 0),
        ["--accept"] => {
            let figures = Figures { compiler: compiler()?, instructions: count()? };
            Ok(fs::write(file(), serde_json::to_string_pretty(&figures)? + "\n").map(|()| true)?)
        }
        _ => bail!("usage: cargo xtask instructions [--accept]"),
    }
}

/// The phase of a test run.
pub(crate) fn test() -> Result<Tally> {
    let committed: Figures = serde_json::from_str(&fs::read_to_string(file())?)?;
    let own = compiler()?;
    if committed.compiler != own {
        println!("skipped instructions: counted with {}, and this is {own}", committed.compiler);
        return Ok(Tally::skip());
    }
    let mut tally = Tally::default();
    let now = count()?;
    for (name, now) in &now {
        match verdict(committed.instructions.get(name).copied(), *now) {
            Ok(line) => {
                println!("ok       {name}: {line}");
                tally.add(&Tally::pass());
            }
            Err(line) => tally.add(&Tally::failure(&format!("{name}: {line}"))),
        }
    }
    Ok(tally)
}

fn verdict(before: Option<u64>, now: u64) -> Result<String, String> {
    let accept = "if that is meant, `cargo xtask instructions --accept` takes it";
    let Some(before) = before else {
        return Err(format!("{now} instructions, and none are committed; {accept}"));
    };
    let percent = now.saturating_mul(100) / before.max(1);
    let line = format!("{now} instructions, {percent} % of what is committed");
    if percent >= MOST { Err(format!("{line}; {accept}")) } else { Ok(line) }
}

fn compiler() -> Result<String> {
    Ok(output(&mut command(&["rustc", "--version"]))?.trim().to_owned())
}

/// Counts all workloads; the recordings in parallel with the others.
fn count() -> Result<BTreeMap<String, u64>> {
    setup::packages(&["valgrind"])?;
    let (ipwatch, step) = (build::product()?, build::bench_binary("step")?);
    let dir = place::target().join("instructions");
    fs::create_dir_all(&dir)?;
    std::thread::scope(|scope| {
        let events = scope.spawn(|| events(&step, &dir.join("step")));
        let mut all = replays(&ipwatch, &dir.join("replay"))?;
        match events.join() {
            Ok(events) => all.extend(events?),
            Err(_) => bail!("the thread that counts events panicked"),
        }
        Ok(all)
    })
}

fn callgrind(out: &Path, program: &Path) -> Command {
    let mut valgrind = command(&["valgrind", "--quiet", "--tool=callgrind"]);
    valgrind.arg(format!("--callgrind-out-file={}", out.display())).arg(program);
    valgrind.stdout(Stdio::null());
    valgrind
}

fn replays(ipwatch: &Path, out: &Path) -> Result<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    for entry in fs::read_dir(place::repository().join("recordings"))? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let Some(name) = name.strip_suffix(".jsonl") else { continue };
        let status = callgrind(out, ipwatch).arg("replay").arg(&path).status()?;
        ensure!(status.success(), "replay {} under valgrind: {status}", path.display());
        let count = total(&fs::read_to_string(out)?).context("callgrind wrote no total")?;
        counts.insert(format!("replay {name}"), count);
    }
    Ok(counts)
}

/// The number in the line `totals: N` of callgrind's output.
fn total(text: &str) -> Option<u64> {
    text.lines().rev().find_map(|line| line.strip_prefix("totals: "))?.trim().parse().ok()
}

fn events(step: &Path, out: &Path) -> Result<BTreeMap<String, u64>> {
    let status = callgrind(out, step).arg("--count").status()?;
    ensure!(status.success(), "the events under valgrind: {status}");
    let mut annotate = command(&["callgrind_annotate", "--inclusive=yes", "--threshold=100"]);
    let text = output(annotate.arg("--auto=no").arg(out).stderr(Stdio::null()))?;
    let count = |name: &&str| {
        let count = inclusive(&text, name).with_context(|| format!("{name} was not called"))?;
        Ok(((*name).to_owned(), count))
    };
    COUNTED.iter().map(count).collect()
}

/// The number in a line such as `23,029,981 ( 0.41%)  benches/step.rs:step::events_with_1000_netns [/target/…]`.
fn inclusive(text: &str, function: &str) -> Option<u64> {
    let named = format!("::{function} [");
    let line = text.lines().find(|line| line.contains(&named) && !line.contains("=>"))?;
    line.split_whitespace().next()?.replace(',', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{inclusive, total, verdict};

    #[test]
    fn ten_per_cent_more_is_too_much() {
        assert!(verdict(Some(1000), 1099).is_ok() && verdict(Some(1000), 10).is_ok());
        let said = verdict(Some(1000), 1110).unwrap_err();
        assert!(
            said.starts_with("1110 instructions, 111 %") && said.contains("--accept"),
            "{said}"
        );
        assert!(verdict(None, 1).is_err(), "a new recording has a figure");
    }

    #[test]
    fn what_callgrind_writes_is_read() {
        assert_eq!(total("summary: 5\ntotals: 1234\n"), Some(1234));
        let text = " 23,029 ( 0.41%)  b/step.rs:step::events_with_10_netns [/t/step]\n\
                    23,030 ( 0.41%)  => b/step.rs:step::events_with_1000_netns [/t/step]\n\
                    23,031 ( 0.41%)  b/step.rs:step::events_with_1000_netns [/t/step]\n";
        assert_eq!(inclusive(text, "events_with_10_netns"), Some(23_029));
        assert_eq!(inclusive(text, "events_with_1000_netns"), Some(23_031));
        assert_eq!(inclusive(text, "another"), None);
    }
}
