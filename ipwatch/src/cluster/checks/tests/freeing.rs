//! Steps that free are given only if no pod that may run has the IP; pods that wait for an IP must not hide a leak.

use serde_json::{Value, json};

use super::super::*;
use crate::cluster::fixtures::{
    Objects, calico, commands, crashed, line, lines, overlapping, pod, pool,
};
use crate::contract::Step;

const WANTED: &str = "k8s.v1.cni.cncf.io/networks";

/// A pod without an IP that asks Multus for a network.
fn waiting(name: &str, node: &str, wanted: &str) -> Value {
    let mut pod = pod(name, node, "10.0.1.9", &[]);
    pod["metadata"]["annotations"] = json!({WANTED: wanted});
    pod["status"] = json!({"phase": "Pending"});
    pod
}

/// A pod with an IP of its own whose networks are not reported.
fn unsaid(name: &str, node: &str, wanted: &str) -> Value {
    let mut pod = pod(name, node, "10.0.1.9", &[]);
    pod["metadata"]["annotations"] = json!({WANTED: wanted});
    pod
}

/// The steps of the finding about a leaked IP.
fn steps(told: &Objects, ip: &str) -> Vec<Step> {
    let cluster = told.judged();
    let ours =
        |one: &&ClusterFinding| one.code == LEAKED && one.ip.is_some_and(|of| of.to_string() == ip);
    let mut found = cluster.findings.iter().filter(ours);
    let Some(one) = found.next() else { panic!("{ip}: {:#?}", lines(&cluster)) };
    one.remediation.clone()
}

/// Whether a runtime is asked before anything is freed.
fn is_asked_first(steps: &[Step]) -> bool {
    let asks = |step: &Step| {
        step.command.as_deref().is_some_and(|command| command.starts_with("crictl inspectp "))
    };
    let frees = |step: &Step| step.changes && step.command.is_some();
    let asked = steps.iter().position(asks);
    let freed = steps.iter().position(frees).unwrap();
    assert_eq!(steps[freed].what.starts_with("only if none of them knows it: "), asked.is_some());
    asked.is_some_and(|asked| asked < freed)
}

#[test]
fn an_overlapping_reservation_of_another_pod_is_not_deleted() {
    let mut told = crashed();
    told.pools = vec![pool(json!({"11": {"id": "a", "podref": "shop/old-0"}}))];
    told.overlapping = vec![overlapping("192.168.7.11", "shop/old-0")];
    assert!(commands(&told.judged())[0].ends_with("/192.168.7.11 -f -"));
    // The reservation was recreated for a pod to which another pool of the range assigned the IP, and which does not
    // report it yet.
    told.pods.push(waiting("new-0", "node-1", "ipvlan"));
    told.overlapping = vec![overlapping("192.168.7.11", "shop/new-0")];
    let cluster = told.judged();
    assert_eq!(
        lines(&cluster),
        [
            "doubtful ipam-reservation-doubtful 192.168.7.11 its pod shop/old-0 is gone, but its overlapping \
          reservation names shop/new-0, which lives"
        ]
    );
    assert_eq!(commands(&cluster), [""; 0]);
    // If that pod is deleted as well, only the pool's entry is removed.
    told.pods.pop();
    let cluster = told.judged();
    let [command] = &commands(&cluster)[..] else { panic!("{:#?}", lines(&cluster)) };
    assert!(!command.contains("delete"), "{command}");
    let evidence = &cluster.findings[0].evidence;
    assert!(
        evidence.iter().any(|one| one.ends_with("192.168.7.11 names shop/new-0")),
        "{evidence:?}"
    );
    // A claim outlives its pods.
    told.overlapping[0]["spec"] = json!({"podref": "shop/old-0", "ipamclaimref": "shop/claim"});
    assert_eq!(lines(&told.judged()), [""; 0]);
}

