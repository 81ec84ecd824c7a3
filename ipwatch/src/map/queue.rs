//! What falls due by the clock, and when.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::Hash;

use crate::fact::BootNs;

use super::Table;

/// Keys in the order they fall due, each at most once.
#[derive(Debug)]
pub(super) struct Queue<K> {
    due: Table<K, BootNs>,
    /// Entries of `due` in order, plus stale ones that were cancelled or rescheduled: an entry is valid only if `due`
    /// has the same time. The first entry is always valid, so that the next due time is known at once.
    order: BinaryHeap<Reverse<(BootNs, K)>>,
}

impl<K: Ord> Default for Queue<K> {
    fn default() -> Self {
        Self { due: Table::default(), order: BinaryHeap::new() }
    }
}

impl<K: Ord + Hash + Copy> Queue<K> {
    pub(super) fn contains(&self, key: &K) -> bool {
        self.due.contains_key(key)
    }

    /// Number of keys.
    pub(super) fn len(&self) -> usize {
        self.due.len()
    }

    /// Every key, in no order.
    pub(super) fn keys(&self) -> impl Iterator<Item = &K> {
        self.due.keys()
    }

    pub(super) fn set(&mut self, key: K, due: BootNs) {
        if self.due.insert(key, due) != Some(due) {
            self.order.push(Reverse((due, key)));
            self.tidy();
        }
    }

    /// As `set`, but never moves an entry to a later time.
    pub(super) fn hasten(&mut self, key: K, due: BootNs) {
        if self.due.get(&key).is_none_or(|known| *known > due) {
            self.set(key, due);
        }
    }

    pub(super) fn cancel(&mut self, key: &K) {
        if self.due.remove(key).is_some() {
            self.tidy();
        }
    }

    pub(super) fn pop(&mut self, now: BootNs) -> Option<K> {
        let Reverse((due, key)) = *self.order.peek()?;
        if due > now {
            return None;
        }
        self.order.pop();
        self.due.remove(&key);
        self.tidy();
        Some(key)
    }

    pub(super) fn next(&self) -> Option<BootNs> {
        self.order.peek().map(|Reverse((due, _))| *due)
    }

    /// Removes stale entries at the head, and all of them once they are the majority.
    fn tidy(&mut self) {
        /// Below this number, stale entries cost less than searching for them.
        const FEW: usize = 64;
        let Self { due, order } = self;
        let counts = |Reverse((at, key)): &Reverse<(BootNs, K)>| due.get(key) == Some(at);
        if order.len() > 2 * due.len() + FEW {
            order.retain(counts);
        }
        while order.peek().is_some_and(|first| !counts(first)) {
            order.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Reference implementation without the optimisations.
    #[derive(Default)]
    struct Plain {
        order: BTreeSet<(BootNs, u8)>,
        due: BTreeMap<u8, BootNs>,
    }

    impl Plain {
        fn cancel(&mut self, key: u8) {
            if let Some(due) = self.due.remove(&key) {
                self.order.remove(&(due, key));
            }
        }

        fn set(&mut self, key: u8, due: BootNs) {
            self.cancel(key);
            self.order.insert((due, key));
            self.due.insert(key, due);
        }

        fn pop(&mut self, now: BootNs) -> Option<u8> {
            let (_, key) = self.order.first().copied().filter(|(due, _)| *due <= now)?;
            self.cancel(key);
            Some(key)
        }
    }

    proptest! {
        #[test]
        fn a_queue_is_a_set_in_order(words in vec((0u8..4, 0u8..6, 0u64..20), 0..600)) {
            let (mut queue, mut plain) = (Queue::default(), Plain::default());
            for (word, key, at) in words {
                let at = BootNs(at);
                match word {
                    0 => {
                        queue.set(key, at);
                        plain.set(key, at);
                    }
                    1 => {
                        queue.hasten(key, at);
                        if plain.due.get(&key).is_none_or(|known| *known > at) {
                            plain.set(key, at);
                        }
                    }
                    2 => {
                        queue.cancel(&key);
                        plain.cancel(key);
                    }
                    _ => prop_assert_eq!(queue.pop(at), plain.pop(at)),
                }
                prop_assert_eq!(queue.next(), plain.order.first().map(|(due, _)| *due));
                prop_assert_eq!(queue.contains(&key), plain.due.contains_key(&key));
                prop_assert!(queue.order.len() <= 2 * queue.due.len() + 64);
            }
            let keys: BTreeSet<u8> = queue.keys().copied().collect();
            prop_assert_eq!(keys, plain.due.keys().copied().collect::<BTreeSet<u8>>());
        }
    }
}
