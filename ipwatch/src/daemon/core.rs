//! Applies facts to the engine: the single owner, without locks.
//!
//! A turn applies new facts, passes the engine's requests on, runs the detectors, and sends what changed to the
//! ledger, the sinks and the followers. It never blocks.

use std::time::Duration;

use tokio::sync::mpsc;

use super::calls::Calls;
use super::dispatch::Dispatch;
use super::latency::Latency;
use super::memory::Housekeeper;
use super::own::{Own, lessened};
use super::scraped::Scrape;
use super::span_links::{self, SpanLinks};
use super::start::Eyes;
use crate::api::{Asking, Event, Questions, Request, Streams, questions};
use crate::clock;
use crate::contract::{Body, Document, Prefix, SCHEMA, SourceState};
use crate::engine::{Effects, Engine, TenureChange};
use crate::escape::escape;
use crate::fact::{BootNs, Fact, Observation, Origin, Source, SourceName, SourceStatus};
use crate::finding::{Change, Status};
use crate::ledger::{Ledger, LedgerFile};
use crate::map::{NeighbourNews, NodeMap, Thresholds};
use crate::metrics::Question;
use crate::sinks::Sinks;
use crate::sinks::conditions::{Conditions, Sight};
use crate::sinks::events::Events;
use crate::sinks::metrics::Snapshot;
use crate::sources::First;

/// Maximum number of batches applied before anything else gets its turn.
const BATCHES: usize = 64;
/// Interval at which metrics go to the collector.
const MEASURE_EVERY: Duration = Duration::from_secs(60);
/// Time between the two looks of a scan, in ns: enough for some hundred loops of whatever a task that makes progress
/// does.
const SECOND_LOOK_IN_HASTE: u64 = 25_000_000;
/// Interval at which history is pruned.
const PRUNE_EVERY: Duration = Duration::from_secs(3600);

/// The engine with everything that feeds it and that it feeds.
pub(super) struct Core {
    pub(super) engine: Engine,
    pub(super) file: LedgerFile,
    pub(super) dispatch: Dispatch,
    pub(super) latency: Latency,
    pub(super) eyes: Eyes,
    pub(super) sinks: Sinks,
    pub(super) scrape: Scrape,
    calls: Calls,
    span_links: SpanLinks,
    own: Own,
    facts: mpsc::Receiver<Vec<Fact>>,
    requests: Questions,
    scrapes: mpsc::Receiver<Question>,
    /// Requests that return after what they need was read afresh.
    returned: mpsc::Receiver<Request>,
    pub(super) again: mpsc::Sender<Request>,
    /// Container runtimes and stores that were present at the start and have not answered yet.
    unanswered: Vec<First>,
    events: Streams,
    started: BootNs,
    /// The capabilities that were missing at the start, and the loss caused by each.
    lacking: Option<String>,
    next: Option<BootNs>,
    pruned: BootNs,
    /// When metrics last went to the collector.
    measured: BootNs,
    pub(super) memory: Housekeeper,
    /// The longest that a turn may wait, so that the watchdog is fed.
    beat: Option<Duration>,
}

/// What a core is made of.
pub(super) struct Parts {
    pub(super) engine: Engine,
    pub(super) file: LedgerFile,
    pub(super) dispatch: Dispatch,
    pub(super) eyes: Eyes,
    pub(super) sinks: Sinks,
    pub(super) calls: Calls,
    pub(super) started: BootNs,
    pub(super) lacking: Option<String>,
    pub(super) facts: mpsc::Receiver<Vec<Fact>>,
    pub(super) first: Vec<First>,
    pub(super) events: Streams,
    pub(super) scrape: Scrape,
    pub(super) scrapes: mpsc::Receiver<Question>,
}

/// What a turn leaves to be answered.
pub(super) enum Asked {
    Nothing,
    Question(Request),
    /// A question for which something was read first.
    Again(Request),
    Scrape(Question),
}

