//! The states of a finding over time. Pure: no clock, no I/O; the time and the observations are passed in.
//!
//! ```text
//!             first seen          seen by a second observation         not seen any more
//! (nothing) ────Opened──► pending ────────Updated────────► firing ────────Resolved────► resolved
//!                            └──────────────── not seen any more: Resolved ───────────────┘ │
//!                            ◄───────────────── seen again, same id: Opened ────────────────┘
//! ```
//!
//! "Not seen any more" counts only while every source that the code needs answers: findings of a blind code stay as
//! they are, because unknown is not absent. So does what is left out of a list that has no place for all. A duplicate IP must
//! be unseen for [`LINGERS`], or for longer if it has come back before. Whoever else has the IP then is not acknowledged
//! with it: [`acked`]. How many can be open is bounded by whose they are: [`places`].

mod acked;
mod places;
mod raised;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use self::acked::AckedFor;
use self::places::Place;
pub use self::places::Standing;
use self::raised::{Raised, is_second};
use super::tenure::millis;
use crate::clock::Calendar;
use crate::contract::{Holder, Step};
use crate::fact::BootNs;
use crate::finding::{
    Ack, Candidate, Change, ChangeKind, Code, Finding, Status, Subject, finding_id,
};
use crate::map::{Places, Whose};
use crate::remedy;

/// Maximum number of resolved findings in memory, the newest. The store keeps more.
pub(super) const RESOLVED_KEPT: usize = 256;

/// Minimum interval, in ns, between reported changes of holders of one finding: a holder may have thousands of threads,
/// or restart every few seconds. Changes that a person acts on are reported at once.
const PACE: u64 = 10_000_000_000;
/// Delay, in ns, after which the first of such changes is reported together with the following ones: the leaks of one
/// crash become known one shortly after the other, and a message that names only the first would stand for [`PACE`].
const SETTLES: u64 = 1_000_000_000;

/// How long, in ns, a firing finding of [`lingers`] stays open after it was last seen.
const LINGERS: u64 = 5_000_000_000;
/// Limit of that time, in ns, for a finding that came back. kubelet starts a container that crashes again after at most
/// 5 minutes (CrashLoopBackOff), twice as long after each crash.
const LINGERS_AT_MOST: u64 = 600_000_000_000;

/// How long a finding lingers that was not seen for `gap` ns and came back. The next gap of a crash loop is twice as long,
/// and the start of the container takes its time.
fn lingers_after(gap: u64) -> u64 {
    gap.saturating_mul(2).saturating_add(LINGERS).min(LINGERS_AT_MOST)
}

/// Whether a finding with this code stays open for a while without being seen: a sandbox in a crash loop gets a new
/// netns every few seconds. Each of them has the same IP as before, and none is a new cause.
fn lingers(code: Code) -> bool {
    code == Code::IpDuplicate
}

/// A finding and further state that people do not see. This is what the store keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The observation that opened it: any other observation, some time apart from it, makes it fire.
    pub observed: BootNs,
    /// The latest observation.
    pub seen: BootNs,
    /// The finding as people see it.
    pub finding: Finding,
    /// What was reported of it. Not stored: reset by a restart.
    #[serde(skip)]
    pacing: Pacing,
    /// Since when it is no longer seen, if it lingers. Not stored either.
    #[serde(skip)]
    missing: Option<BootNs>,
    /// The longest time, in ns, after which it came back. Not stored either.
    #[serde(skip)]
    gap: u64,
    /// Whom its acknowledgement is about. Not stored either: the stored subject is the one that was acknowledged.
    #[serde(skip)]
    acked_for: AckedFor,
    /// A higher severity that was seen once. Not stored either.
    #[serde(skip)]
    raised: Raised,
    /// Its place. Not stored: whose it is depends on the map.
    #[serde(skip)]
    place: Option<Place>,
}

