//! `ip-duplicate`: two netns that can reach each other have one IP: on one link, or each on its own link to one router.
//!
//! It pages only with a witness for either side (`map/conflict/witness.rs`): any user can create two netns and assign
//! the same IP to both. A momentary overlap, such as of an address that moves, is not reported.
//!
//! Addresses that answer nobody, and those that are shared on purpose, do not count. `map/conflict/reach.rs` decides
//! who can reach whom; gaps in its data connect nobody.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::evidence::{self, By, Proof};
use super::run::{Again, Detector, Judged};
use crate::fact::{BootNs, Holder as Held};
use crate::finding::{Candidate, Code, Severity, Subject};
use crate::map::{Duplicate, Holding, Kinds, Meeting, Netns, NodeMap, Thresholds};
use crate::remedy::{Command, Step, Text, kubernetes, said, text, value};

/// Number of holders, and of items of evidence, from which on those of further holders are not added.
const JOINED: usize = 48;

pub(super) const DETECTOR: Detector = Detector::Whole {
    on: Kinds::NETNS
        .and(Kinds::ADDRESSES)
        .and(Kinds::LINKS)
        .and(Kinds::ROUTES)
        .and(Kinds::RUNTIMES),
    beyond: Kinds::NONE,
    detect,
};

fn detect(map: &NodeMap, now: BootNs, _thresholds: &Thresholds) -> Judged {
    let old = map.duplicates().iter().filter(|one| map.hurts_from(one) <= now);
    let mut found: Vec<Candidate> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for one in old.filter_map(|one| candidate(map, one, now)) {
        match places.get(&one.key) {
            Some(place) => join(&mut found[*place], one),
            None => {
                places.insert(one.key.clone(), found.len());
                found.push(one);
            }
        }
    }
    (found, Again::always_if(!map.duplicates().is_empty()))
}

/// Identifies a duplicate: the IP and where its holders meet. One holder may be recreated again and again (a pod in a
/// crash loop), and after a restart the two may be found in the other order.
pub(super) fn key(map: &NodeMap, one: &Duplicate) -> Option<String> {
    let identity = |id| Some(map.netns(id)?.identity);
    let (netns, ifindex) = match one.meeting {
        Meeting::Link(at) => map.segment(at.netns, at.ifindex),
        Meeting::Router(netns) => (netns, 0),
    };
    let holders = [one.first.at.netns, one.second.at.netns];
    let boot = &map.boot()?.boot_id;
    if holders.contains(&netns) && Some(netns) != map.host() {
        // Two ends of one pair: neither represents the link.
        let mut names = [identity(holders[0])?.to_string(), identity(holders[1])?.to_string()];
        names.sort_unstable();
        return Some(format!("{boot}/{}/{}", one.ip, names.join("/")));
    }
    Some(format!("{boot}/{}/{}/{ifindex}", one.ip, identity(netns)?))
}

/// Merges another holder of the IP on the same link.
fn join(known: &mut Candidate, other: Candidate) {
    known.severity = known.severity.max(other.severity);
    known.preexisting &= other.preexisting;
    let room = JOINED.saturating_sub(known.holders.len());
    let news = other.holders.into_iter().filter(|holder| !known.holders.contains(holder));
    let news: Vec<_> = news.take(room).collect();
    known.holders.extend(news);
    let room = JOINED.saturating_sub(known.evidence.len());
    let news = other.evidence.into_iter().filter(|item| !known.evidence.contains(item));
    let news: Vec<_> = news.take(room).collect();
    known.evidence.extend(news);
}

