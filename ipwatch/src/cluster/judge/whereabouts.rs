//! Whereabouts: allocations of what is gone, and pools and overlapping reservations that disagree.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use super::living::{Fate, Living};
use super::{Candidate, Certainty, DOUBTFUL, LEAKED};
use crate::cluster::prefix::number;
use crate::cluster::remedy::Word::Own;
use crate::cluster::remedy::{Kubectl, OVERLAPPING, POOLS, sandbox};
use crate::cluster::world::{Allocation, Bounds, Look, Overlapping, Pod, Pool};
use crate::contract::{ClusterRange, ClusterStep};
use crate::fact::RangePart;
use crate::finding::Severity;

const DISAGREE: &str = "ipam-records-disagree";
const SILENT: &str = "node-silent";

/// Overlapping reservations by namespace and name.
type ByName<'a> = HashMap<(&'a str, &'a str), &'a Overlapping>;

pub(super) fn candidates(
    look: &Look,
    living: &Living<'_>,
    kubectl: &Kubectl,
    all: &mut Vec<Candidate>,
) {
    let overlapping: ByName<'_> =
        look.overlapping.items.iter().map(|one| ((&*one.namespace, &*one.name), one)).collect();
    for pool in &look.pools.items {
        for allocation in &pool.allocations {
            all.extend(leaked(look, pool, allocation, living, &overlapping, kubectl));
        }
        all.extend(without_overlapping(look, pool, living, &overlapping, kubectl));
    }
    without_entry(look, living, kubectl, all);
    silent_nodes(look, living, all);
}

/// The object, for people.
fn object(pool: &Pool) -> String {
    format!("{POOLS} {}/{}", pool.namespace, pool.name)
}

/// What an overlapping reservation of this IP is called.
fn overlapping_name(prefix: &str, ip: IpAddr) -> String {
    let mut text = ip.to_string();
    // No name ends so (whereabouts 0.8, pkg/storage/kubernetes, normalizeIP).
    if text.ends_with(':') {
        text.push('0');
    }
    format!("{prefix}{}", text.replace(':', "-"))
}

/// What stands before the IP in the names of a pool's overlapping reservations. Pools that are a node's own have the
/// node in their names, and their reservations have not (whereabouts 0.9, pkg/storage/kubernetes, IPPoolName).
fn prefixes<'a>(pool: &'a Pool, look: &'a Look) -> impl Iterator<Item = &'a str> {
    let starts = std::iter::once(0).chain(pool.prefix.match_indices('-').map(|(at, _)| at + 1));
    let without = starts.filter_map(|at| {
        let node = pool.prefix.get(at..)?.strip_suffix('-')?;
        look.nodes.items.contains_key(node).then(|| pool.prefix.get(..at)).flatten()
    });
    std::iter::once(&*pool.prefix).chain(without)
}

/// The node that a pool is for, where it is one's own.
fn node_of<'a>(pool: &'a Pool, look: &'a Look) -> Option<&'a str> {
    let network = prefixes(pool, look).nth(1)?;
    pool.prefix.strip_prefix(network)?.strip_suffix('-')
}

/// Its overlapping reservation.
fn overlapping_of<'a>(
    pool: &Pool,
    ip: IpAddr,
    look: &Look,
    overlapping: &ByName<'a>,
) -> Option<&'a Overlapping> {
    prefixes(pool, look).find_map(|prefix| {
        overlapping.get(&(&*pool.namespace, &*overlapping_name(prefix, ip))).copied()
    })
}

/// Namespace and name.
fn split(podref: Option<&str>) -> Option<(&str, &str)> {
    podref.and_then(|podref| podref.split_once('/'))
}

