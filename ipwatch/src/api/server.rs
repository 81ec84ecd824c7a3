//! The API server: HTTP/1.1 on a Unix socket. It parses requests, asks the core and writes the answers.
//!
//! Everything that a client can do is bounded: the number of connections, the time to send a request, the time that
//! an answer stays unread. A client never makes the core wait: questions go through two bounded channels, events
//! through a broadcast that drops the oldest for slow followers.

mod answer;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use self::answer::{Answerer, Problem, Visit};
use super::{Asking, Streams};
use crate::http::accept::accept;
use crate::http::bind::{Bound, GROUP};
use crate::http::peer::{Access, Peer};
use crate::http::seats::{NoSeat, Seats};
use crate::http::{self, Patience};

pub use crate::http::bind::BindError;

/// How long running connections may continue after a shutdown began.
const DRAIN: Duration = Duration::from_secs(2);

/// Maximum number of documents that are built at the same time, urgent ones aside, and of large ones that are being read.
const DOCUMENTS: usize = 4;

/// Limits for clients.
#[derive(Debug, Clone)]
pub struct Options {
    /// Group whose members may connect, if the node has it.
    pub group: String,
    /// Maximum number of connections, followers included. A user other than root may have a quarter of them, and a
    /// quarter is reserved for root.
    pub connections: usize,
    /// Maximum number of followers of `/v1/watch`, shared in the same way.
    pub watchers: usize,
    /// Timeout of the head of a request.
    pub head_timeout: Duration,
    /// Timeout of the core's answer.
    pub answer_timeout: Duration,
    /// How long a client may leave data unread.
    pub stall_timeout: Duration,
    /// Maximum duration of a connection that is not a follower, even if its client keeps reading.
    pub whole_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            group: GROUP.to_owned(),
            connections: 64,
            watchers: 16,
            head_timeout: Duration::from_secs(1),
            answer_timeout: Duration::from_secs(25),
            stall_timeout: Duration::from_secs(20),
            whole_timeout: Duration::from_secs(60),
        }
    }
}

impl Options {
    /// What a connection is given.
    fn patience(&self) -> Patience {
        Patience { head: self.head_timeout, stall: self.stall_timeout }
    }
}

/// A bound socket, ready to serve.
#[derive(Debug)]
pub struct Server {
    bound: Bound,
    options: Options,
}

impl Server {
    /// Creates the socket at `path`, and its directory if that is missing. A stale socket is replaced. Needs no tokio
    /// runtime.
    ///
    /// # Errors
    /// Another daemon answers there, the path is not a socket, or the system refuses.
    pub fn bind(path: &Path, options: Options) -> Result<Self, BindError> {
        Ok(Self { bound: Bound::new(path, &options.group)?, options })
    }

    /// Serves until `shutdown` completes, lets running answers finish for two seconds, and removes the socket.
    ///
    /// # Errors
    /// The socket cannot be used with tokio.
    pub async fn run(
        self,
        requests: Asking,
        events: Streams,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let listener = UnixListener::from_std(self.bound.listener.try_clone()?)?;
        let (closing, closed) = watch::channel(false);
        let answerer = Answerer {
            requests,
            events,
            closed,
            watchers: Seats::new(self.options.watchers),
            documents: Arc::new(Semaphore::new(DOCUMENTS)),
            large: Seats::new(DOCUMENTS),
            answer_timeout: self.options.answer_timeout,
        };
        let access = Access { uid: rustix::process::geteuid().as_raw(), gid: self.bound.group };
        let options = self.options.clone();
        let serve = |stream: UnixStream, seated: Result<(), NoSeat>| {
            let (answerer, options) = (answerer.clone(), options.clone());
            async move {
                let asker = seated.map_err(Problem::no_connection);
                let asker = asker.and_then(|()| access.asker(&stream, &options));
                serve(stream, answerer, asker, &options).await;
            }
        };
        let mut connections = accept(&listener, options.connections, shutdown, serve, || ()).await;
        drop(listener);
        self.bound.remove();
        let _ = closing.send(true);
        let drained = async { while connections.join_next().await.is_some() {} };
        if timeout(DRAIN, drained).await.is_err() {
            tracing::debug!("clients were still reading at shutdown");
        }
        Ok(())
    }
}

impl Access {
    /// The user id of the client, or why it is not served.
    fn asker(&self, stream: &UnixStream, options: &Options) -> Result<u32, Problem> {
        match Peer::of(stream) {
            Ok(peer) if self.admits(&peer) => Ok(peer.uid),
            Ok(peer) => {
                tracing::debug!(uid = peer.uid, "refused a client");
                Err(Problem::forbidden(peer.uid, &options.group))
            }
            // A client whose user is unknown is refused.
            Err(error) => Err(Problem::internal(&format!("cannot read who is asking: {error}"))),
        }
    }
}

/// Serves one connection: one request, one answer.
async fn serve(
    stream: UnixStream,
    answerer: Answerer,
    asker: Result<u32, Problem>,
    options: &Options,
) {
    let patience = options.patience();
    let visit = asker.map(Visit::of).map(Arc::new);
    let served = http::serve(stream, patience, |request| {
        let (answerer, visit) = (answerer.clone(), visit.clone());
        async move {
            match visit {
                Err(problem) => problem.into_response(),
                Ok(visit) => answerer.answer(&visit, request.method(), request.uri()).await,
            }
        }
    });
    let mut served = std::pin::pin!(served);
    if timeout(options.whole_timeout, &mut served).await.is_err()
        && visit.as_ref().is_ok_and(|visit| visit.follows.load(Ordering::Relaxed))
    {
        served.await;
    }
}
