//! `cargo xtask bench`: the figures that the design promises, each beside its goal. What is measured and
//! how stands in `tests/bench` (real kernel objects) and `ipwatch/benches` (the pure half); how early
//! warnings come, and what they cost in false alarms, in the end-to-end tests.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::shell::run as run_command;
use crate::{build, kubernetes, setup};

/// Measures. With `filters` only what their text is in.
pub(crate) fn run(filters: &[&str]) -> Result<()> {
    setup::need_root("measuring")?;
    setup::packages(setup::E2E)?;
    setup::packages(&["strace"])?;
    let ipwatch = build::release()?;
    let (bench, cri) = (build::test_binary("bench")?, build::cri()?);
    let e2e = build::test_binary("e2e")?;
    if filters.is_empty() {
        for bench in ["replay", "ipam"] {
            run_command(&mut build::cargo(&["bench", "-p", "ipwatch", "--bench", bench])?)?;
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
        command
    };
    // A benchmark takes longer than a test may.
    run_command(with(bench).env("IPWATCH_TEST_SLOW", "5").args(filters))?;
    if filters.is_empty() {
        run_command(with(e2e).args(["lead::", "healthy::", "--without", "OwnMachine"]))?;
    }
    Ok(())
}
