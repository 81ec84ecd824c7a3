//! `cargo xtask bench`: the figures that the design promises, each beside its goal. What is measured and
//! how stands in `tests/bench` (real kernel objects) and `ipwatch/benches` (the pure half).

use std::process::Command;

use anyhow::Result;

use crate::shell::run as run_command;
use crate::{build, setup};

/// Measures. With `filters` only what their text is in.
pub(crate) fn run(filters: &[&str]) -> Result<()> {
    setup::need_root("measuring")?;
    setup::packages(setup::E2E)?;
    setup::packages(&["strace"])?;
    let ipwatch = build::release()?;
    let (bench, cri) = (build::test_binary("bench")?, build::cri()?);
    if filters.is_empty() {
        run_command(&mut build::cargo(&["bench", "-p", "ipwatch", "--bench", "replay"])?)?;
    }
    let mut bench = Command::new(bench);
    // A benchmark takes longer than a test may.
    bench.env("IPWATCH_BIN", ipwatch).env("IPWATCH_TEST_SLOW", "5").env("IPWATCH_TEST_CRI", cri);
    run_command(bench.args(["--jobs", "1"]).args(filters))
}
