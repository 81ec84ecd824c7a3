//! How many netns are kept, and whose. `turns`: who is taken in later, and who gives a place for it.
//!
//! Whoever may make a user namespace can make tens of thousands of netns, and each is an entry here. So all but the host's have
//! one bound. A new netns that finds no place is left out: only its names are remembered (`left_out`), so that neither later
//! facts nor each walk of `net->list` make an entry of it, which would cost an adoption.
//!
//! - Whose a netns is turns out when it is read, and so does whether it is connected with others. One that was left out
//!   unread therefore takes the place of one that users own, that has been read and that nothing connects with the node: of
//!   the tenant that has most (`tenants`), the newest, and one without tasks and addresses before others. This way each
//!   is read once.
//! - What root has mounted where the node or a runtime sees it, and what a runtime says is a sandbox's, gets a place at once,
//!   at the cost of any user's; a sandbox's at the cost of root's too. CNI plugins and IPAM work on such netns alone.
//! - If none can give its place like that, the newest of the user who has most do: whoever may connect one of his netns with
//!   others may do so with all, and keeps nobody from being read once. Those that cannot be opened are nobody's. What was
//!   read before and is in doubt, because events were lost, then waits until he has fewer.
//! - As long as one is left out whose devices were not read since they changed, or one that was taken in has not been read
//!   yet, an IP may be in it, and nobody is told that an IP is free. Those that nothing connects with the node take that from
//!   nobody (`apart`).
//! - Those that have been read are taken in again when an eighth of the places is free, a few at a time.

mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use ipwatch_common::{WALK_CHUNK, WALK_CHUNKS};

use super::left_out::{Entry, LeftOut, MAX_LEFT_OUT, Met, State};
use super::tenants::{Room, Tenant, Yields};
use crate::fact::{BootNs, Holder, Link, NetnsRef, Task};
use crate::map::workload::Certainty;
use crate::map::{Kinds, Netns, NetnsId, NodeMap, Tick};

/// Maximum number of netns that are kept, except the host's. What is in them has bounds of its own. A large node has a
/// thousand.
const MAX_NETNS: usize = 3_072;
// A walk can list all that are known.
const _: () = assert!(1 + MAX_NETNS + MAX_LEFT_OUT <= WALK_CHUNK * WALK_CHUNKS);
/// Fraction of the places that must be free before those that were left out are taken in again.
const ROOM: usize = 8;
/// How often a walk looks for those whose names were not even remembered.
const LOOK: u64 = 30_000_000_000;

#[derive(Debug)]
pub(in crate::map) struct Census {
    in_all: usize,
    room: Room,
    pub(super) left_out: LeftOut,
    /// Those that were taken in and have not been read since, and since when nothing is known of each.
    reading: BTreeMap<NetnsId, BootNs>,
    /// When the last turn was, the last walk for the tasks of those that were taken in (or the next), and the last one for
    /// those that are not remembered.
    turned: BootNs,
    walked: BootNs,
    looked: BootNs,
    /// When the first complete walk began.
    first_walk: Option<BootNs>,
    /// When it was last seen whether something that is kept leads to those that are not, and that it does.
    led: (BootNs, bool),
    /// Whether there were netns of before the first walk, at the last turn, that have not been read.
    waits: bool,
    /// Netns that cannot give their places, and since when.
    passed_over: (BootNs, BTreeSet<NetnsId>),
    /// The first processes of living sandboxes in order, as of a tick: tasks in what is left out are many.
    first_pids: Option<(Tick, Vec<u32>)>,
}

impl Default for Census {
    fn default() -> Self {
        Self {
            in_all: MAX_NETNS,
            room: Room::default(),
            left_out: LeftOut::default(),
            reading: BTreeMap::new(),
            turned: BootNs::default(),
            walked: BootNs::default(),
            looked: BootNs::default(),
            first_walk: None,
            led: Default::default(),
            waits: false,
            passed_over: Default::default(),
            first_pids: None,
        }
    }
}

/// Since when nothing is known of a netns that was left out, if it is not known what is in it now.
fn since_of(entry: Option<&Entry>, now: BootNs) -> Option<BootNs> {
    Some(entry.and_then(|entry| entry.unknown_since).unwrap_or(now))
}

