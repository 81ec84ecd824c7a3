//! What each thread that may hang in the kernel is reading now, and what nobody is to read meanwhile.
//!
//! A read that does not come back takes its thread with it. It must not take the others: whoever watches the threads
//! ([`Slot::hangs`]) leaves the one behind, puts another in its place, and notes in the [`Roster`] what it hangs at.
//! Every read that may hang says so first ([`file`], [`path`], [`rtnl`]) and is refused if it would hang too:
//! an error like any other, so that a pass that had to leave something out is not complete.
//!
//! The slot is the thread's own and hangs on it, not on the code that reads: the same code reads on threads that
//! nobody watches, for which all of this does nothing.

mod execve;
mod roster;

use std::cell::{Cell, RefCell};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

pub use self::roster::{Left, MOST_LEFT, Roster, Verdict};
use crate::clock;
use crate::fact::BootNs;

/// How long a single read may take.
const LONGEST: u64 = 2_000_000_000;
/// How long a thread may be at its job without any read of which it tells.
const LONGEST_BETWEEN: u64 = 10_000_000_000;
/// The most that is read of the mounts: some 40,000 of them.
const MOUNTS: usize = 8 << 20;
/// Between two looks at a thread.
pub const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What a read may hang at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// A file of a process, below `/proc/PID`.
    Process {
        pid: u32,
        /// The file's path there.
        file: String,
    },
    /// A file or directory elsewhere, and all that lies on the same mount.
    Path {
        /// What was read.
        path: PathBuf,
        /// The mount that it lies on, where that is not the node's root.
        mount: PathBuf,
    },
    /// rtnetlink, which takes one lock for the whole node (`rtnl_mutex`).
    Rtnl,
    /// No single read: the job that the thread was at.
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

/// Who may be left behind, as seen by everybody: threads, those who watch them, and `doctor`.
#[derive(Debug, Clone)]
pub struct Readings(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    roster: Mutex<Roster>,
    /// As many as the roster has: nobody takes the lock while nothing hangs.
    left: AtomicUsize,
    /// Told whenever one has come back.
    returned: watch::Sender<u64>,
}

impl Default for Readings {
    fn default() -> Self {
        let (returned, _) = watch::channel(0);
        let (roster, left) = (Mutex::default(), AtomicUsize::new(0));
        Self(Arc::new(Shared { roster, left, returned }))
    }
}

impl Readings {
    /// A place for one thread. `source` is whom its trouble concerns, `job` what it does.
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

    /// Which sources something hangs of, and at what.
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

    /// Told whenever a thread that was left behind has come back.
    #[must_use]
    pub fn returns(&self) -> watch::Receiver<u64> {
        self.0.returned.subscribe()
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
        // Not under the lock, which every reader takes.
        let is_under_way = execve::is_under_way(*pid);
        let mut roster = self.roster();
        if is_under_way {
            return Some(roster.passes_over(*pid, clock::now()));
        }
        roster.has_answered(*pid);
        None
    }

    fn roster(&self) -> MutexGuard<'_, Roster> {
        // No entry is ever half made.
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
    /// When the thread began with what it is at; 0 while it waits for a job.
    since: BootNs,
    /// It reads this.
    at: Option<Target>,
    /// The room of the last file's name.
    spare: String,
}

impl Slot {
    /// Has the calling thread tell here what it reads, for as long as it does this job. With what came of it, if the
    /// thread was left behind meanwhile, what it hung at: it is to end.
    pub fn during<T>(self: &Arc<Self>, job: impl FnOnce() -> T) -> (T, Option<Target>) {
        SLOT.set(Some(Arc::clone(self)));
        self.now().since = clock::now();
        let done = job();
        SLOT.set(None);
        let mut now = self.now();
        now.since = BootNs::default();
        now.at = None;
        // Under the lock: either whoever watches saw it come back, or it sees that it was left.
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

    /// Leaves the thread behind if it hangs and another may take its place.
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

    /// The thread has ended, whatever it was at, and was not left behind before.
    pub fn ended(&self) {
        let mut now = self.now();
        now.since = BootNs::default();
        now.at = None;
        drop(now);
        let mut roster = self.readings.roster();
        roster.unstalled(self.id());
        self.readings.count(&roster);
    }

    /// The thread was left behind.
    #[must_use]
    pub fn is_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// Its address names it.
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
    /// Reads within reads: the outermost counts.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// A read that is under way, until this is dropped.
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

/// It would hang. Whoever gets this knows no more than that there is something to be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it does not answer: another read of it has not come back")]
pub struct Hangs {
    /// Since when the other one has been waiting.
    pub since: BootNs,
}

/// What an error says of a read that was refused because it would hang.
#[must_use]
pub fn hangs(error: &io::Error) -> Option<Hangs> {
    error.get_ref()?.downcast_ref().copied()
}

/// The calling thread is about to read a file of a process.
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

/// The calling thread is about to read a file elsewhere.
///
/// # Errors
/// [`Hangs`].
pub fn path(path: &Path) -> io::Result<Reading> {
    begin(|_| Target::Path { path: path.to_owned(), mount: PathBuf::new() })
}

/// The calling thread is about to ask rtnetlink.
///
/// # Errors
/// [`Hangs`].
pub fn rtnl() -> io::Result<Reading> {
    begin(|_| Target::Rtnl)
}

/// Whether the calling thread was left behind: what it has to say is too late to be told as something new.
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

/// Tells of every single read of a file of a process.
#[derive(Debug)]
pub struct Watched<R> {
    /// The file.
    pub inner: R,
    /// Whose it is; `None` is nobody's.
    pub pid: Option<u32>,
    /// Its path below the process's directory.
    pub name: &'static str,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let _reading = self.pid.map(|pid| file(pid, Path::new(self.name))).transpose()?;
        self.inner.read(buffer)
    }
}

/// Does blocking work on a thread of its own that may be left behind.
///
/// # Errors
/// What it hangs at: the work goes on without us, and nobody hears what comes of it.
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

/// The same for a caller that is a thread of its own and waits here.
///
/// # Errors
/// As [`unblocked`]; no thread can be made.
pub fn apart<T: Send + 'static>(
    readings: &Readings,
    source: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Result<T, Target>> {
    let slot = readings.slot(source, source);
    let own = Arc::clone(&slot);
    let (done, doing) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name("ipwatch-apart".to_owned());
    // Nobody hears of it: the caller has gone on.
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

/// The mount that a path lies on, by its name alone: the path is not touched. Empty: the node's root, of which too
/// much would be left out.
fn mount_of(path: &Path) -> PathBuf {
    // A file of the kernel's own that waits for no file system.
    let mounts = Path::new("/proc/self/mountinfo");
    let text = crate::bounded::read_text(mounts, MOUNTS).unwrap_or_default();
    let points = text.lines().filter_map(|line| line.split(' ').nth(4)).map(Path::new);
    let above = points.filter(|point| path.starts_with(point) && *point != Path::new("/"));
    above.max_by_key(|point| point.as_os_str().len()).map(ToOwned::to_owned).unwrap_or_default()
}

#[cfg(test)]
mod tests;
