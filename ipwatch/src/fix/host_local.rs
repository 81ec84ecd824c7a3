//! Moves reservations of host-local out of their store and back, under host-local's own lock.
//!
//! The plugin takes a lock in its network's directory for each ADD and DEL: `flock` of the file `lock`, which it creates if
//! missing. Old versions lock the directory itself (plugins/ipam/host-local/backend/disk/lock.go). Both locks are taken
//! here. `last_reserved_ip.*` is left as it is.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use crate::bounded;
use crate::clock::{self, Calendar};
use crate::fact::BootNs;
use crate::sources::ipam::host_local::parse;

const LOCK: &str = "lock";

/// Longest reservation that is read, in bytes; the same limit as in `sources/ipam/`.
const LONGEST: usize = 1_024;

/// How long to wait for a lock, and the time between two attempts. An ADD takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// Why a file was left where it is.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("{path}: {error}")]
    Io {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("somebody else than root may write to {0}")]
    Foreign(PathBuf),
    #[error("another process keeps the store's lock, {0}, for longer than ten seconds")]
    Locked(PathBuf),
    #[error("the directory is another one by now")]
    Replaced,
    #[error("its file is gone: it was freed meanwhile")]
    Gone,
    #[error("its file is of another container by now, or was written again")]
    Changed,
    #[error("its file is no reservation: {0}")]
    NoReservation(&'static str),
    #[error(
        "the record is on another file system than the store: --record-dir names a directory on that of {0}"
    )]
    OtherFileSystem(PathBuf),
    #[error("the IP has been given out again since")]
    GivenOut,
    #[error(
        "another file took its place at the very moment of the change and could not be put back ({0}): it is in the record"
    )]
    Stranded(Box<Refused>),
    #[error("the record has no file of it: it was never moved, or was taken away")]
    NotKept,
}

/// The content of a reservation, by which it is recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Expected<'a> {
    pub(super) container_id: &'a str,
    pub(super) ifname: Option<&'a str>,
    /// When it was written, RFC 3339.
    pub(super) since: Option<&'a str>,
}

/// A network's directory with its locks held: no ADD and no DEL runs meanwhile.
#[derive(Debug)]
pub(super) struct Locked {
    dir: OwnedFd,
    path: PathBuf,
    _lock: OwnedFd,
}

