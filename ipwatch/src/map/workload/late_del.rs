//! Late DELs: DELs of old sandboxes of a pod that has a newer one, and what the newer one loses meanwhile.
//!
//! Some reservations and devices are named after the pod, not after the sandbox. A late, repeated DEL of an old sandbox
//! removes those of the pod's new one.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;

use crate::fact::{BootNs, CniCall, CniCommand, Endpoint, PodName, TaskKey};

use crate::map::{CallEnd, NetnsId, NodeMap, ReservationEntry, SandboxVerdict};

/// Maximum number of late DELs.
const MOST: usize = 256;
/// Maximum number of losses of each.
const MOST_LOST: usize = 16;
/// A loss up to this long after a DEL is attributed to it, in ns.
const AFTER: u64 = 2_000_000_000;
/// How long after it was heard of the loss of an address is reported, in ns. Runs of plugins are heard of from another
/// source: under load, the newer sandbox's own DEL, which explains the loss, may come after it. Its first act is to
/// remove the device; what it releases in a store comes later.
const SETTLES: u64 = 500_000_000;
/// How long a DEL without a loss is remembered, in ns.
const REMEMBERED: u64 = 3_600_000_000_000;

/// A DEL of a sandbox whose pod has a newer one that lives.
#[derive(Debug, Clone)]
pub struct LateDel {
    /// The call's process.
    pub task: TaskKey,
    pub plugin: String,
    /// The id of the old sandbox.
    pub old: String,
    /// The pod of both sandboxes.
    pub pod: PodName,
    /// The id of the newer sandbox.
    pub successor: String,
    pub began: BootNs,
    /// When and how it ended.
    pub ended: Option<CallEnd>,
    /// What the newer sandbox lost.
    pub lost: Vec<Lost>,
}

/// A loss of the newer sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct Lost {
    pub at: BootNs,
    /// The step in which it was heard of, which may be long after `at`.
    heard: Option<BootNs>,
    pub what: LostWhat,
}

#[derive(Debug, Clone, PartialEq)]
pub enum LostWhat {
    /// The reservation of an IP.
    Reservation {
        ip: IpAddr,
        store: String,
        /// Its key in the store.
        key: String,
    },
    /// An address in its netns.
    Address {
        ip: IpAddr,
        netns: NetnsId,
        /// The reason for the removal, as in `end_address`.
        by: &'static str,
    },
    /// Its endpoint in a CNI's datastore.
    Endpoint {
        /// Its first IP.
        ip: Option<IpAddr>,
        store: String,
        /// Its key in the store.
        key: String,
    },
}

#[derive(Debug, Default)]
pub(in crate::map) struct LateDels {
    dels: VecDeque<LateDel>,
}

impl Lost {
    /// Whether it is reported by `now`.
    #[must_use]
    pub fn counts(&self, now: BootNs) -> bool {
        let is_address = matches!(self.what, LostWhat::Address { .. });
        !is_address || self.heard.is_some_and(|heard| heard.plus(SETTLES) <= now)
    }
}

impl LateDels {
    /// Records a loss of a sandbox with every late DEL that may have caused it.
    fn lost(&mut self, successor: &str, at: BootNs, what: &LostWhat) {
        for del in &mut self.dels {
            let soon = del.ended.is_none_or(|end| at.since(end.at) <= AFTER);
            if del.successor == successor && at >= del.began && soon && del.lost.len() < MOST_LOST {
                del.lost.push(Lost { at, heard: None, what: what.clone() });
            }
        }
    }
}

impl NodeMap {
    pub(in crate::map) fn late_del_began(&mut self, call: &CniCall, at: BootNs) {
        // A DEL with a loss is kept: nothing else reports the loss.
        self.workload
            .late_dels
            .dels
            .retain(|del| !del.lost.is_empty() || at.since(del.began) < REMEMBERED);
        let (CniCommand::Del, Some(old)) = (call.command, &call.container_id) else { return };
        let Some(pod) = call.pod.clone().or_else(|| self.pod_of(old)) else { return };
        let Some(successor) = self.successor(old, &pod) else { return };
        // The IPAM plugin of a late DEL, and the next plugin of its network, belong to the same DEL.
        let same = |del: &&mut LateDel| {
            del.old == *old
                && del.successor == successor
                && del.ended.is_none_or(|e| at.since(e.at) < AFTER)
        };
        if let Some(del) = self.workload.late_dels.dels.iter_mut().find(same) {
            if del.ended.is_some() {
                (del.task, del.ended) = (call.task, None);
            }
            return;
        }
        if self.workload.late_dels.dels.len() >= MOST {
            let idle = self
                .workload
                .late_dels
                .dels
                .iter()
                .position(|del| del.lost.is_empty())
                .unwrap_or(0);
            self.workload.late_dels.dels.remove(idle);
        }
        self.workload.late_dels.dels.push_back(LateDel {
            task: call.task,
            plugin: call.plugin.clone(),
            old: old.clone(),
            pod,
            successor,
            began: at,
            ended: None,
            lost: Vec::new(),
        });
    }

