//! `ip-conflict-imminent`: a store has handed an IP to a container, and the netns of another one has it.
//! The earliest warning there is: the store writes before the address is configured.
//!
//! Not while the holder's own DEL runs, nor just after it; not between networks that cannot reach each
//! other (`map/dispute.rs`).

use super::words::{self, Proof};
use crate::fact::BootNs;
use crate::finding::{Candidate, Code, Severity};
use crate::map::{Dispute, Grounds, Match, Netns, NodeMap, ReservationEntry};

pub(super) fn detect(map: &NodeMap, disputes: &[Dispute<'_>], now: BootNs) -> Vec<Candidate> {
    let handed = disputes.iter().filter_map(|dispute| match dispute.grounds {
        Grounds::Handed(entry) => Some((dispute.holder, entry)),
        _ => None,
    });
    handed.filter_map(|(holder, entry)| candidate(map, holder, entry, now)).collect()
}

fn candidate(
    map: &NodeMap,
    holder: &Netns,
    entry: &ReservationEntry,
    now: BootNs,
) -> Option<Candidate> {
    let boot = map.boot()?;
    let ip = entry.ip;
    let new = words::reserved_for(entry);
    let mut proof = Proof::new(map);
    let store = &*entry.store;
    proof.tell(store, entry.first_seen, format!("{store} reserves {ip} for {new}: {}", entry.key));
    for release in map.releases_of(ip).filter(|release| release.was.store == entry.store) {
        let old = words::reserved_for(&release.was);
        proof.tell(store, release.at, format!("{store} let go of it before, reserved for {old}"));
    }
    let id = entry.container_id.as_deref().unwrap_or_default();
    for call in map.running_calls().filter(|call| call.call.container_id.as_deref() == Some(id)) {
        let plugin = call.call.plugin.rsplit('/').next().unwrap_or_default();
        let text = format!(
            "{plugin} {} is under way for {}",
            call.call.command.as_str(),
            words::short(id)
        );
        proof.tell("probe", call.began, text);
    }
    proof.holder(holder, now);
    proof.calls_of(holder);
    let second = map
        .holders_of(ip)
        .find(|other| other.id != holder.id && map.belongs(other, entry) == Match::Same);
    if let Some(second) = second {
        let text = format!("it is up in {} as well, that of {new}", words::netns_text(second));
        proof.tell("netlink", now, text);
    }
    let mut subject = words::subject(map, holder);
    subject.ip = Some(ip);
    subject.network = Some(entry.network.to_string());
    let whose = words::owner(subject.pod.as_ref(), subject.container.as_ref(), "another netns");
    let so_far = if second.is_some() {
        "Both have it now"
    } else {
        "As soon as it is configured both have it"
    };
    Some(Candidate {
        code: Code::IpConflictImminent,
        key: format!("{}/{}/{ip}/{id}", boot.boot_id, holder.identity),
        severity: Severity::Critical,
        holders: words::bounded(map.resident_views(holder.id, now)),
        evidence: proof.done(),
        since: entry.first_seen,
        observed: now,
        impact: format!(
            "{ip} was given to {new} while {whose} has it. {so_far}: traffic to either reaches one of them \
             at random, or the new one fails with \"address already in use\"."
        ),
        remediation: remediation(&boot.node, entry, ip),
        caused_by: None,
        preexisting: entry.preexisting,
        subject,
    })
}

fn remediation(node: &str, entry: &ReservationEntry, ip: std::net::IpAddr) -> Vec<String> {
    let mut lines = vec![format!("Start no more pods here: kubectl cordon {node}")];
    if let Some(pod) = &entry.pod {
        let (namespace, name) =
            (super::cause::quoted(&pod.namespace), super::cause::quoted(&pod.name));
        lines.push(format!("Move the new pod away: kubectl delete pod -n {namespace} {name}"));
    } else if let Some(id) = &entry.container_id {
        lines.push(format!("Move the new pod away: crictl stopp {}", words::short(id)));
    }
    lines.push(format!("End what held {ip} before: ipwatch query ip {ip} -o tree names it"));
    lines.push(
        "Do not: delete the reservation, the pod after next would get the IP as well".to_owned(),
    );
    lines
}
