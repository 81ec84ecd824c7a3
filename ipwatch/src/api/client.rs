//! The client: one request and its answer over the daemon's Unix socket.

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

/// Maximum size of an answer, in bytes.
const ANSWER_LIMIT: usize = 256 * 1024 * 1024;
/// Maximum length of a line of the event stream, in bytes.
const LINE_LIMIT: usize = 1024 * 1024;
/// Timeout of an answer: longer than the server's timeout for its core.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no socket, or nobody listens on it.
    #[error(
        "no daemon answers on {0}: `systemctl status ipwatch` says why, `ipwatch run` starts one by hand, \
         `ipwatch scan` looks once without one"
    )]
    NoDaemon(PathBuf),
    /// No permission to open the socket.
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
    /// The daemon uses another schema version.
    #[error(
        "the daemon on {path} speaks {theirs}, this ipwatch speaks {SCHEMA}: restart the daemon with \
         the installed version"
    )]
    Schema {
        path: PathBuf,
        /// The daemon's schema.
        theirs: String,
    },
    /// The daemon did not answer in time.
    #[error("the daemon on {0} does not answer in time: look at its log")]
    Timeout(PathBuf),
    /// Any other error of the connection.
    #[error("talking to {path} failed: {why}: is it ipwatch's socket?")]
    Broken {
        path: PathBuf,
        /// The error.
        why: String,
    },
}

/// A daemon's socket.
#[derive(Debug, Clone)]
pub struct Client {
    path: PathBuf,
}

/// An error answer as sent by the server.
#[derive(Deserialize)]
struct Refusal {
    error: String,
    #[serde(default)]
    hint: String,
}

/// The part of a document that has its version.
#[derive(Deserialize)]
struct Version {
    schema: String,
}

impl Client {
    /// A client of the daemon at `path`. Connects for each request.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sends a request and returns its answer.
    ///
    /// # Errors
    /// There is no daemon, it refuses, or its answer cannot be parsed.
    pub async fn ask(&self, ask: &Ask) -> Result<Document, ClientError> {
        let method = if ask.changes() { Method::POST } else { Method::GET };
        self.document(method, &route::target(ask)).await
    }

    /// The daemon's `/v1/health`, which shows that it answers.
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

    /// The error for a response that is not 200.
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

/// A response, with the driver of its connection.
struct Connection {
    response: Response<Incoming>,
    _driver: Driver,
}

/// A stream of events.
pub struct Watch {
    connection: Connection,
    /// Bytes read but not returned: an incomplete line, or further lines.
    pending: Vec<u8>,
    path: PathBuf,
}

impl Watch {
    /// The next event as the daemon wrote it: one line of JSON. `None`: the daemon has closed the stream.
    ///
    /// # Errors
    /// The connection broke, or a line is too long or not UTF-8.
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

    /// The next event that this version knows. `None`: the daemon has closed the stream.
    ///
    /// # Errors
    /// As [`next_line`](Self::next_line).
    pub async fn next(&mut self) -> Result<Option<Event>, ClientError> {
        while let Some(line) = self.next_line().await? {
            // The contract may grow: unknown events of a newer daemon are skipped.
            if let Ok(event) = serde_json::from_str(&line) {
                return Ok(Some(event));
            }
            tracing::debug!(line, "passed over an unknown event");
        }
        Ok(None)
    }
}