fn candidate(map: &NodeMap, one: &Duplicate, now: BootNs) -> Option<Candidate> {
    let (ip, key) = (one.ip, key(map, one)?);
    let (first, second) = (map.netns(one.first.at.netns)?, map.netns(one.second.at.netns)?);
    let (old, new) = (subject(map, first, ip), subject(map, second, ip));
    let (link, shared) = (meeting(map, one.meeting), whose(&old, first));
    let mut proof = Proof::new(map);
    for (holding, netns, who) in [(one.first, first, &old), (one.second, second, &new)] {
        let came =
            if holding.seen_to_come { "came up" } else { "was up already when it was first read" };
        let text =
            format!("{ip} {came} on {} of {}", device(map, netns, &holding), side(who, netns));
        proof.tell(By::Netlink, holding.since, text);
        proof.holder(netns, now);
        proof.calls_of(netns);
    }
    proof.tell(By::Netlink, now, format!("they share {link}"));
    let witnessed = map.has_witness_of(first, ip) || map.has_witness_of(second, ip);
    if !witnessed {
        let text = "neither belongs to the node, to a container that a runtime knows, or to a reservation in a \
                    store: no pod that ipwatch knows is affected";
        proof.tell(By::Runtime, now, text);
    }
    let order = if one.is_ordered() { "came second" } else { "came at an unknown time" };
    let mut holders = evidence::bounded(map.resident_views(first.id, now));
    holders.extend(evidence::bounded(map.resident_views(second.id, now)));
    let is_found = evidence::is_found(Code::IpDuplicate, &key);
    Some(Candidate {
        code: Code::IpDuplicate,
        key,
        severity: if witnessed { Severity::Critical } else { Severity::Info },
        holders,
        evidence: proof.done(),
        since: one.first.since.max(one.second.since),
        observed: now,
        impact: text!(
            "{} is up in {} and in {}, which {}; both are on {}: clients reach either of them, and connections break when \
             the answer changes.",
            ip,
            shared,
            whose(&new, second),
            order,
            link
        ),
        remediation: remediation(map, one, &new, [first, second], witnessed, &is_found, now),
        caused_by: None,
        // If probes report addresses, one that only a dump reported existed before.
        preexisting: !one.first.seen_to_come && !one.second.seen_to_come && map.sight().addresses,
        subject: new,
    })
}

fn subject(map: &NodeMap, netns: &Netns, ip: IpAddr) -> Subject {
    Subject { ip: Some(ip), ..evidence::subject(map, netns) }
}

fn whose(subject: &Subject, netns: &Netns) -> Text {
    evidence::owner(subject.pod.as_ref(), subject.container.as_ref(), place(netns))
}

/// Who has the IP, and in which netns.
fn side(subject: &Subject, netns: &Netns) -> Text {
    let (who, place) = (whose(subject, netns), place(netns));
    if who == place { who } else { text!("{}, {}", who, place) }
}

/// A netns by its path on the node, if it is mounted there. Paths in other mount namespaces are chosen by strangers.
fn place(netns: &Netns) -> Text {
    if netns.host {
        return text!("the host");
    }
    let paths = netns.holders().filter_map(|holder| match holder {
        Held::Mount { path, pid: 1, .. } => Some(path),
        _ => None,
    });
    match paths.min_by_key(|path| path.len()) {
        Some(path) => text!("netns {}", value(path)),
        None => evidence::netns_text(netns),
    }
}

/// The device that has the IP, its MAC, and the other end of its pair.
fn device(map: &NodeMap, netns: &Netns, holding: &Holding) -> String {
    let name = evidence::device_said(netns, holding.at.ifindex);
    let mac = netns.link(holding.at.ifindex).and_then(|link| link.mac);
    let port = map.other_end(netns.id, holding.at.ifindex);
    let port = port.map(|end| format!("port {}", said(&end.name)));
    let parts: Vec<String> = mac.map(|mac| format!("MAC {mac}")).into_iter().chain(port).collect();
    if parts.is_empty() { name } else { format!("{name} ({})", parts.join(", ")) }
}