impl Core {
    /// A core, and the way to ask it.
    pub(super) fn new(parts: Parts) -> (Self, Asking) {
        let Parts {
            engine,
            file,
            dispatch,
            eyes,
            sinks,
            calls,
            started,
            lacking,
            facts,
            first,
            events,
            scrape,
            scrapes,
        } = parts;
        let (asking, requests) = questions(64);
        let (again, returned) = mpsc::channel(64);
        let mut core = Self {
            engine,
            file,
            dispatch,
            latency: Latency::default(),
            eyes,
            sinks,
            scrape,
            calls,
            span_links: SpanLinks::default(),
            own: Own::new(started),
            facts,
            requests,
            scrapes,
            returned,
            again,
            unanswered: first,
            events,
            started,
            lacking,
            next: None,
            pruned: started,
            measured: started,
            memory: Housekeeper::default(),
            beat: None,
        };
        core.restore(started);
        (core, asking)
    }

    /// Waits for an event, and handles it unless it is a question. Cancel-safe.
    pub(super) async fn wait(&mut self) -> Asked {
        if let Some(request) = self.requests.urgent() {
            return Asked::Question(request);
        }
        let pause = self.pause();
        tokio::select! {
            Some(batch) = self.facts.recv() => {
                self.apply(&batch);
                self.drain();
            }
            Some(request) = self.requests.recv() => return Asked::Question(request),
            Some(question) = self.scrapes.recv() => return Asked::Scrape(question),
            Some(request) = self.returned.recv() => {
                // What was read for this question is already in the queue.
                self.drain();
                self.step();
                return Asked::Again(request);
            }
            () = heard(&mut self.unanswered) => {
                self.unanswered.clear();
                // Their facts are in the queue.
                for _ in 0..self.facts.len().div_ceil(BATCHES) {
                    self.drain();
                }
                let at = clock::now();
                self.apply(&[Fact { at, origin: Origin::Daemon, what: Observation::FirstAnswers }]);
            }
            // The facts about what the part lost are in the queue.
            () = self.dispatch.troubled() => self.drain(),
            () = tokio::time::sleep(pause) => {}
        }
        self.step();
        Asked::Nothing
    }

    fn pause(&self) -> Duration {
        let now = clock::now();
        let next =
            [self.next, self.memory.due()].into_iter().flatten().fold(self.own.due(), BootNs::min);
        let next = if !self.is_ready() { next.min(now.plus(20_000_000)) } else { next };
        let pause = Duration::from_nanos(next.since(now));
        self.beat.map_or(pause, |beat| pause.min(beat))
    }

    /// Sets the longest that a turn may wait.
    pub(super) fn beat(&mut self, beat: Option<Duration>) {
        self.beat = beat;
    }

    /// Takes over the configuration that needs no restart.
    pub(super) fn retune(&mut self, thresholds: Thresholds, shared: Vec<Prefix>) {
        self.scrape.share(&shared);
        self.engine.retune(thresholds, shared);
        self.next = Some(clock::now());
    }

    fn drain(&mut self) {
        for _ in 0..BATCHES {
            let Ok(batch) = self.facts.try_recv() else { return };
            self.apply(&batch);
        }
    }

    fn apply(&mut self, batch: &[Fact]) {
        for (at, fact) in batch.iter().enumerate() {
            match &fact.what {
                Observation::Lost { count, .. } => {
                    tracing::info!(count, "events were lost: reading everything again");
                }
                Observation::LostIn { unreported, .. } if unreported.concerns_addresses() => {
                    self.scrape.netns_resyncs += 1;
                }
                Observation::LostInUsers => {
                    tracing::info!("events were lost in many netns of users: reading them again");
                }
                Observation::Source(source) => {
                    let earlier = batch[..at].iter().rev().find_map(|fact| match &fact.what {
                        Observation::Source(earlier) => {
                            Some(earlier).filter(|one| one.name == source.name)
                        }
                        _ => None,
                    });
                    tell_source(earlier.or_else(|| self.map().source(&source.name)), source);
                }
                _ => {}
            }
        }
        self.engine.apply(batch);
        self.scrape.facts += batch.len() as u64;
        self.memory.worked(batch.len(), clock::now());
        // The facts of a dump carry the time at which it began, and tasks are reported late on purpose.
        let now = clock::now();
        for fact in
            batch.iter().filter(|fact| fact.origin == Origin::Probe && is_told_at_once(fact))
        {
            self.latency.record(now.since(fact.at));
        }
    }

