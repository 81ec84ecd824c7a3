//! What waits for the collector: bounded in number and in bytes, the oldest dropped first. Findings and
//! runs of plugins wait apart, and findings go first: a node that starts pods all day must not push them
//! out.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::call::Run;
use crate::finding::{Change, Finding};

/// How many of a kind may wait.
const MOST: usize = 1024;
/// How much text they may carry together.
const MOST_BYTES: usize = 2 * 1024 * 1024;

/// What became of the changes, and of the runs of plugins.
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
    /// Runs of plugins that the collector took.
    pub calls_exported: u64,
    /// Those that were dropped.
    pub calls_dropped: u64,
    /// Those that wait now.
    pub calls_waiting: u64,
}

/// What goes into one request.
#[derive(Debug)]
pub(super) enum Batch {
    Changes(Vec<Change>),
    Calls(Vec<Run>),
}

impl Batch {
    pub(super) fn len(&self) -> usize {
        match self {
            Batch::Changes(changes) => changes.len(),
            Batch::Calls(runs) => runs.len(),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
    /// Something was put in, or the end was asked for.
    pub(super) news: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    changes: Lane<Change>,
    calls: Lane<Run>,
    failures: u64,
    trouble: Option<String>,
    ending: bool,
}

/// Those of a kind.
#[derive(Debug)]
struct Lane<T> {
    items: VecDeque<(usize, T)>,
    bytes: usize,
    /// Taken and not yet settled.
    sending: u64,
    exported: u64,
    dropped: u64,
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Self { items: VecDeque::new(), bytes: 0, sending: 0, exported: 0, dropped: 0 }
    }
}

impl<T> Lane<T> {
    fn push(&mut self, size: usize, item: T) {
        self.items.push_back((size, item));
        self.bytes += size;
        // The newest always stays, however big it is.
        while self.items.len() > 1 && (self.items.len() > MOST || self.bytes > MOST_BYTES) {
            if let Some((size, _)) = self.items.pop_front() {
                self.bytes -= size;
                self.dropped += 1;
            }
        }
    }

    fn take(&mut self, most: usize) -> Vec<T> {
        let count = self.items.len().min(most);
        let taken: Vec<_> = self.items.drain(..count).collect();
        self.bytes -= taken.iter().map(|(size, _)| size).sum::<usize>();
        self.sending = count as u64;
        taken.into_iter().map(|(_, item)| item).collect()
    }

    fn settle(&mut self, exported: u64, dropped: u64) {
        // One lane is sent at a time, the other's is 0.
        if self.sending > 0 {
            self.sending = 0;
            self.exported += exported;
            self.dropped += dropped;
        }
    }

    fn abandon(&mut self) {
        self.dropped += self.waiting();
        self.items.clear();
        (self.bytes, self.sending) = (0, 0);
    }

    fn waiting(&self) -> u64 {
        self.items.len() as u64 + self.sending
    }
}

impl Queue {
    pub(super) fn push(&self, change: Change) {
        self.lock().changes.push(size(&change.finding), change);
        self.news.notify_one();
    }

    pub(super) fn push_call(&self, run: Run) {
        self.lock().calls.push(run.size(), run);
        self.news.notify_one();
    }

    /// Takes the oldest of a kind. [`Queue::settle`] says what became of them.
    pub(super) fn take(&self, most: usize) -> Batch {
        let mut inner = self.lock();
        match inner.changes.take(most) {
            changes if changes.is_empty() => Batch::Calls(inner.calls.take(most)),
            changes => Batch::Changes(changes),
        }
    }

    /// What became of those that were taken.
    pub(super) fn settle(&self, exported: u64, dropped: u64) {
        let mut inner = self.lock();
        inner.changes.settle(exported, dropped);
        inner.calls.settle(exported, dropped);
    }

    /// An attempt failed. Whether that is news.
    pub(super) fn failed(&self, why: &str) -> bool {
        let mut inner = self.lock();
        inner.failures += 1;
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
        inner.changes.abandon();
        inner.calls.abandon();
    }

    pub(super) fn counters(&self) -> Counters {
        let inner = self.lock();
        let Inner { changes, calls, failures, .. } = &*inner;
        Counters {
            exported: changes.exported,
            dropped: changes.dropped,
            failures: *failures,
            waiting: changes.waiting(),
            calls_exported: calls.exported,
            calls_dropped: calls.dropped,
            calls_waiting: calls.waiting(),
        }
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
    use crate::sinks::call::tests::run;
    use crate::sinks::tests::opened;

    /// The one that goes next.
    fn first(queue: &Queue) -> String {
        match queue.take(1) {
            Batch::Changes(changes) => changes[0].finding.id.clone(),
            Batch::Calls(runs) => panic!("{runs:?}"),
        }
    }

    #[test]
    fn findings_go_first_and_calls_push_none_out() {
        let queue = Queue::default();
        queue.push(opened("one"));
        (0..MOST + 2).for_each(|_| queue.push_call(run(7, None)));
        assert_eq!((queue.counters().dropped, queue.counters().calls_dropped), (0, 2));
        assert_eq!(first(&queue), "one");
        queue.settle(1, 0);
        assert_eq!(queue.take(5).len(), 5);
        queue.settle(3, 2);
        let counters = queue.counters();
        assert_eq!((counters.exported, counters.dropped), (1, 0));
        assert_eq!((counters.calls_exported, counters.calls_dropped), (3, 4));
        queue.abandon();
        assert_eq!(queue.counters().calls_dropped, 4 + MOST as u64 - 5);
    }

    #[test]
    fn the_oldest_goes_first_and_is_counted() {
        let queue = Queue::default();
        for n in 0..MOST + 3 {
            queue.push(opened(&n.to_string()));
        }
        assert_eq!(queue.counters().dropped, 3);
        assert_eq!(queue.counters().waiting, MOST as u64);
        assert_eq!(first(&queue), "3");
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
        assert_eq!(first(&queue), "huge");
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
