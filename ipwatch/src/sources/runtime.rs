//! What container runtimes say of their sandboxes and containers: CRI over gRPC (containerd, CRI-O) and
//! the Docker Engine API, several at once, each over its Unix socket.
//!
//! - `find`: which sockets there are, and which of the two APIs one speaks.
//! - `watch`: the life of one socket: connect, list, follow, and again after it broke.
//! - `names`: what each is called, and who is meant by a name.
//! - `running`: which runtimes run on the node, asked or not.
//! - `known`: what was asked once of each sandbox.
//! - `reporter`: answers become facts.
//! - [`cri`], [`docker`]: the two APIs, with nothing but the fields that are needed.
//!
//! Every fact of a runtime has [`Origin::Runtime`](crate::fact::Origin), the states of the sources too: that is
//! how a runtime that has never answered is told from any other source. Nothing is changed in a
//! runtime, and nothing is taken from others who listen to it.

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

/// How the runtimes are asked.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Their sockets. `None`: those in the usual places, as they appear. Empty: nobody is asked.
    pub sockets: Option<Vec<Socket>>,
    /// Follow the runtimes' events. Whoever looks only once asks again, but subscribes to nothing.
    pub follow: bool,
    /// Runtimes that listen below one of these paths count as nobody's on this node.
    pub ignore: Vec<PathBuf>,
}

/// A runtime's socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Socket {
    pub path: PathBuf,
    /// What it speaks; found out by asking when absent.
    pub kind: Option<Kind>,
}

/// What a runtime speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Kubernetes' Container Runtime Interface.
    Cri,
    /// The Docker Engine API.
    Docker,
}

/// The longest that each step may take, and the pauses between.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// To connect and to learn the name; also for what is asked of one sandbox.
    short: Duration,
    /// For a list; also for all that is asked of single sandboxes in one round.
    list: Duration,
    /// For the first answer, before the first judgement is made without it.
    first: Duration,
    /// Between two lists where there is no event stream.
    poll: Duration,
    /// Between two lists beside an event stream.
    slow: Duration,
    /// From an event to the list that it asks for: several come together.
    settle: Duration,
    /// To a second list: a runtime tells of an end some time before it has noted it down itself.
    after: Duration,
    /// Between the beginnings of two lists, whoever asks.
    apart: Duration,
    /// First and longest pause after a failure, or before a missing socket is looked for again.
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

/// Starts to ask. To be called within the runtime of tokio.
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

/// What has begun.
struct Begun {
    /// Done when every socket that is there has its seat.
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

/// The runtimes that are asked. A clone is the same.
#[derive(Debug, Clone)]
pub struct Runtimes(Arc<Names>);

impl Runtimes {
    /// Has the runtime with this source name asked for everything again, soon. Many calls are one. A
    /// name that nobody has, or a runtime that is down, is passed over: it is asked anyway once
    /// it answers.
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
        // As kubelet and crictl write it.
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
