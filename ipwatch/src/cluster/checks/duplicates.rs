//! The same IP on two living pods.
//!
//! A pod's own IP must be unique in the cluster. On a second network an IP must be unique if Whereabouts assigns it
//! from a cluster-wide pool; with other IPAMs each node may assign the same IPs.
//!
//! Whereabouts' unit of sharing is the pool, even if several NetworkAttachmentDefinitions use it: two pods that have
//! one IP of a pool through two definitions are reported, one pod that is attached through both is not.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use super::living::Living;
use super::{Candidate, Certainty};
use crate::cluster::remedy::Kubectl;
use crate::cluster::snapshot::{Bounds, Pod, Snapshot};
use crate::finding::Severity;
use crate::prefix::Prefix;
use crate::remedy::{Step, said, text};

const DUPLICATE: &str = "ip-duplicate";
/// Maximum number of pods that are named for one IP.
const NAMED: usize = 16;
/// Prefix of the name of a definition.
const DEFINITIONS: &str = "network-attachment-definitions/";

pub(super) fn candidates(
    look: &Snapshot,
    living: &Living<'_>,
    kubectl: &Kubectl,
    all: &mut Vec<Candidate>,
) {
    let shared = Shared::new(look);
    let mut by_ip: BTreeMap<(Realm<'_>, IpAddr), Held<'_>> = BTreeMap::new();
    for pod in look.pods.items.iter().filter(|pod| !pod.ended && !pod.host_network) {
        for ip in &pod.ips {
            by_ip.entry((Realm::Pods, *ip)).or_default().add(pod, None);
        }
        for one in pod.networks.iter().flatten() {
            let realm = shared.realm(&one.network, one.ip);
            // A pod's default IP is among its own IPs; it counts for a pool only if a definition says so.
            if !one.default || matches!(realm, Realm::Pool(_)) {
                by_ip.entry((realm, one.ip)).or_default().add(pod, Some(&one.network));
            }
        }
    }
    for ((realm, ip), held) in by_ip.iter().filter(|(_, held)| held.pods.len() > 1) {
        // Report each duplicate once.
        let own = by_ip.get(&(Realm::Pods, *ip)).filter(|_| *realm != Realm::Pods);
        let told = own.is_some_and(|own| held.pods.iter().all(|pod| own.has(pod)));
        if !told && (*realm == Realm::Pods || shared.gives_out(*ip)) {
            all.push(duplicate(*realm, *ip, held, living, kubectl));
        }
    }
}

/// The scope within which an IP must be unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Realm<'a> {
    /// The pods' own IPs.
    Pods,
    /// A pool of Whereabouts, by name.
    Pool(&'a str),
    /// A network without a known definition.
    Network(&'a str),
}

/// The pods that have an IP.
#[derive(Debug, Default)]
struct Held<'a> {
    pods: Vec<&'a Pod>,
    /// Their namespaces and names, for fast lookup: an IPAM that gives each node the same IPs may yield thousands.
    names: HashSet<(&'a str, &'a str)>,
    /// The networks through which they have it.
    networks: BTreeSet<&'a str>,
}

impl<'a> Held<'a> {
    fn add(&mut self, pod: &'a Pod, network: Option<&'a str>) {
        if self.names.insert((&pod.namespace, &pod.name)) {
            self.pods.push(pod);
        }
        self.networks.extend(network);
    }

    fn has(&self, pod: &Pod) -> bool {
        self.names.contains(&(&*pod.namespace, &*pod.name))
    }
}

/// The pools of Whereabouts.
struct Shared<'a> {
    /// The names of the pools, and their ranges.
    ranges: Vec<(&'a str, Prefix)>,
    /// For the name of a network as a pod has it: the pools from which its definition takes IPs.
    definitions: HashMap<&'a str, Vec<(&'a str, &'a Bounds)>>,
}

impl<'a> Shared<'a> {
    fn new(look: &'a Snapshot) -> Self {
        let pools = look.pools.items.iter();
        let mut definitions: HashMap<&str, Vec<(&str, &Bounds)>> = HashMap::new();
        for (pool, bounds) in &look.bounds.items {
            for from in &bounds.from {
                let name = from.strip_prefix(DEFINITIONS).unwrap_or(from);
                definitions.entry(name).or_default().push((pool, bounds));
            }
        }
        Self {
            ranges: pools
                .filter_map(|pool| Some((&*pool.name, Prefix::from_cidr(&pool.range)?)))
                .collect(),
            definitions,
        }
    }

    /// Whether any pool contains this IP.
    fn gives_out(&self, ip: IpAddr) -> bool {
        self.ranges.iter().any(|(_, range)| range.contains(ip))
    }

    /// The scope of an IP on a pod's network. A definition may use several pools.
    fn realm(&self, network: &'a str, ip: IpAddr) -> Realm<'a> {
        let pools = self.definitions.get(network).map_or(&[][..], Vec::as_slice);
        let within =
            |(_, bounds): &&(&str, &Bounds)| bounds.parts.iter().any(|part| part.contains(ip));
        // An IP that was assigned before the bounds changed still belongs to the pool.
        let of_range = |(name, _): &&(&str, &Bounds)| {
            self.ranges.iter().any(|(pool, range)| pool == name && range.contains(ip))
        };
        let pool = pools.iter().find(within).or_else(|| pools.iter().find(of_range));
        pool.map_or(Realm::Network(network), |(name, _)| Realm::Pool(name))
    }
}

fn duplicate(
    realm: Realm<'_>,
    ip: IpAddr,
    held: &Held<'_>,
    living: &Living<'_>,
    kubectl: &Kubectl,
) -> Candidate {
    let mut uids: Vec<&str> = held.pods.iter().map(|pod| pod.uid.as_str()).collect();
    uids.sort_unstable();
    let pods = held.pods.get(..NAMED).unwrap_or(&held.pods);
    let mut places: Vec<String> = pods
        .iter()
        .map(|pod| format!("{} on {}", said(&pod.full_name()), said(&pod.node)))
        .collect();
    if held.pods.len() > pods.len() {
        places.push(format!("and {} more", held.pods.len() - pods.len()));
    }
    let networks: Vec<String> = held.networks.iter().map(|network| said(network)).collect();
    let of = match (realm, &networks[..]) {
        (_, []) => String::new(),
        (Realm::Pool(pool), [_, _, ..]) => {
            format!(" on networks {} of pool {}", networks.join(" and "), said(pool))
        }
        _ => format!(" on network {}", networks.join(" and ")),
    };
    let why = format!("{} pods have it{of}: {}", held.pods.len(), places.join(", "));
    let place = match realm {
        Realm::Pods => String::new(),
        Realm::Pool(name) => format!("pool {name}"),
        Realm::Network(name) => format!("network {name}"),
    };
    let mut found = Candidate::new(DUPLICATE, format!("{place} {ip} {}", uids.join(" ")), why);
    found.severity = Severity::Critical;
    found.ip = Some(ip);
    if let Realm::Network(name) = realm {
        found.certainty = Certainty::Likely;
        found.evidence.push(format!(
            "no NetworkAttachmentDefinition says that the IPs of {} are Whereabouts': of another IPAM each node may \
             have the same",
            said(name)
        ));
    }
    for pod in pods {
        found.pods.push(pod.full_name());
        if !found.nodes.contains(&pod.node) {
            found.nodes.push(pod.node.clone());
        }
        let going = if living.is_node_gone(&pod.node) {
            "is on a node that is gone"
        } else if pod.deleting {
            "is being deleted"
        } else {
            continue;
        };
        found.certainty = Certainty::Likely;
        found.evidence.push(format!("{} {going}", said(&pod.full_name())));
    }
    for pod in pods {
        let get = kubectl.command(&["get", "pod", "-n"]).value(&pod.namespace).value(&pod.name);
        found.remediation.push(Step::look(text!("look at it"), get.owns(&["-o", "wide"])));
    }
    if let Some(pod) = pods.first() {
        let what = text!("ask each node who holds it there, and delete the pod that came second");
        let plugin = kubectl.plugin().own("-n").value(&pod.namespace).value(&pod.name);
        found.remediation.push(Step::look(what, plugin.owns(&["query", "ip"]).ip(ip)));
    }
    found
}
