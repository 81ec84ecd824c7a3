//! `cargo xtask package`: builds a .deb and an .rpm from one tree ([`tree`]): binary, unit, catalog, group, configuration,
//! man pages, completions, documents.
//!
//! They are built by dpkg-deb and rpmbuild, and the same bytes come out wherever and whenever they are; the scripts of
//! installation and removal are in `deploy/package`.

pub(crate) mod tree;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use self::tree::{DOC, Programs, ZSH, compress, install, settle, tree, write};
use crate::epoch::Epoch;
use crate::machine::Machine;
use crate::shell::{command, output, run};
use crate::{build, place, setup};

/// rpmbuild; dpkg-deb is part of Debian, and of this package elsewhere.
pub(crate) const TOOLS: &[&str] = &["dpkg", "rpm", "gzip"];

/// Builds both packages, and prints their paths. `--arch arm64` (or amd64) builds for that architecture; `--binary
/// FILE` packs that binary instead of building one.
pub(crate) fn command_line(args: &[&str]) -> Result<()> {
    let own = Machine::own()?;
    let (machine, args) = match args {
        ["--arch", name, rest @ ..] => (Machine::named(name)?, rest),
        _ => (own, args),
    };
    let ipwatch = match args {
        [] => build::release_for(machine)?,
        ["--binary", file] => PathBuf::from(file),
        _ => bail!("usage: cargo xtask package [--arch ARCH] [--binary FILE]"),
    };
    // Another architecture's binary cannot run here to print its version, man pages and completions; this machine's
    // prints the same.
    let speaker = if machine == own { ipwatch.clone() } else { build::release()? };
    setup::packages(TOOLS)?;
    let room = place::target().join("package");
    let packed = Packed::new(machine, Programs { ipwatch, speaker }, "1")?;
    for package in packed.both(&room.join("work"), &room)? {
        println!("{}", package.display());
    }
    Ok(())
}

/// How much time is taken to compress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// What is handed on.
    Full,
    /// What tests install.
    Little,
}

impl Effort {
    pub(crate) fn gzip(self) -> &'static str {
        match self {
            Self::Full => "-9",
            Self::Little => "-1",
        }
    }

    fn xz(self) -> &'static str {
        match self {
            Self::Full => "-z6",
            Self::Little => "-z0",
        }
    }

    fn payload(self) -> &'static str {
        match self {
            Self::Full => "w9.gzdio",
            Self::Little => "w1.gzdio",
        }
    }
}

/// What is packed, and how it is named.
#[derive(Debug, Clone)]
pub(crate) struct Packed {
    pub(crate) machine: Machine,
    pub(crate) programs: Programs,
    pub(crate) version: String,
    /// Packages of the same version: dpkg and rpm treat revision 2 as newer than 1.
    pub(crate) revision: String,
    pub(crate) epoch: Epoch,
    pub(crate) effort: Effort,
}

impl Packed {
    pub(crate) fn new(machine: Machine, programs: Programs, revision: &str) -> Result<Self> {
        let version = programs.version()?;
        let epoch = Epoch::of_source()?;
        let (revision, effort) = (revision.to_owned(), Effort::Full);
        Ok(Self { machine, programs, version, revision, epoch, effort })
    }

