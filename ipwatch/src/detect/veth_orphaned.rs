//! `veth-orphaned`: the node's end of a pod's veth pair has its other end on the node too, not in a pod, which is what
//! an ADD that fails half-way leaves; or the node has a route by such a device to an IP that the netns behind it does
//! not have. Context for investigating stray devices.
//!
//! A pair is removed with the netns of either end, and so are its routes; no other kind of orphan can exist. Only names
//! that CNI plugins give count; pairs that people make, and Cilium's own, are ignored. If the peer's netns is not
//! known, or was not read completely, the state is unknown.

use super::evidence::{self, By, Proof};
use super::run::{Again, Detector, Judged};
use crate::contract::{self, HolderKind};
use crate::fact::{BootNs, Holder, Link};
use crate::finding::{Candidate, Code, Severity, Subject};
use crate::map::{Kinds, Netns, NodeMap, OrphanRoute, Thresholds, is_pods};
use crate::remedy::{Command, Step, guard, said, text, value};

pub(super) const DETECTOR: Detector = Detector::Whole {
    on: Kinds::NONE,
    beyond: Kinds::LINKS.and(Kinds::ADDRESSES).and(Kinds::NETNS).and(Kinds::ROUTES),
    detect,
};

fn detect(map: &NodeMap, now: BootNs, thresholds: &Thresholds) -> Judged {
    let host = map.host().and_then(|id| map.netns(id));
    let Some(host) = host else { return (Vec::new(), Again::OnChange) };
    let old = host.pairs().filter(|known| now.since(known.since) >= thresholds.leak_age);
    let pairs = old.filter_map(|known| {
        let peer = known.link.peer.filter(|_| known.link.peer_nsid.is_none())?;
        // The end that is created first is reported before it has a peer (`veth_newlink`, 6.18).
        let own = |back: u32| back == known.link.ifindex;
        let other = host.link(peer).filter(|other| other.peer.is_none_or(own))?;
        let used = host
            .addresses()
            .any(|(key, _)| key.ifindex == peer || key.ifindex == known.link.ifindex);
        // If both ends have such a name, the lower index represents both.
        let told = is_pods(other) && other.ifindex < known.link.ifindex;
        let plugged = other.master.is_some();
        (!used && !told && !plugged)
            .then(|| candidate(map, &known.link, other, known.since, now))?
    });
    let routes = map.orphan_routes(now, thresholds.leak_age);
    let found: Vec<Candidate> =
        pairs.chain(routes.filter_map(|route| of_route(map, route, now))).collect();
    let of_age = host.pairs().map(|known| known.since.plus(thresholds.leak_age));
    let of_age =
        of_age.filter(|at| *at > now).chain(map.next_orphan_route(now, thresholds.leak_age));
    let again = Again::at(of_age.min()).sooner(Again::always_if(!found.is_empty()));
    (found, again)
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
        said(&link.name),
        link.ifindex,
        said(&other.name),
        other.ifindex
    );
    proof.tell(By::Netlink, observed, text);
    tell_pod(map, &mut proof, link, observed);
    Some(Candidate {
        code: Code::VethOrphaned,
        key: format!("{}/{}/{}", boot.boot_id, link.name, link.ifindex),
        severity: Severity::Info,
        subject: Subject {
            netns: Some(map.netns_view(host)),
            interface: Some(device(link)),
            peer: Some(device(other)),
            pod: map.named_after(&link.name).map(|pod| named(&pod)),
            ..Subject::default()
        },
        holders: vec![contract::Holder::of_kind(HolderKind::Kernel)],
        evidence: proof.done(),
        since,
        observed,
        impact: text!(
            "Device {} leads to no pod. It holds no IP, but a later pod's device may need its name.",
            value(&link.name)
        ),
        remediation: of_pair(link, other),
        caused_by: None,
        preexisting: false,
    })
}

/// A device of the pair, which is on no bridge.
fn device(link: &Link) -> contract::Interface {
    contract::Interface {
        name: Some(link.name.clone()),
        index: link.ifindex,
        mac: link.mac,
        kind: link.kind.clone(),
        master: None,
    }
}

/// A pod by its name, `NAMESPACE/NAME`.
fn named(pod: &str) -> contract::Pod {
    let (namespace, name) = pod.split_once('/').unwrap_or(("", pod));
    contract::Pod {
        namespace: Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty()),
        name: Some(name.to_owned()),
        ..contract::Pod::default()
    }
}

/// The pod that a device is named after.
fn tell_pod(map: &NodeMap, proof: &mut Proof<'_>, link: &Link, observed: BootNs) {
    if let Some(pod) = map.named_after(&link.name) {
        proof.tell(
            By::Netlink,
            observed,
            format!("{} is the name of pod {}'s device", said(&link.name), said(&pod.to_string())),
        );
    }
}

