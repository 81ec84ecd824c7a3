//! Where Prometheus comes: a port of the loopback or a Unix socket, and what a client may do there.
//!
//! Everything is bounded: how many are connected, how long each may take to ask, to read, and in all. A scrape
//! that never reads holds one place for a while, and nothing else.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::answer::Answerer;
use super::{Listen, Question};
use crate::http::accept::{Listen as Door, accept};
use crate::http::bind::{self, Bound};
use crate::http::seats::NoSeat;
use crate::http::{self, Patience};

/// How long connections that are being served may go on after a shutdown began.
const DRAIN: Duration = Duration::from_millis(500);

/// Why nothing can listen there. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody else listens on that port.
    #[error(
        "metrics: {0} is in use: name a free port as [metrics] listen, or stop what has it (`ss -ltnp` shows it)"
    )]
    PortInUse(SocketAddr),
    /// The system refused.
    #[error(
        "metrics: cannot listen on {address}: {error}; name another address as [metrics] listen"
    )]
    Refused {
        /// On what.
        address: SocketAddr,
        /// The refusal.
        error: io::Error,
    },
    /// Somebody else listens on that socket.
    #[error("metrics: unix:{0} is in use: name another socket as [metrics] listen")]
    SocketInUse(PathBuf),
    /// The socket cannot be made.
    #[error("metrics: {0}; name another socket as [metrics] listen")]
    Socket(String),
}

impl From<bind::BindError> for BindError {
    fn from(error: bind::BindError) -> Self {
        use bind::BindError as Error;
        match error {
            Error::InUse(path) => BindError::SocketInUse(path),
            Error::NotASocket(path) => {
                BindError::Socket(format!("{} exists and is not a socket", path.display()))
            }
            Error::TooLong(path) => BindError::Socket(format!(
                "{} is too long for a socket (107 bytes at most)",
                path.display()
            )),
            Error::Io { action, path, error } => {
                BindError::Socket(format!("cannot {action} {}: {error}", path.display()))
            }
        }
    }
}

/// What clients are allowed.
#[derive(Debug, Clone, Copy)]
struct Options {
    /// Connections at one time. A node has one Prometheus, or two, and somebody with curl.
    connections: usize,
    patience: Patience,
    /// How long the core may take.
    answer: Duration,
    /// How long a connection may last, however diligently its client reads.
    whole: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connections: 8,
            patience: Patience { head: Duration::from_secs(5), stall: Duration::from_secs(10) },
            answer: Duration::from_secs(5),
            whole: Duration::from_secs(30),
        }
    }
}

/// A bound address, ready to serve.
#[derive(Debug)]
pub struct Server {
    bound: Place,
    options: Options,
}

#[derive(Debug)]
enum Place {
    Tcp(std::net::TcpListener),
    Unix(Bound),
}

impl Server {
    /// Listens. Needs no tokio runtime.
    ///
    /// # Errors
    /// The port or the socket is in use, or the system refuses.
    pub fn bind(listen: &Listen) -> Result<Self, BindError> {
        let bound = match listen {
            Listen::Tcp(address) => {
                let refused = |error: io::Error| match error.kind() {
                    io::ErrorKind::AddrInUse => BindError::PortInUse(*address),
                    _ => BindError::Refused { address: *address, error },
                };
                let listener = std::net::TcpListener::bind(address).map_err(refused)?;
                listener.set_nonblocking(true).map_err(refused)?;
                Place::Tcp(listener)
            }
            Listen::Unix(path) => Place::Unix(Bound::new(path, bind::GROUP)?),
        };
        Ok(Self { bound, options: Options::default() })
    }

    /// Where it listens: the port that was taken, where any would do.
    #[cfg(test)]
    fn address(&self) -> Option<SocketAddr> {
        match &self.bound {
            Place::Tcp(listener) => listener.local_addr().ok(),
            Place::Unix(_) => None,
        }
    }

    /// Serves until `shutdown` is done, and removes the socket.
    ///
    /// # Errors
    /// The socket cannot be used with tokio.
    pub async fn run(
        self,
        questions: mpsc::Sender<Question>,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let options = self.options;
        let answerer = Answerer { questions, refused: Arc::default(), patience: options.answer };
        let mut connections = match self.bound {
            Place::Tcp(listener) => {
                let listener = TcpListener::from_std(listener)?;
                serve_all(&listener, &answerer, options, shutdown).await
            }
            Place::Unix(bound) => {
                let listener = UnixListener::from_std(bound.listener.try_clone()?)?;
                let connections = serve_all(&listener, &answerer, options, shutdown).await;
                bound.remove();
                connections
            }
        };
        let drained = async { while connections.join_next().await.is_some() {} };
        if timeout(DRAIN, drained).await.is_err() {
            tracing::debug!("somebody was still reading the metrics at shutdown");
        }
        Ok(())
    }
}

async fn serve_all<L>(
    listener: &L,
    answerer: &Answerer,
    options: Options,
    shutdown: impl Future<Output = ()>,
) -> JoinSet<()>
where
    L: Door,
    L::Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let serve = |stream: L::Stream, seated: Result<(), NoSeat>| {
        let answerer = answerer.clone();
        async move {
            let served = http::serve(stream, options.patience, |request| {
                let answerer = answerer.clone();
                async move {
                    if seated.is_ok() { answerer.answer(&request).await } else { answerer.full() }
                }
            });
            if timeout(options.whole, served).await.is_err() {
                tracing::debug!("a scrape took too long");
            }
        }
    };
    accept(listener, options.connections, shutdown, serve, || answerer.refuse()).await
}

#[cfg(test)]
mod tests;
