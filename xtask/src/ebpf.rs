//! `cargo xtask build-ebpf`: builds the kernel half from source for each architecture, and copies the stripped
//! objects to where the daemon embeds them; with `--check`, fails if that would change a byte.
//!
//! All tools come from apt and cargo. rustup's stable toolchain has no `core` for BPF; Debian 12 has a prebuilt one
//! with its own rustc, and bpf-linker is built against the LLVM library of that rustc. Missing packages are
//! installed, with a message.
//!
//! Beside the objects stand the checksums of the sources that they were built from, which a unit test compares: a change
//! of a comment moves lines, and with them the BTF. `--check` takes two minutes, the test takes none.
//!
//! The bytes depend on the source, `Cargo.lock`, this file, and the versions of rustc, LLVM, bpf-linker and
//! rust-objcopy. They do not depend on the directory, the user or the time: paths are remapped, there is one codegen
//! unit, and the path dependencies are within the workspace.

#![allow(
    clippy::disallowed_methods,
    reason = "reads what it has just built itself, and the checkout"
)]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::shell::{command, output, run, succeeds};
use crate::{place, setup};

/// Debian's rustc and its `core` for BPF, whose versions match: 1.96 with LLVM 22.
const PACKAGES: &[&str] = &["rustc-web", "libstd-rust-web-dev-bpf"];
const RUSTC: &str = "/usr/bin/rustc";
const RUST_VERSION: &str = "1.96";
/// The BPF standard library in [`PACKAGES`].
const CORE: &str = "/usr/lib/rustlib/bpfel-unknown-none/lib";
const LINKER_VERSION: &str = "0.13.0";
const LINKER_LLVM: &str = "llvm-22";
const TARGET: &str = "bpfel-unknown-none";
/// The architectures whose `pt_regs` the programs read: one object each. Nothing else differs, and any machine can
/// build all of them.
const ARCHITECTURES: [&str; 2] = ["x86_64", "aarch64"];

/// The packages that the objects are built from.
const SOURCES: [&str; 2] = ["ipwatch-common", "ipwatch-ebpf"];
/// The checksums of their files.
const SUMS: &str = "ipwatch/ebpf/sources.sha256";

/// Builds the objects; with `check`, compares them with the committed ones instead of replacing them.
///
/// # Errors
/// A tool is missing and cannot be installed, the build fails, or the bytes differ.
pub(crate) fn build(check: bool) -> Result<()> {
    let root = place::repository();
    ensure_rustc()?;
    let linker = ensure_linker()?;
    let objcopy = Objcopy::find()?;
    for arch in ARCHITECTURES {
        // Strip before the next build overwrites it.
        let stripped = objcopy.strip(&compile(root, &linker, arch)?, arch)?;
        let committed = root.join(format!("ipwatch/ebpf/ipwatch-ebpf.{arch}.o"));
        settle(&stripped, &committed, check, || used(&linker, &objcopy))?;
    }
    if !check {
        std::fs::write(root.join(SUMS), sums(root)?).with_context(|| format!("write {SUMS}"))?;
    }
    Ok(())
}

/// The checksums of the sources, as `sha256sum` writes them.
fn sums(root: &Path) -> Result<String> {
    let mut files = Vec::new();
    for package in SOURCES {
        files.push(format!("{package}/Cargo.toml"));
        let mut directories = vec![format!("{package}/src")];
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(root.join(&directory)).context(directory.clone())? {
                let entry = entry?;
                let name =
                    entry.file_name().into_string().ok().context("a name that is no text")?;
                let into = if entry.file_type()?.is_dir() { &mut directories } else { &mut files };
                into.push(format!("{directory}/{name}"));
            }
        }
    }
    files.sort_unstable();
    output(Command::new("sha256sum").arg("--").args(files).current_dir(root))
}

/// Compares or replaces one object. `used` returns the versions of the tools, for the error if the bytes differ.
fn settle(stripped: &Path, committed: &Path, check: bool, used: impl Fn() -> String) -> Result<()> {
    let new = std::fs::read(stripped).context("the stripped object cannot be read")?;
    if check {
        let old = std::fs::read(committed)
            .with_context(|| format!("{} cannot be read", committed.display()))?;
        ensure!(old == new, "{}\n{}", difference(committed, stripped, &old, &new), used());
        println!("{}: as built from source ({} bytes)", committed.display(), new.len());
    } else {
        if let Some(folder) = committed.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(committed, &new)
            .with_context(|| format!("{} cannot be written", committed.display()))?;
        println!("{}: {} bytes", committed.display(), new.len());
    }
    Ok(())
}

