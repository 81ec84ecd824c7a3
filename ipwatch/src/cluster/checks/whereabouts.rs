//! Whereabouts: leaked allocations, and disagreement between pools and overlapping reservations.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use super::living::{Fate, Living};
use super::{Candidate, Certainty, DOUBTFUL, LEAKED};
use crate::cluster::remedy::{Kubectl, NAMED, OVERLAPPING, POOLS, sandbox};
use crate::cluster::snapshot::{Allocation, Bounds, Overlapping, Pod, Pool, Snapshot};
use crate::contract::ClusterRange;
use crate::fact::RangePart;
use crate::finding::Severity;
use crate::prefix::number;
use crate::remedy::{Step, said, text, value};

const DISAGREE: &str = "ipam-records-disagree";
const SILENT: &str = "node-silent";
/// Prefix of the name of a NetworkAttachmentDefinition.
const DEFINITIONS: &str = "network-attachment-definitions/";

/// Overlapping reservations by namespace and name.
type ByName<'a> = HashMap<(&'a str, &'a str), &'a Overlapping>;

pub(super) fn candidates(
    look: &Snapshot,
    living: &Living<'_>,
    kubectl: &Kubectl,
    all: &mut Vec<Candidate>,
) {
    let overlapping: ByName<'_> =
        look.overlapping.items.iter().map(|one| ((&*one.namespace, &*one.name), one)).collect();
    for pool in &look.pools.items {
        let holders = holders(pool, look, living);
        let case = Case { look, pool, living, overlapping: &overlapping, holders, kubectl };
        for allocation in &pool.allocations {
            all.extend(leaked(&case, allocation));
        }
        all.extend(without_overlapping(look, pool, living, &overlapping, kubectl));
    }
    without_entry(look, living, &overlapping, kubectl, all);
    silent_nodes(look, living, all);
}

/// The name of a pool in messages.
fn object(pool: &Pool) -> String {
    format!("{POOLS} {}/{}", pool.namespace, pool.name)
}

/// The name of the overlapping reservation of this IP.
fn overlapping_name(prefix: &str, ip: IpAddr) -> String {
    let mut text = ip.to_string();
    // A name must not end with a hyphen (whereabouts 0.8, pkg/storage/kubernetes, normalizeIP).
    if text.ends_with(':') {
        text.push('0');
    }
    format!("{prefix}{}", text.replace(':', "-"))
}

/// The prefixes that the names of a pool's overlapping reservations may have before the IP. A pool of a single node
/// has the node in its name, but its reservations do not (whereabouts 0.9, pkg/storage/kubernetes, IPPoolName).
fn prefixes<'a>(pool: &'a Pool, look: &'a Snapshot) -> impl Iterator<Item = &'a str> {
    let starts = std::iter::once(0).chain(pool.prefix.match_indices('-').map(|(at, _)| at + 1));
    let without = starts.filter_map(|at| {
        let node = pool.prefix.get(at..)?.strip_suffix('-')?;
        look.nodes.items.contains_key(node).then(|| pool.prefix.get(..at)).flatten()
    });
    std::iter::once(&*pool.prefix).chain(without)
}

/// The node of a pool that belongs to a single node.
fn node_of<'a>(pool: &'a Pool, look: &'a Snapshot) -> Option<&'a str> {
    let network = prefixes(pool, look).nth(1)?;
    pool.prefix.strip_prefix(network)?.strip_suffix('-')
}

/// The overlapping reservation of an IP of this pool.
fn overlapping_of<'a>(
    pool: &Pool,
    ip: IpAddr,
    look: &Snapshot,
    overlapping: &ByName<'a>,
) -> Option<&'a Overlapping> {
    prefixes(pool, look).find_map(|prefix| {
        overlapping.get(&(&*pool.namespace, &*overlapping_name(prefix, ip))).copied()
    })
}

/// Splits a podref into namespace and name.
fn split(podref: Option<&str>) -> Option<(&str, &str)> {
    podref.and_then(|podref| podref.split_once('/'))
}

