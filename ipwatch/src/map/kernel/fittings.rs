//! How much is kept of what a netns has beside its addresses (links, neighbours, routes, VLANs, names of other netns),
//! and how that memory is shared.
//!
//! As in `shares`, one room is shared by all netns but the host's. It is counted in bytes, roughly: what a link takes is
//! many times what a route does. When it is full, `tenants` says who gives. So whoever may make a netns of his own, which
//! on many nodes is everybody, cannot make ipwatch forget what it knows of pods or of other users, nor take its memory.
//!
//! While the memory that the daemon may have is short, the room is half as large.
//!
//! What findings depend on least is dropped first: the neighbours with the oldest reports, then the newest routes,
//! VLANs, names and links.

use std::cmp::Reverse;

use super::tenants::{Room, Tenant};
use crate::fact::BootNs;
use crate::map::{Kinds, Netns, NetnsId, NodeMap};

/// Approximate size of one entry with the tables around it, in bytes.
const LINK: usize = 640;
const NEIGHBOUR: usize = 224;
const ROUTE: usize = 320;
const VLANS: usize = 16;
const PEER: usize = 32;
/// Budget of all netns except the host's, in bytes.
const MAX_IN_ALL: usize = 12 << 20;
/// Fraction of it that is used while memory is short.
const SHORT: usize = 2;
/// Fraction of a netns's entries that is dropped at one time.
const CUT: usize = 16;
/// Fraction of the budget that must be free before dropped entries are read again.
const ROOM: usize = 8;
/// Maximum number of netns that give room for one entry.
const GIVERS: usize = 8;

/// The kind of entry to be kept.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fitting {
    Link,
    Neighbour,
    Route,
    /// The number of VLAN ranges.
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

/// The size of each netns except the host's.
#[derive(Debug)]
pub(in crate::map) struct Fittings {
    in_all: usize,
    room: Room,
    memory_is_short: bool,
}

impl Default for Fittings {
    fn default() -> Self {
        Self { in_all: MAX_IN_ALL, room: Room::default(), memory_is_short: false }
    }
}

impl Fittings {
    /// The budget, in bytes.
    fn bound(&self) -> usize {
        if self.memory_is_short { self.in_all / SHORT } else { self.in_all }
    }

    /// Whether there is enough to read anew what was not kept.
    pub(super) fn has_room(&self) -> bool {
        self.room.kept() < self.bound() - self.bound() / ROOM
    }
}

impl Netns {
    /// Whether links of it, or names of other netns, are not kept.
    pub(in crate::map) fn lacks_ways_out(&self) -> bool {
        let (_, fittings) = self.unkept.counts();
        [Fitting::Link, Fitting::Peer].iter().any(|one| fittings[one.kind()] > 0)
    }

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
    /// Sets a smaller budget, for tests.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn bound_fittings(&mut self, in_all: usize) {
        self.kernel.fittings.in_all = in_all;
    }

    /// Checks the bound, and the sizes against the entries.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(in crate::map) fn assert_fittings_count(&self) {
        let own = self.kernel.netns.values().filter(|entry| !entry.host);
        let sizes = own.map(|entry| (entry.id, (entry.tenant(), entry.size())));
        let fittings = &self.kernel.fittings;
        assert_eq!(
            sizes.filter(|(_, (_, size))| *size > 0).collect::<std::collections::BTreeMap<_, _>>(),
            fittings.room.sizes()
        );
        assert!(fittings.room.kept() <= fittings.bound());
    }

    /// Ensures that one more entry of a netns can be kept, at the cost of another netns. Otherwise the entry is counted
    /// as not kept.
    pub(super) fn make_room_for(&mut self, id: NetnsId, one: Fitting, at: BootNs) -> bool {
        for _ in 0..GIVERS {
            let Some(entry) = self.kernel.netns.get(&id) else { return false };
            let fittings = &self.kernel.fittings;
            if entry.host || fittings.room.kept() + one.bytes() <= fittings.bound() {
                return true;
            }
            let (tenant, size) = (entry.tenant(), entry.size());
            let giver = self.kernel.fittings.room.giver(tenant, size, one.bytes());
            let Some(giver) = giver else { break };
            self.shed(giver.id, (giver.has / CUT).max(one.bytes()), at);
        }
        self.not_kept_of(id, one, 1);
        false
    }

    /// The daemon is near the memory that it may have, or no longer is: what is beyond the budget is dropped, of users first.
    pub(in crate::map) fn set_memory_short(&mut self, short: bool, at: BootNs) {
        self.kernel.fittings.memory_is_short = short;
        loop {
            let fittings = &mut self.kernel.fittings;
            let (kept, bound) = (fittings.room.kept(), fittings.bound());
            // As for a pod that has nothing yet.
            let giver = fittings.room.giver(Tenant::Pod(NetnsId::MAX), 0, 0);
            let Some(giver) = giver.filter(|_| kept > bound) else { return };
            // A part each time, as in `make_room_for`: what findings depend on stays while others have what they do not.
            self.shed(giver.id, (kept - bound).min((giver.has / CUT).max(LINK)), at);
            if self.kernel.fittings.room.kept() >= kept {
                return;
            }
        }
    }

    /// That memory is short, and what follows from it, for people.
    #[must_use]
    pub fn said_of_memory(&self) -> Option<String> {
        let Fittings { in_all, memory_is_short, .. } = &self.kernel.fittings;
        memory_is_short.then(|| {
            format!(
                "memory is short: of links, neighbours and routes {} MiB are kept instead of {}",
                (in_all / SHORT) >> 20,
                in_all >> 20
            )
        })
    }

    /// Drops entries of a netns until `bytes` are freed.
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
        self.changes.mark(Kinds::LINKS | Kinds::ROUTES | Kinds::NEIGHBOURS | Kinds::ADDRESSES);
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

    /// A dump of these entries has begun, or has been applied completely.
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

/// The smallest `count` elements, in no order.
fn first<T: Ord>(mut all: Vec<T>, count: usize) -> Vec<T> {
    if count > 0 && count < all.len() {
        all.select_nth_unstable(count);
    }
    all.truncate(count);
    all
}
