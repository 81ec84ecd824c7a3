//! `cargo xtask fuzz`: libFuzzer on every parser of foreign bytes and on the engine, with the stable compiler.
//!
//! `--plateau` runs each target until five minutes of CPU time have found at most one new branch in a thousand; four
//! hours at most. To read a corpus again does not count: it takes some targets longer than a minute.
//! `--keep` keeps what reached code, as `--plateau` does: in `fuzz/corpora`, an archive for each target, from where every
//! later run starts as well as from `fuzz/seeds`, which people wrote.
//!
//! The coverage instrumentation that guides libFuzzer needs only flags of the stable compiler. Sanitizers need
//! nightly, and find nothing in code without `unsafe`. `cargo fuzz` runs the same targets.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

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

/// Length of a round on the way to a plateau, in seconds of CPU time, and rounds at most. On a busy machine the silence of
/// a target that had no CPU would pass for a plateau.
const ROUND: u64 = 60;
const MOST_ROUNDS: usize = 4 * 60;
/// How often the CPU time is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Lines that are shown of what libFuzzer said before it fell over.
const TAIL: usize = 40;
/// Ticks in a second, in what procfs reports: the same on every architecture that ipwatch runs on.
const USER_HZ: u64 = 100;
/// A plateau: in so many rounds at most one branch in so many was new.
const BARREN: usize = 5;
const FEW: u64 = 1_000;
/// Maximum length of an input, and of one that is kept unless it is a bolt file, in bytes. A bolt file has at least
/// 64 KiB, of which little is left when it is packed.
const LONGEST: u32 = 65_536;
const LONGEST_KEPT: u32 = 4_096;

/// Real bolt files, used as seeds.
const BOLT_FILES: &str = "ipwatch/src/sources/ipam/bolt/fixtures";

/// Runs every target, for the long mode of the tests.
pub(crate) fn all() -> Result<Tally> {
    run(Length::Seconds(SECONDS), false, &[])
}

/// How long a target runs.
#[derive(Clone, Copy)]
enum Length {
    Seconds(u32),
    Plateau,
}

/// Runs the requested targets; `false` if a crash was found.
pub(crate) fn command(args: &[&str]) -> Result<bool> {
    let (mut length, mut keeps, mut wanted) = (Length::Seconds(SECONDS), false, Vec::new());
    let mut words = args.iter();
    while let Some(word) = words.next() {
        match *word {
            "--seconds" => {
                let number = words.next().and_then(|number| number.parse().ok());
                length = Length::Seconds(number.context("--seconds takes a number")?);
            }
            "--plateau" => (length, keeps) = (Length::Plateau, true),
            "--keep" => keeps = true,
            name => wanted.push(name),
        }
    }
    let tally = run(length, keeps, &wanted)?;
    println!("{tally}");
    Ok(tally.failed == 0)
}

