//! The facts that the daemon adds to those of its sources: a thread that hangs, a part of a source that has ended, a
//! job for which a queue had no room, events that no program saw. They take the same way as all others, also into a
//! recording.

use std::time::Duration;

use super::dispatch::Dispatch;
use super::restarts::Trouble;
use super::start::Eyes;
use crate::engine::Effects;
use crate::fact::{BootNs, Fact, Observation, Origin, Source, SourceStatus};
use crate::map::NodeMap;
use crate::sources::probes::Missed;

/// Interval at which events that the kernel did not offer to a program are counted: nothing reports them.
const COUNT_EVERY: Duration = Duration::from_secs(10);

/// Minimum time between two runs of the canary that missed events ask for: a few are missed on a healthy node as well.
const DOUBT_EVERY: u64 = 600_000_000_000;

/// Details of a source of which all (`BLIND`) or some (`PARTLY`) reads hang.
const BLIND: &str = "reads of it do not come back";
const PARTLY: &str = "some of it does not answer";

/// State for the daemon's own facts.
pub(super) struct Own {
    /// Facts for the next step, of requests that found no room in a queue.
    refused: Vec<Fact>,
    /// The sources of which something hangs or has ended.
    lessened: Vec<Lessened>,
    /// The last count of missed events, and its time.
    counted: (BootNs, Missed),
    doubts: Doubts,
}

/// When events that a sweep of the tasks shows to be missing ask for a run of the canary.
#[derive(Debug, Default)]
struct Doubts {
    /// Number of them so far.
    missed: u64,
    asked: Option<BootNs>,
}

impl Doubts {
    /// Whether to ask now that so many are missing in all.
    fn arise(&mut self, missed: u64, now: BootNs) -> bool {
        let due = self.asked.is_none_or(|asked| now.since(asked) >= DOUBT_EVERY);
        if missed == self.missed || !due {
            return false;
        }
        (self.missed, self.asked) = (missed, Some(now));
        true
    }
}

/// A source of which something hangs or has ended.
struct Lessened {
    /// The status that the source reported itself.
    before: Source,
    /// The status that we reported instead.
    told: Source,
    /// A part of the source has ended: until it works again, whatever the source reports itself does not hold.
    ended: bool,
}

impl Own {
    pub(super) fn new(now: BootNs) -> Self {
        Self {
            refused: Vec::new(),
            lessened: Vec::new(),
            counted: (now, Missed::default()),
            doubts: Doubts::default(),
        }
    }

    /// Passes the requests of a step on. A request that finds no room in its queue becomes a fact of the next step.
    pub(super) fn ask(&mut self, dispatch: &Dispatch, effects: &mut Effects, now: BootNs) {
        if effects.reread {
            dispatch.snapshot();
        }
        let wants = std::mem::take(&mut effects.wants).into_iter();
        self.refused
            .extend(wants.filter_map(|want| dispatch.want(want)).map(|what| fact(now, what)));
        if !self.refused.is_empty() {
            effects.next = Some(now);
        }
    }

    /// The facts to apply before the next step.
    pub(super) fn facts(
        &mut self,
        dispatch: &Dispatch,
        eyes: &Eyes,
        map: &NodeMap,
        now: BootNs,
    ) -> Vec<Fact> {
        let mut facts = std::mem::take(&mut self.refused);
        let changed = self.lessen(&dispatch.troubles(now), map);
        facts.extend(changed.into_iter().map(|source| fact(now, Observation::Source(source))));
        facts.extend(self.count(eyes, map, now));
        facts
    }

    /// When missed events are to be counted next.
    pub(super) fn due(&self) -> BootNs {
        self.counted.0.plus(COUNT_EVERY.as_nanos() as u64)
    }

    /// Events that no program saw, as of the last count.
    pub(super) fn missed(&self) -> u64 {
        self.counted.1.events
    }

    fn count(&mut self, eyes: &Eyes, map: &NodeMap, now: BootNs) -> Option<Fact> {
        if now < self.due() {
            return None;
        }
        if self.doubts.arise(map.missed_events().values().sum(), now)
            && let Ok(canary) = eyes.canary()
        {
            canary.doubt();
        }
        let (known, missed) = (self.counted.1, eyes.missed());
        self.counted = (now, missed);
        let count = missed.events.checked_sub(known.events).filter(|count| *count > 0);
        count?;
        Some(fact(now, Observation::Lost { count, calls: missed.calls > known.calls }))
    }

    /// The sources whose status changes because something of theirs hangs or has ended, or no longer does: they
    /// cannot report that themselves.
    fn lessen(&mut self, troubles: &[Trouble], map: &NodeMap) -> Vec<Source> {
        let mut changed: Vec<Source> = Vec::new();
        self.lessened.retain_mut(|one| {
            let now = map.source(&one.before.name);
            let same = |trouble: &&Trouble| {
                trouble.source == one.before.name && told(&one.before, trouble) == one.told
            };
            let Some(trouble) = troubles.iter().find(same) else {
                // What the source has reported since is newer than `before`.
                changed.extend(now.filter(|now| **now == one.told).map(|_| one.before.clone()));
                return false;
            };
            if let Some(now) = now.filter(|now| one.ended && **now != one.told) {
                let told = told(now, trouble);
                *one = Lessened { before: now.clone(), told: told.clone(), ended: true };
                changed.push(told);
            }
            true
        });
        for trouble in troubles {
            if self.lessened.iter().any(|one| trouble.source == one.before.name) {
                continue;
            }
            let at = changed.iter().position(|before| before.name == trouble.source);
            let before = at.map(|at| changed.remove(at));
            let Some(before) = before.or_else(|| map.source(trouble.source).cloned()) else {
                continue;
            };
            let told = told(&before, trouble);
            changed.push(told.clone());
            self.lessened.push(Lessened { before, told, ended: trouble.ended.is_some() });
        }
        changed
    }
}

