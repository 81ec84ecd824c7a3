//! Threads that do jobs, and the replacement of a thread that hangs.
//!
//! Each kind of job has one thread. If a read of that thread hangs, the thread is left behind: a new thread takes
//! over its jobs, and nobody reads the target at which it hangs ([`crate::reading`]). When the read returns, the old
//! thread hands over those facts that still hold, and ends. A thread that ends with an error is reported and replaced
//! after a pause ([`super::restarts`]).

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::restarts::{Part, Restarts, Troubles, panicked};
use crate::clock;
use crate::fact::{BootNs, Fact, Observation, Origin, Presence};
use crate::reading::{Readings, Slot, Target, Verdict};
use crate::rights::{Rights, Starter};
use crate::sources::Emit;

/// One thread's side of a post: its slot, and the job queue that it shares with its successor.
pub(super) struct Worker<J> {
    slot: Arc<Slot>,
    jobs: Arc<Mutex<Receiver<J>>>,
}

impl<J> Worker<J> {
    /// The next job; `None` if the daemon shuts down or this thread was left behind.
    pub(super) fn next(&self) -> Option<J> {
        if self.slot.is_left() {
            return None;
        }
        // Nobody else holds this lock: a thread that was left behind does not return for a job.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
    }

    /// As [`Worker::next`], but no job if none has come until then.
    pub(super) fn next_before(&self, until: BootNs) -> Option<Option<J>> {
        if self.slot.is_left() {
            return None;
        }
        let patience = Duration::from_nanos(until.since(clock::now()));
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        match jobs.recv_timeout(patience) {
            Ok(job) => Some(Some(job)),
            Err(RecvTimeoutError::Timeout) => Some(None),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Does a job. Also returns the target at which it hung, if this thread was left behind.
    pub(super) fn during<T>(&self, job: impl FnOnce() -> T) -> (T, Option<Target>) {
        self.slot.during(job)
    }
}

/// How a thread ended: `Err` if it cannot go on; `Ok` if it was left behind or the daemon shuts down.
pub(super) type Ended = Result<(), String>;

/// The main function of each thread of a post.
type Begin<J> = dyn Fn(&Worker<J>) -> Ended + Send + Sync;

/// A position that is filled by one thread at a time.
pub(super) struct Post<J> {
    name: &'static str,
    rights: Rights,
    starter: Starter,
    source: &'static str,
    readings: Readings,
    jobs: Arc<Mutex<Receiver<J>>>,
    begin: Arc<Begin<J>>,
    slot: Arc<Slot>,
    /// The thread, and whether it is about to end. `None` if the thread is to be replaced, or the daemon is shutting
    /// down.
    thread: Option<(JoinHandle<Ended>, Arc<AtomicBool>)>,
    began: BootNs,
    /// When the next thread is to be started.
    due: Option<BootNs>,
    restarts: Restarts,
}

impl<J: Send + 'static> Post<J> {
    /// Starts the first thread, which is named after the post, keeps `rights` and works for `restarts.part`. `begin` runs
    /// on each thread.
    pub(super) fn start(
        (name, rights, starter): (&'static str, Rights, &Starter),
        restarts: Restarts,
        readings: &Readings,
        jobs: Receiver<J>,
        begin: impl Fn(&Worker<J>) -> Ended + Send + Sync + 'static,
    ) -> io::Result<Self> {
        // The source to which a hang of this thread is attributed: a post works for one source.
        let source = restarts.part.sources.first().map_or(name, |source| source.as_str());
        let mut post = Self {
            name,
            rights,
            starter: starter.clone(),
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
        let readings = self.readings.clone();
        let over = Arc::new(AtomicBool::new(false));
        let ends = Ends { over: Arc::clone(&over), readings };
        let work = move || {
            let _ends = ends;
            begin(&worker)
        };
        self.thread = Some((self.starter.spawn(self.name, self.rights, work)?, over));
        self.slot = slot;
        Ok(())
    }

    fn replace(&mut self) {
        // Detaches the current thread.
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

/// Tells the watcher, when it is dropped, that a thread ends: normally or by a panic.
struct Ends {
    over: Arc<AtomicBool>,
    readings: Readings,
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        self.readings.wake();
    }
}

/// What changed at a post.
#[derive(Debug)]
pub(super) enum News {
    /// The thread was replaced because it hangs at this target.
    LeftBehind(Target),
    /// The thread was replaced after it had ended, and the new one works.
    Works(Part),
}

/// A post as [`watch`] sees it.
pub(super) trait Watched: Send + Sync {
    /// Replaces a thread that hangs or has ended.
    fn look(&mut self) -> Option<News>;

    /// Time until a look is due; `None` if nothing can change before [`Readings::stirred`].
    fn next_look(&self) -> Option<Duration>;
}

impl<J: Send + 'static> Watched for Post<J> {
    fn look(&mut self) -> Option<News> {
        let now = clock::now();
        // `join` waits only for the thread's last instructions.
        if let Some((thread, _)) = self.thread.take_if(|(_, over)| over.load(Ordering::SeqCst)) {
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
        // If no thread is running, none can hang.
        self.thread.as_ref()?;
        if let Verdict::LeftBehind(target) = self.slot.hangs(now) {
            tracing::warn!(
                "{target} does not answer: the thread that reads it is abandoned until it returns"
            );
            self.replace();
            return Some(News::LeftBehind(target));
        }
        self.restarts.has_settled(self.began).then_some(News::Works(self.restarts.part))
    }

    fn next_look(&self) -> Option<Duration> {
        let now = clock::now();
        let Some((_, over)) = &self.thread else {
            return self.due.map(|due| Duration::from_nanos(due.since(now)));
        };
        if over.load(Ordering::SeqCst) {
            return Some(Duration::ZERO);
        }
        let settles = self.restarts.settles_in(self.began);
        self.slot.next_look(now).into_iter().chain(settles).min()
    }
}

/// Watches the threads until the daemon shuts down; while none of them works, it waits for nothing but
/// [`Readings::stirred`]. `again` is called after a thread was left behind: it requests a snapshot, because that thread's
/// work is lost.
pub(super) async fn watch(
    mut posts: Vec<Box<dyn Watched>>,
    readings: Readings,
    troubles: Troubles,
    out: Emit,
    again: impl Fn(),
) {
    loop {
        wait(&posts, &readings).await;
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

/// Waits until one of the posts must be looked at.
async fn wait(posts: &[Box<dyn Watched>], readings: &Readings) {
    loop {
        let due = || posts.iter().filter_map(|post| post.next_look()).min();
        let mut pause = due();
        if pause.is_none() {
            readings.rest();
            // A job that began before `rest` has stirred nobody.
            pause = due();
        }
        let Some(pause) = pause else {
            readings.stirred().await;
            continue;
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => return,
            () = readings.stirred() => {}
        }
    }
}

/// A fact that has a process looked at because reads of it hang, or have returned; `None` for other targets.
pub(super) fn doubted(target: &Target) -> Option<Fact> {
    let Target::Process { pid, .. } = target else { return None };
    let what = Observation::ProcessDoubted { pid: *pid };
    Some(Fact { at: clock::now(), origin: Origin::Daemon, what })
}

/// Keeps of a look that took long only what still holds: that the task has ended or has released its netns.
/// Everything else is as old as the read that hung.
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
