//! Which pods there are, which IPs they have, and what that says of an allocation.

use std::collections::HashMap;
use std::net::IpAddr;

use super::Certainty;
use crate::cluster::snapshot::{Look, Pod};
use crate::remedy::said;

/// The pods of a look.
pub(super) struct Living<'a> {
    look: &'a Look,
    by_name: HashMap<(&'a str, &'a str), &'a Pod>,
    by_ip: HashMap<IpAddr, Vec<&'a Pod>>,
    /// Of those that have ended.
    ended_by_ip: HashMap<IpAddr, Vec<&'a Pod>>,
    /// Those that may be given an IP at this moment, or have one that nobody says. What has no node has none.
    pub(super) being_made: Vec<&'a Pod>,
}

/// What the pods say of an allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is somebody's, or may be.
    Alive,
    /// The list of pods is not whole.
    Unknown,
    /// It is nobody's.
    Gone(Certainty, String),
    /// It names a pod that lives, and has not this IP; or somebody else has it, or may.
    Other(String),
}

impl<'a> Living<'a> {
    pub(super) fn new(look: &'a Look) -> Self {
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
        // A node that is gone from the cluster may run on.
        let unknown = |pod: &&Pod| !pod.node.is_empty() && (pod.is_being_made() || pod.is_unsaid());
        let being_made = pods.iter().filter(unknown).collect();
        Self { look, by_name, by_ip, ended_by_ip, being_made }
    }

    /// Whether a pod that is not in the list is gone.
    pub(super) fn is_known(&self) -> bool {
        self.look.pods.is_whole()
    }

    pub(super) fn pod(&self, namespace: &str, name: &str) -> Option<&'a Pod> {
        self.by_name.get(&(namespace, name)).copied()
    }

    /// Who has an IP, of those that have not ended.
    pub(super) fn at(&self, ip: IpAddr) -> &[&'a Pod] {
        self.by_ip.get(&ip).map_or(&[], Vec::as_slice)
    }

    /// The cluster has no such node.
    pub(super) fn is_node_gone(&self, node: &str) -> bool {
        let nodes = &self.look.nodes;
        // A cluster without any is none that is told of.
        !node.is_empty()
            && nodes.is_whole()
            && !nodes.items.is_empty()
            && !nodes.items.contains_key(node)
    }

    /// It is there and ready, as far as the cluster knows: what was deleted on it runs no more. It takes the cluster
    /// 40 s or more to see that a node is silent.
    fn answers(&self, node: &str) -> bool {
        let nodes = &self.look.nodes;
        let node = nodes.items.get(node).filter(|_| nodes.is_whole());
        node.is_some_and(|node| node.ready)
    }

    /// A pod that is there, that had this name or has this IP, and may run: nobody says that it does not.
    pub(super) fn may_run(&self, names: &[Option<(&str, &str)>], ip: IpAddr) -> Option<&'a Pod> {
        let named =
            names.iter().flatten().filter_map(|(namespace, name)| self.pod(namespace, name));
        let ended = self.ended_by_ip.get(&ip).into_iter().flatten().copied();
        let mut all = named.chain(self.at(ip).iter().copied()).chain(ended);
        // One that has ended without a node has never run.
        let runs_no_more =
            |pod: &Pod| pod.ended && (pod.node.is_empty() || self.answers(&pod.node));
        all.find(|pod| !runs_no_more(pod))
    }

    /// Who has an IP, or had it and has ended.
    pub(super) fn last_at(&self, ip: IpAddr) -> Option<&'a Pod> {
        let ended = || self.ended_by_ip.get(&ip).and_then(|pods| pods.first());
        self.at(ip).first().or_else(ended).copied()
    }

    /// No pod has this name or this IP, not even one that has ended.
    pub(super) fn is_nobodys(&self, podref: Option<(&str, &str)>, ip: IpAddr) -> bool {
        self.is_known()
            && podref.is_none_or(|(namespace, name)| self.pod(namespace, name).is_none())
            && self.at(ip).is_empty()
            && !self.ended_by_ip.contains_key(&ip)
    }

    /// Of an allocation that names its pod. `node`: the pod's, where something says it.
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
            // Another that has it: no one frees what somebody uses.
            if let Some(other) = self.at(ip).first() {
                let why =
                    format!("its pod {full} is gone, and {} has the IP", said(&other.full_name()));
                return Fate::Other(why);
            }
            // The object is gone. Of one deleted by force the container may still run, where no one answers.
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
        // One without a node is yet to be made.
        if pod.node.is_empty() || pod.is_being_made() || pod.all_ips().any(|one| one == ip) {
            return Fate::Alive;
        }
        Fate::Other(format!("its pod {full} lives and has other IPs"))
    }

    /// Of an allocation that names nobody: whoever has the IP.
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
        // Never more: a sandbox may be made anew, and not every pod's networks are told.
        Fate::Gone(Certainty::Likely, why)
    }
}
