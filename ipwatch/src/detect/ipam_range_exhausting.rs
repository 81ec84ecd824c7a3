//! `ipam-range-exhausting`: a network has hardly any IP left, or will soon have none at the rate of the last minutes.
//! It separates leaks from living pods: how many pods can still start, and how many if the leaks were freed.
//!
//! A range may be full on purpose, so a full range is critical only if something indicates that it has too few IPs
//! (`map/ipam/demand.rs`).

use super::evidence::{self, By, Proof};
use super::run::{Again, Detector, Judged};
use crate::fact::{BootNs, store};
use crate::finding::{Candidate, Code, Severity, Subject};
use crate::map::{Kinds, Leaked, Level, NodeMap, RangeEntry, Thresholds, Usage};
use crate::remedy::{self, Command, Step, Text, said, text, value};

/// Maximum number of listed owners.
const LISTED: usize = 24;
/// Maximum number of named other pools.
const NAMED: usize = 8;

pub(super) const DETECTOR: Detector =
    Detector::Whole { on: Kinds::IPAM, beyond: Kinds::NONE, detect };

fn detect(map: &NodeMap, now: BootNs, thresholds: &Thresholds) -> Judged {
    let again = Again::always_if(map.ranges().any(|range| range.level() != Level::Enough));
    let ranges = map.ranges().filter(|range| map.store_counts(&range.range.store));
    let ranges = ranges.filter(|range| map.is_counted(range));
    (ranges.filter_map(|range| candidate(map, range, now, thresholds)).collect(), again)
}

fn candidate(
    map: &NodeMap,
    entry: &RangeEntry,
    now: BootNs,
    thresholds: &Thresholds,
) -> Option<Candidate> {
    let (usage, left) = (entry.usage(), entry.time_left(now));
    if entry.level() == Level::Enough {
        return None;
    }
    let leaked = map.leaked_in(entry, now, thresholds);
    let wanted = map.is_wanted(entry, leaked.len(), now);
    let severity = match entry.level() {
        Level::Out if wanted => Severity::Critical,
        _ if !wanted && entry.is_small() => Severity::Info,
        _ => Severity::Warning,
    };
    // The IPAM continues with another pool: a full pool beside one with room is the usual result of adding a pool.
    let others = other_pools(map, entry);
    let severity = if others.is_empty() { severity } else { Severity::Info };
    let range = &entry.range;
    let freed = usage.free.saturating_add(leaked.len() as u64).min(usage.usable);
    let Usage { usable, used, free } = usage;
    let text = entry.text();
    let mut proof = Proof::new(map);
    let store = &range.store;
    proof.tell(
        By::Named(store),
        now,
        format!(
            "{}: {used} of {usable} taken, {} of them leaked, {free} free; range {text}",
            said(&range.network),
            leaked.len()
        ),
    );
    proof.tell(By::Named(store), entry.told, format!("configured in {}", said(&range.path)));
    if let Some(minutes) = left.map(|left| left / 60_000_000_000) {
        proof.tell(
            By::Named(store),
            now,
            format!("at the rate of the last minutes, none is left in {minutes} min"),
        );
    }
    if !wanted {
        let text = "nothing indicates that it has too few: its usage has not grown for an hour, no ADD was refused, \
                    and no IP of it is leaked or held without a reservation";
        proof.tell(By::Named(store), now, text);
    }
    for other in others.iter().take(NAMED) {
        let Usage { used, usable, .. } = other.usage();
        proof.tell(
            By::Named(store),
            now,
            format!("{}: {used} of {usable} taken", said(&other.range.network)),
        );
    }
    tell_owners(map, entry, &leaked, &mut proof, now);
    let key = format!("{store}/{}/{text}", range.network);
    let is_found = evidence::is_found(Code::IpamRangeExhausting, &key);
    Some(Candidate {
        code: Code::IpamRangeExhausting,
        key,
        severity,
        subject: Subject { network: Some(range.network.clone()), ..Subject::default() },
        holders: Vec::new(),
        evidence: proof.done(),
        since: now.min(entry.low_since().unwrap_or(now)),
        observed: now,
        impact: impact(entry, free, freed, others.len()),
        remediation: remediation(map, entry, leaked.len(), others.len(), is_found),
        caused_by: None,
        preexisting: false,
    })
}

/// Other pools of the same IP version that have room. Pools are shared by everything that selects them; the selectors
/// are not known here.
fn other_pools<'a>(map: &'a NodeMap, entry: &RangeEntry) -> Vec<&'a RangeEntry> {
    if !entry.is_by_blocks() {
        return Vec::new();
    }
    let others = map.ranges().filter(|other| {
        other.range.store == entry.range.store
            && other.range.path != entry.range.path
            && is_v4(other) == is_v4(entry)
            && other.level() == Level::Enough
            && map.is_counted(other)
    });
    others.collect()
}

fn is_v4(entry: &RangeEntry) -> bool {
    entry.range.sets.iter().flatten().any(|part| part.first.is_ipv4())
}

/// What fails when no IP is left, and the error that the IPAM logs then.
fn refusal(entry: &RangeEntry) -> (&'static str, Text) {
    const ADD: &str = "ADD fails";
    const START: &str = "a container does not start";
    let version = if is_v4(entry) { 4 } else { 6 };
    match &*entry.range.store {
        _ if entry.is_by_blocks() => {
            (ADD, text!("Assigned 0 out of 1 requested IPv{} addresses", version))
        }
        store::WHEREABOUTS => (ADD, text!("Could not allocate IP in range")),
        store::LIBNETWORK => {
            (START, text!("no available IPv{} addresses on this network's address pools", version))
        }
        store::NETAVARK => (START, text!("failed to find free IP in range")),
        _ => (ADD, text!("no IP addresses available in range set")),
    }
}

