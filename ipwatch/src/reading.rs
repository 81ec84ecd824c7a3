//! Tracks what each thread that may hang in the kernel is reading, and what no other thread must read meanwhile.
//!
//! A read that does not return takes its thread with it. It must not take other threads too: the watcher of a thread
//! ([`Slot::hangs`]) leaves it behind, replaces it, and records in the [`Roster`] what it hangs at. Every read that may
//! hang is announced first ([`file`], [`path`], [`rtnl`]), and refused if it would hang too. The refusal is an ordinary
//! error, so that a pass that had to leave something out is not complete.
//!
//! A slot belongs to a thread, not to the code that reads: the same code also runs on threads without a watcher, for
//! which all of this does nothing.

mod execve;
mod roster;

use std::cell::{Cell, RefCell};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};

pub(crate) use self::execve::STATUS;
pub use self::roster::{Left, MOST_LEFT, Roster, Verdict};
use crate::clock;
use crate::fact::BootNs;

/// Nanoseconds after which a single read counts as hanging.
const LONGEST: u64 = 2_000_000_000;
/// Nanoseconds after which a job without an announced read counts as hanging.
const LONGEST_BETWEEN: u64 = 10_000_000_000;
/// Maximum number of bytes read of the mounts: about 40,000 mounts.
const MOUNTS: usize = 8 << 20;
/// Added to the time of a check, so that the read is over the limit then.
const MARGIN: Duration = Duration::from_millis(1);
/// Between two checks of a thread whose read or job takes long.
pub const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What a read may hang at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// A file of a process, below `/proc/PID`.
    Process {
        pid: u32,
        /// The path below that directory.
        file: String,
    },
    /// A file or directory elsewhere, and everything on the same mount.
    Path {
        path: PathBuf,
        /// The mount that it is on; empty for the node's root.
        mount: PathBuf,
    },
    /// rtnetlink, which has one lock for the whole node (`rtnl_mutex`).
    Rtnl,
    /// Not a single read: the job of the thread.
    Job(&'static str),
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Process { pid, file } => write!(f, "/proc/{pid}/{file}"),
            Target::Path { path, .. } => write!(f, "{}", path.display()),
            Target::Rtnl => f.write_str("rtnetlink"),
            Target::Job(name) => f.write_str(name),
        }
    }
}

/// The state shared by the threads that may be left behind, their watchers, and `doctor`.
#[derive(Debug, Clone)]
pub struct Readings(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    roster: Mutex<Roster>,
    /// Number of entries in the roster, so that the lock is not needed while nothing hangs.
    left: AtomicUsize,
    /// Changes whenever a thread has returned.
    returned: watch::Sender<u64>,
    /// The watcher has nothing to wait for but [`Readings::stirred`].
    rests: AtomicBool,
    stirred: Notify,
}

impl Default for Readings {
    fn default() -> Self {
        let (returned, _) = watch::channel(0);
        let (roster, left) = (Mutex::default(), AtomicUsize::new(0));
        let (rests, stirred) = (AtomicBool::new(false), Notify::new());
        Self(Arc::new(Shared { roster, left, returned, rests, stirred }))
    }
}

impl Readings {
    /// Creates a slot for one thread. `source`: the source for which a hang is reported; `job`: what the thread does.
    #[must_use]
    pub fn slot(&self, source: &'static str, job: &'static str) -> Arc<Slot> {
        Arc::new(Slot {
            readings: self.clone(),
            source,
            job,
            now: Mutex::default(),
            left: AtomicBool::new(false),
        })
    }

    /// For each affected source, what hangs.
    #[must_use]
    pub fn report(&self, now: BootNs) -> Vec<(&'static str, String)> {
        if self.0.left.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        self.roster().report(now)
    }

    /// Whether a thread of this source hangs that could not be replaced.
    #[must_use]
    pub fn is_blind(&self, source: &str) -> bool {
        self.0.left.load(Ordering::Acquire) > 0 && self.roster().is_blind(source)
    }

    /// Changes whenever a thread that was left behind has returned.
    #[must_use]
    pub fn returns(&self) -> watch::Receiver<u64> {
        self.0.returned.subscribe()
    }

    /// Announces that the watcher will wait for [`stirred`](Self::stirred). It must look once more at whether a thread
    /// is at work before it waits: what begins later stirs it.
    pub fn rest(&self) {
        self.0.rests.store(true, Ordering::SeqCst);
    }

    /// Waits until a thread begins a job or ends. Cancel-safe, for a single waiter.
    pub async fn stirred(&self) {
        self.0.stirred.notified().await;
    }

