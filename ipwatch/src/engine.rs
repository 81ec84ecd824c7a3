//! The pure half as one machine: facts and a time go in, effects come out.
//!
//! [`Engine`] owns the map, the ledger and the thresholds, and decides by them alone what is known, what is wrong, and
//! when that is to be looked at again. The daemon, `ipwatch record`, `ipwatch replay` and the benches run this engine,
//! so that a recording gives the findings that the daemon gave. No I/O, no clock, no tokio, no aya: what the outside has
//! to do is in [`Effects`], and what comes of it comes back as facts.

#![warn(missing_docs)]

mod held;

use std::collections::BTreeSet;

use crate::clock::Calendar;
use crate::contract::{Prefix, Tenure};
use crate::detect::{self, Detection};
use crate::fact::{BootNs, Fact, Observation, SourceName};
use crate::finding::{Change, Code, Finding, Status};
use crate::ledger::{Ledger, Loaded, Word, Writes};
use crate::map::request::Request;
use crate::map::{CallEntry, Ending, NeighbourNews, NodeMap, TaskEntry, TenureEvent, Thresholds};
use crate::remedy::Daemon;

/// The first snapshot is taken for complete after this, in ns, whatever is still missing.
const READY_AFTER: u64 = 5_000_000_000;
/// The sources that must have told how they stand before the first snapshot is complete.
const SOURCES: [SourceName; 6] = [
    SourceName::Cni,
    SourceName::Neighbours,
    SourceName::Netlink,
    SourceName::Probes,
    SourceName::Procfs,
    SourceName::Routes,
];
/// After a loss everything is read again, but no more often than this, in ns.
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
    /// IPs that several may have on purpose.
    pub shared: Vec<Prefix>,
}

/// A change in who has an IP, as the ledger has taken it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenureChange {
    /// Tenures of an earlier boot: they ended with it.
    EndedByReboot {
        /// That boot.
        boot_id: String,
        /// What ended.
        tenures: Vec<Tenure>,
    },
    /// An IP is held.
    Held(Tenure),
    /// It is held no longer.
    Released(Tenure),
}

/// What the outside must do after a step, in the order of the fields.
#[derive(Debug, Default)]
pub struct Effects {
    /// Events were lost: read everything again.
    pub reread: bool,
    /// What to find out. An answer, or that there will be none, is a fact of a later step.
    pub wants: Vec<Request>,
    /// Rows for the ledger's file.
    pub writes: Writes,
    /// The first snapshot became complete in this step.
    pub whole: bool,
    /// Who has or had which IP.
    pub tenures: Vec<TenureChange>,
    /// Neighbour entries that changed, if they are wanted: see [`Engine::want_neighbours`].
    pub neighbours: NeighbourNews,
    /// Teardowns of netns that have ended, or hang.
    pub teardowns: Vec<Ending>,
    /// The number of further teardowns, for which there was no room.
    pub untold_teardowns: u64,
    /// Runs of CNI plugins that have ended.
    pub calls: Vec<CallEntry>,
    /// What changed in the findings.
    pub changes: Vec<Change>,
    /// When the next step is due, if no fact comes before.
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
    /// When the first snapshot was complete, or was taken for it.
    ready: Option<BootNs>,
    /// The first snapshot is complete, and the open tenures of an earlier run were compared with it.
    whole: bool,
    /// When everything is to be read again, because events were lost.
    reread: Option<BootNs>,
    /// When that was last done.
    reread_at: BootNs,
    wants_neighbours: bool,
    /// What is wrong, as of the last step.
    detection: Detection,
    /// What could not be judged in the last step.
    blind: BTreeSet<Code>,
}

impl Engine {
    /// An engine that knows nothing yet and starts at `started`.
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

    /// Takes over other thresholds and shared IPs.
    pub fn retune(&mut self, thresholds: Thresholds, shared: Vec<Prefix>) {
        self.thresholds = thresholds;
        // What is on the agenda was put there with the old thresholds.
        self.map.replan();
        self.map.share(shared);
    }

    /// Sets how far apart two observations must be to make a finding fire, in ns.
    pub fn set_second_look(&mut self, ns: u64) {
        self.thresholds.second_look = ns;
    }

    /// Sets where the commands of remedies find the daemon that they ask.
    pub fn set_daemon(&mut self, daemon: Daemon) {
        self.ledger.set_daemon(daemon);
    }

