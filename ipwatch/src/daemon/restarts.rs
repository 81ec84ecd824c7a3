//! Restarts a part of a source that has ended, after a pause, and reports it meanwhile.
//!
//! A part is a task ([`keep`]) or a thread ([`super::workers`]). After an error or a panic it is restarted for as
//! long as the daemon runs. Until it works again, the sources that rest on it are down, or degraded if something else
//! reports the same: what the part would have reported is unknown. Once it has run for [`Pace::settles`], everything
//! is read again ([`Observation::Lost`]), as after an overrun, and the trouble is cleared.
//!
//! Continuing after a panic is safe: the part's work in hand is dropped, and what it shares with others is behind
//! locks under which each holder makes single changes. Release builds have `panic = "abort"`: there a panic ends the
//! daemon, and the service manager restarts it.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::{Notify, oneshot};

use crate::clock;
use crate::fact::{BootNs, Fact, Observation, Origin, SourceName};
use crate::rights::{Rights, Starter};
use crate::sources::backoff::Pauses;
use crate::sources::{Closed, Emit};

/// A task or thread that works for sources until the daemon shuts down.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    /// For messages: "the netlink listener".
    pub(super) name: &'static str,
    /// The sources that rest on it.
    pub(super) sources: &'static [SourceName],
    /// Without this part its sources report nothing.
    pub(super) is_vital: bool,
}

/// Timing of restarts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// The first and the longest pause. If a part ran for as long as the longest pause, the pauses start over.
    pub(super) again: (Duration, Duration),
    /// How long a restarted part must run before it counts as working: one that ends at once never worked.
    pub(super) settles: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        let second = Duration::from_secs(1);
        Self { again: (second, 60 * second), settles: second }
    }
}

/// What to report about a source of which a part has ended or hangs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    /// The source that is affected; may also be a store or a datastore, by its own name.
    pub(super) source: &'static str,
    /// For people who query now.
    pub(super) text: String,
    /// Like `text`, but constant for as long as the trouble lasts; `None` if no part has ended.
    pub(super) ended: Option<String>,
    /// The source reports nothing.
    pub(super) is_blind: bool,
}

/// The parts that have ended and do not work again yet; shared by all clones.
#[derive(Debug, Clone, Default)]
pub(super) struct Troubles(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    ended: Mutex<BTreeMap<&'static str, (Part, String)>>,
    changed: Notify,
}

impl Troubles {
    /// What to report, for each source that rests on such a part.
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

    /// Waits until another part ends or works again. Cancel-safe, for a single waiter.
    pub(super) async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// Requests that everything is read again, and clears this part's trouble.
    pub(super) async fn over(&self, part: &Part, emit: &Emit) -> Result<(), Closed> {
        if self.has(part) {
            // Only the probes report plugin runs, and their ring buffer keeps what was not read.
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
        // A poisoned lock is fine: each change is one call.
        self.0.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Restart state of one part.
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

    /// The part, started at `began`, has ended: records why and returns the pause before the restart.
    pub(super) fn ended(&mut self, began: BootNs, why: String) -> Duration {
        if clock::now().since(began) >= nanos(self.pace.again.1) {
            self.pauses.begin_anew();
        }
        self.troubles.put(self.part, why);
        self.pauses.after_failure()
    }

    /// Time until [`has_settled`](Self::has_settled) may hold; `None` if the part has not ended.
    pub(super) fn settles_in(&self, began: BootNs) -> Option<Duration> {
        let due = began.plus(nanos(self.pace.settles));
        self.troubles.has(&self.part).then(|| Duration::from_nanos(due.since(clock::now())))
    }

    /// Whether the part had ended and, restarted at `began`, works again.
    pub(super) fn has_settled(&self, began: BootNs) -> bool {
        self.troubles.has(&self.part) && clock::now().since(began) >= nanos(self.pace.settles)
    }
}

/// Runs a part until the daemon shuts down. Each session starts over: what queues events is opened anew, or still has
/// the events. A session must return without an error only when its receiver is closed.
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

/// Runs `work` on a thread of its own; a panic becomes an error.
pub(super) async fn on_a_thread<E: Display + Send + 'static>(
    (name, rights, starter): (&str, Rights, &Starter),
    work: impl FnOnce() -> Result<(), E> + Send + 'static,
) -> Result<(), String> {
    let (done, ended) = oneshot::channel();
    let work = move || {
        let came = std::panic::catch_unwind(AssertUnwindSafe(work));
        let came = came.map(|came| came.map_err(|error| error.to_string()));
        // Nobody waits any more if the daemon is shutting down.
        let _ = done.send(came.unwrap_or_else(|panic| Err(panicked(&*panic))));
    };
    starter.spawn(name, rights, work).map_err(|error| format!("no thread can be made: {error}"))?;
    ended.await.unwrap_or_else(|_| Err("its thread is gone".to_owned()))
}

/// The message of a panic.
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
