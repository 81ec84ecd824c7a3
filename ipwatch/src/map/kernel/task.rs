//! Tasks in a netns, exiting tasks and killed tasks.
//!
//! A task keeps its netns until its `nsproxy` is released (`exit_task_namespaces`, after `exit_files`): an exiting task
//! is still a holder. Threads nearly always share the netns of their process, and are kept only if they are known to
//! outlive their leader or to be in another netns.

use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use crate::fact::{BootNs, Look, NetnsRef, Origin, Presence, Progress, Sender, Task, TaskKey};

use crate::map::{Kinds, NetnsId, NodeMap, Table};

/// Maximum number of remembered SIGKILLs: a kill is reported by process, before it is known which of its threads
/// matter.
const MAX_KILLS: usize = 4096;
const SIGKILL: u32 = 9;
/// Time after which a task that only a snapshot reported counts as one whose end an event will report.
const KNOWN: u64 = 5_000_000_000;
/// Delay before the tasks of a netns are looked for that are not kept, once those that were have ended.
const LOOKED_FOR_AFTER: u64 = 1_000_000_000;
/// Nanoseconds of a tick (USER_HZ), the unit of start times.
pub(super) const TICK: u64 = 10_000_000;

/// A task in a netns other than the host's.
#[derive(Debug)]
pub struct TaskEntry {
    pub key: TaskKey,
    /// Its name. Untrusted text.
    pub comm: String,
    pub netns: NetnsId,
    /// Its cgroup, once read.
    pub cgroup: Option<Rc<str>>,
    /// First seen in the map.
    pub since: BootNs,
    /// Since when it is known to be exiting.
    pub exiting: Option<BootNs>,
    /// Since when SIGKILL is known to be pending.
    pub killed: Option<BootNs>,
    /// Whether it was exiting or killed at the first look: then the best known start is when it last ran.
    pub preexisting: bool,
    /// State letter, if reported.
    pub state: Option<char>,
    /// The last detailed look at it. Most tasks never have one.
    pub look: Option<Box<LookEntry>>,
    /// Since when none of its files in procfs can be read.
    pub silent: Option<BootNs>,
    /// When a look last showed progress, and of what kind.
    pub progress: Option<(BootNs, Progress)>,
    /// When a look last showed that a CPU limit was exhausted, and which, in thousandths of a CPU.
    pub throttled: Option<(BootNs, u32)>,
    touched: BootNs,
}

/// A detailed look and its time.
#[derive(Debug, Clone)]
pub struct LookEntry {
    pub at: BootNs,
    pub look: Look,
    /// Number of looks so far.
    pub count: u32,
}

/// A SIGKILL that was seen to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kill {
    pub at: BootNs,
    /// The sender.
    pub by: Sender,
    /// Whether it was sent to the whole process.
    pub group: bool,
    /// The thread it was directed at.
    pub tid: u32,
}

impl TaskEntry {
    /// Since when the task has been exiting, killed or unreadable.
    #[must_use]
    pub fn leaving_since(&self) -> Option<BootNs> {
        [self.exiting, self.killed, self.silent].into_iter().flatten().min()
    }

    /// An exiting task is shown in the root of every v1 hierarchy (`cgroup_path_ns` behind `proc_cgroup_show`, 6.18):
    /// an earlier path says more.
    fn learn_cgroup(&mut self, path: Rc<str>) {
        if self.exiting.is_none() || self.cgroup.is_none() {
            self.cgroup = Some(path);
        }
    }
}

#[derive(Debug, Default)]
pub(in crate::map) struct Tasks {
    /// By pid and tid, which only one task has at a time.
    entries: Table<(u32, u32), TaskEntry>,
    /// Threads other than leaders, by process: few processes have any that are known.
    threads: BTreeSet<(u32, u32)>,
    leaving: BTreeSet<TaskKey>,
    /// Tasks that were leaving at the first look.
    preexisting: BTreeSet<TaskKey>,
    /// Tasks that have been looked at.
    looked: BTreeSet<TaskKey>,
    kills: Table<u32, Kill>,
    kill_order: VecDeque<(u32, BootNs)>,
}

impl Tasks {
    pub(in crate::map) fn get(&self, key: &TaskKey) -> Option<&TaskEntry> {
        self.entries.get(&(key.pid, key.tid)).filter(|entry| entry.key == *key)
    }

    fn get_mut(&mut self, key: &TaskKey) -> Option<&mut TaskEntry> {
        self.entries.get_mut(&(key.pid, key.tid)).filter(|entry| entry.key == *key)
    }

