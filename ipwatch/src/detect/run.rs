//! Incremental detection: judges only what has changed.
//!
//! A [`Detector`] declares which [`Kinds`] of changes can change its findings, and when the clock alone can change
//! them. [`Detection`] keeps the last result of each detector, and judges again only what is due by either. Without
//! kept results it is detection from scratch: both must always give the same result, which `engine/tests/same.rs` and
//! every test of a detector compare.

use std::collections::{BTreeMap, BTreeSet};

use crate::fact::{BootNs, TaskKey};
use crate::finding::{Candidate, Code, Finding};
use crate::map::{Kinds, NetnsId, NodeMap, Places, Seats, Thresholds, Tick, Whose};

use super::{SOURCES_SAY, codes, correlate, neighbour_conflict};

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

/// The subjects of a detector.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Listed {
    /// In the order in which they are reported.
    subjects: Vec<Subject>,
    /// The netns and the pid of those that are not judged for want of room.
    left_out: BTreeSet<(NetnsId, u32)>,
}

impl From<Vec<Subject>> for Listed {
    fn from(subjects: Vec<Subject>) -> Self {
        Self { subjects, left_out: BTreeSet::new() }
    }
}

impl Listed {
    /// Processes, each with since when it is one: those for which there is a place. The oldest have it, so that a newer one
    /// takes none of what is reported.
    pub(super) fn within(map: &NodeMap, places: Places, all: Vec<(BootNs, Subject)>) -> Self {
        if all.len() <= places.of_one {
            return all.into_iter().map(|(_, subject)| subject).collect::<Vec<_>>().into();
        }
        let mut oldest: Vec<usize> = (0..all.len()).collect();
        oldest.sort_by_key(|at| all[*at].0);
        let mut seats = Seats::new(places);
        let mut fits = vec![false; all.len()];
        for at in oldest {
            fits[at] = seats.take(map.whose_netns(all[at].1.netns), ());
        }
        let mut listed = Self::default();
        for ((_, subject), fits) in all.into_iter().zip(fits) {
            if fits {
                listed.subjects.push(subject);
            } else {
                let pids = subject.tasks.iter().map(|task| (subject.netns, task.pid));
                listed.left_out.extend(pids);
            }
        }
        listed
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
        list: fn(&NodeMap, BootNs, &Thresholds) -> Listed,
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
    list: Listed,
    each: BTreeMap<Subject, Judged>,
}

/// The last results of all detectors.
#[derive(Debug, Default)]
pub struct Detection {
    kept: Vec<Kept>,
    thresholds: Option<Thresholds>,
    /// With causes and severities, in the order of the detectors.
    found: Vec<Candidate>,
    /// To whom these count, and the tick of that.
    whose: (Option<Tick>, Vec<Whose>),
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
        let (seen, before) = &mut self.whose;
        if changed || seen.is_none_or(|seen| map.changed(Kinds::NETNS, seen)) {
            let whose = self.found.iter().map(|one| map.whose(&one.subject)).collect();
            changed |= std::mem::replace(before, whose) != *before;
            *seen = Some(map.tick());
        }
        changed
    }

    /// Whether an open finding that is not found was not judged for want of room.
    #[must_use]
    pub fn leaves_out(&self, map: &NodeMap, finding: &Finding) -> bool {
        if finding.code == Code::NeighbourConflict {
            return neighbour_conflict::leaves_out(map, finding);
        }
        let kept = codes::judged().zip(&self.kept).find(|((code, _), _)| *code == finding.code);
        let left_out = kept.map(|(_, kept)| &kept.list.left_out).filter(|left| !left.is_empty());
        let netns = left_out.and_then(|_| map.netns_of(&finding.subject));
        left_out.zip(netns).is_some_and(|(left_out, netns)| {
            let mut pids = finding.holders.iter().filter_map(|holder| holder.pid);
            pids.any(|pid| left_out.contains(&(netns, pid)))
        })
    }

    /// Number of subjects that are not judged for want of room, by whose they are.
    #[must_use]
    pub fn unjudged(&self, map: &NodeMap) -> BTreeMap<(Whose, Code), u64> {
        let mut all: BTreeMap<(Whose, Code), u64> = BTreeMap::new();
        for ((code, _), kept) in codes::judged().zip(&self.kept) {
            for (netns, _) in &kept.list.left_out {
                *all.entry((map.whose_netns(*netns), code)).or_default() += 1;
            }
        }
        all
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
        let each = self.list.subjects.iter().filter_map(|subject| self.each.get(subject));
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
        for subject in &self.list.subjects {
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