fn fate(
    allocation: &Allocation,
    node: Option<&str>,
    overlapping: Option<&Overlapping>,
    living: &Living<'_>,
) -> Fate {
    // A claim outlives its pods, and is not judged.
    if allocation.claimed || overlapping.is_some_and(|one| one.claimed) {
        return Fate::Unknown;
    }
    let fate = match split(allocation.podref.as_deref()) {
        None => living.of_ip(allocation.ip),
        Some((namespace, name)) => {
            let silent = |pod: &Pod| !pod.ended && pod.networks.is_none();
            match living.of_pod(namespace, name, allocation.ip, node) {
                // Only Multus reports all interfaces.
                Fate::Other(_) if living.pod(namespace, name).is_some_and(silent) => Fate::Unknown,
                fate => fate,
            }
        }
    };
    let Fate::Gone(certainty, why) = fate else { return fate };
    // The allocation and its overlapping reservation are freed together, so the reservation may show the owner.
    let named = overlapping.and_then(|one| split(one.podref.as_deref()));
    match named.and_then(|(namespace, name)| living.pod(namespace, name)) {
        Some(pod) if !pod.ended && !living.is_node_gone(&pod.node) => {
            let name = said(&pod.full_name());
            Fate::Other(format!("{why}, but its overlapping reservation names {name}, which lives"))
        }
        _ => Fate::Gone(certainty, why),
    }
}

/// Pods whose IPs are not all known, and that may hold an allocation of a pool which names no pod.
#[derive(Default)]
struct Holders<'a> {
    count: usize,
    nodes: BTreeSet<&'a str>,
}

fn holders<'a>(pool: &Pool, look: &Snapshot, living: &Living<'a>) -> Holders<'a> {
    let mut holders = Holders::default();
    // Only allocations of old versions name no pod.
    if pool.allocations.iter().all(|one| split(one.podref.as_deref()).is_some()) {
        return holders;
    }
    let networks = look.bounds.items.get(&pool.name).filter(|_| look.bounds.is_whole());
    let is_of_pool = |wanted: &String| {
        networks.is_none_or(|bounds| {
            let name = |from: &String| from.strip_prefix(DEFINITIONS) == Some(wanted.as_str());
            bounds.from.iter().any(name)
        })
    };
    let may = |pod: &&Pod| {
        let wanted = pod.wanted.as_ref();
        // A pod's annotations do not show where its own IP comes from.
        pod.is_being_made() || wanted.is_none_or(|wanted| wanted.iter().any(is_of_pool))
    };
    for pod in living.being_made.iter().copied().filter(may) {
        holders.count += 1;
        holders.nodes.insert(&pod.node);
    }
    holders
}

/// The context for all allocations of a pool.
struct Case<'a> {
    look: &'a Snapshot,
    pool: &'a Pool,
    living: &'a Living<'a>,
    overlapping: &'a ByName<'a>,
    /// Pods that may hold an allocation which names no pod.
    holders: Holders<'a>,
    kubectl: &'a Kubectl,
}

fn leaked(case: &Case<'_>, allocation: &Allocation) -> Option<Candidate> {
    let Case { look, pool, living, kubectl, .. } = case;
    let also = overlapping_of(pool, allocation.ip, look, case.overlapping);
    let node = node_of(pool, look);
    let (code, certainty, why) = match fate(allocation, node, also, living) {
        Fate::Gone(certainty, why) => (LEAKED, certainty, why),
        Fate::Other(why) => (DOUBTFUL, Certainty::Doubtful, why),
        Fate::Alive | Fate::Unknown => return None,
    };
    let mut found = of(pool, allocation, code, why);
    found.certainty = certainty;
    let names = names(allocation, also);
    // If it names a living pod, the allocation is of an earlier pod, whose node is unknown.
    let owner = owner(names, allocation.ip, living).filter(|_| code == LEAKED);
    let node = node.or(owner.map(|pod| &*pod.node).filter(|node| !node.is_empty()));
    found.nodes.extend(node.map(str::to_owned));
    let holders = Some(&case.holders).filter(|all| names[0].is_none() && all.count > 0);
    if let Some(holders) = holders {
        found.evidence.push(format!(
            "{} pods have a node and no IP yet, or on a network one that nobody says: if one of them has this IP, its \
             runtime knows the container",
            holders.count
        ));
    }
    found.remediation.push(kubectl.get("look at the pool", POOLS, &pool.namespace, &pool.name));
    found.remediation.push(kubectl.users(allocation.ip));
    found.remediation.push(kubectl.machine(node));
    if let Some(one) = also {
        let name = said(&format!("{}/{}", one.namespace, one.name));
        let name = format!("{OVERLAPPING} {name}");
        found.evidence.push(match one.podref.as_deref().filter(|_| !goes_with(one, allocation)) {
            Some(podref) => format!("{name} names {}", said(podref)),
            None => format!("{name} keeps it too"),
        });
    }
    // For an allocation that may be in use, only steps that look are given.
    if code == LEAKED {
        free(case, allocation, also, holders, &mut found.remediation);
    }
    Some(found)
}

