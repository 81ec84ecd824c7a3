//! Which findings are opened if there are more than there is room for: see [`Seats`]. Those that ask somebody to act have
//! places of their own, which no number of others takes.
//!
//! A finding that is open keeps its place until it is over, whatever else there is: what is told neither flaps nor ends
//! wrongly. Hence the places are counted by what is open, and not by what is seen.

use std::collections::BTreeMap;

use super::{Life, Record};
use crate::finding::{Candidate, Code, Finding, Severity};
use crate::map::{Places, Seats, Whose};

/// What is known of findings besides the candidates.
pub struct Standing<'a> {
    /// To whom a candidate counts.
    pub whose: &'a dyn Fn(&Candidate) -> Whose,
    /// Whether an open finding that is not seen may hold: there was no room to judge it, or for what it is about.
    pub may_hold: &'a dyn Fn(&Finding) -> bool,
}

impl Default for Standing<'_> {
    /// Everything is the node's own, and was judged.
    fn default() -> Self {
        fn whose(_: &Candidate) -> Whose {
            Whose::Node
        }
        fn may_hold(_: &Finding) -> bool {
            false
        }
        Self { whose: &whose, may_hold: &may_hold }
    }
}

/// The place of an open finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// `None`: an earlier run left it, and it has not been seen since.
    whose: Option<Whose>,
    /// Whether it is one of those for findings that ask somebody to act, as it did when it was opened.
    asks: bool,
}

fn asks(severity: Severity) -> bool {
    severity > Severity::Info
}

impl Record {
    fn place(&self) -> Place {
        self.place.unwrap_or(Place { whose: None, asks: asks(self.finding.severity) })
    }
}

/// The places that are taken.
struct Taken {
    asking: Seats<Code>,
    others: Seats<Code>,
}

impl Taken {
    fn by<'a>(open: impl Iterator<Item = &'a Record>, places: Places) -> Self {
        let mut taken = Self { asking: Seats::new(places), others: Seats::new(places) };
        for record in open {
            let Place { whose, asks } = record.place();
            taken.of(asks).keep(whose, record.finding.code);
        }
        taken
    }

    fn of(&mut self, asks: bool) -> &mut Seats<Code> {
        if asks { &mut self.asking } else { &mut self.others }
    }
}

impl Life {
    /// Gives places to new findings, as long as there are any, and counts the others. Returns those that are opened, by id.
    pub(super) fn seat(
        &mut self,
        seen: &[(String, &Candidate)],
        standing: &Standing<'_>,
    ) -> BTreeMap<String, Place> {
        self.untold.clear();
        let mut new = Vec::new();
        for (id, candidate) in seen {
            let whose = (standing.whose)(candidate);
            match self.open.get_mut(id) {
                Some(record) => {
                    record.place = Some(Place { whose: Some(whose), ..record.place() });
                }
                None => new.push((id, *candidate, whose)),
            }
        }
        let mut opened = BTreeMap::new();
        if new.is_empty() {
            return opened;
        }
        let mut taken = Taken::by(self.open.values(), self.places);
        for (id, candidate, whose) in new {
            let asks = asks(candidate.severity);
            if taken.of(asks).take(whose, candidate.code) {
                opened.insert(id.clone(), Place { whose: Some(whose), asks });
            } else {
                let count = self.untold.entry((whose, candidate.code)).or_default();
                *count = count.saturating_add(1);
            }
        }
        opened
    }

    /// Number of candidates that are no findings, because there is no room for them, as of the last observation.
    #[must_use]
    pub fn untold(&self) -> &BTreeMap<(Whose, Code), u64> {
        &self.untold
    }

    /// Whether an open finding was not judged for want of room, so that it is not known whether it still holds.
    #[must_use]
    pub fn is_spared(&self, id: &str) -> bool {
        self.spared.contains(id)
    }

    /// Sets how many places there are.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn bound(&mut self, places: Places) {
        self.places = places;
    }

    /// # Panics
    /// There are more findings than places.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn assert_is_bounded(&self) {
        let Places { of_users, of_others, .. } = self.places;
        for asks in [false, true] {
            let taken = self.open.values().filter(|record| record.place().asks == asks);
            assert!(taken.count() <= of_users + of_others, "more are open than there are places");
        }
    }
}
