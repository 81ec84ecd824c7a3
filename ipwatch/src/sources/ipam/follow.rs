//! Follows the files of a store by inotify, and reports changes.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inotify::WatchMask;
use rustix::fs::{FileType, Mode, OFlags};

use super::known::{Known, Out};
use super::trouble::Troubles;
use super::{Content, Directory, Store, Trouble, gather};
use crate::clock;
use crate::fact::{BootNs, Observation, Scope, SourceStatus};
use crate::reading::{self, Readings};
use crate::sources::files::{self, FileFollower, Stopped};
use crate::sources::inotify::{Event, Watches};
use crate::sources::session::Standing;
use crate::sources::{Closed, Emit, Unheard};

/// A file is read as soon as it exists, and again when it changes: waiting until its writer closes it would delay the
/// report of a reservation, and some writers never close their file.
const FILES: WatchMask = WatchMask::CREATE
    .union(WatchMask::MODIFY)
    .union(WatchMask::CLOSE_WRITE)
    .union(WatchMask::MOVED_TO)
    .union(WatchMask::MOVED_FROM)
    .union(WatchMask::DELETE);

/// Maximum number of subdirectories of a nested directory.
const MOST_DIRECTORIES: usize = 4_096;

/// Maximum number of entries of one directory.
const MOST_ENTRIES: usize = 262_144;

/// Nanoseconds that a directory must be missing before its files count as gone: some stores replace a directory by two
/// renames.
const GONE_AFTER: u64 = 200_000_000;

/// Follows a store until the daemon shuts down. Releases `first` when the store was read, or could not be.
pub(super) async fn run(store: Box<dyn Store>, emit: Emit, readings: Readings, first: Unheard) {
    let store: Arc<dyn Store> = Arc::from(store);
    let name = store.name();
    let new = || Follower::new(Arc::clone(&store), emit.clone());
    files::run(name, name, new, readings, Some(first)).await;
}

struct Follower {
    store: Arc<dyn Store>,
    out: Out,
    watches: Option<Watches>,
    /// The store's directories, as they are watched.
    roots: Vec<Directory>,
    /// Whether one of them shows that the store is in use.
    in_place: bool,
    known: Known,
    troubles: Troubles,
    /// Missing directories, and when they count as gone.
    leaving: BTreeMap<PathBuf, BootNs>,
    /// The watches are new: everything must be read.
    anew: bool,
    /// Whether a complete dump was reported.
    whole: bool,
    /// Why nothing is watched, and how it is read instead.
    unwatched: Option<String>,
    standing: Standing,
}

/// What must be done for the events that were read.
#[derive(Default)]
struct Asked {
    anew: bool,
    files: BTreeSet<PathBuf>,
    directories: BTreeSet<PathBuf>,
}

enum Listed {
    There(Open),
    Absent,
}

/// An open directory and its entries; the fd prevents that another directory takes its place.
struct Open {
    fd: OwnedFd,
    entries: Vec<(OsString, FileType)>,
}

impl Follower {
    fn new(store: Arc<dyn Store>, emit: Emit) -> Self {
        let name = store.name();
        Self {
            store,
            out: Out::new(emit),
            watches: None,
            roots: Vec::new(),
            in_place: false,
            known: Known::new(name),
            troubles: Troubles::new(name),
            leaving: BTreeMap::new(),
            anew: true,
            whole: false,
            unwatched: None,
            standing: Standing::default(),
        }
    }
}

impl FileFollower for Follower {
    fn open(&mut self) -> io::Result<OwnedFd> {
        let watches = Watches::new(FILES)?;
        let fd = watches.fd()?;
        self.watches = Some(watches);
        self.anew = true;
        // Without watches every change was reported, though late.
        self.whole &= self.unwatched.is_some();
        Ok(fd)
    }

    fn read_anew(&mut self) {
        self.anew = true;
    }

    fn unwatched(&mut self, error: &io::Error) {
        (self.watches, self.anew) = (None, true);
        self.unwatched = Some(files::unwatched_because(error));
    }

    async fn down(&mut self, error: &io::Error) -> Result<(), Closed> {
        (self.watches, self.unwatched) = (None, None);
        let detail = format!("cannot watch its directories: {error}");
        match self.standing.change(self.store.name(), SourceStatus::Down, detail) {
            Some(changed) => self.out.tell(clock::now(), changed).await,
            None => Ok(()),
        }
    }

