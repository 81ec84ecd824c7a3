//! The contents of a netns, except devices (`links`) and addresses (`addresses`), and the rules of order between events
//! and dumps.
//!
//! An entry stores the time of the fact that last touched it. An older fact is ignored; a deletion leaves a tombstone
//! for a while, so that a dump which read the entry before the deletion cannot revive it. A complete dump removes what
//! was last touched before it began.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::rc::Rc;

use crate::fact::{BootNs, Holder, Hop, Link, NetnsRef, RouteKey, Scope, TaskKey, Vlans};

use super::addresses::{AddressEntry, AddressId};
use super::holder::Hold;
use super::incomplete::Incomplete;
use super::neighbours::NeighbourEntry;
use super::residents::Residents;
use super::shares::Unkept;
use super::topology::Topology;
use crate::map::conflict::is_pods;
use crate::map::{Identity, Kinds, NetnsId, NodeMap, Owner, Tick};

/// One network namespace.
#[derive(Debug)]
pub struct Netns {
    pub id: NetnsId,
    pub identity: Identity,
    /// Every known name.
    pub names: NetnsRef,
    /// Whether it is the host's.
    pub host: bool,
    /// When it was first reported.
    pub first_seen: BootNs,
    /// Since when its cookie is known. Until then, `first_seen` may be of another netns that had its inode or nsid.
    pub(in crate::map) cookie_since: Option<BootNs>,
    /// When its teardown was seen to begin, or its nsid was removed.
    pub dying: Option<BootNs>,
    /// When the last complete dump of its addresses began.
    pub opened: Option<BootNs>,
    /// When the current dump of its addresses began.
    pub(super) dumping: Option<BootNs>,
    /// When the current dump of its neighbours began.
    pub(super) dumping_neighbours: Option<BootNs>,
    pub(super) unkept: Unkept,
    pub(super) incomplete: Incomplete,
    /// Whether its addresses have been reported as tenures.
    pub(super) announced: bool,
    pub(super) touched: BootNs,
    /// When something within it last changed: see `changes`.
    pub(super) changed: Tick,
    /// Boxed: a node of the tree has room for eleven at once, and most netns have two.
    pub(super) links: BTreeMap<u32, Box<LinkEntry>>,
    /// Those of `links` that have a pod's device name and their other end in this netns too.
    pairs: BTreeSet<u32>,
    pub(super) addresses: BTreeMap<AddressId, AddressEntry>,
    pub(super) neighbours: BTreeMap<(u32, IpAddr), NeighbourEntry>,
    pub(super) wiring: Topology,
    /// Each with its cgroup, because it is needed often.
    pub(super) tasks: Residents,
    pub(super) holders: BTreeMap<Holder, Hold>,
    /// Processes that may hold it by an fd in flight.
    pub(super) candidates: BTreeMap<Holder, Hold>,
    /// When a search for holders last ended, and whether it was complete.
    pub(super) searched: Option<(BootNs, bool)>,
    /// Number of consecutive complete searches that found no holder.
    pub(super) bare_searches: u32,
    pub(super) owner: Option<Owner>,
    /// Who owns its user namespace, once somebody has looked.
    pub(super) user: Option<(u32, bool)>,
    /// No task has been in it since, but for visitors.
    pub(super) idle_since: Option<BootNs>,
    /// The stay of those who entered it when it was empty.
    stay: Option<Stay>,
}

/// A stay in a netns that was empty.
#[derive(Debug, Clone, Copy)]
struct Stay {
    /// When the first task entered.
    since: BootNs,
    /// Since when the netns had been empty then.
    was_idle: BootNs,
    /// When those who are still in it count as ones that live there; unknown until the map first looks.
    settles: Option<BootNs>,
}

/// Who leaves a netns that was empty within this time was a visitor, in ns. Agents (and another ipwatch) enter a netns for
/// microseconds to look at it, and `ip netns exec` for as long as its command takes: if each of them counted, what nobody
/// lives in would never have been empty for long.
const VISIT: u64 = 500_000_000;

/// A link and when it was reported.
#[derive(Debug, Clone)]
pub struct LinkEntry {
    pub link: Link,
    /// First reported.
    pub since: BootNs,
    /// Time of the newest fact.
    pub touched: BootNs,
}

