//! `ip-duplicate`: two netns that can reach each other have one IP: on one link, or each at its own link to one
//! router.
//!
//! Not of addresses that nobody gets an answer from, nor of those that several have on purpose; who meets whom
//! is `map/reach.rs`'s to say, and what is not known there meets nobody.

use std::net::IpAddr;

use super::words::{self, Proof};
use crate::fact::BootNs;
use crate::finding::{Candidate, Code, Severity, Subject};
use crate::map::{Duplicate, Holding, Meeting, Netns, NodeMap, Policy};

pub(super) fn detect(map: &NodeMap, now: BootNs, _policy: &Policy) -> Vec<Candidate> {
    map.duplicates().iter().filter_map(|one| candidate(map, one, now)).collect()
}

/// What makes it the same one: the two may be found in either order.
pub(super) fn key(map: &NodeMap, one: &Duplicate) -> Option<String> {
    let name = |holding: &Holding| Some(map.netns(holding.at.netns)?.identity.to_string());
    let mut names = [name(&one.first)?, name(&one.second)?];
    names.sort_unstable();
    Some(format!("{}/{}/{}", map.boot()?.boot_id, one.ip, names.join("/")))
}

fn candidate(map: &NodeMap, one: &Duplicate, now: BootNs) -> Option<Candidate> {
    let (ip, key) = (one.ip, key(map, one)?);
    let (first, second) = (map.netns(one.first.at.netns)?, map.netns(one.second.at.netns)?);
    let (old, new) = (subject(map, first, ip), subject(map, second, ip));
    let (link, shared) = (meeting(map, one.meeting), whose(&old, first));
    let mut proof = Proof::new(map);
    for (holding, netns, who) in [(one.first, first, &old), (one.second, second, &new)] {
        let device = netns.link(holding.at.ifindex).map_or("a device", |link| &*link.name);
        let came =
            if holding.seen_to_come { "came up" } else { "was up already when it was first read" };
        let text = format!("{ip} {came} on {device} of {}", whose(who, netns));
        proof.tell("netlink", holding.since, text);
        proof.holder(netns, now);
        proof.calls_of(netns);
    }
    proof.tell("netlink", now, format!("they share {link}"));
    let order = if one.second.seen_to_come { "came second" } else { "came at an unknown time" };
    let mut holders = words::bounded(map.resident_views(first.id, now));
    holders.extend(words::bounded(map.resident_views(second.id, now)));
    Some(Candidate {
        code: Code::IpDuplicate,
        key,
        severity: Severity::Critical,
        holders,
        evidence: proof.done(),
        since: one.first.since.max(one.second.since),
        observed: now,
        impact: format!(
            "{ip} is up in {shared} and in {}, which {order}; both are on {link}: who asks for it reaches \
             either, and connections break as answers change.",
            whose(&new, second)
        ),
        remediation: remediation(map, &new, ip),
        caused_by: None,
        // Where probes tell of addresses, what only a dump told of stood before.
        preexisting: !one.first.seen_to_come && !one.second.seen_to_come && map.sight().addresses,
        subject: new,
    })
}

fn subject(map: &NodeMap, netns: &Netns, ip: IpAddr) -> Subject {
    Subject { ip: Some(ip), ..words::subject(map, netns) }
}

fn whose(subject: &Subject, netns: &Netns) -> String {
    let otherwise = if netns.host { "the host".to_owned() } else { words::netns_text(netns) };
    words::owner(subject.pod.as_ref(), subject.container.as_ref(), &otherwise)
}

/// What two share, in words.
fn meeting(map: &NodeMap, meeting: Meeting) -> String {
    let place = |id| match map.netns(id) {
        Some(netns) if netns.host => "the host".to_owned(),
        Some(netns) => words::netns_text(netns),
        None => "a netns".to_owned(),
    };
    match meeting {
        Meeting::Router(netns) => format!("the router that is {}", place(netns)),
        Meeting::Link(at) => {
            let Some(netns) = map.netns(at.netns) else { return "one link".to_owned() };
            let kind = netns.link(at.ifindex).and_then(|link| link.kind.as_deref());
            let kind = kind.map(|kind| format!("{kind} ")).unwrap_or_default();
            format!("{kind}{} of {}", words::device(netns, at.ifindex), place(at.netns))
        }
    }
}

fn remediation(map: &NodeMap, new: &Subject, ip: IpAddr) -> Vec<String> {
    let node = map.boot().map(|boot| boot.node.clone()).unwrap_or_default();
    let pod = new.pod.as_ref().and_then(|pod| Some((pod.namespace.as_ref()?, pod.name.as_ref()?)));
    let container = new.container.as_ref().and_then(|container| container.id.as_deref());
    let away = match (pod, container) {
        (Some((namespace, name)), _) => {
            let (namespace, name) = (super::cause::quoted(namespace), super::cause::quoted(name));
            format!("kubectl delete pod -n {namespace} {name}")
        }
        (None, Some(id)) => {
            format!("crictl stopp {}, or docker stop {}", words::short(id), words::short(id))
        }
        (None, None) => "end it, or give it another IP".to_owned(),
    };
    vec![
        format!("Start no more pods here: kubectl cordon {node}"),
        format!("Move the newer one away: {away}"),
        format!("See both and what they share: ipwatch query ip {ip} --reach"),
        format!("Then end what held {ip} before, if its sandbox is dead: its own finding says how"),
        format!(
            "If both have it on purpose (anycast, a VIP): [addresses] shared = [\"{ip}\"] in ipwatch.toml"
        ),
        "Do not: take the address off one of them, its IPAM still counts on it there".to_owned(),
    ]
}
