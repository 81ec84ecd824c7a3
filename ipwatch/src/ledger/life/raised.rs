//! A severity that rises. What raises it may be a consequence that was seen only once, so a higher severity counts like a
//! new finding: when a second look shows it too. A lower one counts at once.

use crate::fact::BootNs;
use crate::finding::Severity;

/// A higher severity that waits for its second look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Raised(Option<Waiting>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Waiting {
    /// The lowest severity that was seen since.
    lowest: Severity,
    /// The observation that first showed it, and when that was judged.
    observed: BootNs,
    at: BootNs,
}

impl Raised {
    /// The severity of a finding that has `known`, after an observation that shows `seen`. `second_look`: how far apart
    /// two looks must be, in ns.
    pub(super) fn settle(
        &mut self,
        known: Severity,
        seen: Severity,
        (observed, now): (BootNs, BootNs),
        second_look: u64,
    ) -> Severity {
        if seen <= known {
            self.0 = None;
            return seen;
        }
        let new = Waiting { lowest: seen, observed, at: now };
        let waiting = self.0.get_or_insert(new);
        waiting.lowest = waiting.lowest.min(seen);
        let lowest = waiting.lowest;
        // A consequence is looked at in its own time: its cause need not be looked at again.
        let stood = now > waiting.at && now.since(waiting.at) >= second_look.saturating_mul(2);
        if !stood && !is_second(waiting.observed, observed, now, second_look) {
            return known;
        }
        // What only this look shows waits for the next one.
        self.0 = (seen > lowest).then_some(new);
        lowest
    }

    /// When a second look will count.
    pub(super) fn due(self, second_look: u64) -> impl Iterator<Item = BootNs> {
        let due = move |waiting: Waiting| {
            [waiting.at.plus(second_look), waiting.at.plus(second_look.saturating_mul(2))]
        };
        self.0.map(due).into_iter().flatten()
    }

    pub(super) fn waits(self) -> bool {
        self.0.is_some()
    }
}

/// Whether the observation `observed` is a second look after `first`. Answers may arrive closer together than they were
/// requested. Then the state must have lasted longer, because there may be no third look.
pub(super) fn is_second(first: BootNs, observed: BootNs, now: BootNs, second_look: u64) -> bool {
    let apart = observed.0.abs_diff(first.0);
    let stood = now.since(first) >= second_look.saturating_mul(2);
    apart > 0 && (apart >= second_look || stood)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Severity::{Critical, Info, Warning};

    /// The severity after each look: when it was judged, what was observed, and the severity that it shows.
    fn told(looks: &[(u64, u64, Severity)]) -> Vec<Severity> {
        let (mut raised, mut known) = (Raised::default(), Info);
        let tell = |(now, observed, seen): &(u64, u64, Severity)| {
            let looks = (BootNs(*observed), BootNs(*now));
            known = raised.settle(known, *seen, looks, 500);
            known
        };
        looks.iter().map(tell).collect()
    }

    #[test]
    fn one_look_raises_nothing() {
        let once = [(10, 10, Warning), (200, 200, Warning), (300, 300, Info), (900, 900, Warning)];
        assert_eq!(told(&once), [Info; 4], "too close, and then gone");
        let twice = [(10, 10, Warning), (510, 510, Warning), (511, 511, Info)];
        assert_eq!(told(&twice), [Info, Warning, Info]);
        let more =
            [(10, 10, Warning), (510, 510, Critical), (600, 600, Critical), (1010, 1010, Critical)];
        assert_eq!(told(&more), [Info, Warning, Warning, Critical], "each step needs two");
    }

    #[test]
    fn a_cause_that_is_not_looked_at_again_is_raised_by_what_lasts() {
        let lasts = [(10, 5, Critical), (600, 5, Critical), (1_010, 5, Critical)];
        assert_eq!(told(&lasts), [Info, Info, Critical]);
        let (mut raised, due) =
            (Raised::default(), |raised: Raised| raised.due(500).collect::<Vec<_>>());
        assert_eq!((due(raised), raised.waits()), (vec![], false));
        raised.settle(Info, Critical, (BootNs(5), BootNs(10)), 500);
        assert_eq!((due(raised), raised.waits()), (vec![BootNs(510), BootNs(1_010)], true));
    }
}
