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

/// Records the same of one network, where configurations of others still name the program and this state directory.
///
/// # Errors
/// It cannot be written.
pub fn mark_network_unwrapped(state_dir: &Path, network: &str) -> io::Result<()> {
    make_dir(state_dir)?;
    files::replace(&mark_of(state_dir, network), b"", Attributes::PRIVATE)
}

fn mark_of(state_dir: &Path, network: &str) -> PathBuf {
    state_dir.join(format!("{network}.{MARK}"))
}

/// Whether no configuration of the network names the program any more, as far as is recorded.
#[must_use]
pub fn is_unwrapped(state_dir: &Path, network: &str) -> bool {
    let marks = [state_dir.join(MARK), mark_of(state_dir, network)];
    marks.iter().any(|mark| fs::symlink_metadata(mark).is_ok())
}

/// Removes the record of all networks: a configuration names the program again, or the program was removed.
pub fn unmark(state_dir: &Path) {
    let _ = fs::remove_file(state_dir.join(MARK));
}

/// Removes the record of one network.
pub fn unmark_network(state_dir: &Path, network: &str) {
    let _ = fs::remove_file(mark_of(state_dir, network));
}

/// Why the program must stay although no configuration names it, and until when. `None`: it can be removed.
#[must_use]
pub fn why_needed(state_dir: &Path, cache: &Path) -> Option<String> {
    let mark = fs::symlink_metadata(state_dir.join(MARK)).and_then(|mark| mark.modified());
    let age = mark.ok().and_then(|at| at.elapsed().ok()).unwrap_or_default();
    let left = LINGERS.saturating_sub(age).as_secs().div_ceil(60);
    let calls = (left > 0).then(|| {
        format!(
            "for another {left} minutes, calls that read a configuration before may still need it"
        )
    });
    let pods = match needed_by(cache) {
        Ok(None) => None,
        Ok(Some(entry)) => Some(format!(
            "as long as a file in {} names it, the DEL of a pod may need it: now {}",
            cache.display(),
            entry.display()
        )),
        Err(error) => Some(format!("{} cannot be read: {error}", cache.display())),
    };
    let all: Vec<String> = calls.into_iter().chain(pods).collect();
    (!all.is_empty()).then(|| all.join("; and "))
}

/// A shell command that removes the program if [`why_needed`] would give no reason against it, for a node where ipwatch
/// is not installed any more.
#[must_use]
pub fn removal_command(state_dir: &Path, cache: &Path, program: &Path) -> String {
    let names = IN_BASE64.join("|");
    format!(
        "find {} -mmin +{} | grep -q . && {{ grep -rqE '{OWN}|{names}' {}; [ $? = 1 ]; }} && rm {}",
        quoted(&state_dir.join(MARK)),
        LINGERS.as_secs() / 60,
        quoted(cache),
        quoted(program)
    )
}

/// A path as one word of a shell command.
fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    if text.bytes().all(is_plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// "ipwatch-ipam" in base64 at each of its three possible offsets within a group, without the characters that depend on
/// the bytes beside it.
const IN_BASE64: [&str; 3] = ["aXB3YXRjaC1pcGFt", "lwd2F0Y2gtaXBhb", "pcHdhdGNoLWlwYW"];

/// Whether a text contains the program's name in base64.
fn in_base64(text: &str) -> bool {
    IN_BASE64.iter().any(|part| text.contains(part))
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking, and read files of their own"
)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_cached_result_needs_it() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(needed_by(dir.path()).unwrap(), None);
        assert_eq!(needed_by(&dir.path().join("nowhere")).unwrap(), None);
        assert!(needed_by(Path::new("/proc/self/comm")).is_err());
        // Three configurations in which the name stands at the three offsets.
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
        // What cannot be read may be one.
        fs::create_dir(dir.path().join("odd")).unwrap();
        assert_eq!(needed_by(dir.path()).unwrap(), Some(dir.path().join("odd")));
    }

    #[test]
    fn the_program_stays_for_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let (state, cache) = (dir.path().join("state"), dir.path().join("cache"));
        assert!(why_needed(&state, &cache).is_some(), "nobody knows since when");
        mark_unwrapped(&state, true).unwrap();
        assert!(why_needed(&state, &cache).unwrap().contains("another 60 minutes"));
        let before = std::time::SystemTime::UNIX_EPOCH;
        File::options().write(true).open(state.join(MARK)).unwrap().set_modified(before).unwrap();
        mark_unwrapped(&state, false).unwrap();
        assert_eq!(why_needed(&state, &cache), None);
        fs::create_dir(&cache).unwrap();
        fs::write(cache.join("net-c1-eth0"), OWN).unwrap();
        assert!(why_needed(&state, &cache).is_some());
        mark_unwrapped(&state, true).unwrap();
        assert!(why_needed(&state, &dir.path().join("nowhere")).is_some());
    }

    /// Runs the command that people are told to run.
    #[test]
    fn the_command_that_is_told_removes_it_when_nothing_needs_it() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("it's");
        let (state, cache, program) = (dir.join("state"), dir.join("cache"), dir.join(OWN));
        fs::create_dir_all(&cache).unwrap();
        let run = || {
            fs::write(&program, "p").unwrap();
            let command = removal_command(&state, &cache, &program);
            let _ = std::process::Command::new("sh").args(["-c", &command]).status().unwrap();
            !program.exists()
        };
        assert!(!run(), "it was never taken out");
        mark_unwrapped(&state, true).unwrap();
        assert!(!run(), "just taken out");
        let before = std::time::SystemTime::UNIX_EPOCH;
        File::options().write(true).open(state.join(MARK)).unwrap().set_modified(before).unwrap();
        let entry = cache.join("net-c1-eth0");
        for needs in [OWN, "eyJ0eXBlIjogImlwd2F0Y2gtaXBhbSJ9"] {
            fs::write(&entry, needs).unwrap();
            assert!(!run(), "{needs}");
        }
        fs::write(&entry, "other").unwrap();
        assert!(run());
        fs::remove_dir_all(&cache).unwrap();
        assert!(!run(), "what cannot be read may need it");
    }
}
