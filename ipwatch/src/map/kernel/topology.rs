//! Data of a netns, beside its links, that decides who can reach whom: its nsids for other netns, the VLANs of bridge
//! ports, default routes and routes to single IPs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::fact::{BootNs, Hop, Link, LinkDetail, NetnsRef, Route, RouteKey, Vlans};

use super::fittings::Fitting;
use super::tombstones::Tombstone;
use crate::map::{NetnsId, NodeMap};

/// Maximum number of VLAN ranges of one device: every other one of the 4,094 VLANs.
const MAX_VLANS: usize = 2048;
/// Maximum number of routes of one netns: one for each pod, and the default routes of a node with many uplinks.
const MAX_ROUTES: usize = 8_192;
/// Maximum number of nsids that a netns has for others. The host has one for each pod.
const MAX_PEERS: usize = 8_192;
/// Maximum number of bridges whose VLANs are requested during the life of a netns: indexes are not reused soon, and
/// each request costs a dump.
const MAX_ASKED: usize = 1_024;
/// Maximum number of next hops of a route.
const MAX_HOPS: usize = 16;

/// The wiring of one netns.
#[derive(Debug, Default)]
pub(in crate::map) struct Topology {
    /// Its nsids for other netns.
    peers: BTreeMap<i32, NetnsId>,
    vlans: BTreeMap<u32, (Vec<Vlans>, BootNs)>,
    /// Total number of VLAN ranges.
    ranges: usize,
    /// Bridges whose VLANs were requested.
    asked: BTreeSet<u32>,
    routes: BTreeMap<RouteKey, (Vec<Hop>, BootNs)>,
}

impl Topology {
    /// The netns that has this nsid here, as far as reported.
    pub(in crate::map) fn peer(&self, nsid: i32) -> Option<NetnsId> {
        self.peers.get(&nsid).copied()
    }

    /// The VLANs of a device; `None` if they were never reported.
    pub(in crate::map) fn vlans(&self, ifindex: u32) -> Option<&[Vlans]> {
        self.vlans.get(&ifindex).map(|(vlans, _)| vlans.as_slice())
    }

    /// The next hops of the routes to this single IP in this table.
    pub(in crate::map) fn hops_to(&self, ip: IpAddr, table: u32) -> impl Iterator<Item = &Hop> {
        let prefix_len = if ip.is_ipv4() { 32 } else { 128 };
        let first = RouteKey { to: ip, prefix_len, table, priority: 0 };
        let last = RouteKey { priority: u32::MAX, ..first };
        self.routes.range(first..=last).flat_map(|(_, (hops, _))| hops)
    }

    /// The routes, each with its next hops and the time of the last report.
    pub(in crate::map) fn routes(&self) -> impl Iterator<Item = (&RouteKey, &[Hop], BootNs)> {
        self.routes.iter().map(|(key, (hops, at))| (key, hops.as_slice(), *at))
    }

    /// Merges the wiring of an entry that turned out to be the same netns: the newer report wins.
    pub(in crate::map) fn absorb(&mut self, other: Topology) {
        self.peers.extend(other.peers);
        for (ifindex, vlans) in other.vlans {
            let own = self.vlans.entry(ifindex).or_default();
            if own.1 <= vlans.1 {
                *own = vlans;
            }
        }
        self.ranges = self.vlans.values().map(|(ranges, _)| ranges.len()).sum();
        for (key, route) in other.routes {
            let own = self.routes.entry(key).or_default();
            if own.1 <= route.1 {
                *own = route;
            }
        }
    }

    pub(super) fn routes_len(&self) -> usize {
        self.routes.len()
    }

    pub(super) fn vlan_ranges(&self) -> usize {
        self.ranges
    }

    pub(super) fn peers_len(&self) -> usize {
        self.peers.len()
    }

