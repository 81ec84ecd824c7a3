//! The same IP on two pods that live.
//!
//! A pod's own IP is the only one in the cluster. On a second network it is, where Whereabouts gives out what the
//! whole cluster shares; of other IPAMs each node may have the same.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::living::Living;
use super::{Candidate, Certainty};
use crate::cluster::remedy::Kubectl;
use crate::cluster::remedy::Word::{Own, Theirs};
use crate::cluster::world::{Look, Pod};
use crate::finding::Severity;
use crate::sources::kubernetes::whereabouts::Range;

const DUPLICATE: &str = "ip-duplicate";

pub(super) fn candidates(
    look: &Look,
    living: &Living<'_>,
    kubectl: &Kubectl,
    all: &mut Vec<Candidate>,
) {
    // By the network, which is empty for the pods' own.
    let mut by_ip: BTreeMap<(&str, IpAddr), Vec<&Pod>> = BTreeMap::new();
    for pod in look.pods.items.iter().filter(|pod| !pod.ended && !pod.host_network) {
        let own = pod.ips.iter().map(|ip| ("", *ip));
        let attached = pod.networks.iter().flatten().filter(|one| !one.default);
        let attached = attached.map(|one| (one.network.as_str(), one.ip));
        for (network, ip) in own.chain(attached) {
            let here = by_ip.entry((network, ip)).or_default();
            if here.iter().all(|other| other.full_name() != pod.full_name()) {
                here.push(pod);
            }
        }
    }
    let ranges: Vec<Range> =
        look.pools.items.iter().filter_map(|pool| Range::parse(&pool.range)).collect();
    for ((network, ip), pods) in by_ip.into_iter().filter(|(_, pods)| pods.len() > 1) {
        if network.is_empty() || ranges.iter().any(|range| range.number(ip).is_some()) {
            all.push(duplicate(network, ip, &pods, living, kubectl));
        }
    }
}

fn duplicate(
    network: &str,
    ip: IpAddr,
    pods: &[&Pod],
    living: &Living<'_>,
    kubectl: &Kubectl,
) -> Candidate {
    let mut uids: Vec<&str> = pods.iter().map(|pod| pod.uid.as_str()).collect();
    uids.sort_unstable();
    let places: Vec<String> =
        pods.iter().map(|pod| format!("{} on {}", pod.full_name(), pod.node)).collect();
    let of = if network.is_empty() { String::new() } else { format!(" on network {network}") };
    let why = format!("{} pods have it{of}: {}", pods.len(), places.join(", "));
    let mut found = Candidate::new(DUPLICATE, format!("{network} {ip} {}", uids.join(" ")), why);
    found.severity = Severity::Critical;
    found.ip = Some(ip);
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
        found.evidence.push(format!("{} {going}", pod.full_name()));
    }
    for pod in pods {
        let words = [Own("get"), Own("pod"), Own("-n"), Theirs(&pod.namespace), Theirs(&pod.name)];
        let words = [&words[..], &[Own("-o"), Own("wide")]].concat();
        found.remediation.push(kubectl.look("look at it", &words));
    }
    if let Some(pod) = pods.first() {
        let what = "ask each node who holds it there, and delete the pod that came second";
        let (text, first) =
            (ip.to_string(), [Own("-n"), Theirs(&pod.namespace), Theirs(&pod.name)]);
        let words = [&first[..], &[Own("query"), Own("ip"), Own(&text)]].concat();
        found.remediation.push(kubectl.plugin(what, &words));
    }
    found
}
