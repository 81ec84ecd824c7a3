//! How many tasks are kept, and in which netns.
//!
//! Whoever may start a process can start thousands. As in `shares`, one room is shared by all netns but the host's, whose
//! tasks are not kept at all: when it is full, `tenants` says who gives. Of each netns one task is always kept, because
//! whether a netns has any is what most conclusions begin with; and exiting or killed tasks are dismissed last, because they
//! are what may hold an IP.
//!
//! What is not kept is counted, and reported again by the next look at all tasks.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::tenants::{Room, Tenant};
use crate::fact::{BootNs, Task, TaskKey};
use crate::map::{Kinds, NetnsId, NodeMap, Table};

/// Maximum number of tasks of all netns but the host's. A large node has some thousand in pods.
const MAX_TASKS: usize = 32_768;
/// Fraction of a netns's tasks that is dismissed at one time.
const CUT: usize = 16;

/// The number of tasks of each netns.
#[derive(Debug)]
pub(in crate::map) struct Crowd {
    in_all: usize,
    room: Room,
    unkept: Table<NetnsId, Unkept>,
}

impl Default for Crowd {
    fn default() -> Self {
        Self { in_all: MAX_TASKS, room: Room::default(), unkept: Table::default() }
    }
}

/// How many tasks of a netns are not kept, roughly: some may have ended since.
#[derive(Debug, Clone, Copy, Default)]
struct Unkept {
    known: u64,
    /// Those that the look at all tasks which is under way has reported so far.
    in_snapshot: u64,
    /// Since when the netns is kept, if it was not: the begins of its tasks were not taken from events.
    untold: BootNs,
}

impl Crowd {
    /// Whether tasks of a netns are not kept, or were not until the last look at all tasks.
    pub(super) fn is_short(&self, id: NetnsId) -> bool {
        self.unkept.contains_key(&id)
    }

    /// A netns is kept that was not.
    pub(super) fn untold(&mut self, id: NetnsId, at: BootNs) {
        self.unkept.entry(id).or_default().untold = at;
    }

    /// How many tasks of each netns are not kept.
    pub(super) fn unkept(&self) -> impl Iterator<Item = (NetnsId, u64)> {
        self.unkept.iter().map(|(id, unkept)| (*id, unkept.known))
    }
}

