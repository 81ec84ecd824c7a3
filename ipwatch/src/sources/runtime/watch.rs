//! The life of one socket: connect, list, follow, and retry after a failure.
//!
//! Every step has a timeout, and each runtime has a task of its own: one that hangs does not delay the others.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::error::{Ended, RuntimeError};
use super::find::{self, Candidate};
use super::known::{Details, Known};
use super::names::{Names, Seat};
use super::reporter::{self, Found};
use super::{Pace, cri, docker};
use crate::clock;
use crate::fact::{Life, Observation, Origin, Sandbox, SourceStatus};
use crate::reading::Readings;
use crate::sources::backoff::Pauses;
use crate::sources::errors::{Unconnected, within};
use crate::sources::session::Standing;
use crate::sources::socket::Paused;
use crate::sources::{Closed, Emit, Unheard};

/// Number of sandboxes whose details are requested in parallel.
const AT_A_TIME: usize = 8;
/// Maximum number of waiting events. One that does not fit is covered by the list that the waiting ones cause.
const EVENTS: usize = 64;

/// Shared by all watches.
#[derive(Debug, Clone)]
pub(super) struct Parts {
    pub(super) names: Arc<Names>,
    pub(super) pace: Pace,
    pub(super) follow: bool,
    pub(super) emit: Emit,
    pub(super) readings: Readings,
}

/// A connected runtime whose API is known.
#[derive(Clone)]
pub(super) enum Client {
    Cri(cri::Client),
    Docker(docker::Client),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// Something has changed.
    Changed,
    /// This container was started, perhaps again, and then has another netns.
    Started(String),
    Removed(String),
}

/// Where a client sends events.
pub(super) type Events = mpsc::Sender<Event>;

impl Client {
    fn name(&self) -> &str {
        match self {
            Self::Cri(client) => client.name(),
            Self::Docker(client) => client.name(),
        }
    }

    /// Version and API, for people.
    fn version(&self) -> String {
        match self {
            Self::Cri(client) => client.version(),
            Self::Docker(client) => client.version(),
        }
    }

    async fn list(&self, runtime: &str) -> Result<Found, RuntimeError> {
        match self {
            Self::Cri(client) => client.list(runtime).await,
            Self::Docker(client) => client.list(runtime).await,
        }
    }

    async fn details(&self, id: &str) -> Result<Details, RuntimeError> {
        match self {
            Self::Cri(client) => client.details(id).await,
            Self::Docker(client) => client.details(id).await,
        }
    }

    /// Whether the details of a dead sandbox are of any use.
    fn tells_of_the_dead(&self) -> bool {
        matches!(self, Self::Cri(_))
    }

    /// Forwards events until the runtime ends the stream.
    async fn events(&self, out: Events) -> Result<(), RuntimeError> {
        match self {
            Self::Cri(client) => client.events(out).await,
            Self::Docker(client) => client.events(out).await,
        }
    }
}

/// Events of a client, read by a task of its own.
struct Stream {
    events: mpsc::Receiver<Event>,
    began: Instant,
    task: tokio::task::JoinHandle<()>,
}

impl Stream {
    fn of(client: &Client) -> Self {
        let (out, events) = mpsc::channel(EVENTS);
        let client = client.clone();
        let task = tokio::spawn(async move {
            if let Err(error) = client.events(out).await {
                tracing::debug!("no events of {}: {error}", client.name());
            }
        });
        Self { events, began: Instant::now(), task }
    }

    /// Whether no further event can come.
    fn has_ended(&self) -> bool {
        self.events.is_closed() && self.events.is_empty()
    }

