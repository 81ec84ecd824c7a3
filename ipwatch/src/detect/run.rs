//! Incremental detection: judges only what has changed.
//!
//! A [`Detector`] declares which [`Kinds`] of changes can change its findings, and when the clock alone can change
//! them. [`Detection`] keeps the last result of each detector, and judges again only what is due by either. Without
//! kept results it is detection from scratch: both must always give the same result, which `engine/tests/same.rs` and
//! every test of a detector compare.

use std::collections::{BTreeMap, BTreeSet};

use crate::fact::{BootNs, TaskKey};
use crate::finding::{Candidate, Code};
use crate::map::{Kinds, NetnsId, NodeMap, Thresholds, Tick};

use super::{SOURCES_SAY, codes, correlate};

/// When a detector must look again although nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// Not before something changes.
    OnChange,
    At(BootNs),
    /// In every step: the finding contains the current time, or may end at any moment.
    Always,
}

impl Again {
    /// `Always` if `so`.
    pub(super) fn always_if(so: bool) -> Self {
        if so { Self::Always } else { Self::OnChange }
    }

    /// At `due`, if there is such a moment.
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

/// What a detector judges independently: a netns, or tasks in it.
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

/// The findings, and when to look again.
pub(super) type Judged = (Vec<Candidate>, Again);

/// A detector. Changes of everything (`Kinds::ALL` in `map/changes.rs`) and of thresholds run every detector, and need
/// not be declared.
pub(super) enum Detector {
    /// A detector that looks at everything at once.
    Whole {
        /// Kinds whose change anywhere makes it look again.
        on: Kinds,
        /// Kinds whose change beyond one pod's netns makes it look again.
        beyond: Kinds,
        detect: fn(&NodeMap, BootNs, &Thresholds) -> Judged,
    },
    /// A detector with subjects that each depend on one netns, and on what is not within any.
    Each {
        /// Kinds whose change anywhere may change the list of subjects.
        listed_on: Kinds,
        /// Kinds whose change beyond one pod's netns may change the list of subjects.
        listed_beyond: Kinds,
        /// The subjects, in the order in which they are reported.
        list: fn(&NodeMap, BootNs, &Thresholds) -> Vec<Subject>,
        /// Kinds whose change beyond one pod's netns makes it judge all subjects again. Addresses, links and tasks of a
        /// subject's own netns need not be declared.
        beyond: Kinds,
        judge: fn(&NodeMap, &Subject, BootNs, &Thresholds) -> Judged,
    },
}

/// The last result of a detector.
#[derive(Debug, Default)]
struct Kept {
    /// The tick of that result.
    seen: Option<Tick>,
    again: Option<Again>,
    whole: Vec<Candidate>,
    list: Vec<Subject>,
    each: BTreeMap<Subject, Judged>,
}

/// The last results of all detectors.
#[derive(Debug, Default)]
pub struct Detection {
    kept: Vec<Kept>,
    thresholds: Option<Thresholds>,
    /// With causes and severities, in the order of the detectors.
    found: Vec<Candidate>,
    /// Codes that cannot be judged because of a source, and the tick of that result.
    blind: (Option<Tick>, BTreeSet<Code>),
}

impl Detection {
    /// Updates the results. Returns whether anything may have changed.
    pub fn update(&mut self, map: &NodeMap, now: BootNs, thresholds: &Thresholds) -> bool {
        // The former results are dropped, so they cannot be compared with the new ones.
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
            correlate::fold(map, now, thresholds, &mut self.found);
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

    /// The findings.
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
