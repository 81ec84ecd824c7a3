//! The programs of another architecture for an initramfs: Debian's packages with their dependencies, unpacked in the
//! cache. They cannot run here.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::apt::Apt;
use crate::machine::Machine;
use crate::place;
use crate::shell::{command, output};

const PACKAGES: [&str; 5] =
    ["busybox-static", "dash", "iproute2", "util-linux", "containernetworking-plugins"];

/// The directory with all of them, filled if it is missing. The caller must hold the cache's lock and have updated
/// apt's lists.
pub(super) fn fetch(machine: Machine, apt: &Apt) -> Result<PathBuf> {
    let dir = place::cache("sysroot")?.join(machine.debian());
    if dir.exists() {
        return Ok(dir);
    }
    let mut simulate = apt.command("apt-get");
    simulate.args(["install", "--simulate", "--no-install-recommends"]).args(PACKAGES);
    let simulated = output(&mut simulate)?;
    let names = simulated.lines().filter_map(|line| line.strip_prefix("Inst "));
    let names: Vec<&str> = names.filter_map(|line| line.split(' ').next()).collect();
    println!("downloading by apt, for {}: {}", machine.debian(), names.join(" "));
    let part = dir.with_extension("part");
    let _ = std::fs::remove_dir_all(&part);
    std::fs::create_dir_all(&part)?;
    apt.unpack(&names, &part)?;
    std::fs::rename(&part, &dir)?;
    Ok(dir)
}

/// The program with this name.
pub(super) fn which(root: &Path, name: &str) -> Result<PathBuf> {
    let places = ["bin", "sbin", "usr/bin", "usr/sbin"].map(|dir| root.join(dir).join(name));
    let found = places.into_iter().find(|path| path.exists());
    found.with_context(|| format!("no {name} in {}", root.display()))
}

/// The libraries and the loader that a program is linked with, as paths within the sysroot.
pub(super) fn libraries(root: &Path, machine: Machine, program: &Path) -> Result<Vec<String>> {
    let dirs = ["lib", "usr/lib"].map(|dir| format!("{dir}/{}", machine.prefix()));
    let mut found = BTreeSet::new();
    let mut left = vec![program.to_owned()];
    while let Some(file) = left.pop() {
        let said = output(command(&["readelf", "-W", "-l", "-d"]).arg(&file))?;
        for line in said.lines() {
            let between =
                |from: &str| line.split_once(from)?.1.split_once(']').map(|(name, _)| name);
            let library = match (between("program interpreter: /"), between("Shared library: [")) {
                (Some(loader), _) => loader.to_owned(),
                (_, Some(name)) => dirs
                    .iter()
                    .map(|dir| format!("{dir}/{name}"))
                    .find(|path| root.join(path).exists())
                    .with_context(|| format!("{} needs {name}", file.display()))?,
                _ => continue,
            };
            if found.insert(library.clone()) {
                left.push(root.join(library));
            }
        }
    }
    Ok(found.into_iter().collect())
}
