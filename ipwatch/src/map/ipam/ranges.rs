//! What the networks can hand out, and how much of it is taken. A pod takes one IP from each set, so the
//! tightest set decides.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use crate::fact::{BootNs, Range, RangePart};

use super::blocks::{Blocks, Known, is_within};
use super::stores::{is_by_blocks, is_of_the_cluster};
use crate::map::{NodeMap, ReservationEntry};

/// Ranges kept. A node has a few networks.
const MOST: usize = 1024;
/// Between two samples of how much is taken.
const SAMPLE: u64 = 10_000_000_000;
/// How far back growth is looked for. The last sample before that is kept, as what it began with.
const WINDOW: u64 = 600_000_000_000;
/// Growth over less than this says nothing: pods are started in bursts.
const LEAST_SPAN: u64 = 300_000_000_000;

/// Time left that is little, in ns.
const SOON: u64 = 3_600_000_000_000;
/// Time left that is next to nothing, in ns.
const AT_ONCE: u64 = 1_800_000_000_000;

/// How near a range is to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Level {
    /// There is enough.
    #[default]
    Enough,
    /// Little is left, or will be soon.
    Low,
    /// Nothing is left, or will be at once.
    Out,
}

/// A range and how much of it is taken.
#[derive(Debug, Clone)]
pub struct RangeEntry {
    /// What the network can hand out.
    pub range: Range,
    /// Last told.
    pub told: BootNs,
    /// IPs of each set that are reserved.
    used: Vec<u64>,
    /// Blocks of it of which nobody knows how much is taken.
    pub(super) unknown: usize,
    /// IPs whose reservations are leaks, and by how many each is reserved.
    pub(super) leaked: BTreeMap<IpAddr, u32>,
    /// How many were taken, now and then, the oldest first.
    samples: VecDeque<(BootNs, u64)>,
    /// How near it is to its end, by what it was before too, and since when it is not far from it.
    level: Level,
    low: Option<BootNs>,
}

/// How much of a range is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Pods that it has room for.
    pub usable: u64,
    /// IPs that are taken of its tightest set.
    pub used: u64,
    /// Pods that can still be started.
    pub free: u64,
}

impl RangeEntry {
    /// How much of its tightest set is taken.
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

    /// Each set: its parts, and how many of its IPs are not reserved.
    pub(in crate::map) fn sets(&self) -> impl Iterator<Item = (&[RangePart], u64)> {
        let sets = self.range.sets.iter().zip(&self.used);
        sets.map(|(parts, used)| (&**parts, usable(parts).saturating_sub(*used)))
    }

    /// Whether a reservation comes out of this range's network, or of another one that it shares its IPs with.
    #[must_use]
    pub fn is_of(&self, entry: &ReservationEntry) -> bool {
        if self.range.store != *entry.store {
            return false;
        }
        match &self.range.data_dir {
            Some(_) => self.has_file(&entry.key),
            // Whoever asks for an IP names no pool.
            None if self.is_by_blocks() => self.contains(entry.ip),
            None if self.range.network == *entry.network => true,
            None => {
                self.range.shares
                    && self.contains(entry.ip)
                    && space(&self.range.network) == space(&entry.network)
            }
        }
    }

    /// Whether it is the whole cluster's, not this node's alone.
    #[must_use]
    pub fn is_of_the_cluster(&self) -> bool {
        is_of_the_cluster(&self.range.store)
    }

    /// Whether reservations of other nodes are known by their number alone: see [`blocks`](super::blocks).
    #[must_use]
    pub fn is_by_blocks(&self) -> bool {
        is_by_blocks(&self.range.store)
    }

    /// Whether a file is in the directory of its network's reservations.
    fn has_file(&self, path: &str) -> bool {
        self.range.data_dir.as_deref().is_some_and(|dir| {
            let rest = path.strip_prefix(dir.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.starts_with('/'))
        })
    }

    /// Whether it has handed out what is reserved.
    pub(in crate::map) fn hands_out(&self, entry: &ReservationEntry) -> bool {
        self.is_of(entry) && self.contains(entry.ip)
    }

    /// Whether the IP is one that it hands out.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.range.sets.iter().flatten().any(|part| part.contains(ip))
    }

    /// How long until nothing is left, if it goes on as in the last minutes, in ns.
    #[must_use]
    pub fn time_left(&self, now: BootNs) -> Option<u64> {
        let (first, before) = *self.samples.front()?;
        let usage = self.usage();
        let (span, grown) = (now.since(first), usage.used.checked_sub(before)?);
        // Pods that come and go, or came all at once, are no growth.
        let middle = self.samples.get(self.samples.len() / 2).map_or(before, |(_, used)| *used);
        if span < LEAST_SPAN || grown == 0 || middle <= before || usage.used <= middle {
            return None;
        }
        let left = u128::from(usage.free) * u128::from(span) / u128::from(grown);
        Some(u64::try_from(left).unwrap_or(u64::MAX))
    }

    /// How near it is to its end.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }

    /// Since when it has been near its end.
    #[must_use]
    pub fn low_since(&self) -> Option<BootNs> {
        self.low
    }

    /// `10.0.0.2-10.0.0.254`, the sets apart by `; `, the parts of one by `, `.
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