/// Runs these targets, or all, for this long each. A target that crashes counts as failed, and nothing of it is kept.
fn run(length: Length, keeps: bool, wanted: &[&str]) -> Result<Tally> {
    let all = targets()?;
    if let Some(unknown) = wanted.iter().find(|name| !all.iter().any(|one| one == *name)) {
        bail!("there is no target {unknown}: {}", all.join(", "));
    }
    setup::packages(setup::FUZZ)?;
    let bins = build()?;
    let mut tally = Tally::default();
    for target in all.iter().filter(|name| wanted.is_empty() || wanted.contains(&name.as_str())) {
        let target = Target::of(&bins, target)?;
        let ran = target.run(length)?;
        if keeps && ran.failed == 0 {
            target.keep()?;
        }
        tally.add(&ran);
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

/// A built target and its inputs.
struct Target<'a> {
    name: &'a str,
    bin: PathBuf,
    corpus: PathBuf,
    /// Inputs that are committed: those that people wrote, and an archive of those that reached code.
    seeds: PathBuf,
    kept: PathBuf,
    artifacts: PathBuf,
}

impl<'a> Target<'a> {
    fn of(bins: &Path, name: &'a str) -> Result<Self> {
        let dir = place::repository().join("fuzz");
        let (corpus, artifacts) = (dir.join("corpus").join(name), dir.join("artifacts").join(name));
        std::fs::create_dir_all(&corpus)?;
        std::fs::create_dir_all(&artifacts)?;
        let seeds = match name {
            "bolt" => place::repository().join(BOLT_FILES),
            _ => dir.join("seeds").join(name),
        };
        let kept = dir.join("corpora").join(format!("{name}.tar.xz"));
        if kept.exists() {
            let mut tar = Command::new("tar");
            shell::run(tar.arg("-xJf").arg(&kept).arg("-C").arg(&corpus))?;
        }
        Ok(Self { name, bin: bins.join(name), corpus, seeds, kept, artifacts })
    }

    fn run(&self, length: Length) -> Result<Tally> {
        let Length::Seconds(seconds) = length else { return self.to_plateau() };
        Ok(match self.round(seconds)? {
            Ok(said) => {
                println!(
                    "ok      {}: {} runs in {seconds} s, {} branches",
                    self.name,
                    runs(&said).unwrap_or("no"),
                    coverage(&said).unwrap_or_default()
                );
                Tally::pass()
            }
            Err(failed) => failed,
        })
    }

    /// Runs until hardly anything new is found.
    fn to_plateau(&self) -> Result<Tally> {
        let mut child = self.libfuzzer().stderr(Stdio::piped()).spawn()?;
        let followed = self.follow(&mut child);
        // Every input that reached something was written when it was found.
        let _ = child.kill();
        child.wait()?;
        let covered = match followed? {
            Ok(covered) => covered,
            Err(tail) => {
                tail.iter().for_each(|line| println!("{line}"));
                return Ok(self.fell_over());
            }
        };
        let what = if is_plateau(&covered) { "a plateau" } else { "no plateau yet" };
        let minutes = covered.len().saturating_sub(1);
        let branches = covered.last().copied().unwrap_or_default();
        println!("ok      {}: {what} after {minutes} min, {branches} branches", self.name);
        Ok(Tally::pass())
    }

    /// Returns the branches that were reached before the first round and after each one, or the last lines if the
    /// target fell over.
    fn follow(&self, child: &mut Child) -> Result<Result<Vec<u64>, VecDeque<String>>> {
        let said = lines_of(child)?;
        let (mut reached, mut counted, mut covered) = (0, 0, Vec::new());
        let mut tail = VecDeque::new();
        while covered.len() <= MOST_ROUNDS && !is_plateau(&covered) {
            match said.recv_timeout(LOOK) {
                Ok(line) => {
                    reached = coverage(&line).unwrap_or(reached);
                    if line.contains("\tINITED ") {
                        covered.push(reached);
                        counted = cpu_seconds(child.id())?;
                    }
                    tail.push_back(line);
                    tail.drain(..tail.len().saturating_sub(TAIL));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(Err(tail)),
            }
            let worked = cpu_seconds(child.id())?;
            if !covered.is_empty() && worked >= counted + ROUND {
                covered.push(reached);
                counted = worked;
            }
        }
        Ok(Ok(covered))
    }

    /// Writes the archive: a small part of the corpus that reaches all that the corpus reaches.
    fn keep(&self) -> Result<()> {
        let merged = place::target().join("fuzz/merged").join(self.name);
        let _ = std::fs::remove_dir_all(&merged);
        std::fs::create_dir_all(&merged).with_context(|| merged.display().to_string())?;
        let mut merge = Command::new(&self.bin);
        let longest = if self.name == "bolt" { LONGEST } else { LONGEST_KEPT };
        merge.args(["-set_cover_merge=1", "-verbosity=0"]).arg(format!("-max_len={longest}"));
        merge.arg(&merged).args(Some(&self.seeds).filter(|seeds| seeds.exists()));
        let output = merge.arg(&self.corpus).output()?;
        anyhow::ensure!(output.status.success(), "{}: the corpus does not merge", self.name);
        if let Some(dir) = self.kept.parent() {
            std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        }
        let new = merged.with_extension("tar.xz");
        // The same inputs make the same archive: libFuzzer names them by their content.
        let mut tar = Command::new("tar");
        tar.args(["--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"]);
        tar.args(["--mode=0644", "--use-compress-program=xz -9e", "-cf"]).arg(&new);
        let names = std::fs::read_dir(&merged)?.flatten().map(|entry| entry.file_name());
        let mut names: Vec<_> = names.collect();
        names.sort();
        let list = merged.with_extension("names");
        let text: Vec<_> = names.iter().map(|name| name.to_string_lossy()).collect();
        std::fs::write(&list, text.join("\n")).with_context(|| list.display().to_string())?;
        shell::run(tar.arg("-C").arg(&merged).arg("--files-from").arg(&list))?;
        std::fs::copy(&new, &self.kept).with_context(|| self.kept.display().to_string())?;
        Ok(())
    }

    /// Runs for so long. Returns what libFuzzer said, or the failure.
    fn round(&self, seconds: u32) -> Result<Result<String, Tally>> {
        let mut command = self.libfuzzer();
        command.arg(format!("-max_total_time={seconds}"));
        let output = command.output().with_context(|| self.bin.display().to_string())?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            return Ok(Ok(said));
        }
        let tail: Vec<&str> = said.lines().rev().take(TAIL).collect();
        tail.iter().rev().for_each(|line| println!("{line}"));
        Ok(Err(self.fell_over()))
    }

    /// A run without an end.
    fn libfuzzer(&self) -> Command {
        let mut command = Command::new(&self.bin);
        command.arg(&self.corpus).args(Some(&self.seeds).filter(|seeds| seeds.exists()));
        command.arg(format!("-artifact_prefix={}/", self.artifacts.display()));
        // Also finds slowness and unbounded memory.
        command.args(["-timeout=10", "-rss_limit_mb=1024"]).arg(format!("-max_len={LONGEST}"));
        command.arg("-print_final_stats=1");
        command
    }

    fn fell_over(&self) -> Tally {
        let at = self.artifacts.display();
        Tally::failure(&format!("{}: what it fell over is in {at}", self.name))
    }
}

/// What a child writes to stderr, by line, until it ends.
fn lines_of(child: &mut Child) -> Result<Receiver<String>> {
    let stderr = BufReader::new(child.stderr.take().context("stderr is no pipe")?);
    let (lines, received) = mpsc::channel();
    std::thread::spawn(move || {
        for line in stderr.split(b'\n').map_while(Result::ok) {
            if lines.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
        }
    });
    Ok(received)
}

/// CPU time of a process, in seconds.
fn cpu_seconds(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    ticks(&stat).map(|ticks| ticks / USER_HZ).with_context(|| format!("{path} has no utime"))
}

/// `utime` and `stime`, the 14th and 15th fields of `/proc/PID/stat`, in ticks of [`USER_HZ`]: proc_pid_stat(5).
fn ticks(stat: &str) -> Option<u64> {
    // The second field, the name of the program, may have spaces.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let [user, system] = [fields.next()?, fields.next()?].map(str::parse::<u64>);
    Some(user.ok()? + system.ok()?)
}

/// Whether the last rounds, of which the branches that were reached by the end of each are given, have found hardly
/// anything.
fn is_plateau(covered: &[u64]) -> bool {
    let Some((before, [.., last])) = covered.split_last_chunk::<BARREN>() else { return false };
    before.last().is_some_and(|before| last.saturating_sub(*before) <= last / FEW)
}

/// The number of runs that libFuzzer reports.
fn runs(said: &str) -> Option<&str> {
    said.lines()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
        .map(str::trim)
}

/// The number of branches that were reached by the last line that says it, `#4711 DONE   cov: 815 ft: 1024 corp: …`.
fn coverage(said: &str) -> Option<u64> {
    let words = said.lines().rev().find_map(|line| line.split_once(" cov: "))?.1;
    words.split(' ').next()?.parse().ok()
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
    fn the_last_coverage_counts() {
        let said =
            "#2\tINITED cov: 7 ft: 8 corp: 1/1b\n#99\tDONE   cov: 815 ft: 1024 corp: 9/9b\nDone";
        assert_eq!(coverage(said), Some(815));
        assert_eq!(coverage("Done 9 runs"), None);
    }

    #[test]
    fn cpu_time_is_the_sum_of_two_fields() {
        let stat = "4711 (a ) b) S 1 2 3 4 5 6 7 8 9 10 130 14 11 12 20 0 1 0 42";
        assert_eq!(ticks(stat), Some(144));
        assert_eq!(ticks("4711 (xtask) S 1 2"), None);
        assert!(cpu_seconds(std::process::id()).is_ok());
    }

    #[test]
    fn a_plateau_is_five_minutes_without_news() {
        assert!(!is_plateau(&[]));
        assert!(!is_plateau(&[700; 5]), "what they have found is not known");
        assert!(is_plateau(&[700; 6]));
        assert!(!is_plateau(&[700, 701, 701, 701, 701, 701]));
        assert!(is_plateau(&[700, 701, 701, 701, 701, 701, 701]));
        assert!(is_plateau(&[7_000, 7_001, 7_003, 7_003, 7_005, 7_007]));
        assert!(!is_plateau(&[7_000, 7_001, 7_003, 7_003, 7_005, 7_008]));
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