/// Which changes of a finding were reported, and when.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Pacing {
    /// When delayed changes were last reported.
    at: Option<BootNs>,
    /// Number of delayed changes, and since when the first of them waits.
    waiting: u32,
    since: BootNs,
    /// Whether the pod's name was reported.
    pod: bool,
}

impl Pacing {
    /// When delayed changes may be reported.
    fn due(&self) -> Option<BootNs> {
        let settled = self.since.plus(SETTLES);
        let due = self.at.map_or(settled, |at| at.plus(PACE).max(settled));
        (self.waiting > 0).then_some(due)
    }
}

impl Record {
    /// Notes that it is not seen at `now`. Returns whether it has ended.
    fn is_missed(&mut self, now: BootNs) -> bool {
        let lasts = self.finding.status == Status::Firing && lingers(self.finding.code);
        let since = *self.missing.get_or_insert(now);
        self.acked_for.forget_nameless();
        !lasts || now >= since.plus(self.lingers())
    }

    /// How long it stays open without being seen, in ns.
    fn lingers(&self) -> u64 {
        if self.gap == 0 { LINGERS } else { lingers_after(self.gap) }
    }

    /// The record of an ended finding.
    #[must_use]
    pub fn over(finding: Finding) -> Self {
        let (observed, seen) = (BootNs::default(), BootNs::default());
        let (pacing, acked_for) = (Pacing::default(), AckedFor::default());
        let (raised, missing, gap, place) = (Raised::default(), None, 0, None);
        Self { observed, seen, finding, pacing, missing, gap, acked_for, raised, place }
    }
}

/// Every open finding, and the last resolved ones.
#[derive(Debug, Default)]
pub struct Life {
    /// Pending and firing findings, by id.
    open: BTreeMap<String, Record>,
    /// Resolved findings, the newest at the back.
    resolved: VecDeque<Finding>,
    /// Open findings that an earlier run left and this run has not found again.
    inherited: BTreeSet<String>,
    /// Codes whose inherited findings are kept for now.
    patient: BTreeSet<Code>,
    /// Inherited findings that are known to hold still.
    kept: BTreeSet<String>,
    /// Minimum time between the two observations that make a finding fire, in ns.
    second_look: u64,
    /// The daemon that commands query.
    daemon: remedy::Daemon,
    /// How many findings can be open.
    places: Places,
    /// Those for which there was no place.
    untold: BTreeMap<(Whose, Code), u64>,
    /// Open findings that may have held when they were last looked for, although nothing found them.
    spared: BTreeSet<String>,
}

impl Life {
    /// As [`Life::observe_with`], if everything is the node's own and was judged.
    #[cfg(test)]
    pub fn observe(
        &mut self,
        now: BootNs,
        calendar: &Calendar,
        candidates: &[Candidate],
        blind: &BTreeSet<Code>,
    ) -> Vec<Change> {
        self.observe_with(now, calendar, candidates, blind, &Standing::default())
    }

    /// Compares the current candidates with the open findings, and returns what changed.
    ///
    /// `blind` names the codes whose detectors miss a source right now: their findings may open and change, but none of
    /// them is resolved.
    pub fn observe_with(
        &mut self,
        now: BootNs,
        calendar: &Calendar,
        candidates: &[Candidate],
        blind: &BTreeSet<Code>,
        standing: &Standing<'_>,
    ) -> Vec<Change> {
        let seen = by_id(candidates);
        let date = calendar.date(now);
        let mut changes = self.resolve_missing(now, calendar, &seen, blind, standing);
        changes.extend(self.end_acks(&date));
        // In the order of the detectors, not of the ids, because a log shows this order.
        let mut told = BTreeSet::new();
        let ids = candidates.iter().map(|one| finding_id(one.code, &one.key));
        let ids = ids.filter(|id| told.insert(id.clone()));
        let seen: Vec<(String, &Candidate)> =
            ids.filter_map(|id| seen.get(&id).copied().map(|one| (id, one))).collect();
        let opened = self.seat(&seen, standing);
        // Collected before any finding is reported, so that a consequence that comes first in the list still names its
        // cause.
        let known: BTreeSet<String> = opened.keys().chain(self.open.keys()).cloned().collect();
        for (id, candidate) in seen {
            let cause = candidate
                .caused_by
                .as_ref()
                .map(|(code, key)| finding_id(*code, key))
                .filter(|cause| *cause != id && known.contains(cause));
            let remediation = Remediation::of(candidate, &self.daemon);
            let seen = Seen { candidate, cause, remediation };
            let change = match (self.open.get_mut(&id), opened.get(&id)) {
                (Some(record), _) => update(record, now, calendar, seen, self.second_look),
                (None, Some(place)) => Some(self.begin(id, calendar, seen, *place)),
                (None, None) => None,
            };
            changes.extend(change);
        }
        changes
    }

