//! How many netns are kept, and whose.
//!
//! Whoever may make a user namespace can make tens of thousands of netns, and each is an entry here. So all but the host's have
//! one bound. A new netns that finds no place is left out: only its names are remembered (`left_out`), so
//! that neither later facts nor each walk of `net->list` make an entry of it, which would cost an adoption.
//!
//! - Whose a netns is turns out when it is read, and so does whether it is connected with others. One that was left out
//!   unread therefore takes the place of one that users own, that has been read and that nothing connects with the node: of
//!   the tenant that has most (`tenants`), the newest, and one without tasks and addresses before others. This way each
//!   is read once.
//! - What root has mounted where the node or a runtime sees it, and what a runtime says is a sandbox's, gets a place at once,
//!   at the cost of any user's; a sandbox's at the cost of root's too. CNI plugins and IPAM work on such netns alone.
//! - As long as one is left out whose devices were not read since they changed, an IP may be in it, and nobody is told that
//!   an IP is free. Those that nothing connects with the node take that from nobody (`apart`).
//! - Those that are left out are taken in again when an eighth of the places is free.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::left_out::{Entry, LeftOut, Met, State};
use super::tenants::{Room, Tenant, Yields};
use crate::fact::{BootNs, Holder, Link, NetnsRef, Task};
use crate::map::{Kinds, Netns, NetnsId, NodeMap, Tick};

/// Maximum number of netns that are kept, except the host's. What is in them has bounds of its own. A large node has a
/// thousand.
const MAX_NETNS: usize = 8_192;
/// Fraction of the places that must be free before those that were left out are taken in again.
const ROOM: usize = 8;
/// How often places are given to those that were left out, and to how many at a time.
const TURN: u64 = 2_000_000_000;
const AT_A_TIME: usize = 64;
/// How many of those that cannot give their place are passed over in one turn.
const PASSED_OVER: usize = 256;
/// How long one that cannot give its place is not asked again.
const ASKED_AGAIN: u64 = 30_000_000_000;
/// How often a walk looks for those whose names were not even remembered.
const LOOK: u64 = 30_000_000_000;

#[derive(Debug)]
pub(in crate::map) struct Census {
    in_all: usize,
    room: Room,
    pub(super) left_out: LeftOut,
    /// When the last turn was, and the last walk for those that are not remembered.
    turned: BootNs,
    looked: BootNs,
    /// Netns that cannot give their places, and since when.
    passed_over: (BootNs, BTreeSet<NetnsId>),
    /// Whether kept netns of users lead from the node to what is left out, as of a tick: many ask, and it takes a walk.
    leads_out: Cell<Option<(Tick, bool)>>,
    /// The first processes of living sandboxes in order, as of a tick: tasks in what is left out are many.
    first_pids: Option<(Tick, Vec<u32>)>,
}

impl Default for Census {
    fn default() -> Self {
        Self {
            in_all: MAX_NETNS,
            room: Room::default(),
            left_out: LeftOut::default(),
            turned: BootNs::default(),
            looked: BootNs::default(),
            passed_over: Default::default(),
            leads_out: Cell::default(),
            first_pids: None,
        }
    }
}

impl Census {
    fn is_full(&self) -> bool {
        self.room.kept() >= self.in_all
    }

    /// Whether there is enough room to take in what was left out.
    fn has_room(&self) -> bool {
        self.room.kept() < self.in_all - self.in_all / ROOM
    }
}

impl Netns {
    /// Whether root has mounted it where the node, a runtime or ipwatch sees it.
    fn is_named_by_root(&self) -> bool {
        self.holders().any(is_roots_word)
    }

    /// The tenant to whom its place counts.
    fn place_of(&self) -> Tenant {
        match self.tenant() {
            Tenant::User(_) if self.is_named_by_root() => Tenant::Root,
            tenant => tenant,
        }
    }

    /// When it gives its place, among those of its tenant.
    fn yields(&self) -> Yields {
        let is_read = self.opened.is_some() && self.is_of_a_user_namespace();
        let is_used = !self.tasks.is_empty() || !self.addresses.is_empty();
        match (is_read && self.owner.is_none() && !self.is_incomplete(), is_used) {
            (false, _) => Yields::Last,
            (true, true) => Yields::Later,
            (true, false) => Yields::First,
        }
    }
}

/// Whether only root can have made this holder.
fn is_roots_word(holder: &Holder) -> bool {
    matches!(holder, Holder::Mount { foreign: false, .. })
}

