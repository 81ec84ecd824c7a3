//! Telemetry to an OpenTelemetry collector: traces, logs and metrics, over gRPC or HTTP.
//!
//! One task for each signal sends batches in order, waits longer and longer while the collector is down, and counts
//! every item as exported or dropped. The SDK's batch processors and exporter traits cannot: ARCHITECTURE.md,
//! "Telemetry and the OpenTelemetry SDK", says why.
//!
//! - `config`: `[otlp]` and the `OTEL_*` variables; `route`: the settings that result, checked.
//! - `tls`, `dial`, `http`, `transport`: one request and its answer.
//! - `exporter`: the task that sends.

pub mod config;
mod dial;
mod exporter;
mod http;
mod route;
mod tls;
mod transport;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use self::config::CallChoice;
use self::dial::Ways;
use self::exporter::Exporter;
pub use self::route::{Protocol, Settings, Signal};
use self::transport::Transport;
use super::call::{self, Run};
use super::metrics::Snapshot;
pub use super::queue::{Count, Counters, Kind};
use super::queue::{Item, Queue};
use super::teardown::{self, Teardown};
use super::tenure::{self, Held};
use super::wire::Origin;
use super::{Link, Node, log_record, span};
use crate::escape::escape;
use crate::fact::{SourceName, SourceStatus};
use crate::finding::Change;
use crate::reading::Readings;

/// The sink's name among the sources.
pub(super) const NAME: &str = SourceName::Otlp.as_str();
/// Time limit of the shutdown.
const SHUTDOWN: Duration = Duration::from_secs(2);

/// Why the settings are invalid.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// The endpoint is not a valid address.
    #[error(
        "OTLP endpoint {endpoint:?}: {why}; write it as http://HOST:4317 or https://HOST:4317 (gRPC), \
         http://HOST:4318 with protocol http/protobuf, or unix:///PATH"
    )]
    Endpoint {
        /// The endpoint as written, without a password.
        endpoint: String,
        why: String,
    },
    /// An invalid header. Its value is not shown.
    #[error("OTLP header {name:?}: {why}")]
    Header {
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// A file with certificates or a key that cannot be used.
    #[error(
        "OTLP: {path}: {why}; check it, and ca_file, client_cert_file and client_key_file of [otlp]"
    )]
    File {
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Any other setting, as a whole sentence.
    #[error("OTLP: {0}")]
    Setting(String),
}

/// The sink.
#[derive(Debug)]
pub struct Otlp {
    pipes: Vec<Pipe>,
    calls: CallChoice,
    tenures: bool,
}

/// The exporter of one signal.
#[derive(Debug)]
struct Pipe {
    signal: Signal,
    /// The endpoint, as shown to people.
    url: String,
    queue: Arc<Queue>,
    task: JoinHandle<()>,
}

impl Otlp {
    /// Starts one exporter task for each signal. They connect when there is something to send. Must be called within a
    /// tokio runtime.
    ///
    /// # Errors
    /// The settings are invalid. No task is started then.
    pub fn start(settings: Settings, node: &Node, readings: &Readings) -> Result<Self, OtlpError> {
        let Settings { routes, calls, tenures, .. } = settings;
        let mut ways = Ways::new(readings);
        let transport = |route| Transport::new(route, &mut ways);
        let transports: Result<Vec<_>, _> = routes.into_iter().map(transport).collect();
        let start = |transport: Transport| {
            let queue = Arc::<Queue>::default();
            let route = transport.route();
            let (signal, url) = (route.signal, route.target.url.clone());
            let exporter = Exporter::new(transport, Origin::new(node), Arc::clone(&queue));
            Pipe { signal, url, queue, task: tokio::spawn(exporter.run()) }
        };
        Ok(Self { pipes: transports?.into_iter().map(start).collect(), calls, tenures })
    }

    fn queue(&self, signal: Signal) -> Option<&Arc<Queue>> {
        self.pipes.iter().find(|pipe| pipe.signal == signal).map(|pipe| &pipe.queue)
    }

    fn push(&self, signal: Signal, item: impl FnOnce() -> Item) {
        if let Some(queue) = self.queue(signal) {
            queue.push(item());
        }
    }

    /// Queues a change, with links to the spans it refers to. Never blocks; a full queue drops its oldest item.
    pub fn publish(&self, change: &Change, links: &[Link]) {
        let span = || Item::Span(Kind::Findings, Box::new(span::span(change, links)));
        self.push(Signal::Traces, span);
        self.push(Signal::Logs, || Item::Log(Box::new(log_record::record(change))));
    }

