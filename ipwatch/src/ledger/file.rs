//! The ledger's interface to the disk: opens the file, returns what it contains, and queues rows for the thread that
//! writes it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::backlog::FindingRow;
use super::format::{FORMAT, Identity, Loaded, StoreError};
use super::state::Writes;
use super::tenure;
use super::writer::{self, Pace, Shared};
use crate::clock::Calendar;
use crate::contract::Past;
use crate::contract::Tenure;
use crate::fact::{Boot, BootNs, SourceStatus};

/// Name of the file in the state directory.
pub(super) const FILE: &str = "ledger.redb";

/// Why there is no ledger. Disk errors are not among these: then the ledger continues in memory, and reports that in
/// its [`LedgerFile::status`].
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// Another daemon uses this state directory.
    #[error(
        "{} is open in another process: is ipwatch running already? Stop it, or give this one a \
         --state-dir of its own",
        .0.display()
    )]
    Locked(PathBuf),
    /// A newer ipwatch wrote the file.
    #[error(
        "{} has format {found}, this ipwatch knows {FORMAT}: run the newer ipwatch again, or move \
         the file away to start a new history",
        .path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
    },
    /// The thread for the file could not be started.
    #[error("{}: {why}", .path.display())]
    Failed {
        /// The file.
        path: PathBuf,
        /// The system's error.
        why: String,
    },
    /// The file was closed before everything was written.
    #[error("{}: not everything was written: {why}", .path.display())]
    NotWritten {
        /// The file.
        path: PathBuf,
        /// Its last status.
        why: String,
    },
}

/// How long ended findings and tenures are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Maximum age of resolved findings and ended tenures.
    pub max_age_secs: u64,
    /// Approximate maximum size of the file: the oldest ended rows are removed first. Open rows stay.
    pub max_bytes: u64,
}

impl Default for Retention {
    fn default() -> Self {
        Self { max_age_secs: 30 * 24 * 3600, max_bytes: 64 * 1024 * 1024 }
    }
}

impl Retention {
    /// Size in bytes to which the rows are reduced when the file is too large: far below the limit, because the tree
    /// around the rows takes as much again, and so that this is not repeated every minute.
    pub(super) fn target(self) -> u64 {
        self.max_bytes / 3
    }
}

/// The ledger's file, or without a directory what is kept of it in memory. The rows that wait there are written by a thread
/// of its own; nothing here but [`LedgerFile::open`] and [`LedgerFile::close`] blocks, and both for a limited time.
#[derive(Debug)]
pub struct LedgerFile {
    retention: Retention,
    pub(super) shared: Arc<Shared>,
}

impl LedgerFile {
    /// Opens the file in a state directory (created if missing), or without a directory keeps the [`History`] in
    /// memory, for a single `scan`.
    ///
    /// Blocks on the disk.
    ///
    /// # Errors
    /// Another process owns the file, or a newer version wrote it: [`LedgerError::Locked`], [`LedgerError::Newer`]. A
    /// file that cannot be used for any other reason is no error: see [`LedgerFile::status`].
    pub fn open(
        dir: Option<&Path>,
        boot: &Boot,
        retention: Retention,
    ) -> Result<Self, LedgerError> {
        Self::open_with(dir, boot, retention, Pace::default())
    }

    pub(super) fn open_with(
        dir: Option<&Path>,
        boot: &Boot,
        retention: Retention,
        pace: Pace,
    ) -> Result<Self, LedgerError> {
        let shared = match dir {
            None => Shared::memory(),
            Some(dir) => {
                let path = dir.join(FILE);
                let identity = Identity {
                    boot_id: boot.boot_id.clone(),
                    node: boot.node.clone(),
                    began: Calendar { wall_offset: boot.wall_offset }.date(BootNs(0)),
                };
                writer::start(path.clone(), identity, retention, pace).map_err(
                    |error| match error {
                        StoreError::Locked => LedgerError::Locked(path),
                        StoreError::Newer(found) => LedgerError::Newer { path, found },
                        other => LedgerError::Failed { path, why: other.to_string() },
                    },
                )?
            }
        };
        Ok(Self { retention, shared })
    }