impl Netns {
    pub(in crate::map) fn new(
        id: NetnsId,
        identity: Identity,
        names: NetnsRef,
        host: bool,
        at: BootNs,
    ) -> Self {
        Self {
            id,
            identity,
            names,
            host,
            first_seen: at,
            cookie_since: names.cookie.map(|_| at),
            dying: None,
            opened: None,
            dumping: None,
            dumping_neighbours: None,
            unkept: Unkept::default(),
            incomplete: Incomplete::default(),
            announced: false,
            touched: at,
            changed: Tick::default(),
            links: BTreeMap::new(),
            pairs: BTreeSet::new(),
            addresses: BTreeMap::new(),
            neighbours: BTreeMap::new(),
            wiring: Topology::default(),
            tasks: Residents::default(),
            holders: BTreeMap::new(),
            candidates: BTreeMap::new(),
            searched: None,
            bare_searches: 0,
            owner: None,
            user: None,
            idle_since: Some(at),
            stay: None,
        }
    }

    /// A task has entered. Returns whether the netns was empty. Whoever enters may be a visitor then, but for the first one
    /// of a new netns, for whom it was made: one that has been searched is not new.
    pub(super) fn entered(&mut self, at: BootNs) -> bool {
        let Some(was_idle) = self.idle_since else { return false };
        if was_idle != self.first_seen || self.searched.is_some() {
            self.stay.get_or_insert(Stay { since: at, was_idle, settles: None });
        }
        true
    }

    /// When whoever is in it counts as one that lives there; `None`: now. A visit is timed from when this is first asked,
    /// not from when it began: the news of its end may be as late as that of its beginning.
    pub(super) fn settles(&mut self, now: BootNs) -> Option<BootNs> {
        let stay = self.stay.as_mut()?;
        Some(*stay.settles.get_or_insert(now.plus(VISIT))).filter(|due| now < *due)
    }

    /// Whoever is in it lives there.
    pub(super) fn inhabited(&mut self) {
        self.idle_since = None;
    }

    /// The last task has left. If it was a visitor, the netns has been empty for as long as before, even if this is told so
    /// late that the visitor already counted as one that lives there. Returns whether nothing has changed.
    pub(super) fn deserted(&mut self, at: BootNs) -> bool {
        let visit = self.stay.take().filter(|stay| at.since(stay.since) < VISIT);
        let before = self.idle_since.replace(visit.map_or(at, |stay| stay.was_idle));
        before.is_some() && before == self.idle_since
    }

    /// Whether all that are in it may be visitors.
    pub(in crate::map) fn is_visited(&self) -> bool {
        self.stay.is_some() && self.idle_since.is_some()
    }

    /// Whether it was empty before those that are in it entered.
    pub(in crate::map) fn was_left(&self) -> bool {
        self.stay.is_some()
    }

    pub(in crate::map) fn learn_names(&mut self, names: &NetnsRef) {
        self.names.cookie = names.cookie.or(self.names.cookie);
        self.names.inode = names.inode.or(self.names.inode);
        if self.dying.is_none() {
            self.names.nsid = names.nsid.or(self.names.nsid);
        }
    }

    /// Merges an entry that turned out to be the same netns: the newer report wins.
    pub(in crate::map) fn absorb(&mut self, other: &mut Netns) {
        self.first_seen = self.first_seen.min(other.first_seen);
        self.cookie_since = self.cookie_since.into_iter().chain(other.cookie_since).min();
        self.touched = self.touched.max(other.touched);
        self.dying = self.dying.or(other.dying);
        self.opened = self.opened.max(other.opened);
        self.unkept.absorb(other.unkept);
        self.incomplete.absorb(&other.incomplete);
        self.user = self.user.or(other.user);
        absorb_map(&mut self.links, &mut other.links, |entry| entry.touched);
        self.links.keys().copied().collect::<Vec<_>>().into_iter().for_each(|on| self.pair_up(on));
        absorb_map(&mut self.addresses, &mut other.addresses, |entry| entry.touched);
        absorb_map(&mut self.neighbours, &mut other.neighbours, |entry| entry.touched);
        absorb_map(&mut self.holders, &mut other.holders, |hold| hold.touched);
        absorb_map(&mut self.candidates, &mut other.candidates, |hold| hold.touched);
        self.wiring.absorb(std::mem::take(&mut other.wiring));
        self.tasks.append(&mut other.tasks);
        self.owner = self.owner.take().or(other.owner.take());
        self.idle_since = self.idle_since.max(other.idle_since).filter(|_| self.tasks.is_empty());
        self.stay = None;
    }

