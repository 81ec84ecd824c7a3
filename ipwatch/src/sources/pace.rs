//! How fast a source reads on while events keep coming.
//!
//! Events are read at once, also the thousand that a node makes when all its pods start. While they keep coming, each
//! read would find one event, and each read costs a wake-up, a batch of facts and a step of the engine, far more than
//! the event itself. So a source that has read a thousand times lets events gather for a millisecond before it reads
//! again, until there has been less to read.

use std::time::Duration;

use crate::clock;
use crate::fact::BootNs;

/// Reads without a pause: a pod that starts makes some twenty events. An address must be reported before a dump shows
/// it, or it is not known to be new.
const AT_ONCE: u32 = 1024;
/// In ns: after this time one more read is without a pause.
const REGAINED: u64 = 10_000_000;
/// Between two reads of a burst. The timer of tokio has a resolution of a millisecond.
const PAUSE: Duration = Duration::from_millis(1);

/// Decides about the pauses of one reader.
#[derive(Debug)]
pub(crate) struct Pace {
    left: u32,
    since: BootNs,
}

impl Pace {
    pub(crate) fn new(now: BootNs) -> Self {
        Self { left: AT_ONCE, since: now }
    }

    /// Called after a read that left nothing. Waits if there were too many within a short time.
    pub(crate) async fn after_read(&mut self) {
        if let Some(pause) = self.pause(clock::now()) {
            tokio::time::sleep(pause).await;
        }
    }

    fn pause(&mut self, now: BootNs) -> Option<Duration> {
        let regained = now.since(self.since) / REGAINED;
        if regained > 0 {
            let regained = u32::try_from(regained).unwrap_or(u32::MAX);
            self.left = self.left.saturating_add(regained).min(AT_ONCE);
            self.since = now;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                None
            }
            None => Some(PAUSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn single_events_never_wait() {
        let mut pace = Pace::new(BootNs(MS));
        for n in 0..100 {
            assert_eq!(pace.pause(BootNs(MS + n * REGAINED)), None, "{n}");
        }
    }

    #[test]
    fn a_burst_is_gathered_and_a_quiet_while_ends_that() {
        let mut pace = Pace::new(BootNs(MS));
        let pauses = |pace: &mut Pace, from: u64| {
            let pauses = (0..u64::from(2 * AT_ONCE)).map(|n| pace.pause(BootNs(from + n * 1_000)));
            pauses.map(|pause| pause.is_some()).collect::<Vec<bool>>()
        };
        let burst: Vec<bool> = (0..2 * AT_ONCE).map(|n| n >= AT_ONCE).collect();
        assert_eq!(pauses(&mut pace, MS), burst);
        assert_eq!(pauses(&mut pace, 100_000 * MS), burst);
    }

    #[test]
    fn a_burst_that_does_not_end_is_read_at_once_a_hundred_times_a_second_at_most() {
        let mut pace = Pace::new(BootNs(0));
        let at_once = (0..10_000).filter(|n| pace.pause(BootNs(n * MS / 10)).is_none()).count();
        let most = 100 + AT_ONCE as usize;
        assert!((most - 1..=most).contains(&at_once), "{at_once}");
    }
}
