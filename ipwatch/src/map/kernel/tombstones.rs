//! Recently deleted entries, so that a dump which read them before cannot revive them.

use std::collections::VecDeque;
use std::net::IpAddr;

use crate::fact::{BootNs, NetnsRef, RouteKey, TaskKey};

use crate::map::{AddressId, NetnsId, Table};

/// Deleted entries, with the time. Bounded: beyond [`Tombstones::MAX`] the oldest are dropped. That would matter only
/// to a dump that takes longer than that many deletions; none does.
#[derive(Debug, Default)]
pub(in crate::map) struct Tombstones {
    entries: Table<Tombstone, BootNs>,
    order: VecDeque<(Tombstone, BootNs)>,
}

/// A kind of entry that can be deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::map) enum Tombstone {
    Cookie(u64),
    /// A netns whose end was reported by another name, or inferred: that name may have belonged to another netns by
    /// then.
    PerhapsCookie(u64),
    Inode(u32),
    Nsid(i32),
    Link(NetnsId, u32),
    Address(NetnsId, AddressId),
    Neighbour(NetnsId, u32, IpAddr),
    Route(NetnsId, RouteKey),
    Task(TaskKey),
}

impl Tombstones {
    const MAX: usize = 8192;

    pub(in crate::map) fn dig(&mut self, grave: Tombstone, at: BootNs) {
        self.entries.insert(grave, at);
        self.order.push_back((grave, at));
        while self.order.len() > Self::MAX {
            let Some((oldest, dug)) = self.order.pop_front() else { break };
            if self.entries.get(&oldest) == Some(&dug) {
                self.entries.remove(&oldest);
            }
        }
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn assert_is_bounded(&self) {
        assert!(self.order.len() <= Self::MAX && self.entries.len() <= self.order.len());
    }

    /// Two netns are one: what was deleted in `from` was deleted in `to`.
    pub(in crate::map) fn rehome(&mut self, from: NetnsId, to: NetnsId) {
        let moved: Vec<(Tombstone, BootNs)> = self
            .order
            .iter()
            .filter_map(|(grave, at)| Some((grave.rehomed(from, to)?, *at)))
            .collect();
        for (grave, at) in moved {
            self.dig(grave, at);
        }
    }

    /// Whether this was deleted at `at` or later.
    pub(in crate::map) fn covers(&self, grave: Tombstone, at: BootNs) -> bool {
        self.entries.get(&grave).is_some_and(|dug| *dug >= at)
    }

    /// A netns ended, as reported by these names.
    pub(in crate::map) fn netns(&mut self, names: &NetnsRef, at: BootNs) {
        if let Some(cookie) = names.cookie {
            self.dig(Tombstone::Cookie(cookie), at);
        }
        self.netns_removed(&NetnsRef { cookie: None, ..*names }, at);
    }

    /// A netns was removed, as far as is known. Its nsid may have belonged to another one when the end was reported:
    /// netlink messages get their time when they are read, possibly after the nsid was reused.
    pub(in crate::map) fn netns_removed(&mut self, names: &NetnsRef, at: BootNs) {
        if let Some(cookie) = names.cookie {
            self.dig(Tombstone::PerhapsCookie(cookie), at);
        }
        if let Some(inode) = names.inode {
            self.dig(Tombstone::Inode(inode), at);
        }
        if let Some(nsid) = names.nsid {
            self.dig(Tombstone::Nsid(nsid), at);
        }
    }

    /// Whether a fact about this netns is too old: a cookie is never reused, and the other names belonged to a netns
    /// that ended after `at`.
    pub(in crate::map) fn buried(&self, names: &NetnsRef, at: BootNs) -> bool {
        if let Some(cookie) = names.cookie {
            return self.entries.contains_key(&Tombstone::Cookie(cookie))
                || self.covers(Tombstone::PerhapsCookie(cookie), at);
        }
        names.inode.is_some_and(|inode| self.covers(Tombstone::Inode(inode), at))
            || names.nsid.is_some_and(|nsid| self.covers(Tombstone::Nsid(nsid), at))
    }

    pub(in crate::map) fn task(&mut self, task: TaskKey, at: BootNs) {
        self.dig(Tombstone::Task(task), at);
    }

    pub(in crate::map) fn task_buried(&self, task: TaskKey, at: BootNs) -> bool {
        self.covers(Tombstone::Task(task), at)
    }
}

impl Tombstone {
    /// The same entry in another netns; `None` if it is not in `from`.
    fn rehomed(self, from: NetnsId, to: NetnsId) -> Option<Self> {
        Some(match self {
            Tombstone::Link(id, ifindex) if id == from => Tombstone::Link(to, ifindex),
            Tombstone::Address(id, key) if id == from => Tombstone::Address(to, key),
            Tombstone::Neighbour(id, ifindex, ip) if id == from => {
                Tombstone::Neighbour(to, ifindex, ip)
            }
            Tombstone::Route(id, key) if id == from => Tombstone::Route(to, key),
            _ => return None,
        })
    }
}