    pub(in crate::map) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The tasks of a process, its leader first.
    pub(in crate::map) fn of(&self, pid: u32) -> impl Iterator<Item = &TaskEntry> {
        let threads = self.threads.range((pid, 0)..=(pid, u32::MAX));
        let ids = std::iter::once((pid, pid)).chain(threads.copied());
        ids.filter_map(|id| self.entries.get(&id))
    }

    fn remove(&mut self, key: &TaskKey) {
        if self.get(key).is_none() {
            return;
        }
        self.entries.remove(&(key.pid, key.tid));
        for some in [&mut self.leaving, &mut self.preexisting, &mut self.looked] {
            some.remove(key);
        }
        if !key.is_leader() {
            self.threads.remove(&(key.pid, key.tid));
        }
    }

    pub(in crate::map) fn leaving(&self) -> impl Iterator<Item = &TaskEntry> {
        self.leaving.iter().filter_map(|key| self.get(key))
    }

    /// The leaving tasks that have been looked at.
    pub(in crate::map) fn seen_leaving(&self) -> impl Iterator<Item = &TaskEntry> {
        let seen = self.looked.iter().filter(|key| self.leaving.contains(key));
        seen.filter_map(|key| self.get(key))
    }

    /// The leaving tasks that were already leaving at the first look.
    pub(in crate::map) fn left_before(&self) -> impl Iterator<Item = &TaskEntry> {
        let before = self.preexisting.iter().filter(|key| self.leaving.contains(key));
        before.filter_map(|key| self.get(key))
    }

    /// The kill of this task's process. A kill older than the task was of an earlier process with the same pid.
    pub(in crate::map) fn kill(&self, task: &TaskKey) -> Option<&Kill> {
        self.kills.get(&task.pid).filter(|kill| kill.at.0 / TICK >= task.start)
    }

    pub(in crate::map) fn rehome<'a>(
        &mut self,
        tasks: impl Iterator<Item = &'a TaskKey>,
        netns: NetnsId,
    ) {
        for key in tasks {
            if let Some(entry) = self.get_mut(key) {
                entry.netns = netns;
            }
        }
    }

    /// Remembers a kill. Returns whether the kill of another process was dropped for it.
    fn remember_kill(&mut self, pid: u32, kill: Kill) -> bool {
        let mut forgot = false;
        self.kill_order.push_back((pid, kill.at));
        // The first kill is the one that counts, later ones are repetitions; unless the first was of an earlier process
        // with this pid.
        let known = self.of(pid).any(|task| self.kill(&task.key).is_some());
        if !known {
            self.kills.insert(pid, kill);
        }
        while self.kill_order.len() > MAX_KILLS {
            let Some((pid, at)) = self.kill_order.pop_front() else { break };
            if self.kills.get(&pid).is_some_and(|kill| kill.at == at) {
                self.kills.remove(&pid);
                forgot = true;
            }
        }
        forgot
    }
}