    /// Acknowledges an open finding, or with `None` withdraws the acknowledgement. Returns `None` if nothing has
    /// changed.
    pub fn acknowledge(&mut self, id: &str, now: &str, ack: Option<Ack>) -> Option<Change> {
        let Record { finding, acked_for, .. } = self.open.get_mut(id)?;
        if finding.acked == ack {
            return None;
        }
        match ack {
            Some(_) => acked_for.add(&finding.subject),
            None => *acked_for = AckedFor::default(),
        }
        finding.acked = ack;
        let at = finding.acked.is_none().then(|| now.to_owned());
        Some(Change { at, ..Change::new(ChangeKind::Updated, finding.clone()) })
    }

    /// Removes expired acknowledgements. Dates of one format compare as text.
    fn end_acks(&mut self, now: &str) -> Vec<Change> {
        let over = |ack: &Ack| ack.until.as_deref().is_some_and(|until| until <= now);
        let ended =
            self.open.values_mut().filter(|one| one.finding.acked.as_ref().is_some_and(over));
        ended
            .map(|Record { finding, acked_for, .. }| {
                finding.acked = None;
                *acked_for = AckedFor::default();
                let at = Some(now.to_owned());
                Change { at, ..Change::new(ChangeKind::Updated, finding.clone()) }
            })
            .collect()
    }

    /// Sets how far apart the two observations must be that make a finding fire.
    pub fn set_second_look(&mut self, ns: u64) {
        self.second_look = ns;
    }

    /// Sets the daemon that commands query.
    pub fn set_daemon(&mut self, daemon: remedy::Daemon) {
        self.daemon = daemon;
    }

    /// When a second observation of a pending finding will count, delayed changes must be reported, or a finding that
    /// lingers ends.
    #[must_use]
    pub fn due(&self, now: BootNs) -> Option<BootNs> {
        let pending = self.open.values().filter(|one| one.finding.status == Status::Pending);
        let once = self.second_look;
        let due = pending
            .flat_map(|one| [one.observed.plus(once), one.observed.plus(once.saturating_mul(2))]);
        let waiting = self.open.values().filter_map(|one| one.pacing.due());
        let ends = self.open.values().filter_map(|one| Some(one.missing?.plus(one.lingers())));
        let nameless = self.open.values().filter_map(|one| one.acked_for.due());
        let raised = self.open.values().flat_map(|one| one.raised.due(once));
        due.chain(waiting).chain(ends).chain(nameless).chain(raised).filter(|due| *due > now).min()
    }

