//! When the canary runs (`crate::canary`), and what follows from it: an event that is attached and was not seen counts as
//! not seen, here and in the map, and what can be read instead is read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::dispatch::Dispatch;
use super::start;
use crate::canary::{self, Help, Verdict};
use crate::clock;
use crate::fact::{Observation, Sight};
use crate::sources::Emit;
use crate::sources::probes::Standings;

/// After the start: the first netns are adopted by then.
const FIRST: Duration = Duration::from_secs(5);
const DAILY: Duration = Duration::from_secs(24 * 3600);
/// After an event was found blind, or nothing could be said of it for a reason that may pass, to see whether it stays so;
/// then less and less often.
const AGAIN: Duration = Duration::from_secs(60);
const AGAIN_AT_MOST: Duration = Duration::from_secs(3600);
/// How much longer than the first run the second one waits for what was not seen.
const PATIENCE: u32 = 2;
/// Whoever asks again and again gets what was seen last.
const BETWEEN: Duration = Duration::from_secs(2);
/// Who may wait for one run.
const ASKERS: usize = 16;

/// Without one of these the tasks have to be read: somebody may come, move, or be on the way out, without a word.
const TASKS: [&str; 7] = [
    "process-fork",
    "process-exec",
    "process-exit",
    "netns-release",
    "netns-join",
    "sigkill",
    "group-exit",
];
/// Without it the netns have to be listed.
const NETNS: &str = "netns-created";

/// When it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// Never: who looks once, who records, and with `observe_only`.
    Never,
    /// When somebody asks.
    Asked,
    /// By itself too.
    Daily,
}

/// A way to ask for a run.
#[derive(Debug, Clone)]
pub(super) struct Keeper(mpsc::Sender<oneshot::Sender<()>>);

impl Keeper {
    /// Runs it from now on. `sweeps`: all tasks may be read now and then.
    pub(super) fn start(
        when: When,
        sweeps: bool,
        standings: Arc<Standings>,
        dispatch: Dispatch,
        emit: Emit,
    ) -> Self {
        let (sender, asked) = mpsc::channel(ASKERS);
        let first = (when == When::Daily).then_some(FIRST);
        let sight = standings.sight();
        let polling = None;
        let blind = Vec::new();
        let (unsure, again) = (false, AGAIN);
        let keeping =
            Keeping { standings, dispatch, emit, sweeps, sight, polling, blind, unsure, again };
        tokio::spawn(keeping.keep(first, asked));
        Self(sender)
    }

    /// Asks for a run: done when it is over, or cannot be.
    pub(super) fn ask(&self) -> oneshot::Receiver<()> {
        let (done, receiver) = oneshot::channel();
        // Where too many ask, the sender is dropped with the message and the answer does not wait.
        let _ = self.0.try_send(done);
        receiver
    }
}

struct Keeping {
    standings: Arc<Standings>,
    dispatch: Dispatch,
    emit: Emit,
    sweeps: bool,
    /// As the map knows it.
    sight: Sight,
    /// Reads what an event that is blind does not tell.
    polling: Option<JoinHandle<()>>,
    /// The events that are blind.
    blind: Vec<&'static str>,
    /// Of an event nothing could be said.
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
                // Whoever asked may have given up.
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

    /// Runs it, and once more where something was not seen: a busy node may have been late. `Err`: the daemon is going
    /// down.
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
        let now = clock::now();
        self.unsure = verdicts.values().any(|verdict| matches!(verdict, Verdict::NotNow(_)));
        for (event, verdict) in verdicts {
            self.standings.proofs().set(event, verdict, now);
        }
        self.follow().await
    }

    /// One run, on a thread that may block.
    async fn run(&self, patience: u32) -> Option<BTreeMap<&'static str, Verdict>> {
        let (standings, dispatch, emit) =
            (Arc::clone(&self.standings), self.dispatch.clone(), self.emit.clone());
        let run = tokio::task::spawn_blocking(move || one(&standings, &dispatch, &emit, patience));
        run.await.inspect_err(|error| tracing::warn!("the canary: {error}")).ok()
    }

    /// What follows from the verdicts.
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
            tracing::warn!(event, "attached, but the canary's was not seen: it counts as not seen");
        }
        for event in self.blind.iter().filter(|event| !blind.contains(event)) {
            tracing::info!(event, "the canary's was seen again");
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

/// When to run it again, and `again` after that.
fn next(settled: bool, again: Duration) -> (Duration, Duration) {
    if settled { (DAILY, AGAIN) } else { (again, (again * 2).min(AGAIN_AT_MOST)) }
}

/// Runs the canary and judges what came of it.
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
