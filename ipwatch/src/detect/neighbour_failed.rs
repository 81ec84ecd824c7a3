//! `neighbour-failed`: a pod's IP does not answer on the node's side of its link.
//!
//! Only a failure while the pod had the IP counts, and only on the device that leads to it. A missing entry means
//! nothing: there may have been no traffic, or the table was full.

use super::evidence::{self, By, Proof};
use super::run::{Again, Detector, Judged};
use crate::fact::BootNs;
use crate::finding::{Candidate, Code, Severity, Subject};
use crate::map::{Kinds, Netns, NetnsId, NodeMap, Thresholds, Unanswered};
use crate::remedy::{Command, Step, said, text, value};

use std::net::IpAddr;

/// A pod's link may come up after its address; a neighbour request takes three seconds.
pub(super) const YOUNG: u64 = 3_000_000_000;
/// With traffic, the kernel tries again after each failure.
const TRAFFIC: u32 = 2;

pub(super) const DETECTOR: Detector =
    Detector::Whole { on: Kinds::ALL, beyond: Kinds::NONE, detect };

fn detect(map: &NodeMap, now: BootNs, _thresholds: &Thresholds) -> Judged {
    let host = map.host().and_then(|id| map.netns(id));
    let Some(host) = host else { return (Vec::new(), Again::OnChange) };
    let silent = map.silent(now).filter(|((netns, ..), _)| *netns == host.id);
    let found = silent
        .filter_map(|((_, ifindex, ip), silence)| {
            let pod = map.with_ip(*ip).find_map(|id| pod(map, id, *ip, *ifindex, silence))?;
            candidate(map, (host, *ifindex), pod, *ip, silence)
        })
        .collect();
    judged(map, now, found)
}

/// Also judged again at the next silence, and in every step while something is found, because its holders change with
/// time.
pub(super) fn judged(map: &NodeMap, now: BootNs, found: Vec<Candidate>) -> Judged {
    let again = Again::at(map.next_silence(now)).sooner(Again::always_if(!found.is_empty()));
    (found, again)
}

/// The pod that should have answered on this device.
fn pod<'a>(
    map: &'a NodeMap,
    id: NetnsId,
    ip: IpAddr,
    ifindex: u32,
    silence: &Unanswered,
) -> Option<&'a Netns> {
    let pod = map.netns(id).filter(|entry| is_pod(map, entry))?;
    let mut own = pod.routable().filter(|(key, _)| key.local == ip);
    let (key, address) = own.next().filter(|(_, address)| address.is_used())?;
    let there = map.leads_to(ifindex, ip, pod.id, key.ifindex);
    (there && silence.changed >= address.since.plus(YOUNG)).then_some(pod)
}

/// Whether a netns is alive, not the host's, and of a known container or pod.
pub(super) fn is_pod(map: &NodeMap, entry: &Netns) -> bool {
    let known = || map.sandbox_of(entry.id) != (None, None);
    !entry.host && entry.dying.is_none() && known()
}

/// Whether a runtime, the CNI result cache or a cgroup made by root shows that it is a pod's or a container's. A user
/// may name cgroups as a runtime does.
pub(super) fn is_witnessed(map: &NodeMap, entry: &Netns) -> bool {
    map.has_witness(entry) || map.sandbox_of(entry.id).1.is_some_and(|pod| pod.name.is_some())
}

fn candidate(
    map: &NodeMap,
    (host, ifindex): (&Netns, u32),
    pod: &Netns,
    ip: IpAddr,
    silence: &Unanswered,
) -> Option<Candidate> {
    let boot = map.boot()?;
    let device = evidence::device(host, ifindex);
    let mut proof = Proof::new(map);
    tell_silence(&mut proof, &device, ip, silence);
    for text in map.routes_to(ip) {
        proof.tell(By::Netlink, silence.changed, text);
    }
    for (key, _) in pod.routable().filter(|(key, _)| key.local == ip) {
        let down = pod.link(key.ifindex).is_some_and(|link| !link.up);
        let state = if down { ", which is down" } else { "" };
        let name = evidence::device_said(pod, key.ifindex);
        let text = format!("{ip} is on {name} of {}{state}", evidence::netns_text(pod));
        proof.tell(By::Netlink, silence.changed, text);
    }
    let subject = Subject { ip: Some(ip), ..evidence::subject(map, pod) };
    let whose =
        evidence::owner(subject.pod.as_ref(), subject.container.as_ref(), text!("its netns"));
    let traffic = silence.failures >= TRAFFIC;
    Some(Candidate {
        code: Code::NeighbourFailed,
        key: format!("{}/{}/{ip}", boot.boot_id, pod.identity),
        severity: if traffic && is_witnessed(map, pod) {
            Severity::Warning
        } else {
            Severity::Info
        },
        holders: evidence::bounded(map.resident_views(pod.id, map.now())),
        evidence: proof.done(),
        since: silence.since,
        observed: silence.changed,
        impact: text!(
            "The node cannot reach {} of {}: nobody answers when {} asks for its MAC. Health checks fail, and so \
             does traffic from other nodes.",
            ip,
            whose,
            value(&device)
        ),
        remediation: vec![
            Step::look(text!("See the entry"), Command::new("ip").owns(&["neigh", "show"]).ip(ip)),
            Step::look(text!("See the route"), Command::new("ip").owns(&["route", "get"]).ip(ip)),
            Step::look(
                text!("See whether the link is up at both ends"),
                Command::new("ip").owns(&["-d", "link", "show", "dev"]).value(&device),
            ),
            Step::advice(text!(
                "Delete the pod only if the pair's end in the pod is still down or gone; its controller, if it has one, creates \
                 another one."
            )),
        ],
        caused_by: None,
        preexisting: false,
        subject,
    })
}

/// Adds how often and since when an entry has had no answer.
pub(super) fn tell_silence(proof: &mut Proof<'_>, device: &str, ip: IpAddr, silence: &Unanswered) {
    let device = said(device);
    if let Some(confirmed) = silence.confirmed {
        proof.tell(By::Neighbours, confirmed, format!("{ip} last answered on {device}"));
    }
    let text = match silence.failures {
        0 => format!("{device} asks for {ip} and has had no answer for 3 s (INCOMPLETE)"),
        n => format!(
            "{device} asked for {ip} and had no answer (FAILED), {}",
            evidence::count(n as usize, "time")
        ),
    };
    proof.tell(By::Neighbours, silence.changed, text);
}
