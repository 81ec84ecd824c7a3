//! Follows the daemon: its events as they come, and what they do not tell by questions. Nothing is asked more than once a
//! second, and less often where the answers are large.

use std::collections::VecDeque;
use std::future::pending;
use std::pin::Pin;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::known::{Topic, Update};
use crate::api::client::{Client, ClientError, Watch};
use crate::api::{Ask, Event, Stream};

/// Events within this time are one update: the screen is not drawn more often.
const BATCH: Duration = Duration::from_millis(250);
/// Events that are kept of one batch, the newest. A screen does not show more.
const MOST_EVENTS: usize = 256;
/// Shortest time between two rounds of questions.
const ROUND: Duration = Duration::from_secs(1);
/// Longest, for answers that take long to read.
const LONGEST_ROUND: Duration = Duration::from_secs(60);
/// A round takes at most this part of a core.
const SHARE: u32 = 200;
/// How often the sources and the ranges are asked for. No event tells that a source has failed, or of a reservation.
const UNTOLD: Duration = Duration::from_secs(5);
/// First and last pause between two attempts to reach the daemon.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(8);

/// What the screen wants of the feed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refresh;

/// Follows the daemon until nobody wants its updates.
pub(super) async fn follow(
    client: Client,
    first: Watch,
    updates: mpsc::Sender<Update>,
    mut refresh: mpsc::Receiver<Refresh>,
) {
    let mut watch = Ok(first);
    let mut pause = FIRST_PAUSE;
    loop {
        let why = match watch {
            Ok(watch) => {
                pause = FIRST_PAUSE;
                Session::new(&client, watch, &updates).run(&mut refresh).await
            }
            Err(error) => error,
        };
        let again = pause.as_secs().max(1);
        let lost = Update::Lost { why: short(&why), again };
        if updates.send(lost).await.is_err() {
            return;
        }
        tokio::select! {
            () = sleep(pause) => {}
            // A person who does not want to wait.
            _ = refresh.recv() => {}
        }
        pause = (pause * 2).min(LAST_PAUSE);
        watch = client.watch(Stream::Events).await;
    }
}

/// The error, in few words: the hint of what to do does not fit into a line.
fn short(error: &ClientError) -> String {
    match error {
        ClientError::NoDaemon(_) => "no daemon answers".to_owned(),
        ClientError::Timeout(_) => "the daemon does not answer in time".to_owned(),
        error => error.to_string(),
    }
}

/// What is to be asked for.
#[derive(Debug, Clone, Copy)]
struct Due([bool; Topic::ALL.len()]);

impl Due {
    fn mark(&mut self, topic: Topic) {
        self.0[topic as usize] = true;
    }

    fn is_any(self) -> bool {
        self.0.contains(&true)
    }

    /// What an event changes, by the beginning of its line: most lines of a burst are never parsed.
    fn by_event(&mut self, line: &str) {
        if line.starts_with(r#"{"event":"held""#) || line.starts_with(r#"{"event":"released""#) {
            self.mark(Topic::Ranges);
            return;
        }
        for topic in [Topic::Findings, Topic::Ranges, Topic::Neighbours] {
            self.mark(topic);
        }
    }
}

/// Answers to one round of questions, and what reading them cost.
type Round = Pin<Box<dyn Future<Output = Result<(Vec<Update>, Duration), ClientError>> + Send>>;

/// One connection to the daemon.
struct Session<'a> {
    client: &'a Client,
    watch: Watch,
    updates: &'a mpsc::Sender<Update>,
    /// The newest events that were not yet passed on.
    lines: VecDeque<String>,
    omitted: u64,
    /// When they are passed on.
    flush: Option<Instant>,
    due: Due,
    /// When the next round may begin.
    next_round: Instant,
    round: Option<Round>,
    /// The codes that could not be judged, by the last answer.
    blind: Option<usize>,
}

impl<'a> Session<'a> {
    fn new(client: &'a Client, watch: Watch, updates: &'a mpsc::Sender<Update>) -> Self {
        Self {
            client,
            watch,
            updates,
            lines: VecDeque::new(),
            omitted: 0,
            flush: None,
            // Asked after subscribing, so that no event is lost in between.
            due: Due([true; Topic::ALL.len()]),
            next_round: Instant::now(),
            round: None,
            blind: None,
        }
    }

