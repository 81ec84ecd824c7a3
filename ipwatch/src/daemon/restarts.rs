//! What becomes of a part of a source that has ended: everybody is told, and it is started again after a pause.
//!
//! A part is a task ([`keep`]) or a thread ([`super::workers`]). One that has ended with an error or a panic is started
//! again for as long as the daemon runs. Meanwhile the sources that rest on it are down, or degraded where something
//! else tells the same: what it would have told is unknown. Once it has lasted for a moment everything is read again
//! ([`Observation::Lost`]), as after an overrun, and then it is told no more.
//!
//! It is safe to go on after a panic: what the part had in hand is dropped, and what it shares with others is behind
//! locks of which each holder makes single changes. Builds that ship have `panic = "abort"`: there a panic ends the
//! daemon, and the service manager starts it again.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::{Notify, oneshot};

use super::workers::spawn;
use crate::clock;
use crate::fact::{BootNs, Fact, Observation, Origin, SourceName};
use crate::sources::backoff::Pauses;
use crate::sources::{Closed, Emit};

/// What works for sources until the daemon goes down.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    /// For people: "the netlink listener".
    pub(super) name: &'static str,
    /// The sources that rest on it.
    pub(super) sources: &'static [SourceName],
    /// They can tell nothing without it.
    pub(super) is_vital: bool,
}

/// How parts are started again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// The first and the longest pause. After a part that has lasted for the longest one they begin anew.
    pub(super) again: (Duration, Duration),
    /// One that was started again works if it has lasted for so long: one that ends at once has never worked.
    pub(super) settles: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        let second = Duration::from_secs(1);
        Self { again: (second, 60 * second), settles: second }
    }
}

/// What is to be said of a source because a part of it has ended or hangs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    /// One that rests on it: also a store or a datastore, by its own name.
    pub(super) source: &'static str,
    /// For people who ask now.
    pub(super) text: String,
    /// The same for as long as it lasts, if a part has ended.
    pub(super) ended: Option<String>,
    /// The source can tell nothing.
    pub(super) is_blind: bool,
}

/// The parts that have ended and do not work again yet, as everybody sees them.
#[derive(Debug, Clone, Default)]
pub(super) struct Troubles(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    ended: Mutex<BTreeMap<&'static str, (Part, String)>>,
    changed: Notify,
}

impl Troubles {
    /// For each source that rests on one of them, what is to be said.
    pub(super) fn report(&self) -> Vec<Trouble> {
        let mut sources: BTreeMap<&'static str, (Vec<String>, bool)> = BTreeMap::new();
        for (part, why) in self.ended().values() {
            for source in part.sources {
                let (texts, is_blind) = sources.entry(source.as_str()).or_default();
                texts.push(format!("{} has ended and is started again: {why}", part.name));
                *is_blind |= part.is_vital;
            }
        }
        let trouble = |(source, (texts, is_blind)): (_, (Vec<String>, _))| {
            let text = texts.join("; ");
            Trouble { source, ended: Some(text.clone()), text, is_blind }
        };
        sources.into_iter().map(trouble).collect()
    }

    /// Waits until one more has ended, or works again. Cancel-safe, for one who waits.
    pub(super) async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// Everything is read again, and then this part is told no more.
    pub(super) async fn over(&self, part: &Part, emit: &Emit) -> Result<(), Closed> {
        if self.has(part) {
            // Runs of plugins are told by the probes alone, which keep what was not read.
            let what = Observation::Lost { count: None, calls: false };
            emit.send(vec![Fact { at: clock::now(), origin: Origin::Daemon, what }]).await?;
            self.ended().remove(part.name);
            self.0.changed.notify_one();
        }
        Ok(())
    }

    pub(super) fn has(&self, part: &Part) -> bool {
        self.ended().contains_key(part.name)
    }

    fn put(&self, part: Part, why: String) {
        self.ended().insert(part.name, (part, why));
        self.0.changed.notify_one();
    }

    fn ended(&self) -> MutexGuard<'_, BTreeMap<&'static str, (Part, String)>> {
        // Each change is one call.
        self.0.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The ends of one part.
#[derive(Debug)]
pub(super) struct Restarts {
    pub(super) part: Part,
    pub(super) pace: Pace,
    troubles: Troubles,
    pauses: Pauses,
}

impl Restarts {
    pub(super) fn new(part: Part, pace: Pace, troubles: &Troubles) -> Self {
        Self { part, pace, troubles: troubles.clone(), pauses: Pauses::new(pace.again) }
    }

    /// It has ended, after it was started at `began`: when to start it again.
    pub(super) fn ended(&mut self, began: BootNs, why: String) -> Duration {
        if clock::now().since(began) >= nanos(self.pace.again.1) {
            self.pauses.begin_anew();
        }
        self.troubles.put(self.part, why);
        self.pauses.after_failure()
    }

    /// Whether it has ended and, started at `began`, works again.
    pub(super) fn has_settled(&self, began: BootNs) -> bool {
        self.troubles.has(&self.part) && clock::now().since(began) >= nanos(self.pace.settles)
    }
}

/// Runs a part until the daemon goes down. Each session begins from the start: what queues events is opened anew, or
/// still has them. It returns without an error only when nobody listens any more.
pub(super) async fn keep<E: Display>(
    part: Part,
    troubles: Troubles,
    emit: Emit,
    session: impl AsyncFnMut() -> Result<(), E>,
) {
    keep_at(Pace::default(), part, troubles, emit, session).await;
}

async fn keep_at<E: Display>(
    pace: Pace,
    part: Part,
    troubles: Troubles,
    emit: Emit,
    mut session: impl AsyncFnMut() -> Result<(), E>,
) {
    let mut restarts = Restarts::new(part, pace, &troubles);
    loop {
        let began = clock::now();
        let mut running = pin!(AssertUnwindSafe(session()).catch_unwind());
        let mut ended = None;
        if troubles.has(&part) {
            tokio::select! {
                done = &mut running => ended = Some(done),
                () = tokio::time::sleep(pace.settles) => {
                    if troubles.over(&part, &emit).await.is_err() {
                        return;
                    }
                }
            }
        }
        let ended = match ended {
            Some(ended) => ended,
            None => running.await,
        };
        if emit.is_closed() {
            return;
        }
        let why = match ended {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(panic) => panicked(&*panic),
        };
        tokio::time::sleep(restarts.ended(began, why)).await;
    }
}

/// Work on a thread of its own; a panic of it is an error.
pub(super) async fn on_a_thread<E: Display + Send + 'static>(
    name: &str,
    work: impl FnOnce() -> Result<(), E> + Send + 'static,
) -> Result<(), String> {
    let (done, ended) = oneshot::channel();
    let work = move || {
        let came = std::panic::catch_unwind(AssertUnwindSafe(work));
        let came = came.map(|came| came.map_err(|error| error.to_string()));
        // Nobody waits any more: the daemon is going down.
        let _ = done.send(came.unwrap_or_else(|panic| Err(panicked(&*panic))));
    };
    spawn(name, work).map_err(|error| format!("no thread can be made: {error}"))?;
    ended.await.unwrap_or_else(|_| Err("its thread is gone".to_owned()))
}

/// What a panic said.
pub(super) fn panicked(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    match text.or_else(|| panic.downcast_ref::<&str>().copied()) {
        Some(text) => format!("it panicked: {text}"),
        None => "it panicked".to_owned(),
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
