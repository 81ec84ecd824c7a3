//! Which tenures a question about the past is answered with: the newest selected ones of the file and of the rows that wait
//! to be written.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::contract::{Past, Tenure};
use crate::ledger::tenure::RowKey;

/// The newest selected tenures so far, up to a limit.
pub(super) struct Newest<'a> {
    past: &'a Past,
    limit: usize,
    rows: BTreeMap<(Reverse<u64>, RowKey), Tenure>,
    /// Rows that wait to be written: the file has an older version of them.
    waiting: BTreeSet<RowKey>,
}

impl<'a> Newest<'a> {
    pub(super) fn new(past: &'a Past, limit: usize) -> Self {
        Self { past, limit, rows: BTreeMap::new(), waiting: BTreeSet::new() }
    }

    /// Adds a row that waits to be written. The first version counts.
    pub(super) fn add_waiting(&mut self, name: RowKey, tenure: Tenure) {
        if self.waiting.insert(name) {
            self.take(name, || Some(tenure));
        }
    }

    /// Adds a row of the file; must be called after all waiting rows.
    pub(super) fn add(&mut self, name: RowKey, tenure: impl FnOnce() -> Option<Tenure>) {
        if !self.waiting.contains(&name) {
            self.take(name, tenure);
        }
    }

    fn take(&mut self, name: RowKey, tenure: impl FnOnce() -> Option<Tenure>) {
        let at = (Reverse(name.from()), name);
        let full = self.rows.len() >= self.limit;
        if full && self.rows.last_key_value().is_none_or(|(last, _)| at > *last) {
            return;
        }
        let Some(tenure) = tenure().filter(|tenure| self.past.has(tenure)) else { return };
        self.rows.insert(at, tenure);
        if self.rows.len() > self.limit {
            self.rows.pop_last();
        }
    }

    pub(super) fn into_tenures(self) -> Vec<Tenure> {
        self.rows.into_values().collect()
    }
}
