//! Findings as OTLP traces over gRPC.
//!
//! This drives the collector's own protocol (`TraceServiceClient`), not the SDK's batch processor:
//! that one drops what does not fit without a word, hides which spans a collector rejected, and blocks a
//! current-thread runtime when it is shut down. Here one task sends batches in order, waits longer
//! and longer while the collector is down, and every change ends up in one counter.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use tokio::task::JoinHandle;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};

use super::call::{self, Run};
pub use super::queue::Counters;
use super::queue::{Batch, Queue};
use super::{Node, span};
use crate::finding::Change;

/// How many changes or runs one request carries.
const BATCH: usize = 32;
/// First and longest wait after a failure.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// How long the end may take.
const SHUTDOWN: Duration = Duration::from_secs(2);

/// Which collector, and how.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// `http://host:4317` or `unix:///path`.
    pub endpoint: String,
    /// How long one request may take.
    pub timeout: Duration,
    /// Sent with each request, for example a token.
    pub headers: Vec<(String, String)>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Header values are secrets more often than not.
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Settings")
            .field("endpoint", &self.endpoint)
            .field("timeout", &self.timeout)
            .field("headers", &names)
            .finish()
    }
}

/// Why these settings cannot work.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// It is no address of a collector.
    #[error(
        "OTLP endpoint {endpoint:?}: {why}; write it as http://HOST:4317 (OTLP over gRPC) or \
         unix:///PATH"
    )]
    Endpoint {
        /// What was written.
        endpoint: String,
        /// What is wrong with it.
        why: String,
    },
    /// A header that gRPC cannot carry. Its value is not shown.
    #[error("OTLP header {name:?}: {why}")]
    Header {
        /// Its name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
}

/// The sink.
#[derive(Debug)]
pub struct Otlp {
    queue: Arc<Queue>,
    task: JoinHandle<()>,
}

impl Otlp {
    /// Starts the task that sends. It connects when there is something to send. To be called within
    /// the runtime.
    ///
    /// # Errors
    /// The settings cannot work.
    pub fn start(settings: Settings, node: &Node) -> Result<Self, OtlpError> {
        let exporter = Exporter {
            client: TraceServiceClient::new(channel(&settings)?),
            headers: headers(&settings.headers)?,
            timeout: settings.timeout,
            endpoint: settings.endpoint,
            node: node.clone(),
            queue: Arc::default(),
        };
        let queue = Arc::clone(&exporter.queue);
        Ok(Self { queue, task: tokio::spawn(exporter.run()) })
    }

    /// Puts a change into the queue. Never waits; drops the oldest one when there is no room.
    pub fn publish(&self, change: &Change) {
        self.queue.push(change.clone());
    }

    /// Where runs of plugins are put, from any task.
    #[must_use]
    pub fn calls(&self) -> Calls {
        Calls(Arc::clone(&self.queue))
    }

    /// What became of the changes so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.queue.counters()
    }

    /// Why nothing gets through, when nothing does.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.queue.trouble()
    }

    /// Sends what waits, for two seconds at most. What is left then is counted as dropped.
    pub async fn shutdown(mut self) -> Counters {
        self.queue.end();
        if tokio::time::timeout(SHUTDOWN, &mut self.task).await.is_err() {
            self.task.abort();
        }
        self.queue.abandon();
        let counters = self.queue.counters();
        if counters.dropped > 0 {
            tracing::warn!(
                "{} changes of findings reached the OTLP collector, {} did not",
                counters.exported,
                counters.dropped
            );
        }
        if counters.calls_dropped > 0 {
            tracing::warn!(
                "{} runs of CNI plugins reached the OTLP collector, {} did not",
                counters.calls_exported,
                counters.calls_dropped
            );
        }
        counters
    }
}

/// The way in for runs of plugins.
#[derive(Debug, Clone)]
pub struct Calls(Arc<Queue>);

impl Calls {
    /// Puts a run into the queue. Never waits; drops the oldest one when there is no room.
    pub fn publish(&self, run: Run) {
        self.0.push_call(run);
    }
}

fn channel(settings: &Settings) -> Result<Channel, OtlpError> {
    let wrong = |why: String| OtlpError::Endpoint { endpoint: settings.endpoint.clone(), why };
    let (scheme, rest) =
        settings.endpoint.split_once("://").ok_or_else(|| wrong("it has no scheme".to_owned()))?;
    match scheme {
        "http" if rest.is_empty() || rest.starts_with('/') => {
            return Err(wrong("it names no host".to_owned()));
        }
        "http" | "unix" => {}
        "https" => {
            return Err(wrong(
                "TLS is not built in: send to a collector on this node, which can".to_owned(),
            ));
        }
        _ => return Err(wrong(format!("unknown scheme {scheme:?}"))),
    }
    let endpoint = Endpoint::from_shared(settings.endpoint.clone())
        .and_then(|endpoint| endpoint.user_agent(concat!("ipwatch/", env!("CARGO_PKG_VERSION"))))
        .map_err(|error| wrong(chain(&error)))?;
    Ok(endpoint.connect_timeout(settings.timeout).timeout(settings.timeout).connect_lazy())
}