/// What the two share, as text.
fn meeting(map: &NodeMap, meeting: Meeting) -> Text {
    let place = |id| map.netns(id).map_or_else(|| text!("a netns"), place);
    match meeting {
        Meeting::Router(netns) => text!("the router that is {}", place(netns)),
        Meeting::Link(at) => {
            let Some(netns) = map.netns(at.netns) else { return text!("one link") };
            let kind = netns.link(at.ifindex).and_then(|link| link.kind.as_deref());
            let kind = kind.map(|kind| format!("{kind} ")).unwrap_or_default();
            let device = format!("{kind}{}", evidence::device(netns, at.ifindex));
            text!("{} of {}", value(&device), place(at.netns))
        }
    }
}

fn remediation(
    map: &NodeMap,
    one: &Duplicate,
    new: &Subject,
    both: [&Netns; 2],
    witnessed: bool,
    is_found: &Command,
    now: BootNs,
) -> Vec<Step> {
    let ip = one.ip;
    let container = new.container.as_ref().and_then(|container| container.id.as_deref());
    let more = evidence::more_of_them;
    let no_more = || evidence::no_more(map, container, more(), is_found.clone());
    // Two untrusted netns are no reason to cordon a node.
    let mut steps: Vec<Step> = witnessed.then(no_more).into_iter().collect();
    steps.extend([
        if one.is_ordered() { move_away(map, (ip, new), both, is_found, now) } else { find_the_newer(ip) },
        Step::look(
            text!("See both and what they share"),
            Command::new("ipwatch").owns(&["query", "ip"]).ip(ip).own("--reach"),
        ),
        Step::advice(text!(
            "Remove the one that had {} first only if it belongs to a dead sandbox: its own finding says how.",
            ip
        )),
        Step::advice(text!(
            "If both have it on purpose (anycast, a VIP): [addresses] shared = [\"{}\"] in ipwatch.toml.",
            ip
        )),
        Step::never(&text!("remove the address from one of them; IPAM still has it reserved for that one")),
    ]);
    steps
}

/// If the order is unknown, no command ends a pod on a guess.
fn find_the_newer(ip: IpAddr) -> Step {
    Step::advice(text!(
        "ipwatch did not see which one is newer: compare their ages (kubectl get pods, crictl pods), and delete the newer \
         pod only if both still have {}.",
        ip
    ))
}

/// Ends the newer holder: a pod by its uid, a container only while both still exist.
fn move_away(
    map: &NodeMap,
    (ip, new): (IpAddr, &Subject),
    [first, second]: [&Netns; 2],
    is_found: &Command,
    now: BootNs,
) -> Step {
    let what = text!("End the newer one, only if it is still this one");
    let pod =
        new.pod.as_ref().and_then(|pod| Some((pod, pod.namespace.as_ref()?, pod.name.as_ref()?)));
    if let Some((pod, namespace, name)) = pod {
        let names = [&**namespace, &**name];
        return kubernetes::delete_pod(what, is_found.clone(), names, pod.uid.as_deref());
    }
    let both = evidence::still(map, first).zip(evidence::still(map, second));
    let container = new.container.as_ref();
    let runtime = container.and_then(|one| one.runtime.as_deref());
    let stop = container.and_then(|one| evidence::stop(runtime, one.id.as_deref()?));
    match (both, stop) {
        (Some((old, new)), Some(stop)) => {
            Step::change(what, is_found.clone().and(old).and(new).and(stop))
        }
        _ => Step::advice(text!(
            "Stop the newer one ({}), or give it another IP, only if both still have {}.",
            newcomer(map, new, second, now),
            ip
        )),
    }
}

/// The newer holder, and the first process in its netns.
fn newcomer(map: &NodeMap, new: &Subject, netns: &Netns, now: BootNs) -> Text {
    let holders = map.resident_views(netns.id, now);
    let process = holders.iter().find_map(|holder| holder.pid.zip(holder.comm.as_deref()));
    match process.filter(|_| !netns.host) {
        Some((pid, comm)) => text!("{}, pid {} {}", side(new, netns), pid, value(comm)),
        None => side(new, netns),
    }
}
