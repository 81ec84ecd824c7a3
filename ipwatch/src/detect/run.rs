//! Detection that looks only at what has changed.
//!
//! A [`Detector`] says by which [`Kinds`] of changes its findings can change, and when the clock alone can change them.
//! [`Detection`] keeps what each found last, and judges again only what is due by either. With nothing kept it is
//! detection from scratch: the two must always find the same, which `engine/tests/same.rs` and every test of a detector
//! compare.

use std::collections::{BTreeMap, BTreeSet};

use crate::fact::{BootNs, TaskKey};
use crate::finding::{Candidate, Code};
use crate::map::{Kinds, NetnsId, NodeMap, Thresholds, Tick};

use super::{SOURCES_SAY, codes, correlate};

/// When a detector is to look again, though nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// Not before something changes.
    OnChange,
    /// At this moment.
    At(BootNs),
    /// In every step: what it found tells the time, or may end with it at any moment.
    Always,
}

impl Again {
    /// `Always` while this is so.
    pub(super) fn always_if(so: bool) -> Self {
        if so { Self::Always } else { Self::OnChange }
    }

    /// At the first of these.
    pub(super) fn at(due: Option<BootNs>) -> Self {
        due.map_or(Self::OnChange, Self::At)
    }

    fn is_due(self, now: BootNs) -> bool {
        match self {
            Self::OnChange => false,
            Self::At(due) => due <= now,
            Self::Always => true,
        }
    }

    /// The sooner of the two.
    pub(super) fn sooner(self, other: Self) -> Self {
        match (self, other) {
            (Self::Always, _) | (_, Self::Always) => Self::Always,
            (Self::At(one), Self::At(other)) => Self::At(one.min(other)),
            (Self::OnChange, other) => other,
            (one, Self::OnChange) => one,
        }
    }
}

/// What a detector judges by itself: a netns, or tasks in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Subject {
    pub(super) netns: NetnsId,
    pub(super) tasks: Vec<TaskKey>,
}

impl From<NetnsId> for Subject {
    fn from(netns: NetnsId) -> Self {
        Self { netns, tasks: Vec::new() }
    }
}

/// What was found, and when to look again.
pub(super) type Judged = (Vec<Candidate>, Again);

/// What every detector is. What changes the times, the names or the reach of everything (`Kinds::ALL` in
/// `map/changes.rs`) runs each of them and need not be named, nor need other thresholds.
pub(super) enum Detector {
    /// One that looks at all of its subjects at once.
    Whole {
        /// It looks again when one of these has changed anywhere,
        on: Kinds,
        /// or one of these other than within one pod's netns.
        beyond: Kinds,
        detect: fn(&NodeMap, BootNs, &Thresholds) -> Judged,
    },
    /// One whose subjects each depend on one netns, and on what is not within any.
    Each {
        /// Who its subjects are may change with these, wherever they change,
        listed_on: Kinds,
        /// or with these, other than within one pod's netns.
        listed_beyond: Kinds,
        /// The suspects, in the order in which they are told.
        list: fn(&NodeMap, BootNs, &Thresholds) -> Vec<Subject>,
        /// All of them are judged again when one of these has changed other than within one pod's netns. Addresses,
        /// links and tasks of a subject's own netns need not be named.
        beyond: Kinds,
        judge: fn(&NodeMap, &Subject, BootNs, &Thresholds) -> Judged,
    },
}

/// What a detector found last.
#[derive(Debug, Default)]
struct Kept {
    /// As of then.
    seen: Option<Tick>,
    again: Option<Again>,
    whole: Vec<Candidate>,
    list: Vec<Subject>,
    each: BTreeMap<Subject, Judged>,
}

/// Everything that was found last.
#[derive(Debug, Default)]
pub struct Detection {
    kept: Vec<Kept>,
    thresholds: Option<Thresholds>,
    /// With causes and severities, in the detectors' order.
    found: Vec<Candidate>,
    /// Codes that a source does not let judge, as of then.
    blind: (Option<Tick>, BTreeSet<Code>),
}

