//! `neighbour-conflict`: two MACs answer for one IP on a link. `map/conflict/neighbour_conflict.rs` decides what is a
//! conflict; here the reports of all devices on a link become one finding.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::evidence::{self, By, Proof};
use super::run::{Again, Detector, Judged};
use crate::fact::{BootNs, Mac};
use crate::finding::{Candidate, Code, Finding, Severity};
use crate::map::{
    Conflict, ConflictGrounds, Kinds, Match, Netns, NetnsId, NodeMap, Party, Thresholds,
};
use crate::prefix::Prefix;
use crate::remedy::{Command, Step, Text, text};

/// Maximum number of observing devices that are quoted.
const QUOTED: usize = 4;
/// The device that represents a link.
type Link = (NetnsId, u32);

/// Maximum number of holders named for each netns.
const HOLDERS: usize = 8;

pub(super) const DETECTOR: Detector =
    Detector::Whole { on: Kinds::NEIGHBOURS.and(Kinds::ADDRESSES), beyond: Kinds::NONE, detect };

fn detect(map: &NodeMap, now: BootNs, _thresholds: &Thresholds) -> Judged {
    let links = by_link(map, now);
    let told = links.iter().filter_map(|((_, link), group)| candidate(map, *link, group, now));
    let again = Again::always_if(!links.is_empty() || map.has_failed_addresses());
    (told.collect(), again)
}

/// Whether a conflict that is not found may be one of an address that was rejected and is not kept.
pub(super) fn leaves_out(map: &NodeMap, finding: &Finding) -> bool {
    let netns = map.netns_of(&finding.subject).zip(finding.subject.ip);
    netns.is_some_and(|(netns, ip)| map.leaves_out_rejected(netns, ip))
}

/// Groups by link and IP: one conflict is observed in many netns, and may get a third MAC later, or have only one known
/// MAC at first.
fn by_link(map: &NodeMap, now: BootNs) -> BTreeMap<(IpAddr, Link), Vec<Conflict>> {
    let mut links: BTreeMap<(IpAddr, Link), Vec<Conflict>> = BTreeMap::new();
    for conflict in map.conflicts(now) {
        let link = map.segment(conflict.netns, conflict.ifindex);
        links.entry((conflict.ip, link)).or_default().push(conflict);
    }
    links
}

/// The netns of this node that are parties to each conflict, by the key of the finding.
pub(super) fn parties(map: &NodeMap, now: BootNs) -> BTreeMap<String, Vec<NetnsId>> {
    let homes = |group: &[Conflict]| {
        let parties = group.iter().flat_map(|one| &one.parties);
        parties.filter_map(|party| Some(party.home?.netns)).collect()
    };
    let links = by_link(map, now);
    let all = links.iter();
    all.filter_map(|((ip, link), group)| Some((key(map, *ip, *link)?, homes(group)))).collect()
}

fn key(map: &NodeMap, ip: IpAddr, (netns, ifindex): Link) -> Option<String> {
    let identity = map.netns(netns)?.identity;
    Some(format!("{}/{ip}/{identity}/{ifindex}", map.boot()?.boot_id))
}

/// The key of the finding that a conflict belongs to.
pub(super) fn key_of(map: &NodeMap, conflict: &Conflict) -> Option<String> {
    key(map, conflict.ip, map.segment(conflict.netns, conflict.ifindex))
}

fn candidate(map: &NodeMap, link: Link, group: &[Conflict], now: BootNs) -> Option<Candidate> {
    // The conflict with the strongest evidence represents the others.
    let first = group.iter().min_by_key(|one| (one.grounds, one.since))?;
    let ip = first.ip;
    let mut proof = Proof::new(map);
    for conflict in group.iter().take(QUOTED) {
        tell(map, conflict, &mut proof);
    }
    for party in &first.parties {
        let text = format!("{} is {}", mac_text(party.mac), whose(map, party));
        proof.tell(By::Netlink, now, text);
    }
    let homes = first.parties.iter().filter_map(|party| map.netns(party.home?.netns));
    let pods: Vec<&Netns> = homes.filter(|entry| !entry.host).collect();
    let about = pods.first().copied().or_else(|| map.netns(first.netns))?;
    let mut subject = evidence::subject(map, about);
    subject.ip = Some(ip);
    let holders =
        pods.iter().flat_map(|pod| map.resident_views(pod.id, now).into_iter().take(HOLDERS));
    let names: Vec<Text> = first.parties.iter().map(|party| mac_text(party.mac)).collect();
    let stands = group.iter().any(|one| one.stands);
    let heard = group.iter().map(|one| one.heard).max()?;
    let device = evidence::device(map.netns(first.netns)?, first.ifindex);
    Some(Candidate {
        code: Code::NeighbourConflict,
        key: key(map, ip, link)?,
        severity: if is_witnessed(map, ip, link, group) {
            Severity::Warning
        } else {
            Severity::Info
        },
        subject,
        holders: holders.collect(),
        evidence: proof.done(),
        since: group.iter().map(|one| one.since).min()?,
        observed: if stands { now } else { heard },
        impact: impact(first, names),
        remediation: remediation(ip, map.netns(first.netns)?.host.then_some(&*device)),
        caused_by: None,
        preexisting: false,
    })
}

