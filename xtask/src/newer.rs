//! Debian's newest containerd and CNI plugins, unpacked into the cache, for tests with a second version of each.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::machine::Machine;
use crate::place;
use crate::shell::output;
use crate::vm::apt::{Apt, Release};

const PACKAGES: [&str; 2] = ["containerd", "containernetworking-plugins"];
/// What is used of them, unpacked last.
const PROGRAMS: [&str; 3] =
    ["usr/bin/containerd", "usr/bin/containerd-shim-runc-v2", "usr/lib/cni/host-local"];

/// The directory into which they are unpacked, if a test selected by these filters needs them; otherwise an empty path.
pub(crate) fn for_tests(tests: &Path, filters: &[&str]) -> Result<PathBuf> {
    let needs = output(Command::new(tests).arg("--needs").args(filters))?;
    if !needs.lines().any(|need| need == "NewerContainerd") {
        return Ok(PathBuf::new());
    }
    let _lock = place::lock()?;
    let dir = place::cache("newer")?;
    if !PROGRAMS.iter().all(|program| dir.join(program).exists()) {
        println!("unpacking Debian's newest {} into {}", PACKAGES.join(" and "), dir.display());
        let apt = Apt::of(Machine::own()?, Some(Release::Sid))?;
        apt.update()?;
        apt.unpack(&PACKAGES, &dir)?;
    }
    Ok(dir)
}
