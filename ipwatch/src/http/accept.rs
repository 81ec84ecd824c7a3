//! Accept loop with a connection limit. Each connection has a task. A few clients beyond the limit have tasks that
//! answer 503.

use std::future::Future;
use std::io;
use std::os::fd::AsFd as _;
use std::pin::pin;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::peer;
use super::seats::{NoSeat, Seat, Seats, User};

/// Pause after a failed accept: retrying at once does not help if fds have run out.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of clients beyond the limit that get an answer.
const OVERFLOW: usize = 16;

/// A listener.
pub(crate) trait Listen {
    /// The stream of an accepted connection.
    type Stream;

    fn next(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// The user of the client.
    fn user(stream: &Self::Stream) -> User;
}

impl Listen for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<UnixStream> {
        Ok(self.accept().await?.0)
    }

    /// Clients whose credentials cannot be read count as one user, u32::MAX, and share its seats.
    fn user(stream: &UnixStream) -> User {
        Some(peer::credentials(stream.as_fd()).map_or(u32::MAX, |credentials| credentials.uid))
    }
}

impl Listen for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<TcpStream> {
        Ok(self.accept().await?.0)
    }

    fn user(_stream: &TcpStream) -> User {
        None
    }
}

/// Accepts clients until `shutdown` completes, with `seats` connections at the same time, and serves each in a task.
/// `serve` is given the reason if a client has no seat; `sent_away` is called for each client that is closed without
/// an answer. Returns the tasks that still run.
pub(crate) async fn accept<L, S, F>(
    listener: &L,
    seats: usize,
    shutdown: impl Future<Output = ()>,
    serve: S,
    sent_away: impl Fn(),
) -> JoinSet<()>
where
    L: Listen,
    S: Fn(L::Stream, Result<(), NoSeat>) -> F,
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
        // If the overflow is full as well, the connection is closed without an answer.
        let Some((place, seated)) = places.take(L::user(&stream)) else {
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

/// Seats for connections, and for clients that only get an error.
struct Places {
    seats: Seats,
    overflow: Seats,
}

impl Places {
    fn new(seats: usize) -> Self {
        Self { seats: Seats::new(seats), overflow: Seats::new(OVERFLOW) }
    }

    /// A seat, and whether the client is served or refused.
    fn take(&self, user: User) -> Option<(Seat, Result<(), NoSeat>)> {
        match self.seats.take(user) {
            Ok(seat) => Some((seat, Ok(()))),
            Err(why) => self.overflow.take(user).ok().map(|seat| (seat, Err(why))),
        }
    }
}
