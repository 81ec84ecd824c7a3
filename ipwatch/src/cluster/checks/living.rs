//! The pods of a look, their IPs, and what they imply for an allocation.

use std::collections::HashMap;
use std::net::IpAddr;

use super::Certainty;
use crate::cluster::snapshot::{Pod, Snapshot};
use crate::remedy::said;

/// The pods of a look.
pub(super) struct Living<'a> {
    look: &'a Snapshot,
    by_name: HashMap<(&'a str, &'a str), &'a Pod>,
    by_ip: HashMap<IpAddr, Vec<&'a Pod>>,
    /// Pods that have ended, by IP.
    ended_by_ip: HashMap<IpAddr, Vec<&'a Pod>>,
    /// Pods that may be assigned an IP at this moment, or have one that is not reported. Only pods with a node.
    pub(super) being_made: Vec<&'a Pod>,
}

/// What the pods imply for an allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fate {
    /// A pod uses the allocation, or may use it.
    Alive,
    /// The list of pods is incomplete.
    Unknown,
    /// No pod uses it.
    Gone(Certainty, String),
    /// It names a living pod that does not have this IP; or another pod has the IP, or may have it.
    Other(String),
}

impl<'a> Living<'a> {
    pub(super) fn new(look: &'a Snapshot) -> Self {
        let pods = &look.pods.items;
        let mut by_ip: HashMap<IpAddr, Vec<&Pod>> = HashMap::new();
        for pod in pods.iter().filter(|pod| !pod.ended) {
            for ip in pod.all_ips() {
                let here = by_ip.entry(ip).or_default();
                if !here.iter().any(|other| std::ptr::eq(*other, pod)) {
                    here.push(pod);
                }
            }
        }
        let mut ended_by_ip: HashMap<IpAddr, Vec<&Pod>> = HashMap::new();
        for pod in pods.iter().filter(|pod| pod.ended) {
            for ip in pod.all_ips() {
                ended_by_ip.entry(ip).or_default().push(pod);
            }
        }
        let by_name = pods.iter().map(|pod| ((&*pod.namespace, &*pod.name), pod)).collect();
        // Pods of a deleted node are included: the machine may still run.
        let unknown = |pod: &&Pod| !pod.node.is_empty() && (pod.is_being_made() || pod.is_unsaid());
        let being_made = pods.iter().filter(unknown).collect();
        Self { look, by_name, by_ip, ended_by_ip, being_made }
    }

    /// Whether a pod that is not in the list does not exist.
    pub(super) fn is_known(&self) -> bool {
        self.look.pods.is_whole()
    }

