//! When the plugin's program may be removed: not while a call that read a wrapped configuration may still run, and not
//! while the DEL of a pod needs it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::OWN;
use crate::files::{self, Attributes, make_dir, read_small};

/// How long the program stays after no configuration names it any more: an ADD or a DEL may have read one before.
const LINGERS: Duration = Duration::from_secs(3600);
/// A file in the state directory. Its modification time is the time since when no configuration names the program.
const MARK: &str = "unwrapped";
/// Longest cached result, in bytes.
const MAX_RESULT: usize = 1 << 20;

/// A cached result whose configuration names `ipwatch-ipam`, or that cannot be read: its DEL may need the program.
fn needed_by(cache: &Path) -> io::Result<Option<PathBuf>> {
    let entries = match fs::read_dir(cache) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        let may_need = match read_small(&path, MAX_RESULT) {
            // The configuration is in there in base64 (libcni's `cachedInfo.Config`) or as it is.
            Ok(Some(bytes)) => {
                let text = String::from_utf8_lossy(&bytes);
                text.contains(OWN) || in_base64(&text)
            }
            // Its DEL has run meanwhile.
            Ok(None) => false,
            Err(_) => true,
        };
        if may_need {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Records that no configuration names the program any more. The time of an earlier record is kept, unless a
/// configuration named the program until now (`anew`).
///
/// # Errors
/// It cannot be written.
pub fn mark_unwrapped(state_dir: &Path, anew: bool) -> io::Result<()> {
    let mark = state_dir.join(MARK);
    if !anew && fs::symlink_metadata(&mark).is_ok() {
        return Ok(());
    }
    make_dir(state_dir)?;
    files::replace(&mark, b"", Attributes::PRIVATE)
}

/// Removes the record: a configuration names the program again, or the program was removed.
pub fn unmark(state_dir: &Path) {
    let _ = fs::remove_file(state_dir.join(MARK));
}

/// Why the program must stay although no configuration names it. `None`: it can be removed.
#[must_use]
pub fn why_needed(state_dir: &Path, cache: &Path) -> Option<String> {
    let mark = fs::symlink_metadata(state_dir.join(MARK)).and_then(|mark| mark.modified());
    let age = mark.ok().and_then(|at| at.elapsed().ok());
    if age.is_none_or(|age| age < LINGERS) {
        return Some(
            "for an hour, calls that read a configuration before may still need it".to_owned(),
        );
    }
    match needed_by(cache) {
        Ok(None) => None,
        Ok(Some(entry)) => {
            Some(format!("the DEL of a pod whose IP it requested may need it: {}", entry.display()))
        }
        Err(error) => Some(format!("{} cannot be read: {error}", cache.display())),
    }
}

/// Whether a text contains the program's name in base64, at any of its three possible offsets within a group.
fn in_base64(text: &str) -> bool {
    // "ipwatch-ipam" at each offset, without the characters that depend on the bytes beside it.
    ["aXB3YXRjaC1pcGFt", "lwd2F0Y2gtaXBhb", "pcHdhdGNoLWlwYW"]
        .iter()
        .any(|part| text.contains(part))
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and read files of their own"
)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_result_needs_it() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(needed_by(dir.path()).unwrap(), None);
        assert_eq!(needed_by(&dir.path().join("nowhere")).unwrap(), None);
        assert!(needed_by(Path::new("/proc/self/comm")).is_err());
        // Three configurations with the name at the three offsets.
        for (n, text) in [
            "eyJ0eXBlIjoiaXB3YXRjaC1pcGFtIn0=",
            "eyJ0eXBlIjogImlwd2F0Y2gtaXBhbSJ9",
            "eyJ0eXBlIjogICJpcHdhdGNoLWlwYW0ifQ==",
        ]
        .iter()
        .enumerate()
        {
            let file = dir.path().join(format!("net-{n}-eth0"));
            fs::write(&file, format!("{{\"config\":\"{text}\"}}")).unwrap();
            assert_eq!(needed_by(dir.path()).unwrap(), Some(file.clone()), "{text}");
            fs::remove_file(file).unwrap();
        }
        // An entry that cannot be read may be one.
        fs::create_dir(dir.path().join("odd")).unwrap();
        assert_eq!(needed_by(dir.path()).unwrap(), Some(dir.path().join("odd")));
    }

    #[test]
    fn the_program_stays_for_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let (state, cache) = (dir.path().join("state"), dir.path().join("cache"));
        assert!(why_needed(&state, &cache).is_some(), "no record says since when");
        mark_unwrapped(&state, true).unwrap();
        assert!(why_needed(&state, &cache).is_some());
        let before = std::time::SystemTime::UNIX_EPOCH;
        fs::File::options()
            .write(true)
            .open(state.join(MARK))
            .unwrap()
            .set_modified(before)
            .unwrap();
        mark_unwrapped(&state, false).unwrap();
        assert_eq!(why_needed(&state, &cache), None);
        fs::create_dir(&cache).unwrap();
        fs::write(cache.join("net-c1-eth0"), OWN).unwrap();
        assert!(why_needed(&state, &cache).is_some());
        mark_unwrapped(&state, true).unwrap();
        assert!(why_needed(&state, &dir.path().join("nowhere")).is_some());
    }
}
