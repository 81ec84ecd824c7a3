//! `cargo xtask release`: everything that is handed on, from one commit, in one directory.
//!
//! Two stages: programs are compiled for amd64 and arm64, then packed; `--bin-dir` packs programs that are there. The same
//! commit gives the same bytes in any directory and at any time, with the same Rust and the same Debian:
//! `--check-reproducible` has it made again from a clone and compares ([`again`]).
//!
//! - [`archive`]: tars without names, times and owners of the build.
//! - [`image`], [`chart`], [`krew`]: for Kubernetes; [`crate::package`]: .deb and .rpm.
//! - [`sbom`], [`notes`], [`sign`]: what is in it, what is new, and who vouches for it.

mod again;
mod archive;
mod chart;
mod image;
mod krew;
mod notes;
mod options;
mod sbom;
mod sign;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use self::archive::How;
use self::image::Image;
use self::options::Options;
use crate::build::Binaries;
use crate::epoch::Epoch;
use crate::machine::Machine;
use crate::package::tree::{DOC, Programs, install, tree};
use crate::package::{self, Packed};
use crate::shell::{command, output};
use crate::{bench, build, place, setup};

/// The architectures that are released.
const MACHINES: [Machine; 2] = [Machine::X86_64, Machine::Arm64];
const TOOLS: &[&str] = &["tar", "coreutils"];
/// Directory beside the files while they are made.
const WORK: &str = ".work";

/// Makes a release, and prints where it is.
pub(crate) fn command_line(args: &[&str]) -> Result<()> {
    let options = Options::read(args)?;
    let epoch = Epoch::of_source()?;
    if !options.allow_dirty {
        clean()?;
    }
    setup::packages(package::TOOLS)?;
    setup::packages(TOOLS)?;
    let programs = match &options.bin_dir {
        Some(dir) => built(dir)?,
        None => compile()?,
    };
    Release::new(options.clone(), epoch, programs)?.pack()?;
    println!("{}", options.out.display());
    if options.check_reproducible {
        again::compare(&options)?;
    }
    Ok(())
}

/// The revisions of what tests install: an upgrade and a rollback need two.
const TESTED: [&str; 2] = ["1", "2"];

/// The version before this one: its ledger is in `tests/fixtures/upgrade`.
const PREVIOUS: &str = "b5173eb";

/// The binary of the version before, if a test selected by these filters needs it; otherwise an empty path. It is built once.
pub(crate) fn previous_for_tests(binaries: &Binaries, filters: &[&str]) -> Result<PathBuf> {
    if !is_needed("PreviousVersion", binaries, filters)? {
        return Ok(PathBuf::new());
    }
    println!("building the version before, {PREVIOUS}");
    bench::build_of(PREVIOUS)
}

/// Whether a test selected by these filters has this need.
fn is_needed(need: &str, binaries: &Binaries, filters: &[&str]) -> Result<bool> {
    let needs = output(Command::new(&binaries.e2e).arg("--needs").args(filters))?;
    Ok(needs.lines().any(|one| one == need))
}

/// Directory of a release of this machine's binary, in `1` and `2` the revisions, if a test selected by these filters
/// needs it; otherwise an empty path.
pub(crate) fn for_tests(binaries: &Binaries, filters: &[&str]) -> Result<PathBuf> {
    if !is_needed("Release", binaries, filters)? {
        return Ok(PathBuf::new());
    }
    setup::packages(package::TOOLS)?;
    setup::packages(&["skopeo"])?;
    let own = Machine::own()?;
    let room = place::target().join("release-tested");
    let programs = room.join("bin").join(own.debian());
    fs::create_dir_all(&programs)?;
    // Without the symbols for debugging, which are most of it.
    for name in ["ipwatch", "ipwatch-ipam"] {
        let from = binaries.ipwatch.with_file_name(name);
        build::stripped(own, &from, &programs.join(name))?;
    }
    let (room, bin) = (room.to_string_lossy(), room.join("bin"));
    for revision in TESTED {
        let (out, bin) = (format!("{room}/{revision}"), bin.to_string_lossy());
        let words = ["--out", &out, "--bin-dir", &bin, "--revision", revision, "--fast"];
        let options = Options::read(&words)?;
        Release::new(options, Epoch::of_source()?, built(Path::new(&*bin))?)?.pack()?;
    }
    Ok(PathBuf::from(&*room))
}

