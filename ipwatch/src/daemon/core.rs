//! The one place where facts meet the map: single owner, no locks.
//!
//! A turn applies what came, asks for what is missing, lets the detectors look and tells the ledger,
//! the sinks and the followers what changed. It never blocks.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::mpsc;

use super::answer;
use super::calls::Calls;
use super::concerns::{self, Concerns};
use super::desk::Desk;
use super::latency::Latency;
use super::memory::Housekeeper;
use super::meter::{self, Meter};
use super::start::Eyes;
use crate::api::{Event, Request, Streams};
use crate::clock::{self, Calendar};
use crate::contract::{Body, Document, Prefix, SCHEMA, SourceState};
use crate::detect;
use crate::escape::escape;
use crate::fact::{BootNs, Fact, Origin, Source, SourceStatus, What};
use crate::finding::{Change, Code, Status};
use crate::ledger::{Ledger, LedgerFile};
use crate::map::{NodeMap, Policy, TenureEvent};
use crate::metrics::Question;
use crate::sinks::Sinks;
use crate::sinks::events::Events;
use crate::sinks::metrics::Snapshot;
use crate::sources::First;
use crate::sources::probes::Missed;

/// Batches applied before anything else gets its turn.
const BATCHES: usize = 64;
/// The first snapshot is taken for complete after this, whatever is still missing.
const READY_AFTER: Duration = Duration::from_secs(5);
/// Who must have said how it stands before the first snapshot is complete.
const SOURCES: [&str; 6] = ["cni", "neighbours", "netlink", "probes", "procfs", "routes"];
/// After a loss everything is read again, but not more often than this.
const RESYNC_EVERY: Duration = Duration::from_secs(1);
/// Events that the kernel did not even offer are asked for this often: nothing tells of them.
const COUNT_EVERY: Duration = Duration::from_secs(10);
/// What is counted goes to the collector this often.
const MEASURE_EVERY: Duration = Duration::from_secs(60);
/// Between the two looks of a scan: some hundred turns of whatever a task does when it gets on.
const SECOND_LOOK_IN_HASTE: u64 = 25_000_000;
/// How long a scan waits for the runtimes' second word, which a runtime that works gives within two seconds.
const RUNTIMES_WITHIN: u64 = 4_000_000_000;
/// The past is pruned this often.
const PRUNE_EVERY: Duration = Duration::from_secs(3600);

/// The daemon's heart.
pub(super) struct Core {
    pub(super) map: NodeMap,
    pub(super) ledger: Ledger,
    pub(super) file: LedgerFile,
    pub(super) desk: Desk,
    pub(super) latency: Latency,
    pub(super) eyes: Eyes,
    pub(super) sinks: Sinks,
    pub(super) meter: Meter,
    calls: Calls,
    concerns: Concerns,
    policy: Policy,
    facts: mpsc::Receiver<Vec<Fact>>,
    requests: mpsc::Receiver<Request>,
    scrapes: mpsc::Receiver<Question>,
    /// Requests that come back after what they want to know was read afresh.
    returned: mpsc::Receiver<Request>,
    pub(super) again: mpsc::Sender<Request>,
    /// When everything is to be read again, because events were lost.
    resync: Option<BootNs>,
    resynced: BootNs,
    /// Container runtimes and stores that were there at the start and have not answered yet.
    unanswered: Vec<First>,
    /// How the sources stood before something of theirs hung, and whether they can tell nothing any more.
    hanging: Vec<(Source, bool)>,
    events: Streams,
    started: BootNs,
    ready: Option<BootNs>,
    /// The open tenures of an earlier run were compared with what is there.
    settled: bool,
    next: Option<BootNs>,
    pruned: BootNs,
    /// When the events that programs missed were last counted, and how many there were.
    counted: (BootNs, Missed),
    /// When what is counted last went to the collector.
    measured: BootNs,
    pub(super) memory: Housekeeper,
    /// The longest that a turn may wait: the watchdog wants to see one.
    beat: Option<Duration>,
}

/// What a core is made of.
pub(super) struct Parts {
    pub(super) map: NodeMap,
    pub(super) file: LedgerFile,
    pub(super) desk: Desk,
    pub(super) eyes: Eyes,
    pub(super) sinks: Sinks,
    pub(super) calls: Calls,
    pub(super) policy: Policy,
    pub(super) facts: mpsc::Receiver<Vec<Fact>>,
    pub(super) first: Vec<First>,
    pub(super) events: Streams,
    pub(super) meter: Meter,
    pub(super) scrapes: mpsc::Receiver<Question>,
}

