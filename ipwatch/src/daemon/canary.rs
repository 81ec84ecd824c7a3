//! When the canary runs (`crate::canary`), and what follows from it: the programs of an event that is attached but was
//! not seen are attached again. If that does not help, the event counts as not seen, here and in the map, and what can be
//! read instead is polled. It also runs when a sweep of the tasks shows what no event reported.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::dispatch::Dispatch;
use super::start;
use crate::canary::{self, Help, Verdict};
use crate::clock;
use crate::fact::{BootNs, Observation, Sight};
use crate::rights::{Rights, Starter};
use crate::sources::Emit;
use crate::sources::probes::{Again, Standings};

/// First run, after the start: the first netns are adopted by then.
const FIRST: Duration = Duration::from_secs(5);
const DAILY: Duration = Duration::from_secs(24 * 3600);
/// Next run after an event was found blind or could not be judged for a reason that may pass; doubles up to
/// `AGAIN_AT_MOST`.
const AGAIN: Duration = Duration::from_secs(60);
const AGAIN_AT_MOST: Duration = Duration::from_secs(3600);
/// The second run waits this many times longer than the first for what was not seen.
const PATIENCE: u32 = 2;
/// How often the programs of an event are attached again at most, until it is seen.
const ATTEMPTS: u32 = 5;
/// Minimum pause between two runs, however often somebody asks.
const BETWEEN: Duration = Duration::from_secs(2);
/// Maximum number of clients that wait for a run.
const ASKERS: usize = 16;

/// If one of these is not seen, the tasks must be polled: a task may come, move or begin to exit without an event.
const TASKS: [&str; 7] = [
    "process-fork",
    "process-exec",
    "process-exit",
    "netns-release",
    "netns-join",
    "sigkill",
    "group-exit",
];
/// If this is not seen, the netns must be listed.
const NETNS: &str = "netns-created";

/// When the canary runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// Never: for a single look, a recording, and with `observe_only`.
    Never,
    /// When a client asks.
    Asked,
    /// Also by itself.
    Daily,
}

/// The handle to request a run.
#[derive(Debug, Clone)]
pub(super) struct Keeper {
    asks: mpsc::Sender<oneshot::Sender<()>>,
    when: When,
}

impl Keeper {
    /// Starts the task that runs the canary. `sweeps`: the configuration allows all tasks to be read regularly.
    pub(super) fn start(
        when: When,
        sweeps: bool,
        (standings, attacher): (Arc<Standings>, Arc<Again>),
        (dispatch, starter): (Dispatch, Starter),
        emit: Emit,
    ) -> Self {
        let (sender, asked) = mpsc::channel(ASKERS);
        let first = (when == When::Daily).then_some(FIRST);
        let sight = standings.sight();
        let polling = None;
        let blind = Vec::new();
        let (unsure, again) = (false, AGAIN);
        let keeping = Keeping {
            standings,
            attacher,
            attempts: BTreeMap::new(),
            dispatch,
            starter,
            emit,
            sweeps,
            sight,
            polling,
            blind,
            unsure,
            again,
        };
        tokio::spawn(keeping.keep(first, asked));
        Self { asks: sender, when }
    }

    /// Something was not reported: requests a run, if the canary may run by itself.
    pub(super) fn doubt(&self) {
        if self.when == When::Daily {
            drop(self.ask());
        }
    }

    /// Requests a run. The receiver completes when the run has ended, or cannot start.
    pub(super) fn ask(&self) -> oneshot::Receiver<()> {
        let (done, receiver) = oneshot::channel();
        // If too many ask, the sender is dropped with the message and the receiver completes at once.
        let _ = self.asks.try_send(done);
        receiver
    }
}

struct Keeping {
    standings: Arc<Standings>,
    attacher: Arc<Again>,
    /// Of events that were not seen: attempts to attach their programs again.
    attempts: BTreeMap<&'static str, Attempts>,
    dispatch: Dispatch,
    starter: Starter,
    emit: Emit,
    sweeps: bool,
    /// As reported to the map.
    sight: Sight,
    /// Polls what a blind event does not report.
    polling: Option<JoinHandle<()>>,
    /// The events that are blind.
    blind: Vec<&'static str>,
    /// Some event could not be judged.
    unsure: bool,
    again: Duration,
}