    /// Its links, by index.
    pub fn links(&self) -> impl Iterator<Item = &LinkEntry> {
        self.links.values().map(Box::as_ref)
    }

    /// Its links that have a pod's device name and their other end in this netns too, by index.
    pub fn pairs(&self) -> impl Iterator<Item = &LinkEntry> {
        self.pairs.iter().filter_map(|ifindex| self.links.get(ifindex)).map(Box::as_ref)
    }

    /// Updates `pairs` after a link was added, changed or removed.
    pub(in crate::map) fn pair_up(&mut self, ifindex: u32) {
        let is_pair = self.links.get(&ifindex).is_some_and(|known| {
            let link = &known.link;
            link.peer.is_some() && link.peer_nsid.is_none() && is_pods(link)
        });
        if is_pair {
            self.pairs.insert(ifindex);
        } else {
            self.pairs.remove(&ifindex);
        }
    }

    #[must_use]
    pub fn link(&self, ifindex: u32) -> Option<&Link> {
        self.links.get(&ifindex).map(|entry| &entry.link)
    }

    pub fn neighbours(&self) -> impl ExactSizeIterator<Item = &NeighbourEntry> {
        self.neighbours.values()
    }

    pub(in crate::map) fn neighbour(&self, ifindex: u32, ip: IpAddr) -> Option<&NeighbourEntry> {
        self.neighbours.get(&(ifindex, ip))
    }

    /// Its routes: see [`Topology::routes`].
    pub(in crate::map) fn routes(&self) -> impl Iterator<Item = (&RouteKey, &[Hop], BootNs)> {
        self.wiring.routes()
    }

    /// The VLANs of a port, once they are known.
    pub(in crate::map) fn vlans(&self, ifindex: u32) -> Option<&[Vlans]> {
        self.wiring.vlans(ifindex)
    }

    /// The next hops of a table's most specific route to an IP.
    pub(in crate::map) fn hops_to(&self, ip: IpAddr, table: u32) -> impl Iterator<Item = &Hop> {
        self.wiring.hops_to(ip, table)
    }

    /// Whether something within it changed after `since`.
    pub(in crate::map) fn changed_since(&self, since: Tick) -> bool {
        self.changed > since
    }

    /// Number of its entries that exceed the bounds and are not kept: addresses, links, neighbours, routes and the
    /// rest.
    pub(in crate::map) fn beyond_bounds(&self) -> u64 {
        self.unkept.all()
    }

    /// Its known tasks: processes, and threads whose process is not in it.
    pub fn tasks(&self) -> impl ExactSizeIterator<Item = &TaskKey> {
        self.tasks.keys()
    }

    /// Its known tasks, unless all of them may be visitors.
    pub fn inhabitants(&self) -> impl Iterator<Item = &TaskKey> {
        (!self.is_visited()).then(|| self.tasks()).into_iter().flatten()
    }

    /// When the first of those that are in it entered, if it was empty then.
    #[must_use]
    pub fn entered_since(&self) -> Option<BootNs> {
        self.stay.map(|stay| stay.since)
    }

    /// As [`Netns::entered_since`], once they count as ones that live there: what a runtime said before says nothing of them.
    pub(in crate::map) fn settled_since(&self) -> Option<BootNs> {
        self.entered_since().filter(|_| !self.is_visited())
    }

    /// Its known tasks, each with its cgroup if known.
    pub fn cgroups(&self) -> impl Iterator<Item = (&TaskKey, Option<&str>)> {
        self.tasks.iter().map(|(task, cgroup)| (task, cgroup.as_deref()))
    }

