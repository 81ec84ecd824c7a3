//! Shared by the unit tests of several rooms: a log that can be read back, a gRPC server, a certificate authority, a
//! finding, hostile text, a program.

pub(crate) mod authority;
mod finding;
pub(crate) mod program;
pub(crate) mod words;

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, LazyLock, Mutex};

use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tower::ServiceExt as _;
use tracing::subscriber::{DefaultGuard, NoSubscriber};
use tracing::{Dispatch, Subscriber};

pub(crate) use self::finding::finding;

/// Collects what is logged. Clones share the same log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// While the process has only one subscriber, tracing asks the default subscriber of the first thread that reaches a
/// callsite, and remembers its "never" for all threads: another test's thread would suppress a line that this one waits
/// for. With three subscribers it asks each (tracing-core 0.1, `Dispatchers::rebuilder`).
static COMPANY: LazyLock<[Dispatch; 2]> =
    LazyLock::new(|| [NoSubscriber::new(), NoSubscriber::new()].map(Dispatch::new));

/// Sends what this thread logs to `subscriber`, until the guard is dropped.
pub(crate) fn hear(subscriber: impl Subscriber + Send + Sync) -> DefaultGuard {
    LazyLock::force(&COMPANY);
    tracing::subscriber::set_default(subscriber)
}

/// Serves gRPC on one connection. tonic's own server would enable features that the product does not use, and
/// everything would be built twice.
pub(crate) async fn serve_grpc<C, S>(connection: C, service: S)
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: tower::Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
{
    let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
        service.clone().oneshot(request.map(Body::new))
    });
    let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    // How a connection ends is up to the client.
    let _ = http.serve_connection(TokioIo::new(connection), service).await;
}
