//! Following the cache by inotify.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use inotify::WatchMask;

use super::cache::{self, CacheError};
use crate::clock;
use crate::escape::defused;
use crate::fact::{BootNs, Fact, Observation, Origin, Scope, SourceName, SourceStatus, Unreadable};
use crate::reading::{self, Readings};
use crate::sources::files::{self, FileFollower, Stopped};
use crate::sources::inotify::{Event, Watches};
use crate::sources::session::Standing;
use crate::sources::{Closed, Emit};

const NAME: &str = SourceName::Cni.as_str();
/// Maximum number of files that are followed. A node runs some hundred pods.
const MOST: usize = 16_384;

/// Events of a file that was completely written, moved or deleted.
const FILES: WatchMask = WatchMask::CLOSE_WRITE
    .union(WatchMask::MOVED_TO)
    .union(WatchMask::MOVED_FROM)
    .union(WatchMask::DELETE);

/// Maximum number of unreadable files that are retried at every event.
const MOST_RETRIED: usize = 64;

pub(super) async fn run(directories: Vec<PathBuf>, emit: Emit, readings: Readings) {
    let new = || Cache::new(directories.clone(), emit.clone());
    files::run(NAME, "the CNI result cache", new, readings, None).await;
}

/// What identifies an entry.
type Key = (String, String); // container id, interface

struct Cache {
    directories: Vec<PathBuf>,
    emit: Emit,
    watches: Option<Watches>,
    /// Whether everything must be read.
    anew: bool,
    /// Why nothing is watched, and how it is read instead.
    unwatched: Option<String>,
    entries: HashMap<PathBuf, Key>,
    /// Files that cannot be used, and why.
    unreadable: BTreeMap<PathBuf, String>,
    /// The unreadable files that were last reported.
    told_unreadable: BTreeMap<PathBuf, String>,
    standing: Standing,
}

/// What must be done for the events that were read.
#[derive(Default)]
struct Pending {
    files: BTreeSet<PathBuf>,
    rescan: bool,
}

impl FileFollower for Cache {
    fn open(&mut self) -> io::Result<OwnedFd> {
        let watches = Watches::new(FILES)?;
        let fd = watches.fd()?;
        self.watches = Some(watches);
        self.anew = true;
        Ok(fd)
    }

    fn read_anew(&mut self) {
        self.anew = true;
    }

    fn unwatched(&mut self, error: &io::Error) {
        (self.watches, self.anew) = (None, true);
        self.unwatched = Some(files::unwatched_because(error));
    }

    fn turn(&mut self) -> Result<Option<BootNs>, Stopped> {
        let facts = self.facts()?;
        files::send(&self.emit, facts)?;
        Ok(None)
    }

    async fn down(&mut self, error: &io::Error) -> Result<(), Closed> {
        (self.watches, self.unwatched) = (None, None);
        let detail = format!("cannot watch the CNI result cache: {error}");
        self.standing.tell(&self.emit, Origin::Cni, NAME, SourceStatus::Down, detail).await
    }
}

impl Cache {
    fn new(directories: Vec<PathBuf>, emit: Emit) -> Self {
        Self {
            directories,
            emit,
            watches: None,
            anew: true,
            unwatched: None,
            entries: HashMap::new(),
            unreadable: BTreeMap::new(),
            told_unreadable: BTreeMap::new(),
            standing: Standing::default(),
        }
    }

    /// The facts of a scan, or of the queued events.
    fn facts(&mut self) -> io::Result<Vec<Fact>> {
        let mut facts = Vec::new();
        let anew = std::mem::take(&mut self.anew);
        let mut pending = Pending { rescan: anew, ..Pending::default() };
        if !anew {
            self.events(&mut pending)?;
        }
        if pending.rescan {
            self.arm()?;
            self.scan(&mut facts);
        } else {
            pending.files.extend(self.unreadable.keys().take(MOST_RETRIED).cloned());
            for path in pending.files {
                self.file(&path, clock::now(), &mut facts);
            }
        }
        self.state(&mut facts);
        Ok(facts)
    }

    fn events(&mut self, pending: &mut Pending) -> io::Result<()> {
        let Some(watches) = &mut self.watches else { return Ok(()) };
        while watches.read(|event| match event {
            Event::Anew => pending.rescan = true,
            Event::Entry { directory, name, is_dir: false } => {
                pending.files.insert(directory.join(name));
            }
            Event::Entry { .. } => {}
        })? {}
        Ok(())
    }

    /// Sets the watches. Everything is read afterwards, so nothing is missed in between.
    fn arm(&mut self) -> io::Result<()> {
        let Some(watches) = &mut self.watches else { return Ok(()) };
        watches.clear();
        for directory in &self.directories {
            match reading::path(directory) {
                Ok(_reading) => watches.follow(directory)?,
                // It is reported as unreadable when it is listed.
                Err(error) => {
                    tracing::debug!(directory = %directory.display(), %error, "not watched")
                }
            }
        }
        self.unwatched = None;
        Ok(())
    }

