//! The pure half of the program: facts and a time go in, effects come out.
//!
//! [`Engine`] owns the map, the ledger and the thresholds, and decides by these alone what is known, what is wrong, and
//! when to look again. The daemon, `ipwatch record`, `ipwatch replay` and the benches run this engine, so that a
//! recording gives the findings that the daemon gave. No I/O, no clock, no tokio, no aya: what the outside must do is
//! in [`Effects`], and the results come back as facts.

#![warn(missing_docs)]

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod held;
#[cfg(any(test, feature = "fuzzing"))]
mod lives;

use std::collections::{BTreeMap, BTreeSet};

use crate::clock::Calendar;
use crate::contract::{Prefix, Tenure};
use crate::detect::{self, Detection};
use crate::fact::{BootNs, Fact, Observation, SourceName};
use crate::finding::{Change, Code, Finding, Status};
use crate::ledger::life::Standing;
use crate::ledger::{AckRequest, Ledger, Loaded, TenureRow, Writes};
use crate::map::request::Request;
use crate::map::{
    CallEntry, Ending, NeighbourNews, NodeMap, TaskEntry, TenureEvent, Thresholds, Whose,
};
use crate::remedy::Daemon;

/// The first snapshot counts as complete after this, in ns, whatever is still missing.
const READY_AFTER: u64 = 5_000_000_000;
/// The sources that must have reported a status before the first snapshot is complete.
const SOURCES: [SourceName; 6] = [
    SourceName::Cni,
    SourceName::Neighbours,
    SourceName::Netlink,
    SourceName::Probes,
    SourceName::Procfs,
    SourceName::Routes,
];
/// Minimum interval between two reads of everything after a loss, in ns.
const REREAD_EVERY: u64 = 1_000_000_000;
/// How long, in ns, a scan waits for the runtimes' second answer. A runtime that works gives it within two seconds.
const RUNTIMES_WITHIN: u64 = 4_000_000_000;

/// The part of the configuration that changes what is found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    /// Ignore cookies: see [`NodeMap::new`]. Read at the start only.
    pub provisional: bool,
    /// The thresholds.
    pub thresholds: Thresholds,
    /// IPs that are shared on purpose.
    pub shared: Vec<Prefix>,
}

/// A change of tenure, as recorded by the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenureChange {
    /// Tenures of an earlier boot, which ended with it.
    EndedByReboot {
        /// The id of that boot.
        boot_id: String,
        /// The tenures that ended.
        tenures: Vec<Tenure>,
    },
    /// The tenure has begun.
    Held(TenureRow),
    /// The tenure has ended.
    Released(TenureRow),
}

/// What the outside must do after a step, in the order of the fields.
#[derive(Debug, Default)]
pub struct Effects {
    /// Events were lost: read everything again.
    pub reread: bool,
    /// What to find out. The answer, or that there will be none, is a fact of a later step.
    pub wants: Vec<Request>,
    /// Rows for the ledger's file.
    pub writes: Writes,
    /// The first snapshot became complete in this step.
    pub whole: bool,
    /// Tenures that began or ended.
    pub tenures: Vec<TenureChange>,
    /// Neighbour entries that changed, if they are wanted: see [`Engine::want_neighbours`].
    pub neighbours: NeighbourNews,
    /// Teardowns of netns that have ended, or hang.
    pub teardowns: Vec<Ending>,
    /// The number of further teardowns, for which there was no room.
    pub untold_teardowns: u64,
    /// Runs of CNI plugins that have ended.
    pub calls: Vec<CallEntry>,
    /// Findings that changed.
    pub changes: Vec<Change>,
    /// When the next step is due, if no fact arrives before.
    pub next: Option<BootNs>,
}

/// See the [module's documentation](self).
#[derive(Debug)]
pub struct Engine {
    map: NodeMap,
    ledger: Ledger,
    thresholds: Thresholds,
    started: BootNs,
    /// The container runtimes and stores have given their first answer, or had the time to.
    answered: bool,
    /// When the first snapshot was complete, or was treated as complete.
    ready: Option<BootNs>,
    /// The first snapshot is complete, and the open tenures of an earlier run were compared with it.
    whole: bool,
    /// When everything must be read again, because events were lost.
    reread: Option<BootNs>,
    /// When everything was last read again.
    reread_at: BootNs,
    wants_neighbours: bool,
    /// The result of the detectors, as of the last step.
    detection: Detection,
    /// The codes that could not be judged in the last step.
    blind: BTreeSet<Code>,
}

impl Engine {
    /// An engine without any facts that starts at `started`.
    #[must_use]
    pub fn new(settings: Settings, started: BootNs) -> Self {
        let Settings { provisional, thresholds, shared } = settings;
        let mut map = NodeMap::new(provisional);
        map.share(shared);
        Self {
            map,
            ledger: Ledger::default(),
            thresholds,
            started,
            answered: false,
            ready: None,
            whole: false,
            reread: None,
            reread_at: BootNs::default(),
            wants_neighbours: false,
            detection: Detection::default(),
            blind: BTreeSet::new(),
        }
    }