impl Core {
    /// A core, and where its requests are put.
    pub(super) fn new(parts: Parts) -> (Self, mpsc::Sender<Request>) {
        let Parts {
            map,
            file,
            desk,
            eyes,
            sinks,
            calls,
            policy,
            facts,
            first,
            events,
            meter,
            scrapes,
        } = parts;
        let (asking, requests) = mpsc::channel(64);
        let (again, returned) = mpsc::channel(64);
        let started = clock::now();
        let mut core = Self {
            map,
            ledger: Ledger::default(),
            file,
            desk,
            latency: Latency::default(),
            eyes,
            sinks,
            meter,
            calls,
            concerns: Concerns::default(),
            policy,
            facts,
            requests,
            scrapes,
            returned,
            again,
            resync: None,
            resynced: BootNs::default(),
            unanswered: first,
            hanging: Vec::new(),
            events,
            started,
            ready: None,
            settled: false,
            next: None,
            pruned: started,
            counted: (started, Missed::default()),
            measured: started,
            memory: Housekeeper::default(),
            beat: None,
        };
        core.restore(started);
        (core, asking)
    }

    /// Waits for something to happen and deals with it. Cancel-safe.
    pub(super) async fn turn(&mut self) {
        let pause = self.pause();
        tokio::select! {
            Some(batch) = self.facts.recv() => {
                self.apply(&batch);
                self.drain();
            }
            Some(request) = self.requests.recv() => return answer::answer(self, request),
            Some(question) = self.scrapes.recv() => return meter::answer(self, question),
            Some(request) = self.returned.recv() => {
                // What was read for this question lies in the queue before it.
                self.drain();
                self.step();
                return answer::answer_fresh(self, request);
            }
            () = heard(&mut self.unanswered) => {
                self.unanswered.clear();
                // What they told lies in the queue.
                for _ in 0..self.facts.len().div_ceil(BATCHES) {
                    self.drain();
                }
            }
            () = tokio::time::sleep(pause) => {}
        }
        self.step();
    }

    fn pause(&self) -> Duration {
        let now = clock::now();
        let count = self.counted.0.plus(COUNT_EVERY.as_nanos() as u64);
        let next = [self.next, self.memory.due()].into_iter().flatten().fold(count, BootNs::min);
        let next = if self.ready.is_none() { next.min(now.plus(20_000_000)) } else { next };
        let pause = Duration::from_nanos(next.since(now));
        self.beat.map_or(pause, |beat| pause.min(beat))
    }

    /// Sets the longest that a turn may wait.
    pub(super) fn beat(&mut self, beat: Option<Duration>) {
        self.beat = beat;
    }

    /// Takes over what of the configuration needs no restart.
    pub(super) fn retune(&mut self, policy: Policy, shared: Vec<Prefix>) {
        self.policy = Policy { second_look: self.policy.second_look, ..policy };
        // What is on the agenda was put there with the old patience.
        self.map.replan();
        self.meter.share(&shared);
        self.map.share(shared);
        self.next = Some(clock::now());
    }

    fn drain(&mut self) {
        for _ in 0..BATCHES {
            let Ok(batch) = self.facts.try_recv() else { return };
            self.apply(&batch);
        }
    }

    fn apply(&mut self, batch: &[Fact]) {
        for fact in batch {
            match &fact.what {
                What::Lost { count, .. } => self.lost(*count),
                What::Source(source) => tell_source(source),
                What::Boot(boot) => {
                    self.ledger.set_calendar(Calendar { wall_offset: boot.wall_offset });
                }
                _ => {}
            }
            self.map.apply(fact);
        }
        self.meter.facts += batch.len() as u64;
        self.memory.worked(batch.len(), clock::now());
        // Dumps carry the time they began; only single events tell how late they came.
        if let [fact] | [fact, ..] = batch
            && fact.origin == Origin::Probe
        {
            self.latency.record(clock::now().since(fact.at));
        }
    }

    /// Everything is to be read again, soon.
    fn lost(&mut self, count: Option<u64>) {
        tracing::info!(count, "events were lost: reading everything again");
        let soonest = self.resynced.plus(RESYNC_EVERY.as_nanos() as u64);
        self.resync.get_or_insert(soonest.max(clock::now()));
    }