    /// What the file contained when it was opened, at the start or later, for
    /// [`Ledger::restore`](super::Ledger::restore). Nothing is written until this is taken.
    #[must_use]
    pub fn take_loaded(&self) -> Option<Loaded> {
        let mut inner = self.shared.lock();
        let mut loaded = inner.loaded.take()?;
        // The end of a tenure during the failure still waits to be written: the file is outdated.
        loaded.tenures.retain(|row| !inner.backlog.ends(&row.name()));
        Some(loaded)
    }

    /// Queues these rows for the writer.
    pub fn write(&self, mut writes: Writes) {
        if writes.is_empty() {
            return;
        }
        let findings = std::mem::take(&mut writes.findings);
        let (superseded, tenures) = writes.into_tenures();
        // Without a file, findings are never read back; tenures are the history.
        let findings = if self.shared.in_memory() { Vec::new() } else { findings };
        if superseded.is_empty() && findings.is_empty() && tenures.is_empty() {
            return;
        }
        let findings: Vec<_> = findings
            .into_iter()
            .map(|record| (FindingRow::new(&record), record.finding.id))
            .collect();
        self.shared.put(|backlog| {
            superseded.iter().for_each(|name| backlog.forget(name));
            findings.into_iter().for_each(|(row, id)| backlog.finding(&id, row));
            tenures.into_iter().for_each(|(name, row)| backlog.tenure(name, row));
        });
    }

    /// The daemon is near the memory that it may have, or no longer is: fewer rows wait, those of netns without a known
    /// container being dropped first.
    pub fn set_memory_short(&self, short: bool) {
        self.shared.put(|backlog| backlog.set_memory_short(short));
    }

    /// A handle to wait until acknowledgements are written: see [`Written::wait`].
    #[must_use]
    pub fn written(&self) -> Written {
        Written(Arc::clone(&self.shared))
    }

    /// A query for tenures, the newest first, at most `limit`. Running it blocks on the disk.
    #[must_use]
    pub fn history(&self, past: Past, limit: usize) -> History {
        History { shared: Arc::clone(&self.shared), past, limit }
    }

    /// Removes rows that ended too long before this date. Must be called once at the start and every hour; the writer
    /// thread does the work, in small steps. Returns the limit (wall clock, milliseconds), for
    /// [`Ledger::forget_before`](super::Ledger::forget_before).
    pub fn prune(&self, date: &str) -> u64 {
        let age = self.retention.max_age_secs.saturating_mul(1000);
        let before = tenure::millis(date).saturating_sub(age);
        self.shared.prune(before);
        before
    }

    /// Status of the file: `active`, `degraded` with the reason, or `disabled` (in memory only).
    #[must_use]
    pub fn status(&self) -> (SourceStatus, String) {
        self.shared.status()
    }

    /// Number of rows that wait to be written, and of rows dropped for lack of room.
    #[must_use]
    pub fn backlog(&self) -> (u64, u64) {
        self.shared.backlog()
    }

    /// Writes the waiting rows and closes the file. Blocks, at most for `timeout`.
    ///
    /// # Errors
    /// [`LedgerError::NotWritten`].
    pub fn close(self, timeout: Duration) -> Result<(), LedgerError> {
        if self.shared.stop(timeout) {
            return Ok(());
        }
        let (_, why) = self.shared.status();
        Err(LedgerError::NotWritten { path: self.shared.path().to_owned(), why })
    }
}

impl Drop for LedgerFile {
    fn drop(&mut self) {
        self.shared.abandon();
    }
}

/// A handle to wait for waiting rows on another thread.
#[derive(Debug)]
pub struct Written(Arc<Shared>);

impl Written {
    /// Waits until the queued findings are on the disk; returns at once if there is no file. `false`: not written
    /// within `timeout`, or writing is not possible now, as [`LedgerFile::status`] reports.
    pub fn wait(&self, timeout: Duration) -> bool {
        self.0.written(timeout)
    }
}

/// A query for the past, detached from the ledger so that it can run on another thread.
#[derive(Debug, Clone)]
pub struct History {
    shared: Arc<Shared>,
    past: Past,
    limit: usize,
}

impl History {
    /// Runs the query. Returns the newest first. Blocks on the disk.
    #[must_use]
    pub fn run(&self) -> Vec<Tenure> {
        self.shared.history(&self.past, self.limit)
    }
}
