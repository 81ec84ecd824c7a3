//! The same commit made once more elsewhere, and compared by its checksums.
//!
//! The clone has a longer path, another home of cargo, another target directory, umask, language and time zone. It is kept:
//! the next comparison compiles only what has changed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use super::options::Options;
use super::sign::SUMS;
use crate::package::Effort;
use crate::place;
use crate::shell::{command, output, run};

/// Makes the release of these options again, and fails where a file differs.
pub(super) fn compare(options: &Options) -> Result<()> {
    let room = place::target().join("release-again");
    let clone = room.join("another/and/longer/path/ipwatch");
    let head = output(command(&["git", "rev-parse", "HEAD"]).current_dir(place::repository()))?;
    if !clone.exists() {
        let mut git = command(&["git", "clone", "--quiet", "--no-checkout"]);
        run(git.arg(place::repository()).arg(&clone))?;
    }
    run(command(&["git", "fetch", "--quiet", "origin", head.trim()]).current_dir(&clone))?;
    run(command(&["git", "checkout", "--quiet", "--force", head.trim()]).current_dir(&clone))?;
    let out = room.join("dist");
    make(&clone, &home(&room)?, options, &out)?;
    let (here, there) = (sums(&options.out)?, sums(&out)?);
    let differ = differing(&here, &there);
    if !differ.is_empty() {
        bail!(
            "not reproduced: {}; compare {} and {}",
            differ.join(", "),
            options.out.display(),
            out.display()
        );
    }
    println!("reproduced: {} files are the same in {}", here.len(), out.display());
    Ok(())
}

fn make(clone: &Path, home: &Path, options: &Options, out: &Path) -> Result<()> {
    let mut cargo = command(&["sh", "-c", "umask 077 && exec cargo xtask release \"$@\"", "sh"]);
    cargo.arg("--out").arg(out).args(["--image", &options.image, "--revision", &options.revision]);
    cargo.args((options.effort == Effort::Little).then_some("--fast"));
    cargo.args(options.krew_base_url.iter().flat_map(|url| ["--krew-base-url", url]));
    // The notes say whether the release is signed.
    cargo.args(options.sign_key.iter().flat_map(|key| [Path::new("--sign-key"), key.as_path()]));
    cargo.current_dir(clone).env("CARGO_HOME", home).env_remove("CARGO_TARGET_DIR");
    cargo.env("TZ", "Asia/Kathmandu").env("LC_ALL", "C.UTF-8");
    run(&mut cargo)
}

/// A home of cargo at another path, with the sources of the present one.
fn home(room: &Path) -> Result<PathBuf> {
    let own = crate::build::cargo_home()?;
    let home = room.join("another-home-of-cargo");
    fs::create_dir_all(&home)?;
    for entry in fs::read_dir(&own).with_context(|| own.display().to_string())?.flatten() {
        let link = home.join(entry.file_name());
        if !link.is_symlink() {
            symlink(entry.path(), link)?;
        }
    }
    Ok(home)
}

/// Checksums by name.
fn sums(out: &Path) -> Result<BTreeMap<String, String>> {
    let text = fs::read_to_string(out.join(SUMS)).context(SUMS)?;
    let lines = text.lines().filter_map(|line| line.split_once("  "));
    let sums: BTreeMap<String, String> =
        lines.map(|(sum, name)| (name.to_owned(), sum.to_owned())).collect();
    ensure!(!sums.is_empty(), "{SUMS} is empty");
    Ok(sums)
}

/// Files that one of them has not, or has with another checksum.
fn differing(here: &BTreeMap<String, String>, there: &BTreeMap<String, String>) -> Vec<String> {
    let names: std::collections::BTreeSet<&String> = here.keys().chain(there.keys()).collect();
    let differ = names.into_iter().filter(|name| here.get(*name) != there.get(*name));
    differ.cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_difference_is_named() {
        let of = |list: &[(&str, &str)]| -> BTreeMap<String, String> {
            list.iter().map(|(name, sum)| ((*name).to_owned(), (*sum).to_owned())).collect()
        };
        let here = of(&[("a.deb", "1"), ("b.rpm", "2"), ("c", "3")]);
        assert_eq!(differing(&here, &here), [] as [String; 0]);
        let there = of(&[("a.deb", "1"), ("b.rpm", "9"), ("d", "4")]);
        assert_eq!(differing(&here, &there), ["b.rpm", "c", "d"]);
    }
}
