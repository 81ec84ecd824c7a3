//! What waits for the collector: bounded in number and in bytes, the oldest of its kind dropped first. Each
//! kind waits apart, and findings go first: a node that starts pods all day must not push them out.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::call::Run;
use super::metrics::Snapshot;
use super::span::Published;
use super::teardown::Teardown;
use super::tenure::Held;
use crate::finding::{Change, Finding};

/// How many of a kind may wait.
const MOST: usize = 1024;
/// How many snapshots of the metrics: each says all that the one before it said.
const MOST_SNAPSHOTS: usize = 4;

/// What can be sent, in the order of what goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Changes of findings, as spans.
    Findings,
    /// Teardowns of netns, as spans.
    Teardowns,
    /// Runs of CNI plugins, as spans.
    Calls,
    /// Tenures of IPs, as spans.
    Tenures,
    /// Changes of findings, as log records.
    Logs,
    /// Metrics.
    Metrics,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 6] =
        [Kind::Findings, Kind::Teardowns, Kind::Calls, Kind::Tenures, Kind::Logs, Kind::Metrics];

    /// The kind as metrics and documents name it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Findings => "findings",
            Kind::Teardowns => "teardowns",
            Kind::Calls => "cni_calls",
            Kind::Tenures => "tenures",
            Kind::Logs => "logs",
            Kind::Metrics => "metrics",
        }
    }

    fn most(self) -> usize {
        if self == Kind::Metrics { MOST_SNAPSHOTS } else { MOST }
    }

    /// How much text those of this kind may carry together.
    fn most_bytes(self) -> usize {
        match self {
            Kind::Findings | Kind::Calls | Kind::Logs => 1024 * 1024,
            Kind::Teardowns | Kind::Tenures => 512 * 1024,
            Kind::Metrics => 256 * 1024,
        }
    }
}

/// What became of those of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// The collector took them.
    pub exported: u64,
    /// Dropped: for want of room, refused for good, or still waiting when the daemon ended.
    pub dropped: u64,
    /// Waiting now.
    pub waiting: u64,
}

/// What became of everything, by [`Kind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    counts: [Count; Kind::ALL.len()],
    /// Failed attempts to send.
    pub failures: u64,
}

impl Counters {
    /// What became of those of a kind.
    #[must_use]
    pub fn of(&self, kind: Kind) -> Count {
        self.counts[kind as usize]
    }

    /// What became of all.
    #[must_use]
    pub fn total(&self) -> Count {
        self.counts.iter().fold(Count::default(), |sum, one| sum.plus(*one))
    }

    pub(super) fn plus(mut self, other: Self) -> Self {
        for (own, other) in self.counts.iter_mut().zip(other.counts) {
            *own = own.plus(other);
        }
        self.failures += other.failures;
        self
    }
}

impl Count {
    fn plus(self, other: Self) -> Self {
        Self {
            exported: self.exported + other.exported,
            dropped: self.dropped + other.dropped,
            waiting: self.waiting + other.waiting,
        }
    }
}

/// One that waits.
#[derive(Debug)]
pub(super) enum Item {
    Finding(Box<Published>),
    Teardown(Box<Teardown>),
    Call(Box<Run>),
    Tenure(Box<Held>),
    Log(Box<Change>),
    Metrics(Arc<Snapshot>),
}

impl Item {
    fn kind(&self) -> Kind {
        match self {
            Item::Finding(_) => Kind::Findings,
            Item::Teardown(_) => Kind::Teardowns,
            Item::Call(_) => Kind::Calls,
            Item::Tenure(_) => Kind::Tenures,
            Item::Log(_) => Kind::Logs,
            Item::Metrics(_) => Kind::Metrics,
        }
    }

    /// About what it takes in memory.
    fn size(&self) -> usize {
        match self {
            Item::Finding(published) => {
                size(&published.change.finding) + published.links.len() * 128
            }
            Item::Teardown(teardown) => teardown.size(),
            Item::Call(run) => run.size(),
            Item::Tenure(held) => held.size(),
            Item::Log(change) => size(&change.finding),
            Item::Metrics(snapshot) => snapshot.size(),
        }
    }
}

/// What waits for one task that sends.
#[derive(Debug, Default)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
    /// Something was put in, or the end was asked for.
    pub(super) news: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    lanes: [Lane; Kind::ALL.len()],
    /// Whose were taken.
    sending: Option<Kind>,
    failures: u64,
    trouble: Option<String>,
    ending: bool,
}

/// Those of a kind.
#[derive(Debug, Default)]
struct Lane {
    items: VecDeque<(usize, Item)>,
    bytes: usize,
    /// Taken and not yet settled.
    sending: u64,
    exported: u64,
    dropped: u64,
}

impl Lane {
    fn push(&mut self, kind: Kind, item: Item) {
        let size = item.size();
        self.items.push_back((size, item));
        self.bytes += size;
        // The newest always stays, however big it is.
        while self.items.len() > 1
            && (self.items.len() > kind.most() || self.bytes > kind.most_bytes())
        {
            if let Some((size, _)) = self.items.pop_front() {
                self.bytes -= size;
                self.dropped += 1;
            }
        }
    }

