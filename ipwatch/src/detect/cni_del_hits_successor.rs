//! `cni-del-hits-successor`: DEL of an old sandbox of a pod that has a newer, living one, and the newer one's address,
//! reservation or endpoint is removed between the DEL's start and two seconds after its end. A plugin or a store that
//! names things after the pod does that.
//!
//! The DEL alone means nothing: kubelet repeats DELs routinely.

use std::net::IpAddr;

use super::evidence::{self, By, Proof};
use super::run::{Again, Detector, Judged};
use crate::contract;
use crate::fact::{BootNs, CniCommand};
use crate::finding::{Candidate, Code, Evidence, Finding, Severity, Subject};
use crate::map::{
    Kinds, LateDel, LostWhat, Match, NetnsId, NodeMap, ReservationEntry, SandboxVerdict, Thresholds,
};
use crate::remedy::{Command, Step, kubernetes, said, text, value};

/// A DEL of the newer sandbox itself within this time explains the loss.
const OWN_CALL: u64 = 10_000_000_000;
/// What a datastore released, if it is not an IP.
const ENDPOINT: &str = "the endpoint";

pub(super) const DETECTOR: Detector =
    Detector::Whole { on: Kinds::ALL, beyond: Kinds::NONE, detect };

fn detect(map: &NodeMap, now: BootNs, _thresholds: &Thresholds) -> Judged {
    let found = map.late_dels().filter_map(|del| candidate(map, del, now)).collect();
    (found, Again::always_if(map.late_dels().any(|del| !del.lost.is_empty())))
}

fn candidate(map: &NodeMap, del: &LateDel, now: BootNs) -> Option<Candidate> {
    let successor = &*del.successor;
    if is_deleted(map, successor, now)
        || !matches!(map.verdict_on(successor), SandboxVerdict::Lives | SandboxVerdict::NobodyToAsk)
    {
        return None;
    }
    let old = del.lost.iter().filter(|lost| lost.counts(now));
    let mut lost = old.filter(|lost| is_missing(map, successor, &lost.what));
    let first = lost.next()?.clone();
    let netns = map.netns_of_sandbox(successor)?;
    let boot = map.boot()?;
    let (container, told) = map.sandbox_told(successor).unwrap_or_default();
    let name = format!("{}/{}", del.pod.namespace, del.pod.name);
    let mut proof = Proof::new(map);
    let (old, new) = (evidence::short(&del.old), evidence::short(successor));
    let plugin = said(del.plugin.rsplit('/').next().unwrap_or_default());
    let text = format!("{plugin} DEL for sandbox {} of {} (CNI_ARGS)", said(old), said(&name));
    proof.tell(By::Probe, del.began, text);
    if let Some(end) = del.ended {
        let status =
            end.status.map_or("by a signal".to_owned(), |status| format!("status {status}"));
        proof.tell(By::Probe, end.at, format!("it ended, {status}"));
    }
    for lost in std::iter::once(&first).chain(lost) {
        let (source, text) = words_of(&lost.what, new);
        proof.tell(source, lost.at, text);
    }
    if let Some(entry) = map.sandbox(successor) {
        proof.runtime(entry);
    }
    let ip = match first.what {
        LostWhat::Reservation { ip, .. } | LostWhat::Address { ip, .. } => Some(ip),
        LostWhat::Endpoint { ip, .. } => ip,
    };
    let key = format!("{}/{}/{successor}", boot.boot_id, del.old);
    let is_found = evidence::is_found(Code::CniDelHitsSuccessor, &key);
    let remediation = remediation(map, del, told.as_ref(), is_found);
    Some(Candidate {
        code: Code::CniDelHitsSuccessor,
        key,
        severity: Severity::Critical,
        subject: Subject {
            ip,
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
            ..Subject::default()
        },
        holders: Vec::new(),
        evidence: proof.done(),
        since: first.at,
        observed: now,
        impact: text!(
            "The DEL of old sandbox {} removed what the new sandbox {} of pod {} needs: the pod is unreachable, or \
             its IP can be assigned again while the pod still has it.",
            value(old),
            value(new),
            value(&name)
        ),
        remediation,
        caused_by: None,
        preexisting: false,
    })
}

/// The old sandbox first: while it exists, its DEL is repeated and removes the next sandbox's network as well.
fn remediation(
    map: &NodeMap,
    del: &LateDel,
    told: Option<&contract::Pod>,
    is_found: Command,
) -> Vec<Step> {
    // Not the uid of the DEL, which is the old pod's.
    let uid = told.and_then(|pod| pod.uid.as_deref());
    let what = text!("Remove the old sandbox; otherwise its DEL is run again");
    let old = match evidence::runtime_of(map, &del.old) {
        Some(runtime) if evidence::crictl_asks(runtime) => {
            let remove = Command::new("crictl").own("rmp").value(&del.old);
            let what = what.then(&text!(" (a sandbox that is Ready is refused)"));
            Step::change(what, is_found.clone().and(remove))
        }
        runtime => evidence::by_its_client(what, runtime),
    };
    vec![
        old,
        Step::look(
            text!("If that fails with \"device or resource busy\""),
            Command::new("ipwatch").owns(&["explain", "mount-leak-blocks-removal"]),
        ),
        kubernetes::delete_pod(
            text!(
                "Then delete the pod, if it is still this one: its controller, if it has one, creates another one"
            ),
            is_found,
            [&del.pod.namespace, &del.pod.name],
            uid,
        ),
        Step::never(&text!(
            "restart kubelet; it runs DEL again for every sandbox that is not removed"
        )),
    ]
}

