//! Whether everything that strangers can fill is within its bounds, and what they begin comes to an end: after each step of a
//! made-up life, with bounds so small that lives reach them.

use super::NodeMap;
use super::told::IN_ALL;

/// Netns that are kept, and names of others.
const NETNS: (usize, usize) = (3, 4);
/// Addresses of one netns, and of all.
const ADDRESSES: (usize, usize) = (3, 5);
const TASKS: usize = 4;
/// A few links, or more of anything else, in bytes.
const FITTINGS: usize = 4 * 1024;

impl NodeMap {
    /// Sets small bounds.
    pub(crate) fn bound_all(&mut self) {
        self.bound_netns(NETNS.0, NETNS.1);
        self.bound_addresses(ADDRESSES.0, ADDRESSES.1);
        self.bound_tasks(TASKS);
        self.bound_fittings(FITTINGS);
    }

    /// # Panics
    /// A bound does not hold, or what is counted for it is not true.
    pub(crate) fn assert_bounds(&self) {
        self.assert_netns_count();
        self.assert_addresses_count();
        self.assert_tasks_count();
        self.assert_fittings_count();
        self.kernel.assert_lists_are_bounded();
        self.conflict.assert_evidence_is_bounded(|id| self.netns(id).is_some());
        assert!(self.duplicates().len() <= IN_ALL && self.conflicts(self.now()).len() <= IN_ALL);
        self.ipam.assert_disputes_are_bounded();
        self.scheduler.assert_is_of_kept(|id| self.netns(id).is_some());
        self.scheduler.assert_looks_are_bounded(|task| self.task(task).is_some());
        let visited = self.all_netns().filter(|entry| {
            entry.dying.is_none() && entry.tasks().len() > 0 && entry.idle_since().is_some()
        });
        self.scheduler.assert_visits_end(visited.map(|entry| entry.id));
    }
}