/// Namespace and name of the pod, as given by an allocation and by its overlapping reservation.
type Names<'a> = [Option<(&'a str, &'a str)>; 2];

/// The pod names of an allocation and of its overlapping reservation.
fn names<'a>(allocation: &'a Allocation, also: Option<&'a Overlapping>) -> Names<'a> {
    let also = also.and_then(|one| one.podref.as_deref());
    [split(allocation.podref.as_deref()), split(also)]
}

/// The pod that had the allocation, if it still exists.
fn owner<'a>(names: Names<'_>, ip: IpAddr, living: &Living<'a>) -> Option<&'a Pod> {
    let pod = |(namespace, name)| living.pod(namespace, name);
    match names {
        [Some(named), _] => pod(named),
        [None, also] => living.last_at(ip).or_else(|| also.and_then(pod)),
    }
}

/// Whether an overlapping reservation belongs to this allocation and to no other pod: another pool may have assigned
/// the IP since.
fn goes_with(also: &Overlapping, allocation: &Allocation) -> bool {
    let same = || allocation.podref.is_none() || also.podref == allocation.podref;
    !also.claimed && (also.podref.is_none() || same())
}

/// Adds the steps that free a leaked allocation.
fn free(
    case: &Case<'_>,
    allocation: &Allocation,
    also: Option<&Overlapping>,
    holders: Option<&Holders<'_>>,
    steps: &mut Vec<Step>,
) {
    let names = names(allocation, also);
    if let Some(pod) = case.living.may_run(&names, allocation.ip) {
        let name = pod.full_name();
        steps.push(Step::advice(text!(
            "free nothing yet: {} is there still, and on node {} it may run; scan again when the pod is gone or the \
             node answers",
            value(&name),
            value(&pod.node)
        )));
        return;
    }
    let also = also.filter(|one| goes_with(one, allocation));
    let first = if holders.is_some() { "only if none of them knows it: " } else { "" };
    let freeing = case.kubectl.free(first, case.pool, allocation, also);
    if let Some(Holders { nodes, .. }) = holders {
        if nodes.len() > NAMED {
            steps.push(case.kubectl.pods("look where pods are that have no IP yet"));
        }
        let asking = sandbox(nodes, &allocation.id);
        if allocation.id.is_empty() || asking.command.is_none() {
            steps.push(Step::advice(text!(
                "free nothing yet: a pod that is being made may have it, and its id is none that a runtime can be \
                 asked for; scan again when no pod waits for an IP"
            )));
            return;
        }
        steps.push(asking);
    }
    steps.push(freeing);
}

/// A finding about an allocation.
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

