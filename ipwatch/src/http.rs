//! What all HTTP servers here share: HTTP/1.1, one request per connection, and limits for clients.
//!
//! - `accept`: the accept loop, with a limit of connections.
//! - `bind`: the file of a Unix socket.
//! - `peer`: the credentials of a Unix client. `seats`: limits per user and in total.
//! - `stall`: drops a client that stops reading.

pub(crate) mod accept;
pub(crate) mod bind;
pub(crate) mod peer;
pub(crate) mod seats;
pub(crate) mod stall;

use std::convert::Infallible;
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use self::stall::Impatient;

/// Maximum size of a request head, in bytes.
pub(crate) const HEAD_LIMIT: usize = 16 * 1024;
/// Maximum number of header lines.
const HEADER_LIMIT: usize = 64;

/// A complete answer, or a stream.
pub(crate) type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// Timeouts for clients.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// To send the head of a request.
    pub(crate) head: Duration,
    /// To read any of the data that is ready.
    pub(crate) stall: Duration,
}

/// Serves one connection: one request, one answer.
pub(crate) async fn serve<S, H, A>(stream: S, patience: Patience, answer: H)
where
    S: AsyncRead + AsyncWrite + Unpin,
    H: Fn(Request<Incoming>) -> A,
    A: Future<Output = Answer>,
{
    let service = hyper::service::service_fn(move |request| {
        let answer = answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let io = TokioIo::new(Impatient::new(stream, patience.stall));
    let result = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(patience.head)
        .max_headers(HEADER_LIMIT)
        .max_buf_size(HEAD_LIMIT)
        .keep_alive(false)
        .serve_connection(io, service)
        .await;
    if let Err(error) = result {
        tracing::debug!(%error, "a client went away");
    }
}

pub(crate) fn response(
    status: StatusCode,
    content_type: &'static str,
    body: UnsyncBoxBody<Bytes, Infallible>,
) -> Answer {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// A body that is complete.
pub(crate) fn whole(bytes: impl Into<Bytes>) -> UnsyncBoxBody<Bytes, Infallible> {
    Full::new(bytes.into()).boxed_unsync()
}
