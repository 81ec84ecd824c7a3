//! When the canary runs (`crate::canary`), and what follows from it: an event that is attached and was not seen counts as
//! not seen, here and in the map, and what can be read instead is read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::desk::Desk;
use super::start;
use crate::canary::{self, Claims, Help, Verdict};
use crate::clock;
use crate::fact::{Sight, What};
use crate::sources::Emit;
use crate::sources::probes::Standings;

/// After the start: the first netns are adopted by then.
const FIRST: Duration = Duration::from_secs(5);
const DAILY: Duration = Duration::from_secs(24 * 3600);
/// After an event was found blind, to see whether it stays so; then less and less often.
const AGAIN: Duration = Duration::from_secs(60);
const AGAIN_AT_MOST: Duration = Duration::from_secs(3600);
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
        desk: Desk,
        emit: Emit,
    ) -> Self {
        let (sender, asked) = mpsc::channel(ASKERS);
        let first = (when == When::Daily).then_some(FIRST);
        let sight = standings.sight();
        let polling = None;
        let blind = Vec::new();
        let keeping =
            Keeping { standings, desk, emit, sweeps, sight, polling, blind, again: AGAIN };
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
    desk: Desk,
    emit: Emit,
    sweeps: bool,
    /// As the map knows it.
    sight: Sight,
    /// Reads what an event that is blind does not tell.
    polling: Option<JoinHandle<()>>,
    /// The events that are blind.
    blind: Vec<&'static str>,
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
            pause = first.map(|_| self.pause());
            tokio::time::sleep(BETWEEN).await;
        }
    }

    fn pause(&mut self) -> Duration {
        if self.blind.is_empty() {
            self.again = AGAIN;
            return DAILY;
        }
        let pause = self.again;
        self.again = (pause * 2).min(AGAIN_AT_MOST);
        pause
    }

    /// Runs it, and once more where something was not seen: a busy node may have been late. `Err`: the daemon is going
    /// down.
    async fn prove(&mut self) -> Result<(), crate::sources::Closed> {
        let Some(mut verdicts) = self.run().await else { return Ok(()) };
        let unseen = |verdict: &Verdict| matches!(verdict, Verdict::NotSeen(_));
        if verdicts.values().any(unseen)
            && let Some(second) = self.run().await
        {
            for (event, verdict) in second {
                if verdicts.get(event).is_none_or(unseen) {
                    verdicts.insert(event, verdict);
                }
            }
        }
        let now = clock::now();
        for (event, verdict) in verdicts {
            self.standings.proofs().set(event, verdict, now);
        }
        self.follow().await
    }

    /// One run, on a thread that may block.
    async fn run(&self) -> Option<BTreeMap<&'static str, Verdict>> {
        let (standings, desk, claims) =
            (Arc::clone(&self.standings), self.desk.clone(), self.emit.claims());
        let run = tokio::task::spawn_blocking(move || one(&standings, &desk, &claims));
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
            let desk = self.desk.clone();
            self.polling = Some(tokio::spawn(start::tick(desk, true, walk, tasks)));
        }
        self.desk.poll_also(walk || tasks);
        self.blind = blind;
        let sight = self.standings.sight();
        if sight != self.sight {
            self.sight = sight;
            self.emit.send(vec![start::daemon_fact(What::Sight(sight))]).await?;
        }
        start::tell_probes(&self.standings.report(), start::Sight::Everything, &self.emit).await
    }
}

/// Runs the canary and judges what came of it.
fn one(
    standings: &Standings,
    desk: &Desk,
    claims: &Arc<Claims>,
) -> BTreeMap<&'static str, Verdict> {
    let events = standings.attached();
    let before: Vec<u64> = events.iter().map(|(event, _)| standings.lost(event)).collect();
    let counted = |kind| standings.counted(kind);
    let help = Help { lists: &|| desk.lists(), walk: &|| desk.walk(), counted: &counted };
    let account = canary::run(claims, &events, &help);
    tracing::debug!(?account, "the canary");
    let judged = events.iter().zip(before).map(|((event, rung), before)| {
        let lost = standings.lost(event) > before;
        (*event, canary::judge(event, *rung, &account.marks, &account.left_out, lost))
    });
    judged.collect()
}
