//! What other than a task holds a netns: mounts, fds, sockets, as they are told and searched for.
//!
//! Where no end of a netns is seen, its inode may be another's by the next walk: the kernel hands it out again at once
//! (`proc_alloc_inum`, 5.10 to 6.18). What shows it is that every mount that was known has gone, and others have come:
//! such a netns is opened again.

use crate::fact::{BootNs, Holder, NetnsRef};

use crate::map::{NetnsId, NodeMap};

/// Holders kept per netns.
const MAX_HOLDERS: usize = 256;

/// Since when something holds a netns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hold {
    since: BootNs,
    /// Time of the newest fact.
    pub(super) touched: BootNs,
}

fn same_hold(one: &Holder, other: &Holder) -> bool {
    match (one, other) {
        (
            Holder::Mount { mount_ns, path, .. },
            Holder::Mount { mount_ns: other_ns, path: other_path, .. },
        ) => mount_ns == other_ns && path == other_path,
        _ => one == other,
    }
}

fn is_mount(holder: &Holder) -> bool {
    matches!(holder, Holder::Mount { .. })
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
            let before = entry.holders.remove(&known);
            let hold = before.unwrap_or(Hold { since: at, touched: at });
            let hold = Hold { touched: at.max(hold.touched), ..hold };
            entry.holders.insert(holder.clone(), hold);
        } else if entry.holders.len() < MAX_HOLDERS {
            entry.holders.insert(holder.clone(), Hold { since: at, touched: at });
            self.scheduler.holder_appeared(id, at);
            if is_mount(holder) {
                self.workload.ask_owner(id);
                if std::mem::take(&mut entry.unmounted) {
                    self.doubt_inode(id, at);
                }
            }
        }
    }

    /// The inode of a netns may be another's.
    fn doubt_inode(&mut self, id: NetnsId, at: BootNs) {
        if !self.sight.teardown_end {
            self.scheduler.doubted(id, false, at);
        }
    }

    /// A whole pass over a part of the holders did not meet these.
    pub(in crate::map) fn sweep_holders(&mut self, began: BootNs, part: impl Fn(&Holder) -> bool) {
        let (mut lost, mut replaced) = (Vec::new(), Vec::new());
        for entry in self.kernel.netns.values_mut() {
            let (before, mut unmounted) = (entry.holders.len(), false);
            entry.holders.retain(|holder, hold| {
                let stays = hold.touched >= began || !part(holder);
                unmounted |= !stays && is_mount(holder);
                stays
            });
            if entry.holders.len() < before {
                lost.push(entry.id);
            }
            let mut mounts = entry.holders.iter().filter(|(holder, _)| is_mount(holder)).peekable();
            if unmounted && mounts.peek().is_none() {
                entry.unmounted = true;
            } else if unmounted && mounts.all(|(_, hold)| hold.since >= began) {
                replaced.push(entry.id);
            }
        }
        for id in lost {
            self.scheduler.holders_changed(id, began);
        }
        for id in replaced {
            self.doubt_inode(id, began);
        }
    }

    /// A search for the holders of one netns has ended; those it did not meet have let go.
    pub(in crate::map) fn searched(&mut self, netns: &NetnsRef, complete: bool, at: BootNs) {
        let Some(id) = self.find(netns) else { return };
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        let last = entry.searched.and_then(|(at, complete)| complete.then_some(at));
        // One that could not read everything does not outrank one that could.
        if complete || !entry.searched.is_some_and(|(_, complete)| complete) {
            entry.searched = Some((at, complete));
        }
        if complete {
            let mounted = entry.holders.keys().any(is_mount);
            entry.holders.retain(|_, hold| hold.touched >= at);
            entry.unmounted |= mounted && !entry.holders.keys().any(is_mount);
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
        let soon = self.next_search(id, (at, complete), last, &thresholds);
        self.scheduler.searched(id, at, soon);
    }
}
