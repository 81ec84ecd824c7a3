//! Files that cannot be read: retried before they are reported as unreadable, because a file that is being written
//! looks the same for a moment.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::Trouble;
use super::known::Out;
use crate::clock;
use crate::escape::defused;
use crate::fact::{BootNs, Observation, Unreadable};
use crate::sources::Closed;

/// Maximum number of such files that are remembered.
const MOST: usize = 4_096;

/// Nanoseconds that a file must be unreadable before that is reported. host-local writes in place: its open and its
/// write are microseconds apart, on a busy disk more.
pub(super) const CONFIRM: u64 = 250_000_000;

/// The same while its owner is writing.
const PATIENCE: u64 = 2_000_000_000;

/// The first and the longest pause in nanoseconds before a retry. Each is twice as long as the one before.
const PAUSES: (u64, u64) = (10_000_000, 10_000_000_000);

/// The files of a store that cannot be read.
pub(super) struct Troubles {
    store: &'static str,
    files: BTreeMap<PathBuf, Suspect>,
    /// Whether there are more than the limit.
    beyond: bool,
}

struct Suspect {
    since: BootNs,
    pause: u64,
    /// When to retry. `None`: when an event of its directory arrives.
    next: Option<BootNs>,
    /// The reported reason.
    told: Option<String>,
    /// Whether it was found since everything was last read again.
    seen: bool,
}

impl Troubles {
    pub(super) fn new(store: &'static str) -> Self {
        Self { store, files: BTreeMap::new(), beyond: false }
    }

    /// Whether everything could be read.
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty() && !self.beyond
    }

    /// Everything will be read again.
    pub(super) fn begin(&mut self) {
        self.beyond = false;
        for suspect in self.files.values_mut() {
            suspect.seen = false;
        }
    }

    /// Everything was read again: a file that was not found is gone, unless its directory cannot be read.
    pub(super) fn end(&mut self, out: &mut Out) -> Result<(), Closed> {
        let there = |path: &Path| path.parent().is_some_and(|above| self.files.contains_key(above));
        let gone = self.files.iter().filter(|(path, suspect)| !suspect.seen && !there(path));
        let gone: Vec<PathBuf> = gone.map(|(path, _)| path.clone()).collect();
        gone.iter().try_for_each(|path| self.clear(path, out))
    }

    pub(super) fn contains(&self, path: &Path) -> bool {
        self.files.contains_key(path)
    }

    /// The files in a directory.
    pub(super) fn below(&self, directory: &Path) -> Vec<PathBuf> {
        self.files.keys().filter(|path| path.parent() == Some(directory)).cloned().collect()
    }

    /// Records that a file cannot be read. `takes`: the IP that it blocks.
    pub(super) fn note(
        &mut self,
        path: &Path,
        trouble: &Trouble,
        takes: Option<IpAddr>,
        now: BootNs,
        out: &mut Out,
    ) -> Result<(), Closed> {
        if self.files.len() >= MOST && !self.files.contains_key(path) {
            self.beyond = true;
            return Ok(());
        }
        let (patience, effect) = match trouble {
            Trouble::Unreadable { effect, .. } => (CONFIRM, *effect),
            Trouble::Busy(_) => (PATIENCE, None),
            Trouble::Gone => return self.clear(path, out),
        };
        let new = || Suspect { since: now, pause: PAUSES.0, next: None, told: None, seen: true };
        let suspect = self.files.entry(path.to_owned()).or_insert_with(new);
        suspect.seen = true;
        let certain = suspect.told.is_some() || now.since(suspect.since) >= patience;
        suspect.next = Some(now.plus(suspect.pause));
        suspect.pause = (suspect.pause * 2).min(PAUSES.1);
        if !certain {
            return Ok(());
        }
        if matches!(trouble, Trouble::Unreadable { .. }) {
            suspect.next = None;
        }
        let reason = trouble.to_string();
        if suspect.told.as_ref() == Some(&reason) {
            return Ok(());
        }
        suspect.told = Some(reason.clone());
        let unreadable = Unreadable {
            store: self.store.to_owned(),
            path: path.display().to_string(),
            reason,
            effect: effect.map(str::to_owned),
            takes,
        };
        out.push(clock::now(), Observation::StoreUnreadable(unreadable))
    }

    /// A file is readable again, or is gone.
    pub(super) fn clear(&mut self, path: &Path, out: &mut Out) -> Result<(), Closed> {
        let Some(suspect) = self.files.remove(path) else { return Ok(()) };
        if suspect.told.is_none() {
            return Ok(());
        }
        let (store, path) = (self.store.to_owned(), path.display().to_string());
        out.push(clock::now(), Observation::StoreReadable { store, path })
    }

    /// The files that must be retried by now.
    pub(super) fn due(&self, now: BootNs) -> Vec<PathBuf> {
        let due = |suspect: &Suspect| suspect.next.is_some_and(|next| next <= now);
        self.files.iter().filter(|(_, it)| due(it)).map(|(path, _)| path.clone()).collect()
    }

    /// When the next file must be retried.
    pub(super) fn next(&self) -> Option<BootNs> {
        self.files.values().filter_map(|suspect| suspect.next).min()
    }

    /// What was reported, as one line for people.
    pub(super) fn summary(&self) -> Option<String> {
        let mut told = self.files.iter().filter_map(|(path, it)| Some((path, it.told.as_ref()?)));
        let (path, reason) = told.next()?;
        let (path, reason) = (defused(&path.display().to_string()), defused(reason));
        Some(match told.count() + 1 {
            1 => format!("{path}: {reason}"),
            files => format!("{path}: {reason}; {files} files in all"),
        })
    }
}
