//! Runs of CNI plugins: which are under way, which have just ended, and how each container's went.
//!
//! What is asked most (is a DEL of this container under way?) is answered from its history alone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::fact::{BootNs, CniCall, CniCommand, PodName, TaskKey};

use super::sandbox::strip_var;
use super::seen::Seen;
use crate::map::{Kinds, NodeMap};

/// Runs under way that are kept. A node that starts 50 pods a second has some hundred.
const MOST_RUNNING: usize = 4096;
/// Ended runs that are kept.
const MOST_PAST: usize = 4096;
/// Ended runs kept until the daemon takes them. A replay that never does must not grow without end.
const MOST_UNTAKEN: usize = 4096;
/// How long an ended run is kept, in ns.
const KEEP: u64 = 600_000_000_000;
/// A plugin that has not ended after this was not seen to: kubelet gives one up after some minutes.
const LOST: u64 = 1_800_000_000_000;

/// A plugin that has run for so long keeps nobody waiting any more: it hangs, or its end was not seen.
pub(in crate::map) const HUNG: u64 = 120_000_000_000;
/// Between two looks for runs that were not seen to end, and for paths that are old.
const TIDY: u64 = 30_000_000_000;
/// Paths of netns kept.
const MOST_PATHS: usize = 4096;

/// Containers whose history is kept. One that nothing was heard of for longest goes first.
const MOST_CONTAINERS: usize = 8192;
/// Plugins of one container that are kept apart.
const MOST_PLUGINS: usize = 8;
/// Bytes kept of an error's text.
const LONGEST_ERROR: usize = 1024;

/// One run of a plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct CallEntry {
    /// What it was told.
    pub call: CniCall,
    /// The run it works for: an IPAM plugin's main plugin.
    pub within: Option<TaskKey>,
    pub began: BootNs,
    /// When and how it ended.
    pub ended: Option<CallEnd>,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallEnd {
    pub at: BootNs,
    /// Its exit status.
    pub status: Option<u32>,
    /// The signal that ended it.
    pub signal: Option<u32>,
}

impl CallEnd {
    /// Whether the plugin said that it failed. A run that was not seen to end has not.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.status.is_some_and(|status| status != 0) || self.signal.is_some()
    }

    /// Whether it was seen. If not, it had ended by then, well or not.
    #[must_use]
    pub fn is_seen(&self) -> bool {
        self.status.is_some() || self.signal.is_some()
    }
}

impl CallEntry {
    /// Whether it is a run of this command for this container.
    #[must_use]
    pub fn is(&self, command: CniCommand, container_id: &str) -> bool {
        self.call.command == command && self.call.container_id.as_deref() == Some(container_id)
    }
}

/// How the ADDs and DELs of one container went.
#[derive(Debug, Clone, Default)]
pub struct CallHistory {
    /// The pod, as any of them named it.
    pub pod: Option<PodName>,
    /// The newest path of its netns that any of them was given.
    pub netns_path: Option<String>,
    pub add: CommandStats,
    pub del: CommandStats,
    /// DELs by the plugin that was run: a network may have several, and the first to fail ends the call.
    pub plugins: Vec<(Arc<str>, CommandStats)>,
    /// The newest error, which command's, and when it was told.
    pub error: Option<(CniCommand, String, BootNs)>,
    /// Something was heard of it.
    touched: BootNs,
}

/// How the runs of one command went. Those of IPAM plugins count with their main plugin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CommandStats {
    /// Under way.
    pub running: u32,
    /// When the oldest of those under way began.
    pub running_since: Option<BootNs>,
    /// The first began.
    pub first: Option<BootNs>,
    /// The newest began.
    pub last: Option<BootNs>,
    /// The newest ended.
    pub ended: Option<BootNs>,
    /// Failed since the newest success, one after the other.
    pub failures: u32,
    /// The first and the newest of these failures, and the newest one's exit status.
    pub failed: Option<(BootNs, BootNs, Option<u32>)>,
}

impl CommandStats {
    fn began(&mut self, at: BootNs) {
        self.running = self.running.saturating_add(1);
        self.running_since.get_or_insert(at);
        self.first.get_or_insert(at);
        self.last = self.last.max(Some(at));
    }

    fn ended(&mut self, began: BootNs, end: CallEnd) {
        self.running = self.running.saturating_sub(1);
        if self.running == 0 {
            self.running_since = None;
        }
        self.ended = self.ended.max(Some(end.at));
        if !end.is_seen() {
            return;
        }
        if !end.failed() {
            self.failures = 0;
            self.failed = None;
            return;
        }
        // Two at once that fail are one failure: they are in each other's way.
        let at_once = self.failed.is_some_and(|(_, newest, _)| began <= newest);
        if !at_once {
            self.failures = self.failures.saturating_add(1);
        }
        let first = self.failed.map_or(end.at, |(first, ..)| first);
        self.failed = Some((first, end.at, end.status));
    }

