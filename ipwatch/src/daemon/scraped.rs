//! What is counted between scrapes, and the last reading, which is reused for a moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::contract::Prefix;
use crate::fact::BootNs;
use crate::finding::{Change, ChangeKind, Code, Severity};
use crate::metrics::{Reading, Settings};

/// How long a reading is reused, in ns, unless a finding changes: each reading walks the whole map.
const KEPT: u64 = 1_000_000_000;

/// Counters that only scrapes read, and the settings that limit what a scrape shows.
#[derive(Debug, Default)]
pub(super) struct Scrape {
    pub(super) settings: Settings,
    /// IPs that several holders may share: two nodes that report such an IP are not a conflict.
    pub(super) shared: Vec<Prefix>,
    pub(super) opened: BTreeMap<(Code, Severity), u64>,
    pub(super) resolved: BTreeMap<Code, u64>,
    /// The last reading, and when it was made.
    pub(super) last: Option<(BootNs, Arc<Reading>)>,
    /// Facts that the map took.
    pub(super) facts: u64,
    /// How often everything was read again after a loss of events.
    pub(super) resyncs: u64,
    /// How often single netns were read again, because events of theirs were not reported.
    pub(super) netns_resyncs: u64,
}

impl Scrape {
    /// Takes over the settings of the configuration.
    pub(super) fn configure(&mut self, settings: &Settings, shared: &[Prefix]) {
        self.settings = settings.clone();
        self.shared = shared.to_vec();
    }

    /// Replaces the shared prefixes, after a reload.
    pub(super) fn share(&mut self, shared: &[Prefix]) {
        self.shared = shared.to_vec();
    }

    /// Drops the last reading, so that the next scrape makes a new one.
    pub(super) fn forget(&mut self) {
        self.last = None;
    }

    /// The last reading, if it is recent enough to be reused.
    pub(super) fn last(&self, now: BootNs) -> Option<Arc<Reading>> {
        let (at, reading) = self.last.as_ref()?;
        (now.since(*at) < KEPT).then(|| Arc::clone(reading))
    }

    /// Counts a changed finding, and drops the last reading: the next scrape must show the change.
    pub(super) fn tell(&mut self, change: &Change) {
        self.forget();
        let finding = &change.finding;
        let count = match change.change {
            ChangeKind::Opened => self.opened.entry((finding.code, finding.severity)).or_default(),
            ChangeKind::Resolved => self.resolved.entry(finding.code).or_default(),
            ChangeKind::Updated => return,
        };
        *count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_serves_for_a_second_and_not_beyond_a_change() {
        let kept = || Scrape {
            last: Some((BootNs(5), Arc::new(Reading::default()))),
            ..Scrape::default()
        };
        assert!(kept().last(BootNs(5 + KEPT - 1)).is_some());
        assert!(kept().last(BootNs(5 + KEPT)).is_none());
        let mut scrape = kept();
        scrape.tell(&crate::sinks::tests::opened("a"));
        assert!(scrape.last(BootNs(6)).is_none(), "whoever is told of a finding finds it");
    }
}
