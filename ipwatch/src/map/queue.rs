//! What falls due by the clock, and when.

use std::collections::{BTreeMap, BTreeSet};

use crate::fact::BootNs;

/// Keys in the order they fall due, each at most once.
#[derive(Debug)]
pub(super) struct Queue<K> {
    order: BTreeSet<(BootNs, K)>,
    due: BTreeMap<K, BootNs>,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self { order: BTreeSet::new(), due: BTreeMap::new() }
    }
}

impl<K: Ord + Copy> Queue<K> {
    pub(super) fn contains(&self, key: &K) -> bool {
        self.due.contains_key(key)
    }

    /// Every key, in its own order.
    pub(super) fn keys(&self) -> impl Iterator<Item = &K> {
        self.due.keys()
    }

    pub(super) fn set(&mut self, key: K, due: BootNs) {
        self.cancel(&key);
        self.order.insert((due, key));
        self.due.insert(key, due);
    }

    /// As `set`, but never later than it was.
    pub(super) fn hasten(&mut self, key: K, due: BootNs) {
        if self.due.get(&key).is_none_or(|known| *known > due) {
            self.set(key, due);
        }
    }

    pub(super) fn cancel(&mut self, key: &K) {
        if let Some(due) = self.due.remove(key) {
            self.order.remove(&(due, *key));
        }
    }

    pub(super) fn pop(&mut self, now: BootNs) -> Option<K> {
        let (due, key) = *self.order.first()?;
        if due > now {
            return None;
        }
        self.cancel(&key);
        Some(key)
    }

    pub(super) fn next(&self) -> Option<BootNs> {
        self.order.first().map(|(due, _)| *due)
    }
}
