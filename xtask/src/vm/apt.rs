//! apt for a machine's packages: this machine's own, or, for another architecture, the same sources with lists and
//! a state of their own, so that dpkg here never hears of that architecture.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::machine::Machine;
use crate::{place, setup};

/// One.
pub(super) struct Apt {
    /// Of another architecture.
    foreign: Option<(Machine, PathBuf)>,
}

impl Apt {
    /// That of this machine.
    pub(super) fn of(machine: Machine) -> Result<Self> {
        if machine == Machine::own()? {
            return Ok(Self { foreign: None });
        }
        let dir = place::cache(&format!("apt-{}", machine.debian()))?;
        for name in ["lists/partial", "cache/archives/partial"] {
            std::fs::create_dir_all(dir.join(name))?;
        }
        // Nothing is installed: what a package needs is all that it names.
        std::fs::write(dir.join("status"), "")?;
        Ok(Self { foreign: Some((machine, dir)) })
    }

    /// `apt-get` or `apt-cache`.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut apt = setup::apt(program);
        if let Some((machine, dir)) = &self.foreign {
            let mut set = |key: &str, value: &str| {
                apt.args(["-o", &format!("{key}={value}")]);
            };
            set("APT::Architecture", machine.debian());
            set("APT::Architectures", machine.debian());
            set("Acquire::IndexTargets::deb::DEP-11::DefaultEnabled", "false");
            for (key, name) in [
                ("Dir::State", ""),
                ("Dir::State::lists", "lists"),
                ("Dir::State::status", "status"),
                ("Dir::Cache", "cache"),
            ] {
                set(key, &dir.join(name).to_string_lossy());
            }
        }
        apt
    }

    /// Updates its lists.
    pub(super) fn update(&self) -> Result<()> {
        setup::update_by(|| self.command("apt-get"))
    }

    /// Downloads packages and unpacks them into `dir`.
    pub(super) fn unpack(&self, packages: &[&str], dir: &Path) -> Result<()> {
        setup::unpack_by(self.command("apt-get"), packages, dir)
    }
}
