//! The ledger: candidates become findings with a life, and the life is on disk.
//!
//! - [`life`]: pending, firing, resolved; pure.
//! - [`tenure`]: who held an IP from when to when; pure.
//! - `store`, `tables`, `seal`: the file. `backlog`, `writer`: the thread that writes it.
//!
//! Within one boot, ids, `since` and `firing_at` survive the daemon, kill -9 included. A reboot ends
//! everything: no netns outlives it, so what an earlier boot left open is closed and never merged
//! with what is seen now.

mod backlog;
mod id;
pub mod life;
mod seal;
mod store;
mod tables;
pub mod tenure;
mod writer;

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use backlog::FindingRow;
use life::{Life, Record};
use store::{FORMAT, Identity, Loaded, StoreError};
use tenure::{Open, Row};
use writer::{Pace, Shared};

use crate::api::Prefix;
use crate::clock::Calendar;
use crate::contract::{Container, Pod, Tenure};
use crate::fact::{Boot, BootNs, SourceStatus};
use crate::finding::{Ack, Candidate, Change, Code, Finding};

/// Name of the file in the state directory.
const FILE: &str = "ledger.redb";

/// Why there is no ledger. Trouble with the disk is not among these: the ledger goes on in memory
/// then, and says so in its [`Ledger::status`].
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// Another daemon works with this state directory.
    #[error(
        "{} is open in another process: is ipwatch running already? Stop it, or give this one a \
         --state-dir of its own",
        .0.display()
    )]
    Locked(PathBuf),
    /// A newer ipwatch wrote it.
    #[error(
        "{} has format {found}, this ipwatch knows {FORMAT}: run the newer ipwatch again, or move \
         the file away to start a new history",
        .path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
    },
    /// No thread could be started for it.
    #[error("{}: {why}", .path.display())]
    Failed {
        /// The file.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
    /// It was closed before everything was written.
    #[error("{}: not everything was written: {why}", .path.display())]
    NotWritten {
        /// The file.
        path: PathBuf,
        /// Its last state.
        why: String,
    },
}

/// How long what is over is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Resolved findings and ended tenures older than this go.
    pub max_age_secs: u64,
    /// The file does not grow beyond about this: the oldest go first. What is not over stays.
    pub max_bytes: u64,
}

impl Default for Retention {
    fn default() -> Self {
        Self { max_age_secs: 30 * 24 * 3600, max_bytes: 64 * 1024 * 1024 }
    }
}

impl Retention {
    /// How many bytes of rows are left when the file has grown too big: far enough below, because
    /// the tree around the rows takes as much again, and so that it does not happen every minute.
    fn target(self) -> u64 {
        self.max_bytes / 3
    }
}

/// An acknowledgement as it is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word {
    /// The user who gives it.
    pub uid: u32,
    /// For how long; `None`: until the finding is over.
    pub lasts: Option<Duration>,
    /// Why.
    pub note: Option<String>,
}

/// Findings, tenures and their history.
#[derive(Debug)]
pub struct Ledger {
    calendar: Calendar,
    retention: Retention,
    life: Life,
    open: Open,
    shared: Arc<Shared>,
    /// Changes that belong to the next [`Ledger::observe`]: what a reboot ended.
    owed: Vec<Change>,
    /// Tenures that a reboot ended, and the boot that they were of.
    ended: Option<(String, Vec<Tenure>)>,
    /// The first complete snapshot was compared with the open tenures.
    settled: bool,
}

impl Ledger {
    /// Opens the ledger in a state directory (made if missing), or in memory alone: for one `scan`, or
    /// a replay. What an earlier run of this boot left goes on; what an earlier boot left ends, and
    /// the next [`Ledger::observe`] tells so.
    ///
    /// Blocks on the disk.
    ///
    /// # Errors
    /// The file is somebody else's: [`LedgerError::Locked`], [`LedgerError::Newer`]. A file that
    /// cannot be used for any other reason is no error: see [`Ledger::status`].
    pub fn open(
        dir: Option<&Path>,
        boot: &Boot,
        calendar: Calendar,
        retention: Retention,
    ) -> Result<Self, LedgerError> {
        Self::open_with(dir, boot, calendar, retention, Pace::default())
    }

    fn open_with(
        dir: Option<&Path>,
        boot: &Boot,
        calendar: Calendar,
        retention: Retention,
        pace: Pace,
    ) -> Result<Self, LedgerError> {
        let shared = match dir {
            None => Shared::memory(),
            Some(dir) => {
                let path = dir.join(FILE);
                let identity = Identity {
                    boot_id: boot.boot_id.clone(),
                    node: boot.node.clone(),
                    began: calendar.date(BootNs(0)),
                };
                writer::start(path.clone(), identity, retention, pace).map_err(
                    |error| match error {
                        StoreError::Locked => LedgerError::Locked(path),
                        StoreError::Newer(found) => LedgerError::Newer { path, found },
                        other => LedgerError::Failed { path, why: other.to_string() },
                    },
                )?
            }
        };
        let (life, open) = (Life::default(), Open::default());
        let (owed, ended, settled) = (Vec::new(), None, false);
        let mut ledger = Self { calendar, retention, life, open, shared, owed, ended, settled };
        ledger.take_over();
        Ok(ledger)
    }

