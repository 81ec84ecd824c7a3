//! Watches directories by inotify, including those that do not exist yet.

use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask};

use crate::bounded;

/// In bytes, room for some hundred events.
const BUFFER: usize = 16 * 1024;

/// Events about the directory itself, requested for every watched directory.
const ITSELF: WatchMask =
    WatchMask::DELETE_SELF.union(WatchMask::MOVE_SELF).union(WatchMask::ONLYDIR);

/// The directories that a source follows.
pub(super) struct Watches {
    inotify: Inotify,
    /// The events to report about entries.
    files: WatchMask,
    watched: HashMap<WatchDescriptor, Watched>,
}

struct Watched {
    path: PathBuf,
    /// Why the directory is watched.
    role: Role,
    /// Names that lead to followed directories that do not exist yet.
    next: BTreeSet<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Only because it is on the path to a missing directory.
    Ancestor,
    /// For its entries.
    Followed,
    /// For its entries. It is itself an entry of a followed directory, whose watch reports its removal.
    Below,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event<'a> {
    /// Events were lost, or a followed directory was created or removed: everything must be read again.
    Anew,
    /// An entry of a followed directory has changed.
    Entry {
        directory: &'a Path,
        name: &'a OsStr,
        /// Whether the entry is a directory.
        is_dir: bool,
    },
}

impl Watches {
    /// Watches nothing yet. `files`: the events to report about entries.
    pub(super) fn new(files: WatchMask) -> io::Result<Self> {
        let inotify = Inotify::init().map_err(scarce)?;
        Ok(Self { inotify, files, watched: HashMap::new() })
    }

    /// Readable when something has happened; non-blocking.
    pub(super) fn fd(&self) -> io::Result<OwnedFd> {
        self.inotify.as_fd().try_clone_to_owned()
    }

    /// Removes all watches. The directories must be read again after they are watched anew; then nothing is missed.
    pub(super) fn clear(&mut self) {
        for (watch, _) in self.watched.drain() {
            // Fails if the kernel has already removed the watch.
            let _ = self.inotify.watches().remove(watch);
        }
    }

