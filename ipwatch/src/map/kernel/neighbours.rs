//! Neighbour entries, as netlink and the probe report them, and the claims that they imply.

use std::net::IpAddr;

use crate::fact::{BootNs, Mac, Neighbour, NetnsRef, Origin};

use super::fittings::Fitting;
use super::tombstones::Tombstone;
use crate::map::conflict::{EntryContext, INCOMPLETE_OR_FAILED, PERMANENT};
use crate::map::{NetnsId, NodeMap};

/// Maximum number of neighbours of one netns; those with the oldest reports are dropped first. The kernel's own limit
/// for the whole machine (`gc_thresh3`) is 1024.
const MAX_NEIGHBOURS: usize = 4096;
/// Fraction of them that is dropped at a time.
const OLDEST: usize = 16;

/// `NUD_*`, `include/uapi/linux/neighbour.h` and `include/net/neighbour.h`.
const NUD_REACHABLE: u16 = 0x02;
const NUD_NOARP: u16 = 0x40;
const NUD_VALID: u16 = 0xde;

/// A neighbour entry, and when it changed.
#[derive(Debug, Clone)]
pub struct NeighbourEntry {
    pub neighbour: Neighbour,
    /// Last change of MAC or state.
    pub changed: BootNs,
    /// Time of the newest fact.
    pub touched: BootNs,
    /// When it last became reachable.
    pub confirmed: Option<BootNs>,
}

impl NeighbourEntry {
    fn new(neighbour: &Neighbour, at: BootNs) -> Self {
        let confirmed = is_reachable(neighbour).then_some(at);
        Self { neighbour: neighbour.clone(), changed: at, touched: at, confirmed }
    }
}

fn is_reachable(neighbour: &Neighbour) -> bool {
    neighbour.state & NUD_REACHABLE != 0
}

/// Whether it was set manually, or is of a kind that no packet changes.
fn is_fixed(neighbour: &Neighbour) -> bool {
    neighbour.admin || neighbour.state & (PERMANENT | NUD_NOARP) != 0
}

/// The MAC that, according to this report, was just heard for the IP. A dump reports existing entries without a time:
/// an entry that is confirmed may have been confirmed by the previous holder of the IP.
pub(in crate::map) fn heard(
    known: Option<&Neighbour>,
    new: &Neighbour,
    dumped: bool,
) -> Option<Mac> {
    let mac = new.mac.filter(|_| !dumped && new.state & NUD_VALID != 0 && !is_fixed(new))?;
    let other = known.is_none_or(|known| known.mac != Some(mac));
    let confirmed = is_reachable(new) && known.is_none_or(|known| !is_reachable(known));
    (confirmed || other).then_some(mac)
}

impl NodeMap {
    pub(in crate::map) fn set_neighbour(
        &mut self,
        netns: &NetnsRef,
        new: &Neighbour,
        at: BootNs,
        origin: Origin,
    ) {
        let Some(id) = self.resolve(netns, at) else { return };
        if self.kernel.tombstones.covers(Tombstone::Neighbour(id, new.ifindex, new.ip), at) {
            return;
        }
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        let (tenant, dumped) = (entry.counts_to(), entry.dumping_neighbours == Some(at));
        let key = (new.ifindex, new.ip);
        let known = entry.neighbours.get(&key);
        if known.is_some_and(|known| known.touched > at) {
            // Netlink was read earlier and reports the newer state. Only the probe reports which MAC the kernel heard
            // before that.
            if origin == Origin::Probe {
                self.hear_neighbour(id, new, None, at, (true, false));
            }
            return;
        }
        let before = known.map(|known| known.neighbour.clone());
        if before.is_none() {
            if entry.neighbours.len() >= MAX_NEIGHBOURS {
                self.forget_oldest_neighbours(id, at);
            }
            if !self.make_room_for(id, Fitting::Neighbour, at) {
                return;
            }
        }
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        match entry.neighbours.get_mut(&key) {
            Some(known) => {
                if known.neighbour.mac != new.mac || known.neighbour.state != new.state {
                    known.changed = at;
                    known.confirmed = Some(at).filter(|_| is_reachable(new)).or(known.confirmed);
                }
                known.neighbour = new.clone();
                known.touched = at;
            }
            None => {
                entry.neighbours.insert(key, NeighbourEntry::new(new, at));
                self.refit(id);
            }
        }
        let Some(entry) = self.kernel.netns.get(&id) else { return };
        let confirmed = entry.neighbours.get(&key).and_then(|known| known.confirmed);
        self.conflict.neighbour_told(id, new, EntryContext { confirmed, tenant, dumped }, at);
        self.hear_neighbour(id, new, before.as_ref(), at, (origin == Origin::Probe, dumped));
        if before.is_none_or(|before| (before.mac, before.state) != (new.mac, new.state)) {
            self.kernel.news.changed(id, new.ifindex, new.ip);
        }
    }