    /// Wakes the watcher if it rests.
    pub fn stir(&self) {
        if self.0.rests.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Wakes the watcher, also if it sleeps until a look is due.
    pub fn wake(&self) {
        self.0.stirred.notify_one();
    }

    /// Since when it is known that this read would hang.
    fn refuses(&self, target: &Target) -> Option<BootNs> {
        if self.0.left.load(Ordering::Acquire) == 0 {
            return None;
        }
        if let Some(since) = self.roster().refuses(target) {
            return Some(since);
        }
        let Target::Process { pid, .. } = target else { return None };
        if !self.roster().is_wary_of(target) {
            return None;
        }
        // Without the lock, which every reader takes.
        let is_under_way = execve::is_under_way(*pid);
        let mut roster = self.roster();
        if is_under_way {
            return Some(roster.passes_over(*pid, clock::now()));
        }
        roster.has_answered(*pid);
        None
    }

    fn roster(&self) -> MutexGuard<'_, Roster> {
        // An entry is always complete.
        self.0.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, roster: &Roster) {
        self.0.left.store(roster.len(), Ordering::Release);
    }
}

/// What one thread reads.
#[derive(Debug)]
pub struct Slot {
    readings: Readings,
    source: &'static str,
    job: &'static str,
    now: Mutex<Now>,
    left: AtomicBool,
}

#[derive(Debug, Default)]
struct Now {
    /// When the current read or step of the job began; 0 while the thread waits for a job.
    since: BootNs,
    /// The current read.
    at: Option<Target>,
    /// The buffer of the last file name, for reuse.
    spare: String,
}

impl Slot {
    /// Runs a job on the calling thread, whose reads are tracked here meanwhile. Returns its result and, if the thread
    /// was left behind, what it hung at; the thread must then end.
    pub fn during<T>(self: &Arc<Self>, job: impl FnOnce() -> T) -> (T, Option<Target>) {
        SLOT.set(Some(Arc::clone(self)));
        self.now().since = clock::now();
        self.readings.stir();
        let done = job();
        SLOT.set(None);
        let mut now = self.now();
        now.since = BootNs::default();
        now.at = None;
        // Under the lock: either the watcher sees that the thread has returned, or the thread sees that it was left
        // behind.
        let left = self.left.load(Ordering::Acquire);
        drop(now);
        if !left {
            return (done, None);
        }
        let mut roster = self.readings.roster();
        let target = roster.returned(self.id());
        self.readings.count(&roster);
        drop(roster);
        self.readings.0.returned.send_modify(|count| *count += 1);
        (done, Some(target.unwrap_or(Target::Job(self.job))))
    }

    /// Leaves the thread behind if it hangs and may be replaced.
    pub fn hangs(&self, now: BootNs) -> Verdict {
        let at = self.now();
        let over = match &at.at {
            _ if at.since == BootNs::default() => false,
            Some(_) => now.since(at.since) > LONGEST,
            None => now.since(at.since) > LONGEST_BETWEEN,
        };
        let mut roster = self.readings.roster();
        if !over {
            let was = roster.unstalled(self.id());
            self.readings.count(&roster);
            return if was { Verdict::WorksAgain } else { Verdict::Works };
        }
        if self.left.load(Ordering::Acquire) {
            return Verdict::Works;
        }
        let target = at.at.clone().unwrap_or(Target::Job(self.job));
        let left = Left { id: self.id(), source: self.source, target, since: at.since };
        let verdict = roster.hangs(left.with_mount(mount_of));
        self.left.store(matches!(verdict, Verdict::LeftBehind(_)), Ordering::Release);
        self.readings.count(&roster);
        verdict
    }

    /// Time until [`hangs`](Self::hangs) may have something new to say; `None` if nothing hangs and the thread waits for
    /// a job.
    #[must_use]
    pub fn next_look(&self, now: BootNs) -> Option<Duration> {
        let since = self.now().since;
        if since == BootNs::default() {
            // The thread may have come back since the last look.
            let hangs = self.readings.0.left.load(Ordering::Acquire) > 0;
            return hangs.then_some(LOOK_EVERY);
        }
        let due = Duration::from_nanos(since.plus(LONGEST).since(now));
        // Past its time: either it has not come back, or the job is long and its next read is yet to be seen.
        Some(if due.is_zero() { LOOK_EVERY } else { due + MARGIN })
    }

    /// The thread has ended, for whatever reason, and was not left behind before.
    pub fn ended(&self) {
        let mut now = self.now();
        now.since = BootNs::default();
        now.at = None;
        drop(now);
        let mut roster = self.readings.roster();
        roster.unstalled(self.id());
        self.readings.count(&roster);
    }

    #[must_use]
    pub fn is_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// Its address identifies it.
    fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, target: Target) {
        let mut now = self.now();
        now.since = clock::now();
        now.at = Some(target);
    }

    fn end(&self) {
        let mut now = self.now();
        now.since = clock::now();
        if let Some(Target::Process { file, .. }) = now.at.take() {
            now.spare = file;
        }
    }
}

