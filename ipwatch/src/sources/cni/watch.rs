//! Following the cache by inotify.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use inotify::WatchMask;
use tokio::io::Interest;

use super::cache::{self, CacheError};
use crate::clock;
use crate::escape::defused;
use crate::fact::{BootNs, Fact, Observation, Origin, Scope, Source, SourceStatus, Unreadable};
use crate::reading::{self, Readings, Target};
use crate::sources::backoff::Pauses;
use crate::sources::inotify::{Event, Watches};
use crate::sources::ready::ready;
use crate::sources::session::Standing;
use crate::sources::{Closed, Emit};

/// Files that are followed. A node runs some hundred pods.
const MOST: usize = 16_384;

/// A file counts when it is whole.
const FILES: WatchMask = WatchMask::CLOSE_WRITE
    .union(WatchMask::MOVED_TO)
    .union(WatchMask::MOVED_FROM)
    .union(WatchMask::DELETE);

/// Unreadable files that are tried again at every event.
const MOST_RETRIED: usize = 64;

/// The first and the longest pause after inotify broke.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Follows the cache until the daemon goes down. Where a directory of it hangs in the kernel, another follower takes over
/// and leaves that one out until it answers. Where inotify breaks (other processes of the user may have all instances),
/// the source is down and is tried again.
pub(super) async fn run(directories: Vec<PathBuf>, emit: Emit, readings: Readings) {
    run_by(|| Watches::new(FILES), directories, emit, readings).await;
}

/// With watches that are opened like this.
async fn run_by(
    mut open: impl FnMut() -> io::Result<Watches>,
    directories: Vec<PathBuf>,
    emit: Emit,
    readings: Readings,
) {
    let mut pauses = Pauses::new(AGAIN);
    loop {
        let followed = match open() {
            Ok(watches) => {
                let cache = Cache::new(directories.clone(), watches);
                follow(cache, &emit, &readings, &mut pauses).await
            }
            Err(error) => Err(error.into()),
        };
        match followed {
            Ok(hangs) => {
                tracing::warn!("{hangs} does not answer: the CNI result cache is read without it");
            }
            Err(Stopped::Closed(Closed)) => return,
            Err(Stopped::Io(error)) => {
                let detail = format!("cannot watch the CNI result cache: {error}");
                let source = Source { name: "cni".to_owned(), status: SourceStatus::Down, detail };
                if emit.send(vec![fact(clock::now(), Observation::Source(source))]).await.is_err() {
                    return;
                }
                tokio::time::sleep(pauses.after_failure()).await;
            }
        }
    }
}

/// Why it is followed no more.
#[derive(Debug, thiserror::Error)]
enum Stopped {
    #[error(transparent)]
    Closed(#[from] Closed),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Until something hangs: what that is.
async fn follow(
    mut cache: Cache,
    emit: &Emit,
    readings: &Readings,
    pauses: &mut Pauses,
) -> Result<Target, Stopped> {
    let mut returns = readings.returns();
    let readable = ready(cache.watches.fd()?, Interest::READABLE)?;
    let (mut first, mut anew) = (true, true);
    loop {
        if !first {
            tokio::select! {
                guard = readable.readable() => guard?.clear_ready(),
                // What was left out may be read now.
                _ = returns.changed() => anew = true,
            }
        }
        // Off the async worker: a scan reads every file.
        let work = move || cache.turn(first || anew).map(|facts| (cache, facts));
        let facts;
        (cache, facts) = match reading::unblocked(readings, "cni", work).await? {
            Ok(done) => done?,
            Err(hangs) => return Ok(hangs),
        };
        emit.send(facts).await?;
        pauses.begin_anew();
        (first, anew) = (false, false);
    }
}

/// What identifies an entry.
type Key = (String, String); // container id, interface

struct Cache {
    directories: Vec<PathBuf>,
    watches: Watches,
    entries: HashMap<PathBuf, Key>,
    /// Files that say nothing, and why.
    unreadable: BTreeMap<PathBuf, String>,
    /// Those of them that were told.
    told_unreadable: BTreeMap<PathBuf, String>,
    standing: Standing,
}

/// What the events of one reading ask for.
#[derive(Default)]
struct Pending {
    files: BTreeSet<PathBuf>,
    rescan: bool,
}

impl Cache {
    fn new(directories: Vec<PathBuf>, watches: Watches) -> Self {
        Self {
            directories,
            watches,
            entries: HashMap::new(),
            unreadable: BTreeMap::new(),
            told_unreadable: BTreeMap::new(),
            standing: Standing::default(),
        }
    }

    /// The facts of a scan, or of the events that have queued.
    fn turn(&mut self, anew: bool) -> io::Result<Vec<Fact>> {
        let mut facts = Vec::new();
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
        while self.watches.read(|event| match event {
            Event::Anew => pending.rescan = true,
            Event::Entry { directory, name, is_dir: false } => {
                pending.files.insert(directory.join(name));
            }
            Event::Entry { .. } => {}
        })? {}
        Ok(())
    }

    /// Everything is read anew after this, so nothing is lost in between.
    fn arm(&mut self) -> io::Result<()> {
        self.watches.clear();
        for directory in &self.directories {
            match reading::path(directory) {
                Ok(_reading) => self.watches.follow(directory)?,
                // It is told as unreadable when it is to be listed.
                Err(error) => {
                    tracing::debug!(directory = %directory.display(), %error, "not watched")
                }
            }
        }
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

    /// Reads one file, or finds it gone.
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
            // What it said before stands: libcni writes a file anew in place.
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

    /// Tells which files say nothing, and which do again.
    fn files(&mut self, facts: &mut Vec<Fact>) {
        let at = clock::now();
        let name = |path: &Path| path.display().to_string();
        for path in self.told_unreadable.keys().filter(|path| !self.unreadable.contains_key(*path))
        {
            let store = "cni".to_owned();
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
                store: "cni".to_owned(),
                path: name(path),
                reason: reason.clone(),
                effect: effect.map(str::to_owned),
                takes: None,
            };
            facts.push(fact(at, Observation::StoreUnreadable(file)));
        }
        self.told_unreadable.clone_from(&self.unreadable);
    }

    /// Tells how the source stands, when that has changed.
    fn state(&mut self, facts: &mut Vec<Fact>) {
        self.files(facts);
        let (status, detail) = match self.unreadable.iter().next() {
            None => (SourceStatus::Active, String::new()),
            Some((path, reason)) => {
                let (path, reason) = (defused(&path.display().to_string()), defused(reason));
                let detail = match self.unreadable.len() {
                    1 => format!("{path}: {reason}"),
                    files => format!("{path}: {reason}; {files} files in all"),
                };
                (SourceStatus::Degraded, detail)
            }
        };
        let changed = self.standing.change("cni", status, detail);
        facts.extend(changed.map(|what| fact(clock::now(), what)));
    }
}

/// The files of a directory; none when it is not there.
fn list(directory: &Path, found: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    let _reading = reading::path(directory)?;
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries.take(2 * MOST) {
        let entry = entry?;
        // Directories are nobody's result; links and the rest are told as unreadable.
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
