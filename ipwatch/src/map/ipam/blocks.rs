//! How much of a cluster's pools is taken, for stores that report this by block rather than by IP: of other nodes'
//! reservations only the number is known here.
//!
//! The free part of a pool is known only if every block of the store is: a block that was not reported, or not
//! understood, may be full.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::fact::{Block, BootNs, Range, SourceStatus};

use super::ranges::Ranges;
use super::stores::{BY_BLOCKS, is_by_blocks};
use crate::map::{NodeMap, RangeEntry};

/// Maximum number of blocks of one store. Four blocks on each of 5,000 nodes are 20,000.
const MOST: usize = 131_072;

/// A block as last reported by its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::map) struct Known {
    /// Absent if not even this could be read.
    pub(super) first: Option<IpAddr>,
    /// Absent if unknown.
    pub(super) taken: Option<u32>,
    told: BootNs,
}

#[derive(Debug, Default)]
pub(in crate::map) struct Blocks(BTreeMap<String, OfStore>);

#[derive(Debug, Default)]
struct OfStore {
    all: BTreeMap<Box<str>, Known>,
    /// Number of blocks without a known range: each may be part of any pool.
    nowhere: usize,
    /// Whether the store has listed all blocks, and none has been left out since.
    whole: bool,
}

impl OfStore {
    fn insert(&mut self, key: &str, now: Known) -> Option<Known> {
        let before = self.all.insert(key.into(), now);
        self.nowhere += usize::from(now.first.is_none());
        self.nowhere -= usize::from(before.is_some_and(|before| before.first.is_none()));
        before
    }

    fn remove(&mut self, key: &str) -> Option<Known> {
        let before = self.all.remove(key)?;
        self.nowhere -= usize::from(before.first.is_none());
        Some(before)
    }
}

impl Blocks {
    /// Whether the number of taken IPs of a range is known.
    pub(in crate::map) fn counts(&self, range: &RangeEntry) -> bool {
        let all = self.0.get(&range.range.store);
        !is_by_blocks(&range.range.store)
            || (range.unknown == 0 && all.is_some_and(|all| all.whole && all.nowhere == 0))
    }

    pub(in crate::map) fn of(&self, store: &str) -> impl Iterator<Item = &Known> {
        self.0.get(store).into_iter().flat_map(|of| of.all.values())
    }

    fn set(&mut self, block: &Block, at: BootNs, ranges: &mut Ranges) {
        let of = self.0.entry(block.store.clone()).or_default();
        let before = of.all.get(&*block.key);
        if before.is_some_and(|before| before.told > at) {
            return;
        }
        if before.is_none() && of.all.len() >= MOST {
            of.whole = false;
            return;
        }
        let now = Known { first: block.first, taken: block.taken, told: at };
        let before = of.insert(&block.key, now);
        ranges.block_is(&block.store, before, Some(now));
    }

    fn gone(&mut self, store: &str, key: &str, at: BootNs, ranges: &mut Ranges) {
        let Some(of) = self.0.get_mut(store) else { return };
        if of.all.get(key).is_some_and(|known| known.told <= at) {
            ranges.block_is(store, of.remove(key), None);
        }
    }

    fn listed(&mut self, store: &str, began: BootNs, complete: bool, ranges: &mut Ranges) {
        let of = self.0.entry(store.to_owned()).or_default();
        of.whole = complete;
        if complete {
            let missed = of.all.iter().filter(|(_, known)| known.told < began);
            let missed: Vec<Box<str>> = missed.map(|(key, _)| key.clone()).collect();
            for key in missed {
                ranges.block_is(store, of.remove(&key), None);
            }
        }
    }
}

impl NodeMap {
    pub(in crate::map) fn set_block(&mut self, block: &Block, at: BootNs) {
        let ipam = &mut self.ipam;
        ipam.blocks.set(block, at, &mut ipam.ranges);
    }

    pub(in crate::map) fn block_gone(&mut self, store: &str, key: &str, at: BootNs) {
        let ipam = &mut self.ipam;
        ipam.blocks.gone(store, key, at, &mut ipam.ranges);
    }

    /// A listing of a store's blocks has ended. After an incomplete one the number of taken IPs is unknown.
    pub(in crate::map) fn blocks_listed(&mut self, store: &str, began: BootNs, complete: bool) {
        let ipam = &mut self.ipam;
        ipam.blocks.listed(store, began, complete, &mut ipam.ranges);
    }

    /// The store no longer exists.
    pub(in crate::map) fn blocks_over(&mut self, store: &str) {
        let ipam = &mut self.ipam;
        ipam.blocks.listed(store, BootNs(u64::MAX), true, &mut ipam.ranges);
        ipam.blocks.0.remove(store);
    }

    /// Whether the number of taken IPs of a range is known.
    #[must_use]
    pub fn is_counted(&self, range: &RangeEntry) -> bool {
        self.ipam.blocks.counts(range)
    }

    /// Whether that is known of every range, and no source of such ranges is down. A disabled source is not missed, and
    /// without blocks nothing needs to be counted.
    #[must_use]
    pub fn ranges_are_counted(&self) -> bool {
        let is = |source: &str, status: SourceStatus| {
            self.source(source).is_some_and(|source| source.status == status)
        };
        let silent = |range: &RangeEntry| {
            BY_BLOCKS.iter().any(|(store, source)| {
                range.range.store == *store && is(source, SourceStatus::Down)
            })
        };
        let mut ranges =
            self.ranges().filter(|range| !is(&range.range.store, SourceStatus::Disabled));
        ranges.all(|range| self.is_counted(range) && !silent(range))
    }
}

/// Whether a block is part of what a network hands out.
pub(in crate::map) fn is_within(range: &Range, known: &Known) -> bool {
    known.first.is_some_and(|first| range.sets.iter().flatten().any(|part| part.contains(first)))
}
