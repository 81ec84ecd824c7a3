//! Which netns a fact is about.
//!
//! Only the cookie identifies a netns for as long as the node runs. The nsfs inode is reused at once (`ns_free_inum`),
//! and so is the nsid (`net->netns_ids`), so each name maps to the netns that had it **last**, and a name that appears
//! together with a contradicting one has moved to another netns. A netns without a cookie has a provisional identity
//! with a generation, which is incremented when the former owner of the name is seen to end.

use std::fmt;

use crate::fact::{BootNs, NetnsRef};

use crate::map::{Certainty, Kinds, Netns, NodeMap, Table};

/// A netns within one run of the map. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetnsId(u64);

impl NetnsId {
    pub(in crate::map) const MIN: Self = Self(0);
    pub(in crate::map) const MAX: Self = Self(u64::MAX);

    #[cfg(test)]
    pub(in crate::map) const fn numbered(n: u64) -> Self {
        Self(n)
    }
}

/// Identifies a netns within a boot, in ids and in the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Identity {
    Cookie(u64),
    /// The inode, and the number of its former owners.
    Inode(u32, u32),
    /// The nsid, and the number of its former owners.
    Nsid(i32, u32),
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identity::Cookie(cookie) => write!(f, "cookie:{cookie}"),
            Identity::Inode(inode, generation) => write!(f, "inode:{inode}#{generation}"),
            Identity::Nsid(nsid, generation) => write!(f, "nsid:{nsid}#{generation}"),
        }
    }
}

/// Maps each name to the netns that had it last.
#[derive(Debug, Default)]
pub(in crate::map) struct Names {
    provisional: bool,
    host: NetnsRef,
    next: u64,
    cookies: Table<u64, NetnsId>,
    inodes: Table<u32, NetnsId>,
    nsids: Table<i32, NetnsId>,
    inode_generations: Table<u32, u32>,
    nsid_generations: Table<i32, u32>,
}

impl Names {
    pub(in crate::map) fn new(provisional: bool) -> Self {
        Self { provisional, ..Self::default() }
    }

    pub(in crate::map) fn set_host(&mut self, host: NetnsRef) {
        self.host = self.usable(&host);
    }

    /// Drops the cookie in provisional mode.
    pub(super) fn usable(&self, netns: &NetnsRef) -> NetnsRef {
        let mut usable = *netns;
        if self.provisional {
            usable.cookie = None;
        }
        usable
    }

    /// The owner of these names, looked up by the strongest one.
    pub(in crate::map) fn find(&self, netns: &NetnsRef) -> Option<NetnsId> {
        let netns = self.usable(netns);
        if let Some(cookie) = netns.cookie {
            return self.cookies.get(&cookie).copied();
        }
        let by_inode = netns.inode.and_then(|inode| self.inodes.get(&inode));
        by_inode.or_else(|| netns.nsid.and_then(|nsid| self.nsids.get(&nsid))).copied()
    }

    fn fresh(&mut self, names: &NetnsRef) -> (NetnsId, Identity) {
        self.next += 1;
        (NetnsId(self.next), self.identity(names))
    }

    fn identity(&self, names: &NetnsRef) -> Identity {
        if let Some(cookie) = names.cookie {
            return Identity::Cookie(cookie);
        }
        if let Some(inode) = names.inode {
            let generation = self.inode_generations.get(&inode).copied().unwrap_or(0);
            return Identity::Inode(inode, generation);
        }
        let nsid = names.nsid.unwrap_or(-1);
        Identity::Nsid(nsid, self.nsid_generations.get(&nsid).copied().unwrap_or(0))
    }

    fn bind(&mut self, id: NetnsId, names: &NetnsRef) {
        if let Some(cookie) = names.cookie {
            self.cookies.insert(cookie, id);
        }
        if let Some(inode) = names.inode {
            self.inodes.insert(inode, id);
        }
        if let Some(nsid) = names.nsid {
            self.nsids.insert(nsid, id);
        }
    }

