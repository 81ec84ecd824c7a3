//! Turns a request into a response.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::header::{ALLOW, HeaderValue};
use hyper::{Method, StatusCode, Uri};
use serde::Serialize;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::timeout;

use crate::api::route::{self, BadTarget, ROUTES, Route};
use crate::api::{Ask, AskError, Asking, Follower, Request, Selector, Stream, Streams};
use crate::contract::{Body, Document, SCHEMA};
use crate::fact::SourceStatus;
use crate::http::seats::{NoSeat, Seat, Seats};
use crate::http::{Answer, response, whole};

/// What every connection needs to answer.
#[derive(Clone)]
pub(super) struct Answerer {
    pub(super) requests: Asking,
    pub(super) events: Streams,
    /// Becomes true when the server shuts down.
    pub(super) closed: watch::Receiver<bool>,
    pub(super) watchers: Seats,
    /// Limits the documents that are built at the same time: a document of everything may have megabytes.
    pub(super) documents: Arc<Semaphore>,
    /// Limits the answers above [`LARGE`] that are being read at the same time.
    pub(super) large: Seats,
    pub(super) answer_timeout: Duration,
}

/// Size in bytes above which an answer needs one of a few seats until it is read.
const LARGE: usize = 1 << 20;

/// State of one connection.
pub(super) struct Visit {
    /// The user id of the client.
    pub(super) uid: u32,
    /// Whether the connection follows events.
    pub(super) follows: AtomicBool,
    /// The seat of a large answer, held until the connection ends.
    place: OnceLock<Seat>,
}

impl Visit {
    pub(super) fn of(uid: u32) -> Self {
        Self { uid, follows: AtomicBool::new(false), place: OnceLock::new() }
    }
}

impl Answerer {
    pub(super) async fn answer(&self, visit: &Visit, method: &Method, uri: &Uri) -> Answer {
        match self.try_answer(visit, method, uri).await {
            Ok(answer) => answer,
            Err(problem) => problem.into_response(),
        }
    }

    async fn try_answer(
        &self,
        visit: &Visit,
        method: &Method,
        uri: &Uri,
    ) -> Result<Answer, Problem> {
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
            Route::Ask(ask) => self.document(visit, ask).await,
            Route::Health => self.health(visit.uid).await,
            Route::Watch(stream) => self.watch(visit, stream),
        }
    }

    /// Answers with a document of any size.
    async fn document(&self, visit: &Visit, ask: Ask) -> Result<Answer, Problem> {
        let turn = async {
            match ask.is_urgent(visit.uid) {
                true => None,
                false => Some(Arc::clone(&self.documents).acquire_owned().await),
            }
        };
        let _turn = timeout(self.answer_timeout, turn).await.map_err(|_| Problem::busy())?;
        let bytes = json(self.ask(visit.uid, ask).await?).await?;
        if bytes.len() > LARGE {
            let place = self.large.take(Some(visit.uid)).map_err(|_| Problem::busy())?;
            let _ = visit.place.set(place);
        }
        Ok(answered(bytes))
    }

    /// Sends a question to the core and waits for its answer.
    async fn ask(&self, uid: u32, ask: Ask) -> Result<Document, Problem> {
        let (reply, answer) = oneshot::channel();
        let elsewhere = list_of(&ask);
        let asked = async {
            let request = Request { ask, uid, reply };
            self.requests.send(request).await.map_err(|_| Problem::going_down())?;
            answer.await.map_err(|_| Problem::going_down())
        };
        match timeout(self.answer_timeout, asked).await {
            Ok(answer) => answer?.map_err(|error| Problem::of(&error, elsewhere)),
            Err(_) => Err(Problem::new(
                StatusCode::GATEWAY_TIMEOUT,
                "the daemon did not answer in time",
                "the node may be overloaded: look at the daemon's log, then try again",
            )),
        }
    }

    /// The health answer: that the daemon answers, and the status of its sources.
    async fn health(&self, uid: u32) -> Result<Answer, Problem> {
        let Document { schema, node, taken_at, sources, body, .. } =
            self.ask(uid, Ask::Doctor).await?;
        // The rungs of the events are in `/v1/doctor`.
        debug_assert!(matches!(body, Body::Probes(_)));
        let whole = sources
            .iter()
            .all(|source| matches!(source.status, SourceStatus::Active | SourceStatus::Disabled));
        let status = if whole { "ok" } else { "degraded" };
        let health = serde_json::json!({
            "schema": schema, "node": node, "taken_at": taken_at, "status": status,
            "sources": sources,
        });
        Ok(answered(json(health).await?))
    }

    /// Events from now on, one JSON document a line, until either side closes.
    fn watch(&self, visit: &Visit, stream: Stream) -> Result<Answer, Problem> {
        let place = self.watchers.take(Some(visit.uid)).map_err(|why| {
            let next = "stop one of the running `ipwatch watch`";
            Problem::no_seat(why, "following the daemon", next)
        })?;
        visit.follows.store(true, Ordering::Relaxed);
        let writer = Writer {
            events: self.events.follow(stream),
            closed: self.closed.clone(),
            _place: place,
        };
        let lines = stream::unfold(writer, |mut writer| async move {
            let line = writer.next_line().await?;
            Some((Ok::<_, Infallible>(Frame::data(line)), writer))
        });
        let body = StreamBody::new(lines).boxed_unsync();
        Ok(response(StatusCode::OK, "application/jsonl", body))
    }
}

