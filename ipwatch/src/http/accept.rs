//! Accept loop with a connection limit. Each connection is a task; the overflow has a few tasks of its own, which
//! answer 503.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Pause after a failed accept: out of fds is not cured by trying again at once.
const PAUSE: Duration = Duration::from_millis(100);
/// Clients beyond the limit that are told so at one time.
const OVERFLOW: usize = 16;

/// Something that clients connect to.
pub(crate) trait Listen {
    /// What one of them comes on.
    type Stream;

    fn next(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Listen for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<UnixStream> {
        Ok(self.accept().await?.0)
    }
}

impl Listen for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<TcpStream> {
        Ok(self.accept().await?.0)
    }
}

/// Lets clients in until `shutdown` is done, `seats` of them at one time, and has each served by a task;
/// `serve` is told whether there was a place for it, and `sent_away` of each that was not even told so. The
/// tasks that still run are returned.
pub(crate) async fn accept<L, S, F>(
    listener: &L,
    seats: usize,
    shutdown: impl Future<Output = ()>,
    serve: S,
    sent_away: impl Fn(),
) -> JoinSet<()>
where
    L: Listen,
    S: Fn(L::Stream, bool) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let places = Places::new(seats);
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => return connections,
            accepted = listener.next() => accepted,
        };
        while connections.try_join_next().is_some() {}
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a client");
                sleep(PAUSE).await;
                continue;
            }
        };
        // Beyond the second row nobody is even told: the client sees a closed connection.
        let Some((place, seated)) = places.take() else {
            sent_away();
            continue;
        };
        let served = serve(stream, seated);
        connections.spawn(async move {
            served.await;
            drop(place);
        });
    }
}

/// Places for connections.
struct Places {
    seats: Arc<Semaphore>,
    overflow: Arc<Semaphore>,
}

impl Places {
    fn new(seats: usize) -> Self {
        let row = |places| Arc::new(Semaphore::new(places));
        Self { seats: row(seats), overflow: row(OVERFLOW) }
    }

    /// A place, and whether it is one to be served on.
    fn take(&self) -> Option<(OwnedSemaphorePermit, bool)> {
        let place = |row: &Arc<Semaphore>| Arc::clone(row).try_acquire_owned().ok();
        place(&self.seats)
            .map(|place| (place, true))
            .or_else(|| place(&self.overflow).map(|place| (place, false)))
    }
}
