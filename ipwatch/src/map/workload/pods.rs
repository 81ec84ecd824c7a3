//! What the API server says of this node's pods, and which of them it has deleted while the node has not. Where it is
//! not asked, the kubelet may tell instead: of those that it is to run. Never both.
//!
//! A pod's uid is never used twice. So one that was told of and is gone stays gone, whatever the API server
//! does afterwards. One that was never told of is judged with more care: the list may be that of another
//! node, and the runtime may have a pod that the API server has yet to tell of.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::fact::{BootNs, Pod, SourceName};

use crate::map::{Netns, NetnsId, NodeMap, SandboxEntry, Thresholds, Told};

/// Pods remembered, those that are gone included. A node runs some hundred.
const MAX_PODS: usize = 4096;
/// How long one that is gone is remembered when no runtime has anything of it.
const FORGET_AFTER: u64 = 600_000_000_000;
/// What a pod is given to end that does not say itself (`DefaultTerminationGracePeriodSeconds`).
const DEFAULT_GRACE: u64 = 30;

/// A pod as the API server told of it last.
#[derive(Debug, Clone)]
pub struct PodEntry {
    /// The API server's word.
    pub pod: Pod,
    /// Newest word on it.
    pub told: BootNs,
    /// The API server does not have it any more, as far as is known since this moment.
    pub gone: Option<BootNs>,
}

/// A pod that the API server does not have and whose netns is here.
#[derive(Debug)]
pub struct DeletedPod<'a> {
    /// What the API server said of it last. Absent: it never told of it.
    pub entry: Option<&'a PodEntry>,
    /// Its sandbox, which the runtime still has.
    pub sandbox: &'a SandboxEntry,
    pub netns: &'a Netns,
    /// Since when the API server has not had it, as far as is known.
    pub gone: BootNs,
    /// The moment from which that counts.
    pub from: BootNs,
}

/// Everything the API server told.
#[derive(Debug, Default)]
pub(in crate::map) struct Pods {
    known: BTreeMap<String, PodEntry>,
    /// The first whole list began then.
    listed: Option<BootNs>,
    /// All it has is known as of then.
    confirmed: Option<BootNs>,
    /// When some were not remembered, for there are too many: nobody can be said not to be among them.
    overflowed: Option<BootNs>,
    forgotten: BootNs,
}

impl Pods {
    /// Whether a static pod has this uid.
    fn is_static(&self, uid: &str) -> bool {
        self.known.values().any(|entry| entry.pod.mirror_of.as_deref() == Some(uid))
    }
}

impl NodeMap {
    pub(in crate::map) fn set_pod(&mut self, pod: &Pod, at: BootNs) {
        let known = self.workload.pods.known.get(&pod.uid);
        if known.is_some_and(|known| known.told > at) {
            return;
        }
        if known.is_none() && self.workload.pods.known.len() >= MAX_PODS {
            self.workload.pods.overflowed = Some(at);
            return;
        }
        let entry = PodEntry { pod: pod.clone(), told: at, gone: None };
        self.workload.pods.known.insert(pod.uid.clone(), entry);
    }

    pub(in crate::map) fn pod_gone(&mut self, uid: &str, at: BootNs) {
        let Some(entry) = self.workload.pods.known.get_mut(uid).filter(|entry| entry.told <= at)
        else {
            return;
        };
        entry.gone.get_or_insert(at);
    }

    /// A pod may be gone, or known to be: what its sandbox has left behind may count sooner.
    pub(in crate::map) fn pods_fewer(&mut self) {
        self.ipam.ask_all_leaks();
        self.workload.owners.hasten_searches();
    }

    /// All that the API server told is as new as this.
    pub(in crate::map) fn pods_confirmed(&mut self, at: BootNs) {
        self.workload.pods.confirmed = self.workload.pods.confirmed.max(Some(at));
        self.forget_pods(at);
    }

    /// A whole list has ended: what it did not name is gone.
    pub(in crate::map) fn pods_listed(&mut self, began: BootNs) {
        self.workload.pods.listed.get_or_insert(began);
        self.workload.pods.overflowed = self.workload.pods.overflowed.filter(|at| *at >= began);
        for entry in self.workload.pods.known.values_mut().filter(|entry| entry.told < began) {
            entry.gone.get_or_insert(began);
        }
        self.pods_confirmed(began);
    }

    /// Drops what has been gone for long and of which no runtime has anything.
    fn forget_pods(&mut self, now: BootNs) {
        if now.since(self.workload.pods.forgotten) < FORGET_AFTER / 10 {
            return;
        }
        self.workload.pods.forgotten = now;
        let here: BTreeSet<&str> = self
            .all_sandboxes()
            .filter_map(|entry| entry.sandbox.pod.as_ref()?.uid.as_deref())
            .collect();
        let old = |entry: &PodEntry| entry.gone.is_some_and(|gone| now.since(gone) > FORGET_AFTER);
        let gone: Vec<String> = self
            .workload
            .pods
            .known
            .iter()
            .filter(|(uid, entry)| old(entry) && !here.contains(uid.as_str()))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in gone {
            self.workload.pods.known.remove(&uid);
        }
    }

    /// What the API server said last of the pod with this uid.
    #[must_use]
    pub fn pod(&self, uid: &str) -> Option<&PodEntry> {
        self.workload.pods.known.get(uid)
    }

    /// Whether this uid, of a pod whose sandbox was gone at that moment, is no pod's of this node any more.
    pub(in crate::map) fn is_no_pod(&self, uid: &str, gone: BootNs) -> bool {
        let pods = &self.workload.pods;
        if let Some(entry) = pods.known.get(uid) {
            return entry.gone.is_some() && entry.pod.mirror_of.is_none();
        }
        // A static pod's is the kubelet's own, and nobody else has it.
        pods.overflowed.is_none()
            && is_given_by_api(uid)
            && !pods.is_static(uid)
            && pods.confirmed.is_some_and(|confirmed| confirmed >= gone)
    }

