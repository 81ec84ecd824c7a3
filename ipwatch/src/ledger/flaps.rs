//! Limits the history of one netns. Pure.
//!
//! Whoever can create a netns can add and remove an address in it a thousand times a second, and each time is a tenure.
//! So every netns has a budget of rows, and netns without a known container share another one. Further tenures are
//! merged into the last row of the same address, which then covers the time from its beginning to the newest end and
//! counts them. If the address has no such row, they are only counted.

use std::collections::HashMap;

use super::tenure::Row;
use crate::contract::Tenure;
use crate::fact::BootNs;

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
    last: HashMap<u128, Row>,
}

impl Netns {
    fn new() -> Self {
        Self { budget: Budget::new(BURST, EACH), last: HashMap::new() }
    }

    /// Remembers the row of an address into which later tenures are merged.
    fn remember(&mut self, row: &Row) {
        if self.last.len() < MAX_ADDRESSES || self.last.contains_key(&row.hash) {
            self.last.insert(row.hash, row.clone());
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
    Own(Row),
    /// It is merged into this row.
    Within(Row),
    /// It gets no row, and is counted.
    No,
}

/// The recent history of each netns.
#[derive(Debug)]
pub(super) struct Flaps {
    netns: HashMap<u128, Netns>,
    strangers: Budget,
    /// Number of tenures without a row.
    lost: u64,
}

impl Default for Flaps {
    fn default() -> Self {
        let strangers = Budget::new(BURST_OF_STRANGERS, EACH_OF_STRANGERS);
        Self { netns: HashMap::new(), strangers, lost: 0 }
    }
}

impl Flaps {
    /// Number of tenures without a row.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// A tenure of this netns has ended.
    pub(super) fn ended(&mut self, netns: u128, row: Row, tenure: &Tenure, now: BootNs) -> Kept {
        let strange = tenure.container.is_none() && tenure.pod.is_none();
        let known = known(&mut self.netns, netns, now);
        // If too many others flap, this one is not tracked: tenures with a known container are kept nevertheless.
        let has_room = known.as_ref().map_or(!strange, |known| known.budget.has(now));
        if has_room && (!strange || self.strangers.has(now)) {
            if let Some(known) = known {
                known.budget.take(now);
                known.remember(&row);
            }
            if strange {
                self.strangers.take(now);
            }
            return Kept::Own(row);
        }
        if let Some(last) = known.and_then(|known| known.last.get_mut(&row.hash))
            && let Some(longer) = last.prolonged(tenure)
        {
            *last = longer.clone();
            return Kept::Within(longer);
        }
        self.lost = self.lost.saturating_add(1);
        Kept::No
    }
}

/// The entry of this netns, created if needed. `None` if there is no room.
fn known(all: &mut HashMap<u128, Netns>, netns: u128, now: BootNs) -> Option<&mut Netns> {
    if all.len() >= MAX_NETNS && !all.contains_key(&netns) {
        all.retain(|_, known| !known.budget.is_whole(now));
    }
    let has_room = all.len() < MAX_NETNS || all.contains_key(&netns);
    has_room.then(|| all.entry(netns).or_insert_with(Netns::new))
}

#[cfg(test)]
mod tests;
