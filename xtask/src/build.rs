//! Builds of the programs that are tested and run: static, so that one binary serves this host and every VM.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::machine::Machine;
use crate::place;
use crate::shell::{command, output, run};

/// The binaries of the end-to-end tests.
#[derive(Debug, Clone)]
pub(crate) struct Binaries {
    /// The product, in the profile of the tests.
    pub(crate) ipwatch: PathBuf,
    pub(crate) e2e: PathBuf,
    /// The CRI client of the pod tests.
    pub(crate) cri: PathBuf,
    /// Whether the product is the release build.
    pub(crate) shipped: bool,
}

/// This machine's target, usually `x86_64-unknown-linux-gnu`.
pub(crate) fn triple() -> Result<String> {
    Ok(Machine::own()?.triple())
}

/// A cargo command for static binaries, with the target and the flags of all builds here (`.cargo/config.toml`).
pub(crate) fn cargo(words: &[&str]) -> Result<Command> {
    cargo_for(Machine::own()?, words)
}

/// Like [`cargo`], for another architecture.
fn cargo_for(machine: Machine, words: &[&str]) -> Result<Command> {
    let mut cargo = plain_cargo(words);
    machine.set(&mut cargo)?;
    Ok(cargo)
}

/// A cargo command in the repository, for what is not built.
pub(crate) fn plain_cargo(words: &[&str]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut cargo = Command::new(program);
    cargo.args(words).current_dir(place::repository());
    cargo
}

/// Builds the product for tests: in the dev profile, which takes minutes.
pub(crate) fn product() -> Result<PathBuf> {
    // Tests look for the plugin beside the daemon.
    run(&mut cargo(&["build", "-p", "ipwatch", "-p", "ipwatch-ipam"])?)?;
    made("ipwatch")
}

/// Path of this machine's program in the dev profile.
fn made(program: &str) -> Result<PathBuf> {
    Ok(place::target().join(triple()?).join("debug").join(program))
}

/// Builds the release binary.
pub(crate) fn release() -> Result<PathBuf> {
    release_for(Machine::own()?)
}

/// Like [`release`], for another architecture.
pub(crate) fn release_for(machine: Machine) -> Result<PathBuf> {
    machine.ensure_tools()?;
    let mut cargo = cargo_for(
        machine,
        &["build", "--release", "--locked", "-p", "ipwatch", "-p", "ipwatch-ipam"],
    )?;
    run(without_paths(&mut cargo, machine)?)?;
    Ok(place::target().join(machine.triple()).join("release/ipwatch"))
}

/// The directory in which cargo keeps the sources of crates.
pub(crate) fn cargo_home() -> Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| Some(std::env::home_dir()?.join(".cargo"))).context("HOME is not set")
}

/// Has no path of this machine in the binary (panics name the file of their source), so that it is the same wherever it
/// is built. cargo leaves `--remap-path-prefix` out of the hashes in symbols (since 1.85).
fn without_paths(cargo: &mut Command, machine: Machine) -> Result<&mut Command> {
    let here = |program: &str, words: &[&str]| -> Result<PathBuf> {
        let mut command = command(&[program]);
        let said = output(command.args(words).current_dir(place::repository()))?;
        Ok(PathBuf::from(said.trim()))
    };
    let sources = cargo_home()?.join("registry/src");
    let mut prefixes = vec![
        (place::repository().to_owned(), "/ipwatch".to_owned()),
        (place::target(), "/target".to_owned()),
    ];
    // Each registry has a directory, whose name has a hash of the registry's address.
    for registry in std::fs::read_dir(&sources).into_iter().flatten().flatten() {
        prefixes.push((registry.path(), "/crates".to_owned()));
    }
    // With the component rust-src, rustc names the standard library's files there, and without it these.
    let rustc = output(command(&["rustc", "-vV"]).current_dir(place::repository()))?;
    let hash = rustc.lines().find_map(|line| line.strip_prefix("commit-hash: "));
    let library = here("rustc", &["--print", "sysroot"])?.join("lib/rustlib/src/rust");
    prefixes.push((library, format!("/rustc/{}", hash.context("rustc has no commit hash")?)));
    let flags: Vec<String> = prefixes
        .iter()
        .map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()))
        .collect();
    let flags = serde_json::to_string(&flags)?;
    // Added to the flags of .cargo/config.toml, which the variable would replace.
    cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    Ok(cargo.args(["--config", &format!("target.{}.rustflags={flags}", machine.triple())]))
}

