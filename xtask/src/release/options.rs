//! The options of `cargo xtask release`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use super::sign;
use crate::package::Effort;
use crate::place;

/// What a release is made of, and for whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Options {
    /// Directory of the files; it is replaced.
    pub(super) out: PathBuf,
    /// Where the archives of the plugin will be.
    pub(super) krew_base_url: Option<String>,
    /// A private key of OpenSSH, or the public key of one in an agent.
    pub(super) sign_key: Option<PathBuf>,
    /// Name of the image in a registry.
    pub(super) image: String,
    /// Of the packages: 2 for a second one of the same version.
    pub(super) revision: String,
    /// Programs that are built already.
    pub(super) bin_dir: Option<PathBuf>,
    pub(super) allow_dirty: bool,
    /// `--fast`: for tests, which install it once.
    pub(super) effort: Effort,
    pub(super) check_reproducible: bool,
}

const USAGE: &str = "usage: cargo xtask release [--out DIR] [--krew-base-url URL] [--image NAME] [--revision NUMBER] \
                     [--sign-key FILE] [--bin-dir DIR] [--allow-dirty] [--fast] [--check-reproducible]";

impl Options {
    pub(super) fn read(args: &[&str]) -> Result<Self> {
        let mut options = Self {
            out: place::target().join("dist"),
            krew_base_url: None,
            sign_key: None,
            image: "ipwatch".to_owned(),
            revision: "1".to_owned(),
            bin_dir: None,
            allow_dirty: false,
            effort: Effort::Full,
            check_reproducible: false,
        };
        let mut args = args.iter();
        while let Some(&name) = args.next() {
            let mut value =
                || args.next().copied().with_context(|| format!("{name} needs a value"));
            match name {
                "--out" => options.out = absolute(value()?)?,
                "--krew-base-url" => options.krew_base_url = Some(url(value()?)?),
                "--sign-key" => options.sign_key = Some(absolute(value()?)?),
                "--image" => options.image = image(value()?)?,
                "--revision" => options.revision = revision(value()?)?,
                "--bin-dir" => options.bin_dir = Some(absolute(value()?)?),
                "--allow-dirty" => options.allow_dirty = true,
                "--fast" => options.effort = Effort::Little,
                "--check-reproducible" => options.check_reproducible = true,
                _ => bail!("{USAGE}"),
            }
        }
        options.checked()
    }

    fn checked(self) -> Result<Self> {
        // It is emptied. One that was interrupted has no checksums yet.
        let ours = |dir: &Path| dir.join(sign::SUMS).exists() || dir.join(super::WORK).exists();
        let is_empty =
            |dir: &Path| std::fs::read_dir(dir).is_ok_and(|mut all| all.next().is_none());
        let out = &self.out;
        ensure!(
            !out.exists() || ours(out) || is_empty(out),
            "{} is no directory of a release, and not empty: choose another one, or empty it",
            out.display()
        );
        if let Some(key) = &self.sign_key {
            ensure!(key.is_file(), "no key {}", key.display());
        }
        ensure!(
            !self.check_reproducible || (self.bin_dir.is_none() && !self.allow_dirty),
            "--check-reproducible compiles the commit, twice: leave --bin-dir and --allow-dirty out"
        );
        Ok(self)
    }
}

/// rpmbuild and cargo run elsewhere.
fn absolute(path: &str) -> Result<PathBuf> {
    let path = std::path::absolute(path).with_context(|| path.to_owned())?;
    // rpmbuild splits its specification at spaces.
    let is_plain = path.to_str().is_some_and(|text| !text.contains([' ', '%']));
    ensure!(is_plain, "{}: a path with a space or % is not understood by rpmbuild", path.display());
    Ok(path)
}

fn url(text: &str) -> Result<String> {
    ensure!(text.starts_with("https://"), "{text}: krew downloads from https://");
    Ok(text.trim_end_matches('/').to_owned())
}

/// A name without tag and digest. It becomes a word of YAML and of a command.
fn image(text: &str) -> Result<String> {
    let (_, last) = text.rsplit_once('/').unwrap_or(("", text));
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "./:_-".contains(c);
    ensure!(
        !last.is_empty() && !last.contains(':') && text.chars().all(plain),
        "{text}: a name like registry.example/ipwatch, without a tag"
    );
    Ok(text.to_owned())
}

fn revision(text: &str) -> Result<String> {
    let number: u32 = text.parse().with_context(|| format!("--revision {text}: a number"))?;
    ensure!(number > 0, "--revision begins with 1");
    Ok(number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(args: &[&str]) -> String {
        Options::read(args).unwrap_err().to_string()
    }

    #[test]
    fn options_are_read() {
        let words = "--out /none/out --krew-base-url https://a.example/ --image r.example:5000/t/ipwatch --revision 2 \
                     --bin-dir /none --allow-dirty";
        let options = Options::read(&words.split(' ').collect::<Vec<_>>()).unwrap();
        assert_eq!(options.out, Path::new("/none/out"));
        assert_eq!(options.krew_base_url.as_deref(), Some("https://a.example"));
        assert_eq!(options.image, "r.example:5000/t/ipwatch");
        assert_eq!((options.revision.as_str(), options.allow_dirty), ("2", true));
        assert!(!options.check_reproducible);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(refused(&["--sign"]).starts_with("usage:"));
        assert!(refused(&["--out"]).contains("needs a value"));
        assert!(refused(&["--sign-key", "/nonexistent/key"]).contains("no key"));
        assert!(refused(&["--krew-base-url", "http://a.example"]).contains("https"));
        for name in ["a b", "ipwatch:0.1.0", "registry.example/", "x\"y", "ipwatch@sha256"] {
            assert!(refused(&["--image", name]).contains("without a tag"), "{name}");
        }
        assert!(refused(&["--revision", "0"]).contains("begins with 1"));
        assert!(refused(&["--out", "/a b"]).contains("rpmbuild"));
        assert!(refused(&["--check-reproducible", "--allow-dirty"]).contains("twice"));
        // Not a directory that somebody else filled.
        assert!(refused(&["--out", "/etc"]).contains("not empty"));
    }
}
