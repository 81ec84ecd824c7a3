//! What was deleted lately: so that a dump which read it before cannot bring it back.

use std::collections::VecDeque;
use std::net::IpAddr;

use crate::fact::{BootNs, NetnsRef, RouteKey, TaskKey};

use crate::map::{AddressId, NetnsId, Table};

/// What was deleted lately, and when. Bounded: beyond [`Tombstones::MAX`] the oldest are forgotten, which a
/// dump slower than that many deletions would have to survive; none is.
#[derive(Debug, Default)]
pub(in crate::map) struct Tombstones {
    entries: Table<Tombstone, BootNs>,
    order: VecDeque<(Tombstone, BootNs)>,
}

/// What can be deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::map) enum Tombstone {
    Cookie(u64),
    /// One whose end was told by another name, or concluded: that name may have been another's by then.
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

    /// What was deleted in one entry was deleted in the other: they are one netns.
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

    /// The end of a netns, as it was told.
    pub(in crate::map) fn netns(&mut self, names: &NetnsRef, at: BootNs) {
        if let Some(cookie) = names.cookie {
            self.dig(Tombstone::Cookie(cookie), at);
        }
        self.netns_removed(&NetnsRef { cookie: None, ..*names }, at);
    }

    /// A netns is gone by what is known now. Its nsid may have been another's when the end was told: netlink's
    /// word is stamped when it is read, which may be after the nsid was given out again.
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

    /// Whether word of this netns comes too late: a cookie never lives twice, and the other names were
    /// somebody's who died after `at`.
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
    /// The same in another netns; `None` when it is not in `from`.
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