impl NodeMap {
    pub(in crate::map) fn set_task(&mut self, task: &Task, at: BootNs, origin: Origin) {
        if origin == Origin::Probe {
            self.kernel.missed.told(&task.key);
        } else if self.kernel.tasks.get(&task.key).is_none() && self.is_told_soon(task, at) {
            return;
        }
        if self.kernel.tombstones.task_buried(task.key, at) {
            return;
        }
        if self.is_host(&task.netns) {
            // It moved to the host's netns, which is not tracked by task.
            self.leave(task.key, at);
            return;
        }
        let Some(netns) = self.resolve(&task.netns, at).or_else(|| self.entered_left_out(task, at))
        else {
            // It may have moved to one that is not kept.
            if self.may_be_left_out(&task.netns, at) && self.kernel.tasks.get(&task.key).is_some() {
                self.leave(task.key, at);
            }
            return;
        };
        self.evict_predecessor(task.key, at);
        let first_snapshot = self.kernel.task_snapshots == 0 && origin != Origin::Probe;
        let inherited = task.parent.and_then(|parent| self.cgroup_of(parent));

        let fresh = self.kernel.tasks.get(&task.key).is_none();
        if fresh && !self.make_room_for_task(netns, task, origin == Origin::Probe) {
            return;
        }
        // Of a netns whose tasks are not all kept, one that is not known was probably reported.
        let compares = origin != Origin::Probe
            && self.compares()
            && !(fresh && self.kernel.crowd.is_short(netns));
        let Task { key: TaskKey { pid, tid, .. }, .. } = *task;
        let entry = self.kernel.tasks.entries.entry((pid, tid)).or_insert_with(|| TaskEntry {
            key: task.key,
            comm: task.comm.clone(),
            netns,
            cgroup: None,
            since: at,
            exiting: None,
            killed: None,
            preexisting: first_snapshot && (task.exiting || task.killed),
            state: None,
            look: None,
            silent: None,
            progress: None,
            throttled: None,
            touched: at,
        });
        if entry.preexisting {
            self.kernel.tasks.preexisting.insert(task.key);
        }
        if entry.touched > at {
            return;
        }
        entry.touched = at;
        let became_another = entry.comm != task.comm;
        if became_another {
            entry.comm.clone_from(&task.comm);
        }
        entry.state = task.state.or(entry.state);
        let moved_from = (entry.netns != netns).then_some(entry.netns);
        entry.netns = netns;
        // A task that was leaving before the first look has been so at least since it last ran.
        let before = task.idle.filter(|_| entry.preexisting).unwrap_or(0);
        let since = BootNs(at.0.saturating_sub(before));
        if compares {
            let leaves = (task.exiting || task.killed) && entry.leaving_since().is_none();
            match () {
                () if fresh => self.kernel.missed.appeared(task, at),
                () if moved_from.is_some() => self.kernel.missed.moved(task.key, at),
                () if leaves => self.kernel.missed.exits(task.key, at),
                () => {}
            }
        }
        if task.exiting {
            entry.exiting.get_or_insert(since);
        }
        if task.killed {
            entry.killed.get_or_insert(since);
        }
        if entry.cgroup.is_none() && inherited.is_some() && origin == Origin::Probe {
            entry.cgroup = inherited;
        }
        let cgroup = entry.cgroup.clone();
        let is_leaving = entry.leaving_since().is_some();
        // A runtime puts its process into a cgroup before that process becomes the container's by an exec.
        let unnamed = (entry.cgroup.is_none() || became_another) && task.key.is_leader();
        if let Some(old) = moved_from {
            self.leave_netns(old, &task.key, at);
        }
        let mut was_empty = false;
        if let Some(netns) = self.kernel.netns.get_mut(&netns) {
            netns.tasks.insert(task.key, cgroup, is_leaving);
            was_empty = netns.entered(at);
        }
        self.recrowd(netns);
        if fresh || moved_from.is_some() {
            if !task.key.is_leader() {
                self.kernel.tasks.threads.insert((pid, tid));
            }
            self.scheduler.task_entered(netns, at, was_empty);
            self.doubt_inode(netns, at);
        }
        if moved_from.is_some() {
            self.settle_moved_task(netns, task.key);
            if self.kernel.tasks.get(&task.key).is_none() {
                return;
            }
        }
        if unnamed {
            self.scheduler.unnamed(task.key, at);
        }
        self.consider_leaving(task.key);
    }

    fn is_host(&self, netns: &NetnsRef) -> bool {
        self.host().is_some() && self.kernel.names.find(netns) == self.host()
    }

    fn cgroup_of(&self, pid: u32) -> Option<Rc<str>> {
        self.kernel.tasks.entries.get(&(pid, pid))?.cgroup.clone()
    }

    /// Another task had this pid and tid: it must have ended.
    fn evict_predecessor(&mut self, key: TaskKey, at: BootNs) {
        if let Some(old) = self.kernel.tasks.entries.get(&(key.pid, key.tid)).map(|old| old.key)
            && old != key
        {
            self.leave(old, at);
        }
    }

    pub(in crate::map) fn task_exiting(&mut self, key: TaskKey, at: BootNs) {
        if let Some(entry) = self.kernel.tasks.get_mut(&key) {
            entry.exiting.get_or_insert(at);
            entry.touched = entry.touched.max(at);
            self.consider_leaving(key);
        }
    }

    /// The task has released its netns. If it was the leader of its process, the threads may still hold one.
    pub(in crate::map) fn task_released(&mut self, key: TaskKey, at: BootNs) {
        let known = self.kernel.tasks.get(&key).map(|entry| entry.netns);
        self.leave(key, at);
        if let Some(netns) = known.filter(|_| key.is_leader()) {
            self.scheduler.leader_left(key, netns, at);
        }
    }

    /// As `task_released`, reported by an event.
    pub(in crate::map) fn task_release_told(&mut self, key: TaskKey, at: BootNs) {
        self.kernel.missed.told(&key);
        self.task_released(key, at);
    }

    /// Removes a task and leaves a tombstone.
    fn leave(&mut self, key: TaskKey, at: BootNs) {
        self.kernel.tombstones.task(key, at);
        let Some(netns) = self.kernel.tasks.get(&key).map(|entry| entry.netns) else {
            return;
        };
        self.drop_task(&key);
        self.leave_netns(netns, &key, at);
    }