fn headers(headers: &[(String, String)]) -> Result<MetadataMap, OtlpError> {
    let mut map = MetadataMap::new();
    for (name, value) in headers {
        let wrong = |why: &str| OtlpError::Header { name: name.clone(), why: why.to_owned() };
        let key: AsciiMetadataKey =
            name.to_ascii_lowercase().parse().map_err(|_| wrong("not a valid name"))?;
        let mut value: AsciiMetadataValue = Some(value)
            .filter(|value| value.is_ascii())
            .and_then(|value| value.parse().ok())
            .ok_or_else(|| wrong("its value is not printable ASCII"))?;
        value.set_sensitive(true);
        map.insert(key, value);
    }
    Ok(map)
}

/// Why a batch was not taken.
enum Refusal {
    /// The collector is not there, or overloaded: the same batch may be taken later.
    Later(String),
    /// It will never take it.
    Never(String),
}

struct Exporter {
    client: TraceServiceClient<Channel>,
    headers: MetadataMap,
    timeout: Duration,
    endpoint: String,
    node: Node,
    queue: Arc<Queue>,
}

impl Exporter {
    async fn run(mut self) {
        loop {
            let batch = self.queue.take(BATCH);
            if batch.len() > 0 {
                self.deliver(&batch).await;
            } else if self.queue.is_ending() {
                return;
            } else {
                self.queue.news.notified().await;
            }
        }
    }

    /// Sends one batch, as often as it takes. At the end of the daemon a failure is final.
    async fn deliver(&mut self, batch: &Batch) {
        let count = batch.len() as u64;
        let mut wait = BACKOFF.0;
        loop {
            match self.send(batch).await {
                Ok(rejected) => {
                    let rejected = rejected.min(count);
                    self.queue.settle(count - rejected, rejected);
                    if self.queue.works() {
                        tracing::info!(
                            "the OTLP collector at {} takes findings again",
                            self.endpoint
                        );
                    }
                    return;
                }
                Err(Refusal::Never(why)) => {
                    self.queue.settle(0, count);
                    self.report(&why, "dropped");
                    return;
                }
                Err(Refusal::Later(why)) => {
                    self.report(&why, "kept and sent again");
                    if self.queue.is_ending() {
                        self.queue.settle(0, count);
                        return;
                    }
                }
            }
            self.pause(wait).await;
            wait = (wait * 2).min(BACKOFF.1);
        }
    }

    /// One attempt. How many spans the collector rejected although it took the request.
    async fn send(&mut self, batch: &Batch) -> Result<u64, Refusal> {
        let resource_spans = match batch {
            Batch::Changes(changes) => span::request(changes, &self.node),
            Batch::Calls(runs) => {
                span::from_node(runs.iter().map(call::span).collect(), &self.node)
            }
        };
        let mut request = Request::new(ExportTraceServiceRequest { resource_spans });
        *request.metadata_mut() = self.headers.clone();
        // The channel's own timeout covers neither a connection that is being made nor its queue.
        let answer = tokio::time::timeout(self.timeout, self.client.export(request)).await;
        let answer = match answer {
            Ok(Ok(answer)) => answer.into_inner(),
            Ok(Err(status)) => return Err(refusal(&status)),
            Err(_) => return Err(Refusal::Later(format!("no answer within {:?}", self.timeout))),
        };
        let rejected = answer.partial_success.filter(|partial| partial.rejected_spans > 0);
        Ok(rejected.map_or(0, |partial| {
            tracing::warn!(
                "the OTLP collector at {} rejected {} spans: {}",
                self.endpoint,
                partial.rejected_spans,
                crate::escape::escape(&partial.error_message)
            );
            partial.rejected_spans.unsigned_abs()
        }))
    }

    /// One line when it begins to fail, not one for each attempt.
    fn report(&self, why: &str, fate: &str) {
        if self.queue.failed(why) {
            tracing::warn!(
                "the OTLP collector at {} takes no findings: {}; they are {fate}",
                self.endpoint,
                crate::escape::escape(why)
            );
        }
    }

    /// Waits, but not beyond the end of the daemon.
    async fn pause(&self, wait: Duration) {
        let ending = async {
            while !self.queue.is_ending() {
                self.queue.news.notified().await;
            }
        };
        // Either outcome means the same: try again.
        let _ = tokio::time::timeout(wait, ending).await;
    }
}

/// As the OTLP specification sorts the codes (§ "Failures"), with one exception: a code that says
/// nothing (a broken connection, a proxy between) is worth another attempt.
fn refusal(status: &tonic::Status) -> Refusal {
    let why = match std::error::Error::source(status) {
        Some(source) => format!("{:?}: {}", status.code(), chain(source)),
        None => format!("{:?}: {}", status.code(), status.message()),
    };
    match status.code() {
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::Unimplemented
        | Code::Unauthenticated => Refusal::Never(why),
        _ => Refusal::Later(why),
    }
}

/// An error with its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |line, cause| format!("{line}: {cause}"))
}

#[cfg(test)]
mod tests;