/// What is started from the range: `pod`, or `container` where Docker or podman hands out the IPs.
fn whom(entry: &RangeEntry) -> &'static str {
    if has_no_pods(entry) { "container" } else { "pod" }
}

/// Whether the range is a network of Docker's or podman's, which the scheduler does not know.
fn has_no_pods(entry: &RangeEntry) -> bool {
    matches!(&*entry.range.store, store::LIBNETWORK | store::NETAVARK)
}

fn impact(entry: &RangeEntry, free: u64, freed: u64, others: usize) -> Text {
    let kind = if entry.is_by_blocks() { "pool" } else { "network" };
    let (fails, error) = refusal(entry);
    let then = match others {
        0 if free == 0 => text!("Now {}: {}.", fails, error),
        0 => text!("When none is left, {}: {}.", fails, error),
        n => text!(
            "When none is left, ADD uses {} that {} free IPs, except for pods and nodes that only this one serves: {}.",
            evidence::count(n, "other pool"),
            if n == 1 { "has" } else { "have" },
            error
        ),
    };
    let restored = match freed {
        _ if freed == free => text!(""),
        freed => text!(", {} after the leaked IPs are freed", freed),
    };
    text!(
        "{} can still start {} from {} {}{}. {}",
        evidence::count(usize::try_from(free).unwrap_or(usize::MAX), whom(entry)),
        if entry.is_of_the_cluster() { "in the cluster" } else { "on this node" },
        kind,
        value(&entry.range.network),
        restored,
        then
    )
}

/// Adds the owners of the IPs, the leaked ones first.
fn tell_owners(
    map: &NodeMap,
    range: &RangeEntry,
    leaked: &Leaked<'_>,
    proof: &mut Proof<'_>,
    now: BootNs,
) {
    let of_leaks = leaked.iter().flat_map(|ip| map.reservations_of(ip));
    let first = of_leaks.filter(|entry| range.is_of(entry)).take(LISTED);
    let then = map.reserved_in(range).filter(|entry| !leaked.contains(entry.ip));
    let mut listed = 0;
    for entry in first.chain(then).take(LISTED) {
        listed += 1;
        let mark = if leaked.contains(entry.ip) { "leaked, " } else { "" };
        let pod = entry.container_id.as_deref().and_then(|id| map.pod_of(id));
        let whose = match pod {
            Some(pod) => format!("pod {}", said(&format!("{}/{}", pod.namespace, pod.name))),
            None => evidence::reserved_for(entry).to_string(),
        };
        // The IPs of a range that shares them may be taken by other networks.
        let pool = match &*entry.network {
            own if range.range.shares && own != range.range.network => {
                format!(", by {}", said(own))
            }
            _ => String::new(),
        };
        proof.tell(By::Named(&entry.store), now, format!("{}: {mark}{whose}{pool}", entry.ip));
    }
    let used = usize::try_from(range.usage().used).unwrap_or(usize::MAX);
    if range.is_by_blocks() && used > listed {
        let text = format!("and {} more, on this node or on others", used - listed);
        proof.tell(By::Named(&range.range.store), now, text);
    } else if used > LISTED {
        proof.tell(By::Named(&range.range.store), now, format!("and {} more", used - LISTED));
    }
}

fn remediation(
    map: &NodeMap,
    entry: &RangeEntry,
    leaked: usize,
    others: usize,
    is_found: Command,
) -> Vec<Step> {
    let node = map.boot().map_or("", |boot| &*boot.node);
    let network = &*entry.range.network;
    let calicoctl = |words| Command::new("calicoctl").owns(words);
    let mut steps = vec![if others > 0 {
        Step::look(
            text!("See which pools are for which nodes and namespaces"),
            calicoctl(&["get", "ippool", "-o", "wide"]),
        )
    } else if entry.is_of_the_cluster() {
        let what = if entry.is_by_blocks() { "pool" } else { "network" };
        Step::advice(text!("Start no new pod in {} {}, on any node.", what, value(network)))
    } else if has_no_pods(entry) {
        Step::advice(text!("Start no new container in network {}.", value(network)))
    } else {
        remedy::cordon(text!("Start no new pod here"), node, is_found)
    }];
    if leaked == 0 && entry.is_of_the_cluster() {
        steps.push(Step::look(
            text!(
                "Leaks on other nodes are unknown here. This compares each allocation with the pod that it is for"
            ),
            Command::new("ipwatch").owns(&["cluster", "scan"]),
        ));
        if entry.is_by_blocks() {
            steps.push(Step::look(
                text!("See what Calico considers leaked"),
                calicoctl(&["ipam", "check", "--show-problem-ips"]),
            ));
            steps.push(Step::advice(text!(
                "Where nothing is leaked, add a pool (calicoctl apply), or run fewer pods."
            )));
        }
    } else if leaked > 0 {
        steps.push(Step::look(
            text!(
                "Free the {}: the finding about the leaks says how. This lists them",
                evidence::count(leaked, "leak")
            ),
            Command::new("ipwatch").owns(&["query", "ipam"]).value(network),
        ));
    } else if has_no_pods(entry) {
        steps.push(Step::advice(text!(
            "No leak is known: run fewer containers in it, or make the network anew with a larger subnet."
        )));
    } else {
        steps.push(Step::advice(text!(
            "No leak is known: run fewer pods here (kubelet's maxPods), or give the node a larger range."
        )));
    }
    if entry.range.store.starts_with(store::HOST_LOCAL) {
        steps.push(Step::never(&text!(
            "delete reservation files in a loop; most of them belong to running pods"
        )));
    }
    steps
}
