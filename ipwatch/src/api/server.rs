//! The server: HTTP/1.1 on a Unix socket. It parses, asks the core and writes what comes back.
//!
//! Everything a client can do is bounded: how many connect, how long they may take to say what they
//! want, how long they may leave an answer unread. None of it ever makes the core wait: questions
//! go over one bounded channel, events over a broadcast that overtakes slow followers.

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
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;

use self::answer::{Answerer, Problem, Visit};
use super::{Request, Streams};
use crate::http::accept::accept;
use crate::http::bind::{Bound, GROUP};
use crate::http::peer::{Access, Peer};
use crate::http::seats::{NoSeat, Seats};
use crate::http::{self, Patience};

pub use crate::http::bind::BindError;

/// How long connections that are being served may go on after a shutdown began.
const DRAIN: Duration = Duration::from_secs(2);

/// Documents in the making at one time, and as many large ones that are read.
const DOCUMENTS: usize = 4;

/// What clients are allowed.
#[derive(Debug, Clone)]
pub struct Options {
    /// Group whose members may ask, where the node has it.
    pub group: String,
    /// Connections at one time, followers included: a quarter of them for each user that is not root, and a quarter for
    /// root alone.
    pub connections: usize,
    /// Followers of `/v1/watch` at one time, shared in the same way.
    pub watchers: usize,
    /// How long a client may take to send its request's head.
    pub head_timeout: Duration,
    /// How long the core may take to answer.
    pub answer_timeout: Duration,
    /// How long a client may read nothing of what is ready for it.
    pub stall_timeout: Duration,
    /// How long a connection may last that follows nothing, however diligently its client reads.
    pub whole_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            group: GROUP.to_owned(),
            connections: 64,
            watchers: 16,
            head_timeout: Duration::from_secs(1),
            answer_timeout: Duration::from_secs(20),
            stall_timeout: Duration::from_secs(20),
            whole_timeout: Duration::from_secs(60),
        }
    }
}

/// A bound socket, ready to serve.
#[derive(Debug)]
pub struct Server {
    bound: Bound,
    options: Options,
}

impl Server {
    /// Makes the socket at `path` and its directory where that is missing. A socket that nobody
    /// answers on is replaced. Needs no tokio runtime.
    ///
    /// # Errors
    /// Another daemon answers there, something else has the name, or the system refuses.
    pub fn bind(path: &Path, options: Options) -> Result<Self, BindError> {
        Ok(Self { bound: Bound::new(path, &options.group)?, options })
    }

    /// Serves until `shutdown` is done, lets running answers finish for two seconds, and removes the
    /// socket.
    ///
    /// # Errors
    /// The socket cannot be used with tokio.
    pub async fn run(
        self,
        requests: mpsc::Sender<Request>,
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
    /// The user who asks, or why this client is not served.
    fn asker(&self, stream: &UnixStream, options: &Options) -> Result<u32, Problem> {
        match Peer::of(stream) {
            Ok(peer) if self.admits(&peer) => Ok(peer.uid),
            Ok(peer) => {
                tracing::debug!(uid = peer.uid, "refused a client");
                Err(Problem::forbidden(peer.uid, &options.group))
            }
            // Nobody whom we cannot name is let in.
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
    let patience = Patience { head: options.head_timeout, stall: options.stall_timeout };
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