    /// Both packages in `out`, made in `work`, which is emptied. Earlier packages of this architecture are removed: apt is
    /// given the package by a pattern.
    pub(crate) fn both(&self, work: &Path, out: &Path) -> Result<[PathBuf; 2]> {
        if work.exists() {
            fs::remove_dir_all(work)?;
        }
        fs::create_dir_all(out)?;
        for entry in fs::read_dir(out)?.flatten() {
            if is_package(&entry.file_name().to_string_lossy(), self.machine) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok([self.deb(&work.join("deb"), out)?, self.rpm(&work.join("rpm"), out)?])
    }

    /// The version in Debian's form: the first revision is left out, as before there were any.
    fn debian_version(&self) -> String {
        match self.revision.as_str() {
            "1" => self.version.clone(),
            later => format!("{}-{later}", self.version),
        }
    }

    fn deb(&self, root: &Path, out: &Path) -> Result<PathBuf> {
        tree(&self.programs, root, ZSH[0])?;
        let repository = place::repository();
        let parts = repository.join("deploy/package");
        let (version, arch) = (self.debian_version(), self.machine.debian());
        let changelog = root.join(DOC).join("changelog");
        write(&changelog, &debian_changelog(&version, self.epoch)?)?;
        compress(&changelog)?;
        let overrides = root.join("usr/share/lintian/overrides/ipwatch");
        install(&parts.join("lintian-overrides"), &overrides, 0o644)?;
        let control = fs::read_to_string(parts.join("control"))?
            .replace("@VERSION@", &version)
            .replace("@ARCH@", arch)
            .replace("@SIZE@", &installed_size(root)?.to_string());
        write(&root.join("DEBIAN/control"), &control)?;
        write(&root.join("DEBIAN/conffiles"), "/etc/ipwatch/ipwatch.toml\n")?;
        write(&root.join("DEBIAN/md5sums"), &sums(root)?)?;
        for script in ["postinst", "prerm", "postrm"] {
            install(&parts.join(script), &root.join("DEBIAN").join(script), 0o755)?;
        }
        settle(root)?;
        self.epoch.stamp(root)?;
        let package = out.join(format!("ipwatch_{version}_{arch}.deb"));
        let mut build = command(&["dpkg-deb", "--build", "--root-owner-group", "-Zxz"]);
        build.arg(self.effort.xz());
        run(self.epoch.set(build.arg(root).arg(&package)))?;
        Ok(package)
    }

    fn rpm(&self, room: &Path, out: &Path) -> Result<PathBuf> {
        let root = room.join("tree");
        tree(&self.programs, &root, ZSH[1])?;
        self.epoch.stamp(&root)?;
        let spec = fs::read_to_string(place::repository().join("deploy/package/ipwatch.spec"))?
            .replace("@VERSION@", &self.version)
            .replace("@REVISION@", &self.revision)
            .replace("@TREE@", &root.to_string_lossy());
        let file = room.join("ipwatch.spec");
        write(&file, &spec)?;
        let arch = self.machine.name();
        let mut build = command(&["rpmbuild", "-bb", "--quiet", "--target", arch]);
        let mut define = |name: &str, value: &str| {
            build.args(["--define", &format!("{name} {value}")]);
        };
        let topdir = room.join("build");
        define("_topdir", &topdir.to_string_lossy());
        // The tree is built and stripped; rpmbuild must not process it further.
        define("__os_install_post", "%{nil}");
        define("debug_package", "%{nil}");
        define("_build_id_links", "none");
        define("_binary_payload", self.effort.payload());
        // The header has no host and no time of the build.
        define("_buildhost", "reproducible");
        define("use_source_date_epoch_as_buildtime", "1");
        define("clamp_mtime_to_source_date_epoch", "1");
        define("_rpmfilename", "%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm");
        run(self.epoch.set(build.arg(&file)))?;
        let name = format!("ipwatch-{}-{}.{arch}.rpm", self.version, self.revision);
        let package = out.join(&name);
        fs::copy(topdir.join("RPMS").join(&name), &package)
            .with_context(|| format!("rpmbuild made no {name}"))?;
        Ok(package)
    }
}

/// Whether a file is a package of ipwatch for this architecture, of any version.
fn is_package(name: &str, machine: Machine) -> bool {
    let of = |begin: &str, end: String| name.starts_with(begin) && name.ends_with(&end);
    of("ipwatch_", format!("_{}.deb", machine.debian()))
        || of("ipwatch-", format!(".{}.rpm", machine.name()))
}

/// A .deb of this binary for each revision, in `room`.
pub(crate) fn debs(binary: &Path, revisions: &[&str], room: &Path) -> Result<Vec<PathBuf>> {
    setup::packages(&["dpkg", "gzip"])?;
    let programs = Programs { ipwatch: binary.into(), speaker: binary.into() };
    let one = |revision: &&str| {
        let packed = Packed::new(Machine::own()?, programs.clone(), revision)?;
        packed.deb(&room.join(format!("deb-{revision}")), room)
    };
    revisions.iter().map(one).collect()
}

/// A changelog in Debian's format, with the minimum that its tools require.
fn debian_changelog(version: &str, epoch: Epoch) -> Result<String> {
    let date = epoch.rfc5322()?;
    Ok(format!(
        "ipwatch ({version}) unstable; urgency=medium\n\n  * What changed: CHANGELOG.md.\n\n \
         -- The ipwatch authors <ipwatch@localhost>  {date}\n"
    ))
}

/// `Installed-Size` in KiB as dpkg-gencontrol computes it: each file rounded up, and one for everything else. The size of
/// a directory depends on the file system of the build.
fn installed_size(root: &Path) -> Result<u64> {
    let listed = output(command(&["find"]).arg(root).args(["-printf", "%y %s\\n"]))?;
    let size = |line: &str| match line.split_once(' ') {
        Some(("f", bytes)) => bytes.parse::<u64>().map_or(1, |bytes| bytes.div_ceil(1024)),
        _ => 1,
    };
    Ok(listed.lines().map(size).sum())
}

/// The checksums for `dpkg --verify`, sorted: `find` lists in the order of the file system.
fn sums(root: &Path) -> Result<String> {
    let mut find = command(&["find", "usr", "-type", "f", "-exec", "md5sum", "{}", "+"]);
    let listed = output(find.current_dir(root))?;
    let mut lines: Vec<&str> = listed.lines().collect();
    lines.sort_unstable_by_key(|line| line.split_once("  ").map(|(_, path)| path));
    Ok(lines.iter().map(|line| format!("{line}\n")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_packages_of_the_same_architecture_are_known_by_name() {
        let (amd64, arm64) = (Machine::X86_64, Machine::Arm64);
        assert!(is_package("ipwatch_0.0.9_amd64.deb", amd64));
        assert!(is_package("ipwatch_0.1.0-2_arm64.deb", arm64));
        assert!(is_package("ipwatch-0.1.0-1.x86_64.rpm", amd64));
        for other in ["ipwatch_0.1.0_arm64.deb", "ipwatch-0.1.0.tgz", "other_1_amd64.deb", "work"] {
            assert!(!is_package(other, amd64), "{other}");
        }
    }
}
