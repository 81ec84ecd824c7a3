//! Accept loop with a connection limit. Each connection is a task; the overflow has a few tasks of its own, which
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

/// Pause after a failed accept: out of fds is not cured by trying again at once.
const PAUSE: Duration = Duration::from_millis(100);
/// Clients beyond the limit that are told so at one time.
const OVERFLOW: usize = 16;

/// Something that clients connect to.
pub(crate) trait Listen {
    /// What one of them comes on.
    type Stream;

    fn next(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Whose it is.
    fn user(stream: &Self::Stream) -> User;
}

impl Listen for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<UnixStream> {
        Ok(self.accept().await?.0)
    }

    /// One that the kernel does not name is nobody's: he shares a user's seats with his like.
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

/// Lets clients in until `shutdown` is done, `seats` of them at one time, and has each served by a task;
/// `serve` is told why there was no place for it, and `sent_away` of each that was not even told so. The
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
        // Beyond the second row nobody is even told: the client sees a closed connection.
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

/// Places for connections.
struct Places {
    seats: Seats,
    overflow: Seats,
}

impl Places {
    fn new(seats: usize) -> Self {
        Self { seats: Seats::new(seats), overflow: Seats::new(OVERFLOW) }
    }

    /// A place, and whether it is one to be served on.
    fn take(&self, user: User) -> Option<(Seat, Result<(), NoSeat>)> {
        match self.seats.take(user) {
            Ok(seat) => Some((seat, Ok(()))),
            Err(why) => self.overflow.take(user).ok().map(|seat| (seat, Err(why))),
        }
    }
}