thread_local! {
    static SLOT: RefCell<Option<Arc<Slot>>> = const { RefCell::new(None) };
    /// Depth of nested reads: only the outermost counts.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// A read in progress, until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Reading(());

impl Drop for Reading {
    fn drop(&mut self) {
        let depth = DEPTH.get().saturating_sub(1);
        DEPTH.set(depth);
        if depth == 0 {
            SLOT.with_borrow(|slot| {
                if let Some(slot) = slot {
                    slot.end();
                }
            });
        }
    }
}

/// The read would hang. What it would have returned is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it does not answer: another read of it has not come back")]
pub struct Hangs {
    /// Since when another read hangs.
    pub since: BootNs,
}

/// The refusal in an error, if the read was refused because it would hang.
#[must_use]
pub fn hangs(error: &io::Error) -> Option<Hangs> {
    error.get_ref()?.downcast_ref().copied()
}

/// Announces that the calling thread will read a file of a process.
///
/// # Errors
/// [`Hangs`].
pub fn file(pid: u32, file: &Path) -> io::Result<Reading> {
    begin(|spare| {
        let mut name = spare;
        name.clear();
        name.push_str(&file.to_string_lossy());
        Target::Process { pid, file: name }
    })
}

/// Announces that the calling thread will read a file elsewhere.
///
/// # Errors
/// [`Hangs`].
pub fn path(path: &Path) -> io::Result<Reading> {
    begin(|_| Target::Path { path: path.to_owned(), mount: PathBuf::new() })
}

/// Announces that the calling thread will use rtnetlink.
///
/// # Errors
/// [`Hangs`].
pub fn rtnl() -> io::Result<Reading> {
    begin(|_| Target::Rtnl)
}

/// Whether the calling thread was left behind: its results are too late to be reported as new.
#[must_use]
pub fn is_left() -> bool {
    SLOT.with_borrow(|slot| slot.as_ref().is_some_and(|slot| slot.left.load(Ordering::Acquire)))
}

fn begin(target: impl FnOnce(String) -> Target) -> io::Result<Reading> {
    SLOT.with_borrow(|slot| {
        if let Some(slot) = slot.as_ref().filter(|_| DEPTH.get() == 0) {
            let spare = std::mem::take(&mut slot.now().spare);
            let target = target(spare);
            if let Some(since) = slot.readings.refuses(&target) {
                return Err(io::Error::new(io::ErrorKind::TimedOut, Hangs { since }));
            }
            slot.begin(target);
        }
        DEPTH.set(DEPTH.get() + 1);
        Ok(Reading(()))
    })
}

/// Announces every single read of a process's file.
#[derive(Debug)]
pub struct Watched<R> {
    pub inner: R,
    /// The process; `None` if it is not a process's file.
    pub pid: Option<u32>,
    /// The path below the process's directory.
    pub name: &'static str,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let _reading = self.pid.map(|pid| file(pid, Path::new(self.name))).transpose()?;
        self.inner.read(buffer)
    }
}

/// Runs blocking work on a thread of its own that may be left behind. `Ok(Err(_))`: what the work hangs at; it
/// continues, and its result is dropped.
///
/// # Errors
/// The work panicked, or the runtime is shutting down.
pub async fn unblocked<T: Send + 'static>(
    readings: &Readings,
    source: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Result<T, Target>> {
    let slot = readings.slot(source, source);
    let own = Arc::clone(&slot);
    let mut working = tokio::task::spawn_blocking(move || own.during(work).0);
    loop {
        tokio::select! {
            done = &mut working => return done.map(Ok).map_err(io::Error::other),
            () = tokio::time::sleep(LOOK_EVERY) => {
                if let Verdict::LeftBehind(target) = slot.hangs(clock::now()) {
                    return Ok(Err(target));
                }
            }
        }
    }
}

/// The same for a thread that blocks until the work is done.
///
/// # Errors
/// The work panicked, or no thread can be created.
pub fn apart<T: Send + 'static>(
    readings: &Readings,
    source: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Result<T, Target>> {
    let slot = readings.slot(source, source);
    let own = Arc::clone(&slot);
    let (done, doing) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name("ipwatch-apart".to_owned());
    // Fails if the caller has given up waiting.
    thread.stack_size(256 * 1024).spawn(move || drop(done.send(own.during(work).0)))?;
    loop {
        match doing.recv_timeout(LOOK_EVERY) {
            Ok(done) => return Ok(Ok(done)),
            Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("it panicked")),
            Err(RecvTimeoutError::Timeout) => {
                if let Verdict::LeftBehind(target) = slot.hangs(clock::now()) {
                    return Ok(Err(target));
                }
            }
        }
    }
}

/// The mount that a path is on, determined from its text without accessing it. Empty: the node's root, which is never
/// left out because too much is on it.
fn mount_of(path: &Path) -> PathBuf {
    // A file of the kernel itself, which waits for no file system.
    let mounts = Path::new("/proc/self/mountinfo");
    let text = crate::bounded::read_text(mounts, MOUNTS).unwrap_or_default();
    let points = text.lines().filter_map(|line| line.split(' ').nth(4)).map(Path::new);
    let above = points.filter(|point| path.starts_with(point) && *point != Path::new("/"));
    above.max_by_key(|point| point.as_os_str().len()).map(ToOwned::to_owned).unwrap_or_default()
}

#[cfg(test)]
mod tests;