    /// Returns why it ended.
    async fn run(mut self, refresh: &mut mpsc::Receiver<Refresh>) -> ClientError {
        match self.try_run(refresh).await {
            Ok(()) => ClientError::NoDaemon(self.client.path().to_owned()),
            Err(error) => error,
        }
    }

    /// `Ok`: the daemon has closed the stream, or nobody wants updates.
    async fn try_run(&mut self, refresh: &mut mpsc::Receiver<Refresh>) -> Result<(), ClientError> {
        if self.updates.send(Update::Following).await.is_err() {
            return Ok(());
        }
        let mut untold = Instant::now() + UNTOLD;
        loop {
            if self.round.is_none() && self.due.is_any() && Instant::now() >= self.next_round {
                let due = std::mem::replace(&mut self.due, Due([false; Topic::ALL.len()]));
                self.round = Some(Box::pin(ask(self.client.clone(), due)));
            }
            let round_at = (self.round.is_none() && self.due.is_any()).then_some(self.next_round);
            tokio::select! {
                line = self.watch.next_line() => match line? {
                    None => return Ok(()),
                    Some(line) => self.event(line),
                },
                () = at(self.flush) => {
                    if !self.pass_on().await {
                        return Ok(());
                    }
                }
                answers = answers(&mut self.round) => {
                    self.round = None;
                    let (answers, cost) = answers?;
                    self.next_round = Instant::now() + (cost * SHARE).clamp(ROUND, LONGEST_ROUND);
                    for answer in answers {
                        self.notice_blindness(&answer);
                        if self.updates.send(answer).await.is_err() {
                            return Ok(());
                        }
                    }
                }
                () = at(round_at) => {}
                () = sleep_until(untold) => {
                    self.due.mark(Topic::Doctor);
                    self.due.mark(Topic::Ranges);
                    untold = Instant::now() + UNTOLD;
                }
                wanted = refresh.recv() => match wanted {
                    None => return Ok(()),
                    Some(Refresh) => self.due = Due([true; Topic::ALL.len()]),
                },
            }
        }
    }

    fn event(&mut self, line: String) {
        self.due.by_event(&line);
        if self.lines.len() == MOST_EVENTS {
            self.lines.pop_front();
            self.omitted += 1;
        }
        self.lines.push_back(line);
        self.flush.get_or_insert_with(|| Instant::now() + BATCH);
    }

    /// `false`: nobody wants updates.
    async fn pass_on(&mut self) -> bool {
        self.flush = None;
        // The contract may grow: unknown events of a newer daemon are skipped.
        let events: Vec<Event> =
            self.lines.drain(..).filter_map(|line| serde_json::from_str(&line).ok()).collect();
        let omitted = std::mem::take(&mut self.omitted);
        self.updates.send(Update::Events { events, omitted }).await.is_ok()
    }

    /// Which findings are judged changes with the sources, and no event tells it.
    fn notice_blindness(&mut self, answer: &Update) {
        if let Update::Answer(Topic::Doctor, document) = answer {
            let blind = Some(document.blind.len());
            if self.blind.is_some() && self.blind != blind {
                self.due.mark(Topic::Findings);
            }
            self.blind = blind;
        }
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

async fn answers(round: &mut Option<Round>) -> Result<(Vec<Update>, Duration), ClientError> {
    match round {
        Some(round) => round.await,
        None => pending().await,
    }
}

/// Asks what is due. A refusal is an answer: the daemon is there.
async fn ask(client: Client, due: Due) -> Result<(Vec<Update>, Duration), ClientError> {
    let before = cpu_time();
    let mut updates = Vec::new();
    for topic in Topic::ALL.into_iter().filter(|topic| due.0[*topic as usize]) {
        let ask = match topic {
            Topic::Findings => Ask::Findings { all: false, what: None },
            Topic::Ranges => Ask::Ipam { ip: None, network: None },
            Topic::Neighbours => Ask::Neighbours(None),
            Topic::Doctor => Ask::Doctor,
        };
        updates.push(match client.ask(&ask).await {
            Ok(document) => Update::Answer(topic, Box::new(document)),
            Err(ClientError::Refused { error, .. }) => Update::Refused(topic, error),
            Err(error) => return Err(error),
        });
    }
    Ok((updates, cpu_time().saturating_sub(before)))
}

/// What this thread, which does everything, has computed so far.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(time.tv_sec.unsigned_abs(), nanos)
}
