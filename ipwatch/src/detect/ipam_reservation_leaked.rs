//! `ipam-reservation-leaked`: an IP is reserved for a container that every runtime denies and whose netns is
//! gone. Each is one pod less that the network has room for, for ever: host-local clears nothing up.
//!
//! Which reservations these are is worked out in `map/ipam/leaks.rs`. Those of one network that leaked for the
//! same reason are one cause: the oldest stands for them.

use std::collections::BTreeMap;

use super::evidence::{self, By, Proof};
use super::run::{Again, Detector, Judged};
use crate::contract;
use crate::fact::{BootNs, store};
use crate::finding::{Candidate, Code, Severity, Subject};
use crate::map::{
    CallHistory, Kinds, Leak, LeakCause, NodeMap, ReservationEntry, Thresholds, Word,
};
use crate::remedy::{Command, Part, Step, host_local, kubernetes, said, text, value};

pub(super) const DETECTOR: Detector = Detector::Whole {
    on: Kinds::NONE,
    beyond: Kinds::IPAM.and(Kinds::RUNTIMES).and(Kinds::CALLS).and(Kinds::NETNS),
    detect,
};

fn detect(map: &NodeMap, now: BootNs, _thresholds: &Thresholds) -> Judged {
    let mut by_network: BTreeMap<(&str, &str), Vec<Leak<'_>>> = BTreeMap::new();
    for leak in map.leaks().filter(|leak| map.store_counts(&leak.entry.store)) {
        let network = (&*leak.entry.store, &*leak.entry.network);
        by_network.entry(network).or_default().push(leak);
    }
    let mut found = Vec::new();
    for leaks in by_network.values_mut() {
        leaks.sort_by_key(|leak| (leak.from, leak.entry.ip));
        let mut firsts: BTreeMap<LeakCause, String> = BTreeMap::new();
        let unused = leaks.first().is_some_and(|leak| map.is_nobodys_network(leak.entry));
        for leak in leaks.iter() {
            let Some(mut candidate) = candidate(map, leak, now) else { continue };
            if unused {
                nobodys(&mut candidate, leak.entry);
            }
            match firsts.get(&leak.cause) {
                Some(first) => candidate.caused_by = Some((candidate.code, first.clone())),
                None => {
                    firsts.insert(leak.cause, candidate.key.clone());
                }
            }
            found.push(candidate);
        }
    }
    (found, Again::always_if(map.leaks().any(|leak| is_as_of_now(map, leak.entry))))
}

/// No pod misses what was reserved in a network that is handed out no more.
fn nobodys(candidate: &mut Candidate, entry: &ReservationEntry) {
    candidate.severity = Severity::Info;
    candidate.impact = text!(
        "{} is reserved in {}, which no CNI configuration names any more: nobody hands out from it, and no pod misses \
         the IP.",
        entry.ip,
        value(&entry.network)
    );
    candidate.remediation.push(Step::advice(text!(
        "Remove its directory with all its reservations only while no CNI configuration of the node names the network and \
         no container has an IP of it: {}",
        value(entry.key.rsplit_once('/').map_or(&*entry.key, |(directory, _)| directory))
    )));
}

/// Whether what is said of it is no runtime's list, or may change with the tasks of its netns.
fn is_as_of_now(map: &NodeMap, entry: &ReservationEntry) -> bool {
    let Some(id) = entry.container_id.as_deref() else { return false };
    !matches!(map.word_on(id), Word::Gone(_) | Word::Denied(_))
        || map.netns_of_sandbox(id).is_some()
}