/// Allocations of living pods without an overlapping reservation, so that another pool of an overlapping range may
/// assign the IP; only if other allocations of the same pool have reservations.
fn without_overlapping(
    look: &Snapshot,
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

/// The allocations in all pools, by the name of their overlapping reservation.
struct Entries<'a> {
    /// By namespace and name.
    named: HashSet<(&'a str, String)>,
    /// By namespace and IP, for pools that may belong to a deleted node: their network is unknown.
    of_nodes: HashMap<(&'a str, IpAddr), Vec<&'a str>>,
}

impl<'a> Entries<'a> {
    fn new(look: &'a Snapshot, overlapping: &ByName<'_>) -> Self {
        let mut entries = Self { named: HashSet::new(), of_nodes: HashMap::new() };
        for pool in &look.pools.items {
            let may_be_a_nodes = may_be_a_nodes(pool, look, overlapping);
            for allocation in &pool.allocations {
                for prefix in prefixes(pool, look) {
                    let name = overlapping_name(prefix, allocation.ip);
                    entries.named.insert((&pool.namespace, name));
                }
                if may_be_a_nodes {
                    let key = (&*pool.namespace, allocation.ip);
                    entries.of_nodes.entry(key).or_default().push(&pool.prefix);
                }
            }
        }
        entries
    }

    fn has(&self, one: &Overlapping) -> bool {
        let namespace = &*one.namespace;
        self.named.contains(&(namespace, one.name.clone()))
            || ip_of(&one.name).is_some_and(|(network, ip)| {
                let mut pools = self.of_nodes.get(&(namespace, ip)).into_iter().flatten();
                pools.any(|prefix| prefix.starts_with(network))
            })
    }
}

/// Whether the last part of a pool's name may be a deleted node instead of a network.
fn may_be_a_nodes(pool: &Pool, look: &Snapshot, overlapping: &ByName<'_>) -> bool {
    let is_networks = || {
        let own = |one: &Allocation| {
            let name = overlapping_name(&pool.prefix, one.ip);
            overlapping.contains_key(&(&*pool.namespace, &*name))
        };
        look.bounds.items.contains_key(&pool.name) || pool.allocations.iter().any(own)
    };
    !pool.prefix.is_empty() && node_of(pool, look).is_none() && !is_networks()
}

/// Overlapping reservations without an allocation in a pool.
fn without_entry(
    look: &Snapshot,
    living: &Living<'_>,
    overlapping: &ByName<'_>,
    kubectl: &Kubectl,
    all: &mut Vec<Candidate>,
) {
    // An incomplete list of pools, or of a pool's entries, proves nothing.
    if !look.pools.is_whole() || !living.is_known() {
        return;
    }
    let entries = Entries::new(look, overlapping);
    for one in &look.overlapping.items {
        let ip = ip_of(&one.name).map(|(_, ip)| ip);
        let entered = entries.has(one);
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
            let pools = kubectl.command(&["get", POOLS, "-A", "-o", "yaml"]);
            found.remediation.push(Step::look(text!("{}", what), pools));
            found.remediation.push(kubectl.machine(None));
            // A reservation without a podref may belong to a pod that is being started.
            let known = podref.is_some() || living.being_made.is_empty();
            let command = if known && ip.is_some_and(|ip| living.is_nobodys(podref, ip)) {
                kubectl.delete(one)
            } else {
                None
            };
            if let Some(command) = command {
                let what = text!("delete it, if it is still the same");
                found.remediation.push(Step::change(what, command));
            }
        }
        all.push(found);
    }
}

/// The IP at the end of a name, and the text before it. For IPv6 after a network's name, the longest text that
/// parses.
fn ip_of(name: &str) -> Option<(&str, IpAddr)> {
    let mut starts = std::iter::once(0).chain(name.match_indices('-').map(|(at, _)| at + 1));
    starts.find_map(|at| {
        let (network, text) = name.split_at_checked(at)?;
        let written = text.parse().ok();
        Some((network, written.or_else(|| text.replace('-', ":").parse().ok())?))
    })
}

/// Nodes that do not answer and keep allocations that nobody frees.
fn silent_nodes(look: &Snapshot, living: &Living<'_>, all: &mut Vec<Candidate>) {
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
        let since =
            if since.is_empty() { String::new() } else { format!(" since {}", said(since)) };
        let why = format!(
            "node {} has not answered{since}: {count} allocations of its pods stay until the pods are deleted",
            said(name)
        );
        let mut found = Candidate::new(SILENT, name.clone(), why);
        found.severity = Severity::Info;
        found.nodes.push(name.clone());
        all.push(found);
    }
}

/// The usage of each pool.
pub(super) fn ranges(look: &Snapshot, told: &[Candidate]) -> Vec<ClusterRange> {
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

/// The parts of all definitions of a network, with overlaps merged.
fn merged(bounds: &Bounds) -> (Vec<RangePart>, Vec<String>) {
    let mut parts = bounds.parts.clone();
    parts.sort_by_key(|part| (part.first, part.last));
    let mut merged: Vec<RangePart> = Vec::new();
    for part in parts {
        let touches = |last: &RangePart| {
            last.first.is_ipv4() == part.first.is_ipv4()
                && number(part.first) <= number(last.last).saturating_add(1)
        };
        match merged.last_mut().filter(|last| touches(last)) {
            Some(last) => last.last = last.last.max(part.last),
            None => merged.push(part),
        }
    }
    (merged, bounds.from.clone())
}