/// Builds the release binary of another checkout, in that checkout.
pub(crate) fn release_of(checkout: &Path) -> Result<PathBuf> {
    let machine = Machine::own()?;
    machine.ensure_tools()?;
    let target = checkout.join("target");
    let mut cargo = cargo_for(machine, &["build", "--release", "-p", "ipwatch"])?;
    run(cargo.current_dir(checkout).env("CARGO_TARGET_DIR", &target))?;
    Ok(target.join(machine.triple()).join("release/ipwatch"))
}

/// Builds everything that the end-to-end tests need.
pub(crate) fn for_tests() -> Result<Binaries> {
    let (ipwatch, e2e, cri) = (product()?, test_binary("e2e")?, cri()?);
    Ok(Binaries { ipwatch, e2e, cri, shipped: false })
}

/// Like [`for_tests`], for any architecture.
pub(crate) fn for_machine(machine: Machine) -> Result<Binaries> {
    if machine == Machine::own()? {
        return for_tests();
    }
    machine.ensure_tools()?;
    let words = ["build", "-p", "ipwatch", "-p", "ipwatch-ipam", "-p", "ipwatch-test-cri"];
    run(&mut cargo_for(machine, &words)?)?;
    let made = place::target().join(machine.triple()).join("debug");
    Ok(Binaries {
        ipwatch: made.join("ipwatch"),
        e2e: test_binary_for(machine, "e2e")?,
        cri: made.join("ipwatch-test-cri"),
        shipped: false,
    })
}

impl Binaries {
    /// The same binaries with the release build of the product.
    pub(crate) fn shipped(&self) -> Result<Self> {
        Ok(Self { ipwatch: release()?, shipped: true, ..self.clone() })
    }
}

/// Builds the CRI helper.
pub(crate) fn cri() -> Result<PathBuf> {
    run(&mut cargo(&["build", "-p", "ipwatch-test-cri"])?)?;
    made("ipwatch-test-cri")
}

/// Builds a test binary and returns its path, which ends in a hash.
pub(crate) fn test_binary(name: &str) -> Result<PathBuf> {
    test_binary_for(Machine::own()?, name)
}

fn test_binary_for(machine: Machine, name: &str) -> Result<PathBuf> {
    executable(machine, name, &["test", "-p", "ipwatch-tests", "--test", name])
}

/// Builds a benchmark of the product, in the profile of the tests.
pub(crate) fn bench_binary(name: &str) -> Result<PathBuf> {
    let words = ["bench", "--profile", "dev", "-p", "ipwatch", "--bench", name];
    executable(Machine::own()?, name, &words)
}

/// Builds a program of `ipwatch/benches` as optimised as the release.
pub(crate) fn optimised_bench(name: &str) -> Result<PathBuf> {
    executable(Machine::own()?, name, &["bench", "-p", "ipwatch", "--bench", name])
}

/// Runs cargo with these words, and returns the path of the executable with this name.
fn executable(machine: Machine, name: &str, words: &[&str]) -> Result<PathBuf> {
    let mut cargo = cargo_for(machine, words)?;
    let messages = output(cargo.args(["--no-run", "--message-format=json"]))?;
    let executable = messages.lines().rev().find_map(|line| {
        let (_, rest) = line.split_once("\"executable\":\"")?;
        let path = Path::new(rest.split_once('"')?.0);
        let (stem, _hash) = path.file_name()?.to_str()?.rsplit_once('-')?;
        (stem == name).then(|| path.to_owned())
    });
    executable.with_context(|| format!("cargo {words:?} named no program"))
}

/// A copy without symbols: VMs load it into memory.
pub(crate) fn stripped(machine: Machine, from: &Path, to: &Path) -> Result<()> {
    run(command(&[&machine.strip()?, "-o"]).arg(to).arg(from))
}
