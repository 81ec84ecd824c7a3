//! The ranges of networks, and how much of each is taken. A pod takes one IP from each set, so the set with the fewest
//! free IPs decides. How fast they grow: [`rate`](super::rate).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::fact::{BootNs, Range, RangePart};

use super::blocks::{Blocks, Known, is_within};
use super::demand::Growth;
use super::rate::{Sample, Samples};
use super::stores::{is_by_blocks, is_freed_by_cni, is_of_the_cluster};
use crate::map::workload::PodRoom;
use crate::map::{NodeMap, ReservationEntry};

/// Maximum number of ranges. A node has a few networks.
const MOST: usize = 1024;
/// Interval between two samples of the number of taken IPs.
const SAMPLE: u64 = 10_000_000_000;

/// Time left below which a range is low, in ns.
const SOON: u64 = 3_600_000_000_000;
/// Time left below which a range counts as exhausted, in ns.
const AT_ONCE: u64 = 1_800_000_000_000;

/// How close a range is to exhaustion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Level {
    #[default]
    Enough,
    /// Few IPs are left, or will be soon.
    Low,
    /// None is left, or will be very soon.
    Out,
}

#[derive(Debug, Clone)]
pub struct RangeEntry {
    /// What the network can hand out.
    pub range: Range,
    /// When it was last reported.
    pub told: BootNs,
    /// Number of reserved IPs of each set.
    used: Vec<u64>,
    /// Number of its blocks with an unknown number of taken IPs.
    pub(super) unknown: usize,
    /// IPs whose reservations are leaks, and the number of reservations of each.
    pub(super) leaked: BTreeMap<IpAddr, u32>,
    samples: Samples,
    pub(super) growth: Growth,
    /// How many more IPs this node's pods may need at most, if that is known.
    demand: Option<u64>,
    /// The level, with hysteresis, and since when it has not been `Enough`.
    level: Level,
    low: Option<BootNs>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Number of pods that it has room for.
    pub usable: u64,
    /// Number of taken IPs in its tightest set.
    pub used: u64,
    /// Number of pods that can still be started.
    pub free: u64,
}

