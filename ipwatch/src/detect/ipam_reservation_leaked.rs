//! `ipam-reservation-leaked`: an IP is reserved for a container that every runtime denies and whose netns no longer
//! exists. Each leak permanently takes the room of one pod from the network: host-local cleans up nothing.
//!
//! `map/ipam/leaks.rs` decides which reservations are leaks. Leaks of one network with the same cause are one finding,
//! whose id stays the same while the IPs in it change.

use std::collections::BTreeMap;

use super::evidence::{self, By, Proof};
use super::run::{Again, Detector, Judged};
use crate::contract;
use crate::fact::{BootNs, store};
use crate::finding::{Candidate, Code, Severity, Subject, finding_id};
use crate::map::{
    CallHistory, Kinds, Leak, LeakCause, NodeMap, RangeEntry, ReservationEntry, SandboxVerdict,
    Thresholds, Usage,
};
use crate::remedy::{Command, Part, Step, Text, host_local, kubernetes, said, text, value};

/// Maximum number of reservations in one finding with evidence of their own.
const PROVEN: usize = 24;

pub(super) const DETECTOR: Detector = Detector::Whole {
    on: Kinds::NONE,
    beyond: Kinds::IPAM.and(Kinds::RUNTIMES).and(Kinds::CALLS).and(Kinds::NETNS),
    detect,
};

fn detect(map: &NodeMap, now: BootNs, thresholds: &Thresholds) -> Judged {
    let mut groups: BTreeMap<(&str, &str, LeakCause), Vec<Member<'_>>> = BTreeMap::new();
    let mut again = Again::OnChange;
    for leak in map.leaks().filter(|leak| map.store_counts(&leak.entry.store)) {
        again = again.sooner(Again::always_if(is_as_of_now(map, leak.entry)));
        let group = (&*leak.entry.store, &*leak.entry.network, leak.cause);
        if let Some(member) = Member::of(map, leak, now) {
            groups.entry(group).or_default().push(member);
        }
    }
    let found = groups.into_iter().map(|((store, network, cause), mut members)| {
        let sure = |one: &Member<'_>| one.observed.since(one.leak.from) >= thresholds.second_look;
        // A leak with only one look waits for its second, as the first leak did.
        if members.iter().any(sure) {
            members.retain(sure);
        }
        members.sort_by_key(|one| (one.leak.from, one.leak.entry.ip));
        let key = format!("{store}/{network}/{}", cause.as_str());
        let mut candidate = candidate(map, key, &members);
        if members.iter().all(|one| map.is_nobodys_network(one.leak.entry)) {
            nobodys(&mut candidate, &members);
        }
        candidate
    });
    (found.collect(), again)
}

/// A leak that has been observed.
struct Member<'a> {
    leak: Leak<'a>,
    /// The container of the reservation.
    id: &'a str,
    /// When it was last observed.
    observed: BootNs,
}

impl<'a> Member<'a> {
    fn of(map: &'a NodeMap, leak: Leak<'a>, now: BootNs) -> Option<Self> {
        let id = leak.entry.container_id.as_deref()?;
        let observed = observed(map, id, leak.from, now)?;
        Some(Self { leak, id, observed })
    }

    /// What is known of the container: from the runtime that had it, else from the reservation or the runs of plugins.
    fn told(&self, map: &NodeMap) -> contract::Reserved {
        let entry = self.leak.entry;
        let pod = entry.pod.as_deref().cloned();
        let pod = pod.or_else(|| map.call_history(self.id)?.pod.clone());
        let (container, told) = map.sandbox_told(self.id).unwrap_or_default();
        let bare = || contract::Container { id: Some(self.id.to_owned()), ..Default::default() };
        let pod = told.or_else(|| {
            pod.map(|pod| contract::Pod {
                namespace: Some(pod.namespace),
                name: Some(pod.name),
                uid: pod.uid,
                ..Default::default()
            })
        });
        let container = Some(container.unwrap_or_else(bare));
        contract::Reserved { ip: entry.ip, key: entry.key.to_string(), container, pod }
    }
}