    /// Every minute: metrics. Every hour: pruning of history. Memory, when due.
    fn keep_house(&mut self, now: BootNs) {
        self.memory.keep(now);
        self.sinks.tell_held_back(now);
        if now.since(self.measured) >= MEASURE_EVERY.as_nanos() as u64 {
            self.measured = now;
            self.measure(now);
        }
        if now.since(self.pruned) >= PRUNE_EVERY.as_nanos() as u64 {
            self.pruned = now;
            self.prune(now);
        }
    }

    /// Merges what the ledger's file has loaded, at the start or when the file works again.
    pub(super) fn restore(&mut self, now: BootNs) {
        if let Some(loaded) = self.file.take_loaded() {
            self.engine.restore(loaded, now);
            self.sinks.restore(self.engine.ledger().open_findings());
        }
    }

    /// Queues the engine's writes for the ledger's file.
    pub(super) fn write(&mut self) {
        self.file.write(self.engine.take_writes());
    }

    fn prune(&mut self, now: BootNs) {
        let before = self.file.prune(&self.map().calendar().date(now));
        self.engine.forget_before(before);
    }

    /// Sends the metrics to the collector.
    fn measure(&self, now: BootNs) {
        let Some(otlp) = self.sinks.otlp().filter(|otlp| otlp.metrics()) else { return };
        let times = (self.started, now);
        let findings = self.ledger().findings(false);
        let calendar = self.map().calendar();
        otlp.measure(Snapshot::new(
            times,
            calendar,
            &findings,
            &self.eyes.report(),
            otlp.counters(),
        ));
    }

    /// Takes one step and handles its effects.
    pub(super) fn step(&mut self) {
        let now = clock::now();
        self.restore(now);
        let mut own = self.own.facts(&self.dispatch, &self.eyes, self.engine.map(), now);
        if let Some(short) = self.memory.news(now) {
            self.file.set_memory_short(short);
            self.events.set_memory_short(short);
            own.push(Fact { at: now, origin: Origin::Daemon, what: Observation::Memory { short } });
        }
        self.apply(&own);
        self.engine.want_neighbours(self.events.wants_neighbours());
        let mut effects = self.engine.step(&[], now);
        self.own.ask(&self.dispatch, &mut effects, now);
        let Effects { reread, writes, whole, tenures, neighbours, calls, changes, next, .. } =
            effects;
        self.next = next;
        self.scrape.resyncs += u64::from(reread);
        self.file.write(writes);
        if whole {
            self.scrape.forget();
            self.memory.started(now);
        }
        self.tell_tenures(tenures);
        self.tell_neighbours(neighbours);
        let (teardowns, untold) = (effects.teardowns, effects.untold_teardowns);
        span_links::tell_teardowns(self.engine.map(), teardowns, untold, self.sinks.otlp());
        self.calls.tell(calls, self.engine.map(), &self.span_links);
        for change in changes {
            self.tell(change);
        }
        let engine = &self.engine;
        self.sinks.judge(|code| Sight {
            blind: engine.is_blind(code),
            warms_up: engine.warms_up(code, now),
        });
        if whole {
            self.prune(now);
        }
        self.keep_house(now);
    }

    pub(super) fn map(&self) -> &NodeMap {
        self.engine.map()
    }

    /// Current and past findings, and tenures.
    pub(super) fn ledger(&self) -> &Ledger {
        self.engine.ledger()
    }

    /// Whether the first snapshot is complete, or has taken too long to wait for.
    pub(super) fn is_ready(&self) -> bool {
        self.engine.is_ready()
    }

    /// Whether the first snapshot is complete; readiness waits for that only for a limited time.
    pub(super) fn is_whole(&self) -> bool {
        self.engine.is_whole()
    }

    /// How many findings fire without a cause among the findings, and how many fire in total.
    pub(super) fn wrongs(&self) -> (usize, usize) {
        let findings = self.ledger().findings(false);
        let firing = || findings.iter().filter(|finding| finding.status == Status::Firing);
        (firing().filter(|finding| finding.caused_by.is_none()).count(), firing().count())
    }

