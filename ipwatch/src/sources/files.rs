//! Follows files by inotify until the daemon shuts down. A turn, which may read every file, runs on a thread of its
//! own. A thread that hangs in the kernel is left behind with its follower, and a new follower leaves out what it hangs
//! at. If inotify fails (other processes of the user may use up the instances), the source is down and is retried.

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

/// The first and the longest pause after inotify failed.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

pub(super) trait FileFollower: Send + Sized + 'static {
    /// Opens new watches. Everything is read afterwards.
    fn open(&mut self) -> io::Result<OwnedFd>;

    /// Makes the next turn read everything.
    fn read_anew(&mut self);

    /// Handles everything that has happened. Returns when to call it again even if nothing happens.
    fn turn(&mut self) -> Result<Option<BootNs>, Stopped>;

    /// Reports that the source is down.
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

/// Follows the files until the daemon shuts down. `name`: the source's name. `about`: what the files are, for people.
/// Releases `first` when the files were read, or could not be.
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
        // The thread panicked, and the follower is lost with it.
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
            // The thread hangs and holds the follower: a new one leaves out what it hangs at.
            (None, Stopped::Hangs(target)) => {
                tracing::warn!("{target} does not answer: {about} is read without it");
                new()
            }
            _ => return,
        };
    }
}

/// Runs from opening the watches until they fail.
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
            // A file that was left out may answer again.
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

/// Sends the facts of a turn. Never call it on an async worker.
///
/// # Errors
/// The daemon is shutting down; or the calling thread hung, and another one reports these files by now.
pub(super) fn send(emit: &Emit, facts: Vec<Fact>) -> Result<(), Closed> {
    if reading::is_left() { Err(Closed) } else { emit.send_blocking(facts) }
}