    /// Every ten seconds: events that no program saw. Every hour: the past.
    fn keep_house(&mut self, now: BootNs) {
        self.memory.keep(now);
        let (counted, known) = self.counted;
        if now.since(counted) >= COUNT_EVERY.as_nanos() as u64 {
            let missed = self.eyes.missed();
            self.counted = (now, missed);
            if missed.events > known.events {
                let count = Some(missed.events - known.events);
                let what = What::Lost { count, calls: missed.calls > known.calls };
                self.apply(&[Fact { at: now, origin: Origin::Daemon, what }]);
            }
        }
        if now.since(self.measured) >= MEASURE_EVERY.as_nanos() as u64 {
            self.measured = now;
            self.measure(now);
        }
        if now.since(self.pruned) >= PRUNE_EVERY.as_nanos() as u64 {
            self.pruned = now;
            self.prune(now);
        }
    }

    /// Joins what the ledger's file brought back, at the start or when it works again.
    pub(super) fn restore(&mut self, now: BootNs) {
        if let Some(loaded) = self.file.take_loaded() {
            self.ledger.restore(loaded, now);
        }
    }

    /// Queues what the ledger's file must learn.
    pub(super) fn write(&mut self) {
        self.file.write(self.ledger.take_writes());
    }

    fn prune(&mut self, now: BootNs) {
        let before = self.file.prune(&self.map.calendar().date(now));
        self.ledger.forget_before(before);
    }

    /// What is counted, for the collector.
    fn measure(&self, now: BootNs) {
        let Some(otlp) = self.sinks.otlp().filter(|otlp| otlp.metrics()) else { return };
        let times = (self.started, now);
        let findings = self.ledger.findings(false);
        let calendar = self.map.calendar();
        otlp.measure(Snapshot::new(
            times,
            calendar,
            &findings,
            &self.eyes.report(),
            otlp.counters(),
        ));
    }

    /// Everything that follows from what was applied.
    pub(super) fn step(&mut self) {
        let now = clock::now();
        self.restore(now);
        if self.resync.is_some_and(|due| due <= now) {
            self.resync = None;
            self.resynced = now;
            self.meter.resyncs += 1;
            self.desk.snapshot();
            self.map.reopen_all(now);
        }
        let agenda = self.map.agenda(now, &self.policy);
        self.next = [agenda.next, self.resync].into_iter().flatten().min();
        let refused = agenda.wants.into_iter().filter_map(|want| self.desk.want(want));
        let fact = |what| Fact { at: now, origin: Origin::Daemon, what };
        let refused: Vec<Fact> = refused.map(fact).collect();
        self.apply(&refused);
        self.watch_threads(now);
        self.consider_ready(now);
        self.tell_tenures();
        self.tell_neighbours();
        concerns::tell_teardowns(&mut self.map, self.sinks.otlp());
        self.calls.tell(&mut self.map, &self.concerns);
        let candidates = detect::detect(&self.map, now, &self.policy);
        let blind = self.blind();
        self.ledger.set_second_look(self.policy.second_look);
        // What stood before this run may not have been found again yet.
        self.ledger.be_patient(&detect::patient(now.since(self.started), &self.policy));
        self.ledger.keep_while(|finding| detect::still_holds(&self.map, finding, now));
        let changes = self.ledger.observe(now, &candidates, &blind);
        self.write();
        for change in changes {
            self.tell(change);
        }
        self.next = [self.next, self.ledger.due(now)].into_iter().flatten().min();
        self.keep_house(now);
    }

    /// A thread that hangs in the kernel cannot say so itself.
    fn watch_threads(&mut self, now: BootNs) {
        let hanging = self.desk.hanging(now);
        let mut changed = Vec::new();
        self.hanging.retain(|(before, blind)| {
            let still =
                |(name, _, now): &(&str, String, bool)| before.name == *name && now == blind;
            let still = hanging.iter().any(still);
            if !still {
                changed.push(before.clone());
            }
            still
        });
        for (name, _, blind) in hanging {
            if self.hanging.iter().any(|(before, _)| before.name == name) {
                continue;
            }
            let told = changed.iter().position(|before| before.name == name);
            let before =
                told.map(|at| changed.remove(at)).or_else(|| self.map.source(name).cloned());
            let Some(before) = before else { continue };
            self.hanging.push((before.clone(), blind));
            let (status, detail) = match blind {
                true => (SourceStatus::Down, "reads of it do not come back"),
                false => (lessened(before.status), "some of it does not answer"),
            };
            changed.push(Source { name: before.name, status, detail: detail.to_owned() });
        }
        let fact = |source| Fact { at: now, origin: Origin::Daemon, what: What::Source(source) };
        let facts: Vec<Fact> = changed.into_iter().map(fact).collect();
        self.apply(&facts);
    }