    fn leave_netns(&mut self, netns: NetnsId, key: &TaskKey, at: BootNs) {
        self.mark_in(netns, Kinds::TASKS);
        if let Some(entry) = self.kernel.netns.get_mut(&netns)
            && entry.tasks.remove(key)
        {
            let is_empty = entry.tasks.is_empty();
            self.recrowd(netns);
            if is_empty && self.kernel.crowd.is_short(netns) {
                // It has others, which are not kept: one of them will be.
                self.inhabited(netns);
                self.scheduler.walk_by(at.plus(LOOKED_FOR_AFTER));
            } else if is_empty {
                self.emptied(netns, at);
            }
        }
        self.doubt_inode(netns, at);
    }

    /// A netns that was empty is inhabited now if its visitors have stayed for long enough; otherwise returns when they will
    /// have.
    pub(in crate::map) fn settle_visit(&mut self, netns: NetnsId, now: BootNs) -> Option<BootNs> {
        let due = self.kernel.netns.get_mut(&netns)?.settles(now);
        if due.is_none() {
            self.inhabited(netns);
        }
        due
    }

    /// Who is in a netns lives there.
    fn inhabited(&mut self, netns: NetnsId) {
        let Some(entry) = self.kernel.netns.get_mut(&netns) else { return };
        entry.inhabited();
        // Since when the runtimes are to be asked about it: see `settled_since`.
        if entry.was_left() {
            self.changes.mark(Kinds::NETNS);
        }
        let searching = entry.has_hidden_holder();
        self.scheduler.inhabited(netns, searching);
        // While they might have been visitors, nothing was named after them.
        self.netns_named(netns);
        self.workload.ask_owner(netns);
        self.mark_in(netns, Kinds::TASKS);
    }

    /// The last task of a netns has left.
    pub(super) fn emptied(&mut self, netns: NetnsId, at: BootNs) {
        self.mark_in(netns, Kinds::TASKS);
        let Some(entry) = self.kernel.netns.get_mut(&netns) else { return };
        if entry.settled_since().is_some() {
            self.changes.mark(Kinds::NETNS);
        }
        let is_same = entry.deserted(at);
        if entry.dying.is_none() {
            self.scheduler.emptied(netns, at, is_same);
        }
        self.workload.ask_owner(netns);
    }

    /// Removes a task from every index except its netns's.
    pub(in crate::map) fn drop_task(&mut self, key: &TaskKey) {
        self.kernel.tasks.remove(key);
        self.scheduler.forget_task(key);
    }

    pub(in crate::map) fn signalled(
        &mut self,
        pid: u32,
        tid: u32,
        signal: u32,
        group: bool,
        by: &Sender,
        at: BootNs,
    ) {
        if signal != SIGKILL {
            return;
        }
        if self.kernel.tasks.remember_kill(pid, Kill { at, by: by.clone(), group, tid }) {
            self.changes.mark(Kinds::TASKS);
        }
        // SIGKILL ends the whole process, whichever thread it is directed at (`complete_signal`).
        let keys: Vec<TaskKey> = self.kernel.tasks.of(pid).map(|entry| entry.key).collect();
        for key in keys {
            if let Some(entry) = self.kernel.tasks.get_mut(&key) {
                entry.killed.get_or_insert(at);
                self.consider_leaving(key);
            }
        }
    }

    /// Schedules looks at a task if it is leaving.
    fn consider_leaving(&mut self, key: TaskKey) {
        let Some(entry) = self.kernel.tasks.get(&key) else { return };
        let netns = entry.netns;
        if let Some(since) = entry.leaving_since()
            && self.kernel.tasks.leaving.insert(key)
        {
            self.scheduler.leaving(key, since);
            self.sort_resident(netns, key, true);
        }
    }

    /// A task of a netns begins to leave, or stays after all.
    fn sort_resident(&mut self, netns: NetnsId, key: TaskKey, is_leaving: bool) {
        if let Some(entry) = self.kernel.netns.get_mut(&netns) {
            entry.tasks.set_leaving(key, is_leaving);
            self.recrowd(netns);
        }
    }