fn difference(committed: &Path, built: &Path, old: &[u8], new: &[u8]) -> String {
    let at = old.iter().zip(new).position(|(old, new)| old != new);
    let at = at.unwrap_or_else(|| old.len().min(new.len()));
    format!(
        "{} is not what the source builds: {} bytes committed, {} built ({}), first difference at \
         byte {at}. Run `cargo xtask build-ebpf` and commit the object.",
        committed.display(),
        old.len(),
        new.len(),
        built.display(),
    )
}

/// The versions on which the bytes depend.
fn used(linker: &Path, objcopy: &Objcopy) -> String {
    let said = |command: &mut Command| match output(command) {
        // LLVM's tools print their name first.
        Ok(text) => {
            let mut lines = text.lines().map(str::trim);
            lines
                .clone()
                .find(|line| line.contains("version"))
                .or(lines.next())
                .unwrap_or("")
                .into()
        }
        Err(error) => format!("{error:#}"),
    };
    let llvm = llvm_of_rustc().and_then(|library| Ok(std::fs::canonicalize(library)?));
    format!(
        "built with {} (apt: {}), LLVM {}, {}, rust-objcopy: {}",
        said(Command::new(RUSTC).arg("--version")),
        said(&mut command(&["dpkg-query", "-W", PACKAGES[0]])).replace('\t', " "),
        llvm.map_or_else(|error| format!("{error:#}"), |path| path.display().to_string()),
        said(Command::new(linker).arg("--version")),
        said(objcopy.command().arg("--version")),
    )
}

/// Installs Debian's rustc with `core` for BPF.
fn ensure_rustc() -> Result<()> {
    if !Path::new(CORE).is_dir() || !Path::new(RUSTC).exists() {
        setup::packages(PACKAGES).context("Debian 12 has the eBPF tool chain")?;
    }
    ensure!(Path::new(CORE).is_dir(), "{} brought no {CORE}", PACKAGES.join(" "));
    let version = output(Command::new(RUSTC).arg("--version"))?;
    ensure!(
        version.starts_with(&format!("rustc {RUST_VERSION}.")),
        "{RUSTC} is {}, and the committed object is built with {RUST_VERSION}: raise RUST_VERSION \
         and LINKER_LLVM in xtask/src/ebpf.rs together and commit what they build",
        version.trim()
    );
    Ok(())
}

/// bpf-linker of [`LINKER_VERSION`], built once per cache.
fn ensure_linker() -> Result<PathBuf> {
    let _lock = place::lock()?;
    let folder = place::cache(&format!("bpf-linker-{LINKER_VERSION}-{LINKER_LLVM}"))?;
    let linker = folder.join("bin/bpf-linker");
    // A cached linker may be linked to an LLVM that was removed.
    if succeeds(Command::new(&linker).arg("--version")) {
        return Ok(linker);
    }
    println!("building bpf-linker {LINKER_VERSION} into {} (one or two minutes)", folder.display());
    let prefix = folder.join("llvm");
    std::fs::create_dir_all(prefix.join("lib"))?;
    let library = prefix.join("lib/libLLVM.so");
    // A link left by an interrupted run may point to an LLVM that was removed.
    let _ = std::fs::remove_file(&library);
    std::os::unix::fs::symlink(llvm_of_rustc()?, &library)?;
    let mut command = Command::new("cargo");
    command
        .args(["install", "bpf-linker", "--locked", "--force", "--no-default-features"])
        .args(["--version", LINKER_VERSION, "--features", LINKER_LLVM])
        .arg("--root")
        .arg(&folder)
        .env("LLVM_PREFIX", &prefix)
        // It runs only for seconds: optimising it is not worth minutes.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
    without_our_flags(&mut command);
    run(&mut command).context("bpf-linker does not build")?;
    run(Command::new(&linker).arg("--version"))
        .context("bpf-linker was built, and does not run")?;
    Ok(linker)
}

/// The LLVM library that Debian's rustc is linked to.
fn llvm_of_rustc() -> Result<PathBuf> {
    let ldd = |file: &Path| output(Command::new("ldd").arg(file));
    let find = |listing: &str, name: &str| {
        let line = listing.lines().find(|line| line.contains(name))?;
        line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from)
    };
    let driver = find(&ldd(Path::new(RUSTC))?, "librustc_driver")
        .with_context(|| format!("{RUSTC} is linked to no librustc_driver"))?;
    find(&ldd(&driver)?, "libLLVM")
        .with_context(|| format!("{} is linked to no libLLVM", driver.display()))
}