    /// Whether all of this node's pods were told of once.
    pub(in crate::map) fn pods_were_told(&self) -> bool {
        self.workload.pods.listed.is_some()
    }

    /// Whether all of this node's pods were told of, and who told of them answers still.
    #[must_use]
    pub fn pods_answer(&self) -> bool {
        self.pods_were_told()
            && (self.answers(SourceName::Kubernetes) || self.answers(SourceName::Kubelet))
    }

    /// Whether it is the kubelet that tells of the pods.
    #[must_use]
    pub fn kubelet_tells(&self) -> bool {
        self.answers(SourceName::Kubelet)
    }

    /// Whether nobody asks the API server, nor the kubelet: then nothing of them is awaited.
    #[must_use]
    pub fn pods_are_off(&self) -> bool {
        use crate::fact::SourceStatus::Disabled;
        let is_off = |name: SourceName| {
            self.source(name.as_str()).is_none_or(|source| source.status == Disabled)
        };
        is_off(SourceName::Kubernetes) && is_off(SourceName::Kubelet)
    }

    /// Pods that the API server does not have and whose sandbox and netns are here. None while it is
    /// silent, or the runtime.
    pub fn deleted_pods<'a>(
        &'a self,
        thresholds: &'a Thresholds,
    ) -> impl Iterator<Item = DeletedPod<'a>> {
        let answers = self.pods_answer();
        let home = OnceCell::new();
        let claims = answers.then(|| self.workload.owners.claims());
        let claims = claims.into_iter().flatten();
        claims.filter_map(move |(_, netns)| self.deleted_at(*netns, &home, thresholds))
    }

    /// The one whose netns this is.
    #[must_use]
    pub fn deleted_pod(&self, netns: NetnsId, thresholds: &Thresholds) -> Option<DeletedPod<'_>> {
        self.pods_answer().then(|| self.deleted_at(netns, &OnceCell::new(), thresholds))?
    }

    fn deleted_at(
        &self,
        netns: NetnsId,
        home: &OnceCell<bool>,
        thresholds: &Thresholds,
    ) -> Option<DeletedPod<'_>> {
        let netns = self.netns(netns).filter(|netns| !netns.host && netns.dying.is_none())?;
        let owner = netns.owner().filter(|owner| owner.told != Told::ByIp)?;
        let sandbox = self.sandbox(&owner.sandbox).filter(|entry| entry.gone.is_none())?;
        if sandbox.sandbox.host_network || !self.runtime_answers(&sandbox.sandbox.runtime) {
            return None;
        }
        let uid = sandbox.sandbox.pod.as_ref()?.uid.as_deref()?;
        let entry = self.workload.pods.known.get(uid);
        let (gone, from) = match entry {
            Some(entry) => self.deleted_from(entry, thresholds)?,
            None => self.unheard_of_from(uid, sandbox, home, thresholds)?,
        };
        Some(DeletedPod { entry, sandbox, netns, gone, from })
    }

    /// Since when a pod is gone that the API server told of, and from when on that counts: its processes
    /// may take their time to end, from the deletion on.
    fn deleted_from(&self, entry: &PodEntry, thresholds: &Thresholds) -> Option<(BootNs, BootNs)> {
        let gone = entry.gone.filter(|_| entry.pod.mirror_of.is_none())?;
        let offset = self.boot.as_ref().map_or(0, |boot| boot.wall_offset);
        let told = entry.pod.deletion.map(|date| date.saturating_sub(offset));
        let end = match told.and_then(|date| u64::try_from(date.max(0)).ok()) {
            Some(date) => gone.max(BootNs(date)),
            None => {
                let seconds = entry.pod.grace.unwrap_or(DEFAULT_GRACE);
                gone.plus(seconds.saturating_mul(1_000_000_000))
            }
        };
        Some((gone, end.plus(thresholds.sandbox_grace)))
    }

    /// The same of one that the API server never told of, though it told of another pod that the runtime
    /// has: so the list is this node's. A uid that is none of its own is a static pod's, or a person's.
    fn unheard_of_from(
        &self,
        uid: &str,
        sandbox: &SandboxEntry,
        home: &OnceCell<bool>,
        thresholds: &Thresholds,
    ) -> Option<(BootNs, BootNs)> {
        let is_home = || {
            let uids =
                self.all_sandboxes().filter_map(|entry| entry.sandbox.pod.as_ref()?.uid.as_deref());
            uids.into_iter().any(|uid| self.workload.pods.known.contains_key(uid))
        };
        if self.workload.pods.overflowed.is_some()
            || !is_given_by_api(uid)
            || self.workload.pods.is_static(uid)
        {
            return None;
        }
        let gone = self.workload.pods.listed?.max(sandbox.first_seen);
        let from = gone.plus(thresholds.leak_age);
        let confirmed = self.workload.pods.confirmed.is_some_and(|confirmed| confirmed >= from);
        (confirmed && *home.get_or_init(is_home)).then_some((gone, from))
    }
}

/// Whether this looks like a uid that the API server gives: a UUID. The kubelet's own, for static pods, are
/// 32 hex digits.
fn is_given_by_api(uid: &str) -> bool {
    let parts: Vec<&str> = uid.split('-').collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    lengths == [8, 4, 4, 4, 12]
        && parts.iter().all(|part| part.bytes().all(|b| b.is_ascii_hexdigit()))
}
