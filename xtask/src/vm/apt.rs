//! apt for the packages of a machine. For another architecture or another Debian release it has separate lists and
//! state, so that the machine's own dpkg and apt are not affected.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::machine::Machine;
use crate::shell::output;
use crate::{place, setup};

/// A Debian release that is not in the machine's own sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    /// Debian 11. Its kernel is updated in its security suite.
    Bullseye,
    /// Debian 12.
    Bookworm,
    /// Debian 13.
    Trixie,
    /// The newest packages.
    Sid,
}

impl Release {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bullseye => "bullseye",
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
            Self::Sid => "sid",
        }
    }

    /// Labels of the archives that have it, as in their Release files, and its suite there.
    fn suites(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Bullseye => &[("Debian", "bullseye"), ("Debian-Security", "bullseye-security")],
            Self::Bookworm => &[("Debian", "bookworm"), ("Debian-Security", "bookworm-security")],
            Self::Trixie => &[("Debian", "trixie"), ("Debian-Security", "trixie-security")],
            Self::Sid => &[("Debian", "sid")],
        }
    }

    /// Its apt sources; `mirror` returns the mirror for an archive's label.
    fn sources(self, mirror: impl Fn(&str) -> String) -> String {
        let mut text = String::new();
        for (label, suite) in self.suites() {
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "Types: deb\nURIs: {}\nSuites: {suite}\nComponents: main\nSigned-By: {KEYS}\n\n",
                mirror(label)
            );
        }
        text
    }
}

/// Debian's keys, as installed by its package `debian-archive-keyring`.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The mirror of an archive: from the machine's own sources, else Debian's.
fn mirror(label: &str) -> String {
    let mut targets = setup::apt("apt-get");
    targets.args(["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]);
    let known = output(targets.arg(format!("Label: {label}"))).unwrap_or_default();
    known.lines().next().map_or_else(
        || format!("http://deb.debian.org/{}", label.to_lowercase()),
        |uri| uri.trim_end_matches('/').to_owned(),
    )
}

/// An apt with its own or the machine's state.
pub(crate) struct Apt {
    /// For another architecture or release.
    private: Option<Private>,
}

/// Its separate state.
struct Private {
    machine: Machine,
    release: Option<Release>,
    dir: PathBuf,
}

impl Apt {
    /// apt for this architecture, with the machine's own sources or those of another release.
    pub(crate) fn of(machine: Machine, release: Option<Release>) -> Result<Self> {
        if machine == Machine::own()? && release.is_none() {
            return Ok(Self { private: None });
        }
        let suffix = release.map(|release| format!("-{}", release.name())).unwrap_or_default();
        let dir = place::cache(&format!("apt-{}{suffix}", machine.debian()))?;
        for name in ["lists/partial", "cache/archives/partial", "parts"] {
            std::fs::create_dir_all(dir.join(name))?;
        }
        // Nothing counts as installed, so that a package's dependencies are complete.
        std::fs::write(dir.join("status"), "")?;
        if let Some(release) = release {
            std::fs::write(dir.join(SOURCES), release.sources(mirror))?;
        }
        Ok(Self { private: Some(Private { machine, release, dir }) })
    }

    /// `apt-get` or `apt-cache`.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut apt = setup::apt(program);
        let Some(Private { machine, release, dir }) = &self.private else { return apt };
        let mut set = |key: &str, value: &str| {
            apt.args(["-o", &format!("{key}={value}")]);
        };
        set("APT::Architecture", machine.debian());
        set("APT::Architectures", machine.debian());
        set("Acquire::IndexTargets::deb::DEP-11::DefaultEnabled", "false");
        let mut lies_at = |key: &str, name: &str| set(key, &dir.join(name).to_string_lossy());
        lies_at("Dir::State", "");
        lies_at("Dir::State::lists", "lists");
        lies_at("Dir::State::status", "status");
        lies_at("Dir::Cache", "cache");
        if release.is_some() {
            lies_at("Dir::Etc::sourcelist", SOURCES);
            lies_at("Dir::Etc::sourceparts", "parts");
        }
        apt
    }

    pub(crate) fn update(&self) -> Result<()> {
        setup::update_by(|| self.command("apt-get"))
    }

    /// The packages that `packages` need to be installed, themselves included, without those that are only recommended.
    pub(crate) fn with_dependencies(&self, packages: &[&str]) -> Result<Vec<String>> {
        let mut install = self.command("apt-get");
        install.args(["install", "-s", "-q", "--no-install-recommends"]).args(packages);
        let said = output(&mut install)?;
        let names = said.lines().filter_map(|line| line.strip_prefix("Inst ")?.split(' ').next());
        Ok(names.map(str::to_owned).collect())
    }

    /// Downloads packages and unpacks them into `dir`.
    pub(crate) fn unpack(&self, packages: &[&str], dir: &Path) -> Result<()> {
        setup::unpack_by(self.command("apt-get"), packages, dir)
    }
}

/// The file with the sources of another release. apt requires this suffix.
const SOURCES: &str = "release.sources";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_release_comes_from_the_mirrors_of_the_machines_own() {
        let sources = Release::Bullseye.sources(|label| format!("http://mirror/{label}"));
        let of = |line: &str| sources.lines().filter(|it| it.starts_with(line)).count();
        assert_eq!((of("Types: deb"), of("Signed-By: ")), (2, 2));
        assert!(sources.contains("URIs: http://mirror/Debian\nSuites: bullseye\n"), "{sources}");
        let security = "URIs: http://mirror/Debian-Security\nSuites: bullseye-security\n";
        assert!(sources.contains(security), "{sources}");
        assert!(!Release::Sid.sources(str::to_owned).contains("security"));
    }
}
