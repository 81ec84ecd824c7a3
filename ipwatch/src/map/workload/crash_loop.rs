//! Sandboxes of a pod that are recreated again and again.

use std::collections::{BTreeMap, VecDeque};

use crate::fact::{BootNs, PodName, Sandbox};

use crate::map::NodeMap;

/// Older attempts are not part of a loop.
pub const WINDOW: u64 = 600_000_000_000;
/// Maximum number of attempts of one pod.
const MAX_ATTEMPTS: usize = 64;
/// Maximum number of pods.
const MAX_PODS: usize = 1024;

/// A pod with recreated sandboxes.
#[derive(Debug, Clone)]
pub struct Loop {
    pub pod: PodName,
    /// Name of the runtime that reported them.
    pub runtime: String,
    /// Its sandboxes, in the order of creation; the oldest are dropped first.
    pub attempts: VecDeque<Attempt>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    pub sandbox: String,
    pub number: Option<u32>,
    pub made: BootNs,
}

#[derive(Debug, Default)]
pub(in crate::map) struct CrashLoops {
    /// By UID, else by namespace and name: a recreated pod of a StatefulSet has another UID.
    pods: BTreeMap<String, Loop>,
}

fn key(pod: &PodName) -> String {
    pod.uid.clone().unwrap_or_else(|| format!("{}/{}", pod.namespace, pod.name))
}

impl CrashLoops {
    pub(in crate::map) fn note(&mut self, pod: &PodName, sandbox: &Sandbox, made: BootNs) {
        let key = key(pod);
        if !self.pods.contains_key(&key) && self.pods.len() >= MAX_PODS {
            return;
        }
        let entry = self.pods.entry(key).or_insert_with(|| Loop {
            pod: pod.clone(),
            runtime: sandbox.runtime.clone(),
            attempts: VecDeque::new(),
        });
        let attempt = Attempt { sandbox: sandbox.id.clone(), number: sandbox.attempt, made };
        let at = entry.attempts.partition_point(|known| known.made <= made);
        entry.attempts.insert(at, attempt);
        if entry.attempts.len() > MAX_ATTEMPTS {
            entry.attempts.pop_front();
        }
    }

    pub(in crate::map) fn forget(&mut self, now: BootNs) {
        self.pods.retain(|_, pod| {
            pod.attempts.back().is_some_and(|last| now.since(last.made) <= WINDOW)
        });
    }
}

impl NodeMap {
    /// Pods with more than one recent sandbox.
    pub fn loops(&self) -> impl Iterator<Item = &Loop> {
        self.workload.runtimes.crash_loops.pods.values()
    }
}
