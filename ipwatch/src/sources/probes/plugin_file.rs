//! Whether only root can change the file of a CNI plugin.
//!
//! The kernel half checks the file that is executed. For a script that is the interpreter, and links on the path are
//! not visible to it. Therefore the path is also walked here, one component at a time, as the kernel does
//! (`link_path_walk`).

use std::cell::RefCell;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crate::fact::SourceName;
use crate::reading::{self, Readings};

/// Maximum number of symlinks followed on one path (`MAXSYMLINKS`, include/linux/namei.h).
const MOST_LINKS: usize = 40;

/// The source for which a path that hangs is reported.
const SOURCE: &str = SourceName::Probes.as_str();

/// Result of the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum File {
    /// Only root can change the file.
    Roots,
    /// Another user can change it.
    Others,
    /// The file is not visible from here: it is gone, or in another mount namespace.
    Unseen,
}

thread_local! {
    static READINGS: RefCell<Option<Readings>> = const { RefCell::new(None) };
}

/// From now on the calling thread checks files on a thread of their own, which is left behind if it hangs: a file may
/// be on a dead file system.
pub(super) fn leave_behind(readings: Readings) {
    READINGS.set(Some(readings));
}

/// Checks a file and every component of its path.
pub(super) fn look(path: &Path) -> File {
    let own = path.to_owned();
    let looked = READINGS.with_borrow(|readings| match readings {
        None => is_roots(path),
        Some(readings) => reading::apart(readings, SOURCE, move || is_roots(&own))?
            .unwrap_or_else(|hangs| Err(io::Error::other(format!("{hangs} does not answer")))),
    });
    match looked {
        Ok(true) => File::Roots,
        Ok(false) => File::Others,
        Err(_) => File::Unseen,
    }
}

fn is_roots(path: &Path) -> io::Result<bool> {
    if !path.is_absolute() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let _reading = reading::path(path)?;
    // The remaining components, the next one last.
    let mut rest = parts(path);
    let mut links = 0;
    let mut at = PathBuf::from("/");
    if !is_safe(&at.symlink_metadata()?) {
        return Ok(false);
    }
    while let Some(name) = rest.pop() {
        if name == ".." {
            at.pop();
            continue;
        }
        at.push(name);
        let entry = at.symlink_metadata()?;
        if !is_safe(&entry) {
            return Ok(false);
        }
        if entry.is_symlink() {
            links += 1;
            if links > MOST_LINKS {
                return Err(io::Error::from_raw_os_error(libc::ELOOP));
            }
            let to = at.read_link()?;
            rest.extend(parts(&to));
            if to.is_absolute() {
                at = PathBuf::from("/");
            } else {
                at.pop();
            }
        }
    }
    Ok(true)
}

/// The components of a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let named = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    let mut parts: Vec<OsString> = named.collect();
    parts.reverse();
    parts
}

/// Whether only root can change or replace an entry. A link cannot be written to, whatever its mode; in a sticky
/// directory only root can replace what root owns (`may_delete`, fs/namei.c).
fn is_safe(entry: &std::fs::Metadata) -> bool {
    let sticky = entry.is_dir() && entry.mode() & libc::S_ISVTX != 0;
    let shared = entry.mode() & (libc::S_IWGRP | libc::S_IWOTH) != 0;
    entry.uid() == 0 && (!shared || sticky || entry.is_symlink())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_file_is_roots_if_everything_on_the_way_is() {
        // SAFETY: takes nothing and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("SKIPPED: takes root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let (bin, other) = (dir.join("bin"), dir.join("other"));
        for directory in [&bin, &other] {
            fs::create_dir(directory).unwrap();
            mode(directory, 0o755);
        }
        let plugin = bin.join("plugin");
        fs::write(&plugin, "").unwrap();
        mode(&plugin, 0o755);
        assert_eq!(look(&plugin), File::Roots, "below a sticky directory");
        assert_eq!(look(&bin.join("none")), File::Unseen);
        assert_eq!(look(Path::new("bin/plugin")), File::Unseen);
        symlink("../bin/plugin", other.join("link")).unwrap();
        assert_eq!(look(&other.join("link")), File::Roots);
        symlink("loop", other.join("loop")).unwrap();
        assert_eq!(look(&other.join("loop")), File::Unseen);

        for wrong in [0o775, 0o757] {
            mode(&plugin, wrong);
            assert_eq!(look(&other.join("link")), File::Others, "{wrong:o}");
        }
        mode(&plugin, 0o755);
        mode(&bin, 0o777);
        assert_eq!(look(&other.join("link")), File::Others, "where the link leads through");
        mode(&bin, 0o1777);
        assert_eq!(look(&plugin), File::Roots);
        mode(&bin, 0o755);
        chown(&other, Some(65534), None).unwrap();
        assert_eq!(look(&plugin), File::Roots);
        assert_eq!(
            look(&other.join("link")),
            File::Others,
            "who has the directory replaces the link"
        );
        chown(&plugin, Some(65534), None).unwrap();
        assert_eq!(look(&plugin), File::Others);
    }
}