    /// See [`Life::set_second_look`].
    pub fn set_second_look(&mut self, ns: u64) {
        self.life.set_second_look(ns);
    }

    /// When something may change without anything new being seen: see [`Life::due`], and acknowledgements
    /// that end.
    #[must_use]
    pub fn due(&self, now: BootNs) -> Option<BootNs> {
        let wall = tenure::millis(&self.calendar.date(now));
        let until = |record: &Record| {
            let until = tenure::millis(record.finding.acked.as_ref()?.until.as_deref()?);
            // A millisecond later it is over for sure.
            Some(now.plus((until.saturating_sub(wall) + 1).saturating_mul(1_000_000)))
        };
        let acks = self.life.open().filter_map(until).min();
        [self.life.due(now), acks].into_iter().flatten().min()
    }

    /// See [`Life::be_patient`].
    pub fn be_patient(&mut self, codes: &[Code]) {
        self.life.be_patient(codes);
    }

    /// See [`Life::keep_while`].
    pub fn keep_while(&mut self, holds: impl Fn(&Finding) -> bool) {
        self.take_over();
        self.life.keep_while(holds);
    }

    /// What changed: see [`Life::observe`]. Until the first snapshot is complete every code is blind:
    /// what an earlier run left open is unknown, not gone.
    pub fn observe(
        &mut self,
        now: BootNs,
        candidates: &[Candidate],
        blind: &BTreeSet<Code>,
    ) -> Vec<Change> {
        self.take_over();
        let mut changes = std::mem::take(&mut self.owed);
        let fresh = self.life.observe(now, &self.calendar, candidates, blind);
        if !fresh.is_empty() && !self.shared.in_memory() {
            self.write_findings(&fresh);
        }
        changes.extend(fresh);
        changes
    }

    /// Acknowledges a finding that is alive, for so long or until it is over; with `None` takes that back.
    /// What changed, if anything.
    pub fn acknowledge(&mut self, id: &str, now: BootNs, ack: Option<Word>) -> Option<Change> {
        self.take_over();
        let date = |after: u64| self.calendar.date(now.plus(after));
        let ack = ack.map(|Word { uid, lasts, note }| Ack {
            at: date(0),
            uid: Some(uid),
            until: lasts.map(|lasts| date(u64::try_from(lasts.as_nanos()).unwrap_or(u64::MAX / 4))),
            note,
        });
        let change = self.life.acknowledge(id, &date(0), ack)?;
        if !self.shared.in_memory() {
            self.write_findings(std::slice::from_ref(&change));
        }
        Some(change)
    }

    /// The findings that are alive, the worst and oldest first; with `all` then those that are over,
    /// the newest first (at most 256).
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

    /// The same in no order, and not copied.
    pub fn open_findings(&self) -> impl Iterator<Item = &Finding> {
        self.life.open().map(|record| &record.finding)
    }

    /// An IP is held. `key` names the tenure: netns identity, device, IP and prefix length. Whether it
    /// is a new one: a key that is held already goes on since its beginning, and only learns.
    pub fn held(&mut self, key: &str, tenure: Tenure) -> bool {
        self.take_over();
        let new = !self.open.contains(key);
        let row = self.open.held(key, tenure);
        self.write_tenures(row);
        new
    }

    /// The tenure that lasts under this key, since its own beginning.
    #[must_use]
    pub fn tenure(&self, key: &str) -> Option<Tenure> {
        self.open.tenure(key)
    }

    /// The container or the pod of a held IP became known.
    pub fn named(&mut self, key: &str, container: Option<Container>, pod: Option<Pod>) {
        self.take_over();
        let row = self.open.named(key, container, pod);
        self.write_tenures(row);
    }

    /// An IP is no longer held. The tenure as it ended; `None` when it was not held.
    pub fn released(&mut self, key: &str, at: BootNs, ended_by: &str) -> Option<Tenure> {
        self.take_over();
        let (row, tenure) = self.open.released(key, &self.calendar.date(at), ended_by)?;
        self.write_tenures([row]);
        Some(tenure)
    }

    /// After the first complete snapshot: ends what an earlier run left open and is not among `alive`,
    /// the keys of everything that is held now. Tells what ended.
    pub fn settle(&mut self, alive: &HashSet<String>, at: BootNs) -> Vec<Tenure> {
        self.take_over();
        self.settled = true;
        let ended = self.open.settle(alive, &self.calendar.date(at), "unseen");
        let (rows, tenures): (Vec<Row>, Vec<Tenure>) = ended.into_iter().unzip();
        self.write_tenures(rows);
        tenures
    }

    /// Tenures that a reboot ended, once they are read, and the boot that they were of.
    pub fn take_ended_by_reboot(&mut self) -> Option<(String, Vec<Tenure>)> {
        self.ended.take()
    }