fn candidate(map: &NodeMap, leak: &Leak<'_>, now: BootNs) -> Option<Candidate> {
    let entry = leak.entry;
    let id = entry.container_id.as_deref()?;
    let observed = observed(map, id, leak.from, now)?;
    let history = map.call_history(id);
    let pod = entry.pod.as_deref().cloned().or_else(|| history?.pod.clone());
    let (container, told) = map.sandbox_told(id).unwrap_or_default();
    let subject = Subject {
        ip: Some(entry.ip),
        container: container.or_else(|| {
            Some(contract::Container { id: Some(id.to_owned()), ..Default::default() })
        }),
        pod: told.or_else(|| {
            pod.map(|pod| contract::Pod {
                namespace: Some(pod.namespace),
                name: Some(pod.name),
                uid: pod.uid,
                ..Default::default()
            })
        }),
        network: Some(entry.network.to_string()),
        netns: None,
    };
    let room = map.range_of(entry).map(|range| {
        let usage = range.usage();
        text!(" {} of {} are left there.", usage.free, usage.usable)
    });
    let others = map.leaked_beside(entry).checked_sub(1).filter(|others| *others > 0);
    let others = others.map(|others| {
        let others = evidence::count(others, "other reservation");
        text!(" {} of this network leaked too (ipwatch query ipam lists them).", others)
    });
    Some(Candidate {
        code: Code::IpamReservationLeaked,
        key: format!("{}/{}/{id}", entry.store, entry.key),
        severity: Severity::Warning,
        subject,
        holders: Vec::new(),
        evidence: evidence(map, leak, observed),
        since: entry.bereft.unwrap_or(leak.from).min(observed),
        observed,
        impact: text!(
            "{} is reserved in {} for a container that is gone: no pod can have it any more.{}{}",
            entry.ip,
            value(&entry.network),
            others.unwrap_or_default(),
            room.unwrap_or_default()
        ),
        remediation: remediation(map, leak, id),
        caused_by: None,
        preexisting: entry.preexisting,
    })
}

/// When it was last seen to be so: what runtimes say is as old as their newest list.
fn observed(map: &NodeMap, id: &str, from: BootNs, now: BootNs) -> Option<BootNs> {
    let said = match map.word_on(id) {
        Word::Gone(entry) => map.last_listed(&entry.sandbox.runtime)?,
        Word::Denied(_) => map.all_listed()?,
        _ => now,
    };
    (said >= from).then_some(said)
}

fn evidence(map: &NodeMap, leak: &Leak<'_>, observed: BootNs) -> Vec<crate::finding::Evidence> {
    let entry = leak.entry;
    let id = entry.container_id.as_deref().unwrap_or_default();
    let mut proof = Proof::new(map);
    let age = entry.since.and_then(evidence::date);
    let age = age.map(|date| format!(", written {date}")).unwrap_or_default();
    let whose = evidence::reserved_for(entry);
    let text = format!(
        "{} reserves {} for {whose}{age}: {}",
        said(&entry.store),
        entry.ip,
        said(&entry.key)
    );
    proof.tell(By::Named(&entry.store), entry.told, text);
    match map.word_on(id) {
        Word::Gone(sandbox) => proof.runtime(sandbox),
        Word::Denied(_) => {
            let runtimes: Vec<&str> = map.runtimes().collect();
            let text = format!(
                "no runtime has {}; asked: {}",
                said(evidence::short(id)),
                evidence::listed(runtimes)
            );
            proof.tell(By::Runtime, observed, text);
        }
        Word::NobodyToAsk => {
            proof.tell(By::Runtime, observed, "no runtime is there to ask");
        }
        _ => {}
    }
    if let Some(bereft) = entry.bereft {
        proof.tell(By::Netlink, bereft, "its netns has ended");
    } else {
        proof.tell(By::Netlink, observed, format!("no netns of this node has {}", entry.ip));
    }
    let history = map.call_history(id);
    match (leak.cause, history) {
        (LeakCause::BeforeBoot, _) => {
            let text = "it was written before the last boot, which ended every container";
            proof.tell(By::Named(&entry.store), entry.told, text);
        }
        (LeakCause::DelNeverCalled, _) => {
            let since = map.calls_seen_since().unwrap_or_default();
            proof.tell(By::Probe, since, "DEL was never run for it: every run is seen since then");
        }
        _ => {}
    }
    if let Some(history) = history {
        tell_calls(&mut proof, history);
    }
    proof.done()
}

