//! Whether more IPs of a range are needed than it has. A range may be full on purpose: a network of Docker with as many
//! IPs as containers, or a pool with one IP for each replica.

use std::net::IpAddr;

use crate::fact::{BootNs, CniCommand, store};

use super::ranges::Level;
use super::stores::is_freed_by_cni;
use crate::map::{NodeMap, RangeEntry};

/// How long growth counts. The usage before is known for as long at least, see [`Growth`].
const LATELY: u64 = 3_600_000_000_000;
/// A network with at most this many IPs is sized for its containers.
const SMALL: u64 = 16;

/// Whether the usage of a range has exceeded what it was in the last hours. A pod that is replaced is no growth.
#[derive(Debug, Clone, Default)]
pub(super) struct Growth {
    /// When the usage was first known.
    since: Option<BootNs>,
    /// The highest usage of this hour and of the hour before.
    highest: [u64; 2],
    /// When this hour began.
    began: BootNs,
    /// When the usage last exceeded both.
    grown: Option<BootNs>,
}

impl Growth {
    pub(super) fn is(&mut self, used: u64, now: BootNs) {
        if self.since.is_none() {
            *self = Self { since: Some(now), highest: [used, used], began: now, grown: None };
            return;
        }
        if now.since(self.began) >= LATELY {
            self.highest = [used, self.highest[0]];
            self.began = now;
        }
        if used > self.highest[0].max(self.highest[1]) {
            self.grown = Some(now);
        }
        self.highest[0] = self.highest[0].max(used);
    }

    /// What is unknown of the past is not included.
    fn is_recent(&self, now: BootNs) -> bool {
        self.grown.is_some_and(|grown| now.since(grown) < LATELY)
    }

    fn covers(&self, now: BootNs) -> bool {
        self.since.is_some_and(|since| now.since(since) >= LATELY)
    }
}

impl RangeEntry {
    /// Whether it belongs to a network that was made for certain containers.
    #[must_use]
    pub fn is_small(&self) -> bool {
        self.usage().usable <= SMALL
    }
}

impl NodeMap {
    /// Whether the IPs of a range may not suffice: its usage has grown within the last hour, the IPAM plugin has failed an
    /// ADD, or IPs of it are leaked, or up without a reservation. It is also assumed where this cannot be known: if runs of
    /// plugins are not seen, if no runtime can judge what is leaked, or if other nodes take IPs of it.
    #[must_use]
    pub fn is_wanted(&self, range: &RangeEntry, leaked: usize, now: BootNs) -> bool {
        range.level() > Level::Enough
            && (leaked > 0
                || range.is_of_the_cluster()
                || (is_freed_by_cni(&range.range.store)
                    && !(self.sight().calls && self.runtimes_judge()))
                || self.has_grown(range, now)
                || self.has_refused(range)
                || self.held_in(range).0 > 0)
    }

    /// No kubelet starts containers in a network of Docker or netavark: whoever fills it chose its size.
    fn has_grown(&self, range: &RangeEntry, now: BootNs) -> bool {
        if !is_freed_by_cni(&range.range.store) {
            return false;
        }
        // It may have been as full before: that it fills again is growth. While the usage was not observed for long
        // enough, the newest reservation counts.
        range.growth.is_recent(now)
            || range.time_left(now).is_some()
            || (!range.growth.covers(now)
                && self
                    .reserved_in(range)
                    .filter(|entry| entry.since.is_some() || !entry.preexisting)
                    .any(|entry| now.since(self.made(entry)) < LATELY))
    }

    /// Whether the IPAM plugin of the range's store has failed an ADD lately. Runs are kept for some minutes, and
    /// kubelet repeats an ADD that failed.
    fn has_refused(&self, range: &RangeEntry) -> bool {
        let plugin = match &*range.range.store {
            store::CALICO => "calico-ipam",
            store => store,
        };
        self.calls().any(|run| {
            run.call.command == CniCommand::Add
                && run.call.plugin.rsplit('/').next() == Some(plugin)
                && run.ended.is_some_and(|end| end.failed())
                && range.low_since().is_some_and(|low| run.began >= low)
        })
    }

    /// Whether IPs of a range that are now leaked were taken before it became low, and it would not be as low without
    /// them, also by its rate: what living pods take goes on without the leaks.
    #[must_use]
    pub fn is_low_by_leaks(
        &self,
        range: &RangeEntry,
        leaked: &super::Leaked<'_>,
        now: BootNs,
    ) -> bool {
        let Some(low) = range.low_since() else { return false };
        let made = |ip: IpAddr| {
            let own = self.reservations_of(ip).filter(|entry| range.is_of(entry));
            own.map(|entry| self.made(entry)).min()
        };
        let sampled = range.sampled_since();
        let (mut old, mut lately) = (0, 0);
        for made in leaked.iter().filter_map(made) {
            old += u64::from(made <= low);
            lately += u64::from(sampled.is_some_and(|since| made > since));
        }
        old > 0 && range.level_without(old, lately, now) < range.level()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000_000;

    fn grown_at(used: &[(u64, u64)]) -> Option<u64> {
        let mut growth = Growth::default();
        used.iter().for_each(|(minute, used)| growth.is(*used, BootNs(minute * MINUTE)));
        growth.grown.map(|grown| grown.0 / MINUTE)
    }

    #[test]
    fn what_was_used_within_the_last_hours_is_no_growth() {
        assert_eq!(grown_at(&[(0, 5)]), None, "what was before is unknown");
        assert_eq!(grown_at(&[(0, 5), (10, 6)]), Some(10));
        assert_eq!(grown_at(&[(0, 5), (10, 4), (11, 5)]), None, "a container is replaced");
        assert_eq!(grown_at(&[(0, 5), (50, 4), (61, 4), (115, 5)]), None, "an hour ago");
        assert_eq!(grown_at(&[(0, 5), (1, 0), (61, 0), (121, 0), (125, 5)]), Some(125));
    }
}
