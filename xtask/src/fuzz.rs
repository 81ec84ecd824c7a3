//! `cargo xtask fuzz`: libFuzzer on every parser of foreign bytes, with the stable compiler.
//!
//! The coverage instrumentation that guides libFuzzer needs only flags of the stable compiler. Sanitizers need
//! nightly, and find nothing in code without `unsafe`. `cargo fuzz` runs the same targets.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::tally::Tally;
use crate::{build, place, setup, shell};

/// The flags of cargo-fuzz, without the sanitizer.
const FLAGS: &[&str] = &[
    "--cfg fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];
/// Default duration for each target, in seconds.
const SECONDS: u32 = 60;

/// Real bolt files, used as seeds.
const BOLT_FILES: &str = "ipwatch/src/sources/ipam/bolt/fixtures";

/// Runs every target, for the long mode of the tests.
pub(crate) fn all() -> Result<Tally> {
    run(SECONDS, &[])
}

/// Runs the requested targets; `false` if a crash was found.
pub(crate) fn command(args: &[&str]) -> Result<bool> {
    let (mut seconds, mut wanted) = (SECONDS, Vec::new());
    let mut words = args.iter();
    while let Some(word) = words.next() {
        match *word {
            "--seconds" => {
                let number = words.next().and_then(|number| number.parse().ok());
                seconds = number.context("--seconds takes a number")?;
            }
            name => wanted.push(name),
        }
    }
    let tally = run(seconds, &wanted)?;
    println!("{tally}");
    Ok(tally.failed == 0)
}

/// Runs these targets, or all, for this many seconds each. A target that crashes counts as failed.
fn run(seconds: u32, wanted: &[&str]) -> Result<Tally> {
    let all = targets()?;
    if let Some(unknown) = wanted.iter().find(|name| !all.iter().any(|one| one == *name)) {
        bail!("there is no target {unknown}: {}", all.join(", "));
    }
    setup::packages(setup::FUZZ)?;
    let bins = build()?;
    let mut tally = Tally::default();
    for target in all.iter().filter(|name| wanted.is_empty() || wanted.contains(&name.as_str())) {
        tally.add(&fuzz(&bins.join(target), target, seconds)?);
    }
    Ok(tally)
}

/// The names of the targets: one file each.
fn targets() -> Result<Vec<String>> {
    let dir = place::repository().join("fuzz/fuzz_targets");
    let entries = std::fs::read_dir(&dir).with_context(|| dir.display().to_string())?;
    let names = entries.flatten().map(|entry| entry.path());
    let mut names: Vec<String> =
        names.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect();
    names.sort();
    Ok(names)
}

fn build() -> Result<PathBuf> {
    println!("== building the fuzz targets");
    let dir = place::repository().join("fuzz");
    let target = place::target().join("fuzz");
    // Without the workspace's flags and lock file; but with a named target, so that build scripts do not get the
    // flags.
    let mut cargo = build::cargo(&["build", "--release"])?;
    cargo.current_dir(&dir).env("RUSTFLAGS", FLAGS.join(" "));
    cargo.env_remove("CARGO_ENCODED_RUSTFLAGS").env("CARGO_TARGET_DIR", &target);
    shell::run(&mut cargo)?;
    Ok(target.join(build::triple()?).join("release"))
}

fn fuzz(bin: &Path, target: &str, seconds: u32) -> Result<Tally> {
    let dir = place::repository().join("fuzz");
    let (corpus, artifacts) = (dir.join("corpus").join(target), dir.join("artifacts").join(target));
    std::fs::create_dir_all(&corpus)?;
    std::fs::create_dir_all(&artifacts)?;
    let seeds = match target {
        "bolt" => place::repository().join(BOLT_FILES),
        _ => dir.join("seeds").join(target),
    };
    let mut command = Command::new(bin);
    command.arg(&corpus).args(Some(seeds).filter(|seeds| seeds.exists()));
    command.arg(format!("-max_total_time={seconds}"));
    command.arg(format!("-artifact_prefix={}/", artifacts.display()));
    // Also finds slowness and unbounded memory. Bolt files have at least 64 KiB.
    command.args(["-timeout=10", "-rss_limit_mb=1024", "-max_len=65536"]);
    command.args(["-print_final_stats=1", "-verbosity=0"]);
    let output = command.output().with_context(|| bin.display().to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        println!("ok      {target}: {} runs in {seconds} s", runs(&said).unwrap_or("no"));
        return Ok(Tally::pass());
    }
    let tail: Vec<&str> = said.lines().rev().take(40).collect();
    tail.iter().rev().for_each(|line| println!("{line}"));
    let what = format!("{target}: what it fell over is in {}", artifacts.display());
    Ok(Tally::failure(&what))
}

/// The number of runs that libFuzzer reports.
fn runs(said: &str) -> Option<&str> {
    said.lines()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_runs_is_found() {
        let said = "INFO: Seed: 1\nstat::number_of_executed_units: 4711\nstat::peak_rss_mb: 40\n";
        assert_eq!(runs(said), Some("4711"));
        assert_eq!(runs(""), None);
    }

    #[test]
    fn every_target_is_built() {
        let manifest =
            std::fs::read_to_string(place::repository().join("fuzz/Cargo.toml")).unwrap();
        let targets = targets().unwrap();
        assert!(!targets.is_empty());
        for target in targets {
            assert!(manifest.contains(&format!("name = \"{target}\"")), "{target}");
        }
    }
}
