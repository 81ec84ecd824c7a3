//! The file's rows between the core and the thread that writes them ([`thread`]). The core only adds rows to a backlog, under a
//! lock that is held for moments: a full, slow or vanished disk never blocks the core.
//!
//! While the file cannot be used, everything continues in memory, the status has the reason, and opening the file is
//! retried. What the file then contains (an earlier run's findings and tenures) waits in [`Inner::loaded`] until the
//! core has taken it, and nothing is written before.

mod newest;
mod thread;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use self::newest::Newest;
pub(super) use self::thread::start;
use super::backlog::Backlog;
use super::format::Loaded;
use super::store::Store;
use super::tenure::RowKey;
use crate::clock;
use crate::contract::{Past, Tenure};
use crate::fact::{BootNs, SourceStatus};

/// What is said of a disk that takes what is asked and never answers.
const HANGS: &str = "the file system does not answer (a mount whose server is gone?)";

/// How the writer waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// How long tenures are collected before they are written: churn costs one commit a second, and up to that much of
    /// the tenures (never of the findings) is lost with kill -9.
    pub(super) gather: Duration,
    /// First and longest wait before a failed file is tried again.
    pub(super) retry: (Duration, Duration),
    /// How long the disk may take for one thing before it counts as hung, and how long a start waits for it.
    pub(super) patience: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        let second = Duration::from_secs(1);
        Self { gather: second, retry: (second, 30 * second), patience: 3 * second }
    }
}

/// State shared by the core and the writer.
#[derive(Debug)]
pub(super) struct Shared {
    /// Empty: in memory only, and there is no writer.
    path: PathBuf,
    /// See [`Pace::patience`].
    patience: Duration,
    inner: Mutex<Inner>,
    /// Signals work for the writer, or work that it has done.
    changed: Condvar,
    /// Queries read it beside the writer; compacting and reopening wait for them.
    store: RwLock<Option<Store>>,
}

#[derive(Debug, Default)]
pub(super) struct Inner {
    /// Rows that wait to be written.
    pub(super) backlog: Backlog,
    /// Rows that are being written.
    writing: Option<Arc<Backlog>>,
    /// When the first waiting row was added.
    since: Option<BootNs>,
    /// The content of the file, until the core takes it.
    pub(super) loaded: Option<Loaded>,
    /// Why the file cannot be used.
    trouble: Option<String>,
    /// Since when the writer has been waiting for the disk.
    busy: Option<BootNs>,
    /// Retention asked for: remove what was over before this (wall clock, milliseconds).
    prune: Option<u64>,
    stop: bool,
    done: bool,
}

impl Shared {
    fn new(path: PathBuf, patience: Duration) -> Arc<Self> {
        Arc::new(Self {
            path,
            patience,
            inner: Mutex::default(),
            changed: Condvar::new(),
            store: RwLock::new(None),
        })
    }

    /// Without a file: the last ended tenures are kept as if they waited to be written.
    pub(super) fn memory() -> Arc<Self> {
        Self::new(PathBuf::new(), Pace::default().patience)
    }