impl Keeping {
    async fn keep(
        mut self,
        first: Option<Duration>,
        mut asked: mpsc::Receiver<oneshot::Sender<()>>,
    ) {
        let mut pause = first;
        loop {
            let due = async {
                match pause {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            let asker = tokio::select! {
                () = due => None,
                asker = asked.recv() => match asker {
                    Some(asker) => Some(asker),
                    None => return,
                },
            };
            if self.prove().await.is_err() {
                return;
            }
            let waiting = std::iter::from_fn(|| asked.try_recv().ok());
            for asker in asker.into_iter().chain(waiting) {
                // The client may have given up.
                let _ = asker.send(());
            }
            if first.is_some() {
                let settled = self.blind.is_empty() && !self.unsure;
                let (next, again) = next(settled, self.again);
                (pause, self.again) = (Some(next), again);
            }
            tokio::time::sleep(BETWEEN).await;
        }
    }

    /// Runs the canary, and a second time if something was not seen: a busy node may have been late. `Err`: the
    /// daemon is shutting down.
    async fn prove(&mut self) -> Result<(), crate::sources::Closed> {
        let Some(mut verdicts) = self.run(1).await else { return Ok(()) };
        let unseen = |verdict: &Verdict| matches!(verdict, Verdict::NotSeen(_));
        if verdicts.values().any(unseen)
            && let Some(second) = self.run(PATIENCE).await
        {
            for (event, verdict) in second {
                if verdicts.get(event).is_none_or(unseen) {
                    verdicts.insert(event, verdict);
                }
            }
        }
        let again = self.attach_again(&verdicts).await;
        if !again.is_empty()
            && let Some(third) = self.run(1).await
        {
            for event in again {
                let Some(verdict) = third.get(event) else { continue };
                if matches!(verdict, Verdict::NotNow(_)) {
                    continue;
                }
                if matches!(verdict, Verdict::Seen(_)) {
                    tracing::warn!(event, "attached again: the probe had told nothing, and works");
                    let calls = event == "cni-call";
                    let lost = start::daemon_fact(Observation::Lost { count: None, calls });
                    self.emit.send(vec![lost]).await?;
                }
                verdicts.insert(event, verdict.clone());
            }
        }
        let now = clock::now();
        self.attempts.retain(|event, _| verdicts.get(event).is_some_and(unseen));
        self.unsure = verdicts.values().any(|verdict| matches!(verdict, Verdict::NotNow(_)));
        for (event, verdict) in verdicts {
            self.standings.proofs().set(event, verdict, now);
        }
        self.follow().await
    }

    /// Attaches the programs of events again that were not seen, and returns these events. Each is given some attempts, with
    /// growing pauses however often somebody asks for a run.
    async fn attach_again(
        &mut self,
        verdicts: &BTreeMap<&'static str, Verdict>,
    ) -> Vec<&'static str> {
        let now = clock::now();
        let mut due = Vec::new();
        for (event, verdict) in verdicts {
            let is_unseen = matches!(verdict, Verdict::NotSeen(_));
            if is_unseen && self.attempts.entry(event).or_default().take(now) {
                due.push(*event);
            }
        }
        if due.is_empty() {
            return due;
        }
        let attacher = Arc::clone(&self.attacher);
        let (done, attached) = oneshot::channel();
        let work = move || {
            let try_one = |event: &&'static str| match attacher.attach(event) {
                Ok(()) => true,
                Err(why) => {
                    tracing::warn!(event = *event, "cannot be attached again: {why}");
                    false
                }
            };
            // Nobody waits any more if the daemon is shutting down.
            let _ = done.send(due.into_iter().filter(try_one).collect::<Vec<_>>());
        };
        if let Err(error) = self.starter.spawn("attach", Rights::Attach, work) {
            tracing::warn!("no program is attached again: {error}");
        }
        let again = attached.await.unwrap_or_default();
        for event in &again {
            self.standings.attached_again(event, clock::now());
        }
        again
    }

