//! Runs of CNI plugins: which are under way, and which have just ended.

use std::collections::{BTreeMap, VecDeque};

use crate::fact::{BootNs, CniCall, CniCommand, TaskKey};

use super::NodeMap;

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

/// One run of a plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct CallEntry {
    /// What it was told.
    pub call: CniCall,
    /// The run it works for: an IPAM plugin's main plugin.
    pub within: Option<TaskKey>,
    /// When it began.
    pub began: BootNs,
    /// When and how it ended.
    pub ended: Option<CallEnd>,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallEnd {
    /// When.
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
}

impl CallEntry {
    /// Whether it is a run of this command for this container.
    #[must_use]
    pub fn is(&self, command: CniCommand, container_id: &str) -> bool {
        self.call.command == command && self.call.container_id.as_deref() == Some(container_id)
    }
}

#[derive(Debug, Default)]
pub(super) struct Calls {
    running: BTreeMap<TaskKey, CallEntry>,
    past: VecDeque<CallEntry>,
    untaken: Vec<CallEntry>,
}

impl NodeMap {
    pub(super) fn call_began(&mut self, call: &CniCall, at: BootNs) {
        let calls = &mut self.calls;
        if calls.running.len() >= MOST_RUNNING {
            calls.running.retain(|_, entry| at.since(entry.began) < LOST);
            if calls.running.len() >= MOST_RUNNING {
                return;
            }
        }
        let parent = calls.running.values().find(|entry| entry.call.task.pid == call.parent);
        let within = parent.map(|entry| entry.call.task);
        let entry = CallEntry { call: call.clone(), within, began: at, ended: None };
        calls.running.insert(call.task, entry);
    }

    pub(super) fn call_ended(
        &mut self,
        task: TaskKey,
        status: Option<u32>,
        signal: Option<u32>,
        at: BootNs,
    ) {
        let calls = &mut self.calls;
        let Some(mut entry) = calls.running.remove(&task) else { return };
        entry.ended = Some(CallEnd { at, status, signal });
        let old = |entry: &CallEntry| entry.ended.is_none_or(|end| at.since(end.at) > KEEP);
        while calls.past.len() >= MOST_PAST || calls.past.front().is_some_and(old) {
            calls.past.pop_front();
        }
        if calls.untaken.len() < MOST_UNTAKEN {
            calls.untaken.push(entry.clone());
        }
        calls.past.push_back(entry);
    }

    /// Runs that ended since the last call of this.
    pub fn take_calls(&mut self) -> Vec<CallEntry> {
        std::mem::take(&mut self.calls.untaken)
    }

    /// Runs under way.
    pub fn running_calls(&self) -> impl Iterator<Item = &CallEntry> {
        self.calls.running.values()
    }

    /// Runs under way and those that ended within the last minutes, the oldest of these first.
    pub fn calls(&self) -> impl Iterator<Item = &CallEntry> {
        self.calls.past.iter().chain(self.calls.running.values())
    }

    /// Whether a run of this command for this container is under way, or ended less than `after` ns
    /// before `now`.
    #[must_use]
    pub fn is_called(
        &self,
        command: CniCommand,
        container_id: &str,
        now: BootNs,
        after: u64,
    ) -> bool {
        let recent = |entry: &&CallEntry| entry.ended.is_none_or(|end| now.since(end.at) < after);
        self.calls().filter(recent).any(|entry| entry.is(command, container_id))
    }
}