    fn tell_tenures(&mut self, changes: Vec<TenureChange>) {
        // Of the tenures that flap, most are of interest to nobody: their dates are not made then.
        let is_told = self.events.has_followers() || self.sinks.otlp().is_some();
        for change in changes {
            let (map, otlp) = (self.engine.map(), self.sinks.otlp());
            match change {
                TenureChange::EndedByReboot { boot_id, tenures } => {
                    let boot_id = boot_id.into();
                    for tenure in tenures {
                        SpanLinks::ended_by_reboot(&tenure, &boot_id, otlp);
                        self.events.send(Event::Released(tenure));
                    }
                }
                TenureChange::Held(row) if is_told => {
                    let tenure = row.tenure();
                    self.span_links.held(&tenure, map, otlp);
                    self.events.send(Event::Held(tenure));
                }
                TenureChange::Released(row) if is_told => {
                    let tenure = row.tenure();
                    self.span_links.released(&tenure, map, otlp);
                    self.events.send(Event::Released(tenure));
                }
                TenureChange::Held(_) | TenureChange::Released(_) => {}
            }
        }
    }

    fn tell_neighbours(&mut self, news: NeighbourNews) {
        for entry in news.entries {
            self.events.send(Event::Neighbour(Box::new(entry)));
        }
        self.events.neighbours_lagged(news.more);
    }

    pub(super) fn tell(&mut self, change: Change) {
        self.scrape.tell(&change);
        self.events.send(Event::Finding(Box::new(change.clone())));
        let links = self.sinks.otlp().map(|otlp| {
            self.span_links.links(&change, self.engine.map(), self.engine.ledger(), otlp)
        });
        let user = self.engine.map().user_concerned(&change.finding.subject);
        self.sinks.publish(&change, &links.unwrap_or_default(), user, clock::now());
    }

    /// Sends Events for what fires, now and later.
    pub(super) fn tell_cluster(&mut self, events: Events) {
        self.sinks.tell_cluster(events, self.engine.ledger().open_findings());
    }

    /// Keeps conditions of the Node about what fires, now and later.
    pub(super) fn keep_conditions(&mut self, conditions: Conditions) {
        self.sinks.keep_conditions(conditions, self.engine.ledger().open_findings());
    }

    /// Takes second looks after a short time, for a scan. Returns the thresholds that result.
    pub(super) fn in_haste(&mut self) -> Thresholds {
        self.engine.set_second_look(SECOND_LOOK_IN_HASTE);
        *self.engine.thresholds()
    }

    pub(super) fn thresholds(&self) -> &Thresholds {
        self.engine.thresholds()
    }

    /// Whether no finding waits for a further look.
    pub(super) fn is_settled(&self) -> bool {
        self.engine.is_decided(clock::now())
    }

    /// Events that no program saw, as of the last count.
    pub(super) fn missed(&self) -> u64 {
        self.own.missed()
    }

    /// Latency of events from the kernel to the map, for people.
    pub(super) fn speed(&self) -> Option<String> {
        let (p50, p99) = (self.latency.quantile(0.5)?, self.latency.quantile(0.99)?);
        let count = self.latency.count();
        Some(format!("{count} events, kernel to map: half below {p50} µs, 99 % below {p99} µs"))
    }