/// Writes a stream of events to a client.
struct Writer {
    events: Follower,
    closed: watch::Receiver<bool>,
    _place: Seat,
}

impl Writer {
    async fn next_line(&mut self) -> Option<Bytes> {
        loop {
            let event = tokio::select! {
                biased;
                _ = self.closed.changed() => return None,
                event = self.events.next() => event,
            };
            match serde_json::to_vec(&event?) {
                Ok(mut line) => {
                    line.push(b'\n');
                    return Some(line.into());
                }
                Err(error) => tracing::error!(%error, "an event cannot be written as JSON"),
            }
        }
    }
}

/// An error answer: a status, and one line each of what is wrong and what to do.
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

    /// The answer if there is no free seat.
    fn no_seat(why: NoSeat, doing: &str, next: &str) -> Self {
        let what = match why {
            NoSeat::Full => format!("too many clients are {doing}"),
            NoSeat::OwnFull(uid) => {
                format!("user {uid} has as many clients {doing} as one user may have")
            }
        };
        Self::new(StatusCode::SERVICE_UNAVAILABLE, what, next)
    }

    pub(super) fn no_connection(why: NoSeat) -> Self {
        Self::no_seat(why, "connected", "try again in a moment; `ss -xp` shows who is connected")
    }

    /// The answer to an error of the core. `elsewhere` says where to look for what was not found.
    fn of(error: &AskError, elsewhere: &str) -> Self {
        let (status, next) = match error {
            AskError::NotFound(_) => (StatusCode::NOT_FOUND, elsewhere),
            AskError::Ambiguous(_) => (StatusCode::CONFLICT, "give more of it"),
            AskError::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "try again in a moment"),
        };
        Self::new(status, error.to_string(), next)
    }

    fn busy() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many clients ask for much at once",
            "ask for less, by IP, pod or netns, or try again in a moment",
        )
    }

    fn going_down() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the daemon is stopping",
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

/// The command that lists everything of the kind that was asked for.
fn list_of(ask: &Ask) -> &'static str {
    match ask {
        Ask::Findings { .. } | Ask::Ack { .. } | Ask::Unack { .. } => {
            "`ipwatch query findings` lists what there is"
        }
        Ask::Neighbours(_) => "`ipwatch query neigh` lists what there is",
        Ask::History(_) => "`ipwatch query history` lists what there is",
        Ask::Ipam { .. } => "`ipwatch query ipam` lists what there is",
        Ask::Addresses(Selector::Netns(_)) | Ask::Reach(Selector::Netns(_)) => {
            "`ipwatch query netns` lists what there is"
        }
        Ask::Addresses(Selector::Pod(_)) | Ask::Reach(Selector::Pod(_)) => {
            "`ipwatch query pod` lists what there is"
        }
        _ => "`ipwatch query ip` lists what there is",
    }
}

fn answered(json: Vec<u8>) -> Answer {
    response(StatusCode::OK, "application/json", whole(json))
}

/// Serialises on a blocking thread: ten thousand addresses take tens of milliseconds, during which events would
/// queue.
async fn json(document: impl Serialize + Send + 'static) -> Result<Vec<u8>, Problem> {
    let written = tokio::task::spawn_blocking(move || {
        serde_json::to_vec(&document).map(|mut bytes| {
            bytes.push(b'\n');
            bytes
        })
    });
    match written.await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => {
            Err(Problem::internal(&format!("the answer cannot be written as JSON: {error}")))
        }
        Err(error) => Err(Problem::internal(&format!("the answer was not finished: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without root the whole way cannot be tried: another user is needed.
    #[test]
    fn whoever_gets_no_seat_is_told_whose_fault_it_is() {
        let own = |uid| format!("user {uid} has as many clients connected as one user may have");
        for (why, error) in [
            (NoSeat::Full, "too many clients are connected".to_owned()),
            (NoSeat::OwnFull(1000), own(1000)),
        ] {
            let problem = Problem::no_connection(why);
            assert_eq!(problem.status, StatusCode::SERVICE_UNAVAILABLE);
            let body: serde_json::Value = serde_json::from_slice(&problem.body()).unwrap();
            let hint = "try again in a moment; `ss -xp` shows who is connected";
            assert_eq!(body, serde_json::json!({"schema": SCHEMA, "error": error, "hint": hint}));
        }
    }
}
