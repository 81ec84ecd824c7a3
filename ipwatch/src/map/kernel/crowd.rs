//! How many tasks are kept, and in which netns.
//!
//! Whoever may start a process can start thousands. As in `shares`, one room is shared by all netns but the host's, whose
//! tasks are not kept at all: when it is full, `tenants` says who gives. Of each netns one task is always kept, because
//! whether a netns has any is what most conclusions begin with; and of exiting or killed tasks it is one of these, because
//! they are what may hold an IP.
//!
//! What is leaving (exiting or killed) is therefore dismissed last, and whoever has nothing else to give is passed over:
//!
//! - Users give all that they have before root and pods give anything, what is leaving after everything else of theirs. A
//!   user can have tens of thousands that hang, and what hangs in a pod must find room.
//! - Then what is not leaving is given, as `tenants` says.
//! - For one that is leaving, its own netns gives what is not; and if nobody has anything else, tenants that have more give
//!   what is leaving as well. Within a tenant nothing that is leaving gives for another.
//!
//! What is not kept is counted, and reported again by the next look at all tasks.

use std::collections::BTreeMap;
#[cfg(any(test, feature = "fuzzing"))]
use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::tenants::{Giver, Room, Tenant};
use crate::fact::{BootNs, NetnsRef, Task, TaskKey};
use crate::map::{Kinds, Netns, NetnsId, NodeMap, Table};

/// Maximum number of tasks of all netns but the host's. A large node has some thousand in pods.
const MAX_TASKS: usize = 32_768;
/// Fraction of a netns's tasks that is dismissed at one time.
const CUT: usize = 16;

/// The number of tasks of each netns.
#[derive(Debug)]
pub(in crate::map) struct Crowd {
    in_all: usize,
    /// Who gives tasks that are not leaving.
    staying: Room,
    /// Who gives tasks that are. Both rooms have the number of all tasks.
    leaving: Room,
    unkept: Table<NetnsId, Unkept>,
}

impl Default for Crowd {
    fn default() -> Self {
        let (staying, leaving) = (Room::default(), Room::default());
        Self { in_all: MAX_TASKS, staying, leaving, unkept: Table::default() }
    }
}

/// How many tasks of a netns are not kept, roughly: some may have ended since.
#[derive(Debug, Clone, Copy, Default)]
struct Unkept {
    known: Count,
    /// Those that the look at all tasks which is under way has reported so far.
    in_snapshot: Count,
    /// Since when the netns is kept, if it was not: the begins of its tasks were not taken from events.
    untold: BootNs,
}

#[derive(Debug, Clone, Copy, Default)]
struct Count {
    all: u64,
    /// Those that are leaving.
    leaving: u64,
}

impl Count {
    fn add(&mut self, is_leaving: bool) {
        self.all = self.all.saturating_add(1);
        self.leaving = self.leaving.saturating_add(u64::from(is_leaving));
    }
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

    /// A task of a netns is not kept. `counted`: the look at all tasks that is under way has reported it, or may have.
    fn leave_out(&mut self, id: NetnsId, is_leaving: bool, counted: bool) {
        let unkept = self.unkept.entry(id).or_default();
        unkept.known.add(is_leaving);
        if counted {
            unkept.in_snapshot.add(is_leaving);
        }
    }

    /// Whether leaving tasks of a netns are not kept.
    fn lacks_leaving(&self, id: NetnsId) -> bool {
        self.unkept.get(&id).is_some_and(|unkept| unkept.known.leaving > 0)
    }

    /// How many tasks of each netns are not kept.
    pub(super) fn unkept(&self) -> impl Iterator<Item = (NetnsId, u64)> {
        self.unkept.iter().map(|(id, unkept)| (*id, unkept.known.all))
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
        let sizes = sizes.collect::<BTreeMap<_, _>>();
        assert_eq!(sizes, self.kernel.crowd.staying.sizes());
        assert_eq!(sizes, self.kernel.crowd.leaving.sizes());
        for entry in self.kernel.netns.values() {
            let (staying, leaving) = (entry.tasks.staying(), entry.tasks.leaving());
            assert_eq!(staying.len() + leaving.len(), entry.tasks.len());
            assert!(entry.tasks.keys().all(|key| staying.contains(key) != leaving.contains(key)));
        }
        let leaving = self.kernel.netns.values().flat_map(|entry| entry.tasks.leaving()).copied();
        let told = self.kernel.tasks.leaving().map(|task| task.key);
        assert_eq!(leaving.collect::<BTreeSet<_>>(), told.collect::<BTreeSet<_>>());
        let tasks: usize = self.kernel.netns.values().map(|entry| entry.tasks.len()).sum();
        assert_eq!(tasks, self.kernel.tasks.len());
        // One of each netns is always kept.
        let most = self.kernel.crowd.in_all + self.kernel.netns.len();
        assert!(tasks <= most, "{tasks} tasks, at most {most}");
    }

    /// Ensures that one more task of a netns can be kept, at the cost of others. Otherwise the task is counted as not kept.
    pub(super) fn make_room_for_task(&mut self, id: NetnsId, task: &Task, told: bool) -> bool {
        let Some(entry) = self.kernel.netns.get(&id) else { return false };
        let own = entry.tasks.len();
        if own == 0 || self.kernel.crowd.staying.kept() < self.kernel.crowd.in_all {
            return true;
        }
        // If its only one is not leaving, one that is takes its place.
        let keeps = usize::from(own > 1);
        let is_leaving = task.exiting || task.killed;
        let given = self.take_room(id, own, keeps, is_leaving);
        if given == 0 {
            self.kernel.crowd.leave_out(id, is_leaving, !told);
        }
        given > 0
    }