    /// Sets other thresholds and shared IPs.
    pub fn retune(&mut self, thresholds: Thresholds, shared: Vec<Prefix>) {
        self.thresholds = thresholds;
        // Looks that are already scheduled were planned with the old thresholds.
        self.map.replan();
        self.map.share(shared);
    }

    /// Sets how far apart two observations must be to make a finding fire, in ns.
    pub fn set_second_look(&mut self, ns: u64) {
        self.thresholds.second_look = ns;
    }

    /// Sets the daemon that the commands of remedies query.
    pub fn set_daemon(&mut self, daemon: Daemon) {
        self.ledger.set_daemon(daemon);
    }

    /// Sets whether the next steps report neighbour entries.
    pub fn want_neighbours(&mut self, wanted: bool) {
        self.wants_neighbours = wanted;
    }

    /// Restores what was read from the ledger's file.
    pub fn restore(&mut self, loaded: Loaded, now: BootNs) {
        self.ledger.restore(loaded, now);
    }

    /// Applies facts, in order, without deriving anything until the next [`Engine::step`].
    pub fn apply(&mut self, facts: &[Fact]) {
        for fact in facts {
            match &fact.what {
                Observation::Boot(boot) => {
                    self.ledger.set_calendar(Calendar { wall_offset: boot.wall_offset });
                }
                Observation::ClockSet { wall_offset } => {
                    self.ledger.set_calendar(Calendar { wall_offset: *wall_offset });
                }
                Observation::Lost { .. } => {
                    let soonest = self.reread_at.plus(REREAD_EVERY);
                    self.reread.get_or_insert(soonest.max(fact.at));
                }
                Observation::FirstAnswers => self.answered = true,
                _ => {}
            }
            self.map.apply(fact);
        }
    }

    /// Applies facts, and derives everything that follows from what was applied since the last step.
    pub fn step(&mut self, facts: &[Fact], now: BootNs) -> Effects {
        self.apply(facts);
        let mut effects = Effects::default();
        if self.reread.take_if(|due| *due <= now).is_some() {
            self.reread_at = now;
            effects.reread = true;
            self.map.reopen_all(now);
        }
        let agenda = self.map.agenda(now, &self.thresholds);
        effects.wants = agenda.wants;
        self.consider_ready(now, &mut effects);
        self.take_tenures(&mut effects);
        self.settle_untold_tenures(now, &mut effects);
        effects.neighbours = self.map.take_neighbour_news(self.wants_neighbours);
        effects.teardowns = self.map.take_endings();
        effects.untold_teardowns = self.map.take_untold_endings();
        effects.calls = self.map.take_calls();
        effects.changes = self.observe(now);
        effects.writes = self.ledger.take_writes();
        let ready = self.ready.is_none().then(|| self.started.plus(READY_AFTER));
        let due = [agenda.next, self.reread, self.ledger.due(now), ready];
        effects.next = due.into_iter().flatten().min();
        effects
    }

    /// Runs the detectors on the map, and the ledger on their result.
    fn observe(&mut self, now: BootNs) -> Vec<Change> {
        let Self { map, ledger, thresholds, detection, .. } = self;
        let changed = detection.update(map, now, thresholds);
        // Before the first snapshot no finding can be resolved.
        let blind = match self.ready {
            Some(_) => detection.blind(map, thresholds),
            None => Code::ALL.iter().copied().collect(),
        };
        if !changed && blind == self.blind && ledger.is_at_rest() {
            return Vec::new();
        }
        ledger.set_second_look(thresholds.second_look);
        // A finding of an earlier run may not have been found again yet.
        ledger.be_patient(&detect::patient(now.since(self.started), thresholds));
        ledger.keep_while(|finding| detect::still_holds(map, finding, now));
        let standing = Standing {
            whose: &|candidate| map.whose(&candidate.subject),
            may_hold: &detect::may_hold(detection, map, now),
        };
        let changes = ledger.observe_with(now, detection.found(), &blind, &standing);
        self.blind = blind;
        changes
    }

    /// The first snapshot is complete once every netns has been opened, or the attempts have failed.
    fn consider_ready(&mut self, now: BootNs, effects: &mut Effects) {
        if self.whole {
            return;
        }
        let late = now.since(self.started) > READY_AFTER;
        let heard = self.answered && SOURCES.iter().all(|name| self.map.has_source(*name));
        let unread = self.map.has_unopened() || self.map.has_unread_from_before();
        let whole = heard && self.map.has_first_snapshot() && !unread;
        if whole || late {
            self.ready.get_or_insert(now);
        }
        // What has not been read yet is unknown, not gone.
        if whole {
            self.whole = true;
            effects.whole = true;
            let alive = self.map.tenure_keys();
            self.take_tenures(effects);
            let ended = self.ledger.settle(&alive, now);
            effects.tenures.extend(ended.into_iter().map(TenureChange::Released));
        }
    }