    /// Whether the same observation as the last one would change nothing, at any time.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        let rests = |one: &Record| {
            let ack = one.finding.acked.as_ref();
            let waits = one.finding.status == Status::Pending
                || one.pacing.waiting > 0
                || one.raised.waits();
            let seen = one.missing.is_none() && one.acked_for.due().is_none();
            !waits && seen && ack.is_none_or(|ack| ack.until.is_none())
        };
        // When what spares a finding ends, no candidate changes.
        self.inherited.is_empty() && self.spared.is_empty() && self.open.values().all(rests)
    }

    /// The open findings, by id.
    pub fn open(&self) -> impl Iterator<Item = &Record> {
        self.open.values()
    }

    /// An open finding.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<&Record> {
        self.open.get(id)
    }

    /// The last resolved findings, the newest first.
    pub fn resolved(&self) -> impl Iterator<Item = &Finding> {
        self.resolved.iter().rev()
    }

    /// Continues a finding that an earlier run of this boot left open. If this run already has the finding, its content
    /// is kept, and its beginning is taken from the earlier run.
    pub fn continue_from(&mut self, earlier: Record) {
        let Some(record) = self.open.get_mut(&earlier.finding.id) else {
            self.inherited.insert(earlier.finding.id.clone());
            self.open.insert(earlier.finding.id.clone(), earlier);
            return;
        };
        record.observed = earlier.observed;
        let (mine, theirs) = (&mut record.finding, earlier.finding);
        if theirs.acked.is_some() {
            record.acked_for.add(&theirs.subject);
        }
        mine.since = theirs.since;
        mine.preexisting = theirs.preexisting;
        mine.acked = mine.acked.take().or(theirs.acked);
        if theirs.firing_at.is_some() {
            mine.firing_at = theirs.firing_at;
            mine.status = Status::Firing;
        }
    }

    /// Adds a resolved finding; must be called with the oldest first.
    pub fn remember(&mut self, finding: Finding) {
        self.resolved.retain(|known| known.id != finding.id);
        if self.resolved.len() == RESOLVED_KEPT {
            self.resolved.pop_front();
        }
        self.resolved.push_back(finding);
    }

    /// Forgets resolved findings that ended before `before` (wall clock, milliseconds).
    pub fn forget_before(&mut self, before: u64) {
        self.resolved
            .retain(|past| past.resolved_at.as_deref().is_none_or(|at| millis(at) >= before));
    }

    /// Keeps the inherited findings of these codes, until they are found again or this is called with other codes:
    /// after a restart their detectors take a while to find an existing state.
    pub fn be_patient(&mut self, codes: &[Code]) {
        self.patient = codes.iter().copied().collect();
    }

    /// Keeps inherited findings that this run cannot find again, as long as `holds` is true.
    pub fn keep_while(&mut self, holds: impl Fn(&Finding) -> bool) {
        let inherited = self.inherited.iter().filter_map(|id| self.open.get(id));
        let kept = inherited.filter(|record| holds(&record.finding));
        self.kept = kept.map(|record| record.finding.id.clone()).collect();
    }

    fn resolve_missing(
        &mut self,
        now: BootNs,
        calendar: &Calendar,
        seen: &BTreeMap<String, &Candidate>,
        blind: &BTreeSet<Code>,
        standing: &Standing<'_>,
    ) -> Vec<Change> {
        self.inherited.retain(|id| !seen.contains_key(id));
        let mut spared = BTreeSet::new();
        let gone: Vec<Record> = self
            .open
            .extract_if(.., |id, record| {
                let code = record.finding.code;
                let waits = self.inherited.contains(id)
                    && (self.patient.contains(&code) || self.kept.contains(id));
                let unseen = !seen.contains_key(id) && !blind.contains(&code) && !waits;
                let spare = unseen && (standing.may_hold)(&record.finding);
                spared.extend(spare.then(|| id.clone()));
                unseen && !spare && record.is_missed(now)
            })
            .map(|(_, record)| record)
            .collect();
        self.spared = spared;
        gone.into_iter()
            .map(|Record { mut finding, pacing, missing, .. }| {
                finding.status = Status::Resolved;
                finding.resolved_at = Some(calendar.date(missing.unwrap_or(now)));
                self.remember(finding.clone());
                let held_back = pacing.waiting;
                Change { held_back, ..Change::new(ChangeKind::Resolved, finding) }
            })
            .collect()
    }

    fn begin(&mut self, id: String, calendar: &Calendar, seen: Seen<'_>, place: Place) -> Change {
        let Seen { candidate, cause, remediation } = seen;
        let before = self.resolved.iter().position(|known| known.id == id);
        let before = before.and_then(|at| self.resolved.remove(at));
        let last = calendar.date(candidate.observed);
        let back =
            before.filter(|_| lingers(candidate.code)).and_then(|past| came_back(past, &last));
        let (gap, past) = back.unwrap_or_default();
        let (mut acked_for, mut acked) = (AckedFor::default(), None);
        if let Some((ack, subject)) = past {
            acked_for.add(&subject);
            acked =
                Some(ack).filter(|_| !acked_for.excludes(&candidate.subject, candidate.observed));
        }
        let finding = Finding {
            id: id.clone(),
            code: candidate.code,
            severity: candidate.severity,
            status: Status::Pending,
            unjudged: false,
            subject: candidate.subject.clone(),
            holders: candidate.holders.clone(),
            evidence: candidate.evidence.clone(),
            since: calendar.date(candidate.since),
            firing_at: None,
            last_seen: last,
            resolved_at: None,
            caused_by: cause,
            impact: candidate.impact.to_string(),
            remediation: remediation.lines,
            steps: remediation.steps,
            preexisting: candidate.preexisting,
            acked,
        };
        let at = candidate.observed;
        let record = Record {
            observed: at,
            seen: at,
            pacing: Pacing { pod: has_pod(&finding.subject), ..Pacing::default() },
            missing: None,
            gap,
            acked_for,
            raised: Raised::default(),
            place: Some(place),
            finding: finding.clone(),
        };
        self.open.insert(id, record);
        Change::new(ChangeKind::Opened, finding)
    }
}

