//! Builds of what is tested and run: static, so that one binary serves this host and every VM.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::shell::{command, output, run};
use crate::{place, setup};

/// What the end-to-end tests run with.
#[derive(Debug)]
pub(crate) struct Binaries {
    /// The product, as it ships.
    pub(crate) ipwatch: PathBuf,
    /// The test binary.
    pub(crate) e2e: PathBuf,
    /// The CRI client of the pod tests.
    pub(crate) cri: PathBuf,
}

/// This machine's target, `x86_64-unknown-linux-gnu` on most.
pub(crate) fn triple() -> Result<String> {
    let machine = output(&mut command(&["uname", "-m"]))?;
    Ok(format!("{}-unknown-linux-gnu", machine.trim()))
}

/// A cargo command for static binaries. The target is named even though it is the host's: the flags
/// then reach no build script, and build output does not mix with plain builds.
pub(crate) fn cargo(words: &[&str]) -> Result<Command> {
    let triple = triple()?;
    let flags = format!("CARGO_TARGET_{}_RUSTFLAGS", triple.to_uppercase().replace('-', "_"));
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut cargo = Command::new(program);
    cargo.args(words).args(["--target", &triple]);
    cargo.env(flags, "-C target-feature=+crt-static").current_dir(place::repository());
    Ok(cargo)
}

/// Builds the product as it ships.
pub(crate) fn release() -> Result<PathBuf> {
    setup::packages(setup::BUILD)?;
    run(&mut cargo(&["build", "--release", "-p", "ipwatch"])?)?;
    Ok(place::target().join(triple()?).join("release/ipwatch"))
}

/// Builds everything that the end-to-end tests run with.
pub(crate) fn for_tests() -> Result<Binaries> {
    Ok(Binaries { ipwatch: release()?, e2e: test_binary("e2e")?, cri: cri()? })
}

/// Builds the CRI helper.
pub(crate) fn cri() -> Result<PathBuf> {
    run(&mut cargo(&["build", "-p", "ipwatch-test-cri"])?)?;
    Ok(place::target().join(triple()?).join("debug/ipwatch-test-cri"))
}

/// Builds a test binary and finds out its path, which ends in a hash.
pub(crate) fn test_binary(name: &str) -> Result<PathBuf> {
    let words =
        ["test", "-p", "ipwatch-tests", "--test", name, "--no-run", "--message-format=json"];
    let messages = output(&mut cargo(&words)?)?;
    let executable = messages.lines().rev().find_map(|line| {
        let (_, rest) = line.split_once("\"executable\":\"")?;
        rest.split_once('"').map(|(path, _)| path)
    });
    executable.map(PathBuf::from).context("cargo named no test binary")
}

/// A copy without symbols: the VMs load it into memory.
pub(crate) fn stripped(from: &Path, to: &Path) -> Result<()> {
    run(command(&["strip", "-o"]).arg(to).arg(from))
}
