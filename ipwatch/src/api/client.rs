//! The client: one question, one answer, over the daemon's Unix socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Response, StatusCode};
use serde::Deserialize;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::{Ask, Event, Stream, route};
use crate::contract::{Document, SCHEMA};
use crate::dial::{self, Driver};

/// Longest answer that is taken.
const ANSWER_LIMIT: usize = 256 * 1024 * 1024;
/// Longest line of the event stream that is taken.
const LINE_LIMIT: usize = 1024 * 1024;
/// Longer than the server gives its core.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No socket, or nobody behind it.
    #[error(
        "no daemon answers on {0}: `systemctl status ipwatch` says why, `ipwatch run` starts one by hand, \
         `ipwatch scan` looks once without one"
    )]
    NoDaemon(PathBuf),
    /// The socket's file may not be opened.
    #[error("{0} may be opened only by root and members of group ipwatch: use sudo, or join it")]
    Denied(PathBuf),
    /// The daemon answered with an error.
    #[error("{error}: {hint}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// What is wrong.
        error: String,
        /// What to do.
        hint: String,
    },
    /// The daemon speaks another schema.
    #[error(
        "the daemon on {path} speaks {theirs}, this ipwatch speaks {SCHEMA}: restart the daemon with \
         the installed version"
    )]
    Schema {
        /// The socket.
        path: PathBuf,
        /// The daemon's schema.
        theirs: String,
    },
    /// It takes too long.
    #[error("the daemon on {0} does not answer in time: look at its log")]
    Timeout(PathBuf),
    /// Something else went wrong on the way.
    #[error("talking to {path} failed: {why}: is it ipwatch's socket?")]
    Broken {
        /// The socket.
        path: PathBuf,
        /// What happened.
        why: String,
    },
}

/// A daemon's socket.
#[derive(Debug, Clone)]
pub struct Client {
    path: PathBuf,
}

/// What a refusal looks like on the wire.
#[derive(Deserialize)]
struct Refusal {
    error: String,
    #[serde(default)]
    hint: String,
}

/// As much of a document as tells its version.
#[derive(Deserialize)]
struct Version {
    schema: String,
}

impl Client {
    /// A client of the daemon at `path`. Connects when asked something.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Asks.
    ///
    /// # Errors
    /// There is no daemon, it refuses, or what it says cannot be understood.
    pub async fn ask(&self, ask: &Ask) -> Result<Document, ClientError> {
        let method = if ask.changes() { Method::POST } else { Method::GET };
        self.document(method, &route::target(ask)).await
    }

    /// Whether the daemon answers: its word on itself, see `/v1/health`.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub async fn health(&self) -> Result<serde_json::Value, ClientError> {
        self.document(Method::GET, route::HEALTH).await
    }

    /// Follows the daemon's events from now on.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub async fn watch(&self, stream: Stream) -> Result<Watch, ClientError> {
        let connection = self.send(Method::GET, route::watch(stream)).await?;
        if connection.response.status() != StatusCode::OK {
            return Err(self.refusal(connection).await);
        }
        Ok(Watch { connection, pending: Vec::new(), path: self.path.clone() })
    }

    async fn document<T: for<'de> Deserialize<'de>>(
        &self,
        method: Method,
        target: &str,
    ) -> Result<T, ClientError> {
        let connection = self.send(method, target).await?;
        if connection.response.status() != StatusCode::OK {
            return Err(self.refusal(connection).await);
        }
        let bytes = self.body(connection).await?;
        match serde_json::from_slice::<Version>(&bytes) {
            Ok(version) if version.schema == SCHEMA => {}
            Ok(version) => {
                return Err(ClientError::Schema {
                    path: self.path.clone(),
                    theirs: version.schema,
                });
            }
            Err(error) => return Err(self.broken(error)),
        }
        serde_json::from_slice(&bytes).map_err(|error| self.broken(error))
    }

    async fn send(&self, method: Method, target: &str) -> Result<Connection, ClientError> {
        let stream =
            UnixStream::connect(&self.path).await.map_err(|error| self.unreachable(error))?;
        let made = dial::http1(stream, None).await;
        let (mut sender, driver) = made.map_err(|error| self.broken(error))?;
        let request = hyper::Request::builder()
            .method(method)
            .uri(target)
            .header(hyper::header::HOST, "ipwatch")
            .body(Empty::<Bytes>::new())
            .map_err(|error| self.broken(error))?;
        match timeout(PATIENCE, sender.send_request(request)).await {
            Ok(Ok(response)) => Ok(Connection { response, _driver: driver }),
            Ok(Err(error)) => Err(self.broken(error)),
            Err(_) => Err(ClientError::Timeout(self.path.clone())),
        }
    }

    async fn body(&self, connection: Connection) -> Result<Bytes, ClientError> {
        let body = Limited::new(connection.response.into_body(), ANSWER_LIMIT).collect();
        match timeout(PATIENCE, body).await {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(error)) => Err(self.broken(error)),
            Err(_) => Err(ClientError::Timeout(self.path.clone())),
        }
    }

    /// The error that a response which is not 200 stands for.
    async fn refusal(&self, connection: Connection) -> ClientError {
        let status = connection.response.status();
        let bytes = match self.body(connection).await {
            Ok(bytes) => bytes,
            Err(error) => return error,
        };
        match serde_json::from_slice::<Refusal>(&bytes) {
            Ok(Refusal { error, hint }) => {
                ClientError::Refused { status: status.as_u16(), error, hint }
            }
            Err(_) => self.broken(format!("HTTP {status}")),
        }
    }

    fn unreachable(&self, error: io::Error) -> ClientError {
        match error.kind() {
            io::ErrorKind::NotFound
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::ConnectionRefused => ClientError::NoDaemon(self.path.clone()),
            io::ErrorKind::PermissionDenied => ClientError::Denied(self.path.clone()),
            _ => self.broken(error),
        }
    }

    fn broken(&self, why: impl ToString) -> ClientError {
        ClientError::Broken { path: self.path.clone(), why: why.to_string() }
    }
}

/// A response and what keeps its connection going.
struct Connection {
    response: Response<Incoming>,
    _driver: Driver,
}

/// The stream of events.
pub struct Watch {
    connection: Connection,
    /// Bytes of the line that is not whole yet, or of whole lines that were not asked for yet.
    pending: Vec<u8>,
    path: PathBuf,
}

impl Watch {
    /// The next event as the daemon wrote it: one line of JSON. `None`: the daemon has gone.
    ///
    /// # Errors
    /// The connection broke, or what comes is not lines.
    pub async fn next_line(&mut self) -> Result<Option<String>, ClientError> {
        let broken = |why: String, path: &Path| ClientError::Broken { path: path.to_owned(), why };
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                let line =
                    String::from_utf8(line).map_err(|e| broken(e.to_string(), &self.path))?;
                return Ok(Some(line.trim_end().to_owned()));
            }
            if self.pending.len() > LINE_LIMIT {
                return Err(broken("a line of the event stream is too long".into(), &self.path));
            }
            match self.connection.response.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.pending.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => return Err(broken(error.to_string(), &self.path)),
            }
        }
    }

    /// The next event that this version knows. `None`: the daemon has gone.
    ///
    /// # Errors
    /// As [`next_line`](Self::next_line).
    pub async fn next(&mut self) -> Result<Option<Event>, ClientError> {
        while let Some(line) = self.next_line().await? {
            // The contract may grow: an event of a newer daemon is passed over.
            if let Ok(event) = serde_json::from_str(&line) {
                return Ok(Some(event));
            }
            tracing::debug!(line, "passed over an unknown event");
        }
        Ok(None)
    }
}
