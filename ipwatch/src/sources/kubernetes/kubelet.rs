//! The pods that the kubelet should run, from its pod API (KEP-4188), if the API server is not asked. Never both, so
//! that they cannot contradict each other.
//!
//! A watch only reports that something has changed; a list then provides everything. Therefore a watch need not be
//! resumed, and an event that the kubelet dropped, as it does for slow watchers, is covered by the next list.
//!
//! - `client`: the two calls. `messages`: the fields that are read of their answers.

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
use crate::sources::socket::{Paused, SocketPath};
use crate::sources::{Closed, Emit};

pub(super) const SOURCE: &str = SourceName::Kubelet.as_str();
/// The usual path of the kubelet's socket.
pub(super) const SOCKET: &str = "/var/lib/kubelet/pods-api/pods-api.sock";
/// The steps, in errors.
const CONNECTION: &str = "a connection";
const LIST: &str = "ListPods";
const WATCH: &str = "WatchPods";
/// Maximum number of facts sent at once.
const BATCH: usize = 512;

/// Timeouts of each step, and the pauses between. Pauses are jittered by half.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// For connecting.
    open: Duration,
    list: Duration,
    /// From a change to the list, because more changes may follow.
    settle: Duration,
    /// Minimum time between two lists.
    apart: Duration,
    /// Between two lists while nothing changes, to notice that the kubelet hangs or has dropped an event. By default a
    /// pod that the first list lacks counts as gone 300 s after that list (`map/workload/pods.rs`), and findings from
    /// before a restart are kept for 420 s (`detect/codes.rs`): a list must begin in between.
    whole: Duration,
    /// After this time a session counts as successful.
    well: Duration,
    /// Between two checks for a socket that does not exist.
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
            // At least half of this, with jitter.
            absent: s(120),
            retry: (s(1), s(60)),
        }
    }
}

/// Follows the kubelet's pods until the daemon shuts down.
pub(super) async fn run(way: SocketPath, pace: Pace, emit: Emit) {
    let mut follower = Follower { way, pace, emit, heard: false, standing: Standing::default() };
    if follower.begin().await.is_ok() {
        session::run(follower, pace.retry, pace.well).await;
    }
}

struct Follower {
    way: SocketPath,
    pace: Pace,
    emit: Emit,
    /// Whether it has ever listed its pods: from then on, a kubelet that does not answer is reported as down.
    heard: bool,
    standing: Standing,
}

impl session::Client for Follower {
    type Error = KubeletError;

    /// Runs from the connection to the first failure.
    async fn session(&mut self) -> Result<Infallible, Ended> {
        let open = Client::connect(&self.way);
        let client = within(CONNECTION, self.pace.open, open).await?;
        let (changed, mut changes) = mpsc::channel(1);
        let watch = client.watch(changed);
        tokio::pin!(watch);
        // Not at once: the watch must begin first, or a change between the two would be missed.
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
            // The kubelet works, and what was reported is still valid.
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
    /// Reports that the kubelet is waited for. If there is no socket, the first attempt reports that.
    async fn begin(&mut self) -> Result<(), Closed> {
        let look = self.way.look(|path| path.try_exists());
        if matches!(tokio::time::timeout(self.pace.open, look).await, Ok(Ok(false))) {
            return Ok(());
        }
        self.say(SourceStatus::Down, "the kubelet's pods are not known yet".to_owned()).await
    }

    /// Lists all pods.
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