    pub(in crate::map) fn drop_neighbour(
        &mut self,
        netns: &NetnsRef,
        ifindex: u32,
        ip: IpAddr,
        at: BootNs,
    ) {
        let Some(id) = self.find(netns) else { return };
        self.kernel.tombstones.dig(Tombstone::Neighbour(id, ifindex, ip), at);
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        if entry.neighbours.get(&(ifindex, ip)).is_some_and(|known| known.touched <= at) {
            self.forget_neighbour(id, ifindex, ip, at);
            self.refit(id);
        }
    }

    /// Drops an entry, whether or not it still exists in the kernel.
    pub(super) fn forget_neighbour(&mut self, id: NetnsId, ifindex: u32, ip: IpAddr, at: BootNs) {
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        entry.neighbours.remove(&(ifindex, ip));
        self.conflict.neighbour_gone(id, ifindex, ip, at);
        self.kernel.news.changed(id, ifindex, ip);
    }

    /// Makes room in a netns with the maximum number of entries: several at a time, because finding the oldest takes a
    /// scan.
    fn forget_oldest_neighbours(&mut self, id: NetnsId, at: BootNs) {
        let Some(entry) = self.kernel.netns.get(&id) else { return };
        let mut all: Vec<(BootNs, (u32, IpAddr))> =
            entry.neighbours.iter().map(|(key, known)| (known.touched, *key)).collect();
        let count = all.len() / OLDEST;
        all.select_nth_unstable(count);
        all.truncate(count);
        for (_, (ifindex, ip)) in all {
            self.forget_neighbour(id, ifindex, ip, at);
        }
        self.not_kept_of(id, Fitting::Neighbour, count);
        self.refit(id);
    }

    pub(in crate::map) fn sweep_neighbours(&mut self, netns: &NetnsRef, began: BootNs) {
        let Some(id) = self.find(netns) else { return };
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        let stale = entry.neighbours.extract_if(.., |_, known| known.touched < began);
        let stale: Vec<(u32, IpAddr)> = stale.map(|(key, _)| key).collect();
        for (ifindex, ip) in stale {
            self.conflict.neighbour_gone(id, ifindex, ip, began);
            self.kernel.news.changed(id, ifindex, ip);
        }
        self.refit(id);
    }

    /// A device was removed, and its entries with it.
    pub(in crate::map) fn forget_device_neighbours(&mut self, id: NetnsId, ifindex: u32) {
        if let Some(entry) = self.kernel.netns.get_mut(&id) {
            entry.neighbours.retain(|(on, _), _| *on != ifindex);
        }
        self.conflict.forget_device(id, ifindex);
    }

    /// As [`NodeMap::forget_device_neighbours`], for a whole netns.
    pub(in crate::map) fn forget_netns_neighbours(&mut self, id: NetnsId) {
        self.conflict.forget_netns(id);
    }
}

/// Whether an entry in this state has no answer.
pub(in crate::map) fn is_silent(state: u16) -> bool {
    state & NUD_VALID == 0 && state & INCOMPLETE_OR_FAILED != 0
}
