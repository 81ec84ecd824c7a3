//! Threads that take jobs, and what becomes of one that hangs.
//!
//! Each kind of job has one thread. One whose read does not come back is left behind: another takes its jobs, and
//! nobody reads what it hangs at ([`crate::reading`]). When it comes back it hands over what it found, as far as that
//! still holds, and ends. One that ends by itself is told and replaced after a pause ([`super::restarts`]).

use std::io;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::restarts::{Part, Restarts, Troubles, panicked};
use crate::clock;
use crate::fact::{BootNs, Fact, Observation, Origin, Presence};
use crate::reading::{LOOK_EVERY, Readings, Slot, Target, Verdict};
use crate::sources::Emit;

/// A thread with a name that `ps -L` shows.
pub(super) fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let thread = std::thread::Builder::new().name(format!("ipwatch-{name}"));
    thread.stack_size(512 * 1024).spawn(work)
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

/// Why a thread is of no use any more. Without an error it ends when it was left behind, or the daemon goes down.
pub(super) type Ended = Result<(), String>;

/// Begins a thread's work.
type Begin<J> = dyn Fn(&Worker<J>) -> Ended + Send + Sync;

/// The place of one thread after another.
pub(super) struct Post<J> {
    name: &'static str,
    source: &'static str,
    readings: Readings,
    jobs: Arc<Mutex<Receiver<J>>>,
    begin: Arc<Begin<J>>,
    slot: Arc<Slot>,
    /// `None`: it is to be replaced, or the daemon is going down.
    thread: Option<JoinHandle<Ended>>,
    began: BootNs,
    /// When another one is to begin.
    due: Option<BootNs>,
    restarts: Restarts,
}

impl<J: Send + 'static> Post<J> {
    /// Starts the first thread, which has the name of its place and works for `part`. `begin` is called on each.
    pub(super) fn start(
        name: &'static str,
        restarts: Restarts,
        readings: &Readings,
        jobs: Receiver<J>,
        begin: impl Fn(&Worker<J>) -> Ended + Send + Sync + 'static,
    ) -> io::Result<Self> {
        // Whom a thread that hangs concerns: a place works for one source.
        let source = restarts.part.sources.first().map_or(name, |source| source.as_str());
        let mut post = Self {
            name,
            source,
            readings: readings.clone(),
            jobs: Arc::new(Mutex::new(jobs)),
            begin: Arc::new(begin),
            slot: readings.slot(source, name),
            thread: None,
            began: BootNs::default(),
            due: None,
            restarts,
        };
        post.hire()?;
        Ok(post)
    }

    fn hire(&mut self) -> io::Result<()> {
        let slot = self.readings.slot(self.source, self.name);
        let worker = Worker { slot: Arc::clone(&slot), jobs: Arc::clone(&self.jobs) };
        let begin = Arc::clone(&self.begin);
        self.began = clock::now();
        self.thread = Some(spawn(self.name, move || begin(&worker))?);
        self.slot = slot;
        Ok(())
    }

    fn replace(&mut self) {
        // Whoever was here is left alone.
        self.thread = None;
        if let Err(error) = self.hire() {
            self.ended(format!("no thread can be made: {error}"));
        }
    }

    fn ended(&mut self, why: String) {
        let pause = self.restarts.ended(self.began, why);
        self.due = Some(clock::now().plus(pause.as_nanos() as u64));
    }
}

/// What there is to do about a place.
#[derive(Debug)]
pub(super) enum News {
    /// Another thread is in the place of one that hangs at this.
    LeftBehind(Target),
    /// Another thread is in the place of one that had ended, and works.
    Works(Part),
}

/// A place that is watched.
pub(super) trait Watched: Send {
    /// Puts another thread in the place of one that hangs, or has ended.
    fn look(&mut self) -> Option<News>;
}

impl<J: Send + 'static> Watched for Post<J> {
    fn look(&mut self) -> Option<News> {
        let now = clock::now();
        if let Some(thread) = self.thread.take_if(|thread| thread.is_finished()) {
            self.slot.ended();
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(why)) => self.ended(why),
                Err(panic) => self.ended(panicked(&*panic)),
            }
        }
        if self.due.take_if(|due| *due <= now).is_some() {
            self.replace();
        }
        // A thread that has ended hangs at nothing, whatever it was at.
        self.thread.as_ref()?;
        if let Verdict::LeftBehind(target) = self.slot.hangs(now) {
            tracing::warn!("{target} does not answer: its reader is left behind");
            self.replace();
            return Some(News::LeftBehind(target));
        }
        self.restarts.has_settled(self.began).then_some(News::Works(self.restarts.part))
    }
}

/// Watches the threads until the daemon goes down. To be called on the main thread, whose netns is the host's: a new
/// thread begins in the netns of the one that makes it (`copy_namespaces`, kernel/nsproxy.c). `again` has read anew
/// what a thread that hangs may have been at.
pub(super) async fn watch(
    mut posts: Vec<Box<dyn Watched>>,
    troubles: Troubles,
    out: Emit,
    again: impl Fn(),
) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        for post in &mut posts {
            let told = match post.look() {
                None => continue,
                Some(News::LeftBehind(target)) => {
                    again();
                    out.send(doubted(&target).into_iter().collect()).await
                }
                Some(News::Works(part)) => troubles.over(&part, &out).await,
            };
            if told.is_err() {
                return;
            }
        }
    }
}

/// That a process is to be looked at, if it is one that does not answer, or does again.
pub(super) fn doubted(target: &Target) -> Option<Fact> {
    let Target::Process { pid, .. } = target else { return None };
    let what = Observation::ProcessDoubted { pid: *pid };
    Some(Fact { at: clock::now(), origin: Origin::Daemon, what })
}

/// What of a look that took long still holds: that the task has gone, or let go of its netns. The rest is as old as
/// the read that hung.
pub(super) fn still_holds(mut facts: Vec<Fact>) -> Vec<Fact> {
    facts.retain(|fact| match &fact.what {
        Observation::Look { look, .. } => {
            matches!(look.netns, Some(Presence::Gone | Presence::Released))
        }
        _ => true,
    });
    facts
}

#[cfg(test)]
mod tests;