/// A release has a commit: from anything else it could not be made again.
fn clean() -> Result<()> {
    let mut status = command(&["git", "status", "--porcelain"]);
    let changed = output(status.current_dir(place::repository()))?;
    ensure!(
        changed.is_empty(),
        "not committed; commit it, or say --allow-dirty to try:\n{}",
        changed.trim_end()
    );
    Ok(())
}

/// Compiles for every architecture.
fn compile() -> Result<Vec<(Machine, Programs)>> {
    let speaker = build::release()?;
    let of = |machine| {
        let ipwatch = build::release_for(machine)?;
        Ok((machine, Programs { ipwatch, speaker: speaker.clone() }))
    };
    MACHINES.into_iter().map(of).collect()
}

/// The programs in `DIR/amd64` and `DIR/arm64`: those that are there, at least this machine's.
fn built(dir: &Path) -> Result<Vec<(Machine, Programs)>> {
    let at = |machine: Machine| dir.join(machine.debian()).join("ipwatch");
    let speaker = at(Machine::own()?);
    if !speaker.exists() {
        bail!("no {}: it prints the man pages", speaker.display());
    }
    let there = MACHINES.into_iter().filter(|machine| at(*machine).exists());
    let of = |machine| (machine, Programs { ipwatch: at(machine), speaker: speaker.clone() });
    Ok(there.map(of).collect())
}

/// A release that is being packed.
struct Release {
    options: Options,
    epoch: Epoch,
    programs: Vec<(Machine, Programs)>,
    version: String,
    work: PathBuf,
    /// The files so far, with what they are.
    files: Vec<(String, &'static str)>,
}

impl Release {
    fn new(options: Options, epoch: Epoch, programs: Vec<(Machine, Programs)>) -> Result<Self> {
        let (_, first) = programs.first().context("no programs")?;
        let version = first.version()?;
        // Beside what it becomes, on the same file system.
        let work = options.out.join(WORK);
        Ok(Self { options, epoch, programs, version, work, files: Vec::new() })
    }

    /// Makes all files in the directory, which is emptied of an earlier release.
    fn pack(mut self) -> Result<()> {
        empty(&self.options.out)?;
        empty(&self.work)?;
        for (machine, programs) in self.programs.clone() {
            self.packages(machine, &programs)?;
            self.tarball(machine, &programs)?;
        }
        let digest = self.image()?;
        self.chart(&digest)?;
        self.krew()?;
        self.sbom()?;
        self.notes(&digest)?;
        fs::remove_dir_all(&self.work)?;
        let names: Vec<String> = self.files.iter().map(|(name, _)| name.clone()).collect();
        sign::checksums(&self.options.out, &names)?;
        if let Some(key) = &self.options.sign_key {
            sign::sign(&self.options.out, key)?;
        }
        Ok(())
    }

    fn how(&self) -> How {
        How { epoch: self.epoch, effort: self.options.effort }
    }

    /// Where a file goes. It is then one of the release's.
    fn file(&mut self, name: String, what: &'static str) -> PathBuf {
        let path = self.options.out.join(&name);
        self.files.push((name, what));
        path
    }

    /// An empty directory.
    fn room(&self, name: &str) -> Result<PathBuf> {
        let dir = self.work.join(name);
        empty(&dir)?;
        Ok(dir)
    }

