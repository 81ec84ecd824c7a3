//! What the kubelet says of the pods that it is to run (its pod API, KEP-4188), where the API server is not asked. The
//! two are never asked both, so that they never contradict each other.
//!
//! A watch only says that something has changed, and a list then tells everything: that needs no resuming, and an event
//! that the kubelet dropped, as it does for slow watchers, is made up for by the next list.
//!
//! - `client`: the two calls. `messages`: what is read of their answers.

mod client;
mod error;
#[cfg(test)]
mod fake;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod messages;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use self::client::Client;
use self::error::{Ended, KubeletError};
use super::pods;
use crate::clock;
use crate::fact::{BootNs, Fact, Observation, Origin, Scope, SourceName, SourceStatus};
use crate::sources::backoff::{Pauses, jittered};
use crate::sources::errors::within;
use crate::sources::session::{self, Standing};
use crate::sources::socket::{Paused, Way};
use crate::sources::{Closed, Emit};

/// Name of the source.
pub(super) const SOURCE: &str = SourceName::Kubelet.as_str();
/// Where a kubelet has its socket.
pub(super) const SOCKET: &str = "/var/lib/kubelet/pods-api/pods-api.sock";
/// What is asked for, for people.
const CONNECTION: &str = "a connection";
const LIST: &str = "ListPods";
const WATCH: &str = "WatchPods";
/// Facts that are told at once.
const BATCH: usize = 512;

/// The longest that each step may take, and the pauses between. Pauses are jittered by half.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// For the connection.
    open: Duration,
    list: Duration,
    /// From a change to the list: more may follow.
    settle: Duration,
    /// Between two lists, at the least.
    apart: Duration,
    /// Between two lists while nothing changes: so is noticed that the kubelet hangs, or has dropped an event. That a
    /// pod is not in the first list counts 300 s later, and what was found before a restart is waited for 420 s
    /// (`map::pods`, `detect`): one must begin between.
    whole: Duration,
    /// What went on for so long went well.
    well: Duration,
    /// Between two looks for a socket that is not there.
    absent: Duration,
    /// First and longest pause after a failure.
    retry: (Duration, Duration),
}

impl Default for Pace {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self {
            open: s(10),
            list: s(30),
            settle: Duration::from_millis(300),
            apart: s(3),
            whole: s(60),
            well: s(10),
            // Half of it at the least.
            absent: s(120),
            retry: (s(1), s(60)),
        }
    }
}

/// Follows the kubelet's pods until the daemon goes down.
pub(super) async fn run(way: Way, pace: Pace, emit: Emit) {
    let mut follower = Follower { way, pace, emit, heard: false, standing: Standing::default() };
    if follower.begin().await.is_ok() {
        session::run(follower, pace.retry, pace.well).await;
    }
}

struct Follower {
    way: Way,
    pace: Pace,
    emit: Emit,
    /// It has told of its pods: from then on a kubelet that is silent is missed.
    heard: bool,
    standing: Standing,
}

impl session::Client for Follower {
    type Error = KubeletError;

    /// From the connection to the first failure.
    async fn session(&mut self) -> Result<Infallible, Ended> {
        let open = Client::connect(&self.way);
        let client = within(CONNECTION, self.pace.open, open).await?;
        let (changed, mut changes) = mpsc::channel(1);
        let watch = client.watch(changed);
        tokio::pin!(watch);
        // Not at once: the watch is to begin first, or what changes between the two is missed.
        let (mut due, mut last) = (Instant::now() + self.pace.settle, None);
        loop {
            tokio::select! {
                error = &mut watch => return Err(error.into()),
                Some(()) = changes.recv() => {
                    let soon = Instant::now() + self.pace.settle;
                    let apart = last.map_or(soon, |last: Instant| last + self.pace.apart);
                    due = due.min(soon.max(apart));
                }
                () = tokio::time::sleep_until(due) => {
                    tokio::select! {
                        error = &mut watch => return Err(error.into()),
                        listed = self.list(&client) => listed?,
                    }
                    let now = Instant::now();
                    (due, last) = (now + jittered(self.pace.whole), Some(now));
                }
            }
        }
    }

    async fn failed(&mut self, error: &KubeletError) -> Result<(), Closed> {
        tracing::debug!("{SOURCE}: {error}");
        let (status, text) = match error {
            // It is there, and what was told is as true as before.
            KubeletError::Behind { .. } if self.heard => {
                (SourceStatus::Degraded, format!("the kubelet's pods are listed anew: {error}"))
            }
            _ if error.may_be_without() && !self.heard => {
                let text = "the kubelet's pods are not known, nor is the API server asked";
                (SourceStatus::Disabled, format!("{text}: {error}"))
            }
            _ => (SourceStatus::Down, format!("the kubelet's pods are not known: {error}")),
        };
        self.say(status, text).await
    }

    async fn pause(&mut self, error: &KubeletError, pauses: &mut Pauses) {
        if error.may_be_without() && !self.heard {
            self.way.pause(jittered(self.pace.absent)).await;
        } else if self.way.pause(pauses.after_failure()).await == Paused::Early {
            pauses.begin_anew();
        }
    }
}

impl Follower {
    /// Says that the kubelet is waited for. Where there is no socket, the first try says so.
    async fn begin(&mut self) -> Result<(), Closed> {
        let look = self.way.look(|path| path.try_exists());
        if matches!(tokio::time::timeout(self.pace.open, look).await, Ok(Ok(false))) {
            return Ok(());
        }
        self.say(SourceStatus::Down, "the kubelet's pods are not known yet".to_owned()).await
    }

    /// Every pod.
    async fn list(&mut self, client: &Client) -> Result<(), Ended> {
        let began = clock::now();
        let list = within(LIST, self.pace.list, client.list()).await?;
        let mut dropped = list.more;
        self.tell(began, vec![Observation::Began(Scope::Pods)]).await?;
        for batch in list.pods.chunks(BATCH) {
            let read = batch.iter().map(|bytes| pods::fact(messages::read(bytes)?));
            let read: Vec<Observation> = read.flatten().map(Observation::Pod).collect();
            dropped += batch.len() - read.len();
            self.tell(began, read).await?;
        }
        let ended = Observation::Ended { scope: Scope::Pods, began, complete: dropped == 0 };
        self.tell(clock::now(), vec![ended]).await?;
        self.heard = true;
        let about = format!("the kubelet's pods, {}, v1alpha1", self.way.path().display());
        if dropped == 0 {
            self.say(SourceStatus::Active, about).await?;
        } else {
            let text = format!("{dropped} pods are not understood, or too many; {about}");
            self.say(SourceStatus::Degraded, text).await?;
        }
        Ok(())
    }

    async fn tell(&mut self, at: BootNs, all: Vec<Observation>) -> Result<(), Closed> {
        let fact = |what| Fact { at, origin: Origin::Kubernetes, what };
        self.emit.send(all.into_iter().map(fact).collect()).await
    }

    async fn say(&mut self, status: SourceStatus, detail: String) -> Result<(), Closed> {
        self.standing.tell(&self.emit, Origin::Kubernetes, SOURCE, status, detail).await
    }
}