    fn turn(&mut self) -> Result<Option<BootNs>, Stopped> {
        if std::mem::take(&mut self.anew) {
            self.scan(self.unwatched.is_none())?;
        }
        loop {
            let (asked, more) = self.events()?;
            self.handle(asked)?;
            self.look_again()?;
            if !more {
                break;
            }
        }
        let next = self.leaving.values().copied().chain(self.troubles.next()).min();
        Ok(next)
    }
}

impl Follower {
    /// Reads some of the events. Returns what they require, and whether there may be more.
    fn events(&mut self) -> io::Result<(Asked, bool)> {
        let mut asked = Asked::default();
        let Some(watches) = &mut self.watches else { return Ok((asked, false)) };
        let (roots, store, troubles) = (&self.roots, &self.store, &self.troubles);
        let more = watches.read(|event| match event {
            Event::Anew => asked.anew = true,
            Event::Entry { directory, name, is_dir } => {
                let path = directory.join(name);
                let nested = roots.iter().any(|root| root.nested && root.path == directory);
                if nested && (is_dir || troubles.contains(&path)) {
                    asked.directories.insert(path);
                } else if !nested {
                    asked.anew |= store.governs(&path);
                    if store.is_part(&path) {
                        asked.files.insert(store.unit(&path));
                    }
                }
            }
        })?;
        Ok((asked, more))
    }

    fn handle(&mut self, asked: Asked) -> Result<(), Stopped> {
        if asked.anew {
            return self.scan(false);
        }
        for path in asked.directories {
            self.directory_changed(&path)?;
        }
        for path in asked.files {
            match path.parent() {
                Some(above) if self.is_below(above) && !is_directory(above) => {
                    self.directory_changed(above)?;
                }
                _ => self.file(&path, false, clock::now())?,
            }
        }
        self.settle()
    }

