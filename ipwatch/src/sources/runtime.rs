//! Container runtimes and their sandboxes and containers: CRI over gRPC (containerd, CRI-O) and the Docker Engine API,
//! several at once, each over its Unix socket.
//!
//! - `find`: which sockets exist, and which of the two APIs one speaks.
//! - `watch`: the life of one socket: connect, list, follow, and retry after a failure.
//! - `names`: the source name of each runtime.
//! - `running`: which runtimes run on the node, asked or not.
//! - `known`: details of sandboxes that are requested only once.
//! - `reporter`: turns answers into facts.
//! - [`cri`], [`docker`]: the two APIs, with only the fields that are needed.
//!
//! Every fact of a runtime has [`Origin::Runtime`](crate::fact::Origin), including the status of the sources: this
//! distinguishes a runtime that has never answered from any other source. Nothing in a runtime is changed, and no event
//! is taken away from its other clients.

mod cri;
mod docker;
mod error;
mod find;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod known;
mod names;
mod reporter;
mod running;
#[cfg(test)]
mod testing;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::names::Names;
use crate::reading::Readings;
use crate::sources::{Emit, First, Unheard};

/// Which runtimes are asked, and how.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Their sockets. `None`: those in the usual places, as they appear. Empty: no runtime is asked.
    pub sockets: Option<Vec<Socket>>,
    /// Whether to follow the runtimes' events. Without that, the lists are only requested again.
    pub follow: bool,
    /// A runtime that listens below one of these paths is ignored.
    pub ignore: Vec<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Socket {
    pub path: PathBuf,
    /// The API that it speaks; detected if absent.
    pub kind: Option<Kind>,
}

/// The API of a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Kubernetes' Container Runtime Interface.
    Cri,
    /// The Docker Engine API.
    Docker,
}

/// Timeouts of each step, and the pauses between.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// To connect and to learn the name; also for the details of one sandbox.
    short: Duration,
    /// For a list; also for the details of all new sandboxes in one round.
    list: Duration,
    /// For the first answer; after that the first judgement is made without it.
    first: Duration,
    /// Between two lists if there is no event stream.
    poll: Duration,
    /// Between two lists if there is an event stream.
    slow: Duration,
    /// From an event to the list that it causes, because several come together.
    settle: Duration,
    /// From an event to a second list, because a runtime reports an end some time before it has recorded it.
    after: Duration,
    /// Minimum time between the starts of two lists.
    apart: Duration,
    /// First and longest pause after a failure, or before a missing socket is checked again.
    retry: (Duration, Duration),
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            short: Duration::from_secs(2),
            list: Duration::from_secs(5),
            first: Duration::from_secs(1),
            poll: Duration::from_secs(5),
            slow: Duration::from_secs(60),
            settle: Duration::from_millis(100),
            after: Duration::from_millis(1500),
            apart: Duration::from_millis(250),
            retry: (Duration::from_secs(1), Duration::from_secs(30)),
        }
    }
}

/// Starts the source. Must be called within the tokio runtime.
#[must_use]
pub fn start(settings: Settings, emit: Emit, readings: Readings) -> (Runtimes, First) {
    let (ignore, told) = (settings.ignore.clone(), emit.clone());
    let (runtimes, first, begun) = begin_all(settings, Pace::default(), emit, readings.clone());
    let Begun { seated, unheard } = begun;
    let names = Arc::clone(&runtimes.0);
    tokio::spawn(async move {
        // Only then is it known which sockets are asked. It does not fail.
        let _ = seated.await;
        running::run(names, ignore, told, readings, unheard).await;
    });
    (runtimes, first)
}

#[cfg(test)]
fn begin(settings: Settings, pace: Pace, emit: Emit) -> (Runtimes, First) {
    let (runtimes, first, _) = begin_all(settings, pace, emit, Readings::default());
    (runtimes, first)
}

struct Begun {
    /// Finished when every socket that exists has its seat.
    seated: tokio::task::JoinHandle<()>,
    unheard: Unheard,
}

fn begin_all(
    settings: Settings,
    pace: Pace,
    emit: Emit,
    readings: Readings,
) -> (Runtimes, First, Begun) {
    let names = Arc::new(Names::default());
    let (unheard, first) = First::new(pace.first);
    let follow = settings.follow;
    let parts = watch::Parts { names: Arc::clone(&names), pace, follow, emit, readings };
    let seated = tokio::spawn(find::run(settings.sockets, parts, unheard.clone()));
    (Runtimes(names), first, Begun { seated, unheard })
}

/// The runtimes that are asked. Clones share their state.
#[derive(Debug, Clone)]
pub struct Runtimes(Arc<Names>);

impl Runtimes {
    /// Requests everything again from the runtime with this source name, soon. Several calls are merged. An unknown
    /// name is ignored, and so is a runtime that is down, which is asked anyway once it answers.
    pub fn ask(&self, runtime: &str) {
        self.0.ask(runtime);
    }
}

impl Serialize for Socket {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let Some(kind) = self.kind else { return self.path.serialize(serializer) };
        let mut written = serializer.serialize_struct("Socket", 2)?;
        written.serialize_field("path", &self.path)?;
        written.serialize_field("kind", &kind)?;
        written.end()
    }
}

impl<'de> Deserialize<'de> for Socket {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Written {
            path: String,
            kind: Option<Kind>,
        }
        struct Either;
        impl<'de> serde::de::Visitor<'de> for Either {
            type Value = Written;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a path, or { path = \"…\", kind = \"cri\" or \"docker\" }")
            }
            fn visit_str<E>(self, path: &str) -> Result<Written, E> {
                Ok(Written { path: path.to_owned(), kind: None })
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<Written, A::Error> {
                Written::deserialize(serde::de::value::MapAccessDeserializer::new(map))
            }
        }
        let Written { path, kind } = deserializer.deserialize_any(Either)?;
        // Accepts the form that kubelet and crictl use.
        let path = PathBuf::from(path.strip_prefix("unix://").unwrap_or(&path));
        if !path.is_absolute() {
            let error = format!("{path:?} is no socket's path: it must begin with /");
            return Err(serde::de::Error::custom(error));
        }
        Ok(Self { path, kind })
    }
}

#[cfg(test)]
mod tests;
