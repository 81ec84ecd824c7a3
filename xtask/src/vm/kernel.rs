//! Stock kernels, from the packages that the machine's own apt sources offer.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::apt::Apt;
use super::sysroot;
use crate::machine::Machine;
use crate::place;
use crate::shell::{command, output, run};

/// The kernels that are tested.
pub(crate) const KERNELS: [Stock; 2] = [
    Stock { name: "6.12", meta: "linux-image-6.12-cloud-amd64", machine: Machine::X86_64 },
    Stock { name: "6.1", meta: "linux-image-cloud-amd64", machine: Machine::X86_64 },
];

/// Those of another architecture. There fentry came with 6.4 or so: on 6.1 kprobes are the highest rung.
pub(crate) const ARM64: [Stock; 2] = [
    Stock { name: "6.12-arm64", meta: "linux-image-6.12-cloud-arm64", machine: Machine::Arm64 },
    Stock { name: "6.1-arm64", meta: "linux-image-cloud-arm64", machine: Machine::Arm64 },
];

/// What the tests need beyond what is built in; virtio for the one NIC, and for the disks of the VMs that boot
/// systemd. The others need none: input comes in the initramfs and output goes to the console.
const MODULES: [&str; 13] = [
    "veth",
    "bridge",
    "macvlan",
    "ipvlan",
    "dummy",
    "fuse",
    "8021q",
    "vxlan",
    "vrf",
    "tcp_diag",
    "virtio_pci",
    "virtio_net",
    "virtio_blk",
];

/// A kernel of Debian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stock {
    /// As people name it.
    pub(crate) name: &'static str,
    /// The package that depends on its newest build.
    meta: &'static str,
    /// What it runs on.
    pub(crate) machine: Machine,
}

/// One, unpacked.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// Where programs for it lie: `/` for this machine's.
    pub(crate) sysroot: PathBuf,
    /// The bootable image.
    pub(crate) image: PathBuf,
    /// Modules in the order in which they load.
    pub(crate) modules: Vec<PathBuf>,
}

impl Stock {
    /// Whether programs can be attached to its functions by fentry (on arm64 since 6.4).
    pub(crate) fn has_fentry(self) -> bool {
        self.machine == Machine::X86_64 || !self.name.starts_with("6.1-")
    }

    /// Downloads and unpacks it into the cache, unless it is there.
    pub(crate) fn fetch(self) -> Result<Fetched> {
        let _lock = place::lock()?;
        let apt = Apt::of(self.machine)?;
        let package = self.package(&apt)?;
        let (package, dir) = match get(&apt, &package) {
            Ok(dir) => (package, dir),
            // The mirrors keep the newest build only, which the lists may not know yet.
            Err(_) => {
                apt.update()?;
                let package = self.package(&apt)?;
                let dir = get(&apt, &package)?;
                (package, dir)
            }
        };
        let release = package.strip_prefix("linux-image-").unwrap_or(&package);
        let own = self.machine == Machine::own()?;
        Ok(Fetched {
            sysroot: if own { "/".into() } else { sysroot::fetch(self.machine, &apt)? },
            image: dir.join("boot").join(format!("vmlinuz-{release}")),
            modules: modules(&dir, release)?,
        })
    }

    /// The package that the meta package depends on. Lists that are too old to know it are updated.
    /// On another release of Debian the meta package may stand for another series.
    fn package(self, apt: &Apt) -> Result<String> {
        let version = self.name.split('-').next().unwrap_or(self.name);
        let series = format!("linux-image-{version}.");
        let depends = || {
            let text = output(apt.command("apt-cache").args(["depends", self.meta])).ok()?;
            let mut names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
            names.find(|name| name.starts_with(&series)).map(str::to_owned)
        };
        if let Some(package) = depends() {
            return Ok(package);
        }
        apt.update()?;
        depends().with_context(|| {
            format!("apt's sources have no {} with Linux {version}; Debian 12's do", self.meta)
        })
    }
}

/// The package, unpacked in the cache.
fn get(apt: &Apt, package: &str) -> Result<PathBuf> {
    let dir = place::cache("kernels")?.join(package);
    if !dir.exists() {
        println!("downloading by apt: {package}");
        unpack(apt, package, &dir)?;
    }
    Ok(dir)
}

/// Unpacks beside the final place and moves there: what stands there is whole.
fn unpack(apt: &Apt, package: &str, dir: &Path) -> Result<()> {
    let part = dir.with_file_name(format!("{package}.part"));
    let _ = std::fs::remove_dir_all(&part);
    std::fs::create_dir_all(&part)?;
    apt.unpack(&[package], &part)?;
    // 6.12 has its modules in usr/lib; depmod looks in lib.
    if !part.join("lib/modules").exists() {
        std::fs::create_dir_all(part.join("lib"))?;
        std::os::unix::fs::symlink("../usr/lib/modules", part.join("lib/modules"))?;
    }
    let release = package.strip_prefix("linux-image-").unwrap_or(package);
    run(command(&["depmod", "-b"]).arg(&part).arg(release))?;
    std::fs::rename(&part, dir).with_context(|| dir.display().to_string())
}

/// Files of the wanted modules and of what they depend on.
fn modules(dir: &Path, release: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for module in MODULES {
        let mut show = command(&["modprobe", "--show-depends", "-S", release, "-d"]);
        let text = output(show.arg(dir).arg(module))?;
        for line in text.lines() {
            match line.split_whitespace().collect::<Vec<_>>().as_slice() {
                ["insmod", file, ..] if !files.contains(&PathBuf::from(file)) => {
                    files.push(PathBuf::from(file));
                }
                ["insmod", ..] | ["builtin", ..] => {}
                _ => bail!("modprobe said {line:?}"),
            }
        }
    }
    Ok(files)
}