impl RangeEntry {
    /// The usage of the set with the fewest free IPs.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let sets = self.range.sets.iter().zip(&self.used).map(|(parts, used)| {
            let usable = usable(parts);
            Usage { usable, used: *used, free: usable.saturating_sub(*used) }
        });
        let tightest = sets.min_by_key(|set| (set.free, set.usable));
        let none = Usage { usable: 0, used: 0, free: 0 };
        let most = self.range.sets.iter().map(|parts| usable(parts)).min();
        tightest.map_or(none, |set| Usage { usable: most.unwrap_or(set.usable), ..set })
    }

    /// Each set: its parts, and the number of its IPs that are not reserved.
    pub(in crate::map) fn sets(&self) -> impl Iterator<Item = (&[RangePart], u64)> {
        let sets = self.range.sets.iter().zip(&self.used);
        sets.map(|(parts, used)| (&**parts, usable(parts).saturating_sub(*used)))
    }

    /// Whether a reservation is of this range's network, or of another network that shares its IPs with it.
    #[must_use]
    pub fn is_of(&self, entry: &ReservationEntry) -> bool {
        if self.range.store != *entry.store {
            return false;
        }
        match &self.range.data_dir {
            Some(_) => self.has_file(&entry.key),
            // A request for an IP names no pool.
            None if self.is_by_blocks() => self.contains(entry.ip),
            None if self.range.network == *entry.network => true,
            None => {
                self.range.shares
                    && self.contains(entry.ip)
                    && space(&self.range.network) == space(&entry.network)
            }
        }
    }

    /// Whether the range is the whole cluster's rather than this node's.
    #[must_use]
    pub fn is_of_the_cluster(&self) -> bool {
        is_of_the_cluster(&self.range.store)
    }

    /// Whether only the number of other nodes' reservations is known: see [`blocks`](super::blocks).
    #[must_use]
    pub fn is_by_blocks(&self) -> bool {
        is_by_blocks(&self.range.store)
    }

    /// Whether a file is in the directory of the network's reservations.
    fn has_file(&self, path: &str) -> bool {
        self.range.data_dir.as_deref().is_some_and(|dir| {
            let rest = path.strip_prefix(dir.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.starts_with('/'))
        })
    }

    /// Whether a reservation's IP is from this range.
    pub(in crate::map) fn hands_out(&self, entry: &ReservationEntry) -> bool {
        self.is_of(entry) && self.contains(entry.ip)
    }

    /// Whether the range includes this IP.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.range.sets.iter().flatten().any(|part| part.contains(ip))
    }

    /// Time until no IP is left at the rate of the last minutes, or at which IPs leak, in ns.
    #[must_use]
    pub fn time_left(&self, now: BootNs) -> Option<u64> {
        let (free, now) = (self.usage().free, self.sample(now));
        let leaks = self.samples.leak_rate(now);
        // Growth ends when the node has as many pods as it may have; leaks do not.
        let pods = self.samples.rate(now).filter(|_| self.demand.is_none_or(|most| most > free));
        [leaks, pods].into_iter().flatten().map(|rate| rate.time_for(free)).min()
    }

    fn sample(&self, at: BootNs) -> Sample {
        Sample { at, used: self.usage().used, leaked: self.leaked.len() as u64 }
    }

    /// How many more IPs pods may need, if one IP of the range for each pod explains all that are taken. A pod may have
    /// several, and leaks and what others take need no pod.
    fn demand_of(&self, room: Option<PodRoom>) -> Option<u64> {
        let is_pods = is_freed_by_cni(&self.range.store) && !self.is_of_the_cluster();
        let room = room.filter(|room| is_pods && self.usage().used <= room.here)?;
        Some(room.to_come)
    }

    /// When its samples begin.
    pub(super) fn sampled_since(&self) -> Option<BootNs> {
        self.samples.since()
    }

    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }

    /// What its level would be with `freed` more free IPs, and if `lately` fewer had been taken since its samples begin.
    pub(super) fn level_without(&self, freed: u64, lately: u64, now: BootNs) -> Level {
        let Usage { usable, used, free } = self.usage();
        let usage = Usage {
            usable,
            used: used.saturating_sub(freed),
            free: free.saturating_add(freed).min(usable),
        };
        let rate = self.samples.rate(self.sample(now)).and_then(|rate| rate.without(lately));
        level(usage, rate.map(|rate| rate.time_for(usage.free)), Level::Enough)
    }

    /// Since when the level has not been [`Level::Enough`].
    #[must_use]
    pub fn low_since(&self) -> Option<BootNs> {
        self.low
    }

    /// The range as text: `10.0.0.2-10.0.0.254`; sets are separated by `; `, the parts of a set by `, `.
    #[must_use]
    pub fn text(&self) -> String {
        let part = |part: &RangePart| format!("{}-{}", part.first, part.last);
        let set =
            |parts: &Vec<RangePart>| parts.iter().map(part).collect::<Vec<String>>().join(", ");
        self.range.sets.iter().map(set).collect::<Vec<String>>().join("; ")
    }

    fn sets_of(&self, ip: IpAddr) -> impl Iterator<Item = usize> {
        let within = move |parts: &Vec<RangePart>| parts.iter().any(|part| part.contains(ip));
        let sets = self.range.sets.iter().enumerate();
        sets.filter(move |(_, parts)| within(parts)).map(|(set, _)| set)
    }
}

/// The networks of a store that share their IPs: for a Whereabouts pool, its name without the range: `net-` of
/// `net-10.0.0.0-27` (whereabouts 0.8, pkg/storage/kubernetes/ipam.go, `IPPoolName`). An ambiguous name is read so that
/// it shares less.
fn space(network: &str) -> &str {
    let is_range = |text: &str| {
        text.rsplit_once('-').is_some_and(|(first, length)| {
            length.parse::<u8>().is_ok() && first.replace('-', ":").parse::<IpAddr>().is_ok()
        })
    };
    let after = |(at, _)| at + 1;
    let mut starts = network.rmatch_indices('-').map(after).chain([0]);
    let start = starts.find(|at| is_range(&network[*at..]));
    &network[..start.unwrap_or(network.len())]
}

/// The level of a range. A level is left only if usage falls by more than the margin, so that a pod that comes and goes
/// does not change it.
fn level(usage: Usage, left: Option<u64>, before: Level) -> Level {
    let Usage { usable, free, .. } = usage;
    // One IP for one container is a fixed address, meant to be taken.
    if usable <= 1 {
        return Level::Enough;
    }
    let within = |most: u64, level: Level| {
        let step = if before >= level { (most / 4).max(1) } else { 0 };
        // A range without any taken IP is never low.
        free <= most || free <= (most + step).min(usable - 1)
    };
    // Growth in a range that is half empty is a rollout, and a range with enough IPs left is no emergency.
    let soon = |limit: u64, share: u64, level: Level| {
        let limit = if before >= level { limit + limit / 4 } else { limit };
        within(usable / share, level) && left.is_some_and(|left| left < limit)
    };
    if within(0, Level::Out) || soon(AT_ONCE, 4, Level::Out) {
        return Level::Out;
    }
    // A tenth; for small ranges two, or half of the range.
    let little = (usable / 10).max((usable / 2).min(2));
    if within(little, Level::Low) || soon(SOON, 2, Level::Low) { Level::Low } else { Level::Enough }
}