fn of_route(map: &NodeMap, route: &OrphanRoute, observed: BootNs) -> Option<Candidate> {
    let boot = map.boot()?;
    let host = map.netns(map.host()?)?;
    let (link, behind) = (host.link(route.ifindex)?, map.netns(route.netns)?);
    let ip = route.to.to;
    let mut proof = Proof::new(map);
    let text =
        format!("the node's route to {ip}/{} is through {}", route.to.prefix_len, said(&link.name));
    proof.tell(By::Netlink, observed, text);
    let has = evidence::addresses(behind);
    let has = if has.is_empty() { "no address".to_owned() } else { has.join(", ") };
    let text = format!("{}, at its other end, has {has}", evidence::netns_text(behind));
    proof.tell(By::Netlink, observed, text);
    tell_pod(map, &mut proof, link, observed);
    Some(Candidate {
        code: Code::VethOrphaned,
        key: format!("{}/{}/{}/{ip}", boot.boot_id, link.name, link.ifindex),
        severity: Severity::Info,
        subject: Subject { ip: Some(ip), ..evidence::subject(map, behind) },
        holders: evidence::bounded(map.lasting_views(behind.id)),
        evidence: proof.done(),
        since: route.since,
        observed,
        impact: text!(
            "Traffic to {} goes to {}, where nobody has that IP. A later pod with this IP is unreachable until its \
             own route replaces this one.",
            ip,
            value(&link.name)
        ),
        remediation: of_orphan(route, link, behind),
        caused_by: None,
        preexisting: false,
    })
}

/// Removes the pair only while both of its ends are on the node and the other end has no master.
fn of_pair(link: &Link, other: &Link) -> Vec<Step> {
    let ip = |words: &[&'static str]| Command::new("ip").owns(words).value(&link.name);
    let peer = Command::new("grep").own("-qx").number(link.ifindex);
    let peer = peer.place("/sys/class/net/{}/iflink", &[value(&other.name)]);
    let free = Command::new("test").owns(&["!", "-e"]);
    let free = free.place("/sys/class/net/{}/master", &[value(&other.name)]);
    let both = guard::has_index(&link.name, link.ifindex)
        .and(guard::has_index(&other.name, other.ifindex))
        .and(peer)
        .and(free);
    vec![
        Step::look(text!("See it"), ip(&["-d", "link", "show", "dev"])),
        Step::change(
            text!(
                "Delete the pair only if nobody created it on purpose. This checks that both ends are still here, and \
                 that the other end is in no bridge"
            ),
            both.and(ip(&["link", "del", "dev"])),
        ),
    ]
}

/// Removes the route only while the device is the same and the netns behind it does not have the IP.
fn of_orphan(route: &OrphanRoute, link: &Link, behind: &Netns) -> Vec<Step> {
    let show = Command::new("ip").owns(&["route", "show", "dev"]).value(&link.name);
    let what = text!(
        "Delete the route only if the pod is not being set up. This checks that the netns behind it still lacks the IP"
    );
    let del = without(route, behind).map(|without| {
        let (ip, len) = (route.to.to, route.to.prefix_len);
        let del =
            Command::new("ip").owns(&["route", "del"]).word("{}/{}", &[ip.into(), len.into()]);
        let del = del.own("dev").value(&link.name);
        guard::has_index(&link.name, link.ifindex).and(without).and(del)
    });
    vec![
        Step::look(text!("See the routes of the device"), show),
        match del {
            Some(del) => Step::change(what, del),
            None => Step::advice(text!(
                "Delete that one route of {} only while no pod is being set up there and the netns behind the device does \
                 not have the IP (run ip addr in that netns).",
                value(&link.name)
            )),
        },
    ]
}

/// `$1` is the path of a netns without an address `$2`. A failed query does not succeed.
const WITHOUT: &str = "a=$(nsenter --net=\"$1\" ip -o addr show to \"$2\") && [ -z \"$a\" ]";

/// A command that succeeds if a netns does not have the IP, with the node's own `ip`, through a task that still exists
/// or a mount that is still this netns.
fn without(route: &OrphanRoute, behind: &Netns) -> Option<Command> {
    let asks = Command::new("sh").owns(&["-c", WITHOUT, "sh"]);
    if let Some(task) = behind.inhabitants().next() {
        let asks = asks.word("/proc/{}/task/{}/ns/net", &[task.pid.into(), task.tid.into()]);
        return Some(guard::is_same_task(task).and(asks.ip(route.to.to)));
    }
    let inode = behind.names.inode?;
    behind.holders().find_map(|holder| match holder {
        Holder::Mount { path, pid: 1, .. } => {
            let mounted = guard::is_mounted(1, inode, path)?;
            Some(mounted.and(asks.clone().path(path).ip(route.to.to)))
        }
        _ => None,
    })
}
