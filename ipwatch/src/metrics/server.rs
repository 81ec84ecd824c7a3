//! The listener for Prometheus, a loopback port or a Unix socket, with its limits for clients.
//!
//! Everything is bounded: the number of connections, the time to send a request, to read the answer, and in total. A
//! client that never reads only occupies one connection for a while.

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
use crate::http::accept::{Listen as NetnsPath, accept};
use crate::http::bind::{self, Bound};
use crate::http::seats::NoSeat;
use crate::http::{self, Patience};

/// How long running connections may continue after a shutdown began.
const DRAIN: Duration = Duration::from_millis(500);

/// Why the server cannot listen. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process listens on this port.
    #[error(
        "metrics: {0} is in use: set [metrics] listen to a free port, or stop the process that uses it (`ss -ltnp` \
         shows it)"
    )]
    PortInUse(SocketAddr),
    /// The system call failed.
    #[error(
        "metrics: cannot listen on {address}: {error}; set [metrics] listen to another address"
    )]
    Refused {
        /// The address to listen on.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// Another process listens on this socket.
    #[error("metrics: unix:{0} is in use: set [metrics] listen to another socket")]
    SocketInUse(PathBuf),
    /// The socket cannot be created.
    #[error("metrics: {0}; set [metrics] listen to another socket")]
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

/// Limits for clients.
#[derive(Debug, Clone, Copy)]
struct Options {
    /// Maximum number of connections: a node is scraped by one Prometheus or two, and read by a person with curl.
    connections: usize,
    patience: Patience,
    /// Timeout of the core's answer.
    answer: Duration,
    /// Maximum duration of a connection, even if its client keeps reading.
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

/// A bound listener, ready to serve.
#[derive(Debug)]
pub struct Server {
    bound: Listening,
    options: Options,
}

#[derive(Debug)]
enum Listening {
    Tcp(std::net::TcpListener),
    Unix(Bound),
}

impl Server {
    /// Binds the listener. Needs no tokio runtime.
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
                Listening::Tcp(listener)
            }
            Listen::Unix(path) => Listening::Unix(Bound::new(path, bind::GROUP)?),
        };
        Ok(Self { bound, options: Options::default() })
    }

    /// The address, with the port that the kernel chose for port 0.
    #[cfg(test)]
    fn address(&self) -> Option<SocketAddr> {
        match &self.bound {
            Listening::Tcp(listener) => listener.local_addr().ok(),
            Listening::Unix(_) => None,
        }
    }

    /// Serves until `shutdown` completes, and removes the socket.
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
            Listening::Tcp(listener) => {
                let listener = TcpListener::from_std(listener)?;
                serve_all(&listener, &answerer, options, shutdown).await
            }
            Listening::Unix(bound) => {
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
    L: NetnsPath,
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
