//! Divides a bounded capacity among tenants, and chooses which netns must give up entries when it is used up. Pure
//! bookkeeping, for `shares`, `fittings`, `crowd`, `census` and
//! `conflict/evidence`.
//!
//! A tenant is a pod that a runtime reports, root, or the user who owns the user namespace of a netns: a user who can
//! create one netns can create thousands, and all of them count as one tenant. When the capacity is used up, entries are
//! taken from users first, then from root, then from pods: from the tenant with the most entries, and there from the netns
//! with the most. A tenant therefore gets no more capacity by creating more netns, and a pod gives up entries only for other
//! pods. The host's netns is not part of this and has a limit of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use crate::contract::{self, Code, Subject};
use crate::fact::NetnsRef;
use crate::map::workload::Certainty;
use crate::map::{Netns, NetnsId, NodeMap, Table, Whose};

/// To whom a netns counts. The order is that of precedence: entries are taken from the last ones first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::map) enum Tenant {
    /// A runtime reports it as a sandbox's. Each such netns is a tenant of its own.
    Pod(NetnsId),
    /// It belongs to the initial user namespace, where only root can create netns.
    Root,
    /// It belongs to a user namespace of this user; 0: of one that a runtime made, or the root of a container. `None`: not
    /// known yet.
    User(Option<u32>),
}

impl Tenant {
    /// Number of ranks.
    pub(in crate::map) const RANKS: usize = 3;

    /// Entries are taken from a tenant with a higher rank for one with a lower rank.
    pub(in crate::map) fn rank(self) -> u8 {
        match self {
            Self::Pod(_) => 0,
            Self::Root => 1,
            Self::User(_) => 2,
        }
    }
}

/// Whose a netns is, without which one: what its history counts to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TenantKind {
    /// A runtime reports it as a sandbox's.
    Pod,
    /// It belongs to the initial user namespace.
    Root,
    /// It belongs to a user namespace of this user; 0 and `None`: see [`Tenant::User`].
    User(Option<u32>),
}

impl From<Tenant> for TenantKind {
    fn from(tenant: Tenant) -> Self {
        match tenant {
            Tenant::Pod(_) => Self::Pod,
            Tenant::Root => Self::Root,
            Tenant::User(user) => Self::User(user),
        }
    }
}

impl fmt::Display for TenantKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod => f.write_str("pods"),
            Self::Root => f.write_str("root"),
            Self::User(Some(0)) => f.write_str("user namespaces of root"),
            Self::User(Some(uid)) => write!(f, "uid {uid}"),
            Self::User(None) => f.write_str("users not known yet"),
        }
    }
}

impl Netns {
    /// Whether an unprivileged user may have created it.
    pub(in crate::map) fn is_strangers(&self) -> bool {
        matches!(self.tenant(), Tenant::User(_))
    }

    /// Whether an unprivileged user is known to own its user namespace, and no runtime reports it as a sandbox's.
    pub(in crate::map) fn is_a_users(&self) -> bool {
        matches!(self.tenant(), Tenant::User(Some(1..)))
    }

    /// Whether it is known to belong to a user namespace below the node's own, and no runtime reports it as a sandbox's.
    pub(in crate::map) fn is_of_a_user_namespace(&self) -> bool {
        matches!(self.tenant(), Tenant::User(Some(_)))
    }

    /// Whether it belongs to a user namespace below the node's own, or may do so.
    pub(super) fn may_be_nested(&self) -> bool {
        !self.host && (self.is_strangers() || self.user.is_none_or(|(_, nested)| nested))
    }

    /// The tenant that it counts to; `None`: it is the host's, which counts to none.
    pub(in crate::map) fn counts_to(&self) -> Option<Tenant> {
        (!self.host).then(|| self.tenant())
    }

    pub(in crate::map) fn tenant(&self) -> Tenant {
        if self.owner.as_ref().is_some_and(|owner| owner.certainty == Certainty::Proven) {
            return Tenant::Pod(self.id);
        }
        match self.user {
            Some((0, false)) => Tenant::Root,
            user => Tenant::User(user.map(|(uid, _)| uid)),
        }
    }
}

impl NodeMap {
    /// The user in whose netns a finding is, if no runtime reports that netns as a sandbox's; `Some(None)` if it is not known
    /// whose it is, or no longer. `None` if it is about a pod, the host, a netns of root's, or no netns.
    #[must_use]
    pub fn user_concerned(&self, subject: &Subject) -> Option<Option<u32>> {
        let Subject { netns: Some(netns), container: None, pod: None, .. } = subject else {
            return None;
        };
        let netns = NetnsRef { cookie: netns.cookie, inode: netns.inode, nsid: netns.nsid };
        let Some(entry) = self.find(&netns).and_then(|id| self.netns(id)) else {
            return Some(None);
        };
        match entry.counts_to() {
            Some(Tenant::User(user)) => Some(user),
            _ => None,
        }
    }
}

