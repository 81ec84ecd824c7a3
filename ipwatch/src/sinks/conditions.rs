//! Conditions of the cluster's Node object about this node's pod IPs: `PodIPExhausted`, `PodIPHeld` and
//! `PodIPConflict`.
//!
//! There is no queue: what each condition should say is computed from the firing findings, and compared with what the
//! Node says, which every answer of the API server shows. A condition is `Unknown` once a source that it rests on has
//! not answered for a minute, and never `False` because of a silence. A daemon that ends leaves the conditions as they
//! are; `lastHeartbeatTime` says when somebody last looked.
//!
//! - `state`, pure: what a condition should say.
//! - `keeper`: the task that patches the Node.

mod keeper;
mod state;
#[cfg(test)]
pub(in crate::sinks) mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::keeper::Keeper;
pub use self::state::Sight;
use self::state::{Grounds, Kind, Note, State, Value};
pub use super::events::Counters;
use super::queue::Count;
use super::server::label;
use crate::escape::escape;
use crate::fact::SourceStatus;
use crate::finding::{Code, Finding};
use crate::sources::kubernetes::Credentials;

/// Name of the sink, for metrics and `doctor`.
pub const NAME: &str = "kubernetes_node_conditions";
/// Maximum number of firing findings that are kept of one condition.
const MOST: usize = 256;
/// Time limit of the shutdown.
const SHUTDOWN: Duration = Duration::from_secs(2);
/// Longest name of a node.
const LONGEST_NAME: usize = 253;

/// Intervals and limits.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// Timeout of connecting, and of one answer.
    answer: Duration,
    /// Least time between two patches: with a new status, and with another text alone.
    between: (Duration, Duration),
    /// Interval of patches without any news, as kubelet's own (`nodeStatusReportFrequency`).
    heartbeat: Duration,
    /// For how long a code may be unjudged before a condition is `Unknown`.
    blind: Duration,
    /// First and longest pause after a failure, jittered by half.
    retry: (Duration, Duration),
    /// The same after a refusal, which only a person changes.
    refused: (Duration, Duration),
}

impl Default for Pace {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self {
            answer: s(30),
            between: (s(5), s(30)),
            heartbeat: s(300),
            blind: s(60),
            retry: (s(1), s(60)),
            refused: (s(10), s(300)),
        }
    }
}

/// The sink.
#[derive(Debug)]
pub struct Conditions {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

/// The node's name cannot be that of a Node.
#[derive(Debug, thiserror::Error)]
#[error("{} is no name of a Node: set kubernetes.node to its name in the cluster", escape(.0))]
pub struct NoNode(String);

impl Conditions {
    /// Starts the task that patches the Node with these credentials. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// `node`, the name of this node in the cluster, is none.
    pub(crate) fn start(door: Credentials, node: String) -> Result<Self, NoNode> {
        Self::at_pace(door, node, Pace::default())
    }

    fn at_pace(door: Credentials, node: String, pace: Pace) -> Result<Self, NoNode> {
        if label(&node, LONGEST_NAME).is_none() {
            return Err(NoNode(node));
        }
        let shared = Arc::new(Shared { inner: Mutex::new(Inner::new(pace)), news: Notify::new() });
        let task = tokio::spawn(Keeper::new(door, &node, pace, Arc::clone(&shared)).run());
        Ok(Self { shared, task })
    }

    /// Takes the current state of a finding. Never blocks.
    pub fn publish(&self, finding: &Finding) {
        self.shared.change(|inner| inner.publish(finding));
    }

    /// Takes what can be judged now. Called after each step: cheap if nothing has changed.
    pub fn judge(&self, sight: impl Fn(Code) -> Sight) {
        self.shared.change(|inner| inner.judge(sight));
    }

    /// Conditions written and waiting, and failed attempts. One that is superseded before it is written is not counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.lock().counters()
    }

    /// Status and a description for people.
    #[must_use]
    pub fn standing(&self) -> (SourceStatus, String) {
        let inner = self.shared.lock();
        let Count { exported, waiting, .. } = inner.counters().count;
        let says = |kind: Kind| {
            let value = inner.told(kind).map_or("not told yet", |state| state.value.as_str());
            format!("{} {value}", kind.name())
        };
        let says = Kind::ALL.map(says).join(", ");
        let line = format!("{says}; {exported} told, {waiting} waiting");
        match &inner.trouble {
            None => (SourceStatus::Active, line),
            Some(why) => {
                (SourceStatus::Degraded, format!("{line}; it takes none: {}", escape(why)))
            }
        }
    }

    /// Writes what waits, for two seconds at most.
    pub async fn shutdown(mut self) -> Counters {
        self.shared.change(|inner| {
            inner.ending = true;
            true
        });
        if tokio::time::timeout(SHUTDOWN, &mut self.task).await.is_err() {
            self.task.abort();
        }
        let Counters { mut count, failures } = self.counters();
        (count.dropped, count.waiting) = (count.waiting, 0);
        Counters { count, failures }
    }
}

/// The state shared by the core and the task.
#[derive(Debug)]
struct Shared {
    inner: Mutex<Inner>,
    /// Notified when there may be something to write, and on shutdown.
    news: Notify,
}

#[derive(Debug)]
struct Inner {
    pace: Pace,
    /// Firing findings that make a condition true, by id.
    firing: BTreeMap<String, Note>,
    sight: BTreeMap<Code, Sight>,
    kept: [Kept; Kind::ALL.len()],
    /// The Node's conditions have been read.
    is_read: bool,
    /// When the Node was last patched.
    patched: Option<Instant>,
    /// When it is patched without any news.
    heartbeat: Instant,
    exported: u64,
    failures: u64,
    trouble: Option<String>,
    ending: bool,
}