    /// Whether one is under way and does not hang, or ended less than `after` ns before `now`.
    fn is_recent(&self, now: BootNs, after: u64) -> bool {
        (self.running > 0 && self.last.is_some_and(|began| now.since(began) < HUNG))
            || self.ended.is_some_and(|end| now.since(end) < after)
    }

    /// One under way was not seen to end: that is neither success nor failure.
    fn lost(&mut self) {
        self.running = self.running.saturating_sub(1);
        self.running_since = self.running_since.filter(|_| self.running > 0);
    }
}

#[derive(Debug, Default)]
pub(in crate::map) struct Calls {
    running: BTreeMap<TaskKey, CallEntry>,
    past: VecDeque<CallEntry>,
    untaken: Vec<CallEntry>,
    histories: BTreeMap<Arc<str>, CallHistory>,
    /// Of these a DEL has failed.
    failing: BTreeSet<Arc<str>>,
    /// Where netns are mounted: for whom the newest ADD was that was given this path, and when it began.
    paths: BTreeMap<String, (Arc<str>, BootNs)>,
    tidied: BootNs,
    /// When every run was seen.
    seen: Seen,
}

impl Calls {
    fn history_of(&mut self, id: &str, at: BootNs) -> &mut CallHistory {
        if self.histories.len() >= MOST_CONTAINERS && !self.histories.contains_key(id) {
            let mut ages: Vec<BootNs> = self.histories.values().map(|one| one.touched).collect();
            ages.sort_unstable();
            // A quarter at once: this is not to be done for each.
            let old = ages[ages.len() / 4];
            self.histories
                .retain(|_, one| one.touched > old || one.add.running > 0 || one.del.running > 0);
            while self.histories.len() >= MOST_CONTAINERS {
                self.histories.pop_first();
            }
            let histories = &self.histories;
            self.failing.retain(|id| histories.contains_key(id));
        }
        let history = self.histories.entry(id.into()).or_default();
        history.touched = history.touched.max(at);
        history
    }

    fn note_began(&mut self, entry: &CallEntry) {
        let call = &entry.call;
        let Some(id) = &call.container_id else { return };
        let history = self.history_of(id, entry.began);
        if call.pod.is_some() {
            history.pod.clone_from(&call.pod);
        }
        if call.netns_path.is_some() {
            history.netns_path.clone_from(&call.netns_path);
        }
        if let Some(went) = history.of(call.command) {
            went.began(entry.began);
        }
        if let Some(went) = history.plugin(entry) {
            went.began(entry.began);
        }
    }

    fn note_ended(&mut self, entry: &CallEntry, end: CallEnd) {
        let Some(id) = &entry.call.container_id else { return };
        let history = self.history_of(id, end.at);
        if let Some(went) = history.of(entry.call.command) {
            went.ended(entry.began, end);
        }
        if let Some(went) = history.plugin(entry) {
            went.ended(entry.began, end);
        }
        let fails = history.plugins.iter().any(|(_, went)| went.failures > 0);
        if fails {
            self.failing.insert(id.as_str().into());
        } else {
            self.failing.remove(id.as_str());
        }
    }

    /// Forgets runs under way that were not seen to end, and tells which.
    fn drop_lost(&mut self, at: BootNs) -> Vec<CallEntry> {
        let old = |entry: &CallEntry| at.since(entry.began) >= LOST;
        let lost: Vec<CallEntry> =
            self.running.extract_if(.., |_, entry| old(entry)).map(|(_, entry)| entry).collect();
        for entry in &lost {
            let Some(id) = &entry.call.container_id else { continue };
            let Some(history) = self.histories.get_mut(id.as_str()) else { continue };
            if let Some(went) = history.of(entry.call.command) {
                went.lost();
            }
            if let Some(went) = history.plugin(entry) {
                went.lost();
            }
        }
        lost
    }

    /// An ADD was given a path, or a DEL has given it up.
    fn note_path(&mut self, entry: &CallEntry) {
        let CniCall { command, container_id, netns_path, .. } = &entry.call;
        let (Some(id), Some(path), None) = (container_id, netns_path, entry.within) else { return };
        let path = strip_var(path);
        match (command, entry.ended) {
            (CniCommand::Add, None) => {
                if self.paths.len() >= MOST_PATHS && !self.paths.contains_key(path) {
                    let oldest = self.paths.iter().min_by_key(|(_, (_, began))| *began);
                    let oldest = oldest.map(|(path, _)| path.clone());
                    oldest.and_then(|path| self.paths.remove(&path));
                }
                self.paths.insert(path.to_owned(), (id.as_str().into(), entry.began));
            }
            (CniCommand::Del, Some(end)) => {
                let own = self.paths.get(path).is_some_and(|(own, _)| **own == **id);
                if own && end.status == Some(0) {
                    self.paths.remove(path);
                }
            }
            _ => {}
        }
    }