/// Number of IPs in the parts of a set together. Overlapping parts hand out an IP once.
pub(in crate::map) fn usable(parts: &[RangePart]) -> u64 {
    let mut spans: Vec<&RangePart> = parts.iter().collect();
    spans.sort_by_key(|part| (part.first, part.last));
    let apart = spans.windows(2).all(|pair| pair[0].last < pair[1].first);
    if apart {
        return parts.iter().fold(0, |sum, part| sum.saturating_add(part.usable()));
    }
    merged(&spans).iter().fold(0, |sum, part| sum.saturating_add(part.usable()))
}

/// Merges overlapping parts. An IP that one part excludes and another includes is handed out.
fn merged(sorted: &[&RangePart]) -> Vec<RangePart> {
    let mut whole: Vec<RangePart> = Vec::new();
    for part in sorted {
        match whole.last_mut() {
            Some(last) if part.first <= last.last => {
                let all: Vec<IpAddr> = last.except.iter().chain(&part.except).copied().collect();
                let (one, other) = (last.clone(), *part);
                last.last = last.last.max(part.last);
                last.except = all
                    .into_iter()
                    .filter(|ip| !one.contains(*ip) && !other.contains(*ip))
                    .collect();
                last.except.sort_unstable();
                last.except.dedup();
            }
            _ => whole.push((*part).clone()),
        }
    }
    whole
}

fn change(used: &mut [u64], by: impl Fn(u64) -> u64) {
    used.iter_mut().for_each(|used| *used = by(*used));
}

#[derive(Debug, Default)]
pub(in crate::map) struct Ranges {
    all: BTreeMap<(String, String, String), RangeEntry>,
    sampled: BootNs,
}

impl Ranges {
    /// A reservation was added; `others` are the existing ones of the same IP.
    pub(in crate::map) fn came<'a>(
        &mut self,
        entry: &ReservationEntry,
        others: impl Iterator<Item = &'a ReservationEntry> + Clone,
    ) {
        self.count(entry, others, |used| *used += 1);
    }

    /// A reservation was removed; `others` are the remaining ones of the same IP.
    pub(in crate::map) fn went<'a>(
        &mut self,
        entry: &ReservationEntry,
        others: impl Iterator<Item = &'a ReservationEntry> + Clone,
    ) {
        self.count(entry, others, |used| *used = used.saturating_sub(1));
    }

    pub(in crate::map) fn leaked(&mut self, entry: &ReservationEntry) {
        for range in self.all.values_mut().filter(|range| range.hands_out(entry)) {
            *range.leaked.entry(entry.ip).or_default() += 1;
        }
    }

    pub(in crate::map) fn unleaked(&mut self, entry: &ReservationEntry) {
        for range in self.all.values_mut().filter(|range| range.hands_out(entry)) {
            let Some(count) = range.leaked.get_mut(&entry.ip) else { continue };
            *count = count.saturating_sub(1);
            if *count == 0 {
                range.leaked.remove(&entry.ip);
            }
        }
    }

    /// Counts an IP that two keys reserve only once.
    fn count<'a>(
        &mut self,
        entry: &ReservationEntry,
        others: impl Iterator<Item = &'a ReservationEntry> + Clone,
        change: impl Fn(&mut u64),
    ) {
        for range in self.all.values_mut() {
            // Ranges by blocks are counted from the blocks.
            if range.is_by_blocks()
                || !range.is_of(entry)
                || others.clone().any(|other| range.is_of(other))
            {
                continue;
            }
            let sets: Vec<usize> = range.sets_of(entry.ip).collect();
            for set in sets {
                if let Some(used) = range.used.get_mut(set) {
                    change(used);
                }
            }
        }
    }

    /// A block changed from `before` to `now`.
    pub(in crate::map) fn block_is(
        &mut self,
        store: &str,
        before: Option<Known>,
        now: Option<Known>,
    ) {
        for range in self.all.values_mut().filter(|range| range.range.store == store) {
            if let Some(before) = before.filter(|known| is_within(&range.range, known)) {
                range.unknown -= usize::from(before.taken.is_none());
                change(&mut range.used, |used| {
                    used.saturating_sub(before.taken.unwrap_or(0).into())
                });
            }
            if let Some(now) = now.filter(|known| is_within(&range.range, known)) {
                range.unknown += usize::from(now.taken.is_none());
                change(&mut range.used, |used| used.saturating_add(now.taken.unwrap_or(0).into()));
            }
        }
    }

    /// Takes a sample if one is due. Returns whether the level of any range has changed. What the stores in `unlisted`
    /// reserve is not known: that it becomes known is no growth.
    pub(in crate::map) fn sample(
        &mut self,
        now: BootNs,
        blocks: &Blocks,
        unlisted: &BTreeSet<String>,
        room: Option<PodRoom>,
    ) -> bool {
        let mut changed = false;
        for range in self.all.values_mut() {
            range.demand = range.demand_of(room);
            if !blocks.counts(range) {
                // After a gap the missing part arrives all at once: that is no growth.
                range.samples.clear();
                continue;
            }
            if unlisted.contains(&range.range.store) {
                range.samples.clear();
            } else {
                range.samples.forget(now);
                range.growth.is(range.usage().used, now);
            }
            let level = level(range.usage(), range.time_left(now), range.level);
            changed |= std::mem::replace(&mut range.level, level) != level;
            let low = range.level > Level::Enough;
            range.low = low.then(|| range.low.unwrap_or(now));
        }
        if now.since(self.sampled) < SAMPLE {
            return changed;
        }
        self.sampled = now;
        let counted = |range: &&mut RangeEntry| {
            blocks.counts(range) && !unlisted.contains(&range.range.store)
        };
        for range in self.all.values_mut().filter(counted) {
            range.samples.push(range.sample(now));
        }
        changed
    }
}