    /// Queues a teardown. Never blocks.
    pub fn teardown(&self, teardown: &Teardown) {
        let span = || Item::Span(Kind::Teardowns, Box::new(teardown::span(teardown)));
        self.push(Signal::Traces, span);
    }

    /// Counts teardowns that were lost before they could be queued.
    pub fn teardowns_lost(&self, count: u64) {
        if let Some(queue) = self.queue(Signal::Traces) {
            queue.lost(Kind::Teardowns, count);
        }
    }

    /// Queues the beginning or the end of a tenure. Never blocks.
    pub fn tenure(&self, held: &Held) {
        self.push(Signal::Traces, || Item::Span(Kind::Tenures, Box::new(tenure::span(held))));
    }

    /// Queues a snapshot of the metrics. Never blocks.
    pub fn measure(&self, snapshot: Snapshot) {
        self.push(Signal::Metrics, || Item::Metrics(Arc::new(snapshot)));
    }

    /// Whether spans are exported at all.
    #[must_use]
    pub fn traces(&self) -> bool {
        self.queue(Signal::Traces).is_some()
    }

    /// Whether metrics are exported.
    #[must_use]
    pub fn metrics(&self) -> bool {
        self.queue(Signal::Metrics).is_some()
    }

    /// Whether all tenures are exported, not only those that a finding links to.
    #[must_use]
    pub fn tenures(&self) -> bool {
        self.traces() && self.tenures
    }

    /// A handle to queue CNI plugin runs from any task; `None` if they are not exported.
    #[must_use]
    pub fn calls(&self) -> Option<Calls> {
        let queue = self.queue(Signal::Traces).filter(|_| self.calls != CallChoice::None)?;
        Some(Calls { queue: Arc::clone(queue), choice: self.calls })
    }

    /// Items exported, dropped and waiting so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let all = self.pipes.iter().map(|pipe| pipe.queue.counters());
        all.fold(Counters::default(), Counters::plus)
    }

    /// Status and a description for people: the counts of each signal, and the last error if it fails.
    #[must_use]
    pub fn standing(&self) -> (SourceStatus, String) {
        let mut status = SourceStatus::Active;
        let of = |pipe: &Pipe| {
            let Count { exported, dropped, waiting } = pipe.queue.counters().total();
            let signal = pipe.signal.as_str();
            let mut line = format!(
                "{signal} to {}: {exported} sent, {dropped} dropped, {waiting} waiting",
                escape(&pipe.url)
            );
            if let Some(why) = pipe.queue.trouble() {
                status = SourceStatus::Degraded;
                line.push_str(&format!("; it accepts none: {}", escape(&why)));
            }
            line
        };
        let lines: Vec<String> = self.pipes.iter().map(of).collect();
        (status, lines.join("; "))
    }

    /// Flushes the queues for two seconds at most. What is left is counted as dropped.
    pub async fn shutdown(mut self) -> Counters {
        self.pipes.iter().for_each(|pipe| pipe.queue.end());
        let tasks =
            futures_util::future::join_all(self.pipes.iter_mut().map(|pipe| &mut pipe.task));
        if tokio::time::timeout(SHUTDOWN, tasks).await.is_err() {
            self.pipes.iter().for_each(|pipe| pipe.task.abort());
        }
        self.pipes.iter().for_each(|pipe| pipe.queue.abandon());
        let counters = self.counters();
        for kind in Kind::ALL {
            let Count { exported, dropped, .. } = counters.of(kind);
            if dropped > 0 {
                let kind = kind.as_str();
                tracing::warn!("{kind}: {exported} reached the OTLP collector, {dropped} did not");
            }
        }
        counters
    }
}

/// A handle to queue CNI plugin runs.
#[derive(Debug, Clone)]
pub struct Calls {
    queue: Arc<Queue>,
    choice: CallChoice,
}

impl Calls {
    /// Whether this run is exported even if no finding links to it.
    #[must_use]
    pub fn wants(&self, run: &Run) -> bool {
        self.choice == CallChoice::All || run.failed()
    }

    /// Queues a run. Never blocks; a full queue drops its oldest item.
    pub fn publish(&self, run: &Run) {
        self.queue.push(Item::Span(Kind::Calls, Box::new(call::span(run))));
    }
}

/// An error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut last = line.clone();
    for cause in std::iter::successors(error.source(), |cause| cause.source()) {
        // Some repeat their cause's words.
        let cause = cause.to_string();
        if cause != last {
            line.push_str(": ");
            line.push_str(&cause);
        }
        last = cause;
    }
    line
}

#[cfg(test)]
mod tests;
