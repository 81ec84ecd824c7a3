//! Kubernetes Events about firing findings, on the pod that is affected, as `kubectl describe pod` shows them.
//!
//! Each finding has one Event, whose name is derived from the finding's id. A repetition, by this run or the next,
//! updates this Event and increments its count. There is no queue of Events: the firing findings are kept, each with
//! its newest note and the time at which it is sent next. An API server deletes Events after an hour, so they are
//! repeated for as long as the finding fires. Where the configuration names namespaces, none is sent to another; what is
//! withheld is counted.
//!
//! - `note`: the contents of an Event.
//! - `recorder`: the task that sends Events.

mod note;
mod recorder;
#[cfg(test)]
mod tests;

use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::note::Note;
#[cfg(test)]
pub(super) use self::note::{message, tests::object};
pub(super) use self::note::{reason, seconds};
use self::recorder::Recorder;
pub use super::queue::Count;
use crate::escape::escape;
use crate::fact::SourceStatus;
use crate::finding::{Finding, Status};
use crate::sources::kubernetes::Credentials;

/// Name of the sink, for metrics and `doctor`.
pub const NAME: &str = "kubernetes_events";
/// Maximum number of findings that have an Event at the same time.
const MOST: usize = 512;
/// Time limit of the shutdown.
const SHUTDOWN: Duration = Duration::from_secs(2);

/// Intervals and limits.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// Timeout of connecting, and of one answer.
    answer: Duration,
    /// Interval at which the Event of a finding that still fires is repeated.
    again: Duration,
    /// First and longest pause after a failure, jittered by half.
    retry: (Duration, Duration),
    /// Rate limit as in client-go's recorder: a burst of this many, then one each `each`.
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
    /// Where Events may be written. Empty: everywhere.
    namespaces: BTreeSet<String>,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Events {
    /// Starts the task that sends Events with these credentials. `node`: the name of this node in the cluster.
    /// `namespaces`: where Events may be written; if empty, everywhere. Must be called within a tokio runtime.
    pub(crate) fn start(door: Credentials, node: String, namespaces: &[String]) -> Self {
        Self::at_pace(door, node, namespaces, Pace::default())
    }

    fn at_pace(door: Credentials, node: String, namespaces: &[String], pace: Pace) -> Self {
        let namespaces = namespaces.iter().cloned().collect();
        let shared = Arc::<Shared>::default();
        let task = tokio::spawn(Recorder::new(door, pace, Arc::clone(&shared)).run());
        Self { node, namespaces, shared, task }
    }

    /// Takes the current state of a finding. Never blocks.
    pub fn publish(&self, finding: &Finding) {
        // An acknowledged finding is not repeated.
        if finding.status != Status::Firing || finding.acked.is_some() {
            self.shared.over(&finding.id);
            return;
        }
        let note = Note::of(finding, &self.node);
        if self.namespaces.is_empty() || self.namespaces.contains(note.namespace()) {
            self.shared.firing(&finding.id, note);
        } else {
            self.shared.withheld(&finding.id);
        }
    }

    /// Events sent, dropped and waiting, and failed attempts.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.counters()
    }

    /// Status and a description for people.
    #[must_use]
    pub fn standing(&self) -> (SourceStatus, String) {
        let Counters { count: Count { exported, dropped, waiting }, .. } = self.counters();
        let mut line = format!("{exported} told, {dropped} dropped, {waiting} waiting");
        let inner = self.shared.lock();
        if !self.namespaces.is_empty() {
            let withheld = inner.withheld;
            line.push_str(&format!(
                ", {withheld} withheld: not in a namespace of kubernetes.event_namespaces"
            ));
        }
        match &inner.trouble {
            None => (SourceStatus::Active, line),
            Some(why) => {
                (SourceStatus::Degraded, format!("{line}; it accepts none: {}", escape(why)))
            }
        }
    }

    /// Sends what waits, for two seconds at most. What is left is counted as dropped.
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

/// Counters of this sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Events accepted by the API server, dropped and waiting.
    pub count: Count,
    /// Failed attempts.
    pub failures: u64,
}

