//! Neighbour entries that changed since the last query, for `ipwatch watch neigh`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::contract;
use crate::map::{NetnsId, NodeMap};

/// Maximum number of entries between two queries; further ones are only counted.
const MAX: usize = 256;

#[derive(Debug, Default)]
pub(in crate::map) struct News {
    changed: BTreeSet<(IpAddr, NetnsId, u32)>,
    more: u64,
}

impl News {
    pub(in crate::map) fn changed(&mut self, id: NetnsId, ifindex: u32, ip: IpAddr) {
        if self.changed.len() < MAX {
            self.changed.insert((ip, id, ifindex));
        } else if !self.changed.contains(&(ip, id, ifindex)) {
            self.more += 1;
        }
    }
}

/// The changes, by IP.
#[derive(Debug, Default)]
pub struct NeighbourNews {
    /// The entries as they are now.
    pub entries: Vec<contract::Neighbour>,
    /// Number of further changes.
    pub more: u64,
}

impl NodeMap {
    /// Entries that changed, or whose IP has a new claimant, since the last call. Without a client (`wanted` is not
    /// set) they are only discarded.
    pub fn take_neighbour_news(&mut self, wanted: bool) -> NeighbourNews {
        let News { changed, more } = std::mem::take(&mut self.kernel.news);
        if !wanted || changed.is_empty() {
            return NeighbourNews::default();
        }
        let macs = self.macs();
        let conflicts = self.conflicts(self.now);
        let view = |(ip, id, ifindex): (IpAddr, NetnsId, u32)| {
            Some(self.neighbour_view(self.kernel.netns.get(&id)?, ifindex, ip, &macs, &conflicts))
        };
        NeighbourNews { entries: changed.into_iter().filter_map(view).collect(), more }
    }
}
