//! The writer thread. The core only adds rows to a backlog, under a lock that is held for moments: a full, slow or
//! vanished disk never blocks the core.
//!
//! While the file cannot be used, everything continues in memory, the status has the reason, and opening the file is
//! retried. What the file then contains (an earlier run's findings and tenures) waits in [`Inner::loaded`] until the
//! core has taken it, and nothing is written before.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use super::Retention;
use super::backlog::Backlog;
use super::claim::Claim;
use super::format::{Identity, Loaded, StoreError};
use super::store::{Store, move_aside};
use super::tenure::RowKey;
use crate::clock;
use crate::contract::{Past, Tenure};
use crate::fact::{BootNs, SourceStatus};
use crate::rights::{self, Rights};
use crate::sources::backoff::Pauses;

/// Number of waiting rows above which they are written at once.
const GATHER_ROWS: usize = 1024;
/// Number of rows that one transaction of the retention removes.
const PRUNE_ROWS: usize = 4096;
/// A file smaller than this is not compacted, unless its maximum size is smaller.
const COMPACT_FROM: u64 = 4 * 1024 * 1024;
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

/// The newest selected tenures so far, up to a limit.
struct Newest<'a> {
    past: &'a Past,
    limit: usize,
    rows: BTreeMap<(Reverse<u64>, RowKey), Tenure>,
    /// Rows that wait to be written: the file has an older version of them.
    waiting: BTreeSet<RowKey>,
}

impl<'a> Newest<'a> {
    fn new(past: &'a Past, limit: usize) -> Self {
        Self { past, limit, rows: BTreeMap::new(), waiting: BTreeSet::new() }
    }

    /// Adds a row that waits to be written. The first version counts.
    fn add_waiting(&mut self, name: RowKey, tenure: Tenure) {
        if self.waiting.insert(name) {
            self.take(name, || Some(tenure));
        }
    }

    /// Adds a row of the file; must be called after all waiting rows.
    fn add(&mut self, name: RowKey, tenure: impl FnOnce() -> Option<Tenure>) {
        if !self.waiting.contains(&name) {
            self.take(name, tenure);
        }
    }

    fn take(&mut self, name: RowKey, tenure: impl FnOnce() -> Option<Tenure>) {
        let at = (Reverse(name.from()), name);
        let full = self.rows.len() >= self.limit;
        if full && self.rows.last_key_value().is_none_or(|(last, _)| at > *last) {
            return;
        }
        let Some(tenure) = tenure().filter(|tenure| self.past.has(tenure)) else { return };
        self.rows.insert(at, tenure);
        if self.rows.len() > self.limit {
            self.rows.pop_last();
        }
    }

    fn into_tenures(self) -> Vec<Tenure> {
        self.rows.into_values().collect()
    }
}

/// Starts the thread, which opens the file. What the file held is in [`Inner::loaded`]. A disk that does not answer is
/// waited for no longer than [`Pace::patience`]: the daemon watches without it, and the file joins late.
///
/// # Errors
/// [`StoreError::Locked`] and [`StoreError::Newer`]: continuing without the file would be wrong. After any other error
/// the ledger continues in memory.
pub(super) fn start(
    path: PathBuf,
    identity: Identity,
    retention: Retention,
    pace: Pace,
) -> Result<Arc<Shared>, StoreError> {
    let shared = Shared::new(path, pace.patience);
    let writer = Writer {
        shared: Arc::clone(&shared),
        identity,
        retention,
        pace,
        pauses: Pauses::new(pace.retry),
        retry_at: BootNs::default(),
        last_try: false,
        claim: None,
    };
    let (tell, opened) = mpsc::sync_channel(0);
    std::thread::Builder::new()
        .name("ledger".to_owned())
        // It writes rows of a few kilobytes; the default of 2 MiB would only waste address space.
        .stack_size(512 * 1024)
        .spawn(move || {
            rights::keep(Rights::None);
            writer.begin(&tell);
        })
        .map_err(|error| StoreError::Io(format!("no thread to write it: {error}")))?;
    match opened.recv_timeout(pace.patience) {
        Ok(refused) => refused.map_or(Ok(shared), Err),
        Err(RecvTimeoutError::Timeout) => {
            tracing::warn!(
                "{}: {HANGS}; findings go on in memory and are written when it answers",
                shared.path.display()
            );
            Ok(shared)
        }
        Err(RecvTimeoutError::Disconnected) => {
            Err(StoreError::Io("the thread that writes it has ended".to_owned()))
        }
    }
}