    /// Sets the cgroup of a task in it.
    pub(super) fn has_cgroup(&mut self, task: TaskKey, cgroup: Option<Rc<str>>) {
        self.tasks.set_cgroup(task, cgroup);
    }

    /// Whether an fd or a socket holds it: only another search can show that it was closed.
    pub(in crate::map) fn has_hidden_holder(&self) -> bool {
        self.holders.keys().any(|holder| !matches!(holder, Holder::Mount { .. }))
    }

    /// Its holders other than tasks.
    pub fn holders(&self) -> impl Iterator<Item = &Holder> {
        self.holders.keys()
    }

    /// When a search for holders last ended, and whether everything answered.
    #[must_use]
    pub fn searched(&self) -> Option<(BootNs, bool)> {
        self.searched
    }

    /// Whether a complete search after `since` found no fd and no socket that holds it.
    pub(in crate::map) fn is_bare_since(&self, since: BootNs) -> bool {
        self.searched.is_some_and(|(at, complete)| complete && at >= since)
            && !self.has_hidden_holder()
    }

    /// Whether more than one complete search found no holder, so that something within the kernel holds it. A single
    /// search may have run between the end of the last holder and that of the netns.
    #[must_use]
    pub fn held_by_kernel(&self) -> bool {
        self.bare_searches > 1 && self.holders.is_empty()
    }

    /// The sandbox it was made for, if that was ever known.
    #[must_use]
    pub fn owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }

    /// Since when no task has been in it, but for visitors.
    #[must_use]
    pub fn idle_since(&self) -> Option<BootNs> {
        self.idle_since
    }
}

/// Whether an IP can be handed out at all: not loopback, link-local, multicast or unspecified.
pub(in crate::map) fn is_routable(ip: IpAddr) -> bool {
    if ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() {
        return false;
    }
    match ip {
        IpAddr::V4(ip) => !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    }
}

fn absorb_map<K: Ord, V>(
    into: &mut BTreeMap<K, V>,
    from: &mut BTreeMap<K, V>,
    touched: impl Fn(&V) -> BootNs,
) {
    for (key, value) in std::mem::take(from) {
        match into.get(&key) {
            Some(own) if touched(own) >= touched(&value) => {}
            _ => {
                into.insert(key, value);
            }
        }
    }
}

impl NodeMap {
    pub(in crate::map) fn touch_netns(&mut self, id: NetnsId, at: BootNs) {
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        entry.touched = entry.touched.max(at);
        // It is in `net->list` after all: an inconsistent walk had reported its teardown.
        if entry.dying.is_some_and(|since| since < at) {
            entry.dying = None;
            self.changes.mark(Kinds::ALL);
            self.kernel.teardowns.revived(id);
            self.conflict.rewired();
            let is_visited = !entry.tasks.is_empty() && entry.idle_since.is_some();
            self.scheduler.netns_appeared(id, at);
            if is_visited {
                self.scheduler.visited(id, at);
            }
        }
    }

    /// The teardown has begun. If ends of teardowns are not observed, this is the last report of the netns.
    pub(in crate::map) fn netns_dying(&mut self, netns: &NetnsRef, at: BootNs) {
        let ids = self.meant_by_death(netns, at);
        if ids.is_empty() {
            self.left_out_ended(netns, false, at);
            self.graves_for_unknown(netns, at);
        }
        // `unhash_nsid` (net/core/net_namespace.c, 6.12) frees an nsid before it reports that: by then the nsid may
        // belong to another, living netns.
        let by_nsid = netns.cookie.is_none() && netns.inode.is_none();
        for id in ids {
            self.mark_dying(id, at);
            if by_nsid && self.kernel.netns.contains_key(&id) {
                self.scheduler.confirm_end(id, at);
            }
        }
    }

    /// An unknown netns ends: facts about it that are still queued must not create it.
    fn graves_for_unknown(&mut self, netns: &NetnsRef, at: BootNs) {
        if let Some(nsid) = netns.nsid {
            self.kernel.tombstones.netns(&NetnsRef::nsid(nsid), at);
        }
    }