    /// Removes the names of an ended netns, unless they have moved to another.
    fn unbind(&mut self, id: NetnsId, names: &NetnsRef) {
        self.release(id, names);
        if let Some(inode) = names.inode {
            *self.inode_generations.entry(inode).or_default() += 1;
        }
        if let Some(nsid) = names.nsid {
            *self.nsid_generations.entry(nsid).or_default() += 1;
        }
    }

    /// Removes the names of a netns that goes on but is not kept.
    fn release(&mut self, id: NetnsId, names: &NetnsRef) {
        if let Some(cookie) = names.cookie.filter(|name| self.cookies.get(name) == Some(&id)) {
            self.cookies.remove(&cookie);
        }
        if let Some(inode) = names.inode.filter(|name| self.inodes.get(name) == Some(&id)) {
            self.inodes.remove(&inode);
        }
        if let Some(nsid) = names.nsid.filter(|name| self.nsids.get(name) == Some(&id)) {
            self.nsids.remove(&nsid);
        }
    }

    fn free_nsid(&mut self, id: NetnsId, nsid: i32) {
        if self.nsids.get(&nsid) == Some(&id) {
            self.nsids.remove(&nsid);
        }
        *self.nsid_generations.entry(nsid).or_default() += 1;
    }
}

impl NodeMap {
    /// The netns that these names belong to; creates it if the names are new. Entries that turn out to have names in
    /// common are merged, and a name whose owner contradicts another name in `netns` moves to the new owner. `None` for
    /// a reference without a usable name, and for a netns that is not kept: see `census`.
    pub(in crate::map) fn resolve(&mut self, netns: &NetnsRef, at: BootNs) -> Option<NetnsId> {
        let names = self.kernel.names.usable(netns);
        // The usual case: one known name, or several that agree.
        if let Some(id) = self.kernel.names.find(&names)
            && let Some(entry) = self.kernel.netns.get(&id)
            && agree(&entry.names, &names) == Agreement::Same
            && (entry.dying.is_none() || names.cookie.is_some())
        {
            return Some(id);
        }
        if names == NetnsRef::default() || self.kernel.tombstones.buried(&names, at) {
            return None;
        }
        // A late fact about a netns in teardown: its nsid may belong to another netns by now.
        if let Some(id) =
            names.cookie.and_then(|cookie| self.kernel.names.cookies.get(&cookie)).copied()
            && self.kernel.netns.get(&id).is_some_and(|entry| entry.dying.is_some())
        {
            return Some(id);
        }
        let mut owner = None;
        for id in self.owners(&names) {
            let Some(entry) = self.kernel.netns.get(&id) else { continue };
            // Nothing new enters a netns in teardown, so an inode or nsid reported after that already belongs to
            // another netns.
            let moved_on = names.cookie.is_none() && entry.dying.is_some_and(|since| since < at);
            if moved_on || agree(&entry.names, &names) == Agreement::Contradiction {
                // A walk that began before this netns was created refers to the previous owner of the name.
                if at < entry.first_seen {
                    return None;
                }
                self.take_names(id, &names, at);
            } else if let Some(first) = owner {
                self.merge(first, id);
            } else {
                owner = Some(id);
            }
        }
        let Some(id) = owner else { return self.take_in_netns(&names, at) };
        self.learn(id, &names);
        Some(id)
    }

    /// The entries whose end these names report: every entry with one of them, because an end may be reported before
    /// its names were known to belong together. Excludes a later netns that has reused the inode or nsid.
    pub(in crate::map) fn meant_by_death(&self, netns: &NetnsRef, at: BootNs) -> Vec<NetnsId> {
        let names = self.kernel.names.usable(netns);
        let mut ids = self.owners(&names);
        ids.retain(|id| {
            self.kernel.netns.get(id).is_some_and(|entry| {
                let by_cookie = names.cookie.is_some() && entry.names.cookie == names.cookie;
                !entry.host
                    && agree(&entry.names, &names) != Agreement::Contradiction
                    && (by_cookie || entry.first_seen <= at)
            })
        });
        ids
    }

