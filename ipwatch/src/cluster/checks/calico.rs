//! Calico: allocations of deleted pods, blocks of deleted nodes, and pods whose IP Calico may assign again.
//!
//! An allocation is judged only by the pod that it names. One without a pod belongs to a tunnel or a load balancer,
//! or was reserved by a person, and is never reported. No command that frees is suggested: Calico's own commands have
//! no precondition against an IP that is assigned again meanwhile, and its controller frees leaks itself.

use std::collections::HashSet;
use std::net::IpAddr;

use super::living::{Fate, Living};
use super::{Candidate, Certainty, DOUBTFUL, LEAKED};
use crate::cluster::remedy::{BLOCKS, HANDLES, Kubectl};
use crate::cluster::snapshot::{Block, CalicoAllocation, CalicoPool, Snapshot, State};
use crate::contract::ClusterRange;
use crate::finding::Severity;
use crate::remedy::{Step, said, text, value};

const ORPHANED: &str = "ipam-block-orphaned";
const HANDLE: &str = "ipam-handle-orphaned";
const WITHOUT: &str = "pod-without-reservation";
const POOLS: &str = "ippools.crd.projectcalico.org";

pub(super) fn candidates(
    look: &Snapshot,
    living: &Living<'_>,
    kubectl: &Kubectl,
    all: &mut Vec<Candidate>,
) {
    for block in look.blocks.items.iter().filter(|block| !block.deleted) {
        for allocation in &block.allocations {
            all.extend(leaked(look, block, allocation, living, kubectl));
        }
    }
    orphaned(look, living, kubectl, all);
    handles(look, kubectl, all);
    without(look, living, kubectl, all);
}

fn object(block: &Block) -> String {
    format!("{BLOCKS} {}", block.name)
}

/// The name of a pool in messages.
fn range(pool: &CalicoPool) -> String {
    format!("{POOLS} {}", pool.name)
}

fn leaked(
    look: &Snapshot,
    block: &Block,
    allocation: &CalicoAllocation,
    living: &Living<'_>,
    kubectl: &Kubectl,
) -> Option<Candidate> {
    let (namespace, name) = allocation.pod.as_ref()?;
    let (code, certainty, why) =
        match living.of_pod(namespace, name, allocation.ip, allocation.node.as_deref()) {
            Fate::Gone(certainty, why) => (LEAKED, certainty, why),
            Fate::Other(why) => (DOUBTFUL, Certainty::Doubtful, why),
            Fate::Alive | Fate::Unknown => return None,
        };
    let handle = allocation.handle.clone().unwrap_or_default();
    let key = format!("{} {} {handle} {namespace}/{name}", block.name, allocation.ordinal);
    let mut found = Candidate::new(code, key, why);
    found.certainty = certainty;
    found.ip = Some(allocation.ip);
    found.object = Some(object(block));
    let mut pools = look.calico_pools.items.iter();
    found.range = pools.find(|pool| pool.range.contains(allocation.ip)).map(range);
    found.offset = Some(allocation.ordinal);
    found.id = allocation.handle.clone();
    found.pods.push(format!("{namespace}/{name}"));
    found.nodes.extend(allocation.node.clone());
    let show = kubectl.calicoctl().owns(&["ipam", "show"]);
    let show = show.word("--ip={}", &[allocation.ip.into()]);
    found.remediation = vec![
        kubectl.get_global("look at the block", BLOCKS, &block.name),
        kubectl.users(allocation.ip),
        kubectl.machine(allocation.node.as_deref()),
        Step::look(text!("whose Calico takes it for"), show),
        check(kubectl),
    ];
    if code == LEAKED {
        found.remediation.push(Step::advice(text!(
            "calico-kube-controllers frees it by itself; by hand `calicoctl ipam release` does, and nothing guards \
             that: only while `ipam show` names handle {} still",
            value(&handle)
        )));
    }
    Some(found)
}

/// Shows the leaks that Calico's own tool finds.
fn check(kubectl: &Kubectl) -> Step {
    let check = kubectl.calicoctl().owns(&["ipam", "check", "--show-problem-ips"]);
    Step::look(text!("look what Calico finds"), check)
}

/// Blocks of deleted nodes.
fn orphaned(look: &Snapshot, living: &Living<'_>, kubectl: &Kubectl, all: &mut Vec<Candidate>) {
    let blocks = || look.blocks.items.iter().filter(|block| !block.deleted);
    // If Calico uses its own names for nodes, no block has the name of a node.
    let same_names = blocks()
        .filter_map(|block| block.host.as_deref())
        .any(|host| look.nodes.items.contains_key(host));
    if !same_names {
        return;
    }
    for block in blocks() {
        let Some(host) = block.host.as_deref().filter(|host| living.is_node_gone(host)) else {
            continue;
        };
        let why = format!(
            "it belongs to node {}, which is gone: none but its {} allocations is used",
            said(host),
            block.allocations.len()
        );
        let mut found = Candidate::new(ORPHANED, format!("{} {host}", block.name), why);
        found.object = Some(object(block));
        found.nodes.push(host.to_owned());
        found.remediation = vec![
            kubectl.get_global("look at the block", BLOCKS, &block.name),
            Step::look(
                text!("look that the node is gone"),
                kubectl.command(&["get", "node"]).value(host),
            ),
            check(kubectl),
            Step::look(
                text!(
                    "calico-kube-controllers releases the blocks of nodes that are gone: look what keeps it from that \
                     (of the operator, in namespace calico-system)"
                ),
                kubectl.command(&["-n", "kube-system", "logs", "deploy/calico-kube-controllers"]),
            ),
        ];
        all.push(found);
    }
}