impl NodeMap {
    pub(in crate::map) fn set_range(&mut self, range: &Range, at: BootNs) {
        let key = (range.store.clone(), range.network.clone(), range.path.clone());
        if let Some(known) = self.ipam.ranges.all.get_mut(&key) {
            if known.told > at {
                return;
            }
            known.told = at;
            if known.range == *range {
                return;
            }
        } else if self.ipam.ranges.all.len() >= MOST {
            return;
        }
        let mut entry = RangeEntry {
            range: range.clone(),
            told: at,
            used: Vec::new(),
            unknown: 0,
            leaked: BTreeMap::new(),
            samples: Samples::default(),
            growth: Growth::default(),
            demand: None,
            level: Level::Enough,
            low: None,
        };
        entry.used = range.sets.iter().map(|parts| self.used_of(&entry, parts)).collect();
        if entry.is_by_blocks() {
            let own = self.ipam.blocks.of(&range.store).filter(|known| is_within(range, known));
            entry.unknown = own.filter(|known| known.taken.is_none()).count();
        }
        entry.leaked = self.leaked_of(&entry);
        self.ipam.ranges.all.insert(key, entry);
        self.ipam.touch_all();
    }

    /// Number of reserved IPs of a set.
    fn used_of(&self, range: &RangeEntry, parts: &[RangePart]) -> u64 {
        if range.is_by_blocks() {
            let within = |first| parts.iter().any(|part| part.contains(first));
            let own = self.ipam.blocks.of(&range.range.store);
            let own = own.filter(|known| known.first.is_some_and(within));
            return own.filter_map(|known| known.taken).map(u64::from).sum();
        }
        let mut ips: Vec<IpAddr> = Vec::new();
        for part in parts {
            let taken = self.ipam.within(part.first, part.last);
            let taken = taken.filter(|(_, entry)| part.contains(entry.ip) && range.is_of(entry));
            ips.extend(taken.map(|(_, entry)| entry.ip));
        }
        let torn = self.unreadable().map(|entry| &entry.file);
        let torn =
            torn.filter(|file| file.store == range.range.store && range.has_file(&file.path));
        let torn = torn.filter_map(|file| file.takes);
        ips.extend(torn.filter(|ip| parts.iter().any(|part| part.contains(*ip))));
        ips.sort_unstable();
        ips.dedup();
        ips.len() as u64
    }

    /// Counts the ranges of an IP again, after a file that takes it became unreadable, or readable.
    pub(in crate::map) fn recount_ranges(&mut self, ip: IpAddr) {
        let all = self.ipam.ranges.all.iter().filter(|(_, range)| range.contains(ip));
        let counted: Vec<_> = all
            .map(|(key, range)| {
                let sets = range.range.sets.iter();
                (key.clone(), sets.map(|parts| self.used_of(range, parts)).collect())
            })
            .collect();
        for (key, used) in counted {
            if let Some(range) = self.ipam.ranges.all.get_mut(&key) {
                range.used = used;
            }
        }
    }

