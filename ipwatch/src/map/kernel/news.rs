//! Neighbour entries that changed since somebody last asked: what `ipwatch watch neigh` tells.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::contract;
use crate::map::{NetnsId, NodeMap};

/// Entries that are remembered between two turns; of more, only that there were more.
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

/// What changed, by IP.
#[derive(Debug, Default)]
pub struct NeighbourNews {
    /// The entries as they are now.
    pub entries: Vec<contract::Neighbour>,
    /// So many more changed.
    pub more: u64,
}

impl NodeMap {
    /// Entries that changed, or of which somebody new claims the IP, since this was last called. With nobody to
    /// tell them to (`wanted` is not set) they are only forgotten.
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
