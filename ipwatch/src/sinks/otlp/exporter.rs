//! The task that sends batches one after the other and retries failed ones.

use std::sync::Arc;
use std::time::Duration;

use super::transport::{Payload, Refusal, Transport};
use crate::escape::escape;
use crate::sinks::queue::{Item, Kind, Queue};
use crate::sinks::wire::Origin;
use crate::sources::backoff::Pauses;
use crate::sources::socket::Paused;

/// Maximum number of items in one request.
const BATCH: usize = 32;
/// First and longest delay before a retry.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

pub(super) struct Exporter {
    transport: Transport,
    origin: Origin,
    queue: Arc<Queue>,
    /// The collector rejected some items of the last batch.
    rejecting: bool,
}

impl Exporter {
    pub(super) fn new(transport: Transport, origin: Origin, queue: Arc<Queue>) -> Self {
        Self { transport, origin, queue, rejecting: false }
    }

    /// Runs until shutdown is requested and the queue is empty.
    pub(super) async fn run(mut self) {
        loop {
            let batch = self.queue.take(BATCH);
            if !batch.is_empty() {
                self.deliver(batch).await;
            } else if self.queue.is_ending() {
                return;
            } else {
                self.queue.news.notified().await;
            }
        }
    }

    /// Sends one batch and retries it until it is accepted or rejected. During shutdown there are no retries.
    async fn deliver(&mut self, batch: Vec<Item>) {
        let count = batch.len() as u64;
        let payload = payload(batch, &self.origin);
        let mut pauses = Pauses::new(BACKOFF);
        loop {
            match self.transport.send(&payload).await {
                Ok(taken) => {
                    let rejected = match payload {
                        // The collector counts data points; we count snapshots.
                        Payload::Metrics(_) => taken.rejected.min(1),
                        _ => taken.rejected.min(count),
                    };
                    self.queue.settle(count - rejected, rejected);
                    self.tell_taken(taken.rejected, &taken.why);
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
            if let Paused::Early = self.pause(pauses.after_failure()).await {
                pauses.begin_anew();
            }
        }
    }

    fn tell_taken(&mut self, rejected: u64, why: &str) {
        let before = std::mem::replace(&mut self.rejecting, rejected > 0);
        let (url, signal) = self.names();
        // Logged once; the counters have the number.
        if rejected > 0 && !before {
            let why = escape(why);
            tracing::warn!("the OTLP collector at {url} rejected {rejected} {signal}: {why}");
        }
        if self.queue.works() {
            tracing::info!("the OTLP collector at {url} accepts {signal} again");
        }
    }

    /// Logs the first failure, not each retry.
    fn report(&self, why: &str, fate: &str) {
        let (url, signal) = self.names();
        if self.queue.failed(why) {
            let why = escape(why);
            tracing::warn!(
                "the OTLP collector at {url} accepts no {signal}: {why}; they are {fate}"
            );
        }
    }

    fn names(&self) -> (std::borrow::Cow<'_, str>, &'static str) {
        let route = self.transport.route();
        (escape(&route.target.url), route.signal.as_str())
    }

    /// Waits, or returns early on shutdown.
    async fn pause(&self, wait: Duration) -> Paused {
        let ending = async {
            while !self.queue.is_ending() {
                self.queue.news.notified().await;
            }
        };
        // Retry in either case.
        tokio::select! {
            () = ending => Paused::Over,
            paused = self.transport.pause(wait) => paused,
        }
    }
}

/// The request for a batch, whose items are all of one kind.
fn payload(batch: Vec<Item>, origin: &Origin) -> Payload {
    let kind = batch.first().map_or(Kind::Findings, Item::kind);
    let (mut spans, mut records, mut snapshots) = (Vec::new(), Vec::new(), Vec::new());
    for item in batch {
        match item {
            Item::Span(_, span) => spans.push(*span),
            Item::Log(record) => records.push(*record),
            Item::Metrics(snapshot) => snapshots.push(snapshot),
        }
    }
    match kind {
        Kind::Metrics => Payload::Metrics(origin.metrics(&snapshots)),
        Kind::Logs => Payload::Logs(origin.logs(records)),
        kind => Payload::Traces(origin.traces(kind, spans)),
    }
}