impl Netns {
    /// To whom a finding about it counts.
    fn whose(&self) -> Whose {
        match self.counts_to() {
            None | Some(Tenant::Root) => Whose::Node,
            Some(Tenant::Pod(id)) => Whose::Pod(id),
            Some(Tenant::User(user)) => Whose::User(user),
        }
    }
}

impl NodeMap {
    /// To whom a finding counts, by its netns alone: a user can name a cgroup as a container's, and add the IP of a pod.
    #[must_use]
    pub fn whose(&self, subject: &Subject) -> Whose {
        self.netns_of(subject).map_or(Whose::Node, |id| self.whose_netns(id))
    }

    /// The netns that a finding is about.
    #[must_use]
    pub fn netns_of(&self, subject: &Subject) -> Option<NetnsId> {
        let contract::Netns { cookie, inode, nsid, .. } = *subject.netns.as_ref()?;
        self.find(&NetnsRef { cookie, inode, nsid })
    }

    /// The same of a finding about a netns.
    #[must_use]
    pub fn whose_netns(&self, id: NetnsId) -> Whose {
        self.netns(id).map_or(Whose::Node, Netns::whose)
    }

    /// Findings that are not told for want of room, for people; those of whom most are missing come first.
    #[must_use]
    pub fn said_of_untold(&self, untold: &BTreeMap<(Whose, Code), u64>) -> Option<String> {
        const LISTED: usize = 3;
        let mut tenants: BTreeMap<Whose, (u64, String)> = BTreeMap::new();
        for ((whose, code), count) in untold {
            let (all, said) = tenants.entry(*whose).or_default();
            *all += count;
            let apart = if said.is_empty() { "" } else { ", " };
            let _ = write!(said, "{apart}{count} {code}");
        }
        let mut tenants: Vec<_> = tenants.into_iter().collect();
        tenants.sort_by_key(|(_, (all, _))| std::cmp::Reverse(*all));
        let of = |(whose, (_, said)): &(Whose, (u64, String))| {
            let tenant = match *whose {
                Whose::Node => "the node".to_owned(),
                Whose::Pod(id) => self.said_of_tenant(Tenant::Pod(id)),
                Whose::User(user) => self.said_of_tenant(Tenant::User(user)),
            };
            format!("{tenant}: {said}")
        };
        let listed: Vec<String> = tenants.iter().take(LISTED).map(of).collect();
        (!listed.is_empty())
            .then(|| format!("findings that are not told for want of room: {}", listed.join("; ")))
    }
}

/// When a netns gives, among those of its tenant that have as many entries. Of two that are alike the newer one gives first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Yields {
    #[default]
    Last,
    Later,
    First,
}

/// The entries of one tenant's netns.
#[derive(Debug, Default)]
struct Held {
    total: usize,
    /// Those that have something to give; the largest comes last.
    sizes: BTreeSet<(usize, Yields, NetnsId)>,
}

/// What one netns has of a room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Share {
    tenant: Tenant,
    size: usize,
    /// How many of these it can give: it may have to keep some.
    gives: usize,
    yields: Yields,
}

/// How many entries each netns has of one bounded capacity.
#[derive(Debug, Default)]
pub(in crate::map) struct Room {
    of: Table<NetnsId, Share>,
    kept: usize,
    /// Made when somebody must give for the first time, and dropped when half of the room is free again: on most nodes
    /// nobody ever gives.
    ranks: Option<Ranks>,
}

/// Who gives first.
#[derive(Debug, Default)]
struct Ranks {
    held: Table<Tenant, Held>,
    /// Those that have something to give. The tenant from which entries are taken first comes last.
    order: BTreeSet<(u8, usize, Tenant)>,
    /// How much was taken of the room when this was made.
    kept: usize,
}

impl Ranks {
    fn of(room: &Room) -> Self {
        let mut ranks = Self { kept: room.kept, ..Self::default() };
        for (id, share) in &room.of {
            ranks.add(*id, *share);
        }
        ranks
    }

    fn add(&mut self, id: NetnsId, share: Share) {
        let Share { tenant, size, gives, yields } = share;
        self.change(tenant, |held| {
            if gives > 0 {
                held.sizes.insert((size, yields, id));
            }
            held.total += size;
        });
    }

