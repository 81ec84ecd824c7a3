//! How much is kept of what a netns has beside its addresses (links, neighbours, routes, VLANs, names of other netns),
//! and whose.
//!
//! As in `shares`, one room is shared by all netns but the host's. It is counted in bytes, roughly: what a link takes is
//! many times what a route does. When it is full, `tenants` says who gives. So whoever may make a netns of his own, which
//! on many nodes is everybody, cannot make ipwatch forget what it knows of pods or of other users, nor take its memory.
//!
//! What is given up first is what findings rest on least: neighbours that nobody has told of for longest, then the newest
//! routes, VLANs, names and links.

use std::cmp::Reverse;

use super::tenants::{Room, Tenant};
use crate::fact::BootNs;
use crate::map::{Netns, NetnsId, NodeMap};

/// What one of each takes, with what the tables around it do, in bytes.
const LINK: usize = 640;
const NEIGHBOUR: usize = 224;
const ROUTE: usize = 320;
const VLANS: usize = 16;
const PEER: usize = 32;
/// Kept of all netns but the host's, in bytes.
const MAX_IN_ALL: usize = 12 << 20;
/// What is cut off a netns at one time, as a part of what it has.
const CUT: usize = 16;
/// So much must be free, as a part, before what was not kept is read anew.
const ROOM: usize = 8;
/// Netns that give room to one thing at most.
const GIVERS: usize = 8;

/// What is to be kept.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fitting {
    Link,
    Neighbour,
    Route,
    /// So many ranges.
    Vlans(usize),
    Peer,
}

impl Fitting {
    /// How what is not kept is counted, in the words of people.
    pub(super) const KINDS: [&'static str; 4] =
        ["links", "neighbours", "routes", "VLANs and names of other netns"];

    /// Which of these it is.
    pub(super) fn kind(self) -> usize {
        match self {
            Self::Link => 0,
            Self::Neighbour => 1,
            Self::Route => 2,
            Self::Vlans(_) | Self::Peer => 3,
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::Link => LINK,
            Self::Neighbour => NEIGHBOUR,
            Self::Route => ROUTE,
            Self::Vlans(ranges) => VLANS.saturating_mul(ranges),
            Self::Peer => PEER,
        }
    }
}

/// What each netns but the host's takes.
#[derive(Debug)]
pub(in crate::map) struct Fittings {
    in_all: usize,
    room: Room,
}

impl Default for Fittings {
    fn default() -> Self {
        Self { in_all: MAX_IN_ALL, room: Room::default() }
    }
}

impl Fittings {
    /// Whether there is enough to read anew what was not kept.
    pub(super) fn has_room(&self) -> bool {
        self.room.kept() < self.in_all - self.in_all / ROOM
    }
}

impl Netns {
    /// What it has beside addresses, in bytes.
    fn size(&self) -> usize {
        self.links.len() * LINK
            + self.neighbours.len() * NEIGHBOUR
            + self.wiring.routes_len() * ROUTE
            + self.wiring.vlan_ranges() * VLANS
            + self.wiring.peers_len() * PEER
    }
}

impl NodeMap {
    /// Another bound, so that a test need not fill the whole one.
    #[cfg(test)]
    pub(in crate::map) fn bound_fittings(&mut self, in_all: usize) {
        self.kernel.fittings.in_all = in_all;
    }

    /// What is counted is what is there.
    #[cfg(test)]
    pub(in crate::map) fn assert_fittings_count(&self) {
        let own = self.kernel.netns.values().filter(|entry| !entry.host);
        let sizes = own.map(|entry| (entry.id, (entry.tenant(), entry.size())));
        let fittings = &self.kernel.fittings;
        assert_eq!(
            sizes.filter(|(_, (_, size))| *size > 0).collect::<std::collections::BTreeMap<_, _>>(),
            fittings.room.sizes()
        );
        assert!(fittings.room.kept() <= fittings.in_all);
    }

    /// Makes sure that one more of these can be kept of a netns, at the cost of another one. If not, it is counted.
    pub(super) fn make_room_for(&mut self, id: NetnsId, one: Fitting, at: BootNs) -> bool {
        for _ in 0..GIVERS {
            let Some(entry) = self.kernel.netns.get(&id) else { return false };
            let fittings = &self.kernel.fittings;
            if entry.host || fittings.room.kept() + one.bytes() <= fittings.in_all {
                return true;
            }
            let giver = fittings.room.giver(entry.tenant(), entry.size(), one.bytes());
            let Some(giver) = giver else { break };
            self.shed(giver.id, (giver.has / CUT).max(one.bytes()), at);
        }
        self.not_kept_of(id, one, 1);
        false
    }

    /// Gives up so many bytes of what a netns has.
    fn shed(&mut self, id: NetnsId, bytes: usize, at: BootNs) {
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        let mut given = 0;
        let neighbours = entry.neighbours.iter().map(|(key, known)| (known.touched, *key));
        let oldest = first(neighbours.collect(), bytes.div_ceil(NEIGHBOUR));
        let neighbours = oldest.len();
        given += neighbours * NEIGHBOUR;
        for (_, (ifindex, ip)) in oldest {
            self.forget_neighbour(id, ifindex, ip, at);
        }
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        let left = |given: usize| bytes.saturating_sub(given);
        let routes = entry.wiring.shed_routes(left(given).div_ceil(ROUTE));
        given += routes * ROUTE;
        let ranges = entry.wiring.shed_vlans(left(given).div_ceil(VLANS));
        given += ranges * VLANS;
        let peers = entry.wiring.shed_peers(left(given).div_ceil(PEER));
        given += peers * PEER;
        let links = entry.links.values().map(|known| (Reverse(known.since), known.link.ifindex));
        let links = first(links.collect(), left(given).div_ceil(LINK));
        for (_, ifindex) in &links {
            entry.links.remove(ifindex);
            entry.pair_up(*ifindex);
        }
        self.conflict.rewired();
        self.conflict.readdressed();
        let gone = [
            (Fitting::Neighbour, neighbours),
            (Fitting::Route, routes),
            (Fitting::Vlans(1), ranges),
            (Fitting::Peer, peers),
            (Fitting::Link, links.len()),
        ];
        gone.into_iter().for_each(|(one, count)| self.not_kept_of(id, one, count));
        self.refit(id);
    }

    /// So many more of these are not kept of it.
    pub(super) fn not_kept_of(&mut self, id: NetnsId, one: Fitting, count: usize) {
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        entry.unkept.add(one, u64::try_from(count).unwrap_or(u64::MAX));
        self.mark_short(id);
    }

    /// A dump of all this has begun, or has told all of it.
    pub(in crate::map) fn fittings_of_dump(&mut self, id: NetnsId, ended: bool) {
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        entry.unkept.dump_of_fittings(ended);
        if ended {
            self.mark_short(id);
        }
    }

    /// Something came to or went from what it has beside addresses, or it turned out whose it is.
    pub(in crate::map) fn refit(&mut self, id: NetnsId) {
        let entry = self.kernel.netns.get(&id).filter(|entry| !entry.host);
        let sized = entry.map(|entry| (entry.tenant(), entry.size()));
        let (tenant, size) = sized.unwrap_or((Tenant::Root, 0));
        self.kernel.fittings.room.set(id, tenant, size);
    }
}

/// The first `count` of these, in no order.
fn first<T: Ord>(mut all: Vec<T>, count: usize) -> Vec<T> {
    if count > 0 && count < all.len() {
        all.select_nth_unstable(count);
    }
    all.truncate(count);
    all
}