/// The state shared by the core and the task.
#[derive(Debug, Default)]
struct Shared {
    inner: Mutex<Inner>,
    /// Notified when there is something to send, and on shutdown.
    news: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    /// Firing findings, by id.
    firing: BTreeMap<String, Series>,
    /// Ids of findings that fire and whose namespace may have no Event; at most [`MOST`].
    elsewhere: BTreeSet<String>,
    told: u64,
    dropped: u64,
    /// Events that were not sent because their namespace may have none.
    withheld: u64,
    failures: u64,
    trouble: Option<String>,
    ending: bool,
    /// Id of the finding whose Event is being sent. Its outcome is counted when it is known, even if the finding has
    /// ended meanwhile.
    telling: Option<String>,
}

/// A finding that fires.
#[derive(Debug)]
struct Series {
    note: Arc<Note>,
    /// When its Event is sent next.
    due: Instant,
    /// How often its Event was sent; 0 if unknown.
    count: u32,
}

/// An Event to send.
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
        inner.elsewhere.remove(id);
        let (now, full) = (Instant::now(), inner.firing.len() == MOST);
        match inner.firing.entry(id.to_owned()) {
            Slot::Occupied(mut known) => {
                let known = known.get_mut();
                if *known.note == note {
                    return;
                }
                // Another pod has another Event.
                if known.note.path() != note.path() {
                    known.count = 0;
                }
                (known.note, known.due) = (Arc::new(note), now);
            }
            Slot::Vacant(_) if full => inner.dropped += 1,
            Slot::Vacant(free) => {
                free.insert(Series { note: Arc::new(note), due: now, count: 0 });
            }
        }
        drop(guard);
        self.news.notify_one();
    }

    fn over(&self, id: &str) {
        let mut inner = self.lock();
        inner.elsewhere.remove(id);
        inner.forget(id);
    }

    /// The namespace of the finding's Event may have none. A finding counts once while it fires, unless more than [`MOST`]
    /// such findings do.
    fn withheld(&self, id: &str) {
        let mut inner = self.lock();
        inner.forget(id);
        if inner.elsewhere.contains(id) {
            return;
        }
        if inner.elsewhere.len() < MOST {
            inner.elsewhere.insert(id.to_owned());
        }
        inner.withheld += 1;
    }

    /// The Event that has been due for longest; else when the next is due, if any.
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

    /// Records that the Event was sent, `count` times by now. Returns whether attempts had failed before.
    fn told(&self, job: &Job, count: u32, again: Instant) -> bool {
        let mut inner = self.lock();
        inner.told += 1;
        inner.settle(job, count, again);
        inner.trouble.take().is_some()
    }

    /// Records that the server refused the Event; it is not tried before `again`. Returns whether this is the first
    /// failure since the last success.
    fn refused(&self, job: &Job, why: String, again: Instant) -> bool {
        let mut inner = self.lock();
        inner.dropped += 1;
        inner.settle(job, job.count, again);
        inner.failed(why)
    }

    /// Records that the Event's namespace does not exist; it is not tried before `again`. The sink is not degraded by
    /// that.
    fn dropped(&self, job: &Job, again: Instant) {
        let mut inner = self.lock();
        inner.dropped += 1;
        inner.settle(job, job.count, again);
    }

    /// Records a failed attempt, which is repeated if the finding still fires. Returns whether this is the first
    /// failure since the last success.
    fn failed(&self, job: &Job, why: String) -> bool {
        let mut inner = self.lock();
        inner.telling = None;
        if !inner.firing.contains_key(&job.id) {
            inner.dropped += 1;
        }
        inner.failed(why)
    }

    /// On shutdown: the outcome of the Event in flight will not be known. If its finding still fires, it already
    /// counts as waiting.
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
        // No code under this lock panics half-way through a change.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Sends no Event about this finding any more. One that waited is dropped.
    fn forget(&mut self, id: &str) {
        let waited = self.firing.remove(id).is_some_and(|told| told.due <= Instant::now());
        if waited && self.telling.as_deref() != Some(id) {
            self.dropped += 1;
        }
    }

    fn failed(&mut self, why: String) -> bool {
        self.failures += 1;
        self.trouble.replace(why).is_none()
    }

    fn settle(&mut self, job: &Job, count: u32, again: Instant) {
        self.telling = None;
        // The finding may have ended, or have changed meanwhile.
        let Some(told) = self.firing.get_mut(&job.id) else { return };
        if told.note.path() == job.note.path() {
            told.count = count;
        }
        if told.note == job.note {
            told.due = again;
        }
    }
}