    fn remove(&mut self, id: NetnsId, share: Share) {
        let Share { tenant, size, yields, .. } = share;
        self.change(tenant, |held| {
            held.sizes.remove(&(size, yields, id));
            held.total -= size;
        });
    }

    fn change(&mut self, tenant: Tenant, change: impl FnOnce(&mut Held)) {
        let held = self.held.entry(tenant).or_default();
        self.order.remove(&(tenant.rank(), held.total, tenant));
        change(held);
        if held.total == 0 {
            self.held.remove(&tenant);
        } else if !held.sizes.is_empty() {
            self.order.insert((tenant.rank(), held.total, tenant));
        }
    }

    fn giver(&self, to: Tenant, own: usize, more: usize) -> Option<Giver> {
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
            let (has, ..) = largest(to)?;
            (to, has.checked_sub(own + more).filter(|fair| *fair > 0)?)
        };
        let (has, _, id) = largest(from)?;
        Some(Giver { id, tenant: from, has, at_most: fair.min(has) })
    }
}

/// Whoever gives room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::map) struct Giver {
    pub(in crate::map) id: NetnsId,
    pub(super) tenant: Tenant,
    /// Its number of entries.
    pub(super) has: usize,
    /// How many of them may be taken at once.
    pub(super) at_most: usize,
}

impl Room {
    /// Number of entries in all.
    pub(in crate::map) fn kept(&self) -> usize {
        self.kept
    }

    /// Sets the tenant of a netns and its number of entries; 0 if the netns has gone.
    pub(in crate::map) fn set(&mut self, id: NetnsId, tenant: Tenant, size: usize) {
        self.set_yielding(id, tenant, size, Yields::Last);
    }

    /// The same, of one that gives before or after others of its tenant that have as much.
    pub(super) fn set_yielding(
        &mut self,
        id: NetnsId,
        tenant: Tenant,
        size: usize,
        yields: Yields,
    ) {
        self.put(id, Share { tenant, size, gives: size, yields });
    }

    /// As [`set`](Self::set), of one that can give no more than `gives` of its entries.
    pub(super) fn set_giving(&mut self, id: NetnsId, tenant: Tenant, size: usize, gives: usize) {
        self.put(id, Share { tenant, size, gives: gives.min(size), yields: Yields::Last });
    }

    fn put(&mut self, id: NetnsId, share: Share) {
        let size = share.size;
        let was = match size {
            0 => self.of.remove(&id),
            _ => self.of.insert(id, share),
        };
        if was == Some(share) {
            return;
        }
        let before = was.map_or(0, |was| was.size);
        self.kept = self.kept - before + size;
        let Some(ranks) = &mut self.ranks else { return };
        if self.kept <= ranks.kept / 2 {
            self.ranks = None;
            return;
        }
        if let Some(was) = was {
            ranks.remove(id, was);
        }
        if size > 0 {
            ranks.add(id, share);
        }
    }

    /// When a netns gives, among those of its tenant.
    pub(super) fn yields(&self, id: NetnsId) -> Yields {
        self.of.get(&id).map_or(Yields::Last, |share| share.yields)
    }

    /// Whoever gives so much more room to a netns of this tenant, which takes `own` so far. `None`: nobody who can give
    /// anything has more than it would have then.
    pub(in crate::map) fn giver(&mut self, to: Tenant, own: usize, more: usize) -> Option<Giver> {
        if self.ranks.is_none() {
            self.ranks = Some(Ranks::of(self));
        }
        let giver = self.ranks.as_ref()?.giver(to, own, more)?;
        let gives = self.of.get(&giver.id).map_or(0, |share| share.gives);
        Some(Giver { at_most: giver.at_most.min(gives), ..giver })
    }

    /// The entries of each netns, for a test that counts them as well.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn sizes(&self) -> std::collections::BTreeMap<NetnsId, (Tenant, usize)> {
        let anew = Ranks::of(self);
        let ranks = self.ranks.iter().chain([&anew]);
        for Ranks { held, order, .. } in ranks {
            assert_eq!(held.values().map(|held| held.total).sum::<usize>(), self.kept);
            let can_give = held.values().filter(|held| !held.sizes.is_empty());
            assert_eq!(order.len(), can_give.count());
            assert_eq!(*order, anew.order);
        }
        self.of.iter().map(|(id, share)| (*id, (share.tenant, share.size))).collect()
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

    fn gives(room: &mut Room, to: Tenant, own: usize) -> Option<NetnsId> {
        room.giver(to, own, 1).map(|giver| giver.id)
    }