#[test]
fn nothing_is_freed_while_a_pod_has_it_that_may_run() {
    let ended = |node: &str| {
        let mut ended = pod("it", node, "10.0.1.9", &["192.168.7.11"]);
        ended["status"]["phase"] = json!("Failed");
        ended
    };
    let mut silent = crashed();
    silent.nodes[1]["status"]["conditions"] = json!([{"type": "Ready", "status": "Unknown"}]);
    for podref in ["shop/it", ""] {
        for (mut told, it) in [
            (crashed(), pod("it", "node-9", "10.0.9.2", &["192.168.7.11"])),
            (crashed(), ended("node-9")),
            (silent.clone(), ended("node-2")),
        ] {
            let node = it["spec"]["nodeName"].as_str().unwrap().to_owned();
            told.pools = vec![pool(json!({"11": {"id": "a", "podref": podref}}))];
            told.overlapping.clear();
            told.pods.push(it);
            assert_eq!(told.judged().ranges[0].leaked, 1);
            let steps = steps(&told, "192.168.7.11");
            assert!(steps.iter().all(|step| !step.changes), "{node} {steps:#?}");
            let machine = format!("kubectl get node {node} -o wide");
            assert!(steps.iter().any(|step| step.command.as_ref() == Some(&machine)), "{steps:#?}");
            assert!(steps.last().unwrap().what.contains("shop/it"), "{steps:#?}");
        }
        // A pod that has ended on a ready node no longer runs.
        let mut told = crashed();
        told.pools = vec![pool(json!({"11": {"id": "a", "podref": podref}}))];
        told.overlapping.clear();
        told.pods.push(ended("node-2"));
        assert_eq!(commands(&told.judged()).len(), 1);
        // If several pods had the IP, each counts.
        let mut told = Objects { nodes: silent.nodes.clone(), ..told };
        let last = told.pods.len() - 1;
        told.pods[last]["metadata"]["name"] = json!("another");
        told.pods.push(ended("node-1"));
        assert_eq!(commands(&told.judged()), [""; 0]);
    }
    // The overlapping reservation names the pod that may run.
    let mut told = crashed();
    told.pods.push(pod("old-0", "node-9", "10.0.9.2", &[]));
    assert!(steps(&told, "192.168.7.11").iter().all(|step| !step.changes));
    assert!(steps(&told, "192.168.7.13").iter().any(|step| step.changes));
}

#[test]
fn pods_that_wait_for_an_exhausted_pool_hide_no_leak() {
    let mut told = crashed();
    told.pods.push(waiting("victim-0", "node-1", "default/ipvlan"));
    told.pods.push(waiting(
        "victim-1",
        "node-2",
        r#"[{"name": "ipvlan", "namespace": "default"}]"#,
    ));
    let cluster = told.judged();
    let range = &cluster.ranges[0];
    assert_eq!(
        (range.leaked, range.doubtful, range.recoverable),
        (2, 0, 2),
        "{:#?}",
        lines(&cluster)
    );
    assert_eq!(range.free, Some(0));
    assert_eq!(cluster.findings[0].severity, Severity::Critical);
    assert!(line(&cluster.findings[0]).starts_with("likely ipam-reservation-leaked 192.168.7.11 "));
    assert_eq!(commands(&cluster).len(), 2);
    for (ip, id) in [("192.168.7.11", "dead-1"), ("192.168.7.13", "dead-2")] {
        let steps = steps(&told, ip);
        assert!(is_asked_first(&steps), "{steps:#?}");
        let asks = steps.iter().find(|step| step.command == Some(format!("crictl inspectp {id}")));
        assert!(asks.unwrap().what.contains("\"node-1\", \"node-2\": where"), "{asks:#?}");
    }
}

