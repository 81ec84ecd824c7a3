//! Archives with the same bytes wherever they are packed: sorted, of root, with one time, compressed without a name.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::epoch::Epoch;
use crate::package::Effort;
use crate::shell::{command, output, run};

/// What all archives of a release have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    pub(super) epoch: Epoch,
    pub(super) effort: Effort,
}

/// Packs `names` of `dir` into a tar. ustar: krew's reader takes files and directories alone, and no header of pax.
pub(super) fn tar(dir: &Path, names: &[&str], epoch: Epoch, to: &Path) -> Result<()> {
    let mtime = format!("--mtime=@{}", epoch.seconds());
    let mut tar = command(&["tar", "--create", "--format=ustar", "--sort=name", &mtime]);
    tar.args(["--owner=0", "--group=0", "--numeric-owner"]);
    // Not those of the umask: everybody may read, and run what can be run.
    tar.arg("--mode=a-s,u=rwX,go=rX");
    tar.arg("--directory").arg(dir).arg("--file").arg(to).args(names);
    run(epoch.set(&mut tar))
}

/// Compresses a file, which is replaced by `FILE.gz`.
pub(super) fn gzip(file: &Path, effort: Effort) -> Result<PathBuf> {
    run(command(&["gzip", effort.gzip(), "--no-name", "--force"]).arg(file))?;
    let mut name = file.as_os_str().to_owned();
    name.push(".gz");
    Ok(PathBuf::from(name))
}

/// A tar, compressed.
pub(super) fn tar_gz(dir: &Path, names: &[&str], how: How, to: &Path) -> Result<()> {
    let plain = to.with_extension("");
    tar(dir, names, how.epoch, &plain)?;
    std::fs::rename(gzip(&plain, how.effort)?, to).with_context(|| to.display().to_string())
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn modes_and_times_are_not_those_of_the_build() {
        let room = std::env::temp_dir().join(format!("xtask-archive-{}", std::process::id()));
        let _ = fs::remove_dir_all(&room);
        let packed = [("open", 0o755, 0o664, 0o775), ("closed", 0o2700, 0o600, 0o700)].map(
            |(name, dir, file, program)| {
                let root = room.join(name);
                fs::create_dir_all(root.join("d")).unwrap();
                for (file, mode) in [("d/file", file), ("d/program", program), ("d", dir)] {
                    let path = root.join(file);
                    if !path.exists() {
                        fs::write(&path, "text").unwrap();
                    }
                    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
                }
                let to = room.join(format!("{name}.tar"));
                tar(&root, &["d"], Epoch::at(1_795_842_498), &to).unwrap();
                to
            },
        );
        let listed = output(command(&["tar", "-tvf"]).arg(&packed[0])).unwrap();
        let same = fs::read(&packed[0]).unwrap() == fs::read(&packed[1]).unwrap();
        fs::remove_dir_all(&room).unwrap();
        let modes: Vec<&str> = listed.lines().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(modes, ["drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x"]);
        assert!(same);
    }
}
