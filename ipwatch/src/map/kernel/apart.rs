//! Netns of unprivileged users that no device connects with any other netns of the node. Whatever a user gives such a
//! netns, no IP of a pod is in use there: that not all of it is known makes nothing else unknown.

use std::collections::BTreeSet;

use super::Netns;
use crate::map::{NetnsId, NodeMap};

impl NodeMap {
    /// Netns with addresses that are not known, in which an IP of the node may be.
    pub fn short_within_reach(&self) -> impl Iterator<Item = &Netns> {
        let users = self.short().any(Netns::is_a_users);
        let paired = if users { self.paired_with_others() } else { BTreeSet::new() };
        self.short().filter(move |entry| !self.is_apart(entry, &paired))
    }

    /// The netns at the other ends of pairs that are in the host's netns, in root's or in a pod's.
    fn paired_with_others(&self) -> BTreeSet<NetnsId> {
        let others = self.kernel.all().filter(|entry| !entry.is_a_users());
        let ends = others.flat_map(|entry| {
            let nsids = entry.links().filter_map(|known| known.link.peer_nsid);
            nsids.filter_map(|nsid| self.peer_netns(entry.id, nsid))
        });
        ends.collect()
    }

    /// Whether a netns, and each that its devices lead to, is a user's, and none is connected with others. The other end
    /// of a pair that is not a user's is in `paired`, so that of a pair neither end must be resolved from here: otherwise a
    /// user could make ends that are not known yet, forever.
    fn is_apart(&self, netns: &Netns, paired: &BTreeSet<NetnsId>) -> bool {
        let (mut seen, mut left) = (BTreeSet::from([netns.id]), vec![netns.id]);
        while let Some(id) = left.pop() {
            let Some(entry) = self.kernel.get(id) else { return false };
            if !entry.is_a_users() || paired.contains(&id) {
                return false;
            }
            for known in entry.links() {
                let link = &known.link;
                let to = link.peer_nsid.map(|nsid| self.peer_netns(id, nsid));
                match to {
                    Some(Some(next)) => left.extend(seen.insert(next).then_some(next)),
                    // A macvlan's parent, a tunnel's underlay: only root can have moved the device away from it.
                    Some(None) if !link.is_pair() => return false,
                    // A physical device, which root has moved here.
                    None if link.kind.is_none() && !link.loopback => return false,
                    Some(None) | None => {}
                }
            }
        }
        true
    }
}