    /// Checks files that could not be read, and directories that were missing.
    fn look_again(&mut self) -> Result<(), Stopped> {
        let now = clock::now();
        let mut asked = Asked::default();
        for path in self.troubles.due(now) {
            let is_root = self.roots.iter().any(|root| root.path == path);
            match (is_root, self.is_below(&path)) {
                (true, _) => asked.anew = true,
                (_, true) => asked.directories.extend([path]),
                _ => asked.files.extend([path]),
            }
        }
        let gone: Vec<_> = self
            .leaving
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(path, _)| path.clone())
            .collect();
        for path in gone {
            self.leaving.remove(&path);
            match list(&path, false) {
                Ok(Listed::Absent) => self.directory_gone(&path)?,
                _ => asked.directories.extend([path]),
            }
        }
        self.handle(asked)
    }

    /// Whether it is an entry of a nested directory.
    fn is_below(&self, path: &Path) -> bool {
        self.roots.iter().any(|root| root.nested && path.parent() == Some(&root.path))
    }

    /// What must be done after anything was read.
    fn settle(&mut self) -> Result<(), Stopped> {
        self.known.tell_ranges(&mut self.out)?;
        let mended = !self.whole && self.troubles.is_empty() && self.leaving.is_empty();
        if (mended && self.known.beyond() == 0 && self.standing.is_told()) || self.known.has_room()
        {
            return self.scan(true);
        }
        self.tell_state()?;
        self.out.flush()?;
        Ok(())
    }

    /// Watches and reads everything again. A dump reports everything; otherwise only changes are reported.
    fn scan(&mut self, dump: bool) -> Result<(), Stopped> {
        let dump = dump || !self.whole;
        let began = clock::now();
        let scope = Scope::Reservations { store: self.store.name().to_owned() };
        if dump {
            self.out.push(began, Observation::Began(scope.clone()))?;
        }
        self.roots = self.store.directories();
        self.known.recount();
        self.troubles.begin();
        if let Some(watches) = &mut self.watches {
            watches.clear();
            for root in &self.roots {
                may_look(followed(&root.path, |path| watches.follow(path)))?;
            }
            self.unwatched = None;
        }
        self.in_place = false;
        let mut seen = HashSet::new();
        for root in self.roots.clone() {
            self.scan_root(&root, dump, began, &mut seen)?;
        }
        let unseen: Vec<_> =
            self.known.directories().filter(|path| !seen.contains(*path)).cloned().collect();
        for path in unseen {
            self.directory_absent(&path);
        }
        self.troubles.end(&mut self.out)?;
        if dump {
            let complete =
                self.troubles.is_empty() && self.leaving.is_empty() && self.known.beyond() == 0;
            self.whole = complete;
            self.out.push(clock::now(), Observation::Ended { scope, began, complete })?;
        }
        if !self.is_in_use() && !self.standing.is_told() {
            self.out.discard(); // a dump of nothing by nobody
            self.whole = false;
        }
        self.known.tell_ranges(&mut self.out)?;
        self.tell_state()?;
        self.out.flush()?;
        Ok(())
    }

    fn scan_root(
        &mut self,
        root: &Directory,
        dump: bool,
        at: BootNs,
        seen: &mut HashSet<PathBuf>,
    ) -> Result<(), Stopped> {
        let there = match list(&root.path, true) {
            Ok(Listed::There(there)) => there,
            Ok(Listed::Absent) => return Ok(self.troubles.clear(&root.path, &mut self.out)?),
            Err(error) => {
                self.in_place |= self.store.shows_use(root);
                seen.insert(root.path.clone());
                return self.unlisted(&root.path, &error);
            }
        };
        self.in_place |= self.store.shows_use(root);
        self.troubles.clear(&root.path, &mut self.out)?;
        if !root.nested {
            seen.insert(root.path.clone());
            return self.entries(&root.path, &there, dump, at);
        }
        let directories = there
            .entries
            .into_iter()
            .filter(|(_, kind)| !matches!(kind, FileType::RegularFile | FileType::Fifo));
        for (n, (name, _)) in directories.enumerate() {
            let path = root.path.join(name);
            if n < MOST_DIRECTORIES {
                self.scan_below(&path, dump, at)?;
            } else {
                self.known.leave_out(1);
            }
            seen.insert(path);
        }
        Ok(())
    }

    /// Watches and reads a subdirectory of a nested directory.
    fn scan_below(&mut self, path: &Path, dump: bool, at: BootNs) -> Result<(), Stopped> {
        if let Some(watches) = &mut self.watches {
            may_look(followed(path, |path| watches.follow_below(path).map(|_| ())))?;
        }
        match list(path, false) {
            Ok(Listed::There(there)) => {
                self.leaving.remove(path);
                self.troubles.clear(path, &mut self.out)?;
                self.entries(path, &there, dump, at)
            }
            Ok(Listed::Absent) => {
                self.directory_absent(path);
                Ok(())
            }
            Err(error) => self.unlisted(path, &error),
        }
    }

    fn directory_changed(&mut self, path: &Path) -> Result<(), Stopped> {
        // The watch may be on a directory that was moved away.
        if let Some(watches) = &mut self.watches {
            watches.forget(path);
        }
        self.scan_below(path, false, clock::now())
    }

    /// The directory is gone, or about to be replaced.
    fn directory_absent(&mut self, path: &Path) {
        self.leaving.entry(path.to_owned()).or_insert_with(|| clock::now().plus(GONE_AFTER));
    }

    fn directory_gone(&mut self, path: &Path) -> Result<(), Stopped> {
        self.known.gone_but(path, |_| false, &mut self.out)?;
        for file in self.troubles.below(path) {
            self.troubles.clear(&file, &mut self.out)?;
        }
        self.troubles.clear(path, &mut self.out)?;
        Ok(())
    }

    /// What was reported of its files stays valid.
    fn unlisted(&mut self, path: &Path, error: &io::Error) -> Result<(), Stopped> {
        let trouble = Trouble::Unreadable { reason: error.to_string(), effect: None };
        self.troubles.note(path, &trouble, None, clock::now(), &mut self.out)?;
        Ok(())
    }

    /// Reads the files of a directory.
    fn entries(
        &mut self,
        directory: &Path,
        open: &Open,
        dump: bool,
        at: BootNs,
    ) -> Result<(), Stopped> {
        let store = Arc::clone(&self.store);
        let paths = open.entries.iter().map(|(name, _)| directory.join(name));
        let units = paths.filter(|path| store.is_part(path)).map(|path| store.unit(&path));
        let mut paths: Vec<PathBuf> = units.collect();
        paths.sort_unstable();
        paths.dedup();
        // Computed only if needed: at the first read no file can be missing.
        let there: LazyCell<HashSet<&OsStr>, _> =
            LazyCell::new(|| paths.iter().filter_map(|path| path.file_name()).collect());
        self.known.gone_but(directory, |name| there.contains(name), &mut self.out)?;
        for file in self.troubles.below(directory) {
            if file.file_name().is_none_or(|name| !there.contains(name)) {
                self.troubles.clear(&file, &mut self.out)?;
            }
        }
        gather::each(&*store, open.fd.as_fd(), &paths, |path, said| self.says(path, said, dump, at))
    }

    /// Reads one file, or reports that it is gone.
    fn file(&mut self, path: &Path, all: bool, at: BootNs) -> Result<(), Stopped> {
        let said = self.store.read(path);
        self.says(path, said, all, at)
    }

    fn says(
        &mut self,
        path: &Path,
        said: Result<Content, Trouble>,
        all: bool,
        at: BootNs,
    ) -> Result<(), Stopped> {
        match said {
            Ok(content) => {
                self.troubles.clear(path, &mut self.out)?;
                self.known.says(path, content, all, at, &mut self.out)?;
            }
            Err(Trouble::Gone) => {
                self.troubles.clear(path, &mut self.out)?;
                self.known.gone(path, &mut self.out)?;
            }
            // What was reported of it stays valid.
            Err(trouble) => {
                let takes = self.store.takes(path);
                self.troubles.note(path, &trouble, takes, clock::now(), &mut self.out)?;
            }
        }
        Ok(())
    }

    fn is_in_use(&self) -> bool {
        self.in_place || !self.known.is_empty() || self.troubles.summary().is_some()
    }

    /// Reports the status of the source, if it has changed. A store that is not in use is not a source.
    fn tell_state(&mut self) -> Result<(), Closed> {
        let name = self.store.name();
        if !self.is_in_use() {
            if !self.standing.forget() {
                return Ok(());
            }
            self.whole = false;
            let name = name.to_owned();
            return self.out.push(clock::now(), Observation::SourceGone { name });
        }
        let beyond = Some(self.known.beyond()).filter(|beyond| *beyond > 0);
        let beyond = beyond.map(|more| format!("{more} entries are more than is followed"));
        let trouble = self.unwatched.clone().into_iter().chain(self.troubles.summary());
        let trouble: Vec<_> = trouble.chain(beyond).collect();
        let status = if trouble.is_empty() { SourceStatus::Active } else { SourceStatus::Degraded };
        match self.standing.change(name, status, trouble.join("; ")) {
            Some(changed) => self.out.push(clock::now(), changed),
            None => Ok(()),
        }
    }
}

