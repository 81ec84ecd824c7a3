//! Periods in which every run of a CNI plugin was observed. What such a period proved stays proven when runs are lost
//! later.

use std::collections::VecDeque;

use crate::fact::BootNs;

/// Maximum number of past periods. With more losses, the oldest period proves nothing any more.
const MOST: usize = 16;
/// A run may have been lost this long before that was noticed, in ns.
const NOTICED: u64 = 2_000_000_000;

/// Periods without a loss.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// When the current period began.
    since: Option<BootNs>,
    /// Earlier periods, the oldest first: when each began, and until when nothing can have been lost.
    past: VecDeque<(BootNs, BootNs)>,
}

impl Seen {
    /// Every run is observed from now on, or no longer.
    pub(super) fn set(&mut self, seen: bool, at: BootNs) {
        if seen {
            self.since.get_or_insert(at);
        } else {
            self.end(at);
            self.since = None;
        }
    }

    /// The beginning or the end of a run may have been lost: complete observation starts again now.
    pub(super) fn lost(&mut self, at: BootNs) {
        self.end(at);
        self.since = self.since.map(|since| since.max(at));
    }

    fn end(&mut self, at: BootNs) {
        let Some(since) = self.since else { return };
        let until = BootNs(at.0.saturating_sub(NOTICED));
        if since < until {
            self.past.push_back((since, until));
            if self.past.len() > MOST {
                self.past.pop_front();
            }
        }
    }

    /// Since when every run has been observed; `None` if they are not.
    pub(super) fn since(&self) -> Option<BootNs> {
        self.since
    }

    /// When the period began that started before `from` and lasted until `until`, or still lasts; `None` if there is
    /// none.
    pub(super) fn over(&self, from: BootNs, until: BootNs) -> Option<BootNs> {
        let present = self.since.filter(|since| *since < from);
        let past = || self.past.iter().find(|(since, end)| *since < from && until <= *end);
        present.or_else(|| past().map(|(since, _)| *since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn at(seconds: u64) -> BootNs {
        BootNs(seconds * S)
    }

    #[test]
    fn what_ended_before_a_loss_was_seen_whole() {
        let mut seen = Seen::default();
        assert_eq!(seen.over(at(0), at(1)), None);
        seen.set(true, at(1));
        assert_eq!(seen.over(at(1), at(2)), None, "it may have begun before");
        assert_eq!(seen.over(at(2), at(900)), Some(at(1)), "it lasts");
        seen.lost(at(100));
        assert_eq!(seen.over(at(2), at(98)), Some(at(1)));
        assert_eq!(seen.over(at(2), at(99)), None, "it is noticed late");
        assert_eq!(seen.over(at(101), at(102)), Some(at(100)));
        seen.set(false, at(200));
        assert_eq!(seen.over(at(101), at(198)), Some(at(100)));
        assert_eq!((seen.since(), seen.over(at(199), at(199))), (None, None));
        seen.lost(at(201));
        assert_eq!(seen.since(), None, "none are seen");
    }

    #[test]
    fn losses_without_end_take_no_memory() {
        let mut seen = Seen::default();
        seen.set(true, at(0));
        for n in 1..1_000 {
            seen.lost(at(n * 10));
        }
        assert_eq!(seen.past.len(), MOST);
        assert_eq!(seen.over(at(9_981), at(9_988)), Some(at(9_980)));
        assert_eq!(seen.over(at(9_821), at(9_828)), None);
    }
}