/// The networks of a store that share their IPs: of a pool of Whereabouts its name without the range, `net-` of
/// `net-10.0.0.0-27` (whereabouts 0.8, pkg/storage/kubernetes/ipam.go, `IPPoolName`). A name that may be read in two
/// ways is read as the one that shares less.
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

/// How near a range is to its end. What was near stays so until there is a step more than that takes: a pod
/// that comes and goes is no news.
fn level(usage: Usage, left: Option<u64>, before: Level) -> Level {
    let Usage { usable, free, .. } = usage;
    // One IP for one container is a fixed address: it is meant to be taken.
    if usable <= 1 {
        return Level::Enough;
    }
    let within = |most: u64, level: Level| {
        let step = if before >= level { (most / 4).max(1) } else { 0 };
        // What is wholly free is never near its end.
        free <= most || free <= (most + step).min(usable - 1)
    };
    // Growth on a range that is half empty is a rollout, and what is not near its end is no emergency.
    let soon = |limit: u64, share: u64, level: Level| {
        let limit = if before >= level { limit + limit / 4 } else { limit };
        within(usable / share, level) && left.is_some_and(|left| left < limit)
    };
    if within(0, Level::Out) || soon(AT_ONCE, 4, Level::Out) {
        return Level::Out;
    }
    // A tenth; of small ranges two, or half of what there is.
    let little = (usable / 10).max((usable / 2).min(2));
    if within(little, Level::Low) || soon(SOON, 2, Level::Low) { Level::Low } else { Level::Enough }
}

/// What the parts of a set have together. Parts that overlap hand out an IP once.
fn usable(parts: &[RangePart]) -> u64 {
    let mut spans: Vec<&RangePart> = parts.iter().collect();
    spans.sort_by_key(|part| (part.first, part.last));
    let apart = spans.windows(2).all(|pair| pair[0].last < pair[1].first);
    if apart {
        return parts.iter().fold(0, |sum, part| sum.saturating_add(part.usable()));
    }
    merged(&spans).iter().fold(0, |sum, part| sum.saturating_add(part.usable()))
}

/// Parts that overlap, as one. What one of them leaves out and another does not is handed out.
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
    /// A reservation has come; `others` are those of the same IP that were there.
    pub(in crate::map) fn came<'a>(
        &mut self,
        entry: &ReservationEntry,
        others: impl Iterator<Item = &'a ReservationEntry> + Clone,
    ) {
        self.count(entry, others, |used| *used += 1);
    }

    /// A reservation has gone; `others` are those of the same IP that are left.
    pub(in crate::map) fn went<'a>(
        &mut self,
        entry: &ReservationEntry,
        others: impl Iterator<Item = &'a ReservationEntry> + Clone,
    ) {
        self.count(entry, others, |used| *used = used.saturating_sub(1));
    }

    /// A reservation is a leak.
    pub(in crate::map) fn leaked(&mut self, entry: &ReservationEntry) {
        for range in self.all.values_mut().filter(|range| range.hands_out(entry)) {
            *range.leaked.entry(entry.ip).or_default() += 1;
        }
    }

    /// A reservation is no leak any more.
    pub(in crate::map) fn unleaked(&mut self, entry: &ReservationEntry) {
        for range in self.all.values_mut().filter(|range| range.hands_out(entry)) {
            let Some(count) = range.leaked.get_mut(&entry.ip) else { continue };
            *count = count.saturating_sub(1);
            if *count == 0 {
                range.leaked.remove(&entry.ip);
            }
        }
    }

    /// An IP that two keys reserve is taken once.
    fn count<'a>(
        &mut self,
        entry: &ReservationEntry,
        others: impl Iterator<Item = &'a ReservationEntry> + Clone,
        change: impl Fn(&mut u64),
    ) {
        for range in self.all.values_mut() {
            // What is taken of a block says the block.
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

    /// A block was so, and is so now.
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

    /// Notes how much is taken, now and then. Whether any of them is nearer to its end than before, or less near.
    pub(in crate::map) fn sample(&mut self, now: BootNs, blocks: &Blocks) -> bool {
        let mut changed = false;
        for range in self.all.values_mut() {
            if !blocks.counts(range) {
                // What was left out comes all at once: that is no growth.
                range.samples.clear();
                continue;
            }
            // Where little happens there is more time between two of them.
            while range.samples.get(1).is_some_and(|(at, _)| now.since(*at) >= WINDOW) {
                range.samples.pop_front();
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
        for range in self.all.values_mut().filter(|range| blocks.counts(range)) {
            let used = range.usage().used;
            range.samples.push_back((now, used));
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
            samples: VecDeque::new(),
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

    /// Counts the IPs of a set that are reserved.
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

    /// Counts the ranges of an IP anew: a file that takes it has become unreadable, or readable.
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

    /// Every range.
    pub fn ranges(&self) -> impl Iterator<Item = &RangeEntry> {
        self.ipam.ranges.all.values()
    }

    /// The range that a reservation comes out of: its own network's first.
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
