//! `cni-del-hits-successor`: DEL of an old sandbox of a pod that has a newer, living one, and the newer one's
//! address or reservation goes between the DEL's start and two seconds after its end. A plugin or a store
//! that names things after the pod does that.
//!
//! The DEL alone says nothing: kubelet repeats it as a matter of course.

use super::words::{self, Proof};
use crate::contract;
use crate::fact::{BootNs, CniCommand};
use crate::finding::{Candidate, Code, Severity, Subject};
use crate::map::{LateDel, LostWhat, NodeMap, Policy, Word};

/// A DEL of the newer one itself that is this near explains it.
const OWN_CALL: u64 = 10_000_000_000;

pub(super) fn detect(map: &NodeMap, now: BootNs, _policy: &Policy) -> Vec<Candidate> {
    map.late_dels().filter_map(|del| candidate(map, del, now)).collect()
}

fn candidate(map: &NodeMap, del: &LateDel, now: BootNs) -> Option<Candidate> {
    let successor = &*del.successor;
    // Whose own DEL runs, or who is dead by now, loses it rightly.
    let ends = map.is_called(CniCommand::Del, successor, now, OWN_CALL)
        || map.call_history(successor).is_some_and(|known| known.del.first.is_some())
        || !matches!(map.word_on(successor), Word::Lives | Word::NobodyToAsk);
    if ends {
        return None;
    }
    let mut lost = del.lost.iter().filter(|lost| is_missing(map, successor, &lost.what));
    let first = lost.next()?.clone();
    let netns = map.netns_of_sandbox(successor)?;
    let boot = map.boot()?;
    let (container, told) = map.sandbox_told(successor).unwrap_or_default();
    let name = format!("{}/{}", del.pod.namespace, del.pod.name);
    let mut proof = Proof::new(map);
    let (old, new) = (words::short(&del.old), words::short(successor));
    let plugin = del.plugin.rsplit('/').next().unwrap_or_default();
    proof.tell("probe", del.began, format!("{plugin} DEL for sandbox {old} of {name} (CNI_ARGS)"));
    if let Some(end) = del.ended {
        let status =
            end.status.map_or("by a signal".to_owned(), |status| format!("status {status}"));
        proof.tell("probe", end.at, format!("it ended, {status}"));
    }
    for lost in std::iter::once(&first).chain(lost) {
        let (source, text) = match &lost.what {
            LostWhat::Reservation { ip, store, key } => {
                (&**store, format!("{store} let go of {ip} of sandbox {new}: {key}"))
            }
            LostWhat::Address { ip, by, .. } => {
                ("netlink", format!("{ip} of sandbox {new} went: {by}"))
            }
        };
        proof.tell(source, lost.at, text);
    }
    if let Some(entry) = map.sandbox(successor) {
        proof.runtime(entry);
    }
    let ip = match first.what {
        LostWhat::Reservation { ip, .. } | LostWhat::Address { ip, .. } => ip,
    };
    Some(Candidate {
        code: Code::CniDelHitsSuccessor,
        key: format!("{}/{}/{successor}", boot.boot_id, del.old),
        severity: Severity::Critical,
        subject: Subject {
            ip: Some(ip),
            netns: Some(map.netns_view(netns)),
            container: container.or_else(|| {
                Some(contract::Container { id: Some(successor.to_owned()), ..Default::default() })
            }),
            pod: told.or_else(|| {
                Some(contract::Pod {
                    namespace: Some(del.pod.namespace.clone()),
                    name: Some(del.pod.name.clone()),
                    uid: del.pod.uid.clone(),
                    ..Default::default()
                })
            }),
            network: None,
        },
        holders: Vec::new(),
        evidence: proof.done(),
        since: first.at,
        observed: now,
        impact: format!(
            "The DEL of old sandbox {old} took what the new sandbox {new} of {name} needs: the pod is \
             unreachable, or its IP can be handed out again while it has it."
        ),
        remediation: vec![
            format!(
                "Give the pod a new sandbox: kubectl delete pod -n {} {}",
                super::cause::quoted(&del.pod.namespace),
                super::cause::quoted(&del.pod.name)
            ),
            format!("Let the old sandbox be removed for good, else it is repeated: crictl rmp {old}"),
            "If that fails with \"device or resource busy\": ipwatch explain mount-leak-blocks-removal".to_owned(),
            "Do not: restart kubelet, it repeats the DEL of every sandbox that is not removed".to_owned(),
        ],
        caused_by: None,
        preexisting: false,
    })
}

/// Whether it is still lost.
fn is_missing(map: &NodeMap, successor: &str, what: &LostWhat) -> bool {
    match what {
        LostWhat::Reservation { ip, store, key } => !map.reservations_of(*ip).any(|entry| {
            *entry.store == **store
                && (*entry.key == **key || entry.container_id.as_deref() == Some(successor))
        }),
        LostWhat::Address { ip, netns, .. } => !map.with_ip(*ip).any(|id| id == *netns),
    }
}
