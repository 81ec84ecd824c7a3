//! Links whose other end is in a netns that is not known yet: a netns's nsids for others are reported when it is
//! opened, and a link may be created later.

use std::collections::{BTreeMap, BTreeSet};

use crate::fact::{BootNs, Link};

use crate::map::request::Request;
use crate::map::{NetnsId, NodeMap, Table};

const MS: u64 = 1_000_000;
/// Delays before an nsid is requested for the first, second, … time; then never again.
const PAUSES: [u64; 4] = [100 * MS, 1_000 * MS, 10_000 * MS, 60_000 * MS];
/// Maximum number of nsids requested for one netns. The owner of a netns can create as many as it likes.
const MAX_NUMBERS: usize = 256;

/// How often each nsid of each netns was requested.
#[derive(Debug, Default)]
pub(in crate::map) struct UnresolvedPeers(Table<NetnsId, BTreeMap<i32, usize>>);

impl UnresolvedPeers {
    /// How long to wait before this nsid is requested; `None` after too many failed attempts.
    fn pause(&mut self, id: NetnsId, nsid: i32) -> Option<u64> {
        let numbers = self.0.entry(id).or_default();
        if numbers.len() >= MAX_NUMBERS && !numbers.contains_key(&nsid) {
            return None;
        }
        PAUSES.get(*numbers.entry(nsid).or_default()).copied()
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn assert_is_bounded(&self, is_kept: impl Fn(NetnsId) -> bool) {
        assert!(self.0.iter().all(|(id, known)| is_kept(*id) && known.len() <= MAX_NUMBERS));
    }

    pub(in crate::map) fn named(&mut self, id: NetnsId, nsid: i32) {
        if let Some(numbers) = self.0.get_mut(&id) {
            numbers.remove(&nsid);
        }
    }

    pub(in crate::map) fn forget(&mut self, id: NetnsId) {
        self.0.remove(&id);
    }
}

impl NodeMap {
    /// The netns with this nsid in `id`, while it lives. The host's nsids are names of their own.
    pub(in crate::map) fn peer_netns(&self, id: NetnsId, nsid: i32) -> Option<NetnsId> {
        let entry = self.kernel.netns.get(&id)?;
        let peer = match entry.host {
            true => self.kernel.names.find(&crate::fact::NetnsRef::nsid(nsid)),
            false => entry.wiring.peer(nsid),
        };
        peer.filter(|peer| self.kernel.netns.get(peer).is_some_and(|peer| peer.dying.is_none()))
    }

    /// A link was reported.
    pub(in crate::map) fn met(&mut self, id: NetnsId, link: &Link, at: BootNs) {
        let Some(nsid) = self.stranger(id, link) else { return };
        if let Some(pause) = self.kernel.unresolved_peers.pause(id, nsid) {
            self.scheduler.meet(id, at.plus(pause));
        }
    }

    /// Requests the other ends of links that are still unknown.
    pub(in crate::map) fn want_strangers(&mut self, now: BootNs, wants: &mut Vec<Request>) {
        while let Some(id) = self.scheduler.next_stranger(now) {
            let Some(entry) = self.kernel.netns.get(&id) else { continue };
            let unknown: Vec<i32> =
                entry.links().filter_map(|known| self.stranger(id, &known.link)).collect();
            let (names, mut numbers, mut again) = (entry.names, BTreeSet::new(), None);
            for nsid in unknown {
                if numbers.contains(&nsid) || self.kernel.unresolved_peers.pause(id, nsid).is_none()
                {
                    continue;
                }
                numbers.insert(nsid);
                if let Some(tries) = self.kernel.unresolved_peers.0.get_mut(&id) {
                    *tries.entry(nsid).or_default() += 1;
                }
                again = again.max(self.kernel.unresolved_peers.pause(id, nsid));
            }
            if !numbers.is_empty() {
                wants.push(Request::Peers { netns: names, doors: self.doors(id), numbers });
            }
            if let Some(pause) = again {
                self.scheduler.meet(id, now.plus(pause));
            }
        }
    }

    /// The nsid of a link's peer, if its netns is unknown. A veth whose other end is on the host is known from there.
    fn stranger(&self, id: NetnsId, link: &Link) -> Option<i32> {
        let nsid = link.peer_nsid?;
        let entry =
            self.kernel.netns.get(&id).filter(|entry| !entry.host && entry.dying.is_none())?;
        if self.peer_netns(id, nsid).is_some() {
            return None;
        }
        let host = self.host().and_then(|host| self.kernel.netns.get(&host));
        let end = link.peer.and_then(|peer| host?.link(peer));
        let named = end.is_some_and(|end| {
            end.peer == Some(link.ifindex)
                && end.peer_nsid.is_some()
                && end.peer_nsid == entry.names.nsid
        });
        (!named).then_some(nsid)
    }
}
