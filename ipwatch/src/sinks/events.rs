//! Events in the cluster: what `kubectl describe pod` shows of a finding that fires, on the pod that it hurts.
//!
//! One Event for each finding, under a name made of its id: told again, by this run or the next, it is the same one,
//! counted up. What waits is no queue but the findings that fire, each with the moment at which it is to be told
//! next: the latest word of each, never two of one. An API server forgets Events after an hour, so they are
//! told again as long as they hold.
//!
//! - `note`: what an Event says.
//! - `recorder`: the task that tells.

mod note;
mod recorder;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::note::Note;
#[cfg(test)]
pub(super) use self::note::message;
use self::recorder::Recorder;
pub use super::queue::Count;
use crate::escape::escape;
use crate::fact::SourceStatus;
use crate::finding::{Finding, Status};
use crate::sources::kubernetes::Credentials;

/// Name of the sink, for metrics and `doctor`.
pub const NAME: &str = "kubernetes_events";
/// Most findings that are told of at one time.
const MOST: usize = 512;
/// How long the end may take.
const SHUTDOWN: Duration = Duration::from_secs(2);

/// How often, and how patiently.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// To open the way, and for one answer.
    answer: Duration,
    /// What still holds is told again after this.
    again: Duration,
    /// First and longest pause after a failure, jittered by half.
    retry: (Duration, Duration),
    /// As client-go's recorder: so many at once, and one more in each of these.
    burst: u32,
    each: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self { answer: s(30), again: s(30 * 60), retry: (s(1), s(60)), burst: 25, each: s(1) }
    }
}

/// The sink.
#[derive(Debug)]
pub struct Events {
    node: String,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Events {
    /// Starts the task that tells, by this way in. `node`: what this node is called in the cluster. To be
    /// called within the runtime of tokio.
    pub(crate) fn start(door: Credentials, node: String) -> Self {
        Self::at_pace(door, node, Pace::default())
    }

    fn at_pace(door: Credentials, node: String, pace: Pace) -> Self {
        let shared = Arc::<Shared>::default();
        let task = tokio::spawn(Recorder::new(door, pace, Arc::clone(&shared)).run());
        Self { node, shared, task }
    }

    /// Takes a finding as it is now. Never waits.
    pub fn publish(&self, finding: &Finding) {
        // One that somebody knows is not repeated.
        if finding.status == Status::Firing && finding.acked.is_none() {
            self.shared.firing(&finding.id, Note::of(finding, &self.node));
        } else {
            self.shared.over(&finding.id);
        }
    }

    /// What became of them, and how many attempts failed.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.counters()
    }

    /// How it stands, for people.
    #[must_use]
    pub fn standing(&self) -> (SourceStatus, String) {
        let Counters { count: Count { exported, dropped, waiting }, .. } = self.counters();
        let line = format!("{exported} told, {dropped} dropped, {waiting} waiting");
        match &self.shared.lock().trouble {
            None => (SourceStatus::Active, line),
            Some(why) => {
                (SourceStatus::Degraded, format!("{line}; it takes none: {}", escape(why)))
            }
        }
    }

    /// Tells what waits, for two seconds at most. What is left then is counted as dropped.
    pub async fn shutdown(mut self) -> Counters {
        self.shared.lock().ending = true;
        self.shared.news.notify_one();
        if tokio::time::timeout(SHUTDOWN, &mut self.task).await.is_err() {
            self.task.abort();
            self.shared.given_up();
        }
        let Counters { mut count, failures } = self.counters();
        if count.waiting > 0 {
            tracing::warn!("{} Events were not told any more", count.waiting);
            (count.dropped, count.waiting) = (count.dropped + count.waiting, 0);
        }
        Counters { count, failures }
    }
}

/// What became of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Of the Events: taken by the API server, dropped, waiting.
    pub count: Count,
    /// Failed attempts.
    pub failures: u64,
}

/// What the core and the task share.
#[derive(Debug, Default)]
struct Shared {
    inner: Mutex<Inner>,
    /// There is something to tell, or the end was asked for.
    news: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    /// By the finding's id.
    firing: BTreeMap<String, Told>,
    told: u64,
    dropped: u64,
    failures: u64,
    trouble: Option<String>,
    ending: bool,
    /// The id of the one that is being told. What becomes of it is counted when that is known, also if it has
    /// ended meanwhile.
    telling: Option<String>,
}