    /// Whether the stream lasted, and was not merely refused.
    fn lived(&self, pace: &Pace) -> bool {
        self.began.elapsed() > pace.poll
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Watches one socket.
pub(super) struct Watch {
    candidate: Candidate,
    seat: Option<Seat>,
    parts: Parts,
    known: Known,
    /// Whether it has answered as a runtime before.
    answered: bool,
    standing: Standing,
}

/// When the next list is due.
struct Due {
    next: Instant,
    /// Not before this time, whatever the reason.
    soonest: Instant,
    /// When a second list is due: see [`Pace::after`].
    after: Option<Instant>,
}

impl Due {
    fn now() -> Self {
        let now = Instant::now();
        Self { next: now, soonest: now, after: None }
    }

    /// Requests a list within `wait`.
    fn sooner(&mut self, wait: Duration) {
        self.next = self.next.min((Instant::now() + wait).max(self.soonest));
    }

    /// Schedules the next list after one that took a while, so that a busy runtime does not spend all its time on them.
    fn done(&mut self, took: Duration, regular: Duration, pace: &Pace) {
        let now = Instant::now();
        self.soonest = now + (4 * took).clamp(pace.apart, pace.poll);
        // With jitter, so that two runtimes that started together drift apart.
        let next = now + regular + regular.mul_f32((clock::now().0 % 1024) as f32 / 10_240.0);
        self.next = self.after.take().map_or(next, |after| after.min(next)).max(self.soonest);
    }
}

/// The smaller of `limit` and the time left until `until`.
fn left(limit: Duration, until: Option<Instant>) -> Duration {
    until.map_or(limit, |until| limit.min(until.saturating_duration_since(Instant::now())))
}

impl Watch {
    pub(super) fn new(candidate: Candidate, seat: Option<Seat>, parts: Parts) -> Self {
        let known = Known::default();
        Self { candidate, seat, parts, known, answered: false, standing: Standing::default() }
    }

    /// Runs until the daemon shuts down. Releases `first` once the runtime has answered or failed.
    pub(super) async fn run(mut self, mut first: Option<Unheard>) {
        let mut pauses = Pauses::new(self.parts.pace.retry);
        loop {
            let Some(seat) = self.seat().await else { return };
            // Reported before any other runtime has reported its sandboxes: silence of this runtime does not mean that
            // it denies them.
            if first.is_some() {
                let waits = "has not answered yet".to_owned();
                if self.tell(&seat.name(), SourceStatus::Degraded, waits).await.is_err() {
                    return;
                }
            }
            let error = match self.session(&seat, &mut first, &mut pauses).await {
                Err(Ended::Closed) => return,
                Err(Ended::Failed(error)) => error,
            };
            let told = self.fell_silent(&seat, &error).await;
            self.seat = Some(seat);
            first = None;
            if told.is_err() {
                return;
            }
            if let Paused::Early = self.candidate.way.pause(pauses.after_failure()).await {
                pauses.begin_anew();
            }
            self.candidate.may_be_asked(&self.parts.pace).await;
        }
    }

    /// Its seat, as soon as the socket exists. `None`: another path leads to the same socket.
    async fn seat(&mut self) -> Option<Seat> {
        if let Some(seat) = self.seat.take() {
            return Some(seat);
        }
        let real = find::appear(&self.candidate, &self.parts.pace).await;
        self.parts.names.seat(self.candidate.path(), Some(real))
    }

    /// Runs from the connection to its failure.
    async fn session(
        &mut self,
        seat: &Seat,
        first: &mut Option<Unheard>,
        pauses: &mut Pauses,
    ) -> Result<Infallible, Ended> {
        find::found(&self.parts).await?;
        let pace = self.parts.pace;
        // The first judgement waits for this runtime only for a limited time, and must know by then.
        let hurry = first.is_some().then(|| Instant::now() + pace.first.mul_f32(0.9));
        let client = find::connect(&self.candidate, &pace);
        let client = within("the version", left(pace.short * 2, hurry), client).await?;
        self.answered = true;
        if let Ok(Some(real)) = self.candidate.find().await {
            seat.is_at(real);
        }
        self.rename(seat, client.name()).await?;
        // Before the list, so that nothing is missed in between.
        let mut stream = self.parts.follow.then(|| Stream::of(&client));
        let mut due = Due::now();
        self.expect_more(&mut due);
        loop {
            let limit = left(pace.list, hurry.filter(|_| first.is_some()));
            let took = self.round(seat, &client, stream.as_ref(), limit).await?;
            due.done(took, self.regular(stream.as_ref()), &pace);
            *first = None;
            pauses.begin_anew();
            self.wait(seat, &client, &mut stream, &mut due).await?;
        }
    }

    /// The time between two lists if nothing requests one.
    fn regular(&self, stream: Option<&Stream>) -> Duration {
        match stream {
            Some(stream) if !stream.has_ended() => self.parts.pace.slow,
            _ => self.parts.pace.poll,
        }
    }

    /// Schedules a second list, because the runtime may not have recorded everything yet.
    fn expect_more(&self, due: &mut Due) {
        due.after = Some(Instant::now() + self.parts.pace.after);
    }

    /// Waits until the next list is due, and handles events meanwhile.
    async fn wait(
        &mut self,
        seat: &Seat,
        client: &Client,
        stream: &mut Option<Stream>,
        due: &mut Due,
    ) -> Result<(), Ended> {
        loop {
            let event = async {
                match stream.as_mut().filter(|stream| !stream.has_ended()) {
                    Some(stream) => stream.events.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = tokio::time::sleep_until(due.next) => return Ok(()),
                () = seat.bell.notified() => due.sooner(Duration::ZERO),
                event = event => match event {
                    Some(event) => {
                        self.event(seat, event).await?;
                        due.sooner(self.parts.pace.settle);
                        self.expect_more(due);
                    }
                    // The stream ended. If the runtime stopped, the list will show it. A stream that lasted is opened
                    // again.
                    None if self.candidate.may_be_started() => {
                        let missing = Unconnected::missing(self.candidate.path());
                        return Err(RuntimeError::from(missing).into());
                    }
                    None => {
                        if stream.as_ref().is_some_and(|stream| stream.lived(&self.parts.pace)) {
                            *stream = Some(Stream::of(client));
                        }
                        due.sooner(Duration::ZERO);
                    }
                },
            }
        }
    }

    async fn event(&mut self, seat: &Seat, event: Event) -> Result<(), Closed> {
        match event {
            Event::Changed => Ok(()),
            Event::Started(id) => {
                self.known.forget(&id);
                Ok(())
            }
            Event::Removed(id) => {
                let runtime = seat.name();
                let gone = if self.known.forget(&id) {
                    Observation::SandboxGone { runtime, id }
                } else {
                    Observation::ContainerGone { runtime, id }
                };
                self.parts.emit.send(vec![reporter::fact(clock::now(), gone)]).await
            }
        }
    }

    /// Requests a list and reports it, then requests the details of each new sandbox. Returns how long the list took.
    async fn round(
        &mut self,
        seat: &Seat,
        client: &Client,
        stream: Option<&Stream>,
        limit: Duration,
    ) -> Result<Duration, Ended> {
        let runtime = seat.name();
        let began = clock::now();
        let mut found = within("a list", limit, client.list(&runtime)).await?;
        let took = Duration::from_nanos(clock::now().since(began));
        found.dedup();
        self.known.complete(&mut found);
        let wanted = |sandbox: &&Sandbox| {
            let asks = sandbox.life != Life::Dead || client.tells_of_the_dead();
            asks && self.known.wants(&sandbox.id, began)
        };
        let new: Vec<Sandbox> = found.sandboxes.iter().filter(wanted).cloned().collect();
        let dropped = found.dropped;
        reporter::list(&runtime, found, began, &self.parts.emit).await?;
        self.answers(seat, client, stream, dropped).await?;
        self.ask_after(client, new).await?;
        Ok(took)
    }

    /// Requests the details of new sandboxes, a few in parallel. One that does not answer delays the others and the
    /// next list only for a limited time, and even less if the source does not follow events.
    async fn ask_after(&mut self, client: &Client, new: Vec<Sandbox>) -> Result<(), Closed> {
        let pace = self.parts.pace;
        let until = tokio::time::sleep(if self.parts.follow { pace.list } else { pace.first });
        let mut answers = futures_util::stream::iter(new)
            .map(|sandbox| async move {
                let at = clock::now();
                let asked = client.details(&sandbox.id);
                let details = within("a sandbox's state", pace.short, asked).await;
                (at, sandbox, details)
            })
            .buffer_unordered(AT_A_TIME)
            .take_until(until)
            .ready_chunks(AT_A_TIME)
            .boxed();
        while let Some(answers) = answers.next().await {
            let mut facts = Vec::new();
            for (at, mut sandbox, details) in answers {
                if let Err(error) = &details {
                    tracing::debug!("sandbox {}: {error}", sandbox.id);
                }
                let told = details.is_ok();
                self.known.asked(&mut sandbox, details.ok(), clock::now());
                if told {
                    facts.push(reporter::fact(at, Observation::Sandbox(sandbox)));
                }
            }
            self.parts.emit.send(facts).await?;
        }
        Ok(())
    }

    /// Reports the status of a runtime that answers.
    async fn answers(
        &mut self,
        seat: &Seat,
        client: &Client,
        stream: Option<&Stream>,
        dropped: usize,
    ) -> Result<(), Closed> {
        let who = format!("{}, {}", client.version(), self.candidate.path().display());
        let polled = stream.is_some_and(Stream::has_ended);
        let (status, detail) = if dropped > 0 {
            let lost = format!("{dropped} entries of its list could not be read; {who}");
            (SourceStatus::Degraded, lost)
        } else if polled {
            let every = self.parts.pace.poll.as_secs();
            (SourceStatus::Degraded, format!("polled every {every} s: no event stream; {who}"))
        } else {
            (SourceStatus::Active, who)
        };
        self.tell(&seat.name(), status, detail).await
    }

    /// Reports that the runtime does not answer: its sandboxes are unknown.
    async fn fell_silent(&mut self, seat: &Seat, error: &RuntimeError) -> Result<(), Closed> {
        let socket = self.candidate.path().display();
        let detail = match error {
            // These errors contain the path already.
            RuntimeError::Unconnected(_) => error.to_string(),
            _ => format!("{error}; {socket}"),
        };
        let status = match error {
            // The containerd used by Docker has its CRI disabled. A runtime that offered the CRI before is down.
            RuntimeError::NoCri if !self.answered => SourceStatus::Disabled,
            _ => SourceStatus::Down,
        };
        self.tell(&seat.name(), status, detail).await
    }

    async fn tell(
        &mut self,
        name: &str,
        status: SourceStatus,
        detail: String,
    ) -> Result<(), Closed> {
        self.standing.tell(&self.parts.emit, Origin::Runtime, name, status, detail).await
    }

    async fn rename(&mut self, seat: &Seat, called: &str) -> Result<(), Closed> {
        let Some(before) = seat.rename(called, self.candidate.path()) else { return Ok(()) };
        if !self.standing.forget() {
            return Ok(());
        }
        let gone = Observation::SourceGone { name: before };
        self.parts.emit.send(vec![reporter::fact(clock::now(), gone)]).await
    }
}