    /// Wraps an answer in its document, with the status of the sources.
    pub(super) fn document(&self, body: Body) -> Document {
        let map = self.map();
        let (status, mut detail) = self.file.status();
        if self.ledger().forgotten() > 0 {
            detail.push_str(&format!("; {}", said_of_forgotten(self.ledger())));
        }
        let mut sources = map.sources();
        for trouble in self.dispatch.troubles(clock::now()) {
            if let Some(source) = sources.iter_mut().find(|source| source.name == trouble.source) {
                source.status = lessened(source.status);
                // Otherwise the detail already contains it, beside what the source reports itself.
                if !source.detail.ends_with(&trouble.text) {
                    source.detail = trouble.text;
                }
            }
        }
        sources.push(SourceState { name: SourceName::Ledger.into(), status, detail });
        for (name, status, detail) in self.sinks.standing() {
            sources.push(SourceState { name: name.to_owned(), status, detail });
        }
        if let Some(detail) = self.lacking.clone() {
            let (name, status) = (SourceName::Capabilities.into(), SourceStatus::Degraded);
            sources.push(SourceState { name, status, detail });
        }
        let (beyond, claims) = (map.beyond_bounds(), map.forgotten_claims());
        let mut short = Vec::new();
        if beyond + claims > 0 {
            let mut detail = format!(
                "{beyond} addresses, links, neighbours, routes or VLANs are more than is kept, {claims} claims of IPs were \
                 forgotten for want of room"
            );
            detail.extend(map.said_of_short());
            short.push(detail);
        }
        short.extend(map.said_of_unkept_tasks());
        short.extend(map.said_of_unkept_netns());
        short.extend(map.said_of_memory());
        short.extend(map.said_of_untold(&self.engine.untold()));
        let held_back = map.said_of_held_back(clock::now());
        let is_short = !short.is_empty() || held_back.as_ref().is_some_and(|(_, read)| *read);
        short.extend(held_back.map(|(said, _)| said));
        short.extend(map.said_of_forgotten());
        if !short.is_empty() {
            let status = if is_short { SourceStatus::Degraded } else { SourceStatus::Active };
            let name = SourceName::Map.into();
            sources.push(SourceState { name, status, detail: short.join("; ") });
        }
        sources.sort_by(|a, b| a.name.cmp(&b.name));
        Document {
            schema: SCHEMA.to_owned(),
            node: map.boot().map(|boot| boot.node.clone()).unwrap_or_default(),
            taken_at: map.calendar().date(clock::now()),
            sources,
            body,
            reservations: Vec::new(),
            networks: Vec::new(),
            refused: Vec::new(),
            blind: Vec::new(),
            daemon: None,
            runs: Vec::new(),
        }
    }

    /// Stops everything in order; waits up to five seconds for the disk.
    pub(super) async fn close(mut self) {
        self.restore(clock::now());
        self.file.write(self.engine.final_writes());
        self.sinks.shutdown().await;
        let file = self.file;
        let closed = tokio::task::spawn_blocking(move || file.close(Duration::from_secs(5))).await;
        if let Ok(Err(error)) = closed {
            tracing::warn!("{error}");
        }
    }
}

/// Completes when all have answered for the first time, or their time has run out.
pub(super) async fn heard(unanswered: &mut [First]) {
    if unanswered.is_empty() {
        return std::future::pending().await;
    }
    futures_util::future::join_all(unanswered.iter_mut().map(First::wait)).await;
}

/// Logs a change of a source's status. A source that repeats its status, as after each failed try, is not logged.
fn tell_source(before: Option<&Source>, source: &Source) {
    if before == Some(source) {
        return;
    }
    let Source { name, status, detail } = source;
    let failed =
        |before: &Source| matches!(before.status, SourceStatus::Degraded | SourceStatus::Down);
    match status {
        SourceStatus::Active if before.is_some_and(failed) => {
            tracing::info!(source = name, "works again {}", escape(detail));
        }
        SourceStatus::Active | SourceStatus::Disabled => {
            tracing::debug!(source = name, "{status:?} {}", escape(detail));
        }
        SourceStatus::Degraded => tracing::info!(source = name, "degraded: {}", escape(detail)),
        SourceStatus::Down => tracing::warn!(source = name, "down: {}", escape(detail)),
    }
}

/// How many tenures are in no history, and whose they were; the most first.
fn said_of_forgotten(ledger: &Ledger) -> String {
    const LISTED: usize = 3;
    let of: Vec<String> = ledger
        .forgotten_of()
        .into_iter()
        .take(LISTED)
        .map(|(whose, count)| format!("{whose}: {count}"))
        .collect();
    let whose = if of.is_empty() { String::new() } else { format!(" ({})", of.join("; ")) };
    format!(
        "{} tenures are in no history: a network namespace or a user has more than is kept{whose}, or too many began and \
         ended at once",
        ledger.forgotten(),
    )
}

/// Whether the kernel half reports this as it happens.
fn is_told_at_once(fact: &Fact) -> bool {
    use Observation as O;
    !matches!(
        fact.what,
        O::Task(_)
            | O::TaskExiting { .. }
            | O::TaskReleased { .. }
            | O::Signalled { .. }
            | O::LostIn { .. }
            | O::LostInUsers
    )
}
