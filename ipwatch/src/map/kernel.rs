//! State of the kernel: netns under the kernel's names for them, their devices, addresses, neighbours and routes, and
//! the tasks in them.
//!
//! - `identity`: which netns a fact is about; reused names never merge two netns. `census`: how many netns are kept, and
//!   whose; `left_out`: the names of the others.
//! - `netns`: what a dump may and may not overwrite. `tombstones`: what a dump must not revive. `addresses`: address
//!   identity as in the kernel; `shares`: limits on addresses and how they are shared; `apart`: whose incompleteness
//!   concerns nobody else; `fittings`: the same limits for
//!   everything else in a netns. `links`: devices, and what is removed with them. `netlink_reconcile`: what netlink
//!   reports and no probe has. `incomplete`: netns whose events were not all reported.
//! - `neighbours`: ARP and NDP entries; `news`: which of them changed. `topology`: other data of a netns that decides
//!   who can reach whom. `unresolved_peers`: links to netns that no source has named yet.
//! - `holder`: what else holds a netns. `task`: tasks in a netns, exiting tasks and killed tasks; `residents`: those of one
//!   netns; `crowd`: how many are kept. `missed`: changes that no event reported. `teardown`: whether the kernel makes progress with teardown.
//! - `tenants`: who gives where a bound is reached; `not_kept`: what is beyond the bounds, for metrics.
//! - `tenure`: who had an IP from when to when, as events for the ledger and for `watch`.
//!
//! Invariants: a name maps to one netns and every name of a netns maps to it (`names`); no cookie of it is among those
//! left out; `by_ip` has exactly the IPs of
//! the addresses in `netns`; a task in the table is in the set of its netns.

mod addresses;
mod apart;
mod census;
mod crowd;
mod fittings;
mod holder;
mod identity;
mod incomplete;
mod left_out;
mod links;
mod missed;
mod neighbours;
mod netlink_reconcile;
mod netns;
mod news;
mod not_kept;
mod residents;
mod shares;
mod task;
mod teardown;
mod tenants;
mod tenure;
mod tombstones;
mod topology;
mod unresolved_peers;

use std::collections::BTreeSet;
use std::net::IpAddr;

#[cfg(test)]
pub(in crate::map) use addresses::asked;
pub use addresses::{AddressEntry, AddressId};
pub use identity::{Identity, NetnsId};
pub use neighbours::NeighbourEntry;
pub(in crate::map) use neighbours::{heard, is_silent};
pub(in crate::map) use netns::is_routable;
pub use netns::{LinkEntry, Netns};
pub use news::NeighbourNews;
pub use not_kept::NotKept;
pub use task::{Kill, LookEntry, TaskEntry};
pub use teardown::{Ending, Teardown, WorkerLook};
pub use tenants::TenantKind;
pub(in crate::map) use tenants::{Room, Tenant};
pub use tenure::{Begun, Named, TenureEvent, TenureKey};

use super::{NodeMap, Owner, Table, Tick};
use crate::fact::{BootNs, NetnsRef, Scope, TaskKey};

/// See the [module's documentation](self).
#[derive(Debug, Default)]
pub(super) struct Kernel {
    names: identity::Names,
    netns: Table<NetnsId, Netns>,
    /// Every address of every netns, in IP order.
    by_ip: BTreeSet<(IpAddr, NetnsId)>,
    tombstones: tombstones::Tombstones,
    shares: shares::Shares,
    fittings: fittings::Fittings,
    crowd: crowd::Crowd,
    census: census::Census,
    /// See `apart`.
    connected: apart::Cache,
    netlink_reconcile: netlink_reconcile::Unconfirmed,
    unresolved_peers: unresolved_peers::UnresolvedPeers,
    news: news::News,
    tenures: tenure::Outbox,

    tasks: task::Tasks,
    missed: missed::Missed,
    /// When all tasks are read because events of some were not reported.
    task_readings: incomplete::Readings,
    /// Before when no further netns of users is read because of losses.
    users_read_from: BootNs,
    teardowns: teardown::Teardowns,
    /// Number of [`Scope::Tasks`](crate::fact::Scope::Tasks) snapshots that ended: what the first one found existed
    /// before ipwatch started.
    task_snapshots: u32,
    /// Whether the mount table was read at least once.
    mounts_read: bool,
}

impl Kernel {
    /// With `provisional`, cookies are ignored.
    pub(super) fn new(provisional: bool) -> Self {
        Self { names: identity::Names::new(provisional), ..Self::default() }
    }

    pub(super) fn get(&self, id: NetnsId) -> Option<&Netns> {
        self.netns.get(&id)
    }