fn fate(
    allocation: &Allocation,
    node: Option<&str>,
    overlapping: Option<&Overlapping>,
    living: &Living<'_>,
) -> Fate {
    // A claim outlives its pods, and is not looked at.
    if allocation.claimed || overlapping.is_some_and(|one| one.claimed) {
        return Fate::Unknown;
    }
    let fate = match split(allocation.podref.as_deref()) {
        None => living.of_ip(allocation.ip),
        Some((namespace, name)) => {
            let silent = |pod: &Pod| !pod.ended && pod.networks.is_none();
            match living.of_pod(namespace, name, allocation.ip, node) {
                // Only Multus tells of all interfaces.
                Fate::Other(_) if living.pod(namespace, name).is_some_and(silent) => Fate::Unknown,
                fate => fate,
            }
        }
    };
    let Fate::Gone(certainty, why) = fate else { return fate };
    // Both go together: the one that says whose it is may be this one.
    let named = overlapping.and_then(|one| split(one.podref.as_deref()));
    match named.and_then(|(namespace, name)| living.pod(namespace, name)) {
        Some(pod) if !pod.ended && !living.is_node_gone(&pod.node) => {
            let name = pod.full_name();
            Fate::Other(format!("{why}, but its overlapping reservation names {name}, which lives"))
        }
        _ => Fate::Gone(certainty, why),
    }
}

fn leaked(
    look: &Look,
    pool: &Pool,
    allocation: &Allocation,
    living: &Living<'_>,
    overlapping: &ByName<'_>,
    kubectl: &Kubectl,
) -> Option<Candidate> {
    let also = overlapping_of(pool, allocation.ip, look, overlapping);
    let node = node_of(pool, look);
    let (code, certainty, why) = match fate(allocation, node, also, living) {
        Fate::Gone(certainty, why) => (LEAKED, certainty, why),
        Fate::Other(why) => (DOUBTFUL, Certainty::Doubtful, why),
        Fate::Alive | Fate::Unknown => return None,
    };
    let mut found = of(pool, allocation, code, why);
    found.certainty = certainty;
    found.nodes.extend(node.map(str::to_owned));
    found.remediation.push(kubectl.get("look at the pool", POOLS, &pool.namespace, &pool.name));
    found.remediation.push(kubectl.users(allocation.ip));
    found.remediation.push(kubectl.machine(node));
    if allocation.podref.is_none() && living.being_made > 0 {
        found.evidence.push(format!(
            "{} pods have a node and no IP yet: if one of them is being given this IP now, its runtime knows the container",
            living.being_made
        ));
        found.remediation.push(sandbox(&living.made_on, &allocation.id));
    }
    if let Some(one) = also {
        found.evidence.push(format!("{OVERLAPPING} {}/{} keeps it too", one.namespace, one.name));
    }
    // Of what may be somebody's nothing is told but to look.
    if code == LEAKED {
        found.remediation.push(kubectl.free(pool, allocation, also));
    }
    Some(found)
}

/// What is said of an allocation.
fn of(pool: &Pool, allocation: &Allocation, code: &'static str, why: String) -> Candidate {
    let key = format!("{}/{} {} {}", pool.namespace, pool.name, allocation.offset, allocation.id);
    let mut found = Candidate::new(code, key, why);
    found.ip = Some(allocation.ip);
    found.object = Some(object(pool));
    found.range = found.object.clone();
    found.offset = Some(allocation.offset);
    found.id = Some(allocation.id.clone()).filter(|id| !id.is_empty());
    found.pods.extend(allocation.podref.clone());
    found
}

