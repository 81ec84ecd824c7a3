//! What other than a task holds a netns: mounts, fds, sockets, as they are told and searched for.

use crate::fact::{BootNs, Holder, NetnsRef};

use crate::map::NodeMap;

/// Holders kept per netns.
const MAX_HOLDERS: usize = 256;

fn same_hold(one: &Holder, other: &Holder) -> bool {
    match (one, other) {
        (
            Holder::Mount { mount_ns, path, .. },
            Holder::Mount { mount_ns: other_ns, path: other_path, .. },
        ) => mount_ns == other_ns && path == other_path,
        _ => one == other,
    }
}

impl NodeMap {
    pub(in crate::map) fn set_holder(&mut self, netns: &NetnsRef, holder: &Holder, at: BootNs) {
        let Some(id) = self.resolve(netns, at) else { return };
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        if entry.host {
            return;
        }
        // A mount is one mount, whichever process it is seen through.
        let known = entry.holders.keys().find(|known| same_hold(known, holder)).cloned();
        if let Some(known) = known {
            let touched = entry.holders.remove(&known).unwrap_or_default();
            entry.holders.insert(holder.clone(), at.max(touched));
        } else if entry.holders.len() < MAX_HOLDERS {
            entry.holders.insert(holder.clone(), at);
            self.scheduler.holder_appeared(id, at);
            if matches!(holder, Holder::Mount { .. }) {
                self.workload.ask_owner(id);
            }
        }
    }

    /// A whole pass over a part of the holders did not meet these.
    pub(in crate::map) fn sweep_holders(&mut self, began: BootNs, part: impl Fn(&Holder) -> bool) {
        let mut lost = Vec::new();
        for entry in self.kernel.netns.values_mut() {
            let before = entry.holders.len();
            entry.holders.retain(|holder, touched| *touched >= began || !part(holder));
            if entry.holders.len() < before {
                lost.push(entry.id);
            }
        }
        for id in lost {
            self.scheduler.holders_changed(id, began);
        }
    }

    /// A search for the holders of one netns has ended; those it did not meet have let go.
    pub(in crate::map) fn searched(&mut self, netns: &NetnsRef, complete: bool, at: BootNs) {
        let Some(id) = self.find(netns) else { return };
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        // One that could not read everything does not outrank one that could.
        if complete || !entry.searched.is_some_and(|(_, complete)| complete) {
            entry.searched = Some((at, complete));
        }
        if complete {
            entry.holders.retain(|_, touched| *touched >= at);
            let bare = entry.holders.is_empty();
            entry.bare_searches = if bare { entry.bare_searches.saturating_add(1) } else { 0 };
        }
        // Known by a mount or a task that has gone since, never opened, and nothing holds it: where its
        // end cannot be seen, that is its end.
        let held = !entry.holders.is_empty() || !entry.tasks.is_empty();
        let listed = entry.names.cookie.is_some() || entry.names.nsid.is_some();
        if complete && !held && !listed && !entry.dumped && !entry.host {
            self.remove_netns(id, at, "netns-gone");
            return;
        }
        let thresholds = self.thresholds;
        let soon = self.next_search(id, at, &thresholds);
        self.scheduler.searched(id, at, soon);
    }
}
