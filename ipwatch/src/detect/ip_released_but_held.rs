//! `ip-released-but-held`: a store no longer reserves an IP, or reserves it for another container, while a live netns
//! still has it. The next pod that is given the IP shares it. This is the early warning: it is raised when the store
//! releases the IP.
//!
//! Not while the holder's own ADD or DEL runs, nor just after it (`map/ipam/mismatch.rs`).

use super::evidence::{self, By, Proof};
use crate::fact::BootNs;
use crate::finding::{Candidate, Code, Severity};
use crate::map::{Grounds, IpamMismatch, NodeMap};
use crate::remedy::{Command, Step, said, text, value};

pub(super) fn detect(map: &NodeMap, disputes: &[IpamMismatch<'_>], now: BootNs) -> Vec<Candidate> {
    disputes.iter().filter_map(|dispute| candidate(map, dispute, now)).collect()
}

/// The key of the finding about a dispute; `None` if it is another detector's.
pub(super) fn key_of(map: &NodeMap, dispute: &IpamMismatch<'_>) -> Option<String> {
    if matches!(dispute.grounds, Grounds::Handed(_)) {
        return None;
    }
    Some(format!("{}/{}/{}", map.boot()?.boot_id, dispute.holder.identity, dispute.ip))
}

fn candidate(map: &NodeMap, dispute: &IpamMismatch<'_>, now: BootNs) -> Option<Candidate> {
    let (store, network) = match &dispute.grounds {
        Grounds::Released(release) => (&*release.was.store, &*release.was.network),
        Grounds::Unreserved { store, network } => (*store, *network),
        Grounds::Handed(_) => return None,
    };
    let (ip, holder) = (dispute.ip, dispute.holder);
    let key = key_of(map, dispute)?;
    let mut proof = Proof::new(map);
    match &dispute.grounds {
        Grounds::Released(release) => {
            let whose = evidence::reserved_for(&release.was);
            let key = said(&release.was.key);
            proof.tell(
                By::Named(store),
                release.at,
                format!("{} released {ip}, which was reserved for {whose}: {key}", said(store)),
            );
        }
        _ => {
            let text = format!(
                "{} has no reservation of {ip} in network {}, whose range contains it",
                said(store),
                said(network)
            );
            proof.tell(By::Named(store), dispute.since, text);
        }
    }
    for entry in map.reservations_of(ip) {
        let text = format!(
            "{} reserves it for {}: {}",
            said(&entry.store),
            evidence::reserved_for(entry),
            said(&entry.key)
        );
        proof.tell(By::Named(&entry.store), entry.first_seen, text);
    }
    proof.holder(holder, now);
    proof.calls_of(holder);
    let mut subject = evidence::subject(map, holder);
    subject.ip = Some(ip);
    subject.network = Some(network.to_owned());
    let whose =
        evidence::owner(subject.pod.as_ref(), subject.container.as_ref(), text!("another netns"));
    let is_found = evidence::is_found(Code::IpReleasedButHeld, &key);
    Some(Candidate {
        code: Code::IpReleasedButHeld,
        key,
        severity: Severity::Critical,
        holders: evidence::bounded(map.resident_views(holder.id, now)),
        evidence: proof.done(),
        since: dispute.since,
        observed: now,
        impact: text!(
            "{} is free in {} and still up in {}: the next pod here that is given it shares it, or fails with \
             \"address already in use\".",
            ip,
            value(store),
            whose
        ),
        remediation: remediation(
            evidence::no_more(
                map,
                subject.container.as_ref().and_then(|container| container.id.as_deref()),
                evidence::may_be_given(),
                is_found,
            ),
            store,
            ip,
        ),
        caused_by: None,
        // An address that was added after the first listing was seen to be added.
        preexisting: matches!(dispute.grounds, Grounds::Unreserved { .. })
            && map.store_listed(store) == Some(dispute.since),
        subject,
    })
}

fn remediation(no_more: Step, store: &str, ip: std::net::IpAddr) -> Vec<Step> {
    vec![
        no_more,
        Step::look(
            text!(
                "End what holds it. This names it; its own finding, if there is one, says how. Without one the pod is \
                 healthy and needs another IP: ipwatch explain ip-released-but-held has the command"
            ),
            Command::new("ipwatch").owns(&["query", "ip"]).ip(ip).owns(&["-o", "tree"]),
        ),
        Step::look(
            text!("Then check that it is free"),
            Command::new("ipwatch").own("check").ip(ip),
        ),
        Step::never(&text!(
            "restart {} or its agent; that frees nothing in the kernel",
            value(store)
        )),
    ]
}