impl Detection {
    /// Brings it up to date. Whether anything may have changed.
    pub fn update(&mut self, map: &NodeMap, now: BootNs, thresholds: &Thresholds) -> bool {
        // What was found before is forgotten, and it is not known whether it is the same.
        let mut changed = self.thresholds != Some(*thresholds);
        if changed {
            *self = Self { thresholds: Some(*thresholds), ..Self::default() };
        }
        self.kept.resize_with(codes::detectors().count(), Kept::default);
        for (detector, kept) in codes::detectors().zip(&mut self.kept) {
            changed |= kept.update(detector, map, now, thresholds);
        }
        if changed {
            let all = self.kept.iter().flat_map(Kept::found);
            self.found = all.cloned().collect();
            correlate::fold(map, now, &mut self.found);
        }
        changed
    }

    /// Codes that cannot be judged now: see [`super::blind`].
    pub fn blind(&mut self, map: &NodeMap, thresholds: &Thresholds) -> BTreeSet<Code> {
        let (seen, by_sources) = &mut self.blind;
        if seen.is_none_or(|seen| map.changed(SOURCES_SAY, seen)) {
            *by_sources = super::blind_by_sources(map);
            *seen = Some(map.tick());
        }
        let mut blind = by_sources.clone();
        super::blind_for_now(map, thresholds, &mut blind);
        blind
    }

    /// What was found.
    #[must_use]
    pub fn found(&self) -> &[Candidate] {
        &self.found
    }
}

impl Kept {
    fn found(&self) -> impl Iterator<Item = &Candidate> {
        let each = self.list.iter().filter_map(|subject| self.each.get(subject));
        self.whole.iter().chain(each.flat_map(|(found, _)| found))
    }

    fn update(
        &mut self,
        run: &Detector,
        map: &NodeMap,
        now: BootNs,
        thresholds: &Thresholds,
    ) -> bool {
        let seen = self.seen;
        let due = self.again.is_none_or(|again| again.is_due(now));
        match run {
            Detector::Whole { on, beyond, detect } => {
                let touched = seen
                    .is_none_or(|seen| map.changed(*on, seen) || map.changed_beyond(*beyond, seen));
                if !touched && !due {
                    return false;
                }
                let (found, again) = detect(map, now, thresholds);
                (self.seen, self.again) = (Some(map.tick()), Some(again));
                let changed = found != self.whole;
                self.whole = found;
                changed
            }
            Detector::Each { .. } => self.update_each(run, map, now, thresholds),
        }
    }

    fn update_each(
        &mut self,
        run: &Detector,
        map: &NodeMap,
        now: BootNs,
        thresholds: &Thresholds,
    ) -> bool {
        let Detector::Each { listed_on, listed_beyond, list, beyond, judge } = run else {
            return false;
        };
        let seen = self.seen;
        let mut changed = false;
        if seen.is_none_or(|seen| {
            map.changed(*listed_on, seen) || map.changed_beyond(*listed_beyond, seen)
        }) {
            let subjects = list(map, now, thresholds);
            changed |= subjects != self.list;
            self.list = subjects;
        }
        let all = seen.is_none_or(|seen| map.changed_beyond(*beyond, seen));
        let mut before = std::mem::take(&mut self.each);
        for subject in &self.list {
            let known = before.remove(subject);
            let stale = all
                || seen.is_none_or(|seen| map.changed_in(subject.netns, seen))
                || known.as_ref().is_none_or(|(_, again)| again.is_due(now));
            let judged = match known {
                Some(known) if !stale => known,
                known => {
                    let judged = judge(map, subject, now, thresholds);
                    changed |= known.is_none_or(|(found, _)| found != judged.0);
                    judged
                }
            };
            self.each.insert(subject.clone(), judged);
        }
        self.seen = Some(map.tick());
        changed
    }
}