    /// The map is complete once every netns has been opened, or tried in vain.
    fn consider_ready(&mut self, now: BootNs) {
        if self.settled {
            return;
        }
        let late = now.since(self.started) > READY_AFTER.as_nanos() as u64;
        let heard =
            SOURCES.iter().all(|name| self.map.has_source(name)) && self.unanswered.is_empty();
        let whole = heard && self.map.has_first_snapshot() && !self.map.has_unopened();
        if whole || late {
            self.ready.get_or_insert(now);
        }
        // What has not been read yet is unknown, not gone.
        if whole {
            self.settled = true;
            self.meter.forget();
            self.memory.started(now);
            let alive = self.map.tenure_keys();
            self.tell_tenures();
            for ended in self.ledger.settle(&alive, now) {
                self.concerns.released(&ended, &self.map, self.sinks.otlp());
                self.events.send(Event::Released(ended));
            }
            self.prune(now);
        }
    }

    /// Whether the first snapshot is complete.
    pub(super) fn is_ready(&self) -> bool {
        self.ready.is_some()
    }

    /// Whether everything has been read that there is: readiness does not wait for it for ever.
    pub(super) fn is_whole(&self) -> bool {
        self.settled
    }

    /// How many findings fire, and how many of them are nobody's consequence: causes first.
    pub(super) fn wrongs(&self) -> (usize, usize) {
        let findings = self.ledger.findings(false);
        let firing = || findings.iter().filter(|finding| finding.status == Status::Firing);
        (firing().filter(|finding| finding.caused_by.is_none()).count(), firing().count())
    }

    /// Codes that cannot be judged now; before the first snapshot that is all of them.
    fn blind(&self) -> BTreeSet<Code> {
        if self.is_ready() {
            detect::blind(&self.map, &self.policy)
        } else {
            Code::ALL.iter().copied().collect()
        }
    }

    fn tell_tenures(&mut self) {
        if let Some((boot_id, ended)) = self.ledger.take_ended_by_reboot() {
            let boot_id = boot_id.into();
            for tenure in ended {
                Concerns::ended_by_reboot(&tenure, &boot_id, self.sinks.otlp());
                self.events.send(Event::Released(tenure));
            }
        }
        for event in self.map.take_tenures() {
            match event {
                TenureEvent::Held { key, tenure } => {
                    if self.ledger.held(&key, tenure.clone()) {
                        self.concerns.held(&tenure, &self.map, self.sinks.otlp());
                        self.events.send(Event::Held(tenure));
                    }
                }
                TenureEvent::Named { key, container, pod } => {
                    self.ledger.named(&key, container, pod);
                }
                TenureEvent::Released { key, at, ended_by } => {
                    if let Some(tenure) = self.ledger.released(&key, at, ended_by) {
                        self.concerns.released(&tenure, &self.map, self.sinks.otlp());
                        self.events.send(Event::Released(tenure));
                    }
                }
            }
        }
    }

    fn tell_neighbours(&mut self) {
        let news = self.map.take_neighbour_news(self.events.wants_neighbours());
        for entry in news.entries {
            self.events.send(Event::Neighbour(Box::new(entry)));
        }
        self.events.neighbours_lagged(news.more);
    }

    pub(super) fn tell(&mut self, change: Change) {
        self.meter.tell(&change);
        self.events.send(Event::Finding(Box::new(change.clone())));
        let links = self
            .sinks
            .otlp()
            .map(|otlp| self.concerns.links(&change, &self.map, &self.ledger, otlp));
        self.sinks.publish(&change, &links.unwrap_or_default());
    }

    /// Tells the cluster of what fires, now and later.
    pub(super) fn tell_cluster(&mut self, events: Events) {
        self.sinks.tell_cluster(events, self.ledger.open_findings());
    }

    /// Takes second looks as soon as they tell anything new. Returns how patient it is now.
    pub(super) fn in_haste(&mut self) -> Policy {
        self.policy.second_look = SECOND_LOOK_IN_HASTE;
        self.policy
    }

