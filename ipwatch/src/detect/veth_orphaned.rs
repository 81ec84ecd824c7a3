//! `veth-orphaned`: the node's end of a pod's veth pair has its other end on the node too, not in a pod: what
//! an ADD that failed half-way leaves; or the node has a route by such a device to an IP that the netns behind
//! it does not have. Context for whoever counts devices.
//!
//! A pair dies with the netns of either end, and its routes with it, so no other kind of orphan is left behind.
//! Only names that CNI plugins give count; pairs that people make, and Cilium's own, are left alone. A peer in a
//! netns that is not known, or was not read whole, is unknown.

use super::words::{self, Proof};
use crate::contract::{self, HolderKind};
use crate::fact::{BootNs, Link};
use crate::finding::{Candidate, Code, Severity, Subject};
use crate::map::{NodeMap, OrphanRoute, Policy, is_pods};

pub(super) fn detect(map: &NodeMap, now: BootNs, policy: &Policy) -> Vec<Candidate> {
    let host = map.host().and_then(|id| map.netns(id));
    let Some(host) = host else { return Vec::new() };
    let pods = host.links().filter(|known| is_pods(&known.link));
    let old = pods.filter(|known| now.since(known.since) >= policy.leak_age);
    let pairs = old.filter_map(|known| {
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
    });
    let routes = map.orphan_routes(now, policy.leak_age);
    pairs.chain(routes.filter_map(|route| of_route(map, route, now))).collect()
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
    tell_pod(map, &mut proof, link, observed);
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

/// The pod that a device is named after.
fn tell_pod(map: &NodeMap, proof: &mut Proof<'_>, link: &Link, observed: BootNs) {
    if let Some(pod) = map.named_after(&link.name) {
        proof.tell("netlink", observed, format!("{} is the name of pod {pod}'s device", link.name));
    }
}

fn of_route(map: &NodeMap, route: &OrphanRoute, observed: BootNs) -> Option<Candidate> {
    let boot = map.boot()?;
    let host = map.netns(map.host()?)?;
    let (link, behind) = (host.link(route.ifindex)?, map.netns(route.netns)?);
    let ip = route.to.to;
    let mut proof = Proof::new(map);
    let text = format!("the node's route to {ip}/{} is by {}", route.to.prefix_len, link.name);
    proof.tell("netlink", observed, text);
    let has = words::addresses(behind);
    let has = if has.is_empty() { "no address".to_owned() } else { has.join(", ") };
    let text = format!("{}, at its other end, has {has}", words::netns_text(behind));
    proof.tell("netlink", observed, text);
    tell_pod(map, &mut proof, link, observed);
    let name = super::cause::quoted(&link.name);
    Some(Candidate {
        code: Code::VethOrphaned,
        key: format!("{}/{}/{}/{ip}", boot.boot_id, link.name, link.ifindex),
        severity: Severity::Info,
        subject: Subject { ip: Some(ip), ..words::subject(map, behind) },
        holders: words::bounded(map.holder_views(behind.id)),
        evidence: proof.done(),
        since: route.since,
        observed,
        impact: format!(
            "What is sent to {ip} goes to {}, where nobody has it. A later pod with this IP is not reached \
             until its own route replaces this one.",
            link.name
        ),
        remediation: vec![
            format!("See the routes of the device: ip route show dev {name}"),
            format!("If the pod is not being set up: ip route del {ip} dev {name}"),
        ],
        caused_by: None,
        preexisting: false,
    })
}
