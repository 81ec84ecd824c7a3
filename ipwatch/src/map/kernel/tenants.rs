//! Who shares a room that is bounded, and who gives when it is full. Pure bookkeeping, for `shares` and `fittings`.
//!
//! A tenant is a pod that a runtime vouches for, root, or the user who owns the user namespace of a netns: whoever may make
//! one netns can make thousands, and all of them are one tenant's. When the room is full, users give first, then root,
//! then pods; of these the tenant with most gives, and of its netns the one with most. So nobody gets more room by making more
//! netns, and what a pod has is given up for other pods alone. The host's netns is nobody's: it has room of its own.

use std::collections::BTreeSet;

use crate::map::workload::Certainty;
use crate::map::{Netns, NetnsId, Table};

/// Whose a netns is, for the sharing of room. In the order in which room is kept: the last ones give first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Tenant {
    /// A runtime vouches for it. Each is a tenant of its own.
    Pod(NetnsId),
    /// It belongs to the node's own user namespace: only root makes such.
    Root,
    /// It belongs to a user namespace of this user's; `None`: nobody has looked yet.
    User(Option<u32>),
}

impl Tenant {
    /// Whoever has a higher rank gives to whoever has a lower one.
    fn rank(self) -> u8 {
        match self {
            Self::Pod(_) => 0,
            Self::Root => 1,
            Self::User(_) => 2,
        }
    }
}

impl Netns {
    /// Anybody may have made it, as far as is known.
    pub(in crate::map) fn is_strangers(&self) -> bool {
        matches!(self.tenant(), Tenant::User(_))
    }

    pub(super) fn tenant(&self) -> Tenant {
        if self.owner.as_ref().is_some_and(|owner| owner.certainty == Certainty::Proven) {
            return Tenant::Pod(self.id);
        }
        match self.user {
            Some(0) => Tenant::Root,
            user => Tenant::User(user),
        }
    }
}

/// What the netns of one tenant take.
#[derive(Debug, Default)]
struct Held {
    total: usize,
    /// The largest comes last.
    sizes: BTreeSet<(usize, NetnsId)>,
}

/// Who takes how much of one room.
#[derive(Debug, Default)]
pub(super) struct Room {
    of: Table<NetnsId, (Tenant, usize)>,
    held: Table<Tenant, Held>,
    /// Whoever gives first comes last.
    order: BTreeSet<(u8, usize, Tenant)>,
    kept: usize,
}

/// Whoever gives room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Giver {
    pub(super) id: NetnsId,
    /// How much it has.
    pub(super) has: usize,
    /// How much of that it may give at once.
    pub(super) at_most: usize,
}

impl Room {
    /// How much is taken of it in all.
    pub(super) fn kept(&self) -> usize {
        self.kept
    }

    /// What a netns takes, whose it is; 0 if it is gone.
    pub(super) fn set(&mut self, id: NetnsId, tenant: Tenant, size: usize) {
        let was = match size {
            0 => self.of.remove(&id),
            _ => self.of.insert(id, (tenant, size)),
        };
        if was == Some((tenant, size)) {
            return;
        }
        if let Some((tenant, size)) = was {
            self.kept -= size;
            self.change(tenant, |held| {
                held.sizes.remove(&(size, id));
                held.total -= size;
            });
        }
        if size > 0 {
            self.kept += size;
            self.change(tenant, |held| {
                held.sizes.insert((size, id));
                held.total += size;
            });
        }
    }

    fn change(&mut self, tenant: Tenant, change: impl FnOnce(&mut Held)) {
        let held = self.held.entry(tenant).or_default();
        self.order.remove(&(tenant.rank(), held.total, tenant));
        change(held);
        if held.total == 0 {
            self.held.remove(&tenant);
        } else {
            self.order.insert((tenant.rank(), held.total, tenant));
        }
    }