/// Builds with a separate target directory, so that the builds do not discard each other's output.
fn compile(root: &Path, linker: &Path, arch: &str) -> Result<PathBuf> {
    let target = root.join("target/ebpf");
    let cargo_home = match std::env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => Path::new(&std::env::var_os("HOME").context("HOME is not set")?).join(".cargo"),
    };
    // CARGO_ENCODED_RUSTFLAGS, because a path may contain a space.
    let mut flags = OsString::new();
    for (index, flag) in [
        OsString::from("-Cdebuginfo=2"),
        OsString::from("-Clink-arg=--btf"),
        remap(root, "/ipwatch"),
        remap(&cargo_home, "/cargo"),
    ]
    .iter()
    .chain(&registries(&cargo_home)?)
    .enumerate()
    {
        if index > 0 {
            flags.push("\u{1f}");
        }
        flags.push(flag);
    }
    let mut path = OsString::from(linker.parent().context("the linker lies in no folder")?);
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut command = Command::new("cargo");
    without_our_flags(&mut command);
    command
        .current_dir(root)
        .args(["build", "--locked", "--package", "ipwatch-ebpf", "--profile", "bpf"])
        .args(["--target", TARGET])
        .env("RUSTC", RUSTC)
        // Debian's core for BPF is a nightly feature in a stable compiler.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("PATH", path)
        .env("CARGO_TARGET_DIR", &target)
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", "bpf-linker")
        .env("CARGO_ENCODED_RUSTFLAGS", flags)
        .env("AYA_BPF_TARGET_ARCH", arch);
    run(&mut command).context("the kernel half does not build")?;
    Ok(target.join(TARGET).join("bpf/ipwatch-ebpf"))
}

/// Remaps the directories to which cargo unpacks crates: their names contain the registry's host and a hash that
/// depends on how it is reached. They come last, because rustc uses the last prefix that matches.
fn registries(cargo_home: &Path) -> Result<Vec<OsString>> {
    // The directory exists only after the first download.
    let mut fetch = Command::new("cargo");
    run(fetch.args(["fetch", "--locked", "--quiet"]).current_dir(place::repository()))?;
    let sources = cargo_home.join("registry/src");
    let entries = std::fs::read_dir(&sources).with_context(|| sources.display().to_string())?;
    Ok(entries.flatten().map(|entry| remap(&entry.path(), "/cargo/src")).collect())
}

fn remap(from: &Path, to: &str) -> OsString {
    let mut flag = OsString::from("--remap-path-prefix=");
    flag.push(from);
    flag.push("=");
    flag.push(to);
    flag
}

/// `rust-objcopy` of rustup's stable toolchain.
struct Objcopy {
    program: PathBuf,
    /// Directory of the libraries that it is linked to.
    libraries: PathBuf,
}

impl Objcopy {
    fn find() -> Result<Self> {
        let sysroot =
            output(Command::new("rustc").args(["--print", "sysroot"]).env_remove("RUSTC"))?;
        let libraries = Path::new(sysroot.trim()).join("lib");
        let host = output(Command::new("rustc").arg("-vV"))?;
        let host = host
            .lines()
            .find_map(|line| line.strip_prefix("host: "))
            .context("rustc -vV names no host")?;
        let program = libraries.join("rustlib").join(host).join("bin/rust-objcopy");
        ensure!(
            program.exists(),
            "{} is missing: use rustup's stable toolchain",
            program.display()
        );
        Ok(Self { program, libraries })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env("LD_LIBRARY_PATH", &self.libraries);
        command
    }

    /// Strips debug info; BTF, which is made from it, stays. bpf-linker ignores cargo's `strip`.
    fn strip(&self, built: &Path, arch: &str) -> Result<PathBuf> {
        let stripped = built.with_extension(format!("{arch}.stripped.o"));
        run(self.command().arg("--strip-debug").arg(built).arg(&stripped))?;
        Ok(stripped)
    }
}

/// The caller's flags are for the daemon, not for the kernel half or the tools.
fn without_our_flags(command: &mut Command) {
    for name in [
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_BUILD_TARGET",
        "CARGO_BUILD_RUSTFLAGS",
        "RUSTC_WRAPPER",
        "CARGO_TARGET_DIR",
    ] {
        command.env_remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_objects_are_of_these_sources() {
        let root = place::repository();
        let committed = std::fs::read_to_string(root.join(SUMS)).unwrap();
        let differ = sums(root).unwrap();
        let differ: Vec<&str> =
            differ.lines().filter(|line| !committed.lines().any(|other| other == *line)).collect();
        assert!(differ.is_empty(), "run `cargo xtask build-ebpf` and commit: {differ:#?}");
        assert_eq!(committed, sums(root).unwrap(), "a file has gone: run `cargo xtask build-ebpf`");
    }
}