/// Whether a finding of an earlier run still holds: what was lost is recorded only in its evidence.
pub(super) fn holds(map: &NodeMap, finding: &Finding, now: BootNs) -> bool {
    let container = finding.subject.container.as_ref();
    let Some(successor) = container.and_then(|container| container.id.as_deref()) else {
        return false;
    };
    let netns = map.netns_of_sandbox(successor).map(|netns| netns.id);
    let lives = match map.verdict_on(successor) {
        SandboxVerdict::Lives | SandboxVerdict::Unknown(_) => true,
        SandboxVerdict::NobodyToAsk => netns.is_some(),
        SandboxVerdict::Dead(_) | SandboxVerdict::Gone(_) | SandboxVerdict::Denied(_) => false,
    };
    let mut evidence = finding.evidence.iter();
    lives
        && !is_deleted(map, successor, now)
        && evidence.any(|item| is_still_lost(map, item, successor, netns))
}

/// Whether the sandbox's own DEL is under way or has run, so that the loss is intended.
fn is_deleted(map: &NodeMap, sandbox: &str, now: BootNs) -> bool {
    map.is_called(CniCommand::Del, sandbox, now, OWN_CALL)
        || map.call_history(sandbox).is_some_and(|known| known.del.first.is_some())
}

/// The evidence of a loss, and its source. `is_still_lost` parses it.
fn words_of<'a>(what: &'a LostWhat, sandbox: &str) -> (By<'a>, String) {
    let sandbox = said(sandbox);
    match what {
        LostWhat::Reservation { ip, store, key } => {
            let (by, key) = (said(store), said(key));
            (By::Named(store), format!("{by} released {ip} of sandbox {sandbox}: {key}"))
        }
        LostWhat::Address { ip, by, .. } => {
            (By::Netlink, format!("{ip} of sandbox {sandbox} was removed: {by}"))
        }
        LostWhat::Endpoint { store, key, .. } => {
            let (by, key) = (said(store), said(key));
            (By::Named(store), format!("{by} released {ENDPOINT} of sandbox {sandbox}: {key}"))
        }
    }
}

/// Whether an item of evidence reports a loss (for an address: in `netns`) that still stands. A key appears in it in
/// quoted form.
fn is_still_lost(map: &NodeMap, item: &Evidence, successor: &str, netns: Option<NetnsId>) -> bool {
    let Some((what, rest)) = item.text.split_once(" of sandbox ") else { return false };
    let lost = match (what.strip_prefix(&format!("{} released ", said(&item.source))), netns) {
        (Some(ENDPOINT), _) => rest.split_once(": ").map(|(_, key)| {
            let (store, key) = (item.source.clone(), key.to_owned());
            LostWhat::Endpoint { ip: None, store, key }
        }),
        (Some(ip), _) => rest.split_once(": ").and_then(|(_, key)| {
            let (store, key) = (item.source.clone(), key.to_owned());
            Some(LostWhat::Reservation { ip: ip.parse().ok()?, store, key })
        }),
        (None, Some(netns)) => what.parse().ok().map(|ip| LostWhat::Address { ip, netns, by: "" }),
        // Without the netns it is unknown whether the address came back.
        (None, None) => return what.parse::<IpAddr>().is_ok(),
    };
    lost.is_some_and(|what| is_missing(map, successor, &what))
}

/// Whether it is still lost.
fn is_missing(map: &NodeMap, successor: &str, what: &LostWhat) -> bool {
    match what {
        LostWhat::Reservation { ip, store, key } => {
            // A reservation with the old key for another container is not the lost one.
            let own = map.netns_of_sandbox(successor);
            let is_others = |entry: &ReservationEntry| {
                own.is_some_and(|own| map.belongs(own, entry) == Match::Other)
            };
            !map.reservations_of(*ip).any(|entry| {
                *entry.store == **store
                    && (entry.container_id.as_deref() == Some(successor)
                        || (*entry.key == **key || said(&entry.key) == **key) && !is_others(entry))
            })
        }
        LostWhat::Address { ip, netns, .. } => !map.with_ip(*ip).any(|id| id == *netns),
        LostWhat::Endpoint { store, key, .. } => {
            let of_it = |id: &String| id == successor;
            let known = map.endpoint(store, key).or_else(|| map.endpoint_said(store, key));
            !known.is_some_and(|known| known.endpoint.container.as_ref().is_none_or(of_it))
        }
    }
}