fn tell_calls(proof: &mut Proof<'_>, history: &CallHistory) {
    if let Some(add) = history.add.last {
        let path = history
            .netns_path
            .as_deref()
            .map(|path| format!(" in {}", said(path)))
            .unwrap_or_default();
        proof.tell(By::Probe, add, format!("ADD was run for it{path}"));
    }
    proof.dels(history);
}

fn remediation(map: &NodeMap, leak: &Leak<'_>, id: &str) -> Vec<Step> {
    let entry = leak.entry;
    // Not `ipwatch check`: it says no to an IP that is reserved, as this one is.
    let mut steps = vec![
        Step::look(
            text!("Ask once more whether anybody has the IP: this must name nobody"),
            Command::new("ipwatch").owns(&["query", "ip"]).ip(entry.ip),
        ),
        evidence::ask_runtime(map, id),
    ];
    steps.extend(free(entry, id));
    steps.push(Step::never(&text!(
        "run one of the loops that ask docker ps for the last word of each file: it is eth0, and they delete the \
         reservations of living pods"
    )));
    steps
}

/// How each store lets go of one reservation, and of no other.
fn free(entry: &ReservationEntry, id: &str) -> Vec<Step> {
    let host_local =
        || host_local::free(&entry.key, id).filter(|_| &*entry.store == store::HOST_LOCAL);
    if let Some(free) = host_local() {
        let what =
            text!("Free it under the plugin's own lock, if the file still names that container");
        return vec![Step::change(what, free)];
    }
    if let Some(steps) = whereabouts(entry) {
        return steps;
    }
    if &*entry.store == store::CALICO {
        let show = Command::new("calicoctl").owns(&["ipam", "show"]);
        return vec![
            Step::look(
                text!("See whose Calico says it is"),
                show.word("--ip={}", &[entry.ip.into()]),
            ),
            Step::advice(text!(
                "calico-kube-controllers frees it by itself. By hand it may be released with calicoctl only while no pod \
                 of the cluster has the IP: nothing else guards one that is given it meanwhile."
            )),
        ];
    }
    vec![Step::advice(text!(
        "Let {} give it back: its own garbage collection, or CNI DEL.",
        value(&entry.store)
    ))]
}

/// How an allocation of a Whereabouts pool is taken back: from the pool, if it still is that container's. Its
/// overlapping reservation is not known on the node: `cluster scan` knows which object it is.
fn whereabouts(entry: &ReservationEntry) -> Option<Vec<Step>> {
    let key = entry.key.strip_prefix("ippools/").filter(|_| &*entry.store == store::WHEREABOUTS)?;
    let (namespace, rest) = key.split_once('/')?;
    let (pool, offset) = rest.rsplit_once('/')?;
    let digits = !offset.is_empty() && offset.bytes().all(|byte| byte.is_ascii_digit());
    let podref = entry.pod.as_ref().map(|pod| format!("{}/{}", pod.namespace, pod.name));
    let allocation = kubernetes::Allocation {
        namespace,
        pool,
        range: None,
        offset,
        id: entry.container_id.as_deref().filter(|_| digits)?,
        podref: podref.as_deref(),
    };
    let remove = kubernetes::remove_allocation(kubernetes::kubectl(&[]), &allocation);
    let offset = Part::Plain(offset.to_owned());
    Some(vec![
        Step::change(
            text!("Free offset {} of the pool, if it is still that container's", offset),
            remove,
        ),
        Step::look(
            text!(
                "Its overlapping reservation keeps {} from being handed out until it is deleted too. This names it, \
                 with the command that deletes it if it is still the same",
                entry.ip
            ),
            Command::new("ipwatch").owns(&["cluster", "scan"]),
        ),
    ])
}
