//! The delivery queue in front of a collector. Each kind of item has a queue of its own, bounded in items and in bytes;
//! a full one drops its oldest item and counts it. Findings are sent first, and a burst of another kind cannot evict
//! them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use opentelemetry::{Array, KeyValue, Value};
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_sdk::trace::SpanData;
use prost::Message as _;
use tokio::sync::Notify;

use super::metrics::Snapshot;

/// Maximum number of queued items of one kind.
const MOST: usize = 1024;
/// Maximum number of queued metric snapshots. Metrics are cumulative: a newer snapshot supersedes an older one.
const MOST_SNAPSHOTS: usize = 4;

/// The kinds of telemetry, in order of priority.
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

    /// Maximum size of all queued items of this kind, in bytes.
    fn most_bytes(self) -> usize {
        match self {
            Kind::Findings | Kind::Calls | Kind::Logs => 1024 * 1024,
            Kind::Teardowns | Kind::Tenures => 512 * 1024,
            Kind::Metrics => 256 * 1024,
        }
    }
}

/// Counters of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// Accepted by the collector.
    pub exported: u64,
    /// Dropped: the queue was full, the collector rejected them, or the daemon stopped before they were sent.
    pub dropped: u64,
    /// Queued or in flight.
    pub waiting: u64,
}

/// Counters by [`Kind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    counts: [Count; Kind::ALL.len()],
    /// Failed attempts to send.
    pub failures: u64,
}

impl Counters {
    /// Counters of one kind.
    #[must_use]
    pub fn of(&self, kind: Kind) -> Count {
        self.counts[kind as usize]
    }

    /// The sum of all kinds.
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

/// A queued item.
#[derive(Debug)]
pub(super) enum Item {
    /// A span and its kind, which is one of the first four.
    Span(Kind, Box<SpanData>),
    Log(Box<LogRecord>),
    Metrics(Arc<Snapshot>),
}

impl Item {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Item::Span(kind, _) => *kind,
            Item::Log(_) => Kind::Logs,
            Item::Metrics(_) => Kind::Metrics,
        }
    }

    /// Approximate size in memory.
    fn size(&self) -> usize {
        match self {
            Item::Span(_, span) => span_size(span),
            // Plus an allocation for each key and value.
            Item::Log(record) => {
                size_of::<LogRecord>() + record.encoded_len() + record.attributes.len() * 128
            }
            Item::Metrics(snapshot) => snapshot.size(),
        }
    }
}

/// The queue of one signal's exporter.
#[derive(Debug, Default)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
    /// Notified when an item is pushed, and on shutdown.
    pub(super) news: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    lanes: [Lane; Kind::ALL.len()],
    /// The kind of the batch in flight.
    sending: Option<Kind>,
    failures: u64,
    trouble: Option<String>,
    ending: bool,
}

/// The queue of one kind.
#[derive(Debug, Default)]
struct Lane {
    items: VecDeque<(usize, Item)>,
    bytes: usize,
    /// Items in flight.
    sending: u64,
    exported: u64,
    dropped: u64,
}

impl Lane {
    fn push(&mut self, kind: Kind, item: Item) {
        let size = item.size();
        self.items.push_back((size, item));
        self.bytes += size;
        // The newest item is kept even if it exceeds the limit by itself.
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
            // Give back the memory of a burst.
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

    /// Counts items that were lost before they reached the queue.
    pub(super) fn lost(&self, kind: Kind, count: u64) {
        self.lock().lanes[kind as usize].dropped += count;
    }

    /// Takes the oldest items of the kind with the highest priority. [`Queue::settle`] must follow.
    pub(super) fn take(&self, most: usize) -> Vec<Item> {
        let mut inner = self.lock();
        let kind = Kind::ALL.into_iter().find(|kind| !inner.lanes[*kind as usize].items.is_empty());
        inner.sending = kind;
        kind.map(|kind| inner.lanes[kind as usize].take(most)).unwrap_or_default()
    }

    /// Records the outcome of the batch in flight.
    pub(super) fn settle(&self, exported: u64, dropped: u64) {
        let mut inner = self.lock();
        let Some(kind) = inner.sending.take() else { return };
        let lane = &mut inner.lanes[kind as usize];
        lane.sending = 0;
        lane.exported += exported;
        lane.dropped += dropped;
    }

    /// Records a failed attempt. Returns whether it is the first since the last success.
    pub(super) fn failed(&self, why: &str) -> bool {
        let mut inner = self.lock();
        inner.failures += 1;
        inner.trouble.replace(why.to_owned()).is_none()
    }

    /// Records a successful attempt. Returns whether attempts had failed before it.
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

    /// Drops and counts all remaining items.
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
        // No code that runs under this lock panics half-way through a change.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Approximate size of a span in memory. Attribute keys are constants and are not counted.
fn span_size(span: &SpanData) -> usize {
    let events = span.events.iter().map(|event| size_of_val(event) + pairs_size(&event.attributes));
    let links = span.links.iter().map(|link| size_of_val(link) + pairs_size(&link.attributes));
    let own = size_of::<SpanData>() + span.name.len() + pairs_size(&span.attributes);
    own + events.sum::<usize>() + links.sum::<usize>() + status_size(span)
}

fn status_size(span: &SpanData) -> usize {
    match &span.status {
        opentelemetry::trace::Status::Error { description } => description.len(),
        _ => 0,
    }
}

fn pairs_size(pairs: &[KeyValue]) -> usize {
    let text = |pair: &KeyValue| match &pair.value {
        Value::String(text) => text.as_str().len(),
        Value::Array(Array::String(texts)) => {
            texts.iter().map(|text| size_of_val(text) + text.as_str().len()).sum()
        }
        _ => 0,
    };
    size_of_val(pairs) + pairs.iter().map(text).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sinks::call::tests::run;
    use crate::sinks::tests::opened;
    use crate::sinks::{call, names, span, tenure};

    fn finding(id: &str) -> Item {
        Item::Span(Kind::Findings, Box::new(span::span(&opened(id), &[])))
    }

    fn huge(id: &str, bytes: usize) -> Item {
        let mut span = span::span(&opened(id), &[]);
        span.attributes.push(KeyValue::new("huge", "x".repeat(bytes)));
        Item::Span(Kind::Findings, Box::new(span))
    }

    /// A small span, so that the number of items is the limit.
    fn call() -> Item {
        let mut run = run(7, None);
        run.entry.call.pod = None;
        Item::Span(Kind::Calls, Box::new(call::span(&run)))
    }

    /// The finding that is sent next.
    fn first(queue: &Queue) -> String {
        let taken = queue.take(1);
        let [Item::Span(Kind::Findings, span)] = &taken[..] else { panic!("{taken:?}") };
        let named = |pair: &&KeyValue| pair.key.as_str() == names::FINDING_ID.as_str();
        span.attributes.iter().find(named).unwrap().value.to_string()
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
        // Small spans, so that the number of items is the limit.
        for n in 0..MOST + 3 {
            let held = tenure::span(&tenure::tests::held(None));
            queue.push(Item::Span(Kind::Tenures, Box::new(held)));
            if n < 5 {
                queue.push(finding(&n.to_string()));
            }
        }
        let most = Kind::Tenures.most_bytes();
        let tenures = queue.counters().of(Kind::Tenures);
        assert_eq!(tenures.waiting + tenures.dropped, MOST as u64 + 3);
        assert!(tenures.dropped >= 3 && most > 0);
        assert_eq!(first(&queue), "0");
        // Items in flight count as waiting until they are settled.
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
        // A single item always fits: otherwise it would be lost although the queue is empty.
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