    pub(in crate::map) fn mark_dying(&mut self, id: NetnsId, at: BootNs) {
        let seen_to_end = self.sight.teardown_end;
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        if entry.host {
            return;
        }
        // The end of a teardown is reported by cookie and inode: of a netns known only by its nsid it would never be
        // noticed.
        let nameable = entry.names.cookie.is_some() || entry.names.inode.is_some();
        if !seen_to_end || !nameable {
            self.remove_netns(id, at, "netns-gone");
            return;
        }
        let asked = entry.dying.replace(entry.dying.unwrap_or(at)).is_none();
        self.changes.mark(Kinds::NETNS);
        self.conflict.rewired();
        for key in entry.addresses.keys() {
            self.ipam.touch(key.local);
        }
        // The nsid is free from the moment RTM_DELNSID is sent (`unhash_nsid`, before pre_exit).
        if let Some(nsid) = entry.names.nsid.take() {
            let names = NetnsRef::nsid(nsid);
            self.unbind_nsid(id, nsid);
            self.kernel.tombstones.netns(&names, at);
        }
        self.scheduler.forget_netns(id);
        if asked {
            self.teardown_asked(id, at);
        }
    }

    pub(in crate::map) fn netns_gone(&mut self, netns: &NetnsRef, at: BootNs) {
        self.left_out_ended(netns, true, at);
        for id in self.meant_by_death(netns, at) {
            self.remove_netns(id, at, "netns-gone");
        }
        self.kernel.tombstones.netns(netns, at);
    }

    /// A complete walk of `net->list` has ended: netns that it did not find are in teardown, or removed.
    pub(in crate::map) fn sweep_netns(&mut self, began: BootNs) {
        // A walk that began before the loss cannot make up for it.
        let lost = self.lost.take_if(|lost| *lost < began).is_some();
        if lost {
            let ended = |entry: &&Netns| entry.dying.is_some_and(|since| since < began);
            let ids: Vec<_> =
                self.kernel.netns.values().filter(ended).map(|entry| entry.id).collect();
            for id in ids {
                self.remove_netns(id, began, "netns-gone");
            }
        }
        self.sweep_left_out(began, lost);
        let missed: Vec<NetnsId> = self
            .kernel
            .netns
            .values()
            .filter(|entry| !entry.host && entry.dying.is_none())
            .filter(|entry| entry.touched < began && entry.first_seen < began)
            // A walk cannot find a netns known only by its nsid, because it does not read nsids.
            .filter(|entry| entry.names.inode.is_some() || entry.names.cookie.is_some())
            .map(|entry| entry.id)
            .collect();
        if !missed.is_empty() {
            self.teardown_progress(began);
        }
        for id in missed {
            self.mark_dying(id, began);
        }
    }

    /// A dump has begun: facts with the time `at` belong to it.
    pub(in crate::map) fn dump_began(&mut self, scope: &Scope, at: BootNs) {
        let (Scope::Addresses { netns } | Scope::Neighbours { netns } | Scope::Links { netns }) =
            scope
        else {
            return;
        };
        let Some(id) = self.resolve(netns, at) else { return };
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        match scope {
            Scope::Addresses { .. } => {
                entry.dumping = Some(at);
                self.unkept_of_dump(id, false);
            }
            Scope::Neighbours { .. } => entry.dumping_neighbours = Some(at),
            // Links are read first in a netns, and routes last.
            _ => self.fittings_of_dump(id, false),
        }
    }

    pub(in crate::map) fn dump_ended(&mut self, netns: &NetnsRef, began: BootNs, complete: bool) {
        let Some(id) = self.resolve(netns, began) else {
            // A name of the netns belonged to another one that has ended since: nothing of the dump was applied.
            for id in self.owners(netns) {
                self.scheduler.not_adopted(id, self.now);
            }
            return;
        };
        let is_late = self.is_of_before_it_was_kept(id, began);
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        entry.dumping = None;
        if complete && !is_late {
            entry.opened = entry.opened.max(Some(began));
            self.unkept_of_dump(id, true);
            self.scheduler.adopted(id);
            self.read_once_more(id);
            self.announce(id);
            self.recensus(id);
        } else {
            self.scheduler.not_adopted(id, self.now);
        }
    }
}