#[test]
fn an_allocation_that_names_nobody_is_asked_for_where_pods_are_being_made() {
    let asked = |waiting: Value| {
        let mut told = crashed();
        told.pods.push(waiting);
        is_asked_first(&steps(&told, "192.168.7.13"))
    };
    // The source of its own IP is unknown.
    let mut plain = waiting("web-3", "node-1", "");
    plain["metadata"]["annotations"] = json!({});
    assert!(asked(plain.clone()));
    assert!(asked(waiting("web-3", "node-1", "sriov")));
    // The machine of a deleted node may still run.
    assert!(asked(waiting("web-3", "node-9", "default/ipvlan")));
    // A pod without a node gets no IP.
    plain["spec"]["nodeName"] = json!("");
    assert!(!asked(plain));
    assert!(!asked(waiting("web-3", "", "ipvlan")));
    // Its IP on a network of this pool, or on a network that cannot be parsed, is not reported.
    for network in
        ["default/ipvlan", "sriov, default/ipvlan@net7", r#"[{"name": 7}]"#, "a/b/c", ","]
    {
        assert!(asked(unsaid("web-3", "node-1", network)), "{network}");
    }
    for network in ["sriov", "ipvlan", "other/ipvlan", r#"[{"name": "sriov"}]"#, ""] {
        assert!(!asked(unsaid("web-3", "node-1", network)), "{network}");
    }
    // The networks of the pool are unknown.
    let mut told = crashed();
    told.networks.clear();
    told.pods.push(unsaid("web-3", "node-1", "sriov"));
    assert!(is_asked_first(&steps(&told, "192.168.7.13")));
    // An allocation that names its pod belongs to no other.
    let mut told = crashed();
    told.pods.push(waiting("web-3", "node-1", "ipvlan"));
    told.pools = vec![pool(json!({"11": {"id": "a", "podref": "shop/old-0"}}))];
    assert!(!is_asked_first(&steps(&told, "192.168.7.11")));
    // An allocation without an id cannot be looked up in a runtime.
    told.pools = vec![pool(json!({"11": {"id": ""}}))];
    assert!(steps(&told, "192.168.7.11").iter().all(|step| !step.changes));
    told.pods.pop();
    assert!(steps(&told, "192.168.7.11").iter().any(|step| step.changes));
    // The same for a reservation without a podref.
    told.pools = vec![pool(json!({}))];
    told.overlapping = vec![overlapping("192.168.7.11", "")];
    assert_eq!(commands(&told.judged()).len(), 1);
    told.pods.push(waiting("web-3", "node-1", "ipvlan"));
    assert_eq!(told.judged().findings[0].code, LEAKED);
    assert_eq!(commands(&told.judged()), [""; 0]);
}

#[test]
fn where_many_nodes_are_to_be_asked_a_command_names_them() {
    let mut told = crashed();
    let named = |told: &Objects| {
        let steps = steps(told, "192.168.7.11");
        let all = |step: &&Step| step.command.as_deref() == Some("kubectl get pods -A -o wide");
        steps.iter().filter(all).count()
    };
    for n in 0..5 {
        told.nodes.push(crate::cluster::fixtures::node(&format!("more-{n}")));
        told.pods.push(waiting(&format!("web-{}", n + 3), &format!("more-{n}"), "ipvlan"));
    }
    assert_eq!(named(&told), 0);
    told.pods.push(waiting("web-9", "node-1", "ipvlan"));
    assert_eq!(named(&told), 1);
}

#[test]
fn only_a_node_that_is_ready_makes_certain() {
    let of = |conditions: Value| {
        let mut told = calico();
        told.nodes[0]["status"]["conditions"] = conditions;
        lines(&told.judged()).into_iter().find(|line| line.contains(" 10.1.0.2 ")).unwrap()
    };
    assert!(of(json!([{"type": "Ready", "status": "True"}])).starts_with("certain "));
    for status in ["Unknown", "False"] {
        assert!(
            of(json!([{"type": "Ready", "status": status}])).starts_with("likely "),
            "{status}"
        );
    }
    assert!(of(json!([{"type": "DiskPressure", "status": "True"}])).starts_with("likely "));
    assert!(of(json!([])).starts_with("likely "));
}

#[test]
fn a_reservation_of_no_network_is_not_passed_over_for_a_networks_pool() {
    let red = |namespace: &str, name: &str, allocations: Value| {
        json!({
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"range": "192.168.7.0/27", "allocations": allocations},
        })
    };
    let leaked = |told: &Objects| {
        let told = lines(&told.judged());
        told.iter().any(|line| {
            line.ends_with("192.168.7.11 its pod shop/gone is gone; no pool has an entry for it")
        })
    };
    let entry = || json!({"11": {"id": "a", "podref": "shop/web-0"}});
    let of = |pools: Vec<Value>, reservations: &[&str]| Objects {
        pools,
        overlapping: reservations.iter().map(|name| overlapping(name, "shop/gone")).collect(),
        ..crashed()
    };
    // It may belong to the deleted node "red" of the network without a name.
    let name = "red-192.168.7.0-27";
    assert!(!leaked(&of(vec![red("kube-system", name, entry())], &["192.168.7.11"])));
    // A definition shows that "red" is a network.
    let mut told = of(vec![red("kube-system", name, entry())], &["192.168.7.11"]);
    let ipam = json!({"type": "whereabouts", "network_name": "red", "range": "192.168.7.0/27"});
    let config = json!({"type": "ipvlan", "ipam": ipam});
    told.networks.push(
        json!({"metadata": {"name": "red", "namespace": "default"}, "spec": {"config": config.to_string()}}),
    );
    assert!(leaked(&told));
    // So does a reservation with its name.
    let both = ["192.168.7.11", "red-192.168.7.11"];
    assert!(leaked(&of(vec![red("kube-system", name, entry())], &both)));
    // A pool of another namespace, of another network, and of an existing node.
    assert!(leaked(&of(vec![red("elsewhere", name, entry())], &["192.168.7.11"])));
    assert!(leaked(&of(vec![red("kube-system", name, entry())], &["blue-192.168.7.11"])));
    let there = "blue-node-1-192.168.7.0-27";
    assert!(leaked(&of(vec![red("kube-system", there, entry())], &["192.168.7.11"])));
    assert!(!leaked(&of(vec![red("kube-system", there, entry())], &["blue-192.168.7.11"])));
}