    fn take(&mut self, most: usize) -> Vec<Item> {
        let count = self.items.len().min(most);
        let taken: Vec<_> = self.items.drain(..count).collect();
        self.bytes -= taken.iter().map(|(size, _)| size).sum::<usize>();
        self.sending = count as u64;
        if self.items.is_empty() {
            // A burst must not be paid for ever after.
            self.items.shrink_to(32);
        }
        taken.into_iter().map(|(_, item)| item).collect()
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
    pub(super) fn push(&self, item: Item) {
        let kind = item.kind();
        self.lock().lanes[kind as usize].push(kind, item);
        self.news.notify_one();
    }

    /// So many were dropped before they got here.
    pub(super) fn lost(&self, kind: Kind, count: u64) {
        self.lock().lanes[kind as usize].dropped += count;
    }

    /// Takes the oldest of the kind that goes first. [`Queue::settle`] says what became of them.
    pub(super) fn take(&self, most: usize) -> Vec<Item> {
        let mut inner = self.lock();
        let kind = Kind::ALL.into_iter().find(|kind| !inner.lanes[*kind as usize].items.is_empty());
        inner.sending = kind;
        kind.map(|kind| inner.lanes[kind as usize].take(most)).unwrap_or_default()
    }

    /// What became of those that were taken.
    pub(super) fn settle(&self, exported: u64, dropped: u64) {
        let mut inner = self.lock();
        let Some(kind) = inner.sending.take() else { return };
        let lane = &mut inner.lanes[kind as usize];
        lane.sending = 0;
        lane.exported += exported;
        lane.dropped += dropped;
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
        self.lock().lanes.iter_mut().for_each(Lane::abandon);
    }

    pub(super) fn counters(&self) -> Counters {
        let inner = self.lock();
        let count = |lane: &Lane| Count {
            exported: lane.exported,
            dropped: lane.dropped,
            waiting: lane.waiting(),
        };
        Counters { counts: inner.lanes.each_ref().map(count), failures: inner.failures }
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
    let steps = finding.steps.iter().flat_map(|step| &step.runs).flat_map(|run| &run.argv);
    // Each word stands in the command as well.
    let advice = advice + steps.map(|word| 2 * word.len() + 48).sum::<usize>();
    let holders = finding.holders.len() * std::mem::size_of::<crate::contract::Holder>();
    std::mem::size_of::<Change>() + 256 + evidence + advice + holders + finding.impact.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sinks::call::tests::run;
    use crate::sinks::tests::opened;

    fn finding(id: &str) -> Item {
        Item::Finding(Box::new(Published { change: opened(id), links: Vec::new() }))
    }

    fn huge(id: &str, bytes: usize) -> Item {
        let mut change = opened(id);
        change.finding.impact = "x".repeat(bytes);
        Item::Finding(Box::new(Published { change, links: Vec::new() }))
    }

    fn call() -> Item {
        Item::Call(Box::new(run(7, None)))
    }

    /// The one that goes next.
    fn first(queue: &Queue) -> String {
        match &queue.take(1)[..] {
            [Item::Finding(published)] => published.change.finding.id.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn findings_go_first_and_calls_push_none_out() {
        let queue = Queue::default();
        queue.push(finding("one"));
        (0..MOST + 2).for_each(|_| queue.push(call()));
        let dropped = |kind| queue.counters().of(kind).dropped;
        assert_eq!((dropped(Kind::Findings), dropped(Kind::Calls)), (0, 2));
        assert_eq!(first(&queue), "one");
        queue.settle(1, 0);
        assert_eq!(queue.take(5).len(), 5);
        queue.settle(3, 2);
        let (findings, calls) =
            (queue.counters().of(Kind::Findings), queue.counters().of(Kind::Calls));
        assert_eq!((findings.exported, findings.dropped), (1, 0));
        assert_eq!((calls.exported, calls.dropped), (3, 4));
        queue.abandon();
        assert_eq!(queue.counters().of(Kind::Calls).dropped, 4 + MOST as u64 - 5);
        assert_eq!(queue.counters().total().waiting, 0);
    }

    #[test]
    fn the_oldest_goes_first_and_is_counted() {
        let queue = Queue::default();
        // Small ones, so that it is their number that is too high.
        for n in 0..MOST + 3 {
            queue.push(Item::Tenure(Box::new(crate::sinks::tenure::tests::held(None))));
            if n < 5 {
                queue.push(finding(&n.to_string()));
            }
        }
        let most = Kind::Tenures.most_bytes();
        let tenures = queue.counters().of(Kind::Tenures);
        assert_eq!(tenures.waiting + tenures.dropped, MOST as u64 + 3);
        assert!(tenures.dropped >= 3 && most > 0);
        assert_eq!(first(&queue), "0");
        // Taken is still waiting, until it is settled.
        assert_eq!(queue.counters().of(Kind::Findings).waiting, 5);
        queue.settle(1, 0);
        let findings = queue.counters().of(Kind::Findings);
        assert_eq!((findings.waiting, findings.exported), (4, 1));
    }

    #[test]
    fn a_few_huge_ones_are_too_many() {
        let queue = Queue::default();
        let most = Kind::Findings.most_bytes();
        (0..10).for_each(|n| queue.push(huge(&n.to_string(), most / 4)));
        assert_eq!(queue.counters().of(Kind::Findings).waiting, 3);
        assert_eq!(queue.counters().of(Kind::Findings).dropped, 7);
        // One alone is never too many: it would be lost although there is nothing else.
        queue.push(huge("huge", most * 2));
        assert_eq!(first(&queue), "huge");
    }

    #[test]
    fn what_was_lost_before_is_counted() {
        let queue = Queue::default();
        queue.lost(Kind::Teardowns, 3);
        queue.lost(Kind::Teardowns, 2);
        assert_eq!(queue.counters().of(Kind::Teardowns).dropped, 5);
        assert_eq!(queue.counters().total(), Count { dropped: 5, ..Count::default() });
    }

    #[test]
    fn what_is_left_at_the_end_is_dropped_and_counted() {
        let queue = Queue::default();
        (0..5).for_each(|n| queue.push(finding(&n.to_string())));
        queue.take(2);
        queue.abandon();
        assert_eq!(queue.counters().total(), Count { dropped: 5, ..Count::default() });
    }
}