    pub(in crate::map) fn late_del_ended(&mut self, task: TaskKey, end: CallEnd) {
        if let Some(del) = self.workload.late_dels.dels.iter_mut().find(|del| del.task == task) {
            del.ended = Some(end);
        }
    }

    /// The pod of a sandbox, from any source that knows it.
    #[must_use]
    pub fn pod_of(&self, sandbox: &str) -> Option<PodName> {
        let told = self.sandbox(sandbox).and_then(|entry| entry.sandbox.pod.clone());
        told.or_else(|| self.attachment_of(sandbox)?.pod.clone())
            .or_else(|| self.call_history(sandbox)?.pod.clone())
    }

    /// A living sandbox of the same pod that is younger than this one.
    fn successor(&self, old: &str, pod: &PodName) -> Option<String> {
        let same = |other: &Option<PodName>| {
            other.as_ref().is_some_and(|o| o.namespace == pod.namespace && o.name == pod.name)
        };
        let known = self.sandbox(old).and_then(|entry| entry.sandbox.created);
        let of_runtime = self.workload.runtimes.sandboxes().find(|entry| {
            entry.sandbox.id != old
                && same(&entry.sandbox.pod)
                && entry.dead.is_none()
                && known.is_none_or(|known| entry.sandbox.created.is_none_or(|made| made > known))
        });
        if let Some(entry) = of_runtime {
            return Some(entry.sandbox.id.clone());
        }
        // Without a runtime: a sandbox that has a netns, and whose ADD ended after the old one's.
        let made = self.attachment_of(old).and_then(|attachment| attachment.made);
        let mut cached = self.workload.attachments.values().map(|(attachment, _)| attachment);
        let found = cached.find(|other| {
            other.container_id != old
                && same(&other.pod)
                && made.is_none_or(|made| other.made.is_some_and(|newer| newer > made))
                && !matches!(
                    self.verdict_on(&other.container_id),
                    SandboxVerdict::Dead(_) | SandboxVerdict::Gone(_)
                )
                && self.workload.owners.netns_of(&other.container_id).next().is_some()
        });
        found.map(|attachment| attachment.container_id.clone())
    }

    /// A store released a reservation: records the loss.
    pub(in crate::map) fn note_release(&mut self, was: &ReservationEntry, at: BootNs) {
        if self.workload.late_dels.dels.is_empty() {
            return;
        }
        let what = LostWhat::Reservation {
            ip: was.ip,
            store: was.store.to_string(),
            key: was.key.to_string(),
        };
        let holders: Vec<String> = self
            .holders_of(was.ip)
            .filter_map(|netns| netns.owner().map(|owner| owner.sandbox.clone()))
            .collect();
        let of = was.container_id.as_deref().map(str::to_owned);
        // A store that names only pods does not tell which sandbox it was: take the one that has the IP.
        let losers = of.map_or(holders, |of| vec![of]);
        for loser in losers {
            self.workload.late_dels.lost(&loser, at, &what);
        }
    }

    /// A datastore lost an endpoint: records the loss.
    pub(in crate::map) fn note_endpoint_lost(&mut self, was: &Endpoint, at: BootNs) {
        let same = |del: &&LateDel| {
            del.pod.namespace == was.namespace
                && del.pod.name == was.pod
                && was.container.as_ref().is_none_or(|id| *id == del.successor)
        };
        let losers: BTreeSet<String> = self
            .workload
            .late_dels
            .dels
            .iter()
            .filter(same)
            .map(|del| del.successor.clone())
            .collect();
        let ip = was.ips.first().copied();
        let what = LostWhat::Endpoint { ip, store: was.store.clone(), key: was.key.clone() };
        for loser in losers {
            self.workload.late_dels.lost(&loser, at, &what);
        }
    }

    /// An address was removed: records the loss.
    pub(in crate::map) fn note_address_lost(
        &mut self,
        id: NetnsId,
        ip: IpAddr,
        by: &'static str,
        at: BootNs,
    ) {
        if self.workload.late_dels.dels.is_empty() || !crate::map::kernel::is_routable(ip) {
            return;
        }
        let Some(netns) = self.netns(id).filter(|netns| netns.dying.is_none()) else {
            return;
        };
        let Some(owner) = netns.owner().map(|owner| owner.sandbox.clone()) else { return };
        self.workload.late_dels.lost(&owner, at, &LostWhat::Address { ip, netns: id, by });
    }

    /// Notes which losses were heard of in this step. Returns when the next one is reported.
    pub(in crate::map) fn settle_losses(&mut self, now: BootNs) -> Option<BootNs> {
        let lost = self.workload.late_dels.dels.iter_mut().flat_map(|del| &mut del.lost);
        let from = lost.map(|lost| lost.heard.get_or_insert(now).plus(SETTLES));
        from.filter(|from| *from > now).min()
    }

    /// DELs of old sandboxes of pods with a newer one that lives.
    pub fn late_dels(&self) -> impl Iterator<Item = &LateDel> {
        self.workload.late_dels.dels.iter()
    }
}
