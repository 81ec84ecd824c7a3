//! What to find out about tasks, and when: whether those that leave still do, which threads are left of a process whose
//! leader has ended, and in which cgroup a task is. How much of it at a time: `map/looks.rs`.

use super::{MS, Pending, SEC, Thresholds};
use crate::fact::{BootNs, TaskKey};
use crate::map::kernel::Tenant;
use crate::map::looks::{CGROUPS, LOOKS, THREADS_WAIT};
use crate::map::request::Request;
use crate::map::{Netns, NetnsId, NodeMap};

/// When to check whether an exiting task has ended, if no probe reports it: most end within milliseconds.
const GONE_YET: [u64; 2] = [100 * MS, SEC];
/// Pauses before a cgroup is requested again: the first answer may have been lost.
const NAME_PAUSES: [u64; 3] = [SEC, 10 * SEC, 60 * SEC];

impl Pending {
    pub(in crate::map) fn unnamed(&mut self, task: TaskKey, at: BootNs) {
        self.unnamed_tries.remove(&task);
        self.unnamed.hasten(task, at);
        self.name_turns.changed(task);
    }

    pub(in crate::map) fn named(&mut self, task: &TaskKey, at: BootNs) {
        let again = self.name_turns.answered(task);
        self.forget_name(task);
        if again {
            self.unnamed.set(*task, at);
        }
    }

    fn forget_name(&mut self, task: &TaskKey) {
        self.unnamed.cancel(task);
        self.unnamed_tries.remove(task);
        self.name_turns.leaves(task);
    }

    pub(in crate::map) fn leaving(&mut self, task: TaskKey, since: BootNs) {
        self.plans.insert(task, (since, 0));
        self.to_plan.push((task, None));
    }

    /// The task may have ended unobserved.
    pub(in crate::map) fn doubt(&mut self, task: TaskKey, at: BootNs) {
        self.looks.hasten(task, at);
        self.look_turns.changed(task);
    }

    pub(in crate::map) fn looked(&mut self, task: TaskKey, at: BootNs) {
        if self.look_turns.answered(&task) {
            self.looks.set(task, at);
            return;
        }
        if !self.plans.contains_key(&task) {
            self.looks.cancel(&task);
        }
        self.to_plan.push((task, Some(at)));
    }

    /// The task is not leaving after all.
    pub(in crate::map) fn stays(&mut self, task: &TaskKey) {
        self.plans.remove(task);
        self.looks.cancel(task);
        self.look_turns.leaves(task);
    }

    /// The leader of a process, which was in this netns, has ended.
    pub(in crate::map) fn leader_left(&mut self, task: TaskKey, netns: NetnsId, at: BootNs) {
        self.fresh_leavers.push(((task, netns), at));
    }

    pub(in crate::map) fn forget_task(&mut self, task: &TaskKey) {
        self.forget_name(task);
        self.stays(task);
    }

    /// It turned out whose these tasks are.
    pub(in crate::map) fn count_to<'a>(
        &mut self,
        tenant: Tenant,
        tasks: impl Iterator<Item = &'a TaskKey>,
    ) {
        if self.look_turns.is_idle() && self.name_turns.is_idle() {
            return;
        }
        for task in tasks {
            self.look_turns.counts_to(*task, tenant);
            self.name_turns.counts_to(*task, tenant);
        }
    }

    /// Checks the bounds of what is asked for at once, and that nothing is asked for of tasks that are not kept.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(in crate::map) fn assert_looks_are_bounded(&self, is_kept: impl Fn(&TaskKey) -> bool) {
        self.look_turns.assert_is_bounded(&is_kept);
        self.name_turns.assert_is_bounded(&is_kept);
        self.thread_turns.assert_is_bounded(|_| true);
    }

    /// Plans the next look at a task: soon, to see whether it has ended; halfway through its grace, so that the look at
    /// its end can detect progress; once more to confirm; then with growing pauses to keep the evidence current.
    fn plan(
        &mut self,
        task: TaskKey,
        looked: Option<BootNs>,
        thresholds: &Thresholds,
        sees_release: bool,
    ) {
        let Some((since, after_grace)) = self.plans.get_mut(&task) else { return };
        let since = *since;
        let end = since.plus(thresholds.grace);
        let due = match looked {
            Some(at) if at >= end => {
                *after_grace += 1;
                match *after_grace {
                    1 => at.plus(thresholds.second_look),
                    _ => at.plus((at.since(end) / 2).clamp(2 * SEC, 60 * SEC)),
                }
            }
            looked => {
                let from = looked.unwrap_or(since);
                let early = GONE_YET.iter().filter(|_| !sees_release);
                let early = early.map(|pause| since.plus(*pause));
                let early = early.chain([since.plus(thresholds.grace / 2)]);
                early.filter(|due| *due > from && *due < end).min().unwrap_or(end)
            }
        };
        self.looks.set(task, due);
    }
}