    pub(super) fn pod(&self, namespace: &str, name: &str) -> Option<&'a Pod> {
        self.by_name.get(&(namespace, name)).copied()
    }

    /// The pods that have this IP and have not ended.
    pub(super) fn at(&self, ip: IpAddr) -> &[&'a Pod] {
        self.by_ip.get(&ip).map_or(&[], Vec::as_slice)
    }

    /// Whether the cluster has no such node.
    pub(super) fn is_node_gone(&self, node: &str) -> bool {
        let nodes = &self.look.nodes;
        // A list without any node is not trusted.
        !node.is_empty()
            && nodes.is_whole()
            && !nodes.items.is_empty()
            && !nodes.items.contains_key(node)
    }

    /// Whether the node exists and is ready: then a pod that was deleted on it no longer runs. A cluster needs 40 s
    /// or more to notice that a node is silent.
    fn answers(&self, node: &str) -> bool {
        let nodes = &self.look.nodes;
        let node = nodes.items.get(node).filter(|_| nodes.is_whole());
        node.is_some_and(|node| node.ready)
    }

    /// An existing pod that had one of these names or has this IP, and that may still run: nothing proves that it
    /// does not.
    pub(super) fn may_run(&self, names: &[Option<(&str, &str)>], ip: IpAddr) -> Option<&'a Pod> {
        let named =
            names.iter().flatten().filter_map(|(namespace, name)| self.pod(namespace, name));
        let ended = self.ended_by_ip.get(&ip).into_iter().flatten().copied();
        let mut all = named.chain(self.at(ip).iter().copied()).chain(ended);
        // A pod that has ended without a node has never run.
        let runs_no_more =
            |pod: &Pod| pod.ended && (pod.node.is_empty() || self.answers(&pod.node));
        all.find(|pod| !runs_no_more(pod))
    }

    /// A pod that has this IP, or had it and has ended.
    pub(super) fn last_at(&self, ip: IpAddr) -> Option<&'a Pod> {
        let ended = || self.ended_by_ip.get(&ip).and_then(|pods| pods.first());
        self.at(ip).first().or_else(ended).copied()
    }

    /// Whether no pod has this name or this IP, not even one that has ended.
    pub(super) fn is_nobodys(&self, podref: Option<(&str, &str)>, ip: IpAddr) -> bool {
        self.is_known()
            && podref.is_none_or(|(namespace, name)| self.pod(namespace, name).is_none())
            && self.at(ip).is_empty()
            && !self.ended_by_ip.contains_key(&ip)
    }

    /// For an allocation that names its pod. `node`: the pod's node, if known.
    pub(super) fn of_pod(
        &self,
        namespace: &str,
        name: &str,
        ip: IpAddr,
        node: Option<&str>,
    ) -> Fate {
        if !self.is_known() {
            return Fate::Unknown;
        }
        let full = said(&format!("{namespace}/{name}"));
        let Some(pod) = self.pod(namespace, name) else {
            // Another pod has the IP: an IP in use must not be freed.
            if let Some(other) = self.at(ip).first() {
                let why =
                    format!("its pod {full} is gone, and {} has the IP", said(&other.full_name()));
                return Fate::Other(why);
            }
            // The pod object does not exist. After a forced deletion the container may still run on a node that is
            // not ready.
            let sure = if node.is_some_and(|node| self.answers(node)) {
                Certainty::Certain
            } else {
                Certainty::Likely
            };
            return Fate::Gone(sure, format!("its pod {full} is gone"));
        };
        if pod.ended {
            if let Some(other) = self.at(ip).first() {
                let why = format!(
                    "its pod {full} has ended, and {} has the IP",
                    said(&other.full_name())
                );
                return Fate::Other(why);
            }
            let why = format!("its pod {full} has ended ({})", said(&pod.phase));
            return Fate::Gone(Certainty::Likely, why);
        }
        if self.is_node_gone(&pod.node) {
            if let Some(other) = self.at(ip).iter().find(|other| !std::ptr::eq(**other, pod)) {
                let why = format!(
                    "its pod {full} is on node {}, which is gone, and {} has the IP",
                    said(&pod.node),
                    said(&other.full_name())
                );
                return Fate::Other(why);
            }
            let why = format!("its pod {full} is on node {}, which is gone", said(&pod.node));
            return Fate::Gone(Certainty::Likely, why);
        }
        // A pod without a node is yet to be started.
        if pod.node.is_empty() || pod.is_being_made() || pod.all_ips().any(|one| one == ip) {
            return Fate::Alive;
        }
        Fate::Other(format!("its pod {full} lives and has other IPs"))
    }

    /// For an allocation that names no pod: judged by the pods that have the IP.
    pub(super) fn of_ip(&self, ip: IpAddr) -> Fate {
        if !self.is_known() {
            return Fate::Unknown;
        }
        let here = self.at(ip);
        if here.iter().any(|pod| !self.is_node_gone(&pod.node)) {
            return Fate::Alive;
        }
        if let Some(pod) = here.first() {
            let (name, node) = (said(&pod.full_name()), said(&pod.node));
            let why = format!("only {name} has this IP, and its node {node} is gone");
            return Fate::Gone(Certainty::Likely, why);
        }
        if let Some(pod) = self.ended_by_ip.get(&ip).and_then(|pods| pods.first()) {
            let name = said(&pod.full_name());
            let why = format!("only {name} has this IP, and it has ended ({})", said(&pod.phase));
            return Fate::Gone(Certainty::Likely, why);
        }
        let why = "it names no pod, and no pod has this IP".to_owned();
        // Not more than likely: a sandbox may be restarted, and not every pod's networks are reported.
        Fate::Gone(Certainty::Likely, why)
    }
}
