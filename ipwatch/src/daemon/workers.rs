//! Threads that take jobs, and what becomes of one that hangs.
//!
//! Each kind of job has one thread. One whose read does not come back is left behind: another takes its jobs, and
//! nobody reads what it hangs at ([`crate::reading`]). When it comes back it hands over what it found, as far as that
//! still holds, and ends.

use std::io;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};

use crate::clock;
use crate::fact::{Fact, Origin, Presence, What};
use crate::reading::{LOOK_EVERY, Readings, Slot, Target, Verdict};
use crate::sources::Emit;

/// A thread with a name that `ps -L` shows.
pub(super) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new()
        .name(format!("ipwatch-{name}"))
        .stack_size(512 * 1024)
        .spawn(work)
        .map(|_| ())
}

/// One thread's part: its place, and the jobs that it shares with whoever takes over.
pub(super) struct Worker<J> {
    slot: Arc<Slot>,
    jobs: Arc<Mutex<Receiver<J>>>,
}

impl<J> Worker<J> {
    /// The next job; `None` when the daemon goes down.
    pub(super) fn next(&self) -> Option<J> {
        if self.slot.is_left() {
            return None;
        }
        // Nobody else waits here: who was left behind does not come back for a job.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
    }

    /// Does a job; what it hung at, if it was left behind.
    pub(super) fn during<T>(&self, job: impl FnOnce() -> T) -> (T, Option<Target>) {
        self.slot.during(job)
    }
}

/// Begins a thread's work.
type Begin<J> = dyn Fn(Worker<J>) + Send + Sync;

/// The place of one thread after another.
pub(super) struct Post<J> {
    name: &'static str,
    source: &'static str,
    readings: Readings,
    jobs: Arc<Mutex<Receiver<J>>>,
    begin: Arc<Begin<J>>,
    slot: Mutex<Arc<Slot>>,
}

impl<J: Send + 'static> Post<J> {
    /// Starts the first thread. `begin` is called on each.
    pub(super) fn start(
        name: &'static str,
        source: &'static str,
        readings: &Readings,
        jobs: Receiver<J>,
        begin: impl Fn(Worker<J>) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let post = Self {
            name,
            source,
            readings: readings.clone(),
            jobs: Arc::new(Mutex::new(jobs)),
            begin: Arc::new(begin),
            slot: Mutex::new(readings.slot(source, name)),
        };
        post.hire()?;
        Ok(post)
    }

    fn hire(&self) -> io::Result<()> {
        let slot = self.readings.slot(self.source, self.name);
        let worker = Worker { slot: Arc::clone(&slot), jobs: Arc::clone(&self.jobs) };
        let begin = Arc::clone(&self.begin);
        spawn(self.name, move || begin(worker))?;
        *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = slot;
        Ok(())
    }
}

/// A place that is watched.
pub(super) trait Watched: Send + Sync {
    /// Puts another thread in the place of one that hangs: what that one hangs at.
    fn look(&self) -> Option<Target>;
}

impl<J: Send + 'static> Watched for Post<J> {
    fn look(&self) -> Option<Target> {
        let slot = Arc::clone(&self.slot.lock().unwrap_or_else(PoisonError::into_inner));
        let Verdict::LeftBehind(target) = slot.hangs(clock::now()) else { return None };
        tracing::warn!("{target} does not answer: its reader is left behind");
        if let Err(error) = self.hire() {
            tracing::error!("no thread can take over from one that hangs: {error}");
        }
        Some(target)
    }
}

/// Watches the threads until the daemon goes down. To be called on the main thread, whose netns is the host's: a new
/// thread begins in the netns of the one that makes it (`copy_namespaces`, kernel/nsproxy.c). `again` has read anew
/// what a thread may have been at.
pub(super) async fn watch(posts: Vec<Box<dyn Watched>>, out: Emit, again: impl Fn()) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        for post in &posts {
            let Some(target) = post.look() else { continue };
            again();
            if out.send(doubted(&target).into_iter().collect()).await.is_err() {
                return;
            }
        }
    }
}

/// That a process is to be looked at, if it is one that does not answer, or does again.
pub(super) fn doubted(target: &Target) -> Option<Fact> {
    let Target::Process { pid, .. } = target else { return None };
    let what = What::ProcessDoubted { pid: *pid };
    Some(Fact { at: clock::now(), origin: Origin::Daemon, what })
}

/// What of a look that took long still holds: that the task has gone, or let go of its netns. The rest is as old as
/// the read that hung.
pub(super) fn still_holds(mut facts: Vec<Fact>) -> Vec<Fact> {
    facts.retain(|fact| match &fact.what {
        What::Look { look, .. } => {
            matches!(look.netns, Some(Presence::Gone | Presence::Released))
        }
        _ => true,
    });
    facts
}