/// Handles without an allocation in any block.
fn handles(look: &Snapshot, kubectl: &Kubectl, all: &mut Vec<Candidate>) {
    // Calico writes the handle before the block: both lists must be complete.
    if look.blocks.state != State::All || look.handles.state != State::All {
        return;
    }
    let named: HashSet<&str> = (look.blocks.items.iter())
        .flat_map(|block| &block.allocations)
        .filter_map(|allocation| allocation.handle.as_deref())
        .collect();
    for handle in &look.handles.items {
        // Names are lower case, ids may not be.
        let used = named.contains(handle.id.as_str()) || named.contains(handle.name.as_str());
        if handle.deleted || used {
            continue;
        }
        let why = "no block has an allocation of this handle".to_owned();
        let mut found = Candidate::new(HANDLE, handle.name.clone(), why);
        found.severity = Severity::Info;
        found.object = Some(format!("{HANDLES} {}", handle.name));
        found.id = Some(handle.id.clone());
        found.remediation =
            vec![kubectl.get_global("look at it", HANDLES, &handle.name), check(kubectl)];
        all.push(found);
    }
}

/// Pods with an IP of a pool that is not allocated in any block.
fn without(look: &Snapshot, living: &Living<'_>, kubectl: &Kubectl, all: &mut Vec<Candidate>) {
    if look.blocks.state != State::All || look.calico_pools.state != State::All {
        return;
    }
    let allocated: HashSet<IpAddr> = (look.blocks.items.iter())
        .flat_map(|block| block.allocations.iter().map(|allocation| allocation.ip))
        .collect();
    // If no pod's IP is in a block, another IPAM assigns them.
    if !allocated.iter().any(|ip| !living.at(*ip).is_empty()) {
        return;
    }
    let alive = |pod: &&crate::cluster::snapshot::Pod| {
        !pod.ended && !pod.host_network && !pod.deleting && !living.is_node_gone(&pod.node)
    };
    for pod in look.pods.items.iter().filter(alive) {
        for ip in pod.calico.iter().filter(|ip| !allocated.contains(ip)) {
            if !look.calico_pools.items.iter().any(|pool| pool.range.contains(*ip)) {
                continue;
            }
            let block = look.blocks.items.iter().find(|block| block.range.contains(*ip));
            let why = format!(
                "{} has it, and Calico takes it for free: the next pod may be given it",
                said(&pod.full_name())
            );
            let mut found = Candidate::new(WITHOUT, format!("{} {ip}", pod.uid), why);
            found.severity = Severity::Critical;
            found.certainty = if block.is_some() { Certainty::Certain } else { Certainty::Likely };
            found.ip = Some(*ip);
            found.object = block.map(object);
            found.pods.push(pod.full_name());
            found.nodes.push(pod.node.clone());
            let show = kubectl.calicoctl().owns(&["ipam", "show"]);
            found.remediation = vec![
                Step::look(
                    text!("look what Calico says of it"),
                    show.word("--ip={}", &[(*ip).into()]),
                ),
                Step::advice(text!("start the pod anew before the IP is given to another")),
            ];
            all.push(found);
        }
    }
}

/// The usage of each pool.
pub(super) fn ranges(look: &Snapshot, told: &[Candidate]) -> Vec<ClusterRange> {
    let compared = look.pods.is_whole() && look.blocks.is_whole();
    (look.calico_pools.items.iter())
        .map(|pool| {
            let allocations = look.blocks.items.iter().flat_map(|block| &block.allocations);
            let used = allocations.filter(|one| pool.range.contains(one.ip)).count() as u64;
            let object = range(pool);
            let of = |code: &str| {
                let here =
                    |one: &&Candidate| one.code == code && one.range.as_ref() == Some(&object);
                told.iter().filter(here).count() as u64
            };
            let leaked = of(LEAKED);
            let size = u64::try_from(pool.range.size()).unwrap_or(u64::MAX);
            ClusterRange {
                store: "calico".to_owned(),
                range: pool.range.network().to_cidr(),
                from: Vec::new(),
                usable: Some(size),
                used,
                leaked,
                doubtful: of(DOUBTFUL),
                free: Some(size.saturating_sub(used)),
                recoverable: leaked,
                compared,
                object,
            }
        })
        .collect()
}
