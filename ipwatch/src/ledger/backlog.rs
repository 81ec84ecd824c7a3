//! Rows that wait to be written. One entry for each row: a finding that changes ten times while the disk is full is
//! written once afterwards, so the backlog is bounded by the open rows plus a fixed number of ended ones.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::life::Record;
use super::tenure::{Row, RowKey, millis};
use crate::contract::Tenure;
use crate::finding::Status;

/// Maximum number of ended tenures that may wait; an eighth of it for findings. Open rows are in memory anyway; ended
/// ones are kept only to be written.
const ENDED_KEPT: usize = 8192;
/// The same of tenures while memory is short.
const ENDED_KEPT_WHEN_SHORT: usize = 1024;

/// A finding as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FindingRow {
    /// Its [`Record`] as JSON.
    pub(super) json: Vec<u8>,
    /// When it was resolved (wall clock, milliseconds); 0 while it is open.
    pub(super) ended: u64,
}

impl FindingRow {
    pub(super) fn new(record: &Record) -> Self {
        let ended = match record.finding.status {
            Status::Pending | Status::Firing => 0,
            Status::Resolved => record.finding.resolved_at.as_deref().map_or(1, millis),
        };
        // Plain structs of strings and numbers: serialising them cannot fail.
        Self { json: serde_json::to_vec(record).unwrap_or_default(), ended }
    }
}

/// Rows to write, by name.
#[derive(Debug, Clone, Default)]
pub(super) struct Backlog {
    findings: HashMap<String, FindingRow>,
    tenures: BTreeMap<RowKey, Row>,
    /// Ended tenures, the oldest first, and those in netns that no container is known to have, which are dropped first;
    /// `resolved` has the findings. Each row has one place, however often a newer version of it comes.
    ended: VecDeque<RowKey>,
    ended_of_strangers: VecDeque<RowKey>,
    memory_is_short: bool,
    resolved: VecDeque<String>,
    /// Number of rows dropped for lack of room.
    lost: u64,
}

impl Backlog {
    pub(super) fn finding(&mut self, id: &str, row: FindingRow) {
        let is_over = row.ended != 0;
        let before = self.findings.insert(id.to_owned(), row);
        match (before.is_some_and(|row| row.ended != 0), is_over) {
            (false, true) => self.resolved.push_back(id.to_owned()),
            // It was opened again.
            (true, false) => self.resolved.retain(|known| known != id),
            _ => {}
        }
        if self.resolved.len() > ENDED_KEPT / 8
            && let Some(oldest) = self.resolved.pop_front()
        {
            self.findings.remove(&oldest);
            self.lost += 1;
        }
    }

    pub(super) fn tenure(&mut self, name: RowKey, row: Row) {
        if row.ended() != 0 && !self.ends(&name) {
            let ended = if row.is_named() { &mut self.ended } else { &mut self.ended_of_strangers };
            ended.push_back(name);
        }
        self.tenures.insert(name, row);
        self.trim();
    }

    /// Drops ended tenures beyond the bound.
    fn trim(&mut self) {
        let most = if self.memory_is_short { ENDED_KEPT_WHEN_SHORT } else { ENDED_KEPT };
        while self.ended.len() + self.ended_of_strangers.len() > most {
            let oldest = self.ended_of_strangers.pop_front().or_else(|| self.ended.pop_front());
            let Some(oldest) = oldest else { return };
            // It may have been forgotten, or be open again, since.
            if self.ends(&oldest) {
                self.tenures.remove(&oldest);
                self.lost += 1;
            }
        }
    }

    /// The daemon is near the memory that it may have, or no longer is.
    pub(super) fn set_memory_short(&mut self, short: bool) {
        self.memory_is_short = short;
        self.trim();
    }

    /// A tenure must not be written after all.
    pub(super) fn forget(&mut self, name: &RowKey) {
        self.tenures.remove(name);
    }

    /// Whether the end of this tenure waits to be written.
    pub(super) fn ends(&self, name: &RowKey) -> bool {
        self.tenures.get(name).is_some_and(|row| row.ended() != 0)
    }

    /// Puts back rows that could not be written, unless a newer version waits.
    pub(super) fn put_back(&mut self, older: Backlog) {
        let newer = std::mem::replace(self, older);
        // `take` left the count here; the older count is included in it.
        self.lost = newer.lost;
        self.set_memory_short(newer.memory_is_short);
        for (id, row) in newer.findings {
            self.finding(&id, row);
        }
        for (name, row) in newer.tenures {
            self.tenure(name, row);
        }
    }

    pub(super) fn findings(&self) -> impl Iterator<Item = (&str, &FindingRow)> {
        self.findings.iter().map(|(id, row)| (id.as_str(), row))
    }

    pub(super) fn tenures(&self) -> impl Iterator<Item = (&RowKey, &Row)> {
        self.tenures.iter()
    }

    /// Waiting tenures whose rows are in this range.
    pub(super) fn within(
        &self,
        first: RowKey,
        last: RowKey,
    ) -> impl Iterator<Item = (RowKey, Tenure)> {
        self.tenures.range(first..=last).map(|(name, row)| (*name, row.tenure()))
    }

    pub(super) fn len(&self) -> usize {
        self.findings.len() + self.tenures.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.findings.is_empty() && self.tenures.is_empty()
    }

    /// Whether a finding waits: findings are written at once, tenures are collected for a moment.
    pub(super) fn is_urgent(&self) -> bool {
        !self.findings.is_empty()
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Takes everything that waits; the count of dropped rows stays, and whether memory is short.
    pub(super) fn take(&mut self) -> Backlog {
        let Backlog { lost, memory_is_short, .. } = *self;
        std::mem::replace(self, Backlog { lost, memory_is_short, ..Backlog::default() })
    }
}