    /// Whoever gives so much more room to a netns of this tenant, which takes `own` so far. `None`: nobody has more than it
    /// would have then.
    pub(super) fn giver(&self, to: Tenant, own: usize, more: usize) -> Option<Giver> {
        let (rank, total, tenant) = self.order.last().copied()?;
        let held = |tenant: Tenant| self.held.get(&tenant).map_or(0, |held| held.total);
        let largest = |tenant: Tenant| self.held.get(&tenant)?.sizes.last().copied();
        // Another tenant gives until both have the same; within a tenant one netns does.
        let (from, fair) = if rank > to.rank() {
            (tenant, usize::MAX)
        } else if rank < to.rank() {
            return None;
        } else if tenant != to && total > held(to) + more {
            (tenant, total - held(to) - more)
        } else {
            let (has, _) = largest(to)?;
            (to, has.checked_sub(own + more).filter(|fair| *fair > 0)?)
        };
        let (has, id) = largest(from)?;
        Some(Giver { id, has, at_most: fair.min(has) })
    }

    /// What each netns takes, for a test that counts itself.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> std::collections::BTreeMap<NetnsId, (Tenant, usize)> {
        let totals: usize = self.held.values().map(|held| held.total).sum();
        assert_eq!(totals, self.kept);
        assert_eq!(self.order.len(), self.held.len());
        self.of.iter().map(|(id, of)| (*id, *of)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: Tenant = Tenant::User(Some(1000));
    const BOB: Tenant = Tenant::User(Some(1001));

    fn id(n: u64) -> NetnsId {
        NetnsId::numbered(n)
    }

    fn gives(room: &Room, to: Tenant, own: usize) -> Option<NetnsId> {
        room.giver(to, own, 1).map(|giver| giver.id)
    }

    #[test]
    fn many_netns_of_one_user_are_one_tenant() {
        let mut room = Room::default();
        (0..1000).for_each(|n| room.set(id(n), ALICE, 1));
        room.set(id(2000), BOB, 300);
        assert!(
            gives(&room, BOB, 300).is_some_and(|giver| giver < id(1000)),
            "Alice has more in all"
        );
        assert_eq!(gives(&room, ALICE, 0), None, "she has most, and no netns with more than one");
        room.set(id(2000), BOB, 1500);
        assert_eq!(gives(&room, ALICE, 1), Some(id(2000)));
        assert_eq!(room.giver(ALICE, 1, 1).unwrap().at_most, 499, "until both have the same");
    }

    #[test]
    fn users_give_before_root_and_root_before_pods() {
        let mut room = Room::default();
        room.set(id(1), Tenant::Pod(id(1)), 900);
        room.set(id(2), Tenant::Root, 500);
        assert_eq!(gives(&room, ALICE, 0), None, "nothing is taken from these for a user");
        room.set(id(3), ALICE, 1);
        assert_eq!(gives(&room, Tenant::Pod(id(1)), 900), Some(id(3)));
        assert_eq!(gives(&room, Tenant::Root, 500), Some(id(3)));
        room.set(id(3), ALICE, 0);
        assert_eq!(gives(&room, Tenant::Pod(id(4)), 0), Some(id(2)));
        assert_eq!(gives(&room, Tenant::Root, 0), Some(id(2)), "within a tenant its largest gives");
        room.set(id(2), Tenant::Root, 0);
        assert_eq!(gives(&room, Tenant::Pod(id(4)), 0), Some(id(1)), "pods among themselves");
        assert_eq!(gives(&room, Tenant::Pod(id(1)), 900), None);
        assert_eq!(room.kept(), 900);
    }

    #[test]
    fn whose_it_is_may_turn_out_later() {
        let mut room = Room::default();
        room.set(id(1), Tenant::User(None), 5);
        room.set(id(1), ALICE, 5);
        room.set(id(1), Tenant::Pod(id(1)), 7);
        assert_eq!(room.sizes().into_values().collect::<Vec<_>>(), [(Tenant::Pod(id(1)), 7)]);
        assert_eq!(room.kept(), 7);
    }
}
