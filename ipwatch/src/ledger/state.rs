//! The ledger itself: the current findings and tenures. Pure: no clock, no I/O.
//!
//! What must be written is collected as [`Writes`] for [`LedgerFile`](super::LedgerFile), and what the file contains is
//! merged by [`Ledger::restore`].

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::flaps::{Flaps, Kept};
use super::format::Loaded;
use super::life::{Life, Record};
use super::tenure::{self, Open, Row, RowKey};
use crate::clock::Calendar;
use crate::contract::{Netns, Tenure};
use crate::fact::BootNs;
use crate::finding::{Ack, Candidate, Change, Code, Finding};
use crate::map::{Begun, Named, TenureKey};
use crate::remedy::Daemon;

/// An acknowledgement as it is requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AckRequest {
    /// Uid of the user who gives it.
    pub uid: u32,
    /// How long it is valid; `None`: until the finding ends.
    pub lasts: Option<Duration>,
    /// The reason.
    pub note: Option<String>,
}

/// Rows for the file.
#[derive(Debug, Default)]
pub struct Writes {
    pub(super) findings: Vec<Record>,
    /// In order: of several with one name the last counts.
    tenures: Vec<Write>,
}

/// What becomes of a row of a tenure.
#[derive(Debug)]
enum Write {
    Put(Row),
    /// It must not be written after all, or must be removed.
    Supersede(Row),
}

impl Writes {
    fn tenures(&mut self, rows: impl IntoIterator<Item = Row>) {
        self.tenures.extend(rows.into_iter().map(Write::Put));
    }

    fn supersede(&mut self, row: Row) {
        self.tenures.push(Write::Supersede(row));
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.findings.is_empty() && self.tenures.is_empty()
    }

    /// The names of rows of tenures that must not be written after all, and then the rows to write. Only the newest
    /// version of each row is written.
    pub(super) fn into_tenures(self) -> (Vec<RowKey>, BTreeMap<RowKey, Row>) {
        let (mut superseded, mut rows) = (Vec::new(), BTreeMap::new());
        for write in self.tenures {
            match write {
                Write::Put(row) => {
                    rows.insert(row.name(), row);
                }
                Write::Supersede(row) => {
                    let name = row.name();
                    rows.remove(&name);
                    superseded.push(name);
                }
            }
        }
        (superseded, rows)
    }
}

/// Findings and tenures, and what is not written yet.
#[derive(Debug, Default)]
pub struct Ledger {
    calendar: Calendar,
    life: Life,
    open: Open,
    flaps: Flaps,
    writes: Writes,
    /// Changes to return from the next [`Ledger::observe`]: findings that a reboot ended.
    owed: Vec<Change>,
    /// Tenures that a reboot ended, and the id of their boot.
    ended: Option<(String, Vec<Tenure>)>,
    /// Whether the first complete snapshot was compared with the open tenures.
    settled: bool,
}

impl Ledger {
    /// Sets the conversion of moments of this boot to dates.
    pub fn set_calendar(&mut self, calendar: Calendar) {
        self.calendar = calendar;
    }

    /// Rows for the file since the last call.
    pub fn take_writes(&mut self) -> Writes {
        std::mem::take(&mut self.writes)
    }

    /// As [`Ledger::take_writes`], at the end, with every open finding: new evidence alone is not written each time it
    /// changes, but this last version is.
    pub fn final_writes(&mut self) -> Writes {
        self.writes.findings.extend(self.life.open().cloned());
        self.take_writes()
    }

    /// See [`Life::set_daemon`].
    pub fn set_daemon(&mut self, daemon: Daemon) {
        self.life.set_daemon(daemon);
    }

    /// See [`Life::set_second_look`].
    pub fn set_second_look(&mut self, ns: u64) {
        self.life.set_second_look(ns);
    }

    /// When something may change without new observations: see [`Life::due`], and expiring acknowledgements.
    #[must_use]
    pub fn due(&self, now: BootNs) -> Option<BootNs> {
        let until = |record: &Record| {
            let until = tenure::millis(record.finding.acked.as_ref()?.until.as_deref()?);
            let wall = tenure::millis(&self.calendar.date(now));
            // One millisecond later it has certainly expired.
            Some(now.plus((until.saturating_sub(wall) + 1).saturating_mul(1_000_000)))
        };
        let acks = self.life.open().filter_map(until).min();
        [self.life.due(now), acks].into_iter().flatten().min()
    }