    /// Watches a directory or, if it does not exist, its nearest existing parent. The directory must be read after
    /// this.
    pub(super) fn follow(&mut self, directory: &Path) -> io::Result<()> {
        // The directory may be created just before its parent is watched; bounded, because that cannot go on for ever.
        for _ in 0..8 {
            if self.add(directory, self.files, Role::Followed)?.is_some() {
                return Ok(());
            }
            let Some(below) = self.wait_above(directory)? else { return Ok(()) };
            if !below.is_dir() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Watches a directory that is an entry of a followed one, without following a symlink. Returns false if it does
    /// not exist.
    pub(super) fn follow_below(&mut self, directory: &Path) -> io::Result<bool> {
        let mask = self.files | WatchMask::DONT_FOLLOW;
        Ok(self.add(directory, mask, Role::Below)?.is_some())
    }

    /// Stops watching this directory.
    pub(super) fn forget(&mut self, directory: &Path) {
        let gone = |(_, watched): &(&WatchDescriptor, &Watched)| watched.path == directory;
        if let Some(watch) = self.watched.iter().find(gone).map(|(watch, _)| watch.clone()) {
            self.watched.remove(&watch);
            let _ = self.inotify.watches().remove(watch);
        }
    }

    /// Watches the nearest existing parent. Returns the path of what is missing in it.
    fn wait_above(&mut self, directory: &Path) -> io::Result<Option<PathBuf>> {
        let mut below = directory;
        for above in directory.ancestors().skip(1) {
            let mask = WatchMask::CREATE | WatchMask::MOVED_TO;
            if let Some(watch) = self.add(above, mask, Role::Ancestor)? {
                if let Some(watched) = self.watched.get_mut(&watch) {
                    watched.next.extend(below.file_name().map(ToOwned::to_owned));
                }
                return Ok(Some(below.to_owned()));
            }
            below = above;
        }
        Ok(None)
    }

    /// `None`: there is no such directory.
    fn add(
        &mut self,
        path: &Path,
        mask: WatchMask,
        role: Role,
    ) -> io::Result<Option<WatchDescriptor>> {
        let mask = mask | ITSELF | WatchMask::MASK_ADD;
        let watch = match self.inotify.watches().add(path, mask) {
            Ok(watch) => watch,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(scarce(error)),
        };
        let new = || Watched { path: path.to_owned(), role, next: BTreeSet::new() };
        let watched = self.watched.entry(watch.clone()).or_insert_with(new);
        if role != Role::Ancestor {
            (watched.role, watched.path) = (role, path.to_owned());
        }
        Ok(Some(watch))
    }

    /// Reports some of the queued events. Returns false if there were none.
    pub(super) fn read(&mut self, mut tell: impl FnMut(Event<'_>)) -> io::Result<bool> {
        let mut buffer = [0; BUFFER];
        let events = match self.inotify.read_events(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            events => events?,
        };
        for event in events {
            if event.mask.contains(EventMask::Q_OVERFLOW) {
                tell(Event::Anew);
                continue;
            }
            // A leftover event of a removed watch, such as IGNORED.
            let Some(watched) = self.watched.get(&event.wd) else { continue };
            let itself = EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::UNMOUNT;
            match event.name {
                Some(name) => {
                    if watched.next.contains(name) {
                        tell(Event::Anew);
                    }
                    if watched.role != Role::Ancestor {
                        let is_dir = event.mask.contains(EventMask::ISDIR);
                        tell(Event::Entry { directory: &watched.path, name, is_dir });
                    }
                }
                None if !event.mask.intersects(itself) => {}
                None if watched.role != Role::Below => tell(Event::Anew),
                None => {
                    if let (Some(directory), Some(name)) =
                        (watched.path.parent(), watched.path.file_name())
                    {
                        tell(Event::Entry { directory, name, is_dir: true });
                    }
                }
            }
        }
        Ok(true)
    }
}

/// Number of files that other threads may have closed between an error and the check of the limit.
const CLOSED_SINCE: u64 = 16;

/// A limit of inotify is reached. Its limits are by user (`inc_ucount`, kernel/ucount.c): all that other processes of the
/// same uid have counts, also in containers without a user namespace of their own.
#[derive(Debug, thiserror::Error)]
#[error(
    "inotify's limit for this user is reached, which other programs share: no {what} is left: raise fs.inotify.{sysctl}{}",
    now(.value)
)]
struct Exhausted {
    what: &'static str,
    sysctl: &'static str,
    value: Option<u64>,
}

fn now(value: &Option<u64>) -> String {
    value.map(|value| format!(" (now {value})")).unwrap_or_default()
}

impl Exhausted {
    fn new(what: &'static str, sysctl: &'static str) -> Self {
        let path = Path::new("/proc/sys/fs/inotify").join(sysctl);
        let value = bounded::read_text(&path, 32).ok().and_then(|text| text.trim().parse().ok());
        Self { what, sysctl, value }
    }
}

/// Whether a limit of inotify is the reason: files can then be read, but not watched.
pub(super) fn is_exhausted(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<Exhausted>())
}

/// Explains an error if the kernel has run out of an inotify resource.
pub(super) fn scarce(error: io::Error) -> io::Error {
    scarce_of(error, has_fds)
}

/// Whether this process can open more files than other threads may have closed a moment ago.
fn has_fds() -> bool {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return false };
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.is_none_or(|limit| open.count() as u64 + CLOSED_SINCE < limit)
}

/// `inotify_init1` returns EMFILE both for the user's inotify instances and for the process's open files
/// (`get_unused_fd_flags`, fs/file.c; `inotify_new_group`, fs/notify/inotify). Whether more files can be opened tells
/// which.
fn scarce_of(error: io::Error, has_fds: impl FnOnce() -> bool) -> io::Error {
    use rustix::io::Errno;
    let exhausted = match Errno::from_io_error(&error) {
        Some(Errno::MFILE) if !has_fds() => {
            let what = "ipwatch has as many open files as it may: raise LimitNOFILE= (ulimit -n)";
            return io::Error::new(error.kind(), what);
        }
        Some(Errno::MFILE) => Exhausted::new("inotify instance", "max_user_instances"),
        Some(Errno::NOSPC) => Exhausted::new("inotify watch", "max_user_watches"),
        _ => return error,
    };
    io::Error::new(error.kind(), exhausted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_run_out_is_named() {
        let of = |errno: i32, has_fds, word: &str| {
            let error = scarce_of(io::Error::from_raw_os_error(errno), || has_fds);
            assert!(error.to_string().contains(word), "{error}");
            is_exhausted(&error)
        };
        assert!(!of(libc::EMFILE, false, "LimitNOFILE"));
        assert!(of(libc::EMFILE, true, "raise fs.inotify.max_user_instances (now "));
        assert!(of(libc::ENOSPC, true, "raise fs.inotify.max_user_watches (now "));
        assert!(!of(libc::EACCES, true, "denied"));
    }
}
