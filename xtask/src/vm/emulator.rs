//! Finds QEMU: the machine's own, else Debian's is installed. If that would remove packages (for example QEMU
//! packages of another release), Debian's is unpacked in the cache.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::machine::Machine;
use crate::shell::{command, output, succeeds};
use crate::{place, setup};

/// Debian's package with the QEMU for an architecture.
fn package(machine: Machine) -> &'static str {
    match machine {
        Machine::X86_64 => "qemu-system-x86",
        Machine::Arm64 => "qemu-system-arm",
    }
}

fn program(machine: Machine) -> String {
    format!("qemu-system-{}", machine.name())
}

/// A QEMU that runs.
#[derive(Debug)]
pub(crate) struct Emulator {
    binary: PathBuf,
    /// Directories of its firmware, if it does not find them itself.
    firmware: Vec<PathBuf>,
}

impl Emulator {
    /// Finds QEMU, or installs it.
    pub(crate) fn find(machine: Machine) -> Result<Self> {
        let own = Self { binary: program(machine).into(), firmware: Vec::new() };
        if own.runs() {
            return Ok(own);
        }
        let package = package(machine);
        let dir = place::cache("qemu")?.join(package);
        let unpacked = Self::at(&dir, &program(machine));
        if unpacked.runs() {
            return Ok(unpacked);
        }
        let Err(error) = setup::packages(&[package]) else { return Ok(own) };
        println!("{error:#}\nso it is unpacked in the cache instead");
        unpack(package, &dir)?;
        if !unpacked.runs() {
            bail!("the QEMU in {} does not run", dir.display());
        }
        Ok(unpacked)
    }

    /// The program and its firmware options.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let firmware = self.firmware.iter().flat_map(|dir| ["-L".into(), dir.into()]);
        let binary = self.binary.clone().into_os_string();
        [binary].into_iter().chain(firmware).collect()
    }

    fn runs(&self) -> bool {
        let binary = self.binary.to_string_lossy();
        succeeds(&mut command(&[&*binary, "--version"]))
    }

    /// The QEMU that is, or will be, unpacked there.
    fn at(dir: &Path, program: &str) -> Self {
        Self {
            binary: dir.join("usr/bin").join(program),
            firmware: vec![
                dir.join("usr/share/qemu"),
                "/usr/share/seabios".into(),
                "/usr/lib/ipxe/qemu".into(),
            ],
        }
    }
}

/// Unpacks QEMU's own packages, and installs their dependencies.
fn unpack(package: &str, dir: &Path) -> Result<()> {
    let _lock = place::lock()?;
    let simulated = output(setup::apt("apt-get").args([
        "install",
        "--simulate",
        "--no-install-recommends",
        package,
    ]))?;
    let names = simulated.lines().filter_map(|line| line.strip_prefix("Inst "));
    let names: Vec<&str> = names.filter_map(|line| line.split(' ').next()).collect();
    let (own, libraries): (Vec<&str>, Vec<&str>) =
        names.iter().partition(|name| name.starts_with("qemu-"));
    setup::packages(&libraries)?;
    if dir.exists() {
        return Ok(());
    }
    let part = dir.with_extension("part");
    let _ = std::fs::remove_dir_all(&part);
    std::fs::create_dir_all(&part)?;
    for package in own {
        println!("downloading by apt: {package}");
        setup::unpack(package, &part)?;
    }
    std::fs::rename(&part, dir)?;
    Ok(())
}
