//! From a request to a response.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::header::{ALLOW, HeaderValue};
use hyper::{Method, StatusCode, Uri};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::api::route::{self, BadTarget, ROUTES, Route};
use crate::api::{Ask, AskError, Event, Request, Stream, Streams};
use crate::contract::{Body, Document, SCHEMA};
use crate::fact::SourceStatus;
use crate::http::{Answer, response, whole};

/// What every connection needs to answer.
#[derive(Clone)]
pub(super) struct Answerer {
    pub(super) requests: mpsc::Sender<Request>,
    pub(super) events: Streams,
    /// Turns true when the server goes down.
    pub(super) closed: watch::Receiver<bool>,
    pub(super) watchers: Arc<Semaphore>,
    pub(super) answer_timeout: Duration,
}

impl Answerer {
    pub(super) async fn answer(&self, method: &Method, uri: &Uri) -> Answer {
        match self.try_answer(method, uri).await {
            Ok(answer) => answer,
            Err(problem) => problem.into_response(),
        }
    }

    async fn try_answer(&self, method: &Method, uri: &Uri) -> Result<Answer, Problem> {
        let allowed = |method: &Method| {
            Problem::new(
                StatusCode::METHOD_NOT_ALLOWED,
                format!("{method} is not answered here"),
                "questions are GET, /v1/ack and /v1/unack are POST",
            )
        };
        if ![Method::GET, Method::POST].contains(method) {
            return Err(allowed(method));
        }
        let route = route::parse(uri.path(), uri.query())?;
        let changes = matches!(&route, Route::Ask(ask) if ask.changes());
        if changes != (method == Method::POST) {
            return Err(allowed(method));
        }
        match route {
            Route::Ask(ask) => json(StatusCode::OK, self.ask(ask).await?).await,
            Route::Health => self.health().await,
            Route::Watch(stream) => self.watch(stream),
        }
    }

    /// Sends a question to the core and waits for its answer.
    async fn ask(&self, ask: Ask) -> Result<Document, Problem> {
        let (reply, answer) = oneshot::channel();
        let asked = async {
            self.requests.send(Request { ask, reply }).await.map_err(|_| Problem::going_down())?;
            answer.await.map_err(|_| Problem::going_down())
        };
        match timeout(self.answer_timeout, asked).await {
            Ok(answer) => Ok(answer??),
            Err(_) => Err(Problem::new(
                StatusCode::GATEWAY_TIMEOUT,
                "the daemon did not answer in time",
                "the node may be overloaded: look at the daemon's log, then try again",
            )),
        }
    }

    /// The daemon answers, and how its sources stand.
    async fn health(&self) -> Result<Answer, Problem> {
        let Document { schema, node, taken_at, sources, body, .. } = self.ask(Ask::Doctor).await?;
        // Which rung each event stands on is for `/v1/doctor`.
        debug_assert!(matches!(body, Body::Probes(_)));
        let whole = sources
            .iter()
            .all(|source| matches!(source.status, SourceStatus::Active | SourceStatus::Disabled));
        let status = if whole { "ok" } else { "degraded" };
        let health = serde_json::json!({
            "schema": schema, "node": node, "taken_at": taken_at, "status": status,
            "sources": sources,
        });
        json(StatusCode::OK, health).await
    }

    /// Events from now on, one JSON document a line, until either side goes.
    fn watch(&self, stream: Stream) -> Result<Answer, Problem> {
        let place = Arc::clone(&self.watchers).try_acquire_owned().map_err(|_| {
            Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many clients follow the daemon already",
                "stop one of the running `ipwatch watch`",
            )
        })?;
        let follower = Follower {
            events: self.events.follow(stream),
            closed: self.closed.clone(),
            _place: place,
        };
        let lines = stream::unfold(follower, |mut follower| async move {
            let line = follower.next_line().await?;
            Some((Ok::<_, Infallible>(Frame::data(line)), follower))
        });
        let body = StreamBody::new(lines).boxed_unsync();
        Ok(response(StatusCode::OK, "application/jsonl", body))
    }
}

