//! The state of each event while the probes are attached: its rung, and what the canary has shown about it since.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Rung, events::Counters, ladder, ring::Counts};
use crate::canary::Proofs;
use crate::clock;
use crate::contract;
use crate::fact::{BootNs, Sight};

/// Shared by the probes and the canary.
pub(crate) struct Standings {
    standings: Vec<ladder::Standing>,
    pub(super) counters: Arc<Counters>,
    counts: Arc<Counts>,
    proofs: Proofs,
    /// How often the programs of an event were attached again, and when for the last time.
    again: Mutex<BTreeMap<&'static str, (u64, BootNs)>>,
}

impl std::fmt::Debug for Standings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.standings).finish()
    }
}

impl Standings {
    pub(super) fn new(standings: Vec<ladder::Standing>, counts: Arc<Counts>) -> Self {
        let (counters, again) = (Arc::default(), Mutex::default());
        Self { standings, counters, counts, proofs: Proofs::default(), again }
    }

    /// Every event and how it is observed.
    pub(crate) fn report(&self) -> Vec<contract::Probe> {
        let now = clock::now();
        let proof = |event: &str| self.proofs.of(event, now);
        let seen = |kind| self.counters.seen(kind) + self.counts.seen(kind);
        let mut report =
            ladder::report(&self.standings, &seen, &|kind| self.counts.of(kind), &proof);
        let again = self.all_again();
        for probe in &mut report {
            let known = again.get(probe.event.as_str());
            probe.attached_again = known.map(|(times, at)| contract::AttachedAgain {
                times: *times,
                ago_secs: now.since(*at) / 1_000_000_000,
            });
        }
        report
    }

    /// Records that the programs of an event were attached again.
    pub(crate) fn attached_again(&self, event: &'static str, at: BootNs) {
        let mut all = self.all_again();
        let (times, last) = all.entry(event).or_default();
        (*times, *last) = (*times + 1, at);
    }

    fn all_again(&self) -> MutexGuard<'_, BTreeMap<&'static str, (u64, BootNs)>> {
        // Each entry is complete whenever the lock is released.
        self.again.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which kinds of events would be seen, so that their absence means something.
    pub(crate) fn sight(&self) -> Sight {
        Sight {
            teardown_end: self.sees("netns-teardown-end"),
            release: self.sees("netns-release"),
            addresses: self.sees("ipv4-address") && self.sees("ipv6-address"),
            calls: self.sees("cni-call"),
            tasks: self.sees_tasks(),
        }
    }

    /// Whether tasks that start, exit and move between netns are seen.
    pub(super) fn sees_tasks(&self) -> bool {
        ["process-fork", "process-exec", "process-exit", "netns-join"]
            .iter()
            .all(|event| self.sees(event))
    }

    /// Whether a program reports the event, as far as is known.
    pub(crate) fn sees(&self, event: &str) -> bool {
        self.rung(event).is_some() && !self.proofs.is_blind(event)
    }

    pub(super) fn rung(&self, event: &str) -> Option<Rung> {
        self.standings.iter().find(|standing| standing.event == event)?.rung
    }

    /// Events for which a program is attached.
    pub(crate) fn attached(&self) -> Vec<(&'static str, Rung)> {
        let attached =
            |standing: &ladder::Standing| standing.rung.map(|rung| (standing.event, rung));
        self.standings.iter().filter_map(attached).collect()
    }

    /// Whether the canary could prove any event. A socket receives only from the host's links, on which the canary
    /// sends nothing.
    pub(crate) fn are_provable(&self) -> bool {
        self.standings.iter().any(|one| one.rung.is_some_and(|rung| rung != Rung::Socket))
    }

    /// Number of records of an event that were dropped or suppressed so far.
    pub(crate) fn lost(&self, event: &str) -> u64 {
        ladder::kinds(event).iter().map(|kind| self.counts.of(*kind)).sum()
    }

    /// Number of events of a kind that the kernel half has counted, including the canary's.
    pub(crate) fn counted(&self, kind: u16) -> u64 {
        self.counts.seen(kind)
    }

    pub(crate) fn proofs(&self) -> &Proofs {
        &self.proofs
    }
}