/// Allocations of living pods that another pool of an overlapping range may hand out: where others of the same pool
/// have their reservations.
fn without_overlapping(
    look: &Look,
    pool: &Pool,
    living: &Living<'_>,
    overlapping: &ByName<'_>,
    kubectl: &Kubectl,
) -> Vec<Candidate> {
    if !look.overlapping.is_whole() {
        return Vec::new();
    }
    let has = |one: &&Allocation| overlapping_of(pool, one.ip, look, overlapping).is_some();
    let (with, without): (Vec<_>, Vec<_>) = pool.allocations.iter().partition(has);
    if with.is_empty() {
        return Vec::new();
    }
    let alive = |one: &&&Allocation| fate(one, None, None, living) == Fate::Alive;
    (without.iter().filter(alive))
        .map(|allocation| {
            let why =
                "it has no overlapping reservation: a pool of an overlapping range may hand it out";
            let mut found = of(pool, allocation, DISAGREE, why.to_owned());
            found.severity = Severity::Info;
            found.certainty = Certainty::Likely;
            let what = "look at the pool";
            found.remediation.push(kubectl.get(what, POOLS, &pool.namespace, &pool.name));
            found
        })
        .collect()
}

/// Overlapping reservations that no pool has.
fn without_entry(look: &Look, living: &Living<'_>, kubectl: &Kubectl, all: &mut Vec<Candidate>) {
    // Half a list of pools, or of a pool, proves nothing.
    if !look.pools.is_whole() || !living.is_known() {
        return;
    }
    let mut named: HashSet<(&str, String)> = HashSet::new();
    // A pool of a node that is gone says not which network it is of.
    let mut of_nodes: HashSet<IpAddr> = HashSet::new();
    for pool in &look.pools.items {
        for allocation in &pool.allocations {
            for prefix in prefixes(pool, look) {
                named.insert((&pool.namespace, overlapping_name(prefix, allocation.ip)));
            }
            if !pool.prefix.is_empty() {
                of_nodes.insert(allocation.ip);
            }
        }
    }
    for one in &look.overlapping.items {
        let ip = ip_of(&one.name);
        let entered = named.contains(&(&*one.namespace, one.name.clone()))
            || ip.is_some_and(|ip| of_nodes.contains(&ip));
        if one.claimed || entered {
            continue;
        }
        let podref = split(one.podref.as_deref());
        let fate = match (podref, ip) {
            (Some((namespace, name)), Some(ip)) => living.of_pod(namespace, name, ip, None),
            (None, Some(ip)) => living.of_ip(ip),
            _ => Fate::Unknown,
        };
        let key = format!("{}/{}", one.namespace, one.name);
        let mut found = match fate {
            Fate::Gone(certainty, why) => {
                let why = format!("{why}; no pool has an entry for it");
                let mut found = Candidate::new(LEAKED, key, why);
                found.certainty = certainty;
                found
            }
            Fate::Alive => {
                let why = "no pool has an entry for it: the pool takes the IP for free";
                let mut found = Candidate::new(DISAGREE, key, why.to_owned());
                found.certainty = Certainty::Likely;
                found
            }
            _ => continue,
        };
        found.ip = ip;
        found.object = Some(format!("{OVERLAPPING} {}/{}", one.namespace, one.name));
        found.pods.extend(one.podref.clone());
        let what = "look at it";
        found.remediation.push(kubectl.get(what, OVERLAPPING, &one.namespace, &one.name));
        if found.code == LEAKED {
            let what = "look that no pool has an entry for it";
            let words = [Own("get"), Own(POOLS), Own("-A"), Own("-o"), Own("yaml")];
            found.remediation.push(kubectl.look(what, &words));
            found.remediation.push(kubectl.machine(None));
            let command = if ip.is_some_and(|ip| living.is_nobodys(podref, ip)) {
                kubectl.delete(one)
            } else {
                None
            };
            if command.is_some() {
                let what = "delete it, if it is still the same".to_owned();
                found.remediation.push(ClusterStep { what, command, changes: true });
            }
        }
        all.push(found);
    }
}

/// The IP that a name ends in. Of an IPv6 one after a network's name, the longest text that is one.
fn ip_of(name: &str) -> Option<IpAddr> {
    let starts = std::iter::once(0).chain(name.match_indices('-').map(|(at, _)| at + 1));
    starts.filter_map(|at| name.get(at..)).find_map(|text| {
        let written = text.parse().ok();
        written.or_else(|| text.replace('-', ":").parse().ok())
    })
}