/// A finding that fires.
#[derive(Debug)]
struct Told {
    note: Arc<Note>,
    /// When it is to be told next.
    due: Instant,
    /// How often it was told; 0 where that is not known.
    count: u32,
}

/// One to be told.
#[derive(Debug, Clone)]
struct Job {
    id: String,
    note: Arc<Note>,
    count: u32,
}

impl Shared {
    fn firing(&self, id: &str, note: Note) {
        let mut guard = self.lock();
        let inner = &mut *guard;
        let (now, full) = (Instant::now(), inner.firing.len() == MOST);
        match inner.firing.entry(id.to_owned()) {
            Slot::Occupied(mut known) => {
                let known = known.get_mut();
                if *known.note == note {
                    return;
                }
                // Of another pod it is another Event.
                if known.note.path() != note.path() {
                    known.count = 0;
                }
                (known.note, known.due) = (Arc::new(note), now);
            }
            Slot::Vacant(_) if full => inner.dropped += 1,
            Slot::Vacant(free) => {
                free.insert(Told { note: Arc::new(note), due: now, count: 0 });
            }
        }
        drop(guard);
        self.news.notify_one();
    }

    fn over(&self, id: &str) {
        let mut inner = self.lock();
        let waited = inner.firing.remove(id).is_some_and(|told| told.due <= Instant::now());
        if waited && inner.telling.as_deref() != Some(id) {
            inner.dropped += 1;
        }
    }

    /// The one that waits for longest; else when to look again, if ever.
    fn next(&self) -> Result<Job, Option<Instant>> {
        let mut inner = self.lock();
        let Some((id, told)) = inner.firing.iter().min_by_key(|(_, told)| told.due) else {
            return Err(None);
        };
        if told.due > Instant::now() {
            return Err(Some(told.due));
        }
        let job = Job { id: id.clone(), note: Arc::clone(&told.note), count: told.count };
        inner.telling = Some(job.id.clone());
        Ok(job)
    }

    /// It was told, so often by now. Whether that is news.
    fn told(&self, job: &Job, count: u32, again: Instant) -> bool {
        let mut inner = self.lock();
        inner.told += 1;
        inner.settle(job, count, again);
        inner.trouble.take().is_some()
    }

    /// It is refused for good, or until `again`. Whether that is news.
    fn refused(&self, job: &Job, why: String, again: Instant) -> bool {
        let mut inner = self.lock();
        inner.dropped += 1;
        inner.settle(job, job.count, again);
        inner.failed(why)
    }

    /// There is nowhere to tell it, until `again`: no trouble of the server's.
    fn dropped(&self, job: &Job, again: Instant) {
        let mut inner = self.lock();
        inner.dropped += 1;
        inner.settle(job, job.count, again);
    }

    /// An attempt failed that is made again, if the finding still fires. Whether that is news.
    fn failed(&self, job: &Job, why: String) -> bool {
        let mut inner = self.lock();
        inner.telling = None;
        if !inner.firing.contains_key(&job.id) {
            inner.dropped += 1;
        }
        inner.failed(why)
    }

    /// Nobody waits for the answer any more. What still fires is counted as waiting.
    fn given_up(&self) {
        let mut inner = self.lock();
        if inner.telling.take().is_some_and(|id| !inner.firing.contains_key(&id)) {
            inner.dropped += 1;
        }
    }

    fn is_ending(&self) -> bool {
        self.lock().ending
    }

    fn counters(&self) -> Counters {
        let inner = self.lock();
        let now = Instant::now();
        let waiting = inner.firing.values().filter(|told| told.due <= now).count() as u64;
        let count = Count { exported: inner.told, dropped: inner.dropped, waiting };
        Counters { count, failures: inner.failures }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing under this lock can stop half-way.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn failed(&mut self, why: String) -> bool {
        self.failures += 1;
        self.trouble.replace(why).is_none()
    }

    fn settle(&mut self, job: &Job, count: u32, again: Instant) {
        self.telling = None;
        // It may be over by now, or have become another one.
        let Some(told) = self.firing.get_mut(&job.id) else { return };
        if told.note.path() == job.note.path() {
            told.count = count;
        }
        if told.note == job.note {
            told.due = again;
        }
    }
}