    fn take_tenures(&mut self, effects: &mut Effects) {
        let tell = &mut effects.tenures;
        if let Some((boot_id, tenures)) = self.ledger.take_ended_by_reboot() {
            tell.push(TenureChange::EndedByReboot { boot_id, tenures });
        }
        for event in self.map.take_tenures() {
            match event {
                TenureEvent::Held { key, begun } => {
                    tell.extend(self.ledger.held(key, begun).map(TenureChange::Held));
                }
                TenureEvent::Named { key, who } => self.ledger.named(&key, &who),
                TenureEvent::Moved { from, to, netns } => self.ledger.moved(&from, to, netns),
                TenureEvent::Released { key, at, ended_by, whose } => {
                    let ended = self.ledger.released(&key, at, ended_by, whose);
                    tell.extend(ended.map(TenureChange::Released));
                }
            }
        }
    }

    /// If there was no room for the end of a tenure in this step, ends those of which nothing is held any more.
    fn settle_untold_tenures(&mut self, now: BootNs, effects: &mut Effects) {
        let untold = self.map.take_untold_tenures();
        self.ledger.missed_tenures(untold);
        if untold > 0 && self.whole {
            let ended = self.ledger.settle(&self.map.tenure_keys(), now);
            effects.tenures.extend(ended.into_iter().map(TenureChange::Released));
        }
    }

    /// Number of findings that are not told, or no longer looked at, because there is no room for them, by whose they are.
    #[must_use]
    pub fn untold(&self) -> BTreeMap<(Whose, Code), u64> {
        let mut all = self.detection.unjudged(&self.map);
        for (of, count) in self.ledger.untold() {
            let known = all.entry(*of).or_default();
            *known = known.saturating_add(*count);
        }
        all
    }

    /// Acknowledges a finding, or with `None` withdraws the acknowledgement: see [`Ledger::acknowledge`].
    pub fn acknowledge(
        &mut self,
        id: &str,
        now: BootNs,
        word: Option<AckRequest>,
    ) -> Option<Change> {
        self.ledger.acknowledge(id, now, word)
    }

    /// Forgets resolved findings that ended before `before` (wall clock, milliseconds).
    pub fn forget_before(&mut self, before: u64) {
        self.ledger.forget_before(before);
    }

    /// Rows to be written before the next step.
    pub fn take_writes(&mut self) -> Writes {
        self.ledger.take_writes()
    }

    /// Rows to be written at the end: see [`Ledger::final_writes`].
    pub fn final_writes(&mut self) -> Writes {
        self.ledger.final_writes()
    }

    /// Whether findings of this code could not be judged in the last step, because a source that they depend on does
    /// not answer.
    #[must_use]
    pub fn is_blind(&self, code: Code) -> bool {
        self.blind.contains(&code)
    }

    /// Whether it is not known if an open finding still holds: its code could not be judged in the last step, or there was
    /// no room to judge this one.
    #[must_use]
    pub fn is_unjudged(&self, finding: &Finding) -> bool {
        self.is_blind(finding.code) || self.ledger.is_spared(&finding.id)
    }

    /// Whether a finding of this code of an earlier run may not have been found again yet.
    #[must_use]
    pub fn warms_up(&self, code: Code, now: BootNs) -> bool {
        detect::warms_up(code, now.since(self.started), &self.thresholds)
    }

    /// The codes whose findings could not be judged in the last step.
    pub fn blind(&self) -> impl Iterator<Item = Code> {
        self.blind.iter().copied()
    }

    /// The map.
    #[must_use]
    pub fn map(&self) -> &NodeMap {
        &self.map
    }

    /// The ledger.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The thresholds.
    #[must_use]
    pub fn thresholds(&self) -> &Thresholds {
        &self.thresholds
    }

    /// Whether the first snapshot is complete, or has taken too long to wait for.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready.is_some()
    }

    /// Whether the first snapshot is complete; [`Engine::is_ready`] does not wait for that indefinitely.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Whether no further look could decide anything at `now`.
    #[must_use]
    pub fn is_decided(&self, now: BootNs) -> bool {
        let Thresholds { grace, second_look, .. } = self.thresholds;
        let decided = |task: &TaskEntry| {
            let since = task.leaving_since().unwrap_or_default();
            task.look
                .as_ref()
                .is_some_and(|look| look.count > 1 && look.at.since(since) > grace + second_look)
        };
        self.is_ready()
            && self.map.leaving().all(decided)
            && self.map.next_overlap(now).is_none()
            && !(self.is_suspicious(now) && self.may_be_decided_soon(now))
    }

    /// Whether something suspicious has not been looked at twice.
    fn is_suspicious(&self, now: BootNs) -> bool {
        let once = |finding: &Finding| {
            finding.code == Code::IpamReservationLeaked && finding.status == Status::Pending
        };
        self.map.has_open_suspicion(&self.thresholds)
            || self.map.awaits_leaks(now, &self.thresholds)
            || self.ledger.open_findings().any(once)
    }

    /// Whether a scan should still wait: it waits for an answer or two of a runtime, but not for a slow one, whose
    /// answer then counts as unknown.
    fn may_be_decided_soon(&self, now: BootNs) -> bool {
        let ready = self.ready.unwrap_or(self.started);
        !self.map.awaits_runtimes(&self.thresholds) || now.since(ready) < RUNTIMES_WITHIN
    }
}

#[cfg(test)]
pub(crate) mod tests;
