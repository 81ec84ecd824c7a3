//! Stock kernels, from the packages that the machine's own apt sources offer, or another release of Debian.

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

/// Tested in every run, with what the kernel's lockdown could take away.
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

/// The newest there is, tested with `--long`.
pub(crate) const NEWEST: Stock =
    Stock { release: Some(Release::Sid), ..Stock::new("sid", "linux-image-cloud-amd64") };

/// Those under which systemd is tested: Debian 12's.
pub(crate) const UNDER_SYSTEMD: [Stock; 2] = [KERNELS[0], KERNELS[1]];

/// Those of another architecture. There fentry came with 6.4 or so: on 6.1 kprobes are the highest rung.
pub(crate) const ARM64: [Stock; 2] = [
    Stock { machine: Machine::Arm64, ..Stock::new("6.12-arm64", "linux-image-6.12-cloud-arm64") },
    Stock { machine: Machine::Arm64, ..Stock::new("6.1-arm64", "linux-image-cloud-arm64") },
];

/// Those of a run of all tests.
pub(crate) fn usual(long: bool) -> Vec<Stock> {
    KERNELS.into_iter().chain(LOCKED).chain(long.then_some(NEWEST)).collect()
}

/// The one that a person names so.
pub(crate) fn named(name: &str) -> Result<Stock> {
    let all: Vec<Stock> = usual(true).into_iter().chain(ARM64).collect();
    let found = all.iter().find(|kernel| kernel.name == name).copied();
    found.with_context(|| {
        let names: Vec<&str> = all.iter().map(|kernel| kernel.name).collect();
        format!("no kernel {name:?}; there are {}", names.join(", "))
    })
}

/// What the tests need beyond what is built in; virtio for the one NIC, and for the disks of the VMs that boot
/// systemd. The others need none: input comes in the initramfs and output goes to the console.
const MODULES: [&str; 14] = [
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
    /// As people name it.
    pub(crate) name: &'static str,
    /// The package that depends on its newest build.
    meta: &'static str,
    /// Where that package is, if not in the machine's own sources.
    release: Option<Release>,
    /// What it runs on.
    pub(crate) machine: Machine,
    /// Of its command line.
    pub(crate) words: &'static str,
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
    /// One of this machine's sources and of x86_64.
    const fn new(name: &'static str, meta: &'static str) -> Self {
        Self { name, meta, release: None, machine: Machine::X86_64, words: "" }
    }

    /// Whether programs can be attached to its functions by fentry (on arm64 since 6.4).
    pub(crate) fn has_fentry(self) -> bool {
        self.machine == Machine::X86_64 || !self.name.starts_with("6.1-")
    }

    /// Downloads and unpacks it into the cache, unless it is there.
    pub(crate) fn fetch(self) -> Result<Fetched> {
        let _lock = place::lock()?;
        let apt = Apt::of(self.machine, self.release)?;
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
            image: image(&dir, release),
            modules: modules(&dir, release)?,
        })
    }

    /// The package that the meta package depends on. Lists that are too old to know it are updated.
    /// On another release of Debian the meta package may stand for another series.
    fn package(self, apt: &Apt) -> Result<String> {
        let version = self.name.split('-').next().unwrap_or(self.name);
        let series = match self.release {
            // Whatever is the newest.
            Some(Release::Sid) => "linux-image-".to_owned(),
            _ => format!("linux-image-{version}."),
        };
        let find = || depends(apt, self.meta).into_iter().find(|name| name.starts_with(&series));
        // What is the newest is known by new lists only. Without them the newest of old ones does.
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

/// The bootable image; since Debian 14 it lies beside the modules.
fn image(dir: &Path, release: &str) -> PathBuf {
    let image = dir.join("boot").join(format!("vmlinuz-{release}"));
    if image.exists() { image } else { dir.join("lib/modules").join(release).join("vmlinuz") }
}

/// What a package depends on.
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

/// Unpacks beside the final place and moves there: what stands there is whole.
fn unpack(apt: &Apt, package: &str, dir: &Path) -> Result<()> {
    let part = dir.with_file_name(format!("{package}.part"));
    let _ = std::fs::remove_dir_all(&part);
    std::fs::create_dir_all(&part)?;
    // Since Debian 14 the package brings neither the image nor the modules.
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