    /// The netns known by any of these names, the cookie's owner first.
    pub(in crate::map) fn owners(&self, names: &NetnsRef) -> Vec<NetnsId> {
        let mut owners = Vec::with_capacity(3);
        let by_cookie = names.cookie.and_then(|cookie| self.kernel.names.cookies.get(&cookie));
        let by_inode = names.inode.and_then(|inode| self.kernel.names.inodes.get(&inode));
        let by_nsid = names.nsid.and_then(|nsid| self.kernel.names.nsids.get(&nsid));
        for id in [by_cookie, by_inode, by_nsid].into_iter().flatten() {
            if !owners.contains(id) {
                owners.push(*id);
            }
        }
        owners
    }

    pub(super) fn is_hosts(&self, names: &NetnsRef) -> bool {
        is_host(&self.kernel.names.host, names)
    }

    pub(super) fn insert_netns(&mut self, names: &NetnsRef, at: BootNs) -> NetnsId {
        self.changes.mark(Kinds::NETNS);
        let (id, identity) = self.kernel.names.fresh(names);
        let host = self.is_hosts(names);
        let mut entry = Netns::new(id, identity, *names, host, at);
        if host {
            entry.learn_names(&self.kernel.names.host.clone());
        }
        self.kernel.names.bind(id, &entry.names);
        self.kernel.census.left_out.strip(&entry.names);
        self.kernel.netns.insert(id, entry);
        self.recensus(id);
        if !host {
            self.scheduler.netns_appeared(id, at);
            self.announce(id);
        }
        id
    }

    /// Adds names to a netns.
    fn learn(&mut self, id: NetnsId, names: &NetnsRef) {
        self.add_names(id, names);
        self.announce(id);
    }

    fn add_names(&mut self, id: NetnsId, names: &NetnsRef) {
        self.changes.mark(Kinds::NETNS);
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        entry.learn_names(names);
        if entry.names.cookie.is_some() {
            entry.cookie_since.get_or_insert(self.now);
        }
        self.conflict.rewired();
        let identity = self.kernel.names.identity(&entry.names);
        // A cookie replaces a provisional identity. A provisional identity is kept as it was created, whatever names
        // are learned later, and also if tenures were already reported with it: from 5.7 to 5.11 a netns has no cookie
        // until somebody asks for it (`net_gen_cookie`).
        if matches!(identity, Identity::Cookie(_)) && !entry.announced {
            entry.identity = identity;
        }
        self.kernel.names.bind(id, &entry.names);
        self.kernel.census.left_out.strip(&entry.names);
    }

    /// These names of `id` belong to another netns now: the kernel reuses a name only when its owner is being
    /// destroyed.
    fn take_names(&mut self, id: NetnsId, names: &NetnsRef, at: BootNs) {
        self.changes.mark(Kinds::NETNS);
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        let host = entry.host;
        if entry.names.inode.is_some() && entry.names.inode == names.inode {
            // An inode is freed at the very end (`net_free`, or `ns_free_inum` in `cleanup_net` after the devices are
            // gone).
            if !host {
                self.remove_netns(id, at, "netns-gone");
            }
        } else if let Some(nsid) = entry.names.nsid
            && entry.names.nsid == names.nsid
        {
            entry.names.nsid = None;
            self.conflict.rewired();
            self.kernel.names.free_nsid(id, nsid);
            if !host {
                self.mark_dying(id, at);
            }
        }
    }

    /// Two entries turn out to be one netns: merges `other` into `id`.
    fn merge(&mut self, id: NetnsId, other: NetnsId) {
        self.changes.mark(Kinds::ALL);
        let Some(mut gone) = self.kernel.netns.remove(&other) else { return };
        self.scheduler.forget_netns(other);
        self.kernel.unresolved_peers.forget(other);
        self.rename_peer(other, id);
        self.workload.forget_owner(other, gone.owner.as_ref());
        self.forget_netns_neighbours(other);
        self.merge_census(id, other);
        self.recount(other);
        self.refit(other);
        self.recrowd(other);
        gone.owner = None;
        self.kernel.teardowns.revived(other);
        self.workload.ask_owner(id);
        self.conflict.rewired();
        for key in gone.addresses.keys() {
            self.kernel.by_ip.remove(&(key.local, other));
        }
        self.kernel.tasks.rehome(gone.tasks.keys(), id);
        self.kernel.tombstones.rehome(other, id);
        let told = Self::told_tenures(&gone);
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        let names = gone.names;
        entry.absorb(&mut gone);
        self.tenant_changed(id);
        let Some(entry) = self.kernel.netns.get(&id) else { return };
        let ips: Vec<_> = entry.addresses.keys().map(|key| key.local).collect();
        for ip in ips {
            self.kernel.by_ip.insert((ip, id));
            self.count_holders(ip);
        }
        self.add_names(id, &names);
        self.kernel.tenures.forget(other);
        self.move_tenures(id, told, self.now());
        self.announce(id);
        self.announce_rest(id);
    }

