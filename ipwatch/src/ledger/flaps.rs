//! Limits the history of one netns. Pure.
//!
//! Whoever can create a netns can add and remove an address in it a thousand times a second, and each time is a tenure.
//! So every netns has a budget of rows, and netns without a known container share another one. Further tenures are
//! merged into the last row of the same address, which then covers the time from its beginning to the newest end and
//! counts them. If the address has no such row, they are only counted.

use std::collections::HashMap;

use super::tenure::Row;
use crate::fact::BootNs;
use crate::map::{Identity, TenureKey};

/// Number of rows of one netns at once, and then one in [`EACH`] ns: about 1 MB in an hour.
const BURST: u64 = 128;
const EACH: u64 = 2_000_000_000;
/// The same for all netns together that have no known container.
const BURST_OF_STRANGERS: u64 = 2048;
const EACH_OF_STRANGERS: u64 = 1_000_000_000;
/// Maximum number of remembered netns, and of addresses of each.
const MAX_NETNS: usize = 1024;
const MAX_ADDRESSES: usize = 64;

/// The remaining budget of a netns, and the last rows of its addresses.
#[derive(Debug)]
struct Netns {
    budget: Budget,
    last: Table<TenureKey, Row>,
}

type Table<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

impl Netns {
    fn new() -> Self {
        Self { budget: Budget::new(BURST, EACH), last: Table::default() }
    }

    /// Remembers the row of an address into which later tenures are merged.
    fn remember(&mut self, key: &TenureKey, row: &Row) {
        if self.last.len() < MAX_ADDRESSES || self.last.contains_key(key) {
            self.last.insert(*key, row.clone());
        }
    }
}

/// A token bucket: `burst` at once, and one more every `each` ns.
#[derive(Debug)]
struct Budget {
    burst: u64,
    each: u64,
    /// When it will be full again, in ns.
    whole: u64,
}

impl Budget {
    fn new(burst: u64, each: u64) -> Self {
        Self { burst, each, whole: 0 }
    }

    fn has(&self, now: BootNs) -> bool {
        self.whole <= now.0.saturating_add((self.burst - 1).saturating_mul(self.each))
    }

    fn take(&mut self, now: BootNs) {
        self.whole = self.whole.max(now.0).saturating_add(self.each);
    }

    fn is_whole(&self, now: BootNs) -> bool {
        self.whole <= now.0
    }
}

/// What happens to a tenure that has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// It gets a row of its own.
    Own,
    /// It is merged into this row.
    Within(Row),
    /// It gets no row, and is counted.
    No,
}

/// The recent history of each netns.
#[derive(Debug)]
pub(super) struct Flaps {
    netns: Table<Identity, Netns>,
    strangers: Budget,
    /// Number of tenures without a row.
    lost: u64,
}

impl Default for Flaps {
    fn default() -> Self {
        let strangers = Budget::new(BURST_OF_STRANGERS, EACH_OF_STRANGERS);
        Self { netns: Table::default(), strangers, lost: 0 }
    }
}

impl Flaps {
    /// Number of tenures without a row.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// A tenure has ended.
    pub(super) fn ended(&mut self, key: &TenureKey, row: &Row, now: BootNs) -> Kept {
        let strange = !row.is_named();
        let known = known(&mut self.netns, key.netns, now);
        // If too many others flap, this one is not tracked: tenures with a known container are kept nevertheless.
        let has_room = known.as_ref().map_or(!strange, |known| known.budget.has(now));
        if has_room && (!strange || self.strangers.has(now)) {
            if let Some(known) = known {
                known.budget.take(now);
                known.remember(key, row);
            }
            if strange {
                self.strangers.take(now);
            }
            return Kept::Own;
        }
        if let Some(last) = known.and_then(|known| known.last.get_mut(key)) {
            last.prolong(row);
            return Kept::Within(last.clone());
        }
        self.lost = self.lost.saturating_add(1);
        Kept::No
    }
}

/// The entry of this netns, created if needed. `None` if there is no room.
fn known(all: &mut Table<Identity, Netns>, netns: Identity, now: BootNs) -> Option<&mut Netns> {
    if all.len() >= MAX_NETNS && !all.contains_key(&netns) {
        all.retain(|_, known| !known.budget.is_whole(now));
    }
    let has_room = all.len() < MAX_NETNS || all.contains_key(&netns);
    has_room.then(|| all.entry(netns).or_insert_with(Netns::new))
}

#[cfg(test)]
mod tests;