/// The writer's next task.
enum Work {
    Open,
    Write(Arc<Backlog>),
    Prune(u64),
    Stop,
}

struct Writer {
    shared: Arc<Shared>,
    identity: Identity,
    retention: Retention,
    pace: Pace,
    /// The waits before the file is tried again, and when the current one ends.
    pauses: Pauses,
    retry_at: BootNs,
    /// Whether the file was tried once more because the daemon is stopping.
    last_try: bool,
    /// The lock on the directory of the file.
    claim: Option<Claim>,
}

impl Writer {
    /// Opens the file for the first time and tells what forbids to go on, if anything does.
    fn begin(mut self, tell: &mpsc::SyncSender<Option<StoreError>>) {
        let (forbids, fails) = match self.timed(Self::open) {
            Ok(()) => (None, None),
            Err(error @ (StoreError::Locked | StoreError::Newer(_))) => (Some(error), None),
            Err(error) => (None, Some(error)),
        };
        if let Some(error) = fails {
            self.fail(&error.to_string());
        }
        let forbidden = forbids.is_some();
        match tell.send(forbids) {
            Ok(()) if forbidden => return,
            Ok(()) => {}
            // Whoever started it has given up waiting, and watches: what forbids to go on is trouble like any other.
            Err(mpsc::SendError(forbids)) => {
                if let Some(error) = forbids {
                    self.fail(&error.to_string());
                }
            }
        }
        self.run();
    }