impl NodeMap {
    /// Plans the queued looks. A look that could not be taken counts as one that showed nothing.
    pub(super) fn plan_looks(&mut self, thresholds: &Thresholds) {
        let pending = &mut self.scheduler;
        for (task, looked) in std::mem::take(&mut pending.to_plan) {
            pending.plan(task, looked, thresholds, self.sight.release);
        }
        for (task, left) in std::mem::take(&mut pending.fresh_leavers) {
            pending.threads.set(task, left.plus(thresholds.grace));
        }
    }

    /// To whom a task counts.
    fn tenant_of(&self, task: &TaskKey) -> Tenant {
        self.kernel.tenant_of(task).unwrap_or(Tenant::User(None))
    }

    pub(super) fn want_looks(&mut self, now: BootNs, wants: &mut Vec<Request>) {
        self.scheduler.look_turns.expire(now);
        while let Some(task) = self.scheduler.looks.pop(now) {
            let tenant = self.tenant_of(&task);
            if !self.scheduler.look_turns.wait(task, tenant) {
                self.scheduler.looks.set(task, now.plus(LOOKS.patience));
            }
        }
        while let Some(task) = self.scheduler.look_turns.next(now) {
            // Rescheduled at once, in case no answer comes.
            self.scheduler.looks.set(task, now.plus(LOOKS.patience));
            wants.push(Request::Look { task });
        }
    }

    pub(super) fn want_threads(&mut self, now: BootNs, wants: &mut Vec<Request>) {
        self.scheduler.thread_turns.expire(now);
        while let Some((leader, netns)) = self.scheduler.threads.pop(now) {
            let tenant = self.kernel.get(netns).map_or(Tenant::User(None), Netns::tenant);
            if self.scheduler.thread_turns.waits(tenant) < THREADS_WAIT {
                self.scheduler.thread_turns.wait(leader.pid, tenant);
            }
        }
        while let Some(pid) = self.scheduler.thread_turns.next(now) {
            wants.push(Request::Threads { pid });
        }
    }

    pub(super) fn want_names(&mut self, now: BootNs, wants: &mut Vec<Request>) {
        self.scheduler.name_turns.expire(now);
        while let Some(task) = self.scheduler.unnamed.pop(now) {
            let tries = self.scheduler.unnamed_tries.get(&task).copied().unwrap_or_default();
            // A task outside any container's cgroup stays unnamed: give up after the last pause.
            if tries >= NAME_PAUSES.len() {
                self.scheduler.unnamed_tries.remove(&task);
                continue;
            }
            let tenant = self.tenant_of(&task);
            if !self.scheduler.name_turns.wait(task, tenant) {
                self.scheduler.unnamed.set(task, now.plus(CGROUPS.patience));
            }
        }
        while let Some(task) = self.scheduler.name_turns.next(now) {
            let tries = self.scheduler.unnamed_tries.entry(task).or_default();
            let pause = NAME_PAUSES[(*tries).min(NAME_PAUSES.len() - 1)];
            *tries += 1;
            self.scheduler.unnamed.set(task, now.plus(pause));
            wants.push(Request::Cgroup { task });
        }
    }
}
