//! How many messages about one netns a socket passes on.
//!
//! Anybody may have netns and change them as fast as the kernel can. Reading a message costs little, and what the map
//! makes of it costs much more. So a netns that floods is paused: what is over its budget is dropped, the netns counts
//! as incomplete ([`Observation::LostIn`](crate::fact::What::LostIn)), and is read again at a pace of its own
//! (`map/kernel/incomplete.rs`). The host's netns has no budget. Where the kernel half reports events it has a budget
//! too (`ipwatch-ebpf/src/limit.rs`), which is smaller.

use std::collections::HashMap;

use crate::fact::BootNs;

const SECOND: u64 = 1_000_000_000;
/// Messages a second after that.
const RATE: u64 = 2_000;
/// Between two reports about one netns, in ns.
const APART: u64 = SECOND / 2;
/// Number of netns with a bucket. A netns without one may send what it likes: a socket that overruns is read again.
const MOST: usize = 4_096;

/// The buckets of one socket, by nsid.
#[derive(Debug)]
pub(super) struct Budgets {
    /// Messages at once.
    burst: u64,
    buckets: HashMap<i32, Bucket>,
    /// The buckets with dropped messages that were not reported.
    waiting: Vec<i32>,
    /// When buckets were last removed.
    swept: BootNs,
}

#[derive(Debug)]
struct Bucket {
    left: u64,
    filled: BootNs,
    /// Dropped since the last report, and when to report it.
    dropped: u64,
    due: BootNs,
}

impl Budgets {
    pub(super) fn new(burst: u64) -> Self {
        Self { burst, buckets: HashMap::new(), waiting: Vec::new(), swept: BootNs::default() }
    }

    /// Whether a message about this netns is passed on.
    pub(super) fn take(&mut self, nsid: i32, now: BootNs) -> bool {
        if !self.buckets.contains_key(&nsid) && !self.has_room(now) {
            return true;
        }
        let burst = self.burst;
        let new = || Bucket { left: burst, filled: now, dropped: 0, due: now };
        let bucket = self.buckets.entry(nsid).or_insert_with(new);
        bucket.fill(now, burst);
        if let Some(left) = bucket.left.checked_sub(1) {
            bucket.left = left;
            return true;
        }
        if bucket.dropped == 0 {
            self.waiting.push(nsid);
        }
        bucket.dropped += 1;
        false
    }

    /// The netns with this nsid has ended; the next one that has it is another.
    pub(super) fn ended(&mut self, nsid: i32) {
        self.buckets.remove(&nsid);
        self.waiting.retain(|waiting| *waiting != nsid);
    }

    /// When dropped messages must be reported.
    pub(super) fn due(&self) -> Option<BootNs> {
        self.waiting.iter().filter_map(|nsid| self.buckets.get(nsid)).map(|one| one.due).min()
    }

    /// The netns about which messages were dropped, and how many. The first are reported at once, the next after a
    /// pause, the last ones after the flood.
    pub(super) fn dropped(&mut self, now: BootNs) -> Vec<(i32, u64)> {
        let mut told = Vec::new();
        let buckets = &mut self.buckets;
        self.waiting.retain(|nsid| {
            let Some(bucket) = buckets.get_mut(nsid) else { return false };
            if bucket.due > now {
                return true;
            }
            told.push((*nsid, std::mem::take(&mut bucket.dropped)));
            bucket.due = now.plus(APART);
            false
        });
        told
    }

    /// Whether there is room for one more bucket, if need be without those that are full again. Of those who have too many
    /// netns each message asks, so that all buckets are looked at only now and then.
    fn has_room(&mut self, now: BootNs) -> bool {
        if self.buckets.len() >= MOST && now.since(self.swept) >= APART {
            self.swept = now;
            let burst = self.burst;
            self.buckets.retain(|_, bucket| {
                bucket.fill(now, burst);
                bucket.left < burst || bucket.dropped > 0
            });
        }
        self.buckets.len() < MOST
    }
}

impl Bucket {
    fn fill(&mut self, now: BootNs, burst: u64) {
        let regained = now.since(self.filled).saturating_mul(RATE) / SECOND;
        if regained > 0 {
            self.left = self.left.saturating_add(regained).min(burst);
            self.filled = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BURST: u64 = 4_000;

    fn at(ms: u64) -> BootNs {
        BootNs(ms * 1_000_000)
    }

    fn passed(budgets: &mut Budgets, nsid: i32, count: u64, now: BootNs) -> u64 {
        (0..count).filter(|_| budgets.take(nsid, now)).count() as u64
    }

    #[test]
    fn one_that_floods_is_paused_and_another_is_not() {
        let mut budgets = Budgets::new(BURST);
        assert_eq!(passed(&mut budgets, 7, BURST + 500, at(1_000)), BURST);
        assert_eq!(passed(&mut budgets, 8, 100, at(1_000)), 100);
        assert_eq!(passed(&mut budgets, 7, 3 * RATE, at(2_000)), RATE, "a second later");
        assert_eq!(passed(&mut budgets, 7, 2 * BURST, at(60_000)), BURST, "and when it was calm");
    }

    #[test]
    fn what_was_dropped_is_told_at_once_then_after_a_pause_and_at_the_end() {
        let mut budgets = Budgets::new(BURST);
        assert_eq!(budgets.due(), None);
        passed(&mut budgets, 7, BURST + 3, at(1_000));
        assert_eq!(budgets.due(), Some(at(1_000)));
        assert_eq!(budgets.dropped(at(1_000)), [(7, 3)]);
        assert_eq!((budgets.due(), budgets.dropped(at(1_001))), (None, vec![]));
        assert!(!budgets.take(7, at(1_000)));
        assert_eq!((budgets.due(), budgets.dropped(at(1_100))), (Some(at(1_500)), vec![]));
        assert_eq!(budgets.dropped(at(1_500)), [(7, 1)], "the flood is over");
        assert_eq!(budgets.due(), None);
    }

    #[test]
    fn the_next_netns_with_an_nsid_has_a_budget_of_its_own() {
        let mut budgets = Budgets::new(BURST);
        passed(&mut budgets, 7, BURST + 3, at(1_000));
        budgets.ended(7);
        assert_eq!((budgets.due(), budgets.dropped(at(2_000))), (None, vec![]));
        assert_eq!(passed(&mut budgets, 7, BURST, at(1_000)), BURST);
    }

    #[test]
    fn many_netns_take_no_more_room_than_there_is() {
        let mut budgets = Budgets::new(BURST);
        for nsid in 0..3 * MOST as i32 {
            assert!(budgets.take(nsid, at(1_000)));
        }
        assert_eq!((budgets.buckets.len(), budgets.swept), (MOST, at(1_000)));
        assert!(budgets.take(-2, at(1_001)));
        assert_eq!(budgets.swept, at(1_000), "not at each message");
        assert!(budgets.take(-1, at(3_000)));
        assert_eq!(budgets.buckets.len(), 1, "the others are full again");
    }
}
