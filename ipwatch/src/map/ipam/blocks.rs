//! How much of a cluster's pools is taken, where a store tells that block by block and not IP by IP: of other
//! nodes' reservations nobody here knows more than how many they are.
//!
//! What a pool has left is known only while every block of the store is: a block that was not told of, or is not
//! understood, may be full.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::fact::{Block, BootNs, Range, SourceStatus};

use super::ranges::Ranges;
use super::stores::{BY_BLOCKS, is_by_blocks};
use crate::map::{NodeMap, RangeEntry};

/// Blocks kept, of one store. Four of each of 5,000 nodes are 20,000.
const MOST: usize = 131_072;

/// A block as its store told of it last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::map) struct Known {
    /// Absent: not even that is understood.
    pub(super) first: Option<IpAddr>,
    /// Absent: nobody knows.
    pub(super) taken: Option<u32>,
    told: BootNs,
}

#[derive(Debug, Default)]
pub(in crate::map) struct Blocks(BTreeMap<String, OfStore>);

#[derive(Debug, Default)]
struct OfStore {
    all: BTreeMap<Box<str>, Known>,
    /// Those that may be of any pool.
    nowhere: usize,
    /// It has told of all, and has left none out since.
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
    /// Whether all is known that is taken of a range.
    pub(in crate::map) fn counts(&self, range: &RangeEntry) -> bool {
        let all = self.0.get(&range.range.store);
        !is_by_blocks(&range.range.store)
            || (range.unknown == 0 && all.is_some_and(|all| all.whole && all.nowhere == 0))
    }

    /// Every block of a store.
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

    /// A list of a store's blocks has ended. After one that was cut short nobody knows what is taken.
    pub(in crate::map) fn blocks_listed(&mut self, store: &str, began: BootNs, complete: bool) {
        let ipam = &mut self.ipam;
        ipam.blocks.listed(store, began, complete, &mut ipam.ranges);
    }

    /// Nobody goes by this name any more.
    pub(in crate::map) fn blocks_over(&mut self, store: &str) {
        let ipam = &mut self.ipam;
        ipam.blocks.listed(store, BootNs(u64::MAX), true, &mut ipam.ranges);
        ipam.blocks.0.remove(store);
    }

    /// Whether all is known that is taken of a range.
    #[must_use]
    pub fn is_counted(&self, range: &RangeEntry) -> bool {
        self.ipam.blocks.counts(range)
    }

    /// Whether that is so of every range, and no source that has told of such ranges is silent. One that may not read
    /// them has none that it could miss, and where there are no blocks nobody counts them.
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