/// Whether the IP is, on this link, the node's own or a pod's according to a runtime or a store. Any other IP is the
/// LAN's concern: another link may use the same IP.
fn is_witnessed(map: &NodeMap, ip: IpAddr, link: Link, group: &[Conflict]) -> bool {
    let parties = group.iter().flat_map(|conflict| &conflict.parties);
    let mut parties = parties.filter_map(|party| map.netns(party.home?.netns));
    let holders: Vec<&Netns> = map.with_ip(ip).filter_map(|id| map.netns(id)).collect();
    let is_on_link = |netns: &Netns| {
        let mut own = netns.addresses().filter(|(key, _)| key.local == ip);
        own.any(|(key, _)| map.segment(netns.id, key.ifindex) == link)
    };
    let host = map.host();
    // The node answers for an IP of its own on each of its links (`arp_ignore` = 0).
    let is_hosts = host == Some(link.0) && holders.iter().any(|netns| netns.host);
    is_hosts
        || holders.iter().any(|netns| is_on_link(netns) && map.has_witness_of(netns, ip))
        || parties.any(|netns| !netns.host && map.has_witness_of(netns, ip))
        || is_reserved_on(map, ip, link, &holders, is_on_link)
}

/// Whether a store reserves the IP for somebody on this link: the node has an address of the same prefix there, and the
/// owner is not known to have the IP elsewhere.
fn is_reserved_on(
    map: &NodeMap,
    ip: IpAddr,
    link: Link,
    holders: &[&Netns],
    is_on_link: impl Fn(&Netns) -> bool,
) -> bool {
    let Some(host) = map.host().and_then(|id| map.netns(id)) else { return false };
    let within = |local, len| Prefix::new(local, len).is_some_and(|prefix| prefix.contains(ip));
    let mut nodes = host.addresses().filter(|(key, known)| within(key.local, known.prefix_len));
    nodes.any(|(key, _)| map.segment(host.id, key.ifindex) == link)
        && map.reservations_of(ip).any(|entry| {
            let elsewhere =
                |netns: &&Netns| map.belongs(netns, entry) == Match::Same && !is_on_link(netns);
            map.store_counts(&entry.store) && !holders.iter().any(elsewhere)
        })
}

fn impact(conflict: &Conflict, names: Vec<Text>) -> Text {
    let ip = conflict.ip;
    match conflict.grounds {
        ConflictGrounds::Dad => text!(
            "{} cannot be used where duplicate address detection rejected it, until it is removed and added again.",
            ip
        ),
        _ => text!(
            "Traffic to {} goes to {} alternately, depending on whose answer a sender heard last: connections break \
             and requests reach the wrong one.",
            ip,
            Text::join(names, " and ")
        ),
    }
}

/// `device`: the node's own device that observed the conflict, if there is one.
fn remediation(ip: IpAddr, device: Option<&str>) -> Vec<Step> {
    let mut steps = vec![Step::look(
        text!("See both MACs, and who has them"),
        Command::new("ipwatch").owns(&["query", "neigh"]).ip(ip).owns(&["-o", "json"]),
    )];
    if let Some(device) = device.filter(|_| ip.is_ipv4()) {
        let arping = Command::new("arping").owns(&["-D", "-c", "3", "-I"]).value(device).ip(ip);
        steps.push(Step::look(text!("Ask the link itself"), arping));
    }
    steps.push(Step::advice(text!(
        "Take the IP from one of them. Delete the pod that came later, only while both still answer for the IP; its \
         controller, if it has one, creates another one."
    )));
    steps.push(Step::never(&text!(
        "flush neighbour entries; the conflict is back with the next answer"
    )));
    steps
}

/// Adds what one device observed.
fn tell(map: &NodeMap, conflict: &Conflict, proof: &mut Proof<'_>) {
    let Some(entry) = map.netns(conflict.netns) else { return };
    let ip = conflict.ip;
    let device = evidence::device_said(entry, conflict.ifindex);
    let on = format!("{device} of {}", evidence::netns_text(entry));
    for side in conflict.parties.iter().filter_map(|party| party.heard.as_ref()) {
        let mac = side.mac;
        let heard = [
            (By::Wire, side.replied, format!("{mac} answered for {ip} on {on}")),
            (By::Wire, side.requested, format!("{mac} asked as {ip} on {on}")),
            (By::Wire, side.announced, format!("{mac} announced {ip} on {on}")),
            (By::Neighbours, side.taken, format!("{on} took {mac} for {ip}")),
            (By::Probe, side.lost, format!("{on} rejected {mac}, which answered for {ip} too")),
            (
                By::Probe,
                side.dad,
                format!("{mac} answered when {on} probed for {ip} (duplicate address detection)"),
            ),
        ];
        for (source, at, text) in heard {
            if let Some(at) = at {
                proof.tell(source, at, text);
            }
        }
    }
    match conflict.grounds {
        ConflictGrounds::Dad => {
            let text = format!("{ip} on {on} is dadfailed: another host on the link has it");
            proof.tell(By::Netlink, conflict.heard, text);
        }
        ConflictGrounds::InTurns => {
            let text = format!("{on} heard one, the other, and the first one again");
            proof.tell(By::Neighbours, conflict.heard, text);
        }
        _ => {}
    }
}

fn mac_text(mac: Option<Mac>) -> Text {
    mac.map_or_else(|| text!("unknown"), |mac| text!("{}", mac))
}

/// The device and owner of a MAC.
fn whose(map: &NodeMap, party: &Party) -> String {
    let home = party.home.and_then(|home| Some((home, map.netns(home.netns)?)));
    let Some((home, entry)) = home else { return "not on this node".to_owned() };
    let (container, pod) = map.sandbox_of(entry.id);
    let nobody = if entry.host { text!("the node itself") } else { text!("a netns of its own") };
    let owner = evidence::owner(pod.as_ref(), container.as_ref(), nobody);
    let has = if home.holds { "which has the IP" } else { "which does not have the IP" };
    format!(
        "{} of {} ({owner}), {has}",
        evidence::device_said(entry, home.ifindex),
        evidence::netns_text(entry)
    )
}
