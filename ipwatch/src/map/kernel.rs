//! What the kernel has: netns under the names that it gives them, their devices, addresses, neighbours and routes, and
//! the tasks in them.
//!
//! - `identity`: which netns a fact speaks of; names that are reused never mix two of them.
//! - `netns`: what a dump may and may not overwrite. `tombstones`: what it must not bring back. `addresses`: what the
//!   kernel takes for one; `shares`: how many are kept, and whose; `fittings`: the same of all else in a netns. `links`: devices, and what goes with them.
//!   `netlink_reconcile`: what netlink says and no probe has told.
//! - `neighbours`: ARP and NDP entries; `news`: what of them changed. `topology`: what else of a netns says who can
//!   reach whom. `unresolved_peers`: links to netns that nobody has named yet.
//! - `holder`: what else holds a netns. `task`: who is in a netns, who is leaving it and who was killed. `missed`: what
//!   of all that no event had told. `teardown`: whether the kernel gets on with its work.
//! - `tenure`: who had an IP from when to when, as events for the ledger and for `watch`.
//!
//! What always holds: a name leads to one netns and every name of a netns leads to it (`names`); `by_ip` has exactly
//! the IPs of the addresses in `netns`; a task that is in the table is in the set of its netns.

mod addresses;
mod fittings;
mod holder;
mod identity;
mod links;
mod missed;
mod neighbours;
mod netlink_reconcile;
mod netns;
mod news;
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

pub use addresses::{AddressEntry, AddressId};
pub use identity::{Identity, NetnsId};
pub use neighbours::NeighbourEntry;
pub(in crate::map) use neighbours::{heard, is_silent};
pub(in crate::map) use netns::is_routable;
pub use netns::{LinkEntry, Netns};
pub use news::NeighbourNews;
pub use task::{Kill, LookEntry, TaskEntry};
pub use teardown::{Ending, Teardown, WorkerLook};
pub use tenure::TenureEvent;

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
    netlink_reconcile: netlink_reconcile::Unconfirmed,
    unresolved_peers: unresolved_peers::UnresolvedPeers,
    news: news::News,
    tenures: tenure::Outbox,

    tasks: task::Tasks,
    missed: missed::Missed,
    teardowns: teardown::Teardowns,
    /// Snapshots of [`Scope::Tasks`](crate::fact::Scope::Tasks) that ended: what the first one showed stood before
    /// ipwatch.
    task_snapshots: u32,
    /// The mount table was read at least once.
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

    /// The same of all.
    pub(super) fn addresses(&self) -> impl Iterator<Item = (IpAddr, NetnsId)> {
        self.by_ip.iter().copied()
    }

    /// Number of netns, addresses and tasks.
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        (self.netns.len(), self.by_ip.len(), self.tasks.len())
    }

    /// What of all netns is not kept.
    pub(super) fn beyond_bounds(&self) -> u64 {
        self.all().map(Netns::beyond_bounds).sum()
    }

    /// Tasks have been read at least once, and mounts.
    pub(super) fn has_first_tasks_and_mounts(&self) -> bool {
        self.task_snapshots > 0 && self.mounts_read
    }

    /// A dump of this scope has ended.
    pub(super) fn read(&mut self, scope: &Scope) {
        match scope {
            Scope::Tasks => self.task_snapshots = self.task_snapshots.saturating_add(1),
            Scope::Mounts { .. } => self.mounts_read = true,
            _ => {}
        }
    }

    /// Something within a pod's netns has changed. Whether there is such a netns.
    pub(super) fn mark_changed(&mut self, id: NetnsId, now: Tick) -> bool {
        let entry = self.netns.get_mut(&id).filter(|entry| !entry.host);
        entry.map(|entry| entry.changed = now).is_some()
    }

    /// What claims the IP of this neighbour entry has changed.
    pub(super) fn neighbour_changed(&mut self, id: NetnsId, ifindex: u32, ip: IpAddr) {
        self.news.changed(id, ifindex, ip);
    }

    /// When the kernel has been at tearing netns down for too long.
    pub(super) fn teardown_due(&self) -> Option<BootNs> {
        self.teardowns.due()
    }

    /// Says whose a netns is. Returns whose it was, if that is another.
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

    /// The netns of a source's name for it, when it is known.
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

    /// Those of them that a look was taken at.
    pub fn seen_leaving(&self) -> impl Iterator<Item = &TaskEntry> {
        self.kernel.tasks.seen_leaving()
    }

    /// Those of them that were so when ipwatch first looked.
    pub fn left_before(&self) -> impl Iterator<Item = &TaskEntry> {
        self.kernel.tasks.left_before()
    }

    /// When and by whom a task's process was killed, if it was seen.
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
