//! Netns in user namespaces that no device connects with any other netns of the node. Whatever a user gives such a netns,
//! no IP of a pod is in use there: that not all of it is known makes nothing else unknown.

use std::collections::BTreeSet;

use super::Netns;
use crate::map::{NetnsId, NodeMap, Table};

/// What is connected with the node.
pub(super) struct Connected {
    /// Every netns that is, those that are not users' included.
    pub(super) all: BTreeSet<NetnsId>,
    /// Whether a user's that is has a device that leads to a netns which is not known, or not kept.
    pub(super) leads_out: bool,
}

impl NodeMap {
    /// Netns with addresses that are not known, in which an IP of the node may be.
    pub fn short_within_reach(&self) -> impl Iterator<Item = &Netns> {
        let has_users = self.short().any(Netns::is_of_a_user_namespace);
        let connected = if has_users { self.connected().all } else { BTreeSet::new() };
        self.short()
            .filter(move |entry| !entry.is_of_a_user_namespace() || connected.contains(&entry.id))
    }

    /// Whether a user's netns has been read, and no device in it leads to the node. `connected`: computed when it is first
    /// needed.
    pub(in crate::map) fn is_users_and_apart(
        &self,
        entry: &Netns,
        connected: &mut Option<BTreeSet<NetnsId>>,
    ) -> bool {
        entry.is_of_a_user_namespace()
            && entry.opened.is_some()
            && !entry.lacks_ways_out()
            && !connected.get_or_insert_with(|| self.connected().all).contains(&entry.id)
    }

    /// The netns that are connected with the node, directly or by each other: all that are not users', and some that are. One
    /// walk over the devices of all, because a user can join any number of netns.
    pub(super) fn connected(&self) -> Connected {
        let (mut connected, mut left) = (BTreeSet::new(), Vec::new());
        let mut joined: Table<NetnsId, Vec<NetnsId>> = Table::default();
        // Netns of users with an end of a pair of which the other end is not known, and with other such devices.
        let (mut loose, mut led_away) = (Vec::new(), Vec::new());
        let mut is_loose_elsewhere = false;
        for entry in self.kernel.all() {
            let is_users = entry.is_of_a_user_namespace();
            for known in entry.links() {
                let link = &known.link;
                let to = link.peer_nsid.map(|nsid| self.peer_netns(entry.id, nsid));
                match to {
                    Some(Some(peer)) => {
                        joined.entry(entry.id).or_default().push(peer);
                        joined.entry(peer).or_default().push(entry.id);
                    }
                    Some(None) if !is_users => is_loose_elsewhere = true,
                    Some(None) if link.is_pair() => loose.push(entry.id),
                    // A macvlan's parent, a tunnel's underlay: root has moved the device away from it, or it is of a netns that
                    // is not kept.
                    Some(None) => led_away.push(entry.id),
                    // A physical device, which root has moved here.
                    None if is_users && link.kind.is_none() && !link.loopback => {
                        left.push(entry.id);
                    }
                    None => {}
                }
            }
            if !is_users {
                left.push(entry.id);
            }
        }
        spread(&mut connected, left, &joined);
        let leads_out = loose.iter().chain(&led_away).any(|id| connected.contains(id));
        // A user can make ends that are not known yet, forever. Those that others have are of somebody else's making, and
        // any of the user's may be the other end.
        if is_loose_elsewhere {
            led_away.append(&mut loose);
        }
        spread(&mut connected, led_away, &joined);
        Connected { all: connected, leads_out }
    }
}

/// Adds those netns, and all that are joined with them.
fn spread(
    connected: &mut BTreeSet<NetnsId>,
    mut from: Vec<NetnsId>,
    joined: &Table<NetnsId, Vec<NetnsId>>,
) {
    while let Some(id) = from.pop() {
        if connected.insert(id) {
            from.extend(joined.get(&id).into_iter().flatten());
        }
    }
}