    pub(in crate::map) fn sweep_ranges(&mut self, store: &str, began: BootNs) {
        self.ipam.ranges.all.retain(|(own, ..), entry| own != store || entry.told >= began);
    }

    pub fn ranges(&self) -> impl Iterator<Item = &RangeEntry> {
        self.ipam.ranges.all.values()
    }

    /// The range that a reservation is from: its own network's first.
    #[must_use]
    pub fn range_of(&self, entry: &ReservationEntry) -> Option<&RangeEntry> {
        let of = || self.ranges().filter(|range| range.hands_out(entry));
        of().find(|range| range.range.network == *entry.network).or_else(|| of().next())
    }

    /// Reservations that a range has handed out, in IP order.
    pub fn reserved_in<'a>(
        &'a self,
        range: &'a RangeEntry,
    ) -> impl Iterator<Item = &'a ReservationEntry> {
        let parts = range.range.sets.iter().flatten();
        let taken = parts.flat_map(|part| {
            let within = self.ipam.within(part.first, part.last);
            within.filter(|(_, entry)| part.contains(entry.ip))
        });
        taken.map(|(_, entry)| entry).filter(|entry| range.is_of(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000_000;

    fn usage(usable: u64, free: u64) -> Usage {
        Usage { usable, used: usable - free, free }
    }

    #[test]
    fn what_is_left_decides() {
        let minutes = |n: u64| Some(n * MINUTE);
        for (usage, left, expected) in [
            (usage(253, 253), None, Level::Enough),
            (usage(253, 26), None, Level::Enough),
            (usage(253, 25), None, Level::Low),
            (usage(253, 0), None, Level::Out),
            (usage(5, 3), None, Level::Enough),
            (usage(5, 2), None, Level::Low),
            (usage(2, 1), None, Level::Low),
            (usage(2, 0), None, Level::Out),
            (usage(253, 200), minutes(5), Level::Enough),
            (usage(253, 100), minutes(61), Level::Enough),
            (usage(253, 100), minutes(59), Level::Low),
            (usage(253, 0), minutes(5), Level::Out),
        ] {
            assert_eq!(level(usage, left, Level::Enough), expected, "{usage:?} {left:?}");
        }
    }

    #[test]
    fn pools_of_one_network_name_share() {
        for (network, expected) in [
            ("10.0.0.0-27", ""),
            ("net-10.0.0.0-27", "net-"),
            ("my-net-10.0.0.0-27", "my-net-"),
            ("fd00---64", ""),
            ("net-fd00---64", "net-"),
            ("ab-fd00---64", "ab-"),
            ("fd00-1---64", "fd00-"),
            ("net-fd00-1-2-3-4-5-6-7-64", "net-"),
            ("podman", "podman"),
            ("a-b", "a-b"),
            ("", ""),
        ] {
            assert_eq!(space(network), expected, "{network}");
        }
    }

    #[test]
    fn one_ip_for_one_container_is_meant_to_be_taken() {
        for usage in [usage(1, 0), usage(1, 1), usage(0, 0)] {
            assert_eq!(level(usage, Some(1), Level::Enough), Level::Enough, "{usage:?}");
        }
    }

    #[test]
    fn growth_alone_is_no_emergency_while_a_quarter_is_left() {
        // 140 pods of a /24 within some minutes.
        assert_eq!(level(usage(253, 113), Some(17 * MINUTE), Level::Enough), Level::Low);
        assert_eq!(level(usage(253, 64), Some(17 * MINUTE), Level::Enough), Level::Low);
        assert_eq!(level(usage(253, 63), Some(17 * MINUTE), Level::Enough), Level::Out);
    }

    #[test]
    fn a_pod_that_comes_and_goes_is_no_news() {
        assert_eq!(level(usage(5, 3), None, Level::Low), Level::Low);
        assert_eq!(level(usage(5, 4), None, Level::Low), Level::Enough);
        assert_eq!(level(usage(253, 31), None, Level::Low), Level::Low);
        assert_eq!(level(usage(253, 32), None, Level::Low), Level::Enough);
        assert_eq!(level(usage(253, 1), None, Level::Out), Level::Out);
        assert_eq!(level(usage(253, 2), None, Level::Out), Level::Low);
        assert_eq!(level(usage(2, 2), None, Level::Low), Level::Enough, "nothing is taken");
        assert_eq!(level(usage(253, 100), Some(70 * MINUTE), Level::Low), Level::Low);
    }
}