    fn run(mut self) {
        loop {
            let work = self.next();
            let done = match work {
                Work::Open => self.timed(Self::open),
                Work::Write(rows) => self.timed(|writer| writer.write(rows)),
                Work::Prune(before) => self.timed(|writer| writer.prune(before)),
                Work::Stop => break,
            };
            if let Err(error) = done {
                self.fail(&error.to_string());
            }
        }
        let store = self.shared.store.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(error)) = store.map(|store| store.close(&self.shared.path)) {
            tracing::warn!("{}: {error}; the next start checks it", self.shared.path.display());
        }
        // A caller that waits for the end may open the file again at once.
        self.claim = None;
        self.shared.lock().done = true;
        self.shared.changed.notify_all();
    }

    /// Does something on the disk, which may hang.
    fn timed(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.shared.lock().busy = Some(clock::now());
        let done = work(self);
        let took = self.shared.lock().busy.take().map_or(0, |since| clock::now().since(since));
        if took >= nanos(self.shared.patience) {
            let path = self.shared.path.display();
            tracing::info!(
                "{path}: the file system answers again, after {} s",
                took / 1_000_000_000
            );
        }
        done
    }

    /// Waits for something to do.
    fn next(&mut self) -> Work {
        let shared = Arc::clone(&self.shared);
        let mut inner = shared.lock();
        loop {
            inner = match self.due(&mut inner) {
                Ok(work) => return work,
                Err(wait) => shared.wait(inner, wait),
            };
        }
    }

    /// What is due now, or how long to wait.
    fn due(&mut self, inner: &mut Inner) -> Result<Work, Option<Duration>> {
        if inner.trouble.is_some() {
            return match self.retry_at.since(clock::now()) {
                _ if inner.stop && self.last_try => Ok(Work::Stop),
                _ if inner.stop => {
                    self.last_try = true;
                    Ok(Work::Open)
                }
                0 => Ok(Work::Open),
                left => Err(Some(Duration::from_nanos(left))),
            };
        }
        if inner.loaded.is_some() {
            // Waiting rows may be replaced once the core has merged the file's content. At the end no merge will
            // happen, and the waiting rows are more important.
            if !inner.stop {
                return Err(None);
            }
            inner.loaded = None;
        }
        let left =
            inner.since.map_or(0, |since| since.plus(nanos(self.pace.gather)).since(clock::now()));
        let backlog = &mut inner.backlog;
        if !backlog.is_empty()
            && (inner.stop || backlog.is_urgent() || backlog.len() > GATHER_ROWS || left == 0)
        {
            let rows = Arc::new(backlog.take());
            inner.writing = Some(Arc::clone(&rows));
            inner.since = None;
            return Ok(Work::Write(rows));
        }
        match inner.prune.take() {
            _ if inner.stop => Ok(Work::Stop),
            Some(before) => Ok(Work::Prune(before)),
            None => Err((!backlog.is_empty()).then(|| Duration::from_nanos(left))),
        }
    }

    /// Opens the file; a damaged file is renamed first.
    fn open(&mut self) -> Result<(), StoreError> {
        let path = self.shared.path.clone();
        if let Some(dir) = path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
            // A directory that was deleted or moved away is not the one that has this path now.
            if !self.claim.as_ref().is_some_and(|claim| claim.is_on(dir)) {
                self.claim = Some(Claim::on(dir)?);
            }
        }
        let (store, loaded) = match Store::open(&path, &self.identity) {
            Err(StoreError::Corrupted(why)) => {
                let kept = move_aside(&path)?;
                tracing::warn!(
                    "{} is damaged ({why}): kept as {}, its history is not used; starting a new one",
                    path.display(),
                    kept.display()
                );
                Store::open(&path, &self.identity)?
            }
            opened => opened?,
        };
        if loaded.unreadable > 0 {
            tracing::warn!(
                "{}: {} rows cannot be read and are left alone",
                path.display(),
                loaded.unreadable
            );
        }
        self.shared.set_store(Some(store));
        let mut inner = self.shared.lock();
        inner.loaded = Some(loaded);
        if inner.trouble.take().is_some() {
            tracing::info!("{} is in use again", path.display());
        }
        Ok(())
    }

    fn write(&mut self, rows: Arc<Backlog>) -> Result<(), StoreError> {
        let written = self.with_store(|store| store.commit(&rows));
        drop(rows);
        let mut inner = self.shared.lock();
        if let Some(rows) = inner.writing.take()
            && written.is_err()
        {
            inner.backlog.put_back(Arc::unwrap_or_clone(rows));
        }
        drop(inner);
        self.shared.changed.notify_all();
        written?;
        self.pauses.begin_anew();
        self.last_try = false;
        // A file that was deleted under the daemon accepts writes without an error: treat that as an error, so that a
        // new file is created.
        if self.file_len()? > self.retention.max_bytes
            && self.with_store(Store::bytes)? > self.retention.target()
        {
            self.shared.lock().prune.get_or_insert(0);
        }
        Ok(())
    }

    /// One step of the retention; schedules the next one itself.
    fn prune(&mut self, before: u64) -> Result<(), StoreError> {
        let most = self.retention.max_bytes;
        let keep = (self.file_len()? > most).then(|| self.retention.target());
        if self.with_store(|store| store.prune(before, keep, PRUNE_ROWS))? == PRUNE_ROWS {
            self.shared.lock().prune.get_or_insert(before);
            return Ok(());
        }
        let (len, bytes) = (self.file_len()?, self.with_store(Store::bytes)?);
        if len > COMPACT_FROM.min(most) && (len > most || len > bytes.saturating_mul(4)) {
            let mut store = self.shared.store.write().unwrap_or_else(PoisonError::into_inner);
            store.as_mut().map_or(Ok(()), Store::compact)?;
        }
        Ok(())
    }

    /// The file cannot be used: logs that once, and sets the time of the next try.
    fn fail(&mut self, why: &str) {
        self.shared.set_store(None);
        self.retry_at = clock::now().plus(nanos(self.pauses.after_failure()));
        let known = self.shared.lock().trouble.replace(why.to_owned());
        if known.as_deref() != Some(why) {
            tracing::warn!(
                "cannot use {}: {why}; findings go on in memory and are written when it works again",
                self.shared.path.display()
            );
        }
    }

    fn with_store<T>(
        &self,
        job: impl FnOnce(&Store) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match &*self.shared.store.read().unwrap_or_else(PoisonError::into_inner) {
            Some(store) => job(store),
            None => Err(StoreError::Io("it is closed".to_owned())),
        }
    }

    fn file_len(&self) -> Result<u64, StoreError> {
        Ok(std::fs::metadata(&self.shared.path)?.len())
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
