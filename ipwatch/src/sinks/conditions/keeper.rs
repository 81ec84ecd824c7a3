//! The task that patches the conditions of the Node, with retries and at most one patch in some seconds.
//!
//! Its first patch is an empty one: the answer is the Node as it is, so that the right to patch is all that is needed.

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use serde::Deserialize;
use serde_json::{Value as Json, json};
use tokio::time::Instant;

use super::state::{Kind, State};
use super::{Next, Pace, Shared, value};
use crate::escape::escape;
use crate::sinks::events::seconds;
use crate::sinks::server::{Server, Write, asked_to_wait, is_refused};
use crate::sources::backoff::{Pauses, jittered};
use crate::sources::kubernetes::{ApiError, Credentials};

/// Name of the request, for messages.
const WHAT: &str = "the Node's conditions";
/// Maximum size of an answer, in bytes: etcd takes no object of more than 1.5 MiB.
const ANSWER: usize = 2 << 20;

pub(super) struct Keeper {
    path: String,
    pace: Pace,
    shared: Arc<Shared>,
    server: Server,
}

/// The part of a Node that is read.
#[derive(Deserialize)]
struct Node {
    #[serde(default)]
    status: Status,
}

#[derive(Default, Deserialize)]
struct Status {
    #[serde(default)]
    conditions: Vec<Condition>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    name: String,
    status: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    last_transition_time: Option<String>,
}

impl Keeper {
    /// `node` is a valid name.
    pub(super) fn new(door: Credentials, node: &str, pace: Pace, shared: Arc<Shared>) -> Self {
        let server = Server::new(door, WHAT, pace.answer);
        Self { path: format!("/api/v1/nodes/{node}/status"), pace, shared, server }
    }

    /// Runs until shutdown is requested and nothing is to be written.
    pub(super) async fn run(mut self) {
        let (mut retry, mut refused) =
            (Pauses::new(self.pace.retry), Pauses::new(self.pace.refused));
        loop {
            let next = self.shared.lock().next(Instant::now());
            let done = match next {
                Next::Rest(_) if self.shared.lock().ending => return,
                Next::Rest(until) => {
                    self.rest(until).await;
                    continue;
                }
                Next::Read => self.patch(&json!({})).await,
                Next::Write(all) => self.write(&all).await,
            };
            let Err(error) = done else {
                retry.begin_anew();
                refused.begin_anew();
                continue;
            };
            let text = error.to_string();
            if self.shared.lock().failed(text.clone()) {
                let text = escape(&text);
                tracing::warn!("the API server takes no conditions of this node: {text}");
            }
            if self.shared.lock().ending {
                return;
            }
            self.server.leave();
            let pauses = if is_refused(&error) { &mut refused } else { &mut retry };
            self.hold(asked_to_wait(&error) + pauses.after_failure()).await;
        }
    }

    async fn write(&mut self, all: &[(Kind, State, bool)]) -> Result<(), ApiError> {
        let now = seconds(&jiff::Timestamp::now().to_string());
        let conditions: Vec<Json> = all
            .iter()
            .map(|(kind, state, is_new)| condition(*kind, state, *is_new, &now))
            .collect();
        // Conditions are merged by their type, so that kubelet's own stay as they are.
        self.patch(&json!({ "status": { "conditions": conditions } })).await?;
        let mut inner = self.shared.lock();
        inner.exported += all.len() as u64;
        inner.patched = Some(Instant::now());
        Ok(())
    }

    async fn patch(&mut self, object: &Json) -> Result<(), ApiError> {
        let kind = "application/strategic-merge-patch+json";
        let request = Write { method: Method::PATCH, path: &self.path, kind, object };
        let answer = self.server.write(request, ANSWER).await?;
        let told = told(&answer)
            .map_err(|error| ApiError::Garbage { what: WHAT, why: error.to_string() })?;
        let heartbeat = Instant::now() + jittered(self.pace.heartbeat);
        if self.shared.lock().answered(told, heartbeat) {
            tracing::info!("the API server takes conditions of this node again");
        }
        Ok(())
    }

    /// Waits for news, until then at most.
    async fn rest(&self, until: Option<Instant>) {
        let news = self.shared.news.notified();
        match until {
            None => news.await,
            // In either case look again.
            Some(until) => {
                let _ = tokio::time::timeout_at(until, news).await;
            }
        }
    }

    /// Waits, or returns early on shutdown.
    async fn hold(&self, wait: Duration) {
        let ending = async {
            while !self.shared.lock().ending {
                self.shared.news.notified().await;
            }
        };
        let _ = tokio::time::timeout(wait, ending).await;
    }
}

fn condition(kind: Kind, state: &State, is_new: bool, now: &str) -> Json {
    let mut condition = json!({
        "type": kind.name(),
        "status": state.value.as_str(),
        "reason": state.reason,
        "message": state.message,
        "lastHeartbeatTime": now,
    });
    if is_new {
        condition["lastTransitionTime"] = json!(now);
    }
    condition
}

/// What a Node says of each condition.
fn told(answer: &[u8]) -> Result<[Option<State>; Kind::ALL.len()], serde_json::Error> {
    let node: Node = serde_json::from_slice(answer)?;
    Ok(Kind::ALL.map(|kind| {
        let found = node.status.conditions.iter().find(|one| one.name == kind.name())?;
        // One without a date of its transition gets one.
        found.last_transition_time.as_ref()?;
        let (reason, message) = (found.reason.clone(), found.message.clone());
        Some(State { value: value(&found.status)?, reason, message })
    }))
}
