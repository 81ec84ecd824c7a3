//! Stock kernels, from packages in the machine's own apt sources, or of another Debian release.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::apt::{Apt, Release};
use super::sysroot;
use crate::machine::Machine;
use crate::place;
use crate::shell::{command, output, run};

/// Tested in every run, with all tests that depend on the kernel.
pub(crate) const KERNELS: [Stock; 3] = [
    Stock::new("6.12", "linux-image-6.12-cloud-amd64"),
    Stock::new("6.1", "linux-image-cloud-amd64"),
    Stock { release: Some(Release::Bullseye), ..Stock::new("5.10", "linux-image-cloud-amd64") },
];

/// Tested in every run, with the tests that lockdown may affect.
pub(crate) const LOCKED: [Stock; 2] = [
    Stock {
        words: "lockdown=integrity",
        ..Stock::new("6.12-integrity", "linux-image-6.12-cloud-amd64")
    },
    Stock {
        words: "lockdown=confidentiality",
        ..Stock::new("6.12-confidentiality", "linux-image-6.12-cloud-amd64")
    },
];

/// The newest kernel, tested with `--long`.
pub(crate) const NEWEST: Stock =
    Stock { release: Some(Release::Sid), ..Stock::new("sid", "linux-image-cloud-amd64") };

/// The kernels for the systemd tests: those of Debian 12.
pub(crate) const UNDER_SYSTEMD: [Stock; 2] = [KERNELS[0], KERNELS[1]];

/// The kernels of another architecture, where fentry came with 6.4: on 6.1 kprobes are the highest rung.
pub(crate) const ARM64: [Stock; 2] = [
    Stock { machine: Machine::Arm64, ..Stock::new("6.12-arm64", "linux-image-6.12-cloud-arm64") },
    Stock { machine: Machine::Arm64, ..Stock::new("6.1-arm64", "linux-image-cloud-arm64") },
];

/// The kernels of a run of all tests.
pub(crate) fn usual(long: bool) -> Vec<Stock> {
    KERNELS.into_iter().chain(LOCKED).chain(long.then_some(NEWEST)).collect()
}

/// The kernel with this name.
pub(crate) fn named(name: &str) -> Result<Stock> {
    let all: Vec<Stock> = usual(true).into_iter().chain(ARM64).collect();
    let found = all.iter().find(|kernel| kernel.name == name).copied();
    found.with_context(|| {
        let names: Vec<&str> = all.iter().map(|kernel| kernel.name).collect();
        format!("no kernel {name:?}; there are {}", names.join(", "))
    })
}

/// Modules that the tests need; virtio for the one NIC, and for the disks of the VMs that boot systemd. Other VMs
/// need no disk: input comes in the initramfs and output goes to the console.
const MODULES: [&str; 15] = [
    "bonding",
    "veth",
    "bridge",
    "macvlan",
    "ipvlan",
    "dummy",
    "fuse",
    "nfsv3",
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
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// The package that depends on its newest build.
    meta: &'static str,
    /// The release with that package, if it is not in the machine's own sources.
    release: Option<Release>,
    /// Its architecture.
    pub(crate) machine: Machine,
    /// Further kernel parameters.
    pub(crate) words: &'static str,
}

/// An unpacked kernel.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// Root of the programs for it: `/` for this machine's architecture.
    pub(crate) sysroot: PathBuf,
    /// The bootable image.
    pub(crate) image: PathBuf,
    /// Modules in the order in which they load.
    pub(crate) modules: Vec<PathBuf>,
}

impl Stock {
    /// A kernel from this machine's sources, for x86_64.
    const fn new(name: &'static str, meta: &'static str) -> Self {
        Self { name, meta, release: None, machine: Machine::X86_64, words: "" }
    }

    /// Whether programs can be attached to its functions by fentry (on arm64 since 6.4).
    pub(crate) fn has_fentry(self) -> bool {
        self.machine == Machine::X86_64 || !self.name.starts_with("6.1-")
    }

    /// Downloads and unpacks the kernel into the cache if it is missing.
    pub(crate) fn fetch(self) -> Result<Fetched> {
        let _lock = place::lock()?;
        let apt = Apt::of(self.machine, self.release)?;
        let package = self.package(&apt)?;
        let (package, dir) = match get(&apt, &package) {
            Ok(dir) => (package, dir),
            // The mirrors keep only the newest build, which the lists may not have yet.
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
            image: image(&dir, release),
            modules: modules(&dir, release)?,
        })
    }

    /// The package that the meta package depends on. Lists without it are updated. On another Debian release the meta
    /// package may stand for another series.
    fn package(self, apt: &Apt) -> Result<String> {
        let version = self.name.split('-').next().unwrap_or(self.name);
        let series = match self.release {
            // The newest of any series.
            Some(Release::Sid) => "linux-image-".to_owned(),
            _ => format!("linux-image-{version}."),
        };
        let find = || depends(apt, self.meta).into_iter().find(|name| name.starts_with(&series));
        // Only updated lists show the newest. If they cannot be updated, the newest in the old lists is used.
        if self.release == Some(Release::Sid)
            && let Err(error) = apt.update()
        {
            println!("{error:#}");
        }
        if let Some(package) = find() {
            return Ok(package);
        }
        apt.update()?;
        find().with_context(|| {
            format!("apt's sources have no {} with Linux {version}; Debian 12's do", self.meta)
        })
    }
}

/// The bootable image; since Debian 14 it is beside the modules.
fn image(dir: &Path, release: &str) -> PathBuf {
    let image = dir.join("boot").join(format!("vmlinuz-{release}"));
    if image.exists() { image } else { dir.join("lib/modules").join(release).join("vmlinuz") }
}

/// The dependencies of a package.
fn depends(apt: &Apt, package: &str) -> Vec<String> {
    let text = output(apt.command("apt-cache").args(["depends", package])).unwrap_or_default();
    let names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.map(str::to_owned).collect()
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

/// Unpacks to a temporary directory and renames it, so that the final directory is always complete.
fn unpack(apt: &Apt, package: &str, dir: &Path) -> Result<()> {
    let part = dir.with_file_name(format!("{package}.part"));
    let _ = std::fs::remove_dir_all(&part);
    std::fs::create_dir_all(&part)?;
    // Since Debian 14 image and modules are in other packages.
    let parts = depends(apt, package).into_iter().filter(|name| {
        ["linux-base-", "linux-binary-", "linux-modules-"]
            .iter()
            .any(|begin| name.starts_with(begin))
    });
    let packages: Vec<String> = [package.to_owned()].into_iter().chain(parts).collect();
    let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
    apt.unpack(&packages, &part)?;
    // 6.12 has its modules in usr/lib; depmod looks in lib.
    if !part.join("lib/modules").exists() {
        std::fs::create_dir_all(part.join("lib"))?;
        std::os::unix::fs::symlink("../usr/lib/modules", part.join("lib/modules"))?;
    }
    let release = package.strip_prefix("linux-image-").unwrap_or(package);
    run(command(&["depmod", "-b"]).arg(&part).arg(release))?;
    std::fs::rename(&part, dir).with_context(|| dir.display().to_string())
}

/// Files of the modules and their dependencies.
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
