//! What every server here shares: HTTP/1.1, one request a connection, and a bound on everything that a client
//! can do.
//!
//! - `accept`: who comes, each in a place of its own.
//! - `bind`: a Unix socket's file.
//! - `peer`: who is at the other end of one. `seats`: how many of each user's clients are served.
//! - `stall`: a client that stops reading is given up.

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

/// Longest request head.
pub(crate) const HEAD_LIMIT: usize = 16 * 1024;
/// Most header lines.
const HEADER_LIMIT: usize = 64;

/// What is answered: whole, or a stream.
pub(crate) type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// How long a client may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// To send its request's head.
    pub(crate) head: Duration,
    /// To read anything of what is ready for it.
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

/// A response with this body.
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

/// A body that is there already.
pub(crate) fn whole(bytes: impl Into<Bytes>) -> UnsyncBoxBody<Bytes, Infallible> {
    Full::new(bytes.into()).boxed_unsync()
}