/// Nodes that do not answer, and keep allocations that nobody frees.
fn silent_nodes(look: &Look, living: &Living<'_>, all: &mut Vec<Candidate>) {
    if !living.is_known() {
        return;
    }
    let mut kept: BTreeMap<&str, u64> = BTreeMap::new();
    for allocation in look.pools.items.iter().flat_map(|pool| &pool.allocations) {
        let pod = match split(allocation.podref.as_deref()) {
            Some((namespace, name)) => living.pod(namespace, name),
            None => living.at(allocation.ip).first().copied(),
        };
        if let Some(pod) = pod.filter(|pod| !pod.node.is_empty()) {
            *kept.entry(&pod.node).or_default() += 1;
        }
    }
    for (name, node) in &look.nodes.items {
        let Some(since) = &node.silent_since else { continue };
        let Some(count) = kept.get(name.as_str()) else { continue };
        let since = if since.is_empty() { String::new() } else { format!(" since {since}") };
        let why = format!(
            "node {name} has not answered{since}: {count} allocations of its pods stay until the pods are deleted"
        );
        let mut found = Candidate::new(SILENT, name.clone(), why);
        found.severity = Severity::Info;
        found.nodes.push(name.clone());
        all.push(found);
    }
}

/// What each pool can hand out.
pub(super) fn ranges(look: &Look, told: &[Candidate]) -> Vec<ClusterRange> {
    let compared = look.pods.is_whole();
    (look.pools.items.iter())
        .map(|pool| {
            let object = object(pool);
            let bounds = look.bounds.items.get(&pool.name).map(merged);
            let inside = |ip: IpAddr| {
                bounds.as_ref().is_none_or(|(parts, _)| parts.iter().any(|part| part.contains(ip)))
            };
            let of = |code: &str| {
                let here =
                    |one: &&Candidate| one.code == code && one.range.as_ref() == Some(&object);
                told.iter().filter(here).filter_map(|one| one.ip).collect::<Vec<_>>()
            };
            let leaked = of(LEAKED);
            let used = pool.allocations.iter().filter(|one| inside(one.ip)).count() as u64;
            let usable = bounds
                .as_ref()
                .map(|(parts, _)| parts.iter().map(RangePart::usable).fold(0, u64::saturating_add));
            ClusterRange {
                store: "whereabouts".to_owned(),
                range: match &bounds {
                    None => pool.range.clone(),
                    Some((parts, _)) => {
                        let text = |part: &RangePart| format!("{}-{}", part.first, part.last);
                        parts.iter().map(text).collect::<Vec<_>>().join(", ")
                    }
                },
                from: bounds.as_ref().map(|(_, from)| from.clone()).unwrap_or_default(),
                usable,
                used,
                leaked: leaked.len() as u64,
                doubtful: of(DOUBTFUL).len() as u64,
                free: usable.map(|usable| usable.saturating_sub(used)),
                recoverable: leaked.into_iter().filter(|ip| inside(*ip)).count() as u64,
                compared,
                object,
            }
        })
        .collect()
}

/// The parts of all definitions of a network, each IP once.
fn merged(bounds: &Bounds) -> (Vec<RangePart>, Vec<String>) {
    let mut parts = bounds.parts.clone();
    parts.sort_by_key(|part| (number(part.first), number(part.last)));
    let mut merged: Vec<RangePart> = Vec::new();
    for part in parts {
        let touches = |last: &RangePart| {
            last.first.is_ipv4() == part.first.is_ipv4()
                && number(part.first).1 <= number(last.last).1.saturating_add(1)
        };
        match merged.last_mut().filter(|last| touches(last)) {
            Some(last) => last.last = last.last.max(part.last),
            None => merged.push(part),
        }
    }
    (merged, bounds.from.clone())
}