/// How long a finding that fired was not seen until `now`, in ns, and its acknowledgement with whom that was about, if
/// it is the same one that comes back.
fn came_back(past: Finding, now: &str) -> Option<(u64, Option<(Ack, Subject)>)> {
    past.firing_at.as_ref()?;
    let gap = millis(now).saturating_sub(millis(past.resolved_at.as_deref()?));
    let gap = gap.max(1).saturating_mul(1_000_000);
    let acked = past.acked.filter(|ack| ack.until.as_deref().is_none_or(|until| until > now));
    (gap <= LINGERS_AT_MOST).then(|| (gap, acked.map(|ack| (ack, past.subject))))
}

/// One candidate for each id. If a detector reports the same thing twice, the latest observation counts.
fn by_id(candidates: &[Candidate]) -> BTreeMap<String, &Candidate> {
    let mut seen: BTreeMap<String, &Candidate> = BTreeMap::new();
    for candidate in candidates {
        seen.entry(finding_id(candidate.code, &candidate.key))
            .and_modify(|known| {
                if candidate.observed > known.observed {
                    *known = candidate;
                }
            })
            .or_insert(candidate);
    }
    seen
}

/// Updates a finding. Returns `None` if nothing changed that a person acts on (new evidence alone does not count), or
/// the change is delayed: see [`PACE`] and [`SETTLES`].
///
/// `since` and `preexisting` keep their values from when the finding was opened: they belong to this occurrence, and
/// the traces depend on them.
fn update(
    record: &mut Record,
    now: BootNs,
    calendar: &Calendar,
    seen: Seen<'_>,
    second_look: u64,
) -> Option<Change> {
    let Seen { candidate, cause, remediation } = seen;
    let missed = record.missing.take().map(|since| now.since(since));
    // A gap shorter than LINGERS is what every restart has.
    record.gap = record.gap.max(missed.filter(|gap| *gap > LINGERS).unwrap_or_default());
    let ack_ended = is_taken_over(record, &candidate.subject, now);
    let finding = &mut record.finding;
    let fires = finding.status == Status::Pending
        && is_second(record.observed, candidate.observed, now, second_look);
    let looks = (candidate.observed, now);
    let severity = record.raised.settle(finding.severity, candidate.severity, looks, second_look);
    let has_name = has_pod(&candidate.subject);
    let named = has_name && !has_pod(&finding.subject) && !record.pacing.pod;
    let at_once =
        fires || named || ack_ended || finding.severity != severity || finding.caused_by != cause;
    let paced = finding.subject != candidate.subject
        || finding.remediation != remediation.lines
        || !same_holders(&finding.holders, &candidate.holders);
    if fires {
        finding.status = Status::Firing;
        finding.firing_at = Some(calendar.date(now));
    }
    if candidate.observed > record.seen {
        record.seen = candidate.observed;
        finding.last_seen = calendar.date(candidate.observed);
    }
    finding.severity = severity;
    finding.subject.clone_from(&candidate.subject);
    finding.holders.clone_from(&candidate.holders);
    finding.evidence.clone_from(&candidate.evidence);
    finding.remediation = remediation.lines;
    finding.steps = remediation.steps;
    finding.impact = candidate.impact.to_string();
    finding.caused_by = cause;
    let pacing = &mut record.pacing;
    pacing.pod |= has_name;
    if paced && !at_once {
        if pacing.waiting == 0 {
            pacing.since = now;
        }
        pacing.waiting = pacing.waiting.saturating_add(1);
    }
    if !at_once {
        if pacing.due().is_none_or(|due| due > now) {
            return None;
        }
        pacing.at = Some(now);
    }
    // The newest delayed change is reported with this one.
    let held_back = std::mem::take(&mut pacing.waiting).saturating_sub(u32::from(!at_once));
    let at = ack_ended.then(|| calendar.date(now));
    Some(Change { held_back, at, ..Change::new(ChangeKind::Updated, finding.clone()) })
}