    /// Whether [`Ledger::observe`] would change nothing if nothing else is observed: see [`Life::is_at_rest`].
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.owed.is_empty() && self.life.is_at_rest()
    }

    /// See [`Life::be_patient`].
    pub fn be_patient(&mut self, codes: &[Code]) {
        self.life.be_patient(codes);
    }

    /// See [`Life::keep_while`].
    pub fn keep_while(&mut self, holds: impl Fn(&Finding) -> bool) {
        self.life.keep_while(holds);
    }

    /// See [`Life::keep_unsure`].
    pub fn keep_unsure(&mut self, is_unsure: impl Fn(&Finding) -> bool) {
        self.life.keep_unsure(is_unsure);
    }

    /// Returns what changed: see [`Life::observe`]. Until the first snapshot is complete every code must be blind: what
    /// an earlier run left open is unknown, not gone.
    pub fn observe(
        &mut self,
        now: BootNs,
        candidates: &[Candidate],
        blind: &BTreeSet<Code>,
    ) -> Vec<Change> {
        let mut changes = std::mem::take(&mut self.owed);
        let fresh = self.life.observe(now, &self.calendar, candidates, blind);
        self.write_findings(&fresh);
        changes.extend(fresh);
        changes
    }

    /// Acknowledges an open finding, for a time or until it ends; with `None` withdraws the acknowledgement. Returns
    /// the change, if any.
    pub fn acknowledge(
        &mut self,
        id: &str,
        now: BootNs,
        ack: Option<AckRequest>,
    ) -> Option<Change> {
        let date = |after: u64| self.calendar.date(now.plus(after));
        let ack = ack.map(|AckRequest { uid, lasts, note }| Ack {
            at: date(0),
            uid: Some(uid),
            until: lasts.map(|lasts| date(u64::try_from(lasts.as_nanos()).unwrap_or(u64::MAX / 4))),
            note,
        });
        let change = self.life.acknowledge(id, &date(0), ack)?;
        self.write_findings(std::slice::from_ref(&change));
        Some(change)
    }

    /// The open findings, the most severe and oldest first; with `all` also the resolved ones, the newest first (at
    /// most 256).
    #[must_use]
    pub fn findings(&self, all: bool) -> Vec<Finding> {
        let mut findings: Vec<Finding> =
            self.life.open().map(|record| record.finding.clone()).collect();
        findings.sort_by(|a, b| {
            b.severity.cmp(&a.severity).then_with(|| a.since.cmp(&b.since)).then(a.id.cmp(&b.id))
        });
        if all {
            findings.extend(self.life.resolved().cloned());
        }
        findings
    }

    /// The open findings in no order, not copied.
    pub fn open_findings(&self) -> impl Iterator<Item = &Finding> {
        self.life.open().map(|record| &record.finding)
    }

    /// An open finding.
    #[must_use]
    pub fn open_finding(&self, id: &str) -> Option<&Finding> {
        self.life.get(id).map(|record| &record.finding)
    }

    /// An IP is held. Returns the tenure if it is new: an open one with this key continues, and is only updated.
    pub fn held(&mut self, key: TenureKey, begun: Begun) -> Option<Row> {
        let new = !self.open.contains(&key);
        let row = self.open.held(key, begun);
        self.writes.tenures(row.clone());
        row.filter(|_| new)
    }

    /// The open tenure with this key.
    #[must_use]
    pub fn tenure(&self, key: &TenureKey) -> Option<Tenure> {
        self.open.tenure(key)
    }

    /// The container or the pod of a held IP became known.
    pub fn named(&mut self, key: &TenureKey, who: &Arc<Named>) {
        self.writes.tenures(self.open.named(key, who));
    }

    /// Two netns turned out to be one: the tenure of `from` continues as `to`, with its own beginning.
    pub fn moved(&mut self, from: &TenureKey, to: TenureKey, netns: Netns) {
        let Some((row, superseded)) = self.open.moved(from, to, netns) else { return };
        superseded.into_iter().for_each(|row| self.writes.supersede(row));
        self.writes.tenures([row]);
    }

    /// An IP is no longer held. Returns the ended tenure; `None` if the IP was not held.
    pub fn released(&mut self, key: &TenureKey, at: BootNs, ended_by: &'static str) -> Option<Row> {
        let row = self.open.released(key, self.calendar.wall(at), ended_by)?;
        match self.flaps.ended(key, &row, at) {
            Kept::Own => self.writes.tenures([row.clone()]),
            Kept::Within(longer) => {
                self.writes.supersede(row.clone());
                self.writes.tenures([longer]);
            }
            Kept::No => self.writes.supersede(row.clone()),
        }
        Some(row)
    }

    /// Number of tenures without a row, because their netns exceeded its budget.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        self.flaps.lost()
    }

    /// After the first complete snapshot: ends tenures that an earlier run left open and that are not in `alive`, the
    /// keys of everything that is held now. Returns the ended tenures.
    pub fn settle(&mut self, alive: &HashSet<TenureKey>, at: BootNs) -> Vec<Row> {
        self.settled = true;
        let ended = self.open.settle(alive, self.calendar.wall(at), "unseen");
        self.writes.tenures(ended.iter().cloned());
        ended
    }

    /// Tenures that a reboot ended, once they are loaded, and the id of their boot.
    pub fn take_ended_by_reboot(&mut self) -> Option<(String, Vec<Tenure>)> {
        self.ended.take()
    }

    /// Forgets resolved findings that ended before `before` (wall clock, milliseconds).
    pub fn forget_before(&mut self, before: u64) {
        self.life.forget_before(before);
    }

    /// Merges the content of the file, at the start or when the file works again, with the current state: open rows of
    /// an earlier run of this boot continue; those of an earlier boot end, which the next [`Ledger::observe`] reports.
    /// The current state is written again, because the file may be new.
    pub fn restore(&mut self, loaded: Loaded, now: BootNs) {
        let known: Vec<String> = self.life.open().map(|record| record.finding.id.clone()).collect();
        let held: HashSet<u128> = self.open.rows().map(Row::hash).collect();
        let ended = self.continue_from(loaded, now);
        let records = known.iter().filter_map(|id| self.life.get(id)).cloned();
        self.writes.findings.extend(records);
        if !held.is_empty() {
            let rows = self.open.rows().filter(|row| held.contains(&row.hash()));
            self.writes.tenures(rows.cloned());
        }
        self.writes.tenures(ended);
    }

    /// Continues what the file has. Returns tenures that turn out to have ended, to be written.
    fn continue_from(&mut self, loaded: Loaded, now: BootNs) -> Vec<Row> {
        // What ended during the file's failure may still wait to be written: the file is outdated.
        let over: HashSet<String> = self.life.resolved().map(|past| past.id.clone()).collect();
        for past in loaded.resolved {
            if !over.contains(&past.id) && self.life.get(&past.id).is_none() {
                self.life.remember(past);
            }
        }
        self.owed.extend(loaded.ended_by_reboot);
        if let Some(boot_id) = loaded.earlier {
            self.ended = Some((boot_id, loaded.tenures_of_before));
        }
        for record in loaded.findings {
            if !over.contains(&record.finding.id) {
                self.life.continue_from(record);
            }
        }
        let (earlier, over) = match self.settled {
            true => self.open.split(loaded.tenures),
            false => (loaded.tenures, Vec::new()),
        };
        for row in self.open.continue_from(earlier) {
            self.writes.supersede(row);
        }
        over.into_iter().map(|row| row.end(self.calendar.wall(now), "unseen")).collect()
    }

    fn write_findings(&mut self, changes: &[Change]) {
        self.writes.findings.extend(changes.iter().map(|Change { finding, .. }| {
            // For an ended finding, the observation that opened it no longer matters.
            let alive = self.life.get(&finding.id).cloned();
            alive.unwrap_or_else(|| Record::over(finding.clone()))
        }));
    }
}