/// The status of a source of which something hangs or has ended.
fn told(before: &Source, trouble: &Trouble) -> Source {
    let detail = match &trouble.ended {
        Some(ended) if before.detail.is_empty() => ended.clone(),
        Some(ended) => format!("{}; {ended}", before.detail),
        None => if trouble.is_blind { BLIND } else { PARTLY }.to_owned(),
    };
    let status = if trouble.is_blind { SourceStatus::Down } else { lessened(before.status) };
    Source { name: before.name.clone(), status, detail }
}

fn fact(at: BootNs, what: Observation) -> Fact {
    Fact { at, origin: Origin::Daemon, what }
}

/// The status of a source of which some reads hang.
pub(super) fn lessened(status: SourceStatus) -> SourceStatus {
    match status {
        SourceStatus::Active => SourceStatus::Degraded,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::SourceName;

    fn map_of(source: &Source) -> NodeMap {
        let mut map = NodeMap::new(false);
        map.apply(&fact(BootNs(1), Observation::Source(source.clone())));
        map
    }

    fn source(status: SourceStatus, detail: &str) -> Source {
        Source { name: SourceName::Procfs.into(), status, detail: detail.into() }
    }

    fn trouble(ended: Option<&str>, is_blind: bool) -> Trouble {
        let (text, ended) = ("for people".to_owned(), ended.map(ToOwned::to_owned));
        Trouble { source: SourceName::Procfs.as_str(), text, ended, is_blind }
    }

    #[test]
    fn missed_events_raise_a_doubt_at_once_and_then_now_and_then() {
        let mut doubts = Doubts::default();
        let at = |n: u64| BootNs(n * DOUBT_EVERY / 10);
        assert!(!doubts.arise(0, at(1)));
        assert!(doubts.arise(1, at(2)));
        assert!(!doubts.arise(1, at(20)), "none since");
        assert!(doubts.arise(2, at(21)));
        let asked = (22..=121).filter(|n| doubts.arise(*n, at(*n))).count();
        assert_eq!(asked, 10, "however many are missed");
    }

    #[test]
    fn what_a_source_said_meanwhile_outlasts_the_end_of_a_hang() {
        let mut own = Own::new(BootNs(1));
        let before = source(SourceStatus::Degraded, "a pid namespace");
        let told = own.lessen(&[trouble(None, true)], &map_of(&before));
        assert_eq!(told, [source(SourceStatus::Down, BLIND)]);
        let newer = map_of(&source(SourceStatus::Degraded, "not found"));
        assert_eq!(own.lessen(&[trouble(None, true)], &newer), []);
        assert_eq!(own.lessen(&[], &newer), []);

        let mut own = Own::new(BootNs(1));
        let told = own.lessen(&[trouble(None, false)], &map_of(&before)).remove(0);
        assert_eq!(told.detail, PARTLY);
        assert_eq!(own.lessen(&[], &map_of(&told)), [before]);
    }

    #[test]
    fn a_source_of_which_a_part_has_ended_is_down_whatever_it_says_until_that_works() {
        let mut own = Own::new(BootNs(1));
        let ended = [trouble(Some("it has ended"), true)];
        let before = source(SourceStatus::Active, "");
        let told = own.lessen(&ended, &map_of(&before));
        let down = source(SourceStatus::Down, "it has ended");
        assert_eq!(told, std::slice::from_ref(&down));
        assert_eq!(own.lessen(&ended, &map_of(&down)), [], "once");
        // Another part of the source reported its status.
        let newer = source(SourceStatus::Degraded, "overrun");
        let down = source(SourceStatus::Down, "overrun; it has ended");
        assert_eq!(own.lessen(&ended, &map_of(&newer)), std::slice::from_ref(&down));
        assert_eq!(own.lessen(&ended, &map_of(&down)), [], "once");
        assert_eq!(own.lessen(&[], &map_of(&down)), [newer]);
    }

    #[test]
    fn another_reason_is_told_and_one_that_is_not_vital_leaves_the_source_degraded() {
        let mut own = Own::new(BootNs(1));
        let before = source(SourceStatus::Active, "");
        let one = own.lessen(&[trouble(Some("one"), false)], &map_of(&before)).remove(0);
        assert_eq!(one, source(SourceStatus::Degraded, "one"));
        let other = own.lessen(&[trouble(Some("other"), false)], &map_of(&one)).remove(0);
        assert_eq!(other, source(SourceStatus::Degraded, "other"));
        assert_eq!(own.lessen(&[], &map_of(&other)), [before]);
    }
}
