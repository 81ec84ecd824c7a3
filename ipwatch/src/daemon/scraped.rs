//! What is counted between scrapes, and the last reading, which serves several.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::contract::Prefix;
use crate::fact::BootNs;
use crate::finding::{Change, ChangeKind, Code, Severity};
use crate::metrics::{Reading, Settings};

/// A reading serves every scrape for so long, in ns, unless a finding changes: each walks the whole map.
const KEPT: u64 = 1_000_000_000;

/// What is counted between scrapes, and what of it a scrape may see.
#[derive(Debug, Default)]
pub(super) struct Scrape {
    pub(super) settings: Settings,
    /// IPs that several may have: two nodes with one of them are no news.
    pub(super) shared: Vec<Prefix>,
    pub(super) opened: BTreeMap<(Code, Severity), u64>,
    pub(super) resolved: BTreeMap<Code, u64>,
    /// What the last scrape was told, and when it was read.
    pub(super) last: Option<(BootNs, Arc<Reading>)>,
    /// Facts that the map took.
    pub(super) facts: u64,
    /// How often everything was read again because events were lost.
    pub(super) resyncs: u64,
}

impl Scrape {
    /// What the configuration says of it.
    pub(super) fn configure(&mut self, settings: &Settings, shared: &[Prefix]) {
        self.settings = settings.clone();
        self.shared = shared.to_vec();
    }

    /// Other IPs may be several's now.
    pub(super) fn share(&mut self, shared: &[Prefix]) {
        self.shared = shared.to_vec();
    }

    /// The next scrape is told nothing of before.
    pub(super) fn forget(&mut self) {
        self.last = None;
    }

    /// What is still new enough to be told again.
    pub(super) fn last(&self, now: BootNs) -> Option<Arc<Reading>> {
        let (at, reading) = self.last.as_ref()?;
        (now.since(*at) < KEPT).then(|| Arc::clone(reading))
    }

    /// A finding changed. Whoever is told of it finds it in a scrape.
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