/// Ends the acknowledgement of a finding that is about another holder now. Returns whether it has.
fn is_taken_over(record: &mut Record, subject: &Subject, now: BootNs) -> bool {
    let Record { finding, acked_for, .. } = record;
    if finding.acked.is_none() || !lingers(finding.code) {
        return false;
    }
    // Acknowledged in an earlier run.
    if acked_for.is_empty() {
        acked_for.add(&finding.subject);
    }
    let ends = acked_for.excludes(subject, now);
    if ends {
        finding.acked = None;
        acked_for.forget_nameless();
    }
    ends
}

fn has_pod(subject: &Subject) -> bool {
    subject.pod.as_ref().is_some_and(|pod| pod.name.is_some())
}

/// A candidate with derived data.
struct Seen<'a> {
    candidate: &'a Candidate,
    /// The id of the finding that it is a consequence of.
    cause: Option<String>,
    remediation: Remediation,
}

/// What to do, as lines and in the types of the contract.
struct Remediation {
    lines: Vec<String>,
    steps: Vec<Step>,
}

impl Remediation {
    fn of(candidate: &Candidate, daemon: &remedy::Daemon) -> Self {
        let (mut lines, mut steps) = (Vec::new(), Vec::new());
        for step in &candidate.remediation {
            let step = Step::from(&*step.asking(daemon));
            lines.push(step.line());
            steps.push(step);
        }
        Self { lines, steps }
    }
}

/// Whether the holders are the same, in the same way, in the order of the detector.
fn same_holders(a: &[Holder], b: &[Holder]) -> bool {
    // State letter, comm and dates are ignored: a task that hangs between two sleeps alternates between R, S and D and
    // may rename itself, and each change would be an event for every sink.
    let same = |(a, b): (&Holder, &Holder)| {
        (a.kind, a.pid, a.tid, a.fd) == (b.kind, b.pid, b.tid, b.fd)
            && (a.exiting, a.mount_ns, &a.mount_path) == (b.exiting, b.mount_ns, &b.mount_path)
    };
    a.len() == b.len() && a.iter().zip(b).all(same)
}

#[cfg(test)]
mod tests;
