//! What waits for the collector: bounded in number and in bytes, the oldest dropped first.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::finding::{Change, Finding};

/// How many changes may wait.
const MOST: usize = 1024;
/// How much text they may carry together.
const MOST_BYTES: usize = 2 * 1024 * 1024;

/// What became of the changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// The collector took them.
    pub exported: u64,
    /// Dropped: for want of room, refused for good, or still waiting when the daemon ended.
    pub dropped: u64,
    /// Failed attempts to send.
    pub failures: u64,
    /// Waiting now.
    pub waiting: u64,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
    /// Something was put in, or the end was asked for.
    pub(super) news: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    changes: VecDeque<(usize, Change)>,
    bytes: usize,
    /// Taken and not yet settled.
    sending: u64,
    counters: Counters,
    trouble: Option<String>,
    ending: bool,
}

impl Queue {
    pub(super) fn push(&self, change: Change) {
        let size = size(&change.finding);
        let mut inner = self.lock();
        inner.changes.push_back((size, change));
        inner.bytes += size;
        // The newest always stays, however big it is.
        while inner.changes.len() > 1 && (inner.changes.len() > MOST || inner.bytes > MOST_BYTES) {
            if let Some((size, _)) = inner.changes.pop_front() {
                inner.bytes -= size;
                inner.counters.dropped += 1;
            }
        }
        drop(inner);
        self.news.notify_one();
    }

    /// Takes the oldest. [`Queue::settle`] says what became of them.
    pub(super) fn take(&self, most: usize) -> Vec<Change> {
        let mut inner = self.lock();
        let count = inner.changes.len().min(most);
        let taken: Vec<_> = inner.changes.drain(..count).collect();
        inner.bytes -= taken.iter().map(|(size, _)| size).sum::<usize>();
        inner.sending = count as u64;
        taken.into_iter().map(|(_, change)| change).collect()
    }

    /// What became of those that were taken.
    pub(super) fn settle(&self, exported: u64, dropped: u64) {
        let mut inner = self.lock();
        inner.sending = 0;
        inner.counters.exported += exported;
        inner.counters.dropped += dropped;
    }

    /// An attempt failed. Whether that is news.
    pub(super) fn failed(&self, why: &str) -> bool {
        let mut inner = self.lock();
        inner.counters.failures += 1;
        inner.trouble.replace(why.to_owned()).is_none()
    }

    /// An attempt succeeded. Whether that is news.
    pub(super) fn works(&self) -> bool {
        self.lock().trouble.take().is_some()
    }

    pub(super) fn trouble(&self) -> Option<String> {
        self.lock().trouble.clone()
    }

    pub(super) fn end(&self) {
        self.lock().ending = true;
        self.news.notify_one();
    }

    pub(super) fn is_ending(&self) -> bool {
        self.lock().ending
    }

    /// Counts everything that is left as dropped.
    pub(super) fn abandon(&self) {
        let mut inner = self.lock();
        inner.counters.dropped += inner.changes.len() as u64 + inner.sending;
        inner.changes.clear();
        (inner.bytes, inner.sending) = (0, 0);
    }

    pub(super) fn counters(&self) -> Counters {
        let inner = self.lock();
        Counters { waiting: inner.changes.len() as u64 + inner.sending, ..inner.counters }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing under this lock can stop half-way.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// About what a finding takes in memory: the struct and its longest texts.
fn size(finding: &Finding) -> usize {
    let evidence: usize = finding.evidence.iter().map(|item| item.text.len() + 96).sum();
    let advice: usize = finding.remediation.iter().map(|line| line.len() + 24).sum();
    let holders = finding.holders.len() * std::mem::size_of::<crate::contract::Holder>();
    std::mem::size_of::<Change>() + 256 + evidence + advice + holders + finding.impact.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sinks::tests::opened;

    #[test]
    fn the_oldest_goes_first_and_is_counted() {
        let queue = Queue::default();
        for n in 0..MOST + 3 {
            queue.push(opened(&n.to_string()));
        }
        assert_eq!(queue.counters().dropped, 3);
        assert_eq!(queue.counters().waiting, MOST as u64);
        assert_eq!(queue.take(1)[0].finding.id, "3");
        // Taken is still waiting, until it is settled.
        assert_eq!(queue.counters().waiting, MOST as u64);
        queue.settle(1, 0);
        let counters = queue.counters();
        assert_eq!((counters.waiting, counters.exported), (MOST as u64 - 1, 1));
    }

    #[test]
    fn a_few_huge_ones_are_too_many() {
        let queue = Queue::default();
        for n in 0..10 {
            let mut change = opened(&n.to_string());
            change.finding.impact = "x".repeat(MOST_BYTES / 4);
            queue.push(change);
        }
        assert_eq!(queue.counters().waiting, 3);
        assert_eq!(queue.counters().dropped, 7);
        // One alone is never too many: it would be lost although there is nothing else.
        let mut change = opened("huge");
        change.finding.impact = "x".repeat(MOST_BYTES * 2);
        queue.push(change);
        assert_eq!(queue.take(9)[0].finding.id, "huge");
    }

    #[test]
    fn what_is_left_at_the_end_is_dropped_and_counted() {
        let queue = Queue::default();
        (0..5).for_each(|n| queue.push(opened(&n.to_string())));
        queue.take(2);
        queue.abandon();
        assert_eq!(queue.counters(), Counters { dropped: 5, ..Counters::default() });
    }
}