    fn scan(&mut self, facts: &mut Vec<Fact>) {
        let began = clock::now();
        facts.push(fact(began, Observation::Began(Scope::Cni)));
        self.unreadable.clear();
        let mut found = BTreeSet::new();
        for directory in self.directories.clone() {
            if let Err(error) = list(&directory, &mut found) {
                self.unreadable.insert(directory, error.to_string());
            }
        }
        let vanished: Vec<_> =
            self.entries.keys().filter(|path| !found.contains(*path)).cloned().collect();
        for path in vanished {
            self.gone(&path, clock::now(), facts);
        }
        for path in &found {
            self.file(path, began, facts);
        }
        let complete = self.unreadable.is_empty();
        facts.push(fact(clock::now(), Observation::Ended { scope: Scope::Cni, began, complete }));
    }

    /// Reads one file, or reports that it is gone.
    fn file(&mut self, path: &Path, at: BootNs, facts: &mut Vec<Fact>) {
        if self.entries.len() >= MOST && !self.entries.contains_key(path) {
            self.unreadable.insert(path.to_owned(), format!("more than {MOST} files"));
            return;
        }
        match cache::read(path) {
            Ok(Some(attachment)) => {
                self.unreadable.remove(path);
                let key = (attachment.container_id.clone(), attachment.ifname.clone());
                if self.entries.get(path).is_some_and(|before| *before != key) {
                    self.gone(path, at, facts);
                }
                self.entries.insert(path.to_owned(), key);
                facts.push(fact(at, Observation::Attachment(attachment)));
            }
            Ok(None) => {
                self.unreadable.remove(path);
                tracing::debug!(path = %path.display(), "a bare CNI result names no container");
            }
            Err(CacheError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                self.unreadable.remove(path);
                self.gone(path, at, facts);
            }
            // The former content stays valid: libcni rewrites a file in place.
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "CNI result");
                self.unreadable.insert(path.to_owned(), error.to_string());
            }
        }
    }

    fn gone(&mut self, path: &Path, at: BootNs, facts: &mut Vec<Fact>) {
        let Some(key) = self.entries.remove(path) else { return };
        if self.entries.values().any(|other| *other == key) {
            return; // the other directory has it too
        }
        let (container_id, ifname) = key;
        facts.push(fact(at, Observation::AttachmentGone { container_id, ifname }));
    }

    /// Reports which files became unreadable, and which are readable again.
    fn files(&mut self, facts: &mut Vec<Fact>) {
        let at = clock::now();
        let name = |path: &Path| path.display().to_string();
        for path in self.told_unreadable.keys().filter(|path| !self.unreadable.contains_key(*path))
        {
            let store = NAME.to_owned();
            facts.push(fact(at, Observation::StoreReadable { store, path: name(path) }));
        }
        for (path, reason) in &self.unreadable {
            if self.told_unreadable.get(path) == Some(reason) {
                continue;
            }
            // libcni reads the cached result before a DEL.
            let torn = reason.starts_with("torn");
            let effect =
                torn.then_some("DEL fails on it, and kubelet tries KillPodSandbox for ever");
            let file = Unreadable {
                store: NAME.to_owned(),
                path: name(path),
                reason: reason.clone(),
                effect: effect.map(str::to_owned),
                takes: None,
            };
            facts.push(fact(at, Observation::StoreUnreadable(file)));
        }
        self.told_unreadable.clone_from(&self.unreadable);
    }

    /// Reports the status of the source, if it has changed.
    fn state(&mut self, facts: &mut Vec<Fact>) {
        self.files(facts);
        let (status, detail) = match self.unreadable.iter().next() {
            None => match &self.unwatched {
                None => (SourceStatus::Active, String::new()),
                Some(why) => (SourceStatus::Degraded, why.clone()),
            },
            Some((path, reason)) => {
                let (path, reason) = (defused(&path.display().to_string()), defused(reason));
                let detail = match self.unreadable.len() {
                    1 => format!("{path}: {reason}"),
                    files => format!("{path}: {reason}; {files} files in all"),
                };
                let both = self.unwatched.iter().cloned().chain([detail]);
                let detail = both.collect::<Vec<_>>().join("; ");
                (SourceStatus::Degraded, detail)
            }
        };
        let changed = self.standing.change(NAME, status, detail);
        facts.extend(changed.map(|what| fact(clock::now(), what)));
    }
}

/// The files of a directory; none if the directory does not exist.
fn list(directory: &Path, found: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    let _reading = reading::path(directory)?;
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries.take(2 * MOST) {
        let entry = entry?;
        // Directories contain no results; links and others are reported as unreadable.
        if !entry.file_type()?.is_dir() {
            found.insert(entry.path());
        }
    }
    Ok(())
}

fn fact(at: BootNs, what: Observation) -> Fact {
    Fact { at, origin: Origin::Cni, what }
}

#[cfg(test)]
mod tests;