    /// Who had the IPs of `prefix`, the newest first, at most `limit`. The query blocks on the disk:
    /// run it where that is allowed.
    #[must_use]
    pub fn history(&self, prefix: Option<Prefix>, limit: usize) -> History {
        History { shared: Arc::clone(&self.shared), prefix, limit }
    }

    /// Lets go of what has been over for too long. To be called once at the start and every hour; the
    /// work is done by the writer thread, in small steps.
    pub fn prune(&mut self, now: BootNs) {
        let age = self.retention.max_age_secs.saturating_mul(1000);
        let before = tenure::millis(&self.calendar.date(now)).saturating_sub(age);
        self.life.forget_before(before);
        self.shared.prune(before);
    }

    /// How the file stands: `active`, `degraded` with the reason, or `disabled` (in memory only).
    #[must_use]
    pub fn status(&self) -> (SourceStatus, String) {
        self.shared.status()
    }

    /// Rows that wait to be written, and those that were lost for want of room.
    #[must_use]
    pub fn backlog(&self) -> (u64, u64) {
        self.shared.backlog()
    }

    /// Writes what waits and closes the file. Blocks, at most for `timeout`.
    ///
    /// # Errors
    /// [`LedgerError::NotWritten`].
    pub fn close(mut self, timeout: Duration) -> Result<(), LedgerError> {
        self.take_over();
        if !self.shared.in_memory() {
            // The latest evidence is not worth a write each time it changes, but this last one.
            let alive: Vec<_> = self.life.open().cloned().collect();
            self.shared.put(|backlog| {
                for record in alive {
                    backlog.finding(&record.finding.id, FindingRow::new(&record));
                }
            });
        }
        if self.shared.stop(timeout) {
            return Ok(());
        }
        let (_, why) = self.shared.status();
        Err(LedgerError::NotWritten { path: self.shared.path().to_owned(), why })
    }

    /// Joins what the file brought back, at the start or when it works again, with what is known.
    /// What was known before is written again: the file may be a new one.
    fn take_over(&mut self) {
        let Some(loaded) = self.shared.lock().loaded.take() else { return };
        let known: Vec<String> = self.life.open().map(|record| record.finding.id.clone()).collect();
        let held: Vec<u128> = self.open.rows().map(|row| row.hash).collect();
        let ended = self.continue_from(loaded);
        let findings: Vec<_> = known
            .into_iter()
            .filter_map(|id| self.life.get(&id).map(FindingRow::new).map(|row| (id, row)))
            .collect();
        let rows: Vec<Row> = held.iter().filter_map(|hash| self.open.get(*hash)).cloned().collect();
        self.shared.put(|backlog| {
            findings.into_iter().for_each(|(id, row)| backlog.finding(&id, row));
            rows.into_iter().chain(ended).for_each(|row| backlog.tenure(row));
        });
    }

    /// Takes over what goes on. Tenures that turn out to be over are returned, to be written.
    fn continue_from(&mut self, loaded: Loaded) -> Vec<Row> {
        // What ended here while the file was away still waits to be written: the file is behind.
        let shared = Arc::clone(&self.shared);
        let mut inner = shared.lock();
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
        let mut ended = Vec::new();
        for row in loaded.tenures {
            if inner.backlog.ends(&row.name) {
                continue;
            }
            if self.settled && self.open.get(row.hash).is_none() {
                let now = self.calendar.date(crate::clock::now());
                ended.extend(row.end(&now, "unseen").map(|(row, _)| row));
            } else if let Some(superseded) = self.open.continue_from(row) {
                inner.backlog.forget(&superseded);
            }
        }
        ended
    }

    fn write_findings(&self, changes: &[Change]) {
        let rows: Vec<_> = changes
            .iter()
            .map(|Change { finding, .. }| {
                let row = match self.life.get(&finding.id) {
                    Some(record) => FindingRow::new(record),
                    // Over: which observation opened it matters no more.
                    None => FindingRow::new(&Record::over(finding.clone())),
                };
                (finding.id.clone(), row)
            })
            .collect();
        self.shared.put(|backlog| rows.into_iter().for_each(|(id, row)| backlog.finding(&id, row)));
    }

    fn write_tenures(&self, rows: impl IntoIterator<Item = Row>) {
        let mut rows = rows.into_iter().peekable();
        if rows.peek().is_some() {
            self.shared.put(|backlog| rows.for_each(|row| backlog.tenure(row)));
        }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.shared.abandon();
    }
}

/// A question for the past, detached from the ledger so that it can be asked on another thread.
#[derive(Debug, Clone)]
pub struct History {
    shared: Arc<Shared>,
    prefix: Option<Prefix>,
    limit: usize,
}

impl History {
    /// The answer, the newest first. Blocks on the disk.
    #[must_use]
    pub fn run(&self) -> Vec<Tenure> {
        self.shared.history(self.prefix, self.limit)
    }
}

#[cfg(test)]
mod tests;
