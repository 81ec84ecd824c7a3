//! The API server's report of this node's pods, and pods that it has deleted while the node has not. If it is not
//! queried, the kubelet may report instead, for the pods that it is to run. Never both.
//!
//! A pod's uid is never reused, so a pod that was reported and then removed stays removed, whatever the API server
//! reports afterwards. A pod that was never reported is judged with more care: the list may be that of another node,
//! and the runtime may have a pod that the API server has yet to report.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::fact::{BootNs, Pod, SourceName};

use crate::map::{Certainty, Netns, NetnsId, NodeMap, SandboxEntry, Thresholds};

/// Maximum number of pods, including removed ones. A node runs some hundred.
const MAX_PODS: usize = 4096;
/// How long a removed pod is remembered when no runtime has anything of it.
const FORGET_AFTER: u64 = 600_000_000_000;
/// Termination grace period of a pod that specifies none (`DefaultTerminationGracePeriodSeconds`), in seconds.
const DEFAULT_GRACE: u64 = 30;

/// A pod as last reported by the API server.
#[derive(Debug, Clone)]
pub struct PodEntry {
    pub pod: Pod,
    /// When it was last reported.
    pub told: BootNs,
    /// Since when the API server is known not to have it any more.
    pub gone: Option<BootNs>,
}

/// A pod that the API server does not have and whose netns is here.
#[derive(Debug)]
pub struct DeletedPod<'a> {
    /// The API server's last report. Absent: it never reported the pod.
    pub entry: Option<&'a PodEntry>,
    /// Its sandbox, which the runtime still has.
    pub sandbox: &'a SandboxEntry,
    pub netns: &'a Netns,
    /// Since when the API server is known not to have it.
    pub gone: BootNs,
    /// The moment from which that counts.
    pub from: BootNs,
}

#[derive(Debug, Default)]
pub(in crate::map) struct Pods {
    known: BTreeMap<String, PodEntry>,
    /// When the first complete listing began.
    listed: Option<BootNs>,
    /// The pods are known completely as of this moment.
    confirmed: Option<BootNs>,
    /// When a pod was dropped because there were too many: from then on no pod is known to be absent.
    overflowed: Option<BootNs>,
    forgotten: BootNs,
    /// How many pods the kubelet starts at most, if that is known.
    limit: Option<u32>,
}

/// How many pods this node has and may still get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::map) struct PodRoom {
    pub(in crate::map) here: u64,
    pub(in crate::map) to_come: u64,
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

    /// A pod was removed, or is now known to be: what its sandbox left behind may count sooner.
    pub(in crate::map) fn pods_fewer(&mut self) {
        self.ipam.ask_all_leaks();
        self.workload.owners.hasten_searches();
    }

    /// The reports of the API server are complete up to `at`.
    pub(in crate::map) fn pods_confirmed(&mut self, at: BootNs) {
        self.workload.pods.confirmed = self.workload.pods.confirmed.max(Some(at));
        self.forget_pods(at);
    }

    /// A complete listing has ended: pods that it did not name are removed.
    pub(in crate::map) fn pods_listed(&mut self, began: BootNs) {
        self.workload.pods.listed.get_or_insert(began);
        self.workload.pods.overflowed = self.workload.pods.overflowed.filter(|at| *at >= began);
        for entry in self.workload.pods.known.values_mut().filter(|entry| entry.told < began) {
            entry.gone.get_or_insert(began);
        }
        self.pods_confirmed(began);
    }

    /// Drops pods that were removed long ago and of which no runtime has anything.
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

    /// The last report about the pod with this uid.
    #[must_use]
    pub fn pod(&self, uid: &str) -> Option<&PodEntry> {
        self.workload.pods.known.get(uid)
    }

    /// Whether no pod of this node has this uid any more; the pod's sandbox was removed at `gone`.
    pub(in crate::map) fn is_no_pod(&self, uid: &str, gone: BootNs) -> bool {
        let pods = &self.workload.pods;
        if let Some(entry) = pods.known.get(uid) {
            return entry.gone.is_some() && entry.pod.mirror_of.is_none();
        }
        // The uid of a static pod is the kubelet's own, and the API server does not have it.
        pods.overflowed.is_none()
            && is_given_by_api(uid)
            && !pods.is_static(uid)
            && pods.confirmed.is_some_and(|confirmed| confirmed >= gone)
    }

    pub(in crate::map) fn set_pod_limit(&mut self, pods: u32) {
        self.workload.pods.limit = Some(pods);
    }

    /// How many pods this node has and may still get, if that is known. Pods that have ended do not count: neither the
    /// scheduler nor the kubelet counts them (`filterOutInactivePods`), and they have no IP.
    pub(in crate::map) fn pod_room(&self) -> Option<PodRoom> {
        let pods = &self.workload.pods;
        let limit = pods.limit.filter(|_| self.pods_answer() && pods.overflowed.is_none())?;
        let has_ended =
            |entry: &&PodEntry| matches!(entry.pod.phase.as_deref(), Some("Succeeded" | "Failed"));
        let present = pods.known.values().filter(|entry| entry.gone.is_none());
        let here = present.filter(|entry| !has_ended(entry)).count() as u64;
        Some(PodRoom { here, to_come: u64::from(limit).saturating_sub(here) })
    }

    /// Whether this node's pods have been listed completely at least once.
    pub(in crate::map) fn pods_were_told(&self) -> bool {
        self.workload.pods.listed.is_some()
    }

    /// Whether this node's pods have been listed completely, and their source still answers.
    #[must_use]
    pub fn pods_answer(&self) -> bool {
        self.pods_were_told()
            && (self.answers(SourceName::Kubernetes) || self.answers(SourceName::Kubelet))
    }

    /// Whether the kubelet is the source of the pods.
    #[must_use]
    pub fn kubelet_tells(&self) -> bool {
        self.answers(SourceName::Kubelet)
    }

    /// Whether neither the API server nor the kubelet is queried: then there are no pods to wait for.
    #[must_use]
    pub fn pods_are_off(&self) -> bool {
        use crate::fact::SourceStatus::Disabled;
        let is_off = |name: SourceName| {
            self.source(name.as_str()).is_none_or(|source| source.status == Disabled)
        };
        is_off(SourceName::Kubernetes) && is_off(SourceName::Kubelet)
    }

    /// Pods that the API server does not have and whose sandbox and netns are here. None while the API server or the
    /// runtime does not answer.
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

    /// The deleted pod that owns this netns.
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
        let owner = netns.owner().filter(|owner| owner.certainty != Certainty::ByIp)?;
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

    /// Since when a reported pod has been removed, and from when that counts: its processes may use their grace period,
    /// from the deletion on.
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

    /// As `deleted_from`, for a pod that the API server never reported, if it has reported another pod that the runtime
    /// has, which shows that the list is this node's. A uid in another format is a static pod's, or made by a person.
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

/// Whether this looks like a uid that the API server assigns: a UUID. The kubelet's own, for static pods, are 32 hex
/// digits.
fn is_given_by_api(uid: &str) -> bool {
    let parts: Vec<&str> = uid.split('-').collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    lengths == [8, 4, 4, 4, 12]
        && parts.iter().all(|part| part.bytes().all(|b| b.is_ascii_hexdigit()))
}
