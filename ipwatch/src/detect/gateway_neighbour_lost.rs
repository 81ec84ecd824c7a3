//! `gateway-neighbour-lost`: a pod's default next hop does not answer, or the permanent entry for it was removed or
//! names another MAC (the AWS VPC CNI sets one).
//!
//! Calico's 169.254.1.1 is answered by proxy ARP and has an ordinary entry that comes and goes: its absence means
//! nothing.

use std::net::IpAddr;

use super::evidence::{self, By, Proof};
use super::neighbour_failed::{YOUNG, is_pod, is_witnessed, judged, tell_silence};
use super::run::{Detector, Judged};
use crate::fact::BootNs;
use crate::finding::{Candidate, Code, Severity, Subject};
use crate::map::{Fixed, Kinds, Netns, NodeMap, Thresholds};
use crate::remedy::{Command, Step, guard, said, text, value};

pub(super) const DETECTOR: Detector =
    Detector::Whole { on: Kinds::ALL, beyond: Kinds::NONE, detect };

fn detect(map: &NodeMap, now: BootNs, _thresholds: &Thresholds) -> Judged {
    let silent = map.silent(now).filter_map(|((id, ifindex, ip), silence)| {
        let pod = pod(map, *id, *ifindex, *ip, silence.changed)?;
        let mut proof = Proof::new(map);
        tell_silence(&mut proof, &evidence::device(pod, *ifindex), *ip, silence);
        let (since, observed) = (silence.since, silence.changed);
        candidate(map, pod, (*ifindex, *ip), proof, (since, observed))
    });
    let unfixed = map.unfixed(now).filter_map(|((id, ifindex, ip), fixed)| {
        let lost = fixed.lost?;
        let pod = pod(map, *id, *ifindex, *ip, lost)?;
        let mut proof = Proof::new(map);
        proof.tell(By::Neighbours, lost, missing(map, pod, (*ifindex, *ip), fixed)?);
        candidate(map, pod, (*ifindex, *ip), proof, (lost, now))
    });
    judged(map, now, silent.chain(unfixed).collect())
}

/// The pod whose default route goes to this IP by this device.
fn pod(
    map: &NodeMap,
    id: crate::map::NetnsId,
    ifindex: u32,
    ip: IpAddr,
    at: BootNs,
) -> Option<&Netns> {
    let pod = map.netns(id).filter(|entry| is_pod(map, entry))?;
    let up = pod.link(ifindex).is_some_and(|link| link.up);
    let mut own = pod.addresses().filter(|(key, _)| key.ifindex == ifindex);
    let settled = own.any(|(_, known)| known.is_used() && at >= known.since.plus(YOUNG));
    (up && settled && pod.gateways().any(|hop| hop == (ip, ifindex))).then_some(pod)
}

/// What happened to a permanent entry; `None` if the present entry works.
fn missing(
    map: &NodeMap,
    pod: &Netns,
    (ifindex, ip): (u32, IpAddr),
    fixed: &Fixed,
) -> Option<String> {
    let device = evidence::device_said(pod, ifindex);
    let mac = fixed.mac;
    let Some(other) = fixed.other else {
        // It has been resolved since.
        let answers = pod.neighbours().any(|entry| {
            let own = (entry.neighbour.ifindex, entry.neighbour.ip) == (ifindex, ip);
            own && entry.neighbour.mac.is_some()
        });
        let text = format!("the permanent entry for {ip} on {device} is gone; it was {mac}");
        return (!answers).then_some(text);
    };
    // Setting it to the current MAC of the node's end is a repair.
    if map.other_end(pod.id, ifindex).is_some_and(|end| end.mac == Some(other)) {
        return None;
    }
    Some(format!("the permanent entry for {ip} on {device} names {other}; it was {mac}"))
}

fn candidate(
    map: &NodeMap,
    pod: &Netns,
    (ifindex, ip): (u32, IpAddr),
    mut proof: Proof<'_>,
    (since, observed): (BootNs, BootNs),
) -> Option<Candidate> {
    let boot = map.boot()?;
    let device = evidence::device(pod, ifindex);
    let of = evidence::netns_text(pod);
    let text = format!("the default route of {of} is via {ip} on {}", said(&device));
    proof.tell(By::Netlink, observed, text);
    if let Some(end) = map.other_end(pod.id, ifindex) {
        let mac = end.mac.map(|mac| format!(", {mac}")).unwrap_or_default();
        let state = if end.up { "up" } else { "down" };
        let text =
            format!("the node's end of {} is {} ({state}{mac})", said(&device), said(&end.name));
        proof.tell(By::Netlink, observed, text);
    }
    let subject: Subject = evidence::subject(map, pod);
    let whose = evidence::owner(subject.pod.as_ref(), subject.container.as_ref(), text!("it"));
    Some(Candidate {
        code: Code::GatewayNeighbourLost,
        key: format!("{}/{}/{ip}", boot.boot_id, pod.identity),
        severity: if is_witnessed(map, pod) { Severity::Warning } else { Severity::Info },
        holders: evidence::bounded(map.resident_views(pod.id, map.now())),
        evidence: proof.done(),
        since,
        observed,
        impact: text!(
            "{} reaches nothing beyond its own link: its default next hop {} does not answer.",
            whose,
            ip
        ),
        remediation: remediation(map, pod, ifindex, subject.ip),
        caused_by: None,
        preexisting: false,
        subject,
    })
}

fn remediation(map: &NodeMap, pod: &Netns, ifindex: u32, own: Option<IpAddr>) -> Vec<Step> {
    let mut steps = Vec::new();
    if let Some(task) = map.residents(pod, map.now()).next() {
        let enter = || {
            let parts = [task.pid.into(), task.tid.into()];
            Command::new("nsenter").word("--net=/proc/{}/task/{}/ns/net", &parts)
        };
        let neigh = guard::is_same_task(task).and(enter().owns(&["ip", "neigh"]));
        let both = neigh.and(enter().owns(&["ip", "route"]));
        steps.push(Step::look(text!("See the pod's side"), both));
    }
    match map.other_end(pod.id, ifindex) {
        Some(end) => {
            let link = Command::new("ip").owns(&["-d", "link", "show", "dev"]).value(&end.name);
            steps.push(Step::look(text!("See the node's end"), link));
            let proxy = Command::new("cat");
            let proxy = proxy.place("/proc/sys/net/ipv4/conf/{}/proxy_arp", &[value(&end.name)]);
            steps.push(Step::look(text!("With Calico this must print 1"), proxy));
        }
        None => steps.push(Step::look(
            text!("See the node's end"),
            Command::new("ip").owns(&["-d", "link"]),
        )),
    }
    if let Some(own) = own {
        let route = Command::new("ip").owns(&["route", "show"]).ip(own);
        steps.push(Step::look(text!("With Calico the node must have this route"), route));
    }
    steps.push(Step::advice(text!(
        "If the node's end of the pair or its route is gone, the CNI removed it. Delete the pod only while that \
         is still missing; its controller, if it has one, creates another one."
    )));
    steps
}