    pub(super) fn in_memory(&self) -> bool {
        self.path.as_os_str().is_empty()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere left no partial change: each change is one call on a collection.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds rows to the backlog and wakes the writer.
    pub(super) fn put(&self, put: impl FnOnce(&mut Backlog)) {
        let mut inner = self.lock();
        put(&mut inner.backlog);
        if !inner.backlog.is_empty() {
            inner.since.get_or_insert_with(clock::now);
        }
        drop(inner);
        self.changed.notify_all();
    }

    pub(super) fn prune(&self, before: u64) {
        self.lock().prune = Some(before);
        self.changed.notify_all();
    }

    /// The status of the file, for people.
    pub(super) fn status(&self) -> (SourceStatus, String) {
        if self.in_memory() {
            return (SourceStatus::Disabled, "in memory only".to_owned());
        }
        let inner = self.lock();
        let path = self.path.display();
        let lost = match inner.backlog.lost() {
            0 => String::new(),
            lost => format!(", {lost} lost because the queue was full"),
        };
        let hangs = self.hangs(&inner).then_some(HANGS);
        match hangs.or(inner.trouble.as_deref()) {
            None => (SourceStatus::Active, format!("{path}{lost}")),
            Some(why) => (
                SourceStatus::Degraded,
                format!(
                    "cannot use {path}: {why}; keeping everything in memory, {} rows queued{lost}",
                    inner.backlog.len() + inner.writing.as_ref().map_or(0, |rows| rows.len())
                ),
            ),
        }
    }

    /// Whether the writer has waited for the disk for too long: a mount whose server is gone.
    fn hangs(&self, inner: &Inner) -> bool {
        inner.busy.is_some_and(|since| clock::now().since(since) >= nanos(self.patience))
    }

    /// Rows that wait to be written, and those that were lost for want of room.
    pub(super) fn backlog(&self) -> (u64, u64) {
        let inner = self.lock();
        let writing = inner.writing.as_ref().map_or(0, |rows| rows.len());
        ((inner.backlog.len() + writing) as u64, inner.backlog.lost())
    }

    /// The selected tenures, the newest first, at most `limit`. Blocks on the disk.
    pub(super) fn history(&self, past: &Past, limit: usize) -> Vec<Tenure> {
        let range = RowKey::range(past.ip);
        let mut newest = Newest::new(past, limit);
        // Waiting rows are read before the file: a row that is written in between is found twice, never missed, and its
        // waiting version is the newer one.
        let inner = self.lock();
        let writing = inner.writing.clone();
        for (name, tenure) in inner.backlog.within(range.0, range.1) {
            newest.add_waiting(name, tenure);
        }
        let hangs = self.hangs(&inner);
        drop(inner);
        for (name, tenure) in writing.iter().flat_map(|rows| rows.within(range.0, range.1)) {
            newest.add_waiting(name, tenure);
        }
        // Whoever reads it would hang as the writer does.
        if !hangs
            && let Some(store) = &*self.store.read().unwrap_or_else(PoisonError::into_inner)
            && let Err(error) = store
                .history(range, |name, json| newest.add(name, || serde_json::from_slice(json).ok()))
        {
            tracing::warn!("{}: reading the history: {error}", self.path.display());
        }
        newest.into_tenures()
    }

    /// As [`Shared::stop`], without waiting for it.
    pub(super) fn abandon(&self) {
        self.lock().stop = true;
        self.changed.notify_all();
    }

    /// Asks the writer to write what waits and to end. Returns `false` if it did not succeed within `timeout`.
    pub(super) fn stop(&self, timeout: Duration) -> bool {
        if self.in_memory() {
            return true;
        }
        let mut inner = self.lock();
        inner.stop = true;
        self.changed.notify_all();
        let until = clock::now().plus(nanos(timeout));
        while !inner.done {
            let left = until.since(clock::now());
            if left == 0 {
                return false;
            }
            inner = self.wait(inner, Some(Duration::from_nanos(left)));
        }
        inner.backlog.is_empty()
    }

    /// Waits until the queued findings are on the disk. Returns `false` if they were not within `timeout`, or writing
    /// is not possible now.
    pub(super) fn written(&self, timeout: Duration) -> bool {
        if self.in_memory() {
            return true;
        }
        let mut inner = self.lock();
        let until = clock::now().plus(nanos(timeout));
        while inner.backlog.is_urgent() || inner.writing.is_some() {
            let left = until.since(clock::now());
            if left == 0 || inner.trouble.is_some() || inner.done || self.hangs(&inner) {
                return false;
            }
            inner = self.wait(inner, Some(Duration::from_nanos(left)));
        }
        true
    }

    /// Whether everything is on the disk and nothing is left to do.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        let inner = self.lock();
        inner.backlog.is_empty()
            && inner.writing.is_none()
            && inner.loaded.is_none()
            && inner.trouble.is_none()
    }

    fn wait<'a>(
        &self,
        inner: MutexGuard<'a, Inner>,
        timeout: Option<Duration>,
    ) -> MutexGuard<'a, Inner> {
        match timeout {
            None => self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                let waited = self.changed.wait_timeout(inner, timeout);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    fn set_store(&self, store: Option<Store>) {
        *self.store.write().unwrap_or_else(PoisonError::into_inner) = store;
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
