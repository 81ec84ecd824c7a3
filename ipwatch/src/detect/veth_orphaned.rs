//! `veth-orphaned`: the node's end of a pod's veth pair has its other end on the node too, not in a pod: what
//! an ADD that failed half-way leaves. Context for whoever counts devices; it holds no IP.
//!
//! A pair dies with the netns of either end, so no other kind of orphan is left behind. Only names that CNI
//! plugins give count; pairs that people make, and Cilium's own, are left alone.

use super::words::Proof;
use crate::contract::{self, HolderKind};
use crate::fact::{BootNs, Link};
use crate::finding::{Candidate, Code, Severity, Subject};
use crate::map::{NodeMap, Policy};

pub(super) fn detect(map: &NodeMap, now: BootNs, policy: &Policy) -> Vec<Candidate> {
    let host = map.host().and_then(|id| map.netns(id));
    let Some(host) = host else { return Vec::new() };
    let pods = host.links().filter(|known| is_pods(&known.link));
    let old = pods.filter(|known| now.since(known.since) >= policy.leak_age);
    old.filter_map(|known| {
        let peer = known.link.peer.filter(|_| known.link.peer_nsid.is_none())?;
        // That of a pair which is made first is told of before it has a peer (`veth_newlink`, 6.18).
        let own = |back: u32| back == known.link.ifindex;
        let other = host.link(peer).filter(|other| other.peer.is_none_or(own))?;
        let used = host
            .addresses()
            .any(|(key, _)| key.ifindex == peer || key.ifindex == known.link.ifindex);
        // Both ends may have such a name: the lower index stands for both.
        let told = is_pods(other) && other.ifindex < known.link.ifindex;
        let plugged = other.master.is_some();
        (!used && !told && !plugged)
            .then(|| candidate(map, &known.link, other, known.since, now))?
    })
    .collect()
}

/// Whether a CNI plugin gave it its name: bridge and ptp, Calico, Cilium, Terway and the VPC CNI.
fn is_pods(link: &Link) -> bool {
    let made = |prefix: &str, len: usize| {
        link.name.strip_prefix(prefix).is_some_and(|rest| {
            rest.len() == len && rest.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
    };
    link.kind.as_deref() == Some("veth")
        && (made("veth", 8) || made("cali", 11) || made("eni", 11) || made("lxc", 12))
}

fn candidate(
    map: &NodeMap,
    link: &Link,
    other: &Link,
    since: BootNs,
    observed: BootNs,
) -> Option<Candidate> {
    let boot = map.boot()?;
    let host = map.netns(map.host()?)?;
    let mut proof = Proof::new(map);
    let text = format!(
        "{} (index {}) and its peer {} (index {}) are both on the node",
        link.name, link.ifindex, other.name, other.ifindex
    );
    proof.tell("netlink", observed, text);
    let name = super::cause::quoted(&link.name);
    Some(Candidate {
        code: Code::VethOrphaned,
        key: format!("{}/{}/{}", boot.boot_id, link.name, link.ifindex),
        severity: Severity::Info,
        subject: Subject { netns: Some(map.netns_view(host)), ..Subject::default() },
        holders: vec![contract::Holder::of_kind(HolderKind::Kernel)],
        evidence: proof.done(),
        since,
        observed,
        impact: format!(
            "{} leads to no pod. It takes no IP; its name may be in a later pod's way.",
            link.name
        ),
        remediation: vec![
            format!("See both ends: ip -d link show {name}"),
            format!("If nobody made it on purpose: ip link del {name}"),
        ],
        caused_by: None,
        preexisting: false,
    })
}
