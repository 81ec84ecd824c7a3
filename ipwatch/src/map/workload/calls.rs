//! Runs of CNI plugins: which are under way, which ended recently, and the results for each container.
//!
//! The most frequent question (is a DEL of this container under way?) is answered from its history alone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::fact::{BootNs, CniCall, CniCommand, PodName, TaskKey};

use super::sandbox::strip_var;
use super::seen::Seen;
use crate::map::{Kinds, Match, Netns, NodeMap};

/// Maximum number of runs under way. A node that starts 50 pods a second has some hundred.
const MOST_RUNNING: usize = 4096;
/// Maximum number of ended runs.
const MOST_PAST: usize = 4096;
/// Maximum number of ended runs kept until the daemon takes them. A replay that never takes them must not grow without
/// bound.
const MOST_UNTAKEN: usize = 4096;
/// How long an ended run is kept, in ns.
const KEEP: u64 = 600_000_000_000;
/// The end of a plugin that has run for this long was missed: kubelet gives up after some minutes.
const LOST: u64 = 1_800_000_000_000;

/// A plugin that has run for this long is not waited for any more: it hangs, or its end was missed.
pub(in crate::map) const HUNG: u64 = 120_000_000_000;
/// Interval between searches for lost runs and old paths.
const TIDY: u64 = 30_000_000_000;
/// Maximum number of netns paths.
const MOST_PATHS: usize = 4096;

/// How long the history of a container that is gone is kept, in ns: as long as what a late DEL has done is remembered.
const KEEP_HISTORY: u64 = 3_600_000_000_000;
/// Maximum number of containers with a history. The one without news for longest is dropped first.
const MOST_CONTAINERS: usize = 8192;
/// Maximum number of plugins of one container with statistics of their own.
const MOST_PLUGINS: usize = 8;
/// Maximum length of an error's text, in bytes.
const LONGEST_ERROR: usize = 1024;

/// One run of a plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct CallEntry {
    /// Its arguments.
    pub call: CniCall,
    /// The run that started it: for an IPAM plugin, that of the main plugin.
    pub within: Option<TaskKey>,
    /// Whether it is a DEL by which `ipwatch-ipam` returns, within an ADD, an IP that is held, to take another one: the
    /// container goes on.
    pub of_add: bool,
    pub began: BootNs,
    /// When and how it ended.
    pub ended: Option<CallEnd>,
    /// Whether it ran another plugin.
    pub delegated: bool,
    /// Whether it failed because `ipwatch-ipam`, which it ran, puts this DEL off.
    pub put_off: bool,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallEnd {
    pub at: BootNs,
    pub status: Option<u32>,
    pub signal: Option<u32>,
}

impl CallEnd {
    /// Whether the plugin reported a failure. A run whose end was missed has not failed.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.status.is_some_and(|status| status != 0) || self.signal.is_some()
    }

    /// Whether the end was observed. If not, the run had ended by `at`, with an unknown result.
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

/// Results of the ADDs and DELs of one container.
#[derive(Debug, Clone, Default)]
pub struct CallHistory {
    /// The pod, as any of the runs named it.
    pub pod: Option<PodName>,
    /// The last netns path that any of the runs was given.
    pub netns_path: Option<String>,
    pub add: CommandStats,
    pub del: CommandStats,
    /// DELs by plugin: a network may have several, and the first to fail ends the call.
    pub plugins: Vec<(Arc<str>, CommandStats)>,
    /// The last error, its command, and when it was reported.
    pub error: Option<(CniCommand, String, BootNs)>,
    /// Whether the last DEL was seen to succeed, and no ADD has begun since.
    deleted: bool,
    /// Time of the last report about it.
    touched: BootNs,
}

/// Results of the runs of one command. Runs of IPAM plugins count with their main plugin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CommandStats {
    /// Number under way.
    pub running: u32,
    /// When the oldest of those under way began.
    pub running_since: Option<BootNs>,
    /// When the first began.
    pub first: Option<BootNs>,
    /// When the last began.
    pub last: Option<BootNs>,
    /// When the last ended.
    pub ended: Option<BootNs>,
    /// Number of failures since the last success.
    pub failures: u32,
    /// When the first and the last of these failures ended, and the last one's exit status.
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
        // Two simultaneous runs that fail are one failure: they interfere with each other.
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

    /// The end of a run was missed: neither success nor failure.
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
    /// Containers whose last DEL failed.
    failing: BTreeSet<Arc<str>>,
    /// Mount paths of netns: the container of the last ADD that was given the path, and when that began.
    paths: BTreeMap<String, (Arc<str>, BootNs)>,
    tidied: BootNs,
    /// When every run was observed.
    seen: Seen,
}