    /// Drops the newest routes, up to `count`. Returns how many were dropped.
    pub(super) fn shed_routes(&mut self, count: usize) -> usize {
        let mut all: Vec<(Reverse<BootNs>, RouteKey)> =
            self.routes.iter().map(|(key, (_, told))| (Reverse(*told), *key)).collect();
        if count > 0 && count < all.len() {
            all.select_nth_unstable(count);
        }
        all.truncate(count);
        all.iter().for_each(|(_, key)| drop(self.routes.remove(key)));
        all.len()
    }

    /// Drops the VLANs of devices until `count` ranges are dropped. Returns how many were.
    pub(super) fn shed_vlans(&mut self, count: usize) -> usize {
        let before = self.ranges;
        while before - self.ranges < count
            && let Some(ifindex) = self.vlans.last_key_value().map(|(ifindex, _)| *ifindex)
        {
            self.forget_vlans(ifindex);
        }
        before - self.ranges
    }

    /// Drops up to `count` names of other netns. Returns how many were dropped.
    pub(super) fn shed_peers(&mut self, count: usize) -> usize {
        (0..count).map_while(|_| self.peers.pop_last()).count()
    }

    fn forget_vlans(&mut self, ifindex: u32) {
        self.ranges -= self.vlans.remove(&ifindex).map_or(0, |(ranges, _)| ranges.len());
    }

    /// A device was removed or set down: the kernel drops its routes without reporting any (`fib_sync_down_dev`).
    pub(in crate::map) fn forget_routes(&mut self, ifindex: u32, at: BootNs) {
        self.routes.retain(|_, (hops, told)| {
            if *told <= at {
                hops.retain(|hop| hop.ifindex != ifindex);
            }
            !hops.is_empty()
        });
    }

    pub(in crate::map) fn forget_device(&mut self, ifindex: u32, at: BootNs) {
        self.forget_vlans(ifindex);
        self.forget_routes(ifindex, at);
    }
}

impl NodeMap {
    pub(in crate::map) fn set_peer_netns(
        &mut self,
        netns: &NetnsRef,
        nsid: i32,
        peer: &NetnsRef,
        at: BootNs,
    ) {
        let Some(id) = self.resolve(netns, at) else { return };
        let Some(peer) = self.resolve(peer, at) else { return };
        let Some(entry) = self.kernel.netns.get(&id) else { return };
        let peers = &entry.wiring.peers;
        let known = peers.get(&nsid).copied();
        if known == Some(peer) || (known.is_none() && peers.len() >= MAX_PEERS) {
            return;
        }
        if known.is_none() && !self.make_room_for(id, Fitting::Peer, at) {
            return;
        }
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        entry.wiring.peers.insert(nsid, peer);
        self.refit(id);
        self.conflict.rewired();
        self.kernel.unresolved_peers.named(id, nsid);
    }

    /// Two entries turned out to be one netns.
    pub(in crate::map) fn rename_peer(&mut self, from: NetnsId, to: NetnsId) {
        let peers =
            self.kernel.netns.values_mut().flat_map(|entry| entry.wiring.peers.values_mut());
        peers.filter(|peer| **peer == from).for_each(|peer| *peer = to);
        self.conflict.rewired();
    }

    /// A bridge port was isolated from other isolated ports, or is no longer.
    pub(in crate::map) fn set_isolated(
        &mut self,
        netns: &NetnsRef,
        ifindex: u32,
        isolated: bool,
        at: BootNs,
    ) {
        let Some(entry) = self.find(netns).and_then(|id| self.kernel.netns.get_mut(&id)) else {
            return;
        };
        if let Some(known) = entry.links.get_mut(&ifindex).filter(|known| known.touched <= at)
            && std::mem::replace(&mut known.link.isolated, isolated) != isolated
        {
            self.conflict.rewired();
        }
    }

    /// A bridge has VLANs from its creation, but reports its own only when they change (`br_vlan_init`, 6.1 to 6.18):
    /// for a bridge that was created after the netns was read, they are requested once.
    pub(in crate::map) fn want_vlans(&mut self, id: NetnsId, link: &Link, at: BootNs) {
        /// Delay, so that the setup of a new bridge is finished first.
        const SOON: u64 = 100_000_000;
        let filters = Some(LinkDetail::Bridge { vlan_filtering: true });
        let Some(entry) = self.kernel.netns.get_mut(&id).filter(|entry| entry.opened.is_some())
        else {
            return;
        };
        let wiring = &mut entry.wiring;
        if link.detail == filters
            && !wiring.vlans.contains_key(&link.ifindex)
            && wiring.asked.len() < MAX_ASKED
            && wiring.asked.insert(link.ifindex)
        {
            self.scheduler.doubted(id, entry.host, at.plus(SOON));
        }
    }

