//! The file system of a VM: busybox, dash, iproute2, CNI plugins, a collector, the kernel's modules and the tests. It
//! is not compressed: for an emulated CPU unpacking costs more than reading.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result};

use super::kernel::{Fetched, Stock};
use super::{Run, sysroot};
use crate::build::{self, Binaries};
use crate::setup;
use crate::shell::{command, output, run};

/// The init process.
const INIT: &str = include_str!("init.sh");

/// The CNI plugins that the tests run.
const PLUGINS: [&str; 6] = ["bridge", "host-local", "ipvlan", "loopback", "macvlan", "ptp"];

/// Makes the image in `dir` and returns its path. `runs` is executed by `init.sh`.
pub(crate) fn make(
    dir: &Path,
    stock: Stock,
    kernel: &Fetched,
    binaries: &Binaries,
    runs: &str,
) -> Result<PathBuf> {
    let root = dir.join("root");
    let _ = fs::remove_dir_all(&root);
    let dirs = [
        "bin",
        "sbin",
        "bb",
        "modules",
        "proc",
        "sys",
        "dev",
        "run",
        "tmp",
        "etc",
        "var/lib",
        "usr/lib/cni",
    ];
    for name in dirs {
        fs::create_dir_all(root.join(name))?;
    }
    fs::write(root.join("init"), INIT)?;
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755))?;
    fs::write(root.join("runs"), runs)?;
    fs::write(root.join("etc/passwd"), "root:x:0:0::/:/bin/sh\n")?;
    fs::write(root.join("etc/group"), "root:x:0:\n")?;
    tools(&root, &Source { stock, sysroot: &kernel.sysroot })?;
    collector(&root, &Source { stock, sysroot: &kernel.sysroot })?;
    modules(&root, kernel)?;
    // Tests look for the plugin beside the daemon.
    let plugin = binaries.ipwatch.with_file_name("ipwatch-ipam");
    for (from, name) in [
        (&binaries.ipwatch, "ipwatch"),
        (&plugin, "ipwatch-ipam"),
        (&binaries.e2e, "e2e"),
        (&binaries.cri, "ipwatch-test-cri"),
    ] {
        build::stripped(stock.machine, from, &root.join("bin").join(name))?;
    }
    pack(&root, &dir.join("initramfs"))
}

/// A minimal image that runs `init` in busybox's shell, with the kernel's modules.
pub(super) fn loader(dir: &Path, stock: Stock, kernel: &Fetched, init: &str) -> Result<PathBuf> {
    let root = dir.join("root");
    for name in ["bin", "bb", "modules", "proc", "sys", "dev"] {
        fs::create_dir_all(root.join(name))?;
    }
    fs::write(root.join("init"), init)?;
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755))?;
    busybox(&root, &Source { stock, sysroot: &kernel.sysroot })?;
    symlink("../bb/busybox", root.join("bin/sh"))?;
    modules(&root, kernel)?;
    pack(&root, &dir.join("initramfs"))
}

/// A call of `tests` (see `init.sh`) for each run.
pub(super) fn script(runs: &[Run], shipped: bool, long: bool) -> String {
    let mut text = String::new();
    if shipped {
        text.push_str("export IPWATCH_TEST_SHIPPED=1\n");
    }
    if long {
        text.push_str("export IPWATCH_TEST_LONG=1\n");
    }
    for run in runs {
        let args: Vec<String> =
            run.args.iter().map(|arg| format!("'{}'", arg.replace('\'', r"'\''"))).collect();
        let cage = if run.caged { "capabilities" } else { "" };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "export IPWATCH_TEST_CAGE={cage}");
        let _ = writeln!(text, "tests {} {}", run.probes, args.join(" "));
    }
    text
}

/// Installs the tools. The shell is dash, because busybox's `sh` would run busybox's own `ip`, which lacks many
/// features; iproute2 is first in the path, and busybox's applets are last.
fn tools(root: &Path, source: &Source) -> Result<()> {
    busybox(root, source)?;
    source.program(root, &source.which("dash")?, "bin/sh")?;
    for name in ["ip", "bridge"] {
        source.program(root, &source.which(name)?, &format!("sbin/{name}"))?;
    }
    // busybox's nsenter has no long options.
    source.program(root, &source.which("nsenter")?, "bin/nsenter")?;
    // busybox's umount does not support mount namespaces. In Debian umount is in a separate package, which is not
    // fetched for another architecture.
    if source.is_own() {
        source.program(root, &source.which("umount")?, "bin/umount")?;
    }
    fs::create_dir_all(root.join("usr/lib/cni"))?;
    for plugin in PLUGINS {
        let path = format!("usr/lib/cni/{plugin}");
        source.program(root, &source.sysroot.join(&path), &path)?;
    }
    Ok(())
}

