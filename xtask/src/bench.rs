//! `cargo xtask bench`: measures the figures that the design promises, prints each beside its goal, and writes them into
//! `docs/figures.json` ([`crate::figures`]). The benchmarks are in `tests/bench` (real kernel objects) and
//! `ipwatch/benches` (the pure half); the lead time of warnings and their false alarms are measured by end-to-end tests.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::figures::{Origin, Reader};
use crate::shell::{command, lines, output, run as run_command};
use crate::{build, kubernetes, place, setup};

/// The benchmark that needs the bare reader of a ring buffer.
const BARE: &str = "kernel_events";

/// Runs `[--before COMMIT] [FILTER]…`; with filters only benchmarks whose name contains one.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    setup::need_root("measuring")?;
    let (before, filters) = match words {
        ["--before", commit, filters @ ..] => (Some(*commit), filters),
        filters => (None, filters),
    };
    let before = before.map(build_of).transpose()?;
    setup::packages(setup::E2E)?;
    setup::packages(&["strace"])?;
    let ipwatch = build::release()?;
    let (bench, cri) = (build::test_binary("bench")?, build::cri()?);
    let e2e = build::test_binary("e2e")?;
    let compares = filters.is_empty() || filters.iter().any(|word| BARE.contains(word));
    let bare = compares.then(|| build::optimised_bench("bare_ring")).transpose()?;
    let (mut reader, origin) = (Reader::default(), Origin::here()?);
    if filters.is_empty() {
        for bench in ["replay", "ipam"] {
            let mut bench = build::cargo(&["bench", "-p", "ipwatch", "--bench", bench])?;
            read(&mut bench, &mut reader)?;
        }
    }
    let kubernetes = kubernetes::for_tests(&bench, filters).unwrap_or_else(|error| {
        println!("no Kubernetes: {error:#}");
        PathBuf::new()
    });
    let with = |program| {
        let mut command = Command::new(program);
        command.env("IPWATCH_BIN", &ipwatch).env("IPWATCH_TEST_CRI", &cri).args(["--jobs", "1"]);
        command.env("IPWATCH_TEST_KUBERNETES", &kubernetes);
        command.envs(bare.iter().map(|path| ("BENCH_BARE", path)));
        command.envs(before.iter().map(|path| ("IPWATCH_BENCH_BEFORE", path)));
        command
    };
    // A benchmark takes longer than a test may.
    let measured = read(with(bench).env("IPWATCH_TEST_SLOW", "5").args(filters), &mut reader);
    // What was measured is kept, even if one of the benchmarks failed.
    reader.keep(false, &origin)?;
    measured?;
    if filters.is_empty() {
        let mut healthy = Reader::default();
        let tests = ["lead::", "healthy::", "--without", "OwnMachine"];
        read(with(e2e).args(tests), &mut healthy)?;
        healthy.keep(false, &origin)?;
    }
    Ok(())
}

/// Runs a command, shows its output, and reads the figures in it.
fn read(command: &mut Command, reader: &mut Reader) -> Result<()> {
    let status = lines(command, |line| {
        println!("{line}");
        reader.read(line);
    })?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// The release build of a commit, from a separate checkout in cargo's output directory, which is kept.
pub(crate) fn build_of(commit: &str) -> Result<PathBuf> {
    let git = |words: &[&str]| {
        let mut git = command(&["git"]);
        git.args(words).current_dir(place::repository());
        git
    };
    let name = format!("{commit}^{{commit}}");
    let id = output(&mut git(&["rev-parse", "--verify", "--quiet", &name]))
        .with_context(|| format!("no commit {commit:?}"))?;
    let id = id.trim();
    let checkout = place::target().join("before").join(id);
    if !checkout.join("Cargo.toml").exists() {
        // If the directory was deleted, git still lists it as a worktree.
        run_command(&mut git(&["worktree", "prune"]))?;
        run_command(git(&["worktree", "add", "--detach"]).arg(&checkout).arg(id))?;
    }
    build::release_of(&checkout)
}
