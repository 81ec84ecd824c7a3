//! The task that sends Events to the API server, one at a time, with retries and a rate limit.

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use super::note::{Note, seconds};
use super::{Job, Pace, Shared};
use crate::escape::escape;
use crate::sinks::server::{Server, Write, asked_to_wait, is_refused};
use crate::sources::backoff::{Pauses, jittered};
use crate::sources::kubernetes::{ApiError, Credentials};

/// Name of the request, for messages.
const WHAT: &str = "an Event";
/// Maximum size of an answer, in bytes: the Event and its managed fields.
const ANSWER: usize = 64 << 10;

pub(super) struct Recorder {
    pace: Pace,
    shared: Arc<Shared>,
    server: Server,
    bucket: Bucket,
}

/// The part of an existing Event that is read.
#[derive(Deserialize)]
struct There {
    #[serde(default)]
    count: u32,
}

impl Recorder {
    pub(super) fn new(door: Credentials, pace: Pace, shared: Arc<Shared>) -> Self {
        let server = Server::new(door, WHAT, pace.answer);
        Self { pace, shared, server, bucket: Bucket::full(pace.burst, pace.each) }
    }

    /// Runs until shutdown is requested and no Event is due.
    pub(super) async fn run(mut self) {
        let mut pauses = Pauses::new(self.pace.retry);
        loop {
            let job = match self.shared.next() {
                Ok(job) => job,
                Err(_) if self.shared.is_ending() => return,
                Err(due) => {
                    self.rest(due).await;
                    continue;
                }
            };
            tokio::time::sleep(self.bucket.take()).await;
            let error = match self.tell(&job).await {
                Ok(count) => {
                    pauses.begin_anew();
                    if self.shared.told(&job, count, self.again()) {
                        tracing::info!("the API server accepts Events again");
                    }
                    continue;
                }
                Err(error) => error,
            };
            if is_of_no_namespace(&error) {
                // The namespace belongs to another cluster, or was deleted. The server still accepts other Events.
                self.shared.dropped(&job, self.again());
                continue;
            }
            if is_refused(&error) {
                let news = self.shared.refused(&job, error.to_string(), self.again());
                report(&error, news, "dropped");
                continue;
            }
            report(&error, self.shared.failed(&job, error.to_string()), "told later");
            if self.shared.is_ending() {
                return;
            }
            // The next attempt reads the credentials again.
            self.server.leave();
            self.hold(asked_to_wait(&error) + pauses.after_failure()).await;
        }
    }

    /// When the Event is repeated if the finding still fires.
    fn again(&self) -> Instant {
        Instant::now() + jittered(self.pace.again)
    }

    async fn rest(&self, due: Option<Instant>) {
        let news = self.shared.news.notified();
        match due {
            None => news.await,
            // In either case look again.
            Some(due) => {
                let _ = tokio::time::timeout_at(due, news).await;
            }
        }
    }

    /// Waits, or returns early on shutdown.
    async fn hold(&self, wait: Duration) {
        let ending = async {
            while !self.shared.is_ending() {
                self.shared.news.notified().await;
            }
        };
        let _ = tokio::time::timeout(wait, ending).await;
    }

    /// Creates or updates the Event. Returns how often it was sent, including this time.
    async fn tell(&mut self, job: &Job) -> Result<u32, ApiError> {
        let note = &*job.note;
        let now = seconds(&jiff::Timestamp::now().to_string());
        let mut count = job.count;
        if count == 0 {
            match self.create(note, &now, 1).await {
                Err(ApiError::Refused { code: 409, .. }) => {
                    // An earlier run created it. The answer has its count.
                    let there = self.patch(note, note.again(&now, None)).await?;
                    count = there.max(1);
                }
                done => return done,
            }
        }
        count = count.saturating_add(1);
        match self.patch(note, note.again(&now, Some(count))).await {
            // The server deleted it meanwhile.
            Err(ApiError::Refused { code: 404, .. }) => self.create(note, &now, count).await,
            done => done.map(|_| count),
        }
    }

    async fn create(&mut self, note: &Note, now: &str, count: u32) -> Result<u32, ApiError> {
        let object = note.object(now, count);
        self.ask(Method::POST, &note.all(), "application/json", &object).await?;
        Ok(count)
    }

    /// Patches the Event. Returns the count in the answer.
    async fn patch(&mut self, note: &Note, patch: Value) -> Result<u32, ApiError> {
        let kind = "application/merge-patch+json";
        let answer = self.ask(Method::PATCH, &note.path(), kind, &patch).await?;
        let there: There = serde_json::from_slice(&answer).unwrap_or(There { count: 0 });
        Ok(there.count)
    }

    async fn ask(
        &mut self,
        method: Method,
        path: &str,
        kind: &'static str,
        object: &Value,
    ) -> Result<Vec<u8>, ApiError> {
        self.server.write(Write { method, path, kind, object }, ANSWER).await
    }
}

/// Whether the namespace of the Event does not exist.
fn is_of_no_namespace(error: &ApiError) -> bool {
    matches!(error, ApiError::Refused { code: 404, .. })
}

/// Logs the first failure, not each attempt.
fn report(error: &ApiError, news: bool, fate: &str) {
    if news {
        let why = error.to_string();
        tracing::warn!("the API server accepts no Events: {}; they are {fate}", escape(&why));
    }
}

/// Token bucket of the rate limit.
#[derive(Debug)]
struct Bucket {
    each: Duration,
    most: u32,
    /// When the bucket is full again. Each token that is taken postpones this.
    full: Instant,
}

impl Bucket {
    fn full(most: u32, each: Duration) -> Self {
        Self { each, most, full: Instant::now() }
    }

    /// Takes a token. Returns how long to wait before it may be used.
    fn take(&mut self) -> Duration {
        let now = Instant::now();
        self.full = self.full.max(now) + self.each;
        (self.full - now).saturating_sub(self.each * self.most)
    }
}
