//! How much history one netns may have. Pure.
//!
//! Whoever may make a netns can add and remove an address in it a thousand times a second, and each time is a tenure of
//! its own. So every netns has a budget of rows, and those that no container is known to have share another one. What
//! is beyond it is told by the last row of the same address: from its beginning to the newest end, and how often. An
//! address that has no such row leaves none, and is counted.

use std::collections::HashMap;

use super::tenure::Row;
use crate::contract::Tenure;
use crate::fact::BootNs;

/// Rows of one netns at once, and then one in so many ns: about 1 MB in an hour.
const BURST: u64 = 128;
const EACH: u64 = 2_000_000_000;
/// The same of all netns together that no container is known to have.
const BURST_OF_STRANGERS: u64 = 2048;
const EACH_OF_STRANGERS: u64 = 1_000_000_000;
/// Netns that are remembered, and addresses of each.
const MAX_NETNS: usize = 1024;
const MAX_ADDRESSES: usize = 64;

/// What a netns has left of its budget, and the last rows of its addresses.
#[derive(Debug)]
struct Netns {
    budget: Budget,
    last: HashMap<u128, Row>,
}

impl Netns {
    fn new() -> Self {
        Self { budget: Budget::new(BURST, EACH), last: HashMap::new() }
    }

    /// The row of an address by which later ones are told.
    fn remember(&mut self, row: &Row) {
        if self.last.len() < MAX_ADDRESSES || self.last.contains_key(&row.hash) {
            self.last.insert(row.hash, row.clone());
        }
    }
}

/// So many at once, and one more from time to time.
#[derive(Debug)]
struct Budget {
    burst: u64,
    each: u64,
    /// When it would be whole again, in ns.
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

/// What becomes of a tenure that has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// A row of its own.
    Own(Row),
    /// This one tells of it, in place of its own.
    Within(Row),
    /// None: it is counted.
    No,
}

/// The history that each netns has had lately.
#[derive(Debug)]
pub(super) struct Flaps {
    netns: HashMap<u128, Netns>,
    strangers: Budget,
    /// Tenures that no row tells of.
    lost: u64,
}

impl Default for Flaps {
    fn default() -> Self {
        let strangers = Budget::new(BURST_OF_STRANGERS, EACH_OF_STRANGERS);
        Self { netns: HashMap::new(), strangers, lost: 0 }
    }
}

impl Flaps {
    /// Tenures that no row tells of.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// A tenure of this netns has ended.
    pub(super) fn ended(&mut self, netns: u128, row: Row, tenure: &Tenure, now: BootNs) -> Kept {
        let strange = tenure.container.is_none() && tenure.pod.is_none();
        let known = known(&mut self.netns, netns, now);
        // So many others flap that this one is not known: what a container is known to have is told all the same.
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

/// What is known of this netns, or would be from now on. `None`: there is no room.
fn known(all: &mut HashMap<u128, Netns>, netns: u128, now: BootNs) -> Option<&mut Netns> {
    if all.len() >= MAX_NETNS && !all.contains_key(&netns) {
        all.retain(|_, known| !known.budget.is_whole(now));
    }
    let has_room = all.len() < MAX_NETNS || all.contains_key(&netns);
    has_room.then(|| all.entry(netns).or_insert_with(Netns::new))
}

#[cfg(test)]
mod tests;
