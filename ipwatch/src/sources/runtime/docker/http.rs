//! HTTP over a Unix socket: one connection for each request, and answers of bounded length.

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Response, StatusCode};

use super::super::error::RuntimeError;
use crate::dial::{self, Driver};
use crate::sources::body;
use crate::sources::errors::{Unconnected, cut};
use crate::sources::socket::SocketPath;

/// Maximum size in bytes of a response's head.
const HEAD_LIMIT: usize = 64 << 10;

/// A response, and the task that drives its connection.
pub(super) struct Answer {
    what: &'static str,
    response: Response<Incoming>,
    _driver: Driver,
}

/// Sends a GET request. Any status but 200 is an error.
pub(super) async fn get(
    way: &SocketPath,
    what: &'static str,
    target: &str,
) -> Result<Answer, RuntimeError> {
    let stream = way.connect().await.map_err(|error| Unconnected::of(way.path(), &error))?;
    let garbage = |error: &dyn std::error::Error| RuntimeError::Garbage {
        what,
        why: cut(&error.to_string()),
    };
    let made = dial::http1(stream, Some(HEAD_LIMIT)).await;
    let (mut sender, driver) = made.map_err(|error| garbage(&error))?;
    let request = hyper::Request::get(target)
        .header(hyper::header::HOST, "docker")
        .header(hyper::header::USER_AGENT, concat!("ipwatch/", env!("CARGO_PKG_VERSION")))
        .body(Empty::<Bytes>::new())
        .map_err(|error| garbage(&error))?;
    let response = sender.send_request(request).await.map_err(|error| garbage(&error))?;
    match response.status() {
        StatusCode::OK => Ok(Answer { what, response, _driver: driver }),
        status => Err(RuntimeError::Refused { what, why: format!("HTTP {status}") }),
    }
}

impl Answer {
    /// The whole body, at most `limit` bytes.
    pub(super) async fn body(self, limit: usize) -> Result<Bytes, RuntimeError> {
        let what = self.what;
        match Limited::new(self.response.into_body(), limit).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                Err(RuntimeError::TooLarge { what, limit: limit >> 20 })
            }
            Err(error) => Err(RuntimeError::Garbage { what, why: cut(&error.to_string()) }),
        }
    }

    /// The next part of a stream.
    pub(super) async fn piece(&mut self) -> Result<Option<Bytes>, RuntimeError> {
        let broken = |error: hyper::Error| RuntimeError::Garbage {
            what: self.what,
            why: cut(&error.to_string()),
        };
        body::part(self.response.body_mut()).await.map_err(broken)
    }
}