    /// Every netns, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = &Netns> {
        self.netns.values()
    }

    pub(super) fn find(&self, netns: &NetnsRef) -> Option<NetnsId> {
        self.names.find(netns)
    }

    /// Every address from `first` to `last`, with the netns that has it, in the order of IPs.
    pub(super) fn within(
        &self,
        first: IpAddr,
        last: IpAddr,
    ) -> impl Iterator<Item = (IpAddr, NetnsId)> {
        self.by_ip.range((first, NetnsId::MIN)..=(last, NetnsId::MAX)).copied()
    }

    /// Whether a netns has this IP.
    pub(super) fn has(&self, ip: IpAddr, id: NetnsId) -> bool {
        self.by_ip.contains(&(ip, id))
    }

    /// Every address, with the netns that has it, in the order of IPs.
    pub(super) fn addresses(&self) -> impl Iterator<Item = (IpAddr, NetnsId)> {
        self.by_ip.iter().copied()
    }

    /// To whom a task counts, if it is known.
    pub(super) fn tenant_of(&self, task: &TaskKey) -> Option<Tenant> {
        Some(self.get(self.tasks.get(task)?.netns)?.tenant())
    }

    /// Number of netns, addresses and tasks.
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        (self.netns.len(), self.by_ip.len(), self.tasks.len())
    }

    /// Number of items of all netns that exceed the bounds and are not kept.
    pub(super) fn beyond_bounds(&self) -> u64 {
        self.all().map(Netns::beyond_bounds).sum()
    }

    /// Whether tasks and mounts have been read at least once.
    pub(super) fn has_first_tasks_and_mounts(&self) -> bool {
        self.task_snapshots > 0 && self.mounts_read
    }

    /// Checks the lists whose bounds are constants, and that nothing is kept of netns that are not.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn assert_lists_are_bounded(&self) {
        self.tombstones.assert_is_bounded();
        self.tenures.assert_is_bounded();
        self.teardowns.assert_is_bounded(|id| self.netns.contains_key(&id));
        self.unresolved_peers.assert_is_bounded(|id| self.netns.contains_key(&id));
        self.netns.values().for_each(Netns::assert_holders_are_bounded);
        assert!(self.by_ip.iter().all(|(_, id)| self.netns.contains_key(id)));
    }

    /// A dump of this scope has ended.
    pub(super) fn read(&mut self, scope: &Scope) {
        match scope {
            Scope::Tasks => self.task_snapshots = self.task_snapshots.saturating_add(1),
            Scope::Mounts { .. } => self.mounts_read = true,
            _ => {}
        }
    }

    /// Marks a change within a pod's netns. Returns false if there is no such netns, or it is the host's.
    pub(super) fn mark_changed(&mut self, id: NetnsId, now: Tick) -> bool {
        let entry = self.netns.get_mut(&id).filter(|entry| !entry.host);
        entry.map(|entry| entry.changed = now).is_some()
    }

    /// The claim that this neighbour entry makes has changed.
    pub(super) fn neighbour_changed(&mut self, id: NetnsId, ifindex: u32, ip: IpAddr) {
        self.news.changed(id, ifindex, ip);
    }

    /// When to look at the teardown worker next.
    pub(super) fn teardown_due(&self) -> Option<BootNs> {
        self.teardowns.due()
    }

    /// Sets the owner of a netns. Returns the previous owner if it differs.
    pub(super) fn set_owner(
        &mut self,
        id: NetnsId,
        owner: Option<&Owner>,
    ) -> Option<Option<Owner>> {
        let entry = self.netns.get_mut(&id)?;
        if entry.owner.as_ref() == owner {
            return None;
        }
        Some(std::mem::replace(&mut entry.owner, owner.cloned()))
    }
}

impl NodeMap {
    /// One netns.
    #[must_use]
    pub fn netns(&self, id: NetnsId) -> Option<&Netns> {
        self.kernel.get(id)
    }

    /// Every netns, in no order.
    pub fn all_netns(&self) -> impl Iterator<Item = &Netns> {
        self.kernel.all()
    }

    /// Every netns that has this IP.
    pub fn with_ip(&self, ip: IpAddr) -> impl Iterator<Item = NetnsId> {
        self.kernel.within(ip, ip).map(|(_, id)| id)
    }

    /// The netns with this reference, if known.
    #[must_use]
    pub fn find(&self, netns: &NetnsRef) -> Option<NetnsId> {
        self.kernel.find(netns)
    }

    /// One task.
    #[must_use]
    pub fn task(&self, key: &TaskKey) -> Option<&TaskEntry> {
        self.kernel.tasks.get(key)
    }

    /// Every known task of a process, threads included.
    pub fn tasks_of(&self, pid: u32) -> impl Iterator<Item = &TaskEntry> {
        self.kernel.tasks.of(pid)
    }

    /// Tasks that are exiting or killed and still hold a netns.
    pub fn leaving(&self) -> impl Iterator<Item = &TaskEntry> {
        self.kernel.tasks.leaving()
    }

    /// Those of [`NodeMap::leaving`] that have been looked at.
    pub fn seen_leaving(&self) -> impl Iterator<Item = &TaskEntry> {
        self.kernel.tasks.seen_leaving()
    }

    /// Those of [`NodeMap::leaving`] that were already leaving at the first look.
    pub fn left_before(&self) -> impl Iterator<Item = &TaskEntry> {
        self.kernel.tasks.left_before()
    }

    /// When and by whom a task's process was killed, if that was observed.
    #[must_use]
    pub fn kill_of(&self, task: &TaskKey) -> Option<&Kill> {
        self.kernel.tasks.kill(task)
    }

    pub(super) fn set_host(&mut self, host: NetnsRef, at: BootNs) {
        self.kernel.names.set_host(host);
        self.conflict.rewired();
        self.resolve(&host, at);
    }
}
