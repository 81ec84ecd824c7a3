//! Counters of what the plugin did and could not do, in one small file that `ipwatch cni status` shows.
//!
//! A usual call, which gets an answer and meets no held address, counts and writes nothing. A call never fails because the
//! file cannot be written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::ask::Unanswered;
use crate::files::{self, Attributes, read_small};
use crate::state::Lock;

/// Name of the lock. No network has it ([`Config::is_named`](crate::config::Config::is_named)).
const LOCK: &str = ".counters";
/// Longest file, in bytes: a number for each event.
const LONGEST: usize = 4096;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The daemon did not answer: `unanswered-` and why.
    Unanswered(Unanswered),
    /// The daemon could not tell whether an address is held.
    Unknown,
    /// An address was parked.
    Parked,
    /// A parked address was released.
    Released,
    /// An address could not be parked.
    NotParked,
    /// A DEL was put off.
    Gated,
    /// A held address was returned, because no other could be had.
    GaveHeld,
    /// An ADD failed, because all remaining addresses are held.
    AllHeld,
}

impl Event {
    /// Every one.
    pub const ALL: [Self; 13] = [
        Self::Unanswered(Unanswered::NoDaemon),
        Self::Unanswered(Unanswered::Refused),
        Self::Unanswered(Unanswered::Timeout),
        Self::Unanswered(Unanswered::Old),
        Self::Unanswered(Unanswered::NotReady),
        Self::Unanswered(Unanswered::Broken),
        Self::Unknown,
        Self::Parked,
        Self::Released,
        Self::NotParked,
        Self::Gated,
        Self::GaveHeld,
        Self::AllHeld,
    ];

    /// Its name in the file.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Unanswered(why) => format!("unanswered-{why}"),
            Self::Unknown => "unknown".into(),
            Self::Parked => "parked".into(),
            Self::Released => "released".into(),
            Self::NotParked => "not-parked".into(),
            Self::Gated => "gated".into(),
            Self::GaveHeld => "gave-held".into(),
            Self::AllHeld => "all-held".into(),
        }
    }
}

/// Adds one to a counter.
pub fn count(state_dir: &Path, event: Event) {
    let Ok(_lock) = Lock::take_soon(state_dir, LOCK) else { return };
    let mut all = read(state_dir);
    let number = all.entry(event.name()).or_insert(0);
    *number = number.saturating_add(1);
    if let Ok(json) = serde_json::to_vec(&all) {
        let counters = Attributes { synced: false, ..Attributes::PRIVATE };
        let _ = files::replace(&file(state_dir), &json, counters);
    }
}

/// All counters, by name.
#[must_use]
pub fn read(state_dir: &Path) -> BTreeMap<String, u64> {
    let read = read_small(&file(state_dir), LONGEST).ok().flatten();
    let all: Option<BTreeMap<String, u64>> =
        read.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    all.unwrap_or_default()
}

/// The number of each event, from 0. `None`: the plugin has not been used on this node.
#[must_use]
pub fn all(state_dir: &Path) -> Option<Vec<(String, u64)>> {
    state_dir.is_dir().then(|| {
        let counted = read(state_dir);
        let number = |name: String| {
            let count = counted.get(&name).copied().unwrap_or(0);
            (name, count)
        };
        Event::ALL.map(Event::name).map(number).to_vec()
    })
}

fn file(state_dir: &Path) -> PathBuf {
    state_dir.join("counters")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn it_counts_and_survives_what_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("new");
        for _ in 0..3 {
            count(&state, Event::Unanswered(Unanswered::NoDaemon));
        }
        count(&state, Event::Parked);
        assert_eq!(all(dir.path().join("none").as_path()), None);
        let counted = all(&state).unwrap();
        assert_eq!(counted.len(), Event::ALL.len());
        assert_eq!(counted[0], ("unanswered-no-daemon".to_owned(), 3));
        assert_eq!(counted[2], ("unanswered-timeout".to_owned(), 0));
        let all = read(&state);
        assert_eq!((all["unanswered-no-daemon"], all["parked"]), (3, 1));
        std::fs::write(file(&state), "garbage").unwrap();
        count(&state, Event::Parked);
        assert_eq!(read(&state)["parked"], 1);
        // The lock of a network of any name is another one.
        let _lock = Lock::try_take(&state, "counters").unwrap();
        count(&state, Event::Gated);
        assert_eq!(read(&state).get("gated"), Some(&1));
        // A file that cannot be written is no error.
        count(Path::new("/proc/nowhere"), Event::Parked);
    }
}
