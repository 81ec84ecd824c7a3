//! The facts that the daemon tells beside its sources: a thread that hangs, a job that no queue has room for, events
//! that no program saw. They go the same way as all others, and into a recording.

use std::time::Duration;

use super::desk::Desk;
use super::start::Eyes;
use crate::engine::Effects;
use crate::fact::{BootNs, Fact, Origin, Source, SourceStatus, What};
use crate::map::NodeMap;
use crate::sources::probes::Missed;

/// Events that the kernel did not even offer are asked for this often: nothing tells of them.
const COUNT_EVERY: Duration = Duration::from_secs(10);

/// What is said of a source whose reads hang, all of them or some.
const BLIND: &str = "reads of it do not come back";
const PARTLY: &str = "some of it does not answer";

/// What is remembered of them.
pub(super) struct Own {
    /// For the next step.
    refused: Vec<Fact>,
    /// How the sources stood before something of theirs hung, and whether they can tell nothing any more.
    hanging: Vec<(Source, bool)>,
    /// When the events that programs missed were last counted, and how many there were.
    counted: (BootNs, Missed),
}

impl Own {
    pub(super) fn new(now: BootNs) -> Self {
        Self { refused: Vec::new(), hanging: Vec::new(), counted: (now, Missed::default()) }
    }

    /// Asks for what a step wants to know. What no queue has room for is a fact of the next step.
    pub(super) fn ask(&mut self, desk: &Desk, effects: &mut Effects, now: BootNs) {
        if effects.reread {
            desk.snapshot();
        }
        let wants = std::mem::take(&mut effects.wants).into_iter();
        self.refused.extend(wants.filter_map(|want| desk.want(want)).map(|what| fact(now, what)));
        if !self.refused.is_empty() {
            effects.next = Some(now);
        }
    }

    /// What there is to tell before the next step.
    pub(super) fn facts(
        &mut self,
        desk: &Desk,
        eyes: &Eyes,
        map: &NodeMap,
        now: BootNs,
    ) -> Vec<Fact> {
        let mut facts = std::mem::take(&mut self.refused);
        let hanging = self.hanging(desk, map, now);
        facts.extend(hanging.into_iter().map(|source| fact(now, What::Source(source))));
        facts.extend(self.count(eyes, now));
        facts
    }

    /// When events are to be counted next.
    pub(super) fn due(&self) -> BootNs {
        self.counted.0.plus(COUNT_EVERY.as_nanos() as u64)
    }

    /// Events that no program saw, as of the last count.
    pub(super) fn missed(&self) -> u64 {
        self.counted.1.events
    }

    fn count(&mut self, eyes: &Eyes, now: BootNs) -> Option<Fact> {
        if now < self.due() {
            return None;
        }
        let (known, missed) = (self.counted.1, eyes.missed());
        self.counted = (now, missed);
        let count = missed.events.checked_sub(known.events).filter(|count| *count > 0);
        count?;
        Some(fact(now, What::Lost { count, calls: missed.calls > known.calls }))
    }

    /// The sources that changed because a thread hangs in the kernel, which cannot say so itself, or hangs no longer.
    fn hanging(&mut self, desk: &Desk, map: &NodeMap, now: BootNs) -> Vec<Source> {
        let hanging = desk.hanging(now);
        let mut changed = Vec::new();
        self.hanging.retain(|(before, blind)| {
            let still =
                |(name, _, now): &(&str, String, bool)| before.name == *name && now == blind;
            let still = hanging.iter().any(still);
            if !still && is_ours(map.source(&before.name)) {
                changed.push(before.clone());
            }
            still
        });
        for (name, _, blind) in hanging {
            if self.hanging.iter().any(|(before, _)| before.name == name) {
                continue;
            }
            let told = changed.iter().position(|before| before.name == name);
            let before = told.map(|at| changed.remove(at)).or_else(|| map.source(name).cloned());
            let Some(before) = before else { continue };
            self.hanging.push((before.clone(), blind));
            let (status, detail) = match blind {
                true => (SourceStatus::Down, BLIND),
                false => (lessened(before.status), PARTLY),
            };
            changed.push(Source { name: before.name, status, detail: detail.to_owned() });
        }
        changed
    }
}

/// Whether a source stands as it was told here. What it has said of itself since is newer than what it said before.
fn is_ours(source: Option<&Source>) -> bool {
    source.is_some_and(|source| [BLIND, PARTLY].contains(&&*source.detail))
}

fn fact(at: BootNs, what: What) -> Fact {
    Fact { at, origin: Origin::Daemon, what }
}

/// How a source stands of which something does not answer.
pub(super) fn lessened(status: SourceStatus) -> SourceStatus {
    match status {
        SourceStatus::Active => SourceStatus::Degraded,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_source_said_meanwhile_outlasts_the_end_of_a_hang() {
        let said = |detail: &str| Source {
            name: "cni".into(),
            status: SourceStatus::Degraded,
            detail: detail.into(),
        };
        assert!(is_ours(Some(&said(BLIND))) && is_ours(Some(&said(PARTLY))));
        assert!(!is_ours(Some(&said("/etc/cni/net.d: not found"))), "it is newer");
        assert!(!is_ours(None), "it is gone");
    }
}
