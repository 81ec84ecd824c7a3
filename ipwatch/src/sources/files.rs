//! Follows files by inotify until the daemon shuts down. A turn, which may read every file, runs on a thread of its
//! own. A thread that hangs in the kernel is left behind with its follower, and a new follower leaves out what it hangs
//! at. If inotify fails, the source is down and is retried. If only its limits are reached (other processes of the user
//! may use up what it has), everything is read now and then until there are watches again.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::io::Interest;

use super::backoff::Pauses;
use super::inotify::is_exhausted;
use super::ready::ready;
use super::{Closed, Emit, Unheard};
use crate::clock;
use crate::fact::{BootNs, Fact};
use crate::reading::{self, Readings, Target};

/// The first and the longest pause after inotify failed.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Between two reads of everything without watches. Watches are tried before each.
const LOOK_EVERY: Duration = Duration::from_secs(5);

pub(super) trait FileFollower: Send + Sized + 'static {
    /// Opens new watches. Everything is read afterwards.
    fn open(&mut self) -> io::Result<OwnedFd>;

    /// Makes the next turn read everything.
    fn read_anew(&mut self);

    /// Gives up the watches, if any, until the next [`open`](Self::open): each turn reads everything. The source is
    /// degraded meanwhile.
    fn unwatched(&mut self, error: &io::Error);

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
    /// Without watches: it is time to try for some.
    #[error("watches are to be tried again")]
    Again,
}

/// The follower, unless a thread hangs that has it, and why its session ended.
type Ended<F> = io::Result<(Option<F>, Stopped)>;

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
    // Why there can be no watches for now.
    let mut exhausted = None;
    loop {
        let ended = match exhausted.take() {
            None => session(follower, name, &readings, &mut first, &mut pauses).await,
            Some(error) => unwatched(follower, &error, name, &readings, &mut first).await,
        };
        // The thread panicked, and the follower is lost with it.
        let anew = |error: io::Error| (Some(new()), Stopped::Io(error));
        follower = match ended.unwrap_or_else(anew) {
            (Some(follower), Stopped::Io(error)) if is_exhausted(&error) => {
                exhausted = Some(error);
                follower
            }
            (Some(follower), Stopped::Again) => follower,
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
) -> Ended<F> {
    let mut returns = readings.returns();
    let readable = match follower.open().and_then(|fd| ready(fd, Interest::READABLE)) {
        Ok(readable) => readable,
        Err(error) => return Ok((Some(follower), error.into())),
    };
    loop {
        let next;
        (follower, next) = match turn(follower, name, readings, first).await? {
            Ok(done) => done,
            Err(ended) => return Ok(ended),
        };
        pauses.begin_anew();
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

/// Reads everything, and what is due, until watches are to be tried again.
async fn unwatched<F: FileFollower>(
    mut follower: F,
    error: &io::Error,
    name: &'static str,
    readings: &Readings,
    first: &mut Option<Unheard>,
) -> Ended<F> {
    follower.unwatched(error);
    let again = clock::now().plus(LOOK_EVERY.as_nanos() as u64);
    while clock::now() < again {
        let next;
        (follower, next) = match turn(follower, name, readings, first).await? {
            Ok(done) => done,
            Err(ended) => return Ok(ended),
        };
        until(Some(next.map_or(again, |next| next.min(again)))).await;
    }
    Ok((Some(follower), Stopped::Again))
}

/// What a turn leaves: the follower and when its next turn is due, or how the session has ended.
type Turned<F> = Result<(F, Option<BootNs>), (Option<F>, Stopped)>;

/// A turn off the async worker: it may read every file. Releases `first` if it has.
async fn turn<F: FileFollower>(
    mut follower: F,
    name: &'static str,
    readings: &Readings,
    first: &mut Option<Unheard>,
) -> io::Result<Turned<F>> {
    let work = move || {
        let turned = follower.turn();
        (follower, turned)
    };
    Ok(match reading::unblocked(readings, name, work).await? {
        Err(hangs) => Err((None, Stopped::Hangs(hangs))),
        Ok((follower, Ok(next))) => {
            *first = None;
            Ok((follower, next))
        }
        Ok((follower, Err(stopped))) => Err((Some(follower), stopped)),
    })
}

async fn until(next: Option<BootNs>) {
    match next {
        Some(next) => tokio::time::sleep(Duration::from_nanos(next.since(clock::now()))).await,
        None => std::future::pending().await,
    }
}

/// How files are read that cannot be watched, for people.
pub(super) fn unwatched_because(error: &io::Error) -> String {
    format!("read every {} s instead of watched: {error}", LOOK_EVERY.as_secs())
}

/// Sends the facts of a turn. Never call it on an async worker.
///
/// # Errors
/// The daemon is shutting down; or the calling thread hung, and another one reports these files by now.
pub(super) fn send(emit: &Emit, facts: Vec<Fact>) -> Result<(), Closed> {
    if reading::is_left() { Err(Closed) } else { emit.send_blocking(facts) }
}
