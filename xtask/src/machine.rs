//! What is built and booted for: this machine's kind, and arm64 by Debian's cross tools.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use crate::shell::{command, output, run};
use crate::{place, setup};

/// A kind of machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Machine {
    X86_64,
    Arm64,
}

impl Machine {
    /// This machine's.
    pub(crate) fn own() -> Result<Self> {
        let said = output(&mut command(&["uname", "-m"]))?;
        [Self::X86_64, Self::Arm64]
            .into_iter()
            .find(|machine| machine.name() == said.trim())
            .map_or_else(|| bail!("not known: a machine of {}", said.trim()), Ok)
    }

    /// By Debian's name.
    pub(crate) fn named(debian: &str) -> Result<Self> {
        [Self::X86_64, Self::Arm64]
            .into_iter()
            .find(|machine| machine.debian() == debian)
            .map_or_else(|| bail!("no architecture {debian:?}; there are amd64 and arm64"), Ok)
    }

    /// As the kernel, QEMU and RPM name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    /// As Debian names it.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// As Rust names it.
    pub(crate) fn triple(self) -> String {
        format!("{}-unknown-linux-gnu", self.name())
    }

    /// As Debian's tools are named.
    pub(crate) fn prefix(self) -> String {
        format!("{}-linux-gnu", self.name())
    }

    /// Installs what builds for it: on another kind of machine a cross compiler and Rust's library.
    pub(crate) fn ensure_tools(self) -> Result<()> {
        if self == Self::own()? {
            return setup::packages(setup::BUILD);
        }
        let gcc = format!("gcc-{}", self.prefix().replace('_', "-"));
        let libc = format!("libc6-dev-{}-cross", self.debian());
        setup::packages(&[&gcc, &libc])?;
        let triple = self.triple();
        // rustup is asked only when it is needed: its server may be out of reach.
        let mut library = command(&["rustc", "--print", "target-libdir", "--target", &triple]);
        let library = PathBuf::from(output(library.current_dir(place::repository()))?.trim());
        if library.exists() {
            return Ok(());
        }
        println!("installing by rustup: {triple}");
        run(command(&["rustup", "target", "add", &triple]).current_dir(place::repository()))
    }

    /// Has a command of cargo build for it.
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

    /// Its `strip`.
    pub(crate) fn strip(self) -> Result<String> {
        Ok(if self == Self::own()? { "strip".into() } else { format!("{}-strip", self.prefix()) })
    }
}