    /// The container whose netns is mounted at a path, as the ADDs of the last minutes say.
    pub(in crate::map) fn container_at(&self, path: &str) -> Option<&str> {
        self.paths.get(path).map(|(id, _)| &**id)
    }
}

impl CallHistory {
    fn of(&mut self, command: CniCommand) -> Option<&mut CommandStats> {
        match command {
            CniCommand::Add => Some(&mut self.add),
            CniCommand::Del => Some(&mut self.del),
            _ => None,
        }
    }

    /// A DEL's plugin, if it is not one that works for another.
    fn plugin(&mut self, entry: &CallEntry) -> Option<&mut CommandStats> {
        if entry.call.command != CniCommand::Del || entry.within.is_some() {
            return None;
        }
        let name = entry.call.plugin.rsplit('/').next().unwrap_or_default();
        let known = self.plugins.iter().position(|(own, _)| **own == *name);
        let place = match known {
            Some(place) => place,
            None if self.plugins.len() < MOST_PLUGINS => {
                self.plugins.push((name.into(), CommandStats::default()));
                self.plugins.len() - 1
            }
            None => return None,
        };
        self.plugins.get_mut(place).map(|(_, went)| went)
    }
}

impl NodeMap {
    pub(in crate::map) fn call_began(&mut self, call: &CniCall, at: BootNs) {
        let of_pid = |pid| {
            let first = TaskKey { pid, tid: 0, start: 0 };
            first..=TaskKey { pid, tid: u32::MAX, start: u64::MAX }
        };
        let same = self.workload.calls.running.range(of_pid(call.task.pid)).map(|(task, _)| *task);
        let before: Vec<TaskKey> = same.filter(|task| *task != call.task).collect();
        for task in before {
            // Its pid is another's: it has ended, unseen.
            self.call_ended(task, None, None, at);
        }
        self.tidy_calls(at);
        if self.workload.calls.running.len() >= MOST_RUNNING {
            self.forget_lost_calls(at);
            if self.workload.calls.running.len() >= MOST_RUNNING {
                return;
            }
        }
        let calls = &mut self.workload.calls;
        // A pid names one running task at a time; the newest start is the one that lives.
        let within = calls.running.range(of_pid(call.parent)).next_back().map(|(task, _)| *task);
        let entry = CallEntry { call: call.clone(), within, began: at, ended: None };
        calls.note_began(&entry);
        calls.note_path(&entry);
        calls.running.insert(call.task, entry);
        if call.command == CniCommand::Add && call.netns_path.is_some() && within.is_none() {
            self.workload.owners.ask_all();
        }
        self.touch_container(call.container_id.as_deref());
        self.late_del_began(call, at);
    }

    /// Now and then: forgets runs that were not seen to end, and paths that are old. When to come back.
    pub(in crate::map) fn tidy_calls(&mut self, now: BootNs) -> Option<BootNs> {
        if now.since(self.workload.calls.tidied) >= TIDY {
            self.workload.calls.tidied = now;
            self.changes.mark(Kinds::CALLS);
            self.workload.calls.paths.retain(|_, (_, began)| now.since(*began) < KEEP);
            self.forget_lost_calls(now);
        }
        (!self.workload.calls.running.is_empty()).then(|| self.workload.calls.tidied.plus(TIDY))
    }

    fn forget_lost_calls(&mut self, at: BootNs) {
        for entry in self.workload.calls.drop_lost(at) {
            self.touch_container(entry.call.container_id.as_deref());
            self.late_del_ended(entry.call.task, CallEnd { at, status: None, signal: None });
        }
    }

    /// The begin or the end of a run may have been lost: all are seen again from now on.
    pub(in crate::map) fn calls_lost(&mut self, at: BootNs) {
        self.workload.calls.seen.lost(at);
        self.ipam.ask_all_leaks();
    }

    /// A call of this container's has begun or ended: what its reservations mean may have changed.
    fn touch_container(&mut self, id: Option<&str>) {
        let ips: Vec<std::net::IpAddr> =
            id.into_iter().flat_map(|id| self.reservations_for(id)).map(|entry| entry.ip).collect();
        for ip in ips {
            self.ipam.touch(ip);
        }
    }