    pub(in crate::map) fn unbind_nsid(&mut self, id: NetnsId, nsid: i32) {
        self.changes.mark(Kinds::NETNS);
        self.conflict.rewired();
        self.kernel.names.free_nsid(id, nsid);
    }

    /// Removes a netns: frees its names and ends its addresses.
    pub(in crate::map) fn remove_netns(&mut self, id: NetnsId, at: BootNs, ended_by: &'static str) {
        self.kernel.teardowns.finished(id, at);
        let Some(entry) = self.take_out_netns(id, at, ended_by) else { return };
        self.kernel.names.unbind(id, &entry.names);
        // An owner guessed by the IP may be the IP's next holder.
        if let Some(owner) = entry.owner.as_ref().filter(|owner| owner.certainty != Certainty::ByIp)
        {
            self.bereave(&owner.sandbox, at);
        }
        self.kernel.tombstones.netns_removed(&entry.names, at);
    }

    /// Drops a netns that goes on: its end is concluded by nobody.
    pub(super) fn drop_netns(&mut self, id: NetnsId, at: BootNs, ended_by: &'static str) {
        self.kernel.teardowns.revived(id);
        let Some(entry) = self.take_out_netns(id, at, ended_by) else { return };
        self.kernel.names.release(id, &entry.names);
    }

    /// Takes an entry out of everything but `names`.
    fn take_out_netns(&mut self, id: NetnsId, at: BootNs, ended_by: &'static str) -> Option<Netns> {
        self.changes.mark(Kinds::ALL);
        self.end_all_tenures(id, at, ended_by);
        let entry = self.kernel.netns.remove(&id)?;
        self.recount(id);
        self.refit(id);
        self.recrowd(id);
        self.conflict.rewired();
        for key in entry.addresses.keys() {
            self.kernel.by_ip.remove(&(key.local, id));
            self.count_holders(key.local);
            self.ipam.touch(key.local);
        }
        for task in entry.tasks.keys() {
            self.drop_task(task);
        }
        self.scheduler.forget_netns(id);
        self.forget_netns_neighbours(id);
        self.kernel.unresolved_peers.forget(id);
        self.workload.forget_owner(id, entry.owner.as_ref());
        Some(entry)
    }
}

fn is_host(host: &NetnsRef, names: &NetnsRef) -> bool {
    match (host.cookie, names.cookie) {
        (Some(host), Some(cookie)) => host == cookie,
        _ => host.inode.is_some() && host.inode == names.inode,
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Agreement {
    /// Every given name is already this entry's.
    Same,
    /// None contradicts; some are new to this entry.
    Compatible,
    /// At least one contradicts this entry.
    Contradiction,
}

fn agree(entry: &NetnsRef, names: &NetnsRef) -> Agreement {
    fn one<T: PartialEq>(known: Option<T>, given: Option<T>) -> Agreement {
        match (known, given) {
            (_, None) => Agreement::Same,
            (None, Some(_)) => Agreement::Compatible,
            (Some(known), Some(given)) if known == given => Agreement::Same,
            _ => Agreement::Contradiction,
        }
    }
    let all = [
        one(entry.cookie, names.cookie),
        one(entry.inode, names.inode),
        one(entry.nsid, names.nsid),
    ];
    if all.contains(&Agreement::Contradiction) {
        // With the same cookie it is the same netns: a different nsid or inode only means that the map's is outdated.
        if entry.cookie.is_some() && entry.cookie == names.cookie {
            return Agreement::Compatible;
        }
        Agreement::Contradiction
    } else if all.contains(&Agreement::Compatible) {
        Agreement::Compatible
    } else {
        Agreement::Same
    }
}