/// Installs the collector, which exists only for this architecture. Tests that need it are skipped if it is missing.
fn collector(root: &Path, source: &Source) -> Result<()> {
    if !source.is_own() {
        return Ok(());
    }
    match setup::rotel() {
        Ok(rotel) => source.program(root, &rotel, "bin/rotel"),
        Err(error) => {
            println!("no collector: {error:#}");
            Ok(())
        }
    }
}

fn busybox(root: &Path, source: &Source) -> Result<()> {
    // This machine's busybox lists the applets; another architecture's has the same.
    let busybox = output(&mut command(&["busybox", "--list"]))?;
    fs::copy(source.which("busybox")?, root.join("bb/busybox"))?;
    for applet in busybox.lines().filter(|applet| *applet != "busybox") {
        symlink("busybox", root.join("bb").join(applet))?;
    }
    Ok(())
}

/// Where programs are copied from.
struct Source<'a> {
    stock: Stock,
    sysroot: &'a Path,
}

impl Source<'_> {
    fn is_own(&self) -> bool {
        self.sysroot == Path::new("/")
    }

    /// Copies a program and the libraries that it is linked with.
    fn program(&self, root: &Path, from: &Path, to: &str) -> Result<()> {
        fs::copy(from, root.join(to)).with_context(|| from.display().to_string())?;
        let libraries = if self.is_own() {
            let said = output(command(&["ldd"]).arg(from))?;
            let paths = said.split_whitespace().filter_map(|word| word.strip_prefix('/'));
            paths.map(str::to_owned).collect()
        } else {
            sysroot::libraries(self.sysroot, self.stock.machine, from)?
        };
        for library in libraries {
            let at = root.join(&library);
            if let Some(parent) = at.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::copy(self.sysroot.join(&library), at).with_context(|| library.clone())?;
        }
        Ok(())
    }

    fn which(&self, name: &str) -> Result<PathBuf> {
        if !self.is_own() {
            return sysroot::which(self.sysroot, name);
        }
        let find = "PATH=$PATH:/usr/sbin:/sbin command -v \"$0\"";
        Ok(output(&mut command(&["sh", "-c", find, name]))?.trim().into())
    }
}

/// Copies the modules, uncompressed, and their load order.
fn modules(root: &Path, kernel: &Fetched) -> Result<()> {
    let mut order = String::new();
    for module in &kernel.modules {
        let name = module.file_name().context("a module's file")?.to_string_lossy().into_owned();
        let plain = name.trim_end_matches(".xz");
        let to = root.join("modules").join(plain);
        if plain == name {
            fs::copy(module, &to)?;
        } else {
            let file = fs::File::create(&to)?;
            run(command(&["xz", "-dc"]).arg(module).stdout(file))?;
        }
        order.push_str(plain);
        order.push('\n');
    }
    Ok(fs::write(root.join("modules/order"), order)?)
}

fn pack(root: &Path, to: &Path) -> Result<PathBuf> {
    let file = fs::File::create(to)?;
    let mut cpio = command(&["sh", "-c", "find . | cpio --quiet -o -H newc"]);
    run(cpio.current_dir(root).stdin(Stdio::null()).stdout(file))?;
    Ok(to.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tests_inside_are_told_what_they_run_and_how() {
        let run = Run { probes: "kprobe", caged: true, args: vec!["stuck::".to_owned()] };
        let plain = "export IPWATCH_TEST_CAGE=capabilities\ntests kprobe 'stuck::'\n";
        assert_eq!(script(std::slice::from_ref(&run), false, false), plain);
        let whole = script(std::slice::from_ref(&run), true, true);
        for line in ["export IPWATCH_TEST_SHIPPED=1", "export IPWATCH_TEST_LONG=1"] {
            assert!(whole.lines().any(|one| one == line), "{line}: {whole}");
        }
    }
}