    pub(in crate::map) fn looked(&mut self, key: TaskKey, look: &Look, at: BootNs) {
        match &look.netns {
            Some(Presence::Gone) => return self.leave(key, at),
            Some(Presence::Released) => return self.task_released(key, at),
            Some(Presence::In(_)) | None => {}
        }
        let Some(entry) = self.kernel.tasks.get_mut(&key) else { return };
        if entry.look.as_ref().is_some_and(|last| last.at > at) {
            return;
        }
        if let Some(unanswered) = look.unanswered.as_ref().filter(|_| look.is_blank()) {
            let since = unanswered.since;
            return self.fell_silent(key, look, since, at);
        }
        // It can be read again, and may not be leaving at all.
        if entry.silent.take().is_some() && entry.leaving_since().is_none() {
            let netns = entry.netns;
            self.kernel.tasks.leaving.remove(&key);
            self.scheduler.stays(&key);
            self.sort_resident(netns, key, false);
        }
        let Some(entry) = self.kernel.tasks.get_mut(&key) else { return };
        // An incomplete look does not replace a complete one.
        if entry.look.is_some() && (look.netns.is_none() || look.frozen.is_none()) {
            self.scheduler.looked(key, at);
            return;
        }
        let count = entry.look.as_ref().map_or(0, |last| last.count).saturating_add(1);
        entry.state = Some(look.state);
        if !look.comm.is_empty() && entry.comm != look.comm {
            entry.comm.clone_from(&look.comm);
        }
        if let Some(cgroup) = &look.cgroup {
            entry.learn_cgroup(Rc::from(cgroup.as_str()));
            if let Some(netns) = self.kernel.netns.get_mut(&entry.netns) {
                netns.has_cgroup(key, entry.cgroup.clone());
            }
        }
        let before = entry.look.as_ref().map(|last| &last.look);
        if let Some(progress) = look.progress(before) {
            entry.progress = Some((at, progress));
            if let Progress::Throttled(limit) = progress {
                entry.throttled = Some((at, limit));
            }
        }
        entry.look = Some(Box::new(LookEntry { at, look: look.clone(), count }));
        entry.touched = entry.touched.max(at);
        self.kernel.tasks.looked.insert(key);
        self.scheduler.looked(key, at);
    }

    /// A look at a task of which nothing can be read replaces earlier looks, which are outdated.
    fn fell_silent(&mut self, key: TaskKey, look: &Look, since: BootNs, at: BootNs) {
        let Some(entry) = self.kernel.tasks.get_mut(&key) else { return };
        entry.silent.get_or_insert(since);
        entry.state = None;
        let count = entry.look.as_ref().map_or(0, |last| last.count).saturating_add(1);
        entry.look = Some(Box::new(LookEntry { at, look: look.clone(), count }));
        entry.touched = entry.touched.max(at);
        self.kernel.tasks.looked.insert(key);
        self.consider_leaving(key);
        self.scheduler.looked(key, at);
    }

    /// A file of a process stopped answering, or answers again.
    pub(in crate::map) fn process_doubted(&mut self, pid: u32, at: BootNs) {
        let keys: Vec<TaskKey> = self.kernel.tasks.of(pid).map(|entry| entry.key).collect();
        for key in keys {
            self.scheduler.doubt(key, at);
        }
    }

    pub(in crate::map) fn set_cgroup(&mut self, key: TaskKey, path: &str, at: BootNs) {
        self.scheduler.named(&key, at);
        let Some(entry) = self.kernel.tasks.get_mut(&key) else { return };
        let Some(netns) = self.kernel.netns.get_mut(&entry.netns) else { return };
        // One copy for all tasks of a container.
        let shared = netns.tasks.cgroups().find(|known| known.as_ref() == path).cloned();
        entry.learn_cgroup(shared.unwrap_or_else(|| Rc::from(path)));
        netns.has_cgroup(key, entry.cgroup.clone());
        let netns = entry.netns;
        self.netns_named(netns);
        self.workload.ask_owner(netns);
    }

    pub(in crate::map) fn sweep_tasks(&mut self, began: BootNs) {
        let compares = self.compares() && self.sight.release;
        for key in self.untouched_since(began) {
            // No event reports the end of a thread that only a snapshot reported.
            let known = self.kernel.tasks.get(&key).map(|entry| entry.since);
            if compares && key.is_leader() && known.is_some_and(|since| began > since.plus(KNOWN)) {
                self.kernel.missed.vanished(key, began);
            }
            self.task_released(key, began);
        }
        self.recount_unkept_tasks(began);
        self.confirm_missed(began);
    }

    /// An incomplete snapshot did not find these tasks, which proves nothing: schedules a look at each.
    pub(in crate::map) fn doubt_tasks(&mut self, began: BootNs) {
        for key in self.untouched_since(began) {
            self.scheduler.doubt(key, began);
        }
    }

    fn untouched_since(&self, began: BootNs) -> Vec<TaskKey> {
        let untouched = self.kernel.tasks.entries.values().filter(|entry| entry.touched < began);
        untouched.map(|entry| entry.key).collect()
    }
}
