//! Limits the history of each netns and of each user. Pure.
//!
//! Whoever can create a netns can add and remove an address in it a thousand times a second, and each time is a tenure.
//! So every netns has a budget of rows. Further tenures are merged into the last row of the same address, which then
//! covers the time from its beginning to the newest end and counts them. If the address has no such row, they are only
//! counted.
//!
//! A user can create any number of netns, so all of one user together have a budget as well, and nobody else pays for
//! them: neither pods, nor root, nor other users. Netns of pods and of root are created by a runtime or by root; only
//! those that nothing names share a budget, and only for the first row of each.

use std::collections::{BTreeMap, HashMap};

use super::tenure::Row;
use crate::fact::BootNs;
use crate::map::{Identity, TenantKind, TenureKey};

/// Number of rows of one netns at once, and then one in [`EACH`] ns: less than 1 MB in an hour.
const BURST: u64 = 128;
const EACH: u64 = 2_000_000_000;
/// The same for all netns of one user.
const BURST_OF_A_USER: u64 = 1_024;
const EACH_OF_A_USER: u64 = 4_000_000_000;
/// The same for first rows of netns of root that have no known container, and for rows of netns beyond [`MAX_NETNS`].
const BURST_OF_OTHERS: u64 = 2_048;
const EACH_OF_OTHERS: u64 = 1_000_000_000;
/// Maximum number of remembered netns of all pods, of root, and of each user, and of addresses of each netns.
const MAX_NETNS: usize = 1_024;
const MAX_NETNS_OF_A_USER: usize = 64;
const MAX_ADDRESSES: usize = 64;
const MAX_ADDRESSES_OF_A_USER: usize = 8;
/// Maximum number of users with a budget of their own; further ones share one.
const MAX_USERS: usize = 16;
/// Maximum number of tenants whose lost tenures are told apart.
const MAX_LOST: usize = 64;

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

/// The recent history of the netns of one tenant.
#[derive(Debug)]
struct Tenant {
    netns: Table<Identity, Netns>,
    shared: Budget,
    /// Each row counts to the shared budget.
    is_a_user: bool,
}

impl Tenant {
    /// Pods, or root.
    fn trusted() -> Self {
        let shared = Budget::new(BURST_OF_OTHERS, EACH_OF_OTHERS);
        Self { netns: Table::default(), shared, is_a_user: false }
    }

    fn user() -> Self {
        let shared = Budget::new(BURST_OF_A_USER, EACH_OF_A_USER);
        Self { netns: Table::default(), shared, is_a_user: true }
    }

    fn ended(&mut self, key: &TenureKey, row: &Row, now: BootNs) -> Kept {
        let is_new = !self.netns.contains_key(&key.netns);
        let has_room = !is_new || self.has_room(now);
        let pays = self.is_a_user || !has_room || (is_new && !row.is_named());
        let most = if self.is_a_user { MAX_ADDRESSES_OF_A_USER } else { MAX_ADDRESSES };
        let mut known = has_room.then(|| self.netns.entry(key.netns).or_insert_with(Netns::new));
        let may = !pays || self.shared.has(now);
        if may && known.as_ref().is_none_or(|known| known.budget.has(now)) {
            if pays {
                self.shared.take(now);
            }
            if let Some(known) = known {
                known.budget.take(now);
                if known.last.len() < most || known.last.contains_key(key) {
                    known.last.insert(*key, row.clone());
                }
            }
            return Kept::Own;
        }
        match known.as_mut().and_then(|known| known.last.get_mut(key)) {
            Some(last) => {
                last.prolong(row);
                Kept::Within(last.clone())
            }
            None => Kept::No,
        }
    }

    /// Whether one more netns can be remembered. Those that have used nothing of their budget lately are forgotten.
    fn has_room(&mut self, now: BootNs) -> bool {
        let most = if self.is_a_user { MAX_NETNS_OF_A_USER } else { MAX_NETNS };
        if self.netns.len() >= most {
            self.netns.retain(|_, known| !known.budget.is_whole(now));
        }
        self.netns.len() < most
    }

    fn is_at_rest(&self, now: BootNs) -> bool {
        self.shared.is_whole(now) && self.netns.values().all(|known| known.budget.is_whole(now))
    }
}

/// The recent history of all netns.
#[derive(Debug)]
pub(super) struct Flaps {
    pods: Tenant,
    root: Tenant,
    users: Table<Option<u32>, Tenant>,
    further_users: Tenant,
    /// Number of tenures without a row, in all and of these.
    lost: u64,
    lost_of: BTreeMap<TenantKind, u64>,
}

impl Default for Flaps {
    fn default() -> Self {
        Self {
            pods: Tenant::trusted(),
            root: Tenant::trusted(),
            users: Table::default(),
            further_users: Tenant::user(),
            lost: 0,
            lost_of: BTreeMap::new(),
        }
    }
}

impl Flaps {
    /// Number of tenures without a row.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Whose tenures they were, the most first. Less than the whole if there are very many users.
    pub(super) fn lost_of(&self) -> Vec<(TenantKind, u64)> {
        let mut lost: Vec<_> = self.lost_of.iter().map(|(whose, count)| (*whose, *count)).collect();
        lost.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        lost
    }

    /// A tenure has ended.
    pub(super) fn ended(
        &mut self,
        key: &TenureKey,
        row: &Row,
        whose: TenantKind,
        now: BootNs,
    ) -> Kept {
        let kept = self.tenant(whose, now).ended(key, row, now);
        if kept == Kept::No {
            self.lost = self.lost.saturating_add(1);
            if self.lost_of.len() < MAX_LOST || self.lost_of.contains_key(&whose) {
                let count = self.lost_of.entry(whose).or_default();
                *count = count.saturating_add(1);
            }
        }
        kept
    }

    fn tenant(&mut self, whose: TenantKind, now: BootNs) -> &mut Tenant {
        let user = match whose {
            TenantKind::Pod => return &mut self.pods,
            TenantKind::Root => return &mut self.root,
            TenantKind::User(user) => user,
        };
        if self.users.len() >= MAX_USERS && !self.users.contains_key(&user) {
            self.users.retain(|_, tenant| !tenant.is_at_rest(now));
            if self.users.len() >= MAX_USERS {
                return &mut self.further_users;
            }
        }
        self.users.entry(user).or_insert_with(Tenant::user)
    }
}

#[cfg(test)]
mod tests;
