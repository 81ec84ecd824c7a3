//! Following files by inotify until the daemon goes down. A turn, which may read every file, is taken on a thread of its
//! own. A thread that hangs in the kernel is left behind with its follower, and a new follower leaves out what it hangs
//! at. Where inotify breaks (other processes of the user may have all instances), the source is down and is tried again.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::io::Interest;

use super::backoff::Pauses;
use super::ready::ready;
use super::{Closed, Emit, Unheard};
use crate::clock;
use crate::fact::{BootNs, Fact};
use crate::reading::{self, Readings, Target};

/// The first and the longest pause after inotify broke.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// What follows the files of one source.
pub(super) trait FileFollower: Send + Sized + 'static {
    /// Opens the watches anew. Everything is read after that.
    fn open(&mut self) -> io::Result<OwnedFd>;

    /// Has everything read in the next turn.
    fn read_anew(&mut self);

    /// Deals with everything that has happened; when to come back even if nothing happens.
    fn turn(&mut self) -> Result<Option<BootNs>, Stopped>;

    /// Tells that nothing more will be told for now.
    fn down(&mut self, error: &io::Error) -> impl Future<Output = Result<(), Closed>> + Send;
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stopped {
    #[error(transparent)]
    Closed(#[from] Closed),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0} does not answer")]
    Hangs(Target),
}

/// Follows the files until the daemon goes down. `name`: the source's. `about`: the same for people. Lets go of `first`
/// when the files were read, or could not be.
pub(super) async fn run<F: FileFollower>(
    name: &'static str,
    about: &str,
    new: impl Fn() -> F + Send + Sync,
    readings: Readings,
    mut first: Option<Unheard>,
) {
    let mut pauses = Pauses::new(AGAIN);
    let mut follower = new();
    loop {
        let ended = session(follower, name, &readings, &mut first, &mut pauses).await;
        // The thread panicked, and the follower is gone with it.
        let anew = |error: io::Error| (Some(new()), Stopped::Io(error));
        follower = match ended.unwrap_or_else(anew) {
            (Some(mut follower), Stopped::Io(error)) => {
                if follower.down(&error).await.is_err() {
                    return;
                }
                first = None;
                tokio::time::sleep(pauses.after_failure()).await;
                follower
            }
            // The thread hangs and has the follower with it: another one leaves out what it hangs at.
            (None, Stopped::Hangs(target)) => {
                tracing::warn!("{target} does not answer: {about} is read without it");
                new()
            }
            _ => return,
        };
    }
}

/// From the opening of the watches to their end.
async fn session<F: FileFollower>(
    mut follower: F,
    name: &'static str,
    readings: &Readings,
    first: &mut Option<Unheard>,
    pauses: &mut Pauses,
) -> io::Result<(Option<F>, Stopped)> {
    let mut returns = readings.returns();
    let readable = match follower.open().and_then(|fd| ready(fd, Interest::READABLE)) {
        Ok(readable) => readable,
        Err(error) => return Ok((Some(follower), error.into())),
    };
    loop {
        // Off the async worker: a turn may read every file.
        let work = move || {
            let turned = follower.turn();
            (follower, turned)
        };
        let turned;
        (follower, turned) = match reading::unblocked(readings, name, work).await? {
            Ok(done) => done,
            Err(hangs) => return Ok((None, Stopped::Hangs(hangs))),
        };
        *first = None;
        let next = match turned {
            Ok(next) => {
                pauses.begin_anew();
                next
            }
            Err(stopped) => return Ok((Some(follower), stopped)),
        };
        tokio::select! {
            guard = readable.readable() => match guard {
                Ok(mut guard) => guard.clear_ready(),
                Err(error) => return Ok((Some(follower), error.into())),
            },
            // What was left out may be read now.
            _ = returns.changed() => follower.read_anew(),
            () = until(next) => {}
        }
    }
}

async fn until(next: Option<BootNs>) {
    match next {
        Some(next) => tokio::time::sleep(Duration::from_nanos(next.since(clock::now()))).await,
        None => std::future::pending().await,
    }
}

/// Hands over the facts of a turn. Never to be called on an async worker.
///
/// # Errors
/// The daemon is going down; or the calling thread hung, and another one tells of these files by now.
pub(super) fn send(emit: &Emit, facts: Vec<Fact>) -> Result<(), Closed> {
    if reading::is_left() { Err(Closed) } else { emit.send_blocking(facts) }
}