    /// One run, on a thread that may block.
    async fn run(&self, patience: u32) -> Option<BTreeMap<&'static str, Verdict>> {
        let (standings, dispatch, emit) =
            (Arc::clone(&self.standings), self.dispatch.clone(), self.emit.clone());
        let (done, run) = oneshot::channel();
        let work = move || {
            // Nobody waits any more if the daemon is shutting down.
            let _ = done.send(one(&standings, &dispatch, &emit, patience));
        };
        if let Err(error) = self.starter.spawn("canary", Rights::Canary, work) {
            tracing::warn!("the canary: {error}");
        }
        run.await.ok()
    }

    /// Applies the verdicts: reports the blind events and polls instead of them.
    async fn follow(&mut self) -> Result<(), crate::sources::Closed> {
        let blind: Vec<&'static str> = self
            .standings
            .attached()
            .into_iter()
            .map(|(event, _)| event)
            .filter(|event| self.standings.proofs().is_blind(event))
            .collect();
        if blind == self.blind {
            return Ok(());
        }
        for event in blind.iter().filter(|event| !self.blind.contains(event)) {
            tracing::warn!(
                event,
                "attached, but the event of the canary was not reported: the probe counts as not working"
            );
        }
        for event in self.blind.iter().filter(|event| !blind.contains(event)) {
            tracing::info!(event, "the event of the canary was reported again");
        }
        let walk = blind.contains(&NETNS);
        let tasks = self.sweeps && TASKS.iter().any(|event| blind.contains(event));
        if let Some(polling) = self.polling.take() {
            polling.abort();
        }
        if walk || tasks {
            let dispatch = self.dispatch.clone();
            self.polling = Some(tokio::spawn(start::tick(dispatch, true, walk, tasks)));
        }
        self.dispatch.poll_also(walk || tasks);
        self.blind = blind;
        let sight = self.standings.sight();
        if sight != self.sight {
            self.sight = sight;
            self.emit.send(vec![start::daemon_fact(Observation::Sight(sight))]).await?;
        }
        start::tell_probes(&self.standings.report(), start::Sight::Everything, &self.emit).await
    }
}

/// Attempts to attach the programs of one event again.
#[derive(Debug, Default)]
struct Attempts {
    made: u32,
    /// Not before this.
    next: BootNs,
}

impl Attempts {
    /// Whether to make one now.
    fn take(&mut self, now: BootNs) -> bool {
        if self.made == ATTEMPTS || now < self.next {
            return false;
        }
        let pause = AGAIN * 2_u32.pow(self.made);
        self.next = now.plus(pause.min(AGAIN_AT_MOST).as_nanos() as u64);
        self.made += 1;
        true
    }
}

/// The pause until the next run, and the value of `again` after that.
fn next(settled: bool, again: Duration) -> (Duration, Duration) {
    if settled { (DAILY, AGAIN) } else { (again, (again * 2).min(AGAIN_AT_MOST)) }
}

/// Runs the canary and judges the result.
fn one(
    standings: &Standings,
    dispatch: &Dispatch,
    emit: &Emit,
    patience: u32,
) -> BTreeMap<&'static str, Verdict> {
    let events = standings.attached();
    let before: Vec<u64> = events.iter().map(|(event, _)| standings.lost(event)).collect();
    let counted = |kind| standings.counted(kind);
    let help = Help {
        lists: &|| dispatch.lists(),
        walk: &|| dispatch.walk(),
        counted: &counted,
        over: &|| emit.is_closed(),
        patience,
    };
    let account = canary::run(&emit.claims(), &events, &help);
    tracing::debug!(?account, "the canary");
    let judged = events.iter().zip(before).map(|((event, rung), before)| {
        let lost = standings.lost(event) > before;
        (*event, canary::judge(event, *rung, &account.marks, &account.left_out, lost))
    });
    judged.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_attached_again_a_few_times_at_most() {
        let mut attempts = Attempts::default();
        let seconds = (1..8000).filter(|second| attempts.take(BootNs(second * 1_000_000_000)));
        assert_eq!(seconds.collect::<Vec<_>>(), [1, 61, 181, 421, 901]);
    }

    #[test]
    fn what_is_not_settled_is_tried_again_less_and_less_often() {
        let mut again = AGAIN;
        let mut pauses = Vec::new();
        for settled in [true, false, false, false, false, false, false, false, false, true, false] {
            let pause;
            (pause, again) = next(settled, again);
            pauses.push(pause.as_secs() / 60);
        }
        assert_eq!(pauses, [1440, 1, 2, 4, 8, 16, 32, 60, 60, 1440, 1]);
    }
}