    /// How patient it is.
    pub(super) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether nothing is left that a further look could decide.
    pub(super) fn is_settled(&self) -> bool {
        let decided = |task: &crate::map::TaskEntry| {
            let since = task.leaving_since().unwrap_or_default();
            task.look.as_ref().is_some_and(|look| {
                look.count > 1 && look.at.since(since) > self.policy.grace + self.policy.second_look
            })
        };
        self.is_ready()
            && self.map.leaving().all(decided)
            && !(self.map.has_open_suspicion(&self.policy) && self.may_be_decided_soon())
    }

    /// Whoever waits for a scan waits for an answer or two of a runtime, and not for one that takes its time: what it
    /// would say is unknown then.
    fn may_be_decided_soon(&self) -> bool {
        let ready = self.ready.unwrap_or(self.started);
        !self.map.awaits_runtimes(&self.policy) || clock::now().since(ready) < RUNTIMES_WITHIN
    }

    /// Events that no program saw, as of the last count.
    pub(super) fn missed(&self) -> u64 {
        self.counted.1.events
    }

    /// How long events took to get here, for people.
    pub(super) fn speed(&self) -> Option<String> {
        let (p50, p99) = (self.latency.quantile(0.5)?, self.latency.quantile(0.99)?);
        let count = self.latency.count();
        Some(format!("{count} events, kernel to map: half below {p50} µs, 99 % below {p99} µs"))
    }

    /// The envelope around an answer.
    pub(super) fn document(&self, body: Body) -> Document {
        let (status, detail) = self.file.status();
        let mut sources = self.map.sources();
        for (name, text, _) in self.desk.hanging(clock::now()) {
            if let Some(source) = sources.iter_mut().find(|source| source.name == name) {
                source.status = lessened(source.status);
                source.detail = text;
            }
        }
        sources.push(SourceState { name: "ledger".to_owned(), status, detail });
        for (name, status, detail) in self.sinks.standing() {
            sources.push(SourceState { name: name.to_owned(), status, detail });
        }
        if let Some(detail) = super::capabilities::missing() {
            let (name, status) = ("capabilities".to_owned(), SourceStatus::Degraded);
            sources.push(SourceState { name, status, detail });
        }
        let (beyond, claims) = (self.map.beyond_bounds(), self.map.forgotten_claims());
        if beyond + claims > 0 {
            let mut detail = format!(
                "{beyond} links, addresses or routes are more than is kept, {claims} claims of IPs were \
                 forgotten for want of room"
            );
            detail.extend(self.map.said_of_short());
            let (name, status) = ("map".to_owned(), SourceStatus::Degraded);
            sources.push(SourceState { name, status, detail });
        }
        sources.sort_by(|a, b| a.name.cmp(&b.name));
        Document {
            schema: SCHEMA.to_owned(),
            node: self.map.boot().map(|boot| boot.node.clone()).unwrap_or_default(),
            taken_at: self.map.calendar().date(clock::now()),
            sources,
            body,
            reservations: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// Lets go of everything in an orderly way; blocks a little on the disk.
    pub(super) async fn close(mut self) {
        self.restore(clock::now());
        self.file.write(self.ledger.final_writes());
        self.sinks.shutdown().await;
        let file = self.file;
        let closed = tokio::task::spawn_blocking(move || file.close(Duration::from_secs(5))).await;
        if let Ok(Err(error)) = closed {
            tracing::warn!("{error}");
        }
    }
}

/// How a source stands of which something does not answer.
fn lessened(status: SourceStatus) -> SourceStatus {
    match status {
        SourceStatus::Active => SourceStatus::Degraded,
        other => other,
    }
}

/// Done when all have answered for the first time, or used up the time for that.
async fn heard(unanswered: &mut [First]) {
    if unanswered.is_empty() {
        return std::future::pending().await;
    }
    futures_util::future::join_all(unanswered.iter_mut().map(First::wait)).await;
}

/// A source that changes its state is worth a line.
fn tell_source(source: &Source) {
    let Source { name, status, detail } = source;
    match status {
        SourceStatus::Active | SourceStatus::Disabled => {
            tracing::debug!(source = name, "{status:?} {}", escape(detail));
        }
        SourceStatus::Degraded => tracing::info!(source = name, "degraded: {}", escape(detail)),
        SourceStatus::Down => tracing::warn!(source = name, "down: {}", escape(detail)),
    }
}
