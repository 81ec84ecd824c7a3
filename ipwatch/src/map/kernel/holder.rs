//! What other than a task holds a netns: mounts, fds and sockets, as reported or found by a search.
//!
//! If the end of netns is not observed, an inode may belong to another netns by the next walk: the kernel reuses it at
//! once (`proc_alloc_inum`, 5.10 to 6.18). The contents read from a netns certainly belong to its inode only as long as
//! something holds it that already did when it was opened. After that the netns is opened again.

use crate::fact::{BootNs, Holder, NetnsRef, TaskKey};

use super::netns::Netns;
use super::task::TICK;
use crate::map::{NetnsId, NodeMap};

/// Maximum number of holders of one netns.
const MAX_HOLDERS: usize = 256;
/// Maximum number of candidates of one netns.
const MAX_CANDIDATES: usize = 8;

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
        (
            Holder::Candidate { pid, fd, .. },
            Holder::Candidate { pid: other_pid, fd: other_fd, .. },
        ) => pid == other_pid && fd == other_fd,
        _ => one == other,
    }
}

fn is_mount(holder: &Holder) -> bool {
    matches!(holder, Holder::Mount { .. })
}

impl Netns {
    /// Whether the netns is held, but by nothing that is known to have held it when it was opened. A task may stay
    /// known until the snapshot after its end, so tasks count only if there are no mounts.
    fn is_anothers_perhaps(&self) -> bool {
        let Some(opened) = self.opened.filter(|_| !self.host) else { return false };
        let held_then = |hold: &Hold| hold.since <= opened;
        if self.holders.keys().any(is_mount) {
            return !self.holders.iter().any(|(holder, hold)| is_mount(holder) && held_then(hold));
        }
        let held = !self.holders.is_empty() || !self.tasks.is_empty();
        let ran_then = |task: &TaskKey| task.start.saturating_mul(TICK) <= opened.0;
        held && !self.holders.values().any(held_then) && !self.tasks.keys().any(ran_then)
    }
}

impl Netns {
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn assert_holders_are_bounded(&self) {
        // Two entries that turn out to be one netns have those of both.
        assert!(self.holders.len() <= 2 * MAX_HOLDERS);
        assert!(self.candidates.len() <= 2 * MAX_CANDIDATES);
    }

    fn set_candidate(&mut self, candidate: &Holder, at: BootNs) {
        let known = self.candidates.keys().find(|known| same_hold(known, candidate)).cloned();
        let before = known.and_then(|known| self.candidates.remove(&known));
        if before.is_some() || self.candidates.len() < MAX_CANDIDATES {
            let since = before.map_or(at, |hold| hold.since);
            self.candidates.insert(candidate.clone(), Hold { since, touched: at });
        }
    }

    /// Processes that may hold it by an fd in flight, if something within the kernel does. Each was found by two
    /// searches: most fds in flight are read at once.
    pub fn candidates(&self) -> impl Iterator<Item = &Holder> {
        let told = self.held_by_kernel();
        let lasting =
            self.candidates.iter().filter(move |(_, hold)| told && hold.since < hold.touched);
        lasting.map(|(candidate, _)| candidate)
    }
}

impl NodeMap {
    pub(in crate::map) fn set_holder(&mut self, netns: &NetnsRef, holder: &Holder, at: BootNs) {
        let Some(id) = self.resolve(netns, at).or_else(|| self.held_left_out(netns, holder, at))
        else {
            return;
        };
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        if entry.host {
            return;
        }
        if matches!(holder, Holder::Candidate { .. }) {
            entry.set_candidate(holder, at);
            return;
        }
        // A mount is the same one through any process.
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
            }
            self.doubt_inode(id, at);
        }
        self.recensus(id);
    }

    /// The holders of a netns have changed: reopens it if nothing has held it since it was opened, because its inode
    /// may belong to another netns.
    pub(super) fn doubt_inode(&mut self, id: NetnsId, at: BootNs) {
        if self.sight.teardown_end || self.scheduler.opens(id) {
            return;
        }
        if self.kernel.netns.get(&id).is_some_and(Netns::is_anothers_perhaps) {
            self.scheduler.doubted(id, false, at);
        }
    }

    /// A complete pass over a part of the holders has ended; removes those that it did not find.
    pub(in crate::map) fn sweep_holders(&mut self, began: BootNs, part: impl Fn(&Holder) -> bool) {
        let mut lost = Vec::new();
        for entry in self.kernel.netns.values_mut() {
            let before = entry.holders.len();
            entry.holders.retain(|holder, hold| hold.touched >= began || !part(holder));
            if entry.holders.len() < before {
                lost.push(entry.id);
            }
        }
        for id in lost {
            self.recensus(id);
            self.scheduler.holders_changed(id, began);
            self.doubt_inode(id, began);
        }
    }

    /// A search for the holders of one netns has ended; removes those that it did not find.
    pub(in crate::map) fn searched(&mut self, netns: &NetnsRef, complete: bool, at: BootNs) {
        let Some(id) = self.find(netns) else { return };
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        let last = entry.searched.and_then(|(at, complete)| complete.then_some(at));
        // An incomplete search does not replace a complete one.
        if complete || !entry.searched.is_some_and(|(_, complete)| complete) {
            entry.searched = Some((at, complete));
        }
        if complete {
            entry.holders.retain(|_, hold| hold.touched >= at);
            entry.candidates.retain(|_, hold| hold.touched >= at);
            let bare = entry.holders.is_empty();
            entry.bare_searches = if bare { entry.bare_searches.saturating_add(1) } else { 0 };
        }
        // Known by a mount or a task that has ended, never opened, and without holders: where the end of a netns is not
        // observed, this is its end.
        let held = !entry.holders.is_empty() || !entry.tasks.is_empty();
        let listed = entry.names.cookie.is_some() || entry.names.nsid.is_some();
        if complete && !held && !listed && entry.opened.is_none() && !entry.host {
            self.remove_netns(id, at, "netns-gone");
            return;
        }
        self.recensus(id);
        let thresholds = self.thresholds;
        let soon = self.next_search(id, (at, complete), last, &thresholds);
        self.scheduler.searched(id, at, soon);
        self.doubt_inode(id, at);
    }
}
