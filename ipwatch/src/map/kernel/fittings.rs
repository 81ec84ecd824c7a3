//! How much is kept of what a netns has beside its addresses (links, neighbours, routes, VLANs, names of other netns),
//! and whose.
//!
//! As in `shares`, one room is shared by all netns but the host's. It is counted in bytes, roughly: what a link takes is
//! many times what a route does. When it is full, a netns that no runtime vouches for gives, the one with most first;
//! what a runtime vouches for gives only to its like. So whoever may make a netns of his own, which on many nodes is
//! everybody, cannot make ipwatch forget what it knows of pods, nor take its memory.
//!
//! What is given up first is what findings rest on least: neighbours that nobody has told of for longest, then the newest
//! routes, VLANs, names and links.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::fact::BootNs;
use crate::map::workload::Told;
use crate::map::{Netns, NetnsId, NodeMap, Table};

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
    of: Table<NetnsId, Size>,
    /// The largest of those that nobody vouches for come last.
    sizes: BTreeSet<(Size, NetnsId)>,
    kept: usize,
}

/// Whether no runtime vouches for it, and the bytes.
type Size = (bool, usize);

impl Default for Fittings {
    fn default() -> Self {
        Self { in_all: MAX_IN_ALL, of: Table::default(), sizes: BTreeSet::new(), kept: 0 }
    }
}

impl Fittings {
    fn set(&mut self, id: NetnsId, size: Option<Size>) {
        let was = match size {
            Some(size) => self.of.insert(id, size),
            None => self.of.remove(&id),
        };
        if was == size {
            return;
        }
        if let Some(was) = was {
            self.sizes.remove(&(was, id));
            self.kept -= was.1;
        }
        if let Some(size) = size {
            self.sizes.insert((size, id));
            self.kept += size.1;
        }
    }

    /// Whether there is enough to read anew what was not kept.
    pub(super) fn has_room(&self) -> bool {
        self.kept < self.in_all - self.in_all / ROOM
    }

    /// Whoever gives room to a netns of this size: none that has less, but for what nobody vouches for.
    fn giver(&self, to: Size) -> Option<(usize, NetnsId)> {
        let (strange, bytes) = to;
        let stranger = self.sizes.last().filter(|((strange, _), _)| *strange);
        match stranger {
            Some(((_, has), id)) => (!strange || *has > bytes).then_some((*has, *id)),
            None if strange => None,
            None => {
                let ((_, has), id) = self.sizes.range(..((true, 0), NetnsId::MIN)).next_back()?;
                (*has > bytes).then_some((*has, *id))
            }
        }
    }
}

impl Netns {
    fn size(&self) -> Size {
        let vouched = self.owner.as_ref().is_some_and(|owner| owner.told == Told::Surely);
        let bytes = self.links.len() * LINK
            + self.neighbours.len() * NEIGHBOUR
            + self.wiring.routes_len() * ROUTE
            + self.wiring.vlan_ranges() * VLANS
            + self.wiring.peers_len() * PEER;
        (!vouched, bytes)
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
        let own = own.map(|entry| (entry.size(), entry.id));
        let sizes: BTreeSet<(Size, NetnsId)> = own.filter(|((_, bytes), _)| *bytes > 0).collect();
        let fittings = &self.kernel.fittings;
        assert_eq!(sizes, fittings.sizes);
        assert_eq!(sizes.iter().map(|((_, bytes), _)| bytes).sum::<usize>(), fittings.kept);
        assert!(fittings.kept <= fittings.in_all);
    }

    /// Makes sure that one more of these can be kept of a netns, at the cost of another one. If not, it is counted.
    pub(super) fn make_room_for(&mut self, id: NetnsId, one: Fitting, at: BootNs) -> bool {
        for _ in 0..GIVERS {
            let Some(entry) = self.kernel.netns.get(&id) else { return false };
            let fittings = &self.kernel.fittings;
            if entry.host || fittings.kept + one.bytes() <= fittings.in_all {
                return true;
            }
            let (strange, bytes) = entry.size();
            let giver = fittings.giver((strange, bytes + one.bytes()));
            let Some((most, largest)) = giver else { break };
            self.shed(largest, (most / CUT).max(one.bytes()), at);
        }
        self.not_kept_of(id, 1);
        false
    }

    /// Gives up so many bytes of what a netns has.
    fn shed(&mut self, id: NetnsId, bytes: usize, at: BootNs) {
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        let mut given = 0;
        let neighbours = entry.neighbours.iter().map(|(key, known)| (known.touched, *key));
        let neighbours = first(neighbours.collect(), bytes.div_ceil(NEIGHBOUR));
        given += neighbours.len() * NEIGHBOUR;
        let mut count = neighbours.len();
        for (_, (ifindex, ip)) in neighbours {
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
        count += routes + ranges + peers;
        let links = entry.links.values().map(|known| (Reverse(known.since), known.link.ifindex));
        for (_, ifindex) in first(links.collect(), left(given).div_ceil(LINK)) {
            entry.links.remove(&ifindex);
            entry.pair_up(ifindex);
            count += 1;
        }
        self.conflict.rewired();
        self.conflict.readdressed();
        self.not_kept_of(id, count);
        self.refit(id);
    }

    /// So many of what it has beside addresses are not kept.
    pub(super) fn not_kept_of(&mut self, id: NetnsId, count: usize) {
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        entry.unkept.fittings = entry.unkept.fittings.saturating_add(count);
        entry.unkept.fittings_in_dump = entry.unkept.fittings_in_dump.saturating_add(count);
        self.mark_short(id);
    }

    /// A dump of all this has begun, or has told all of it.
    pub(in crate::map) fn fittings_of_dump(&mut self, id: NetnsId, ended: bool) {
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        let found = std::mem::take(&mut entry.unkept.fittings_in_dump);
        if ended {
            entry.unkept.fittings = found;
            self.mark_short(id);
        }
    }

    /// Something came to or went from what it has beside addresses, or somebody vouches for it now.
    pub(in crate::map) fn refit(&mut self, id: NetnsId) {
        let entry = self.kernel.netns.get(&id).filter(|entry| !entry.host);
        let size = entry.map(Netns::size).filter(|(_, bytes)| *bytes > 0);
        self.kernel.fittings.set(id, size);
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