    /// A task has moved to another netns. The last task of a netns is kept beyond the bound: who moves one after the other away
    /// from such netns would have the more of them kept the longer he does so.
    pub(super) fn settle_moved_task(&mut self, id: NetnsId, key: TaskKey) {
        let Some(entry) = self.kernel.netns.get(&id) else { return };
        let (own, is_leaving) = (entry.tasks.len(), entry.tasks.leaving().contains(&key));
        if own < 2 || self.kernel.crowd.staying.kept() <= self.kernel.crowd.in_all {
            return;
        }
        if self.take_room(id, own - 1, 1, is_leaving) == 0 {
            self.dismiss(id, &[key]);
        }
    }

    /// Has room given for one more task of a netns, which takes `own` so far and keeps at least `keeps` of them. Returns how
    /// many tasks were dismissed for it.
    fn take_room(&mut self, id: NetnsId, own: usize, keeps: usize, is_leaving: bool) -> usize {
        let Some(tenant) = self.kernel.netns.get(&id).map(Netns::tenant) else { return 0 };
        let crowd = &mut self.kernel.crowd;
        let staying = crowd.staying.giver(tenant, own, 1);
        let leaving = crowd.leaving.giver(tenant, own, 1).filter(|giver| giver.tenant != tenant);
        let is_users = |giver: &Giver| {
            matches!(giver.tenant, Tenant::User(_)) && giver.tenant.rank() > tenant.rank()
        };
        let last_of_users =
            leaving.filter(is_users).filter(|_| !staying.is_some_and(|one| is_users(&one)));
        if let Some(giver) = last_of_users {
            return self.dismiss_leaving(giver.id);
        }
        if let Some(giver) = staying {
            return self.dismiss_staying(giver.id, (giver.has / CUT).clamp(1, giver.at_most), 1);
        }
        if !is_leaving {
            return 0;
        }
        match (self.dismiss_staying(id, 1, keeps), leaving) {
            (0, Some(giver)) => self.dismiss_leaving(giver.id),
            (given, _) => given,
        }
    }

    /// Drops some tasks of a netns that are not leaving, the newest first, but keeps so many in all. Returns how many.
    fn dismiss_staying(&mut self, id: NetnsId, count: usize, keeps: usize) -> usize {
        let Some(entry) = self.kernel.netns.get(&id) else { return 0 };
        let most = count.min(entry.tasks.len().saturating_sub(keeps));
        let keys: Vec<TaskKey> = entry.tasks.staying().iter().rev().take(most).copied().collect();
        self.dismiss(id, &keys)
    }

    /// Drops the newest leaving task of a netns, but not its last one. Each may be what a finding is about, so that no more
    /// are dropped than must be. Returns how many.
    fn dismiss_leaving(&mut self, id: NetnsId) -> usize {
        let Some(entry) = self.kernel.netns.get(&id) else { return 0 };
        match entry.tasks.leaving().last().copied().filter(|_| entry.tasks.len() > 1) {
            Some(key) => self.dismiss(id, &[key]),
            None => 0,
        }
    }

    fn dismiss(&mut self, id: NetnsId, keys: &[TaskKey]) -> usize {
        for key in keys {
            let Some(entry) = self.kernel.netns.get_mut(&id) else { continue };
            let is_leaving = entry.tasks.leaving().contains(key);
            entry.tasks.remove(key);
            self.drop_task(key);
            // If a look at all tasks is under way, it may have reported it already.
            self.kernel.crowd.leave_out(id, is_leaving, true);
        }
        if !keys.is_empty() {
            self.mark_in(id, Kinds::TASKS);
            self.recrowd(id);
        }
        keys.len()
    }

    /// Updates the number of tasks of a netns after a change, or after it turned out whose it is.
    pub(in crate::map) fn recrowd(&mut self, id: NetnsId) {
        let crowd = &mut self.kernel.crowd;
        if let Some(entry) = self.kernel.netns.get(&id) {
            let (tenant, size) = (entry.tenant(), entry.tasks.len());
            // One is always kept.
            let most = size.saturating_sub(1);
            let (staying, leaving) = (entry.tasks.staying().len(), entry.tasks.leaving().len());
            crowd.staying.set_giving(id, tenant, size, staying.min(most));
            crowd.leaving.set_giving(id, tenant, size, leaving.min(most));
        } else {
            crowd.unkept.remove(&id);
            crowd.staying.set(id, Tenant::Root, 0);
            crowd.leaving.set(id, Tenant::Root, 0);
        }
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
            if unkept.known.all == 0 {
                empty.push(*id);
            }
            unkept.known.all > 0
        });
        for id in empty {
            if self.kernel.netns.get(&id).is_some_and(|entry| entry.tasks.is_empty()) {
                self.emptied(id, began);
            }
        }
    }

    /// Whether leaving tasks of this netns are not kept: what is known of it does not show that one has ended.
    #[must_use]
    pub fn lacks_leaving(&self, netns: &NetnsRef) -> bool {
        self.find(netns).is_some_and(|id| self.kernel.crowd.lacks_leaving(id))
    }

    /// The tasks that are not kept, by tenant, for people; those that lack most come first.
    #[must_use]
    pub fn said_of_unkept_tasks(&self) -> Option<String> {
        const LISTED: usize = 3;
        let mut tenants: BTreeMap<Tenant, (u64, usize)> = BTreeMap::new();
        for (id, unkept) in self.kernel.crowd.unkept.iter().filter(|(_, one)| one.known.all > 0) {
            let Some(entry) = self.kernel.netns.get(id) else { continue };
            let (count, netns) = tenants.entry(entry.tenant()).or_default();
            *count = count.saturating_add(unkept.known.all);
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