impl NodeMap {
    /// Sets smaller bounds, for tests: of netns, and of the names of others.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(in crate::map) fn bound_netns(&mut self, in_all: usize, left_out: usize) {
        self.kernel.census.in_all = in_all;
        self.kernel.census.left_out.most = left_out;
    }

    /// Checks the bounds, and the places against the netns.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(in crate::map) fn assert_netns_count(&self) {
        let census = &self.kernel.census;
        let own = self.kernel.netns.values().filter(|entry| !entry.host);
        let places = own.clone().map(|entry| (entry.id, (entry.place_of(), 1)));
        assert_eq!(places.collect::<BTreeMap<_, _>>(), census.room.sizes());
        assert!(census.room.kept() <= census.in_all);
        census.left_out.assert_is_true();
        for names in own.map(|entry| &entry.names).filter(|names| names.cookie.is_some()) {
            assert_eq!(census.left_out.find(names), None, "{names:?}");
        }
    }

    /// The netns with these names, which nobody has had so far, if there is a place for it.
    pub(super) fn take_in_netns(&mut self, names: &NetnsRef, at: BootNs) -> Option<NetnsId> {
        if self.is_hosts(names) {
            return Some(self.insert_netns(names, at));
        }
        let census = &mut self.kernel.census;
        if census.left_out.meet(names, at) != Met::No {
            return None;
        }
        if census.is_full() {
            census.left_out.add(names, None, State::Unread, at);
            self.changes.mark(Kinds::NETNS | Kinds::ADDRESSES);
            return None;
        }
        Some(self.insert_netns(names, at))
    }

    /// Whether these are the names of a netns that is not kept, so that facts about it are dropped.
    pub(super) fn is_left_out(&self, names: &NetnsRef) -> bool {
        self.find(names).is_none() && self.kernel.census.left_out.find(names).is_some()
    }

    /// A holder of a netns that is not kept was reported. If only root can have made it, there is a place for the netns.
    pub(super) fn held_left_out(
        &mut self,
        netns: &NetnsRef,
        holder: &Holder,
        at: BootNs,
    ) -> Option<NetnsId> {
        is_roots_word(holder).then(|| self.admit(netns, Tenant::Root, at)).flatten()
    }

    /// A task in a netns that is not kept was reported. If it is the first process of a sandbox, there is a place for the netns.
    pub(super) fn entered_left_out(&mut self, task: &Task, at: BootNs) -> Option<NetnsId> {
        if self.kernel.census.left_out.is_empty() || !self.is_of_a_sandbox(task.key.pid) {
            return None;
        }
        // Any two of these are two tenants.
        self.admit(&task.netns, Tenant::Pod(NetnsId::MAX), at)
    }

    /// Whether a runtime reports this process as the first one of a living sandbox.
    fn is_of_a_sandbox(&mut self, pid: u32) -> bool {
        let known = self.kernel.census.first_pids.take();
        let current = known.filter(|(since, _)| !self.changed(Kinds::RUNTIMES, *since));
        let (since, pids) = current.unwrap_or_else(|| {
            let mut pids: Vec<u32> = self.workload.first_pids().collect();
            pids.sort_unstable();
            (self.tick(), pids)
        });
        let is_one = pids.binary_search(&pid).is_ok();
        self.kernel.census.first_pids = Some((since, pids));
        is_one
    }

    /// Somebody has looked whose a netns is that is not kept.
    pub(super) fn user_of_left_out(
        &mut self,
        netns: &NetnsRef,
        user: (u32, bool),
        at: BootNs,
    ) -> Option<NetnsId> {
        let census = &mut self.kernel.census;
        let slot = census.left_out.find(netns)?;
        census.left_out.set_user(slot, user);
        if user != (0, false) {
            return None;
        }
        // Root connects what it wants.
        census.left_out.doubt(slot);
        self.admit(netns, Tenant::Root, at)
    }

    /// A device was reported in a netns that is not kept. Unless it is one that leads nowhere, nothing is known of that
    /// netns any more.
    pub(super) fn wired_left_out(&mut self, netns: &NetnsRef, link: &Link) {
        let leads_nowhere = link.loopback || (link.kind.is_some() && link.peer_nsid.is_none());
        if !leads_nowhere && self.find(netns).is_none() {
            self.doubt_left_out(netns);
        }
    }

    /// Events in a netns that is not kept were lost, or its devices have changed.
    pub(super) fn doubt_left_out(&mut self, netns: &NetnsRef) {
        let left_out = &mut self.kernel.census.left_out;
        if let Some(slot) = left_out.find(netns) {
            left_out.doubt(slot);
            self.changes.mark(Kinds::NETNS | Kinds::ADDRESSES);
        }
    }

    /// Events were lost in any of those that are not kept.
    pub(in crate::map) fn doubt_all_left_out(&mut self) {
        self.kernel.census.left_out.doubt_all();
    }

    /// A netns that may not be kept has ended, or its teardown has begun: facts that are still queued must not make it.
    pub(super) fn left_out_ended(&mut self, netns: &NetnsRef, at: BootNs) {
        let names = self.kernel.names.usable(netns);
        if self.kernel.census.left_out.ended(&names, at) {
            self.kernel.tombstones.netns_removed(netns, at);
            self.changes.mark(Kinds::NETNS | Kinds::ADDRESSES);
        }
    }

    /// Gives a place to a netns that is not kept, for its tenant's sake.
    fn admit(&mut self, names: &NetnsRef, tenant: Tenant, at: BootNs) -> Option<NetnsId> {
        let names = self.kernel.names.usable(names);
        if self.find(&names).is_some() || names == NetnsRef::default() {
            return None;
        }
        let left_out = &mut self.kernel.census.left_out;
        let known = left_out.find(&names).and_then(|slot| left_out.remove(slot));
        // There are others whose names are not remembered: it may be one of these.
        if known.is_none() && (!left_out.is_more() || self.kernel.tombstones.buried(&names, at)) {
            return None;
        }
        if !self.make_place(tenant, at) {
            if let Some(known) = known {
                let left_out = &mut self.kernel.census.left_out;
                left_out.add(&known.names, known.user, known.state, at);
            }
            return None;
        }
        let named = known.map_or(names, |known| NetnsRef {
            cookie: names.cookie.or(known.names.cookie),
            inode: names.inode.or(known.names.inode),
            nsid: names.nsid.or(known.names.nsid),
        });
        let id = self.insert_known(&named, known.and_then(|known| known.user), at);
        // Its tasks are listed again: they are the ways into it.
        self.scheduler.walk_by(at);
        Some(id)
    }

    fn insert_known(&mut self, names: &NetnsRef, user: Option<(u32, bool)>, at: BootNs) -> NetnsId {
        let id = self.insert_netns(names, at);
        if let Some(entry) = self.kernel.netns.get_mut(&id) {
            entry.user = user;
        }
        self.recensus(id);
        id
    }

    /// Makes sure that there is a place for one more netns of root's or a pod's.
    fn make_place(&mut self, tenant: Tenant, at: BootNs) -> bool {
        while self.kernel.census.is_full() {
            let Some(giver) = self.kernel.census.room.giver(tenant, 0, 1) else { return false };
            self.give_up(giver.id, State::Unread, at);
        }
        true
    }

    /// Drops a netns from the map, but for its names.
    fn give_up(&mut self, id: NetnsId, state: State, at: BootNs) {
        let Some((names, user)) = self.kernel.netns.get(&id).map(|entry| (entry.names, entry.user))
        else {
            return;
        };
        self.drop_netns(id, at, "not-kept");
        let left_out = &mut self.kernel.census.left_out;
        left_out.strip(&names);
        left_out.add(&names, user, state, at);
    }

    /// Updates the place of a netns after it came or went, after it was read, or after it turned out whose it is.
    pub(in crate::map) fn recensus(&mut self, id: NetnsId) {
        let entry = self.kernel.netns.get(&id).filter(|entry| !entry.host);
        let place = entry.map(|entry| (entry.place_of(), entry.yields()));
        let census = &mut self.kernel.census;
        match place {
            Some((tenant, _)) if census.passed_over.1.contains(&id) => {
                census.room.set_yielding(id, tenant, 1, Yields::Last);
            }
            Some((tenant, yields)) => census.room.set_yielding(id, tenant, 1, yields),
            None => census.room.set(id, Tenant::Root, 0),
        }
    }

    /// Takes in what was left out: into free places, or into those of netns that have been read and are of no use. Returns
    /// when to call this again.
    pub(in crate::map) fn settle_left_out(&mut self, now: BootNs) -> Option<BootNs> {
        let census = &self.kernel.census;
        if census.left_out.is_empty() {
            return None;
        }
        let due = census.turned.plus(TURN);
        if now < due && census.turned > BootNs::default() {
            return Some(due);
        }
        self.kernel.census.turned = now;
        let mut taken_in = self.fill_free_places(now);
        taken_in += self.exchange(now);
        let census = &mut self.kernel.census;
        if taken_in > 0 {
            self.scheduler.walk_by(now);
        } else if census.left_out.is_more()
            && census.left_out.has_room()
            && now.since(census.looked) >= LOOK
        {
            census.looked = now;
            self.scheduler.walk_by(now);
        }
        let census = &self.kernel.census;
        (!census.left_out.is_empty()).then(|| now.plus(TURN))
    }

    fn fill_free_places(&mut self, now: BootNs) -> usize {
        let mut taken_in = 0;
        while taken_in < AT_A_TIME && self.kernel.census.has_room() {
            let left_out = &mut self.kernel.census.left_out;
            let Some(Entry { names, user, .. }) =
                left_out.next().and_then(|slot| left_out.remove(slot))
            else {
                break;
            };
            self.insert_known(&names, user, now);
            taken_in += 1;
        }
        taken_in
    }

    /// Gives places of netns that have been read, and that nothing connects with the node, to those that have not been read.
    fn exchange(&mut self, now: BootNs) -> usize {
        let census = &mut self.kernel.census;
        if !census.left_out.has_unread() || !census.is_full() {
            return 0;
        }
        if now.since(census.passed_over.0) >= ASKED_AGAIN {
            let asked_again = std::mem::take(&mut census.passed_over.1);
            census.passed_over.0 = now;
            asked_again.into_iter().for_each(|id| self.recensus(id));
        }
        let connected = self.connected().all;
        let (mut taken_in, mut passed_over) = (0, 0);
        while taken_in < AT_A_TIME && passed_over < PASSED_OVER {
            let census = &mut self.kernel.census;
            let Some(giver) = census.room.giver(Tenant::User(None), 0, 1) else { break };
            if census.room.yields(giver.id) == Yields::Last {
                break;
            }
            let entry = self.kernel.netns.get(&giver.id);
            if entry.is_none_or(|entry| entry.yields() == Yields::Last)
                || connected.contains(&giver.id)
            {
                self.kernel.census.passed_over.1.insert(giver.id);
                self.recensus(giver.id);
                passed_over += 1;
                continue;
            }
            let left_out = &mut self.kernel.census.left_out;
            let Some(Entry { names, user, .. }) =
                left_out.next_unread().and_then(|slot| left_out.remove(slot))
            else {
                break;
            };
            self.give_up(giver.id, State::Apart, now);
            self.insert_known(&names, user, now);
            taken_in += 1;
        }
        taken_in
    }

    /// Whether an IP of the node may be in a netns that is not kept.
    pub(in crate::map) fn is_left_out_within_reach(&self) -> bool {
        let Census { left_out, leads_out, .. } = &self.kernel.census;
        if left_out.is_unclear() || left_out.is_empty() {
            return left_out.is_unclear();
        }
        let now = self.tick();
        if let Some((_, known)) = leads_out.get().filter(|(at, _)| *at == now) {
            return known;
        }
        let leads = self.connected().leads_out;
        leads_out.set(Some((now, leads)));
        leads
    }

    /// Number of netns that are not kept, as far as their names are remembered.
    #[must_use]
    pub fn left_out(&self) -> usize {
        self.kernel.census.left_out.len()
    }

    /// Those that are not kept, by tenant.
    pub(super) fn left_out_by_tenant(&self) -> BTreeMap<Tenant, u64> {
        let mut tenants = BTreeMap::new();
        for entry in self.kernel.census.left_out.entries() {
            let tenant = match entry.user {
                Some((0, false)) => Tenant::Root,
                user => Tenant::User(user.map(|(uid, _)| uid)),
            };
            *tenants.entry(tenant).or_default() += 1;
        }
        tenants
    }

    /// The netns that are not kept, by tenant, for people; those that lack most come first.
    #[must_use]
    pub fn said_of_unkept_netns(&self) -> Option<String> {
        const LISTED: usize = 3;
        let left_out = &self.kernel.census.left_out;
        if left_out.is_empty() {
            return None;
        }
        let mut tenants: Vec<_> = self.left_out_by_tenant().into_iter().collect();
        tenants.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let mut said = String::new();
        for (tenant, count) in tenants.into_iter().take(LISTED) {
            let apart = if said.is_empty() { "" } else { "; " };
            let whose = self.said_of_tenant(tenant);
            let _ = write!(said, "{apart}{whose}: {count} network namespaces not kept");
        }
        if left_out.is_more() {
            let apart = if said.is_empty() { "" } else { "; " };
            let _ = write!(said, "{apart}further network namespaces are not even counted");
        }
        Some(said)
    }
}
