//! Tests the service under a real systemd: a small Debian boots on each stock kernel, installs the package by dpkg,
//! and runs the tests that need a service manager, and some others with only the unit's capabilities.

mod rootfs;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::emulator::Emulator;
use super::kernel::{Fetched, Stock};
use super::{initramfs, qemu};
use crate::build::{self, Binaries};
use crate::machine::Machine;
use crate::tally::Tally;
use crate::{package, place, setup};

/// Files on the test disk beside the binaries: the script, and the service that runs it.
const SCRIPT: &str = include_str!("systemd/run.sh");
const UNIT: &str = include_str!("systemd/ipwatch-test.service");
/// The init that runs before systemd.
const INIT: &str = include_str!("systemd/init.sh");

/// Room for two packages and the test binary.
const SIZE: &str = "256M";

/// The two revisions between which the package is upgraded, both of the same binary.
const REVISIONS: [&str; 2] = ["1", "2"];

/// The disks of every VM.
struct Disks {
    system: PathBuf,
    tests: PathBuf,
}

/// Tests that are repeated with only the unit's capabilities: the map, holders, a finding, and the command line.
const IN_THE_CAGE: [&str; 3] = ["map::", "holders::", "stuck::"];

/// Runs all tests, or the named ones, on these kernels.
pub(crate) fn test(kernels: &[Stock], binaries: &Binaries, filters: &[&str]) -> Tally {
    let parts = || -> Result<_> {
        setup::packages(setup::VM)?;
        Ok((Emulator::find(Machine::X86_64)?, rootfs::get()?))
    };
    let (emulator, system) = match parts() {
        Ok(parts) => parts,
        Err(error) => return super::lacking("systemd", &error),
    };
    let tests = match tests(binaries, filters) {
        Ok(tests) => tests,
        Err(error) => return Tally::failure(&format!("systemd: {error:#}")),
    };
    let disks = Disks { system, tests };
    let mut tally = Tally::default();
    for &kernel in kernels {
        println!("== under systemd on Linux {}", kernel.name);
        tally.add(&match kernel.fetch() {
            Ok(fetched) => super::twice(kernel, || boot(&emulator, kernel, &fetched, &disks)),
            Err(error) => super::lacking(&format!("systemd on Linux {}", kernel.name), &error),
        });
    }
    tally
}

fn boot(
    emulator: &Emulator,
    kernel: Stock,
    fetched: &Fetched,
    disks: &Disks,
) -> Result<Option<Tally>> {
    let image = initramfs::loader(&room(kernel.name)?, kernel, fetched, INIT)?;
    qemu::boot(
        emulator,
        kernel,
        &fetched.image,
        &image,
        &[&disks.system, &disks.tests],
        qemu::Limits::USUAL,
    )
}

/// The disk with the tests.
fn tests(binaries: &Binaries, filters: &[&str]) -> Result<PathBuf> {
    let dir = room("tests")?;
    let root = dir.join("root");
    fs::create_dir_all(&root)?;
    build::stripped(Machine::X86_64, &binaries.e2e, &root.join("e2e"))?;
    fs::write(root.join("run.sh"), SCRIPT)?;
    fs::write(root.join("ipwatch-test.service"), UNIT)?;
    fs::write(root.join("runs"), runs(filters))?;
    for deb in package::debs(&binaries.ipwatch, &REVISIONS, &dir.join("package"))? {
        let name = deb.file_name().context("a package without a name")?;
        fs::copy(&deb, root.join(name))?;
    }
    let disk = dir.join("disk");
    rootfs::disk(&root, &disk, SIZE)?;
    Ok(disk)
}

/// The shell code that the script runs.
fn runs(filters: &[&str]) -> String {
    let words = |filters: &[&str]| -> String {
        filters.iter().map(|one| format!(" '{}'", one.replace('\'', r"'\''"))).collect()
    };
    match filters {
        [] => format!("tests systemd::\ncaged{}\n", words(&IN_THE_CAGE)),
        ["caged", filters @ ..] => format!("caged{}\n", words(filters)),
        _ => format!("tests{}\n", words(filters)),
    }
}

/// An empty directory for this purpose.
fn room(name: &str) -> Result<PathBuf> {
    let dir = place::target().join("vm/systemd").join(name);
    empty(&dir).with_context(|| dir.display().to_string())?;
    Ok(dir)
}

fn empty(dir: &Path) -> std::io::Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    fs::create_dir_all(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_run_or_what_is_named() {
        assert_eq!(runs(&[]), "tests systemd::\ncaged 'map::' 'holders::' 'stuck::'\n");
        assert_eq!(runs(&["systemd::a", "it's"]), "tests 'systemd::a' 'it'\\''s'\n");
        assert_eq!(runs(&["caged", "map::"]), "caged 'map::'\n");
    }
}
