//! `ip-conflict-imminent`: a store has handed an IP to a container, and the netns of another one has it. This is the
//! earliest possible warning: the store writes before the address is configured.
//!
//! Not reported while the holder's own DEL runs, or just after it; nor between networks that cannot reach each other
//! (`map/ipam/mismatch.rs`).

use super::evidence::{self, By, Proof};
use crate::fact::BootNs;
use crate::finding::{Candidate, Code, Severity};
use crate::map::{Grounds, IpamMismatch, Match, Netns, NodeMap, ReservationEntry};
use crate::remedy::{Command, Step, kubernetes, said, text};

pub(super) fn detect(map: &NodeMap, disputes: &[IpamMismatch<'_>], now: BootNs) -> Vec<Candidate> {
    let handed = disputes.iter().filter_map(|dispute| match dispute.grounds {
        Grounds::Handed(entry) => Some((dispute.holder, entry)),
        _ => None,
    });
    handed.filter_map(|(holder, entry)| candidate(map, holder, entry, now)).collect()
}

/// The key of the finding about a dispute; `None` if it is another detector's.
pub(super) fn key_of(map: &NodeMap, dispute: &IpamMismatch<'_>) -> Option<String> {
    match dispute.grounds {
        Grounds::Handed(entry) => key(map, dispute.holder, entry),
        _ => None,
    }
}

fn key(map: &NodeMap, holder: &Netns, entry: &ReservationEntry) -> Option<String> {
    let id = entry.container_id.as_deref().unwrap_or_default();
    Some(format!("{}/{}/{}/{id}", map.boot()?.boot_id, holder.identity, entry.ip))
}

fn candidate(
    map: &NodeMap,
    holder: &Netns,
    entry: &ReservationEntry,
    now: BootNs,
) -> Option<Candidate> {
    let key = key(map, holder, entry)?;
    let ip = entry.ip;
    let new = evidence::reserved_for(entry);
    let mut proof = Proof::new(map);
    let store = &*entry.store;
    proof.tell(
        By::Named(store),
        entry.first_seen,
        format!("{} reserves {ip} for {new}: {}", said(store), said(&entry.key)),
    );
    for release in map.releases_of(ip).filter(|release| release.was.store == entry.store) {
        let old = evidence::reserved_for(&release.was);
        proof.tell(
            By::Named(store),
            release.at,
            format!("{} released it before, reserved for {old}", said(store)),
        );
    }
    let id = entry.container_id.as_deref().unwrap_or_default();
    for call in map.running_calls().filter(|call| call.call.container_id.as_deref() == Some(id)) {
        let plugin = said(call.call.plugin.rsplit('/').next().unwrap_or_default());
        let (command, id) = (call.call.command.as_str(), said(evidence::short(id)));
        let text = format!("{plugin} {command} is running for {id}");
        proof.tell(By::Probe, call.began, text);
    }
    proof.holder(holder, now);
    proof.calls_of(holder);
    let second = map
        .holders_of(ip)
        .find(|other| other.id != holder.id && map.belongs(other, entry) == Match::Same);
    if let Some(second) = second {
        let text = format!("it is up in {} as well, that of {new}", evidence::netns_text(second));
        proof.tell(By::Netlink, now, text);
    }
    let mut subject = evidence::subject(map, holder);
    subject.ip = Some(ip);
    subject.network = Some(entry.network.to_string());
    let whose =
        evidence::owner(subject.pod.as_ref(), subject.container.as_ref(), text!("another netns"));
    let so_far =
        if second.is_some() { "Both have it now" } else { "Once it is configured, both have it" };
    let is_found = evidence::is_found(Code::IpConflictImminent, &key);
    Some(Candidate {
        code: Code::IpConflictImminent,
        key,
        severity: Severity::Critical,
        holders: evidence::bounded(map.resident_views(holder.id, now)),
        evidence: proof.done(),
        since: entry.first_seen,
        observed: now,
        impact: text!(
            "{} was assigned to {} while {} still has it. {}: traffic to either reaches one of them at random, or \
             the new one fails with \"address already in use\".",
            ip,
            &new,
            whose,
            so_far
        ),
        remediation: remediation(map, entry, &is_found),
        caused_by: None,
        preexisting: entry.preexisting,
        subject,
    })
}

fn remediation(map: &NodeMap, entry: &ReservationEntry, is_found: &Command) -> Vec<Step> {
    let still = || is_found.clone();
    let container = entry.container_id.as_deref();
    let mut steps = vec![evidence::no_more(map, container, evidence::more_of_them(), still())];
    let away = text!("End the new pod, only if it is still this one");
    let told = entry.container_id.as_deref().and_then(|id| map.sandbox_told(id)?.1);
    if let Some(pod) = &entry.pod {
        let uid = pod.uid.clone().or_else(|| told?.uid);
        let names = [&*pod.namespace, &*pod.name];
        steps.push(kubernetes::delete_pod(away, still(), names, uid.as_deref()));
    } else if let Some(id) = &entry.container_id {
        let runtime = evidence::runtime_of(map, id);
        steps.push(match evidence::stop(runtime, id) {
            Some(stop) => Step::change(away, still().and(stop)),
            None => evidence::by_its_client(away, runtime),
        });
    }
    steps.push(Step::look(
        text!("End what held {} before; a finding of its own says how", entry.ip),
        Command::new("ipwatch").owns(&["query", "ip"]).ip(entry.ip).owns(&["-o", "tree"]),
    ));
    steps.push(Step::never(&text!(
        "delete the reservation; a third pod would then get the IP as well"
    )));
    steps
}