/// One condition.
#[derive(Debug, Default)]
struct Kept {
    /// What the Node says, by the last answer.
    told: Option<State>,
    /// A finding that makes it true has fired in this run.
    was_seen: bool,
    /// Since when a code that it rests on has not been judged.
    blind: Option<Instant>,
}

/// What the task does next.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Reads the Node's conditions.
    Read,
    /// Writes these conditions, each with a new status or not.
    Write(Vec<(Kind, State, bool)>),
    /// Waits, until then at most.
    Rest(Option<Instant>),
}

impl Shared {
    /// Changes the state, and wakes the task if that says so.
    fn change(&self, change: impl FnOnce(&mut Inner) -> bool) {
        let is_news = change(&mut self.lock());
        if is_news {
            self.news.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No code under this lock panics half-way through a change.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn new(pace: Pace) -> Self {
        let now = Instant::now();
        Self {
            pace,
            firing: BTreeMap::new(),
            sight: BTreeMap::new(),
            // Before the first word of the engine nothing is judged.
            kept: std::array::from_fn(|_| Kept { blind: Some(now), ..Kept::default() }),
            is_read: false,
            patched: None,
            heartbeat: now,
            exported: 0,
            failures: 0,
            trouble: None,
            ending: false,
        }
    }

    fn publish(&mut self, finding: &Finding) -> bool {
        let Some(note) = Note::of(finding) else {
            return self.firing.remove(&finding.id).is_some();
        };
        self.kept[note.kind() as usize].was_seen = true;
        // Beyond this number the condition is true all the same.
        let same = || self.firing.values().filter(|known| known.kind() == note.kind()).count();
        if !self.firing.contains_key(&finding.id) && same() >= MOST {
            return false;
        }
        let before = self.firing.insert(finding.id.clone(), note.clone());
        before.as_ref() != Some(&note)
    }

    fn judge(&mut self, sight: impl Fn(Code) -> Sight) -> bool {
        let mut is_news = false;
        for code in Kind::ALL.into_iter().flat_map(Kind::codes) {
            let now = sight(*code);
            is_news |= self.sight.insert(*code, now) != Some(now);
        }
        if is_news {
            for kind in Kind::ALL {
                let blind = state::is_blind(kind, &self.sight);
                let since = &mut self.kept[kind as usize].blind;
                *since = if blind { since.or_else(|| Some(Instant::now())) } else { None };
            }
        }
        is_news
    }

    fn told(&self, kind: Kind) -> Option<&State> {
        self.kept[kind as usize].told.as_ref()
    }

    /// What a condition should say. `Err`: it stays as it is, until then if that is known.
    fn wanted(&self, kind: Kind, now: Instant) -> Result<State, Option<Instant>> {
        let kept = &self.kept[kind as usize];
        let over = kept.blind.map(|since| since + self.pace.blind);
        let grounds = Grounds {
            firing: &self.firing,
            sight: &self.sight,
            is_long_blind: over.is_some_and(|over| over <= now),
            was_seen: kept.was_seen,
            told: kept.told.as_ref().map(|state| state.value),
        };
        state::judge(kind, &grounds).ok_or(over.filter(|over| *over > now))
    }

    fn next(&self, now: Instant) -> Next {
        if !self.is_read {
            return Next::Read;
        }
        let (mut all, mut due) = (Vec::new(), Vec::new());
        let (mut has_status, mut has_text) = (false, false);
        for kind in Kind::ALL {
            match self.wanted(kind, now) {
                Ok(state) => {
                    let is_new = self.told(kind).map(|told| told.value) != Some(state.value);
                    has_status |= is_new;
                    has_text |= self.told(kind) != Some(&state);
                    all.push((kind, state, is_new));
                }
                Err(until) => due.extend(until),
            }
        }
        let soonest = |wait: Duration| self.patched.map_or(now, |at| at + wait);
        let at = match (has_status, has_text) {
            _ if all.is_empty() => None,
            (true, _) | (_, true) if self.ending => Some(now),
            (true, _) => Some(soonest(self.pace.between.0)),
            (false, true) => Some(soonest(self.pace.between.1)),
            (false, false) if self.ending => None,
            (false, false) => Some(self.heartbeat),
        };
        if at.is_some_and(|at| at <= now) {
            return Next::Write(all);
        }
        Next::Rest(due.into_iter().chain(at).min())
    }

    /// Takes what the Node says now. Returns whether attempts had failed before.
    fn answered(&mut self, told: [Option<State>; Kind::ALL.len()], heartbeat: Instant) -> bool {
        for (kept, told) in self.kept.iter_mut().zip(told) {
            kept.told = told;
        }
        self.is_read = true;
        self.heartbeat = heartbeat;
        self.trouble.take().is_some()
    }

    /// Records a failed attempt. Returns whether this is the first since the last success.
    fn failed(&mut self, why: String) -> bool {
        self.failures += 1;
        self.trouble.replace(why).is_none()
    }

    fn counters(&self) -> Counters {
        let now = Instant::now();
        let waits = |kind: &Kind| {
            self.wanted(*kind, now).is_ok_and(|state| self.told(*kind) != Some(&state))
        };
        let waiting = Kind::ALL.iter().filter(|kind| waits(kind)).count() as u64;
        let count = Count { exported: self.exported, dropped: 0, waiting };
        Counters { count, failures: self.failures }
    }
}

/// The status of a condition in the API's words.
fn value(text: &str) -> Option<Value> {
    Value::ALL.into_iter().find(|value| value.as_str() == text)
}
