//! Archives with the same bytes wherever they are packed: sorted, of root, with one time, compressed without a name.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::epoch::Epoch;
use crate::shell::{command, output, run};

/// Packs `names` of `dir` into a tar. ustar: krew's reader takes files and directories alone, and no header of pax.
pub(super) fn tar(dir: &Path, names: &[&str], epoch: Epoch, to: &Path) -> Result<()> {
    let mtime = format!("--mtime=@{}", epoch.seconds());
    let mut tar = command(&["tar", "--create", "--format=ustar", "--sort=name", &mtime]);
    tar.args(["--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg("--directory").arg(dir).arg("--file").arg(to).args(names);
    run(epoch.set(&mut tar))
}

/// Compresses a file, which is replaced by `FILE.gz`.
pub(super) fn gzip(file: &Path) -> Result<PathBuf> {
    run(command(&["gzip", "-9n", "--force"]).arg(file))?;
    let mut name = file.as_os_str().to_owned();
    name.push(".gz");
    Ok(PathBuf::from(name))
}

/// A tar, compressed.
pub(super) fn tar_gz(dir: &Path, names: &[&str], epoch: Epoch, to: &Path) -> Result<()> {
    let plain = to.with_extension("");
    tar(dir, names, epoch, &plain)?;
    std::fs::rename(gzip(&plain)?, to).with_context(|| to.display().to_string())
}

/// The sha256 of a file, in hexadecimal digits.
pub(super) fn sha256(file: &Path) -> Result<String> {
    sum("sha256sum", file)
}

/// A checksum by a program of coreutils.
pub(super) fn sum(program: &str, file: &Path) -> Result<String> {
    let said = output(command(&[program]).arg(file))?;
    // Before a name with a backslash or a newline stands a backslash.
    let digits = said.split_whitespace().next().unwrap_or_default().trim_start_matches('\\');
    Ok(digits.to_owned())
}