    pub(in crate::map) fn call_ended(
        &mut self,
        task: TaskKey,
        status: Option<u32>,
        signal: Option<u32>,
        at: BootNs,
    ) {
        let Some(entry) = self.workload.calls.running.remove(&task) else { return };
        // A plugin waits for those that it runs; only one that is killed may leave one behind.
        let mut around: Vec<TaskKey> = signal.is_none().then_some(task).into_iter().collect();
        while let Some(outer) = around.pop() {
            let within = |_: &TaskKey, entry: &mut CallEntry| entry.within == Some(outer);
            let unseen: Vec<_> = self.workload.calls.running.extract_if(.., within).collect();
            for (task, entry) in unseen {
                around.push(task);
                self.call_over(entry, CallEnd { at, status: None, signal: None });
            }
        }
        self.call_over(entry, CallEnd { at, status, signal });
    }

    fn call_over(&mut self, mut entry: CallEntry, end: CallEnd) {
        let (calls, at, task) = (&mut self.workload.calls, end.at, entry.call.task);
        entry.ended = Some(end);
        calls.note_ended(&entry, end);
        calls.note_path(&entry);
        let old = |entry: &CallEntry| entry.ended.is_none_or(|end| at.since(end.at) > KEEP);
        while calls.past.len() >= MOST_PAST || calls.past.front().is_some_and(old) {
            calls.past.pop_front();
        }
        // How long the others took is not known.
        if end.is_seen() && calls.untaken.len() < MOST_UNTAKEN {
            calls.untaken.push(entry.clone());
        }
        let id = entry.call.container_id.clone();
        calls.past.push_back(entry);
        self.touch_container(id.as_deref());
        self.late_del_ended(task, end);
    }

    pub(in crate::map) fn call_error(
        &mut self,
        container: &str,
        command: CniCommand,
        text: &str,
        at: BootNs,
    ) {
        let end = text.floor_char_boundary(LONGEST_ERROR);
        let text = text.get(..end).unwrap_or_default().to_owned();
        self.workload.calls.history_of(container, at).error = Some((command, text, at));
    }

    /// Every run is seen from now on, or no longer.
    pub(in crate::map) fn calls_seen(&mut self, seen: bool, at: BootNs) {
        self.workload.calls.seen.set(seen, at);
        self.ipam.ask_all_leaks();
    }

    /// Since when every run has been seen; absent where they are not.
    #[must_use]
    pub fn calls_seen_since(&self) -> Option<BootNs> {
        self.workload.calls.seen.since()
    }

    /// Whether every run was seen from before `from` until `until`, or still is: since when.
    #[must_use]
    pub fn calls_seen_over(&self, from: BootNs, until: BootNs) -> Option<BootNs> {
        self.workload.calls.seen.over(from, until)
    }

    /// Runs that ended since the last call of this.
    pub fn take_calls(&mut self) -> Vec<CallEntry> {
        std::mem::take(&mut self.workload.calls.untaken)
    }

    /// Runs under way.
    pub fn running_calls(&self) -> impl Iterator<Item = &CallEntry> {
        self.workload.calls.running.values()
    }

    /// Runs under way and those that ended within the last minutes, the oldest of these first.
    pub fn calls(&self) -> impl Iterator<Item = &CallEntry> {
        self.workload.calls.past.iter().chain(self.workload.calls.running.values())
    }

    /// How the ADDs and DELs of a container went, as far as they are remembered.
    #[must_use]
    pub fn call_history(&self, container_id: &str) -> Option<&CallHistory> {
        self.workload.calls.histories.get(container_id)
    }

    /// Containers of which a DEL has failed, and none has succeeded since.
    pub fn failing_dels(&self) -> impl Iterator<Item = (&str, &CallHistory)> {
        let failing = self.workload.calls.failing.iter();
        failing.filter_map(|id| Some((&**id, self.workload.calls.histories.get(id)?)))
    }

    /// Every container's.
    pub fn call_histories(&self) -> impl Iterator<Item = (&str, &CallHistory)> {
        self.workload.calls.histories.iter().map(|(id, history)| (&**id, history))
    }

    /// Whether a run of this command for this container is under way, or ended less than `after` ns
    /// before `now`. Of ADD and DEL alone.
    #[must_use]
    pub fn is_called(
        &self,
        command: CniCommand,
        container_id: &str,
        now: BootNs,
        after: u64,
    ) -> bool {
        let Some(history) = self.workload.calls.histories.get(container_id) else { return false };
        match command {
            CniCommand::Add => history.add.is_recent(now, after),
            CniCommand::Del => history.del.is_recent(now, after),
            _ => false,
        }
    }
}