impl Locked {
    /// Takes the locks, and waits for them.
    ///
    /// # Errors
    /// [`Refused`]
    pub(super) async fn take(path: &Path) -> Result<Self, Refused> {
        let fail = |error: io::Error| Refused::Io { path: path.to_owned(), error };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir =
            rustix::fs::open(path, flags, Mode::empty()).map_err(|error| fail(error.into()))?;
        let stat = rustix::fs::fstat(&dir).map_err(|error| fail(error.into()))?;
        let others = Mode::from_raw_mode(stat.st_mode).intersects(Mode::WGRP | Mode::WOTH);
        if others || stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(Refused::Foreign(path.to_owned()));
        }
        // The plugin opens it in the same way.
        let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let flags = flags | OFlags::NONBLOCK;
        let lock = rustix::fs::openat(&dir, LOCK, flags, Mode::from_raw_mode(0o750));
        let lock = lock.map_err(|error| fail(error.into()))?;
        let end = clock::now().plus(PATIENCE.as_nanos() as u64);
        for fd in [lock.as_fd(), dir.as_fd()] {
            while let Err(error) = rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive) {
                match error {
                    Errno::WOULDBLOCK | Errno::INTR if clock::now() < end => {}
                    Errno::WOULDBLOCK => return Err(Refused::Locked(path.join(LOCK))),
                    error => return Err(fail(error.into())),
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
        // While this waited, the directory may have been replaced by another one.
        let now = rustix::fs::statat(rustix::fs::CWD, path, AtFlags::SYMLINK_NOFOLLOW);
        if !now.is_ok_and(|now| (now.st_dev, now.st_ino) == (stat.st_dev, stat.st_ino)) {
            return Err(Refused::Replaced);
        }
        Ok(Self { dir, path: path.to_owned(), _lock: lock })
    }

    /// Moves a reservation away if it has the expected content.
    ///
    /// # Errors
    /// [`Refused`]; the file is then where it was, except with [`Refused::Stranded`].
    pub(super) fn move_away(
        &self,
        name: &OsStr,
        expected: Expected<'_>,
        to: BorrowedFd<'_>,
        kept: &str,
    ) -> Result<(), Refused> {
        let stat = self.compare(name, expected)?;
        self.rename((self.dir.as_fd(), name), (to, kept.as_ref()))?;
        // A program that ignores the lock may have replaced the file before the rename.
        let moved = rustix::fs::statat(to, kept, AtFlags::SYMLINK_NOFOLLOW);
        if moved.is_ok_and(|moved| is_same(&moved, &stat)) {
            self.sync();
            return Ok(());
        }
        Err(self.put_back(name, to, kept))
    }

    /// Puts back a file that should not have been moved. Returns the error to report.
    fn put_back(&self, name: &OsStr, to: BorrowedFd<'_>, kept: &str) -> Refused {
        match self.rename((to, kept.as_ref()), (self.dir.as_fd(), name)) {
            Ok(()) => Refused::Changed,
            Err(error) => Refused::Stranded(Box::new(error)),
        }
    }

    /// Moves a reservation back, unless its IP has been reserved since.
    ///
    /// # Errors
    /// [`Refused`]; the file then stays in the record.
    pub(super) fn move_back(
        &self,
        from: BorrowedFd<'_>,
        kept: &str,
        name: &OsStr,
    ) -> Result<(), Refused> {
        self.rename((from, kept.as_ref()), (self.dir.as_fd(), name)).map_err(
            |error| match error {
                Refused::Gone => Refused::NotKept,
                error => error,
            },
        )?;
        self.sync();
        Ok(())
    }

    /// Succeeds if a reservation has the expected content. Returns the status of its file.
    fn compare(&self, name: &OsStr, expected: Expected<'_>) -> Result<Stat, Refused> {
        let fail = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Refused::Gone,
            _ => Refused::Io { path: self.path.join(name), error },
        };
        let before = rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW);
        let before = before.map_err(|error| fail(error.into()))?;
        let mut buffer = [0; LONGEST + 1];
        let read = bounded::read_at(self.dir.as_fd(), name.as_ref(), &mut buffer).map_err(fail)?;
        if read.length > LONGEST {
            return Err(Refused::NoReservation("it is too long"));
        }
        let holder = parse(&buffer[..read.length]).map_err(Refused::NoReservation)?;
        let written = read.modified.and_then(|at| u64::try_from(at).ok());
        let written = written.map(|at| Calendar::default().date(BootNs(at)));
        let is = Expected {
            container_id: &holder.container_id,
            ifname: holder.ifname.as_deref(),
            since: written.as_deref(),
        };
        let after = rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW);
        let after = after.map_err(|error| fail(error.into()))?;
        if is == expected && is_same(&before, &after) { Ok(after) } else { Err(Refused::Changed) }
    }

    fn rename(
        &self,
        (from, old): (BorrowedFd<'_>, &OsStr),
        (to, new): (BorrowedFd<'_>, &OsStr),
    ) -> Result<(), Refused> {
        let done = rustix::fs::renameat_with(from, old, to, new, RenameFlags::NOREPLACE);
        done.map_err(|error| match error {
            Errno::XDEV => Refused::OtherFileSystem(self.path.clone()),
            Errno::EXIST => Refused::GivenOut,
            Errno::NOENT => Refused::Gone,
            error => Refused::Io { path: self.path.join(old), error: error.into() },
        })
    }

    /// Best effort: after a crash the file is in one of the two directories, with or without this.
    fn sync(&self) {
        let _ = rustix::fs::fsync(&self.dir);
    }
}

/// Whether it is the same file, not written since.
fn is_same(one: &Stat, other: &Stat) -> bool {
    let of =
        |stat: &Stat| (stat.st_dev, stat.st_ino, stat.st_mtime, stat.st_mtime_nsec, stat.st_size);
    of(one) == of(other)
}

#[cfg(test)]
mod tests;