/// Lowers the severity of leaks in a network that nothing hands out any more.
fn nobodys(candidate: &mut Candidate, members: &[Member<'_>]) {
    let [first, rest @ ..] = members else { return };
    let entry = first.leak.entry;
    candidate.severity = Severity::Info;
    candidate.impact = text!(
        "{} {} reserved in {}, which no CNI configuration names any more: nobody assigns IPs from it, and no pod \
         needs {}.",
        if rest.is_empty() { text!("{}", entry.ip) } else { evidence::count(members.len(), "IP") },
        if rest.is_empty() { "is" } else { "are" },
        value(&entry.network),
        if rest.is_empty() { "the IP" } else { "them" }
    );
    candidate.remediation.push(Step::advice(text!(
        "Remove its directory with all its reservations only while no CNI configuration of the node names the \
         network and no container has an IP from it: {}",
        value(entry.key.rsplit_once('/').map_or(&*entry.key, |(directory, _)| directory))
    )));
}

/// Whether the finding depends on more than a runtime's listing, or may change with the tasks of the container's netns.
fn is_as_of_now(map: &NodeMap, entry: &ReservationEntry) -> bool {
    let Some(id) = entry.container_id.as_deref() else { return false };
    !matches!(map.verdict_on(id), SandboxVerdict::Gone(_) | SandboxVerdict::Denied(_))
        || map.netns_of_sandbox(id).is_some()
}

/// The finding about the leaks with one cause in one network. `members` is not empty.
fn candidate(map: &NodeMap, key: String, members: &[Member<'_>]) -> Candidate {
    let first = &members[0];
    let entry = first.leak.entry;
    let network = Some(entry.network.to_string());
    let omitted = map.leaked_beside(entry).saturating_sub(map.leaks_told(entry));
    let subject = match members {
        [one] => {
            let contract::Reserved { ip, container, pod, .. } = one.told(map);
            Subject { ip: Some(ip), container, pod, network, ..Subject::default() }
        }
        _ => Subject {
            network,
            reservations: members.iter().map(|one| one.told(map)).collect(),
            reservations_omitted: u32::try_from(omitted).unwrap_or(u32::MAX),
            ..Subject::default()
        },
    };
    let since = |one: &Member<'_>| one.leak.entry.bereft.unwrap_or(one.leak.from).min(one.observed);
    Candidate {
        code: Code::IpamReservationLeaked,
        severity: Severity::Warning,
        subject,
        holders: Vec::new(),
        evidence: evidence(map, members),
        since: members.iter().map(since).min().unwrap_or_default(),
        observed: members.iter().map(|one| one.observed).max().unwrap_or_default(),
        impact: impact(map, members, omitted),
        remediation: remediation(map, &key, members, omitted),
        key,
        caused_by: None,
        preexisting: members.iter().all(|one| one.leak.entry.preexisting),
    }
}

/// What the network lacks because of the leaks.
fn impact(map: &NodeMap, members: &[Member<'_>], omitted: usize) -> Text {
    let leak = &members[0].leak;
    let network = value(&leak.entry.network);
    let usage = map.range_of(leak.entry).map(RangeEntry::usage);
    let left = |usage: Usage| text!("{} of {} free", usage.free, usage.usable);
    if members.len() == 1 {
        let left = usage.map(|usage| text!(" {} there.", left(usage))).unwrap_or_default();
        return text!(
            "{} is reserved in {} for a container that is gone: no pod can have it any more.{}",
            leak.entry.ip,
            network,
            left
        );
    }
    let left = usage.map(|usage| text!("{}, ", left(usage))).unwrap_or_default();
    let more = (omitted > 0).then(|| text!(" {} more are not listed here.", omitted));
    text!(
        "{}: {}{} leaked{}. They are reserved for containers that are gone: no pod can have them any more.{}",
        network,
        left,
        members.len(),
        words(leak.cause),
        more.unwrap_or_default()
    )
}

/// The cause, as text.
fn words(cause: LeakCause) -> &'static str {
    match cause {
        LeakCause::BeforeBoot => " before the last boot",
        LeakCause::DelFailed => " because CNI DEL failed",
        LeakCause::DelNeverCalled => " because CNI DEL was never run",
        LeakCause::Unknown => "",
    }
}

/// When the leak was last observed: reports of runtimes are as old as their last listing.
fn observed(map: &NodeMap, id: &str, from: BootNs, now: BootNs) -> Option<BootNs> {
    let said = match map.verdict_on(id) {
        SandboxVerdict::Gone(entry) => map.last_listed(&entry.sandbox.runtime)?,
        SandboxVerdict::Denied(_) => map.all_listed()?,
        _ => now,
    };
    (said >= from).then_some(said)
}

/// For a single leak each proof by itself, for several leaks one line each.
fn evidence(map: &NodeMap, members: &[Member<'_>]) -> Vec<crate::finding::Evidence> {
    if let [one] = members {
        return proof(map, one);
    }
    let mut all = Proof::new(map);
    for one in members.iter().take(PROVEN) {
        let items: Vec<String> = proof(map, one).into_iter().map(|item| item.text).collect();
        let store = By::Named(&one.leak.entry.store);
        all.tell(store, one.leak.entry.told, items.join("; "));
    }
    let more = members.len().saturating_sub(PROVEN);
    if more > 0 {
        let text = format!("and {more} more, for which the same is true");
        all.tell(By::Named(&members[0].leak.entry.store), members[0].observed, text);
    }
    all.done()
}

fn proof(map: &NodeMap, member: &Member<'_>) -> Vec<crate::finding::Evidence> {
    let Member { leak, id, observed } = member;
    let entry = leak.entry;
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
    match map.verdict_on(id) {
        SandboxVerdict::Gone(sandbox) => proof.runtime(sandbox),
        SandboxVerdict::Denied(_) => {
            let runtimes: Vec<&str> = map.runtimes().collect();
            let text = format!(
                "no runtime has {}; asked: {}",
                said(evidence::short(id)),
                evidence::listed(runtimes)
            );
            proof.tell(By::Runtime, *observed, text);
            if let Some(started) = map.runtimes_started_after(id, Some(entry.first_seen)) {
                proof.tell(By::Procfs, started, evidence::NOT_BEING_MADE);
            }
        }
        SandboxVerdict::NobodyToAsk => {
            proof.tell(By::Runtime, *observed, "there is no runtime to ask");
        }
        _ => {}
    }
    if let Some(bereft) = entry.bereft {
        proof.tell(By::Netlink, bereft, "its netns has ended");
    } else {
        proof.tell(By::Netlink, *observed, format!("no netns of this node has {}", entry.ip));
    }
    match leak.cause {
        LeakCause::BeforeBoot => {
            let text = "it was written before the last boot, which ended every container";
            proof.tell(By::Named(&entry.store), entry.told, text);
        }
        LeakCause::DelNeverCalled => {
            let since = map.calls_seen_over(entry.first_seen, leak.from).unwrap_or_default();
            proof.tell(
                By::Probe,
                since,
                "DEL was never run for it: every run since then was observed",
            );
        }
        LeakCause::DelFailed | LeakCause::Unknown => {}
    }
    if let Some(history) = map.call_history(id) {
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

fn remediation(map: &NodeMap, key: &str, members: &[Member<'_>], omitted: usize) -> Vec<Step> {
    let network = &members[0].leak.entry.network;
    // Not `ipwatch check`: it says no to a reserved IP, as these are.
    let mut steps = match members {
        [one] => vec![
            Step::look(
                text!(
                    "Look once more whether a netns has the IP: this must say that none of this node has it"
                ),
                Command::new("ipwatch").owns(&["query", "ip"]).ip(one.leak.entry.ip),
            ),
            evidence::ask_runtime(map, one.id),
        ],
        _ => vec![Step::look(
            text!("See every reservation of the network, and which of them have no container"),
            Command::new("ipwatch").owns(&["query", "ipam"]).value(network),
        )],
    };
    if members.iter().any(|one| is_fixed(one.leak.entry)) {
        let id = finding_id(Code::IpamReservationLeaked, key);
        let fix = Command::new("ipwatch").own("fix").value(&id).own("--dry-run");
        steps.push(Step::look(
            text!(
                "Show what one command would free, each with its proof. Without --dry-run it shows the same, asks, checks \
                 each again and frees them"
            ),
            fix,
        ));
    }
    let mut after = None;
    for one in members {
        let Freeing { each, once } = free(one.leak.entry, one.id);
        steps.extend(each);
        after = after.or(once);
    }
    steps.extend(after);
    if omitted > 0 {
        steps.push(Step::advice(text!("{} more are listed as these are freed.", omitted)));
    }
    steps.push(Step::never(&text!(
        "run a script that looks up the last word of each file in docker ps; that word is eth0, so it deletes the \
         reservations of running pods"
    )));
    steps
}

/// Whether `ipwatch fix` frees such a reservation. Of Calico's it frees those that the API server has, whose keys name a
/// block there, and not those of an etcd of Calico's own.
fn is_fixed(entry: &ReservationEntry) -> bool {
    match &*entry.store {
        store::HOST_LOCAL | store::WHEREABOUTS => true,
        store::CALICO => entry.key.starts_with("ipamblocks/"),
        _ => false,
    }
}

/// How to free one reservation in a store, and no other.
#[derive(Default)]
struct Freeing {
    /// Steps for each reservation.
    each: Vec<Step>,
    /// A step after all of them.
    once: Option<Step>,
}

fn free(entry: &ReservationEntry, id: &str) -> Freeing {
    let host_local =
        || host_local::free(&entry.key, id).filter(|_| &*entry.store == store::HOST_LOCAL);
    if let Some(free) = host_local() {
        let what = text!(
            "Free {} under the plugin's own lock, if the file still names that container",
            entry.ip
        );
        return Freeing { each: vec![Step::change(what, free)], once: None };
    }
    if let Some(freeing) = whereabouts(entry) {
        return freeing;
    }
    if &*entry.store == store::CALICO {
        let show = Command::new("calicoctl").owns(&["ipam", "show"]);
        let look = Step::look(
            text!("See whose Calico says it is"),
            show.word("--ip={}", &[entry.ip.into()]),
        );
        let once = Step::advice(text!(
            "calico-kube-controllers frees it by itself. By hand it may be released with calicoctl only while no pod of \
             the cluster has the IP: nothing else guards one that is given it meanwhile."
        ));
        return Freeing { each: vec![look], once: Some(once) };
    }
    let once = Step::advice(text!(
        "Let {} give it back: its own garbage collection, or CNI DEL.",
        value(&entry.store)
    ));
    Freeing { each: Vec::new(), once: Some(once) }
}

/// Frees an allocation of a Whereabouts pool, if it is still that container's. The overlapping reservation is not known
/// on the node: `cluster scan` knows its object.
fn whereabouts(entry: &ReservationEntry) -> Option<Freeing> {
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
    let free = Step::change(
        text!("Free offset {} of the pool, if it is still that container's", offset),
        remove,
    );
    let overlapping = Step::look(
        text!(
            "An overlapping reservation keeps an IP from being handed out until it is deleted too. This names each, \
             with the command that deletes it if it is still the same"
        ),
        Command::new("ipwatch").owns(&["cluster", "scan"]),
    );
    Some(Freeing { each: vec![free], once: Some(overlapping) })
}