/// Watches a directory, unless it hangs.
fn followed(path: &Path, follow: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let _reading = reading::path(path)?;
    follow(path)
}

/// A directory that may not be watched, or that hangs, cannot be read either and is reported then; any other error ends
/// all watching.
fn may_look(watched: io::Result<()>) -> io::Result<()> {
    match watched {
        Err(error) if reading::hangs(&error).is_some() => Ok(()),
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => Err(error),
        _ => Ok(()),
    }
}

/// Does not follow a symlink that has taken its place, because that may lead to foreign files.
fn is_directory(path: &Path) -> bool {
    let Ok(_reading) = reading::path(path) else { return false };
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir())
}

/// Lists a directory. `through`: whether the path may be a symlink.
fn list(path: &Path, through: bool) -> io::Result<Listed> {
    let link = if through { OFlags::empty() } else { OFlags::NOFOLLOW };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK | link;
    let _reading = reading::path(path)?;
    let fd = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => return Ok(Listed::Absent),
        Err(rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => {
            return Err(io::Error::other("no directory, or a symlink, which is not followed"));
        }
        fd => fd?,
    };
    let mut entries = Vec::new();
    for entry in rustix::fs::Dir::new(fd.try_clone()?)? {
        let entry = entry?;
        if entries.len() == MOST_ENTRIES {
            return Err(io::Error::other(format!("more than {MOST_ENTRIES} entries")));
        }
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            entries.push((name.to_owned(), entry.file_type()));
        }
    }
    Ok(Listed::There(Open { fd, entries }))
}

#[cfg(test)]
mod tests;