impl Calls {
    fn history_of(&mut self, id: &str, at: BootNs) -> &mut CallHistory {
        if self.histories.len() >= MOST_CONTAINERS && !self.histories.contains_key(id) {
            let mut ages: Vec<BootNs> = self.histories.values().map(|one| one.touched).collect();
            ages.sort_unstable();
            // Drop a quarter at once, so that this need not be repeated for each new container.
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
        if call.command == CniCommand::Add {
            history.deleted = false;
        }
        if let Some(went) = history.of(entry) {
            went.began(entry.began);
        }
        if let Some(went) = history.plugin(entry) {
            went.began(entry.began);
        }
    }

    fn note_ended(&mut self, entry: &CallEntry, end: CallEnd) {
        let Some(id) = &entry.call.container_id else { return };
        let history = self.history_of(id, end.at);
        // A DEL that was put off is repeated: it neither succeeded nor failed.
        let end =
            if entry.put_off { CallEnd { at: end.at, status: None, signal: None } } else { end };
        if entry.call.command == CniCommand::Del && entry.within.is_none() {
            history.deleted = end.is_seen() && !end.failed();
        }
        if let Some(went) = history.of(entry) {
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

    /// Forgets runs under way whose end was missed, and returns them.
    fn drop_lost(&mut self, at: BootNs) -> Vec<CallEntry> {
        let old = |entry: &CallEntry| at.since(entry.began) >= LOST;
        let lost: Vec<CallEntry> =
            self.running.extract_if(.., |_, entry| old(entry)).map(|(_, entry)| entry).collect();
        for entry in &lost {
            let Some(id) = &entry.call.container_id else { continue };
            let Some(history) = self.histories.get_mut(id.as_str()) else { continue };
            if let Some(went) = history.of(entry) {
                went.lost();
            }
            if let Some(went) = history.plugin(entry) {
                went.lost();
            }
        }
        lost
    }

    /// An ADD was given a path, or a successful DEL has removed it.
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

    /// The container whose netns is mounted at a path, according to the ADDs of the last minutes.
    pub(in crate::map) fn container_at(&self, path: &str) -> Option<&str> {
        self.paths.get(path).map(|(id, _)| &**id)
    }
}

impl CallHistory {
    fn of(&mut self, entry: &CallEntry) -> Option<&mut CommandStats> {
        match entry.call.command {
            _ if entry.of_add => None,
            CniCommand::Add => Some(&mut self.add),
            CniCommand::Del => Some(&mut self.del),
            _ => None,
        }
    }

    /// The statistics of a DEL's plugin, unless another plugin started it.
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
            // The pid belongs to another process: the run has ended unobserved.
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
        // A pid has one running task at a time: the one with the latest start.
        let within = calls.running.range(of_pid(call.parent)).next_back().map(|(task, _)| *task);
        let mut of_add = false;
        if let Some(outer) = within.and_then(|outer| calls.running.get_mut(&outer)) {
            outer.delegated = true;
            // Other plugins run a DEL in an ADD that fails.
            of_add = (call.command, outer.call.command) == (CniCommand::Del, CniCommand::Add)
                && outer.call.plugin.rsplit('/').next() == Some(ipwatch_ipam::config::OWN)
                && call.container_id == outer.call.container_id;
        }
        let entry = CallEntry {
            call: call.clone(),
            within,
            of_add,
            began: at,
            ended: None,
            delegated: false,
            put_off: false,
        };
        calls.note_began(&entry);
        calls.note_path(&entry);
        calls.running.insert(call.task, entry);
        if call.command == CniCommand::Add && call.netns_path.is_some() && within.is_none() {
            self.workload.owners.ask_all();
        }
        self.touch_container(call.container_id.as_deref());
        self.late_del_began(call, at);
    }

    /// At intervals: forgets runs whose end was missed, and old paths. Returns when to call this again.
    pub(in crate::map) fn tidy_calls(&mut self, now: BootNs) -> Option<BootNs> {
        if now.since(self.workload.calls.tidied) >= TIDY {
            self.workload.calls.tidied = now;
            self.changes.mark(Kinds::CALLS);
            self.workload.calls.paths.retain(|_, (_, began)| now.since(*began) < KEEP);
            self.forget_lost_calls(now);
            self.forget_histories(now);
        }
        (!self.workload.calls.running.is_empty()).then(|| self.workload.calls.tidied.plus(TIDY))
    }

    /// Forgets containers whose DEL succeeded long ago and of which nothing is left: no other fact asks for them any more.
    fn forget_histories(&mut self, now: BootNs) {
        let calls = &self.workload.calls;
        let over = |history: &CallHistory| {
            let CallHistory { add, del, deleted, touched, .. } = history;
            now.since(*touched) >= KEEP_HISTORY && add.running + del.running == 0 && *deleted
        };
        let old = calls.histories.iter().filter(|(id, history)| {
            over(history)
                && !calls.failing.contains(*id)
                && self.sandbox(id).is_none()
                && self.attachment_of(id).is_none()
                && self.reservations_for(id).next().is_none()
        });
        let mut old: BTreeSet<Arc<str>> = old.map(|(id, _)| Arc::clone(id)).collect();
        if old.is_empty() {
            return;
        }
        for owner in self.all_netns().filter_map(Netns::owner) {
            old.remove(owner.sandbox.as_str());
        }
        self.workload.calls.histories.retain(|id, _| !old.contains(id));
    }

    fn forget_lost_calls(&mut self, at: BootNs) {
        for entry in self.workload.calls.drop_lost(at) {
            self.touch_container(entry.call.container_id.as_deref());
            self.late_del_ended(entry.call.task, CallEnd { at, status: None, signal: None });
        }
    }

    /// The beginning or the end of a run may have been lost: complete observation starts again now.
    pub(in crate::map) fn calls_lost(&mut self, at: BootNs) {
        self.workload.calls.seen.lost(at);
        self.ipam.ask_all_leaks();
    }

    /// A call for this container began or ended, which may change what its reservations mean.
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
        // A plugin waits for the plugins that it runs; only one that is killed may leave one behind.
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

    /// Whether a run that ended is one of `ipwatch-ipam` which put a DEL off. Its name is not enough: it has ended
    /// without the plugin that it stands before, which a DEL that it lets pass runs, and something that is ending is in
    /// the container's own netns with the reserved address, without which it lets every DEL pass.
    fn is_put_off(&self, entry: &CallEntry, end: CallEnd) -> bool {
        let name = entry.call.plugin.rsplit('/').next();
        let refused = name == Some(ipwatch_ipam::config::OWN)
            && entry.call.command == CniCommand::Del
            && end.status.is_some_and(|status| status != 0)
            && !entry.delegated;
        let Some(id) = entry.call.container_id.as_deref().filter(|_| refused) else { return false };
        let leaves = |netns: &Netns| self.leaving().any(|task| task.netns == netns.id);
        self.reservations_for(id).any(|reserved| {
            self.holders_of(reserved.ip)
                .any(|netns| self.belongs(netns, reserved) == Match::Same && leaves(netns))
        })
    }

    fn call_over(&mut self, mut entry: CallEntry, end: CallEnd) {
        if let Some(outer) = entry.within
            && self.is_put_off(&entry, end)
            && let Some(outer) = self.workload.calls.running.get_mut(&outer)
        {
            outer.put_off = true;
        }
        let (calls, at, task) = (&mut self.workload.calls, end.at, entry.call.task);
        entry.ended = Some(end);
        calls.note_ended(&entry, end);
        calls.note_path(&entry);
        let old = |entry: &CallEntry| entry.ended.is_none_or(|end| at.since(end.at) > KEEP);
        while calls.past.len() >= MOST_PAST || calls.past.front().is_some_and(old) {
            calls.past.pop_front();
        }
        // The duration of a run whose end was missed is unknown.
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

    /// Every run is observed from now on, or no longer.
    pub(in crate::map) fn calls_seen(&mut self, seen: bool, at: BootNs) {
        self.workload.calls.seen.set(seen, at);
        self.ipam.ask_all_leaks();
    }

    /// Since when every run has been observed; `None` if they are not.
    #[must_use]
    pub fn calls_seen_since(&self) -> Option<BootNs> {
        self.workload.calls.seen.since()
    }

    /// If every run was observed from before `from` until `until`, or still is: since when.
    #[must_use]
    pub fn calls_seen_over(&self, from: BootNs, until: BootNs) -> Option<BootNs> {
        self.workload.calls.seen.over(from, until)
    }

    /// Runs that ended since the last call.
    pub fn take_calls(&mut self) -> Vec<CallEntry> {
        std::mem::take(&mut self.workload.calls.untaken)
    }

    pub fn running_calls(&self) -> impl Iterator<Item = &CallEntry> {
        self.workload.calls.running.values()
    }

    /// Runs that ended within the last minutes, the oldest first, and runs under way.
    pub fn calls(&self) -> impl Iterator<Item = &CallEntry> {
        self.workload.calls.past.iter().chain(self.workload.calls.running.values())
    }

    /// Results of the ADDs and DELs of a container, as far as they are kept.
    #[must_use]
    pub fn call_history(&self, container_id: &str) -> Option<&CallHistory> {
        self.workload.calls.histories.get(container_id)
    }

    /// Containers with a failed DEL and no successful one since.
    pub fn failing_dels(&self) -> impl Iterator<Item = (&str, &CallHistory)> {
        let failing = self.workload.calls.failing.iter();
        failing.filter_map(|id| Some((&**id, self.workload.calls.histories.get(id)?)))
    }

    /// The histories of all containers.
    pub fn call_histories(&self) -> impl Iterator<Item = (&str, &CallHistory)> {
        self.workload.calls.histories.iter().map(|(id, history)| (&**id, history))
    }

    /// Whether a run of this command for this container is under way, or ended less than `after` ns before `now`.
    /// Always false for commands other than ADD and DEL.
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