impl Census {
    /// Whether any of those that are left out can be taken in, or looked for.
    fn has_something_to_do(&self) -> bool {
        let left_out = &self.left_out;
        left_out.has_unread()
            || (self.has_room() && left_out.has_apart())
            || (left_out.is_more() && left_out.has_room())
    }

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
        let is_read = self.is_a_users_and_read() && !self.is_incomplete();
        let is_used = !self.tasks.is_empty() || !self.addresses.is_empty();
        match (is_read, is_used) {
            (false, _) => Yields::Last,
            (true, true) => Yields::Later,
            (true, false) => Yields::First,
        }
    }
}

impl Netns {
    /// Whether it has been read, belongs to a user namespace, and no sandbox of a kubelet is known to be in it. A container's
    /// name in a cgroup, or an IP that a cached result names, is anybody's to make.
    fn is_a_users_and_read(&self) -> bool {
        let owner = self.owner.as_ref();
        let is_pods =
            owner.is_some_and(|owner| owner.kubelet && owner.certainty != Certainty::ByIp);
        self.opened.is_some() && self.is_of_a_user_namespace() && !is_pods
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
            census.left_out.add(names, None, (State::Unread, Some(at)), at);
            self.changes.mark(Kinds::NETNS | Kinds::ADDRESSES);
            return None;
        }
        // It may be one of those whose names are not remembered.
        let beyond = census.left_out.beyond_since();
        let id = self.insert_netns(names, at);
        if let Some(since) = beyond {
            self.kernel.census.reading.insert(id, since);
        }
        Some(id)
    }

    /// Whether these are the names of a netns that is not kept, so that facts about it are dropped.
    pub(in crate::map) fn is_left_out(&self, names: &NetnsRef) -> bool {
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
        if let Some(slot) = left_out.find(netns)
            && left_out.doubt(slot)
        {
            self.changes.mark(Kinds::NETNS | Kinds::ADDRESSES);
        }
    }

    /// Events were lost in any of those that are not kept.
    pub(in crate::map) fn doubt_all_left_out(&mut self) {
        self.kernel.census.left_out.doubt_all();
    }

    /// Whether a netns with these names may be one that is not kept.
    pub(super) fn may_be_left_out(&self, names: &NetnsRef, at: BootNs) -> bool {
        let left_out = &self.kernel.census.left_out;
        self.is_left_out(names)
            || (left_out.is_more()
                && self.find(names).is_none()
                && !self.kernel.tombstones.buried(&self.kernel.names.usable(names), at))
    }

    /// A netns that may not be kept has ended, or its teardown has begun (`whole` is false): facts that are still queued must
    /// not make it.
    pub(super) fn left_out_ended(&mut self, netns: &NetnsRef, whole: bool, at: BootNs) {
        let names = self.kernel.names.usable(netns);
        let left_out = &mut self.kernel.census.left_out;
        // If ends are not told, this is the last word.
        let was = if whole || !self.sight.teardown_end {
            left_out.ended(&names, at)
        } else {
            left_out.ends(&names, at)
        };
        if was {
            self.kernel.tombstones.netns_removed(netns, at);
            self.changes.mark(Kinds::NETNS | Kinds::ADDRESSES);
        }
    }

    /// A walk has found a netns that may not be kept.
    pub(in crate::map) fn found_left_out(&mut self, netns: &NetnsRef, at: BootNs) {
        let names = self.kernel.names.usable(netns);
        if self.kernel.census.left_out.found(&names, at) {
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
                left_out.add(&known.names, known.user, (known.state, known.unknown_since), at);
            }
            return None;
        }
        let named = known.map_or(names, |known| NetnsRef {
            cookie: names.cookie.or(known.names.cookie),
            inode: names.inode.or(known.names.inode),
            nsid: names.nsid.or(known.names.nsid),
        });
        let user = known.and_then(|known| known.user);
        let id = self.insert_known(&named, user, since_of(known.as_ref(), at), at);
        // Its tasks are listed again: they are the ways into it.
        self.scheduler.walk_by(at);
        Some(id)
    }

    /// Keeps a netns whose events were dropped so far. With `unknown_since`, an IP of the node may be in it until it has been
    /// read.
    fn insert_known(
        &mut self,
        names: &NetnsRef,
        user: Option<(u32, bool)>,
        unknown_since: Option<BootNs>,
        at: BootNs,
    ) -> NetnsId {
        let id = self.insert_netns(names, at);
        if let Some(entry) = self.kernel.netns.get_mut(&id) {
            entry.user = user;
        }
        if let Some(since) = unknown_since {
            self.kernel.census.reading.insert(id, since);
        }
        self.kernel.crowd.untold(id, at);
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
        let Some(entry) = self.kernel.netns.get(&id) else { return };
        let (names, user) = (entry.names, entry.user);
        let census = &mut self.kernel.census;
        let unread = entry.opened.is_none().then_some(entry.first_seen);
        let unknown_since = census.reading.remove(&id).or(unread);
        self.drop_netns(id, at, "not-kept");
        let left_out = &mut self.kernel.census.left_out;
        left_out.strip(&names);
        left_out.add(&names, user, (state, unknown_since), at);
    }

    /// Updates the place of a netns after it came or went, after it was read, or after it turned out whose it is.
    pub(in crate::map) fn recensus(&mut self, id: NetnsId) {
        let entry = self.kernel.netns.get(&id).filter(|entry| !entry.host);
        let place = entry.map(|entry| (entry.place_of(), entry.yields()));
        let is_read = entry.is_none_or(|entry| entry.opened.is_some());
        let census = &mut self.kernel.census;
        if is_read {
            census.reading.remove(&id);
        }
        match place {
            Some((tenant, _)) if census.passed_over.1.contains(&id) => {
                census.room.set_yielding(id, tenant, 1, Yields::Last);
            }
            Some((tenant, yields)) => census.room.set_yielding(id, tenant, 1, yields),
            None => census.room.set(id, Tenant::Root, 0),
        }
    }

    /// Whether an IP of the node may be in a netns that is not kept, or that was not kept and has not been read since.
    pub(in crate::map) fn is_left_out_within_reach(&self) -> bool {
        let Census { left_out, reading, .. } = &self.kernel.census;
        if left_out.is_unclear() || !reading.is_empty() {
            return true;
        }
        !left_out.is_empty() && self.connected().leads_out
    }

    /// Why that is so, for people; `None` if it is not.
    pub(in crate::map) fn said_of_unknown_netns(&self) -> Option<String> {
        let Census { left_out, reading, .. } = &self.kernel.census;
        if !self.is_left_out_within_reach() {
            return None;
        }
        Some(if left_out.is_more() {
            format!("more than {} network namespaces are not kept", left_out.len())
        } else if !left_out.is_unclear() && !reading.is_empty() {
            let count = reading.len();
            format!("{count} network namespaces that were not kept have not been read yet")
        } else {
            format!("{} network namespaces are not kept", left_out.len())
        })
    }

    /// Whether a netns that was there before the first walk was never read for want of room: any IP of before may be in it.
    #[must_use]
    pub fn has_unread_from_before(&self) -> bool {
        let Census { left_out, reading, first_walk, .. } = &self.kernel.census;
        let before = first_walk.unwrap_or(BootNs(u64::MAX));
        left_out.has_unknown_since(before) || reading.values().any(|since| *since <= before)
    }

    /// Whether a netns was first seen after the first complete walk began: what that walk found may be of any age.
    pub(in crate::map) fn was_seen_to_come(&self, entry: &Netns) -> bool {
        self.kernel.census.first_walk.is_none_or(|walk| entry.first_seen > walk)
    }

    /// A complete walk of `net->list` has ended: see [`LeftOut::sweep`].
    pub(super) fn sweep_left_out(&mut self, began: BootNs, lost: bool) {
        self.kernel.census.first_walk.get_or_insert(began);
        self.kernel.census.left_out.sweep(began, self.sight.teardown_end && !lost);
    }

    /// Two entries turn out to be one netns.
    pub(super) fn merge_census(&mut self, id: NetnsId, other: NetnsId) {
        if let Some(since) = self.kernel.census.reading.remove(&other) {
            self.kernel.census.reading.entry(id).or_insert(since);
        }
    }

    /// Whether a dump that began at this time is of a time when the netns was not kept.
    pub(super) fn is_of_before_it_was_kept(&self, id: NetnsId, began: BootNs) -> bool {
        let entry = self.kernel.netns.get(&id);
        self.kernel.census.reading.contains_key(&id)
            && entry.is_some_and(|entry| began < entry.first_seen)
    }

    /// Has those that were given up read again once something leads to them from the node.
    fn doubt_what_is_led_to(&mut self, now: BootNs) {
        let census = &self.kernel.census;
        let (looked, before) = census.led;
        if !census.left_out.has_apart() || now.since(looked) < LOOK {
            return;
        }
        let leads = self.connected().leads_out;
        self.kernel.census.led = (now, leads);
        if leads && !before {
            self.doubt_all_left_out();
            self.changes.mark(Kinds::NETNS | Kinds::ADDRESSES);
        }
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