    pub(in crate::map) fn set_vlans(
        &mut self,
        netns: &NetnsRef,
        ifindex: u32,
        vlans: &[Vlans],
        at: BootNs,
    ) {
        let Some(id) = self.resolve(netns, at) else { return };
        if self.kernel.tombstones.covers(Tombstone::Link(id, ifindex), at) {
            return;
        }
        let Some(entry) = self.kernel.netns.get(&id) else { return };
        let known = entry.wiring.vlans.get(&ifindex);
        if known.is_some_and(|(_, told)| *told > at) {
            return;
        }
        let new: Vec<Vlans> = vlans.iter().take(MAX_VLANS).copied().collect();
        let had = known.map_or(0, |(ranges, _)| ranges.len());
        let more = new.len().saturating_sub(had);
        if more > 0 && !self.make_room_for(id, Fitting::Vlans(more), at) {
            return;
        }
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        if entry.wiring.vlans.get(&ifindex).is_none_or(|(known, _)| *known != new) {
            self.conflict.rewired();
        }
        entry.wiring.forget_vlans(ifindex);
        entry.wiring.ranges += new.len();
        entry.wiring.vlans.insert(ifindex, (new, at));
        self.refit(id);
    }

    pub(in crate::map) fn set_route(&mut self, netns: &NetnsRef, route: &Route, at: BootNs) {
        let Some(id) = self.resolve(netns, at) else { return };
        if self.kernel.tombstones.covers(Tombstone::Route(id, route.key), at) {
            return;
        }
        let Some(entry) = self.kernel.netns.get(&id) else { return };
        let routes = &entry.wiring.routes;
        let is_new = !routes.contains_key(&route.key);
        if is_new && routes.len() >= MAX_ROUTES {
            self.not_kept_of(id, Fitting::Route, 1);
            return;
        }
        if is_new && !self.make_room_for(id, Fitting::Route, at) {
            return;
        }
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        let known = entry.wiring.routes.entry(route.key).or_default();
        if known.1 < at {
            *known = (Vec::new(), at);
        }
        // Facts of the same time are merged: a dump reports routes with the same key one by one.
        if known.1 == at {
            self.conflict.readdressed();
            for hop in route.hops.iter().take(MAX_HOPS) {
                if known.0.len() < MAX_HOPS && !known.0.contains(hop) {
                    known.0.push(*hop);
                }
            }
        }
        if is_new {
            self.refit(id);
        }
    }

    /// A route was removed: only these next hops, or all of them if `hops` is empty.
    pub(in crate::map) fn drop_route(
        &mut self,
        netns: &NetnsRef,
        key: &RouteKey,
        hops: &[Hop],
        at: BootNs,
    ) {
        let Some(id) = self.find(netns) else { return };
        self.kernel.tombstones.dig(Tombstone::Route(id, *key), at);
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        let Some((known, told)) = entry.wiring.routes.get_mut(key) else { return };
        if *told > at {
            return;
        }
        known.retain(|hop| !hops.is_empty() && !hops.contains(hop));
        self.conflict.readdressed();
        if known.is_empty() {
            entry.wiring.routes.remove(key);
            self.refit(id);
        }
    }

    pub(in crate::map) fn sweep_routes(&mut self, netns: &NetnsRef, began: BootNs) {
        let Some(id) = self.find(netns) else { return };
        if let Some(entry) = self.kernel.netns.get_mut(&id) {
            entry.wiring.routes.retain(|_, (_, told)| *told >= began);
            self.conflict.readdressed();
        }
        self.refit(id);
        self.fittings_of_dump(id, true);
    }
}
