//! The machines to build and boot for: this machine's architecture, and arm64 with Debian's cross tools.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use crate::shell::{command, output, run};
use crate::{place, setup};

/// An architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Machine {
    X86_64,
    Arm64,
}

impl Machine {
    /// This machine's architecture.
    pub(crate) fn own() -> Result<Self> {
        let said = output(&mut command(&["uname", "-m"]))?;
        [Self::X86_64, Self::Arm64]
            .into_iter()
            .find(|machine| machine.name() == said.trim())
            .map_or_else(|| bail!("not known: a machine of {}", said.trim()), Ok)
    }

    /// The architecture with this Debian name.
    pub(crate) fn named(debian: &str) -> Result<Self> {
        [Self::X86_64, Self::Arm64]
            .into_iter()
            .find(|machine| machine.debian() == debian)
            .map_or_else(|| bail!("no architecture {debian:?}; there are amd64 and arm64"), Ok)
    }

    /// The name in the kernel, QEMU and RPM.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    /// The name in Debian.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// The name in Rust.
    pub(crate) fn triple(self) -> String {
        format!("{}-unknown-linux-gnu", self.name())
    }

    /// Prefix of the names of Debian's cross tools.
    pub(crate) fn prefix(self) -> String {
        format!("{}-linux-gnu", self.name())
    }

    /// Debian's package with its C library, to build for it on another architecture.
    pub(crate) fn cross_libc(self) -> String {
        format!("libc6-dev-{}-cross", self.debian())
    }

    /// Installs the tools to build for it: for another architecture a cross compiler and Rust's library.
    pub(crate) fn ensure_tools(self) -> Result<()> {
        if self == Self::own()? {
            return setup::packages(setup::BUILD);
        }
        let gcc = format!("gcc-{}", self.prefix().replace('_', "-"));
        setup::packages(&[&gcc, &self.cross_libc()])?;
        let triple = self.triple();
        // rustup is called only if needed: its server may be unreachable.
        let mut library = command(&["rustc", "--print", "target-libdir", "--target", &triple]);
        let library = PathBuf::from(output(library.current_dir(place::repository()))?.trim());
        if library.exists() {
            return Ok(());
        }
        println!("installing by rustup: {triple}");
        run(command(&["rustup", "target", "add", &triple]).current_dir(place::repository()))
    }

    /// Sets up a cargo command to build for it.
    pub(crate) fn set(self, cargo: &mut Command) -> Result<()> {
        // The flags are those of .cargo/config.toml, for every target.
        cargo.args(["--target", &self.triple()]);
        if self != Self::own()? {
            let (prefix, tool) = (self.prefix(), self.triple().replace('-', "_"));
            let linker = format!("CARGO_TARGET_{}_LINKER", tool.to_uppercase());
            cargo.env(linker, format!("{prefix}-gcc"));
            cargo.env(format!("CC_{tool}"), format!("{prefix}-gcc"));
            cargo.env(format!("AR_{tool}"), format!("{prefix}-ar"));
        }
        Ok(())
    }

    /// Its `strip` program.
    pub(crate) fn strip(self) -> Result<String> {
        Ok(if self == Self::own()? { "strip".into() } else { format!("{}-strip", self.prefix()) })
    }
}
