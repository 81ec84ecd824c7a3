//! Calico's blocks against all pods.

use serde_json::json;

use super::super::*;
use crate::cluster::fixtures::{Objects, calico, calico_pod, commands, lines, of_pod};

#[test]
fn calicos_blocks_against_all_pods() {
    let cluster = calico().judged();
    assert_eq!(
        lines(&cluster),
        [
            "certain ipam-block-orphaned  it belongs to node node-9, which is gone: none but its 1 allocations is used",
            "certain ipam-reservation-leaked 10.1.0.2 its pod shop/gone is gone",
            "likely ipam-reservation-leaked 10.1.0.4 its pod shop/gone-too is gone",
            "likely ipam-reservation-leaked 10.1.0.64 its pod shop/lost is on node node-9, which is gone",
            "certain ipam-handle-orphaned  no block has an allocation of this handle",
        ]
    );
    assert_eq!(cluster.findings[2].id.as_deref(), Some("k8s-pod-network.x"));
    let range = &cluster.ranges[0];
    assert_eq!((range.used, range.leaked, range.recoverable), (6, 3, 3));
    assert_eq!((range.usable, range.free), (Some(65_536), Some(65_530)));
}

#[test]
fn a_pod_whose_ip_calico_takes_for_free() {
    let mut told = calico();
    told.pods.push(calico_pod("bare", "node-1", "10.1.0.9"));
    let without = |told: &Objects| -> Vec<String> {
        lines(&told.judged()).into_iter().filter(|line| line.contains("without")).collect()
    };
    let why = "shop/bare has it, and Calico takes it for free: the next pod may be given it";
    assert_eq!(without(&told), [format!("certain pod-without-reservation 10.1.0.9 {why}")]);
    // A block with invalid indexes may have the IP.
    told.blocks[0]["spec"]["allocations"][9] = json!(99);
    assert_eq!(without(&told), [""; 0]);
    // If another IPAM assigns the IPs there are no blocks at all.
    told.blocks.clear();
    assert_eq!(without(&told), [""; 0]);
}

#[test]
fn nodes_that_calico_calls_otherwise_are_not_gone() {
    let mut told = calico();
    told.blocks[0]["spec"]["affinity"] = json!("host:node-1.example");
    let orphaned = lines(&told.judged()).into_iter().filter(|line| line.contains("orphaned "));
    assert!(orphaned.into_iter().all(|line| line.contains("handle")));
}

#[test]
fn calicos_own_tool_is_never_told_to_free() {
    let cluster = calico().judged();
    assert_eq!(commands(&cluster), [""; 0]);
    let steps = || cluster.findings.iter().flat_map(|one| &one.remediation);
    let commands = || steps().filter_map(|step| step.command.as_deref());
    assert!(commands().all(|one| !one.contains("release") && !one.contains("delete")));
    assert!(commands().any(|one| one.ends_with("logs deploy/calico-kube-controllers")));
    assert!(
        steps().any(|step| step.what.contains("names handle \"k8s-pod-network.gone-id\" still"))
    );
    // The container may still run if its node does not answer.
    let mut told = calico();
    told.nodes[0]["status"]["conditions"] = json!([{"type": "Ready", "status": "Unknown"}]);
    assert!(
        lines(&told.judged()).contains(
            &"likely ipam-reservation-leaked 10.1.0.2 its pod shop/gone is gone".to_owned()
        )
    );
}

#[test]
fn what_has_leaked_is_worse_where_its_pool_is_full() {
    // One of two pools is full.
    let mut told = calico();
    told.calico_pools.push(json!({"metadata": {"name": "full"}, "spec": {"cidr": "10.2.0.0/31"}}));
    let full = json!({
        "metadata": {"name": "10-2-0-0-31"},
        "spec": {"cidr": "10.2.0.0/31", "allocations": [0, 1],
                 "attributes": [of_pod("full-0"), of_pod("full-1")]},
    });
    told.blocks.push(full);
    told.pods.push(calico_pod("full-1", "node-1", "10.2.0.1"));
    let critical = |told: &Objects| -> Vec<String> {
        let cluster = told.judged();
        let all = cluster.findings.iter().filter(|one| one.severity == Severity::Critical);
        all.filter_map(|one| Some(one.ip?.to_string())).collect()
    };
    assert_eq!(critical(&told), ["10.2.0.0"]);
    let ranges = told.judged().ranges;
    assert_eq!((ranges[1].leaked, ranges[1].free), (1, Some(0)));
    assert_eq!((ranges[0].leaked, ranges[0].free), (3, Some(65_530)), "each counts its own");
    // One free IP is enough.
    told.blocks[2]["spec"]["allocations"][1] = json!(null);
    told.pods.pop();
    assert_eq!(critical(&told), [""; 0]);
}

#[test]
fn a_pod_that_is_being_made_has_its_allocation() {
    let of = |pod: Option<serde_json::Value>| -> Vec<String> {
        let told = Objects { pods: calico().pods.into_iter().chain(pod).collect(), ..calico() };
        lines(&told.judged()).into_iter().filter(|line| line.contains(" 10.1.0.2 ")).collect()
    };
    assert!(of(None)[0].starts_with("certain ipam-reservation-leaked"));
    // With a node and without an IP, and without a node.
    for node in ["node-1", ""] {
        let mut made = calico_pod("gone", node, "10.1.0.2");
        made["metadata"]["annotations"] = json!({});
        made["status"] = json!({"phase": "Pending"});
        assert_eq!(of(Some(made)), [""; 0], "{node:?}");
    }
    // A living pod that has another IP.
    let lines = of(Some(calico_pod("gone", "node-1", "10.1.0.20")));
    assert!(lines[0].starts_with("doubtful ipam-reservation-doubtful"), "{lines:#?}");
}
