//! The thread that opens the file, writes what waits, and removes what is too old. Only it changes the file.

use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::{HANGS, Inner, Pace, Shared, nanos};
use crate::clock;
use crate::fact::BootNs;
use crate::ledger::Retention;
use crate::ledger::backlog::Backlog;
use crate::ledger::claim::Claim;
use crate::ledger::format::{Identity, StoreError};
use crate::ledger::store::{Store, move_aside};
use crate::rights::{self, Rights};
use crate::sources::backoff::Pauses;

/// Number of waiting rows above which they are written at once.
const GATHER_ROWS: usize = 1024;
/// Number of rows that one transaction of the retention removes.
const PRUNE_ROWS: usize = 4096;
/// A file smaller than this is not compacted, unless its maximum size is smaller.
const COMPACT_FROM: u64 = 4 * 1024 * 1024;
/// Starts the thread, which opens the file. What the file held is in [`Inner::loaded`]. A disk that does not answer is
/// waited for no longer than [`Pace::patience`]: the daemon watches without it, and the file joins late.
///
/// # Errors
/// [`StoreError::Locked`] and [`StoreError::Newer`]: continuing without the file would be wrong. After any other error
/// the ledger continues in memory.
pub(in crate::ledger) fn start(
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