    /// Whether the next steps tell of neighbour entries.
    pub fn want_neighbours(&mut self, wanted: bool) {
        self.wants_neighbours = wanted;
    }

    /// Joins what the ledger's file brought back.
    pub fn restore(&mut self, loaded: Loaded, now: BootNs) {
        self.ledger.restore(loaded, now);
    }

    /// Applies facts, in order, and leaves the rest to the next [`Engine::step`].
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

    /// Applies facts, and works out everything that follows from what was applied since the last step.
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

    /// What the detectors make of the map, and the ledger of that.
    fn observe(&mut self, now: BootNs) -> Vec<Change> {
        let Self { map, ledger, thresholds, detection, .. } = self;
        let changed = detection.update(map, now, thresholds);
        // Before the first snapshot nothing can be told to be over.
        let blind = match self.ready {
            Some(_) => detection.blind(map, thresholds),
            None => Code::ALL.iter().copied().collect(),
        };
        if !changed && blind == self.blind && ledger.is_at_rest() {
            return Vec::new();
        }
        ledger.set_second_look(thresholds.second_look);
        // What stood before this run may not have been found again yet.
        ledger.be_patient(&detect::patient(now.since(self.started), thresholds));
        ledger.keep_while(|finding| detect::still_holds(map, finding, now));
        let changes = ledger.observe(now, detection.found(), &blind);
        self.blind = blind;
        changes
    }

    /// The first snapshot is complete once every netns has been opened, or tried in vain.
    fn consider_ready(&mut self, now: BootNs, effects: &mut Effects) {
        if self.whole {
            return;
        }
        let late = now.since(self.started) > READY_AFTER;
        let heard = self.answered && SOURCES.iter().all(|name| self.map.has_source(*name));
        let whole = heard && self.map.has_first_snapshot() && !self.map.has_unopened();
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
                TenureEvent::Held { key, tenure } => {
                    if self.ledger.held(&key, tenure.clone()) {
                        tell.push(TenureChange::Held(tenure));
                    }
                }
                TenureEvent::Named { key, container, pod } => {
                    self.ledger.named(&key, container, pod);
                }
                TenureEvent::Moved { from, to, netns } => self.ledger.moved(&from, &to, netns),
                TenureEvent::Released { key, at, ended_by } => {
                    let ended = self.ledger.released(&key, at, ended_by);
                    tell.extend(ended.map(TenureChange::Released));
                }
            }
        }
    }

    /// Acknowledges a finding, or with `None` takes that back: see [`Ledger::acknowledge`].
    pub fn acknowledge(&mut self, id: &str, now: BootNs, word: Option<Word>) -> Option<Change> {
        self.ledger.acknowledge(id, now, word)
    }

    /// Forgets resolved findings that ended before this (wall clock, milliseconds).
    pub fn forget_before(&mut self, before: u64) {
        self.ledger.forget_before(before);
    }

    /// What is to be written before the next step.
    pub fn take_writes(&mut self) -> Writes {
        self.ledger.take_writes()
    }

    /// What is to be written at the end: see [`Ledger::final_writes`].
    pub fn final_writes(&mut self) -> Writes {
        self.ledger.final_writes()
    }

    /// Whether findings of this code could not be judged in the last step: a source that they rest on does not answer.
    #[must_use]
    pub fn is_blind(&self, code: Code) -> bool {
        self.blind.contains(&code)
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

    /// Whether the first snapshot is complete: readiness does not wait for that for ever.
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

    /// Whether something looks wrong that has not been looked at twice.
    fn is_suspicious(&self, now: BootNs) -> bool {
        let once = |finding: &Finding| {
            finding.code == Code::IpamReservationLeaked && finding.status == Status::Pending
        };
        self.map.has_open_suspicion(&self.thresholds)
            || self.map.awaits_leaks(now, &self.thresholds)
            || self.ledger.open_findings().any(once)
    }

    /// Whoever waits for a scan waits for an answer or two of a runtime, and not for one that takes its time: what it
    /// would say is unknown then.
    fn may_be_decided_soon(&self, now: BootNs) -> bool {
        let ready = self.ready.unwrap_or(self.started);
        !self.map.awaits_runtimes(&self.thresholds) || now.since(ready) < RUNTIMES_WITHIN
    }
}

#[cfg(test)]
pub(crate) mod tests;