    fn packages(&mut self, machine: Machine, programs: &Programs) -> Result<()> {
        let packed = Packed {
            machine,
            programs: programs.clone(),
            version: self.version.clone(),
            revision: self.options.revision.clone(),
            epoch: self.epoch,
            effort: self.options.effort,
        };
        let whats = ["Debian, Ubuntu", "RHEL, Fedora, Amazon Linux, SUSE"];
        let made = packed.both(&self.room("package")?, &self.options.out)?;
        for (path, what) in made.iter().zip(whats) {
            let name = path.file_name().context("a package without a name")?;
            self.files.push((name.to_string_lossy().into_owned(), what));
        }
        Ok(())
    }

    /// The same files as in the packages, without a configuration, so that it can be unpacked over an older one.
    fn tarball(&mut self, machine: Machine, programs: &Programs) -> Result<()> {
        let (work, name) =
            (self.room("tarball")?, format!("ipwatch-{}-linux-{}", self.version, machine.debian()));
        let root = work.join(&name);
        tree(programs, &root, "usr/share/zsh/site-functions")?;
        let config = root.join("etc/ipwatch/ipwatch.toml");
        install(&config, &root.join(DOC).join("ipwatch.toml"), 0o644)?;
        fs::remove_dir_all(root.join("etc"))?;
        let to = self.file(format!("{name}.tar.gz"), "static programs for any distribution");
        archive::tar_gz(&work, &[&name], self.how(), &to)
    }

    /// The image; returns its digest.
    fn image(&mut self) -> Result<String> {
        let work = self.room("image")?;
        let name = format!("ipwatch-{}-image.tar", self.version);
        let to = self.file(name, "image of all architectures, an OCI layout");
        let image =
            Image { version: &self.version, name: &self.options.image, how: self.how(), work };
        image.pack(&self.programs, &to)
    }

    fn chart(&mut self, digest: &str) -> Result<()> {
        let work = self.room("chart")?;
        let to = self.file(format!("ipwatch-{}.tgz", self.version), "Helm chart of this image");
        let machines: Vec<Machine> = self.programs.iter().map(|(machine, _)| *machine).collect();
        let image = (self.options.image.as_str(), digest);
        chart::pack(&self.version, image, &machines, self.how(), &work, &to)
    }

    fn krew(&mut self) -> Result<()> {
        let mut packed = Vec::new();
        for (machine, programs) in self.programs.clone() {
            let work = self.room("krew")?;
            let name = krew::archive(&self.version, machine);
            let to = self.file(name, "plugin of kubectl");
            krew::pack(&programs, self.how(), &work, &to)?;
            packed.push((machine, to));
        }
        // krew wants the file to have the plugin's name.
        let to = self.file("ipwatch.yaml".to_owned(), "krew's manifest of the plugin");
        let packed: Vec<(Machine, &Path)> =
            packed.iter().map(|(machine, to)| (*machine, to.as_path())).collect();
        krew::manifest(&self.version, self.options.krew_base_url.as_deref(), &packed, &to)
    }

    fn sbom(&mut self) -> Result<()> {
        let mut binaries = Vec::new();
        for (machine, programs) in &self.programs {
            for path in [programs.ipwatch.clone(), programs.ipam()] {
                let name = path.file_name().context("a program without a name")?;
                binaries.push((format!("{}/{}", machine.debian(), name.to_string_lossy()), path));
            }
        }
        let document = sbom::document(&self.version, self.epoch, &binaries)?;
        let to =
            self.file(format!("ipwatch-{}.spdx.json", self.version), "bill of materials, SPDX 2.3");
        fs::write(to, format!("{}\n", serde_json::to_string_pretty(&document)?))?;
        Ok(())
    }

    fn notes(&mut self, digest: &str) -> Result<()> {
        let changelog = fs::read_to_string(place::repository().join("CHANGELOG.md"))?;
        let about = notes::About {
            version: &self.version,
            image: (&self.options.image, digest),
            files: self.files.clone(),
            signed: self.options.sign_key.is_some(),
        };
        let text = notes::notes(&about, &changelog)?;
        fs::write(self.file("RELEASE-NOTES.md".to_owned(), "this"), text)?;
        Ok(())
    }
}

/// Makes an empty directory of a directory that an earlier run made.
fn empty(dir: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| dir.display().to_string())?;
    }
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())
}