impl NodeMap {
    /// Sets a smaller bound, for tests.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(in crate::map) fn bound_tasks(&mut self, in_all: usize) {
        self.kernel.crowd.in_all = in_all;
    }

    /// Checks the bound, and the sizes against the tasks.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(in crate::map) fn assert_tasks_count(&self) {
        let own = self.kernel.netns.values().filter(|entry| !entry.tasks.is_empty());
        let sizes = own.map(|entry| (entry.id, (entry.tenant(), entry.tasks.len())));
        assert_eq!(sizes.collect::<BTreeMap<_, _>>(), self.kernel.crowd.room.sizes());
        let tasks: usize = self.kernel.netns.values().map(|entry| entry.tasks.len()).sum();
        assert_eq!(tasks, self.kernel.tasks.len());
        // One of each netns is always kept.
        let most = self.kernel.crowd.in_all + self.kernel.netns.len();
        assert!(tasks <= most, "{tasks} tasks, at most {most}");
    }

    /// Ensures that one more task of a netns can be kept, at the cost of others. Otherwise the task is counted as not kept.
    pub(super) fn make_room_for_task(&mut self, id: NetnsId, task: &Task, told: bool) -> bool {
        let Some(entry) = self.kernel.netns.get(&id) else { return false };
        let (own, tenant) = (entry.tasks.len(), entry.tenant());
        let crowd = &mut self.kernel.crowd;
        if own == 0 || crowd.room.kept() < crowd.in_all {
            return true;
        }
        let given = match crowd.room.giver(tenant, own, 1) {
            Some(giver) => self.dismiss(giver.id, (giver.has / CUT).clamp(1, giver.at_most)),
            None if task.exiting || task.killed => self.dismiss(id, 1),
            None => 0,
        };
        if given == 0 {
            let unkept = self.kernel.crowd.unkept.entry(id).or_default();
            unkept.known = unkept.known.saturating_add(1);
            unkept.in_snapshot = unkept.in_snapshot.saturating_add(u64::from(!told));
        }
        given > 0
    }

    /// A task has moved to another netns. The last task of a netns is kept beyond the bound: who moves one after the other away
    /// from such netns would have the more of them kept the longer he does so.
    pub(super) fn settle_moved_task(&mut self, id: NetnsId, key: TaskKey) {
        let Some(entry) = self.kernel.netns.get(&id) else { return };
        let (own, tenant) = (entry.tasks.len(), entry.tenant());
        if own < 2 || self.kernel.crowd.room.kept() <= self.kernel.crowd.in_all {
            return;
        }
        let giver = self.kernel.crowd.room.giver(tenant, own - 1, 1).map_or(id, |giver| giver.id);
        if self.dismiss(giver, 1) == 0
            && let Some(entry) = self.kernel.netns.get_mut(&id)
        {
            entry.tasks.remove(&key);
            self.drop_task(&key);
            let unkept = self.kernel.crowd.unkept.entry(id).or_default();
            unkept.known = unkept.known.saturating_add(1);
            unkept.in_snapshot = unkept.in_snapshot.saturating_add(1);
            self.recrowd(id);
        }
    }

    /// Drops some tasks of a netns, but not its last one. Returns how many.
    fn dismiss(&mut self, id: NetnsId, count: usize) -> usize {
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return 0 };
        let tasks = &self.kernel.tasks;
        let stays = |key: &&TaskKey| !tasks.is_leaving(key);
        let most = count.min(entry.tasks.len().saturating_sub(1));
        let keys: Vec<TaskKey> =
            entry.tasks.keys().rev().filter(stays).take(most).copied().collect();
        for key in &keys {
            entry.tasks.remove(key);
        }
        for key in &keys {
            self.drop_task(key);
        }
        if !keys.is_empty() {
            self.mark_in(id, Kinds::TASKS);
            let unkept = self.kernel.crowd.unkept.entry(id).or_default();
            unkept.known = unkept.known.saturating_add(keys.len() as u64);
            // If a look at all tasks is under way, it may have reported them already.
            unkept.in_snapshot = unkept.in_snapshot.saturating_add(keys.len() as u64);
            self.recrowd(id);
        }
        keys.len()
    }

    /// Updates the number of tasks of a netns after a change, or after it turned out whose it is.
    pub(in crate::map) fn recrowd(&mut self, id: NetnsId) {
        let entry = self.kernel.netns.get(&id);
        let sized = entry.map(|entry| (entry.tenant(), entry.tasks.len()));
        if sized.is_none() {
            self.kernel.crowd.unkept.remove(&id);
        }
        let (tenant, size) = sized.unwrap_or((Tenant::Root, 0));
        self.kernel.crowd.room.set(id, tenant, size);
        self.recensus(id);
    }

    /// A complete look at all tasks has ended: what it did not report has ended. A netns of which no task is left has none.
    pub(super) fn recount_unkept_tasks(&mut self, began: BootNs) {
        let mut empty = Vec::new();
        self.kernel.crowd.unkept.retain(|id, unkept| {
            unkept.known = std::mem::take(&mut unkept.in_snapshot);
            if began <= unkept.untold {
                return true;
            }
            if unkept.known == 0 {
                empty.push(*id);
            }
            unkept.known > 0
        });
        for id in empty {
            if self.kernel.netns.get(&id).is_some_and(|entry| entry.tasks.is_empty()) {
                self.emptied(id, began);
            }
        }
    }

    /// The tasks that are not kept, by tenant, for people; those that lack most come first.
    #[must_use]
    pub fn said_of_unkept_tasks(&self) -> Option<String> {
        const LISTED: usize = 3;
        let mut tenants: BTreeMap<Tenant, (u64, usize)> = BTreeMap::new();
        for (id, unkept) in self.kernel.crowd.unkept.iter().filter(|(_, one)| one.known > 0) {
            let Some(entry) = self.kernel.netns.get(id) else { continue };
            let (count, netns) = tenants.entry(entry.tenant()).or_default();
            *count = count.saturating_add(unkept.known);
            *netns += 1;
        }
        let mut tenants: Vec<_> = tenants.into_iter().collect();
        tenants.sort_by_key(|(_, (count, _))| std::cmp::Reverse(*count));
        let mut said = String::new();
        for (tenant, (count, netns)) in tenants.into_iter().take(LISTED) {
            let apart = if said.is_empty() { "" } else { "; " };
            let whose = self.said_of_tenant(tenant);
            let _ = write!(
                said,
                "{apart}{whose}: {count} tasks not kept, of {netns} network namespaces"
            );
        }
        (!said.is_empty()).then_some(said)
    }
}