    #[test]
    fn many_netns_of_one_user_are_one_tenant() {
        let mut room = Room::default();
        (0..1000).for_each(|n| room.set(id(n), ALICE, 1));
        room.set(id(2000), BOB, 300);
        assert!(
            gives(&mut room, BOB, 300).is_some_and(|giver| giver < id(1000)),
            "Alice has more in all"
        );
        assert_eq!(
            gives(&mut room, ALICE, 0),
            None,
            "she has most, and no netns with more than one"
        );
        room.set(id(2000), BOB, 1500);
        assert_eq!(gives(&mut room, ALICE, 1), Some(id(2000)));
        assert_eq!(room.giver(ALICE, 1, 1).unwrap().at_most, 499, "until both have the same");
    }

    #[test]
    fn users_give_before_root_and_root_before_pods() {
        let mut room = Room::default();
        room.set(id(1), Tenant::Pod(id(1)), 900);
        room.set(id(2), Tenant::Root, 500);
        assert_eq!(gives(&mut room, ALICE, 0), None, "nothing is taken from these for a user");
        room.set(id(3), ALICE, 1);
        assert_eq!(gives(&mut room, Tenant::Pod(id(1)), 900), Some(id(3)));
        assert_eq!(gives(&mut room, Tenant::Root, 500), Some(id(3)));
        room.set(id(3), ALICE, 0);
        assert_eq!(gives(&mut room, Tenant::Pod(id(4)), 0), Some(id(2)));
        assert_eq!(
            gives(&mut room, Tenant::Root, 0),
            Some(id(2)),
            "within a tenant its largest gives"
        );
        room.set(id(2), Tenant::Root, 0);
        assert_eq!(gives(&mut room, Tenant::Pod(id(4)), 0), Some(id(1)), "pods among themselves");
        assert_eq!(gives(&mut room, Tenant::Pod(id(1)), 900), None);
        assert_eq!(room.kept(), 900);
    }

    /// The order is made when it is needed, and kept up to date until half of the room is free.
    #[test]
    fn who_gives_does_not_depend_on_when_that_is_asked() {
        let mut room = Room::default();
        let turns = [(1, ALICE, 5), (2, BOB, 9), (3, ALICE, 7), (2, BOB, 2), (1, ALICE, 1)];
        for asked in 0..=turns.len() {
            for (n, (netns, tenant, size)) in turns.into_iter().enumerate() {
                if n == asked {
                    room.giver(BOB, 0, 1);
                }
                room.set(id(netns), tenant, size);
                room.sizes();
            }
            assert_eq!(gives(&mut room, BOB, 2), Some(id(3)), "asked before turn {asked}");
            (1..=3).for_each(|netns| room.set(id(netns), ALICE, 0));
            assert!(room.ranks.is_none() && room.sizes().is_empty());
        }
    }

    /// Of those with as much, the one that is of least use gives first, and then the newest.
    #[test]
    fn among_equals_the_useless_ones_give_first() {
        let mut room = Room::default();
        let all = [Yields::First, Yields::Later, Yields::First, Yields::Last, Yields::Later];
        for (n, yields) in (1..).zip(all) {
            room.set_yielding(id(n), ALICE, 1, yields);
        }
        let mut order = Vec::new();
        while let Some(giver) = room.giver(Tenant::Root, 0, 1) {
            order.push((giver.id, room.yields(giver.id)));
            room.set(giver.id, ALICE, 0);
        }
        assert_eq!(order.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [3, 1, 5, 2, 4].map(id));
        assert_eq!((order[0].1, order[4].1), (Yields::First, Yields::Last));
    }

    /// Whoever has most but must keep it is passed over, within a tenant too; it counts all the same for what is fair.
    #[test]
    fn those_that_can_give_nothing_are_passed_over() {
        let mut room = Room::default();
        room.set_giving(id(1), ALICE, 50, 0);
        room.set_giving(id(2), ALICE, 9, 3);
        room.set_giving(id(3), BOB, 20, 20);
        let giver = room.giver(Tenant::Root, 0, 1).unwrap();
        assert_eq!((giver.id, giver.tenant, giver.at_most), (id(2), ALICE, 3));
        room.set_giving(id(2), ALICE, 9, 0);
        room.sizes();
        assert_eq!(gives(&mut room, Tenant::Root, 0), Some(id(3)), "the next tenant");
        assert_eq!(gives(&mut room, ALICE, 0), None, "she has more than Bob");
        assert_eq!(gives(&mut room, ALICE, 9), None, "and nothing to give to herself");
        room.set_giving(id(3), BOB, 80, 40);
        assert_eq!(room.giver(ALICE, 9, 1).unwrap().at_most, 20, "until both have the same");
        room.set_giving(id(3), BOB, 80, 0);
        room.sizes();
        assert_eq!(gives(&mut room, Tenant::Root, 0), None);
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