/// One reader of the stream of events.
struct Follower {
    events: broadcast::Receiver<Event>,
    closed: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
}

impl Follower {
    async fn next_line(&mut self) -> Option<Bytes> {
        loop {
            let event = tokio::select! {
                biased;
                _ = self.closed.changed() => return None,
                event = self.events.recv() => event,
            };
            let event = match event {
                Ok(event) => event,
                Err(broadcast::error::RecvError::Lagged(dropped)) => Event::Lagged { dropped },
                Err(broadcast::error::RecvError::Closed) => return None,
            };
            match serde_json::to_vec(&event) {
                Ok(mut line) => {
                    line.push(b'\n');
                    return Some(line.into());
                }
                Err(error) => tracing::error!(%error, "an event cannot be written as JSON"),
            }
        }
    }
}

/// A refusal: a status and one line each of what is wrong and what to do.
#[derive(Debug, Clone)]
pub(super) struct Problem {
    status: StatusCode,
    error: String,
    hint: String,
}

impl Problem {
    fn new(status: StatusCode, error: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { status, error: error.into(), hint: hint.into() }
    }

    pub(super) fn forbidden(uid: u32, group: &str) -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            format!("user {uid} may not ask this daemon"),
            format!(
                "ask as root, or as a member of group {group} (`usermod -aG {group} USER`, then log \
                 in again)"
            ),
        )
    }

    pub(super) fn internal(error: &str) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, error, "look at the daemon's log")
    }

    pub(super) fn full() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many clients are connected",
            "try again in a moment; `ss -xp` shows who is connected",
        )
    }

    fn going_down() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the daemon is going down",
            "try again when it has started anew",
        )
    }

    fn body(&self) -> Vec<u8> {
        let body = serde_json::json!({ "schema": SCHEMA, "error": self.error, "hint": self.hint });
        format!("{body}\n").into_bytes()
    }

    pub(super) fn into_response(self) -> Answer {
        let body = whole(self.body());
        let mut response = response(self.status, "application/json", body);
        if self.status == StatusCode::METHOD_NOT_ALLOWED {
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, POST"));
        }
        response
    }
}

impl From<BadTarget> for Problem {
    fn from(bad: BadTarget) -> Self {
        let known = format!("known are {}", ROUTES.join(", "));
        match bad {
            BadTarget::NoRoute(_) => Self::new(StatusCode::NOT_FOUND, bad.to_string(), known),
            BadTarget::Parameter(_) => Self::new(StatusCode::BAD_REQUEST, bad.to_string(), known),
        }
    }
}

impl From<AskError> for Problem {
    fn from(error: AskError) -> Self {
        let text = error.to_string();
        match error {
            AskError::NotFound(_) => {
                Self::new(StatusCode::NOT_FOUND, text, "`ipwatch query ip` lists what there is")
            }
            AskError::Ambiguous(_) => Self::new(StatusCode::CONFLICT, text, "give more of it"),
            AskError::Unavailable(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, text, "try again in a moment")
            }
        }
    }
}

/// A JSON response. Written on a blocking thread: ten thousand addresses take tens of milliseconds,
/// in which events would queue.
async fn json(
    status: StatusCode,
    document: impl Serialize + Send + 'static,
) -> Result<Answer, Problem> {
    let written = tokio::task::spawn_blocking(move || {
        serde_json::to_vec(&document).map(|mut bytes| {
            bytes.push(b'\n');
            bytes
        })
    });
    match written.await {
        Ok(Ok(bytes)) => {
            let body = whole(bytes);
            Ok(response(status, "application/json", body))
        }
        Ok(Err(error)) => {
            Err(Problem::internal(&format!("the answer cannot be written as JSON: {error}")))
        }
        Err(error) => Err(Problem::internal(&format!("the answer was not finished: {error}"))),
    }
}
