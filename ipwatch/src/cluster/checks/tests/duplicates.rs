//! The same IP on two pods, and cases that only look like it.

use serde_json::{Value, json};

use crate::cluster::fixtures::{Objects, crashed, lines, pod};

#[test]
fn two_living_pods_with_one_ip() {
    let mut told = crashed();
    told.pods.push(pod("twin", "node-1", "10.0.2.2", &["192.168.7.12"]));
    let duplicates = |told: &Objects| -> Vec<String> {
        lines(&told.judged()).into_iter().filter(|line| line.contains("ip-duplicate")).collect()
    };
    assert_eq!(
        duplicates(&told),
        [
            "certain ip-duplicate 10.0.2.2 2 pods have it: shop/web-1 on node-2, shop/twin on node-1",
            "certain ip-duplicate 192.168.7.12 2 pods have it on network default/ipvlan: \
             shop/web-1 on node-2, shop/twin on node-1",
        ]
    );
    // With another IPAM each node may have the same IPs.
    told.pools.clear();
    assert_eq!(duplicates(&told).len(), 1);
    // A pod that is being deleted is less certain; one that has ended or is in the host's network has no IP of its
    // own.
    let twin = told.pods.len() - 1;
    told.pods[twin]["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert!(duplicates(&told)[0].starts_with("likely "));
    told.pods[twin]["spec"]["hostNetwork"] = json!(true);
    assert_eq!(duplicates(&told), [""; 0]);
    told.pods[twin]["spec"]["hostNetwork"] = json!(false);
    told.pods[twin]["status"]["phase"] = json!("Succeeded");
    assert_eq!(duplicates(&told), [""; 0]);
}

/// A network with Whereabouts' range 192.168.7.0/27 under another name.
fn definition(name: &str, network_name: &str) -> Value {
    let ipam = json!({"type": "whereabouts", "network_name": network_name, "range": "192.168.7.0/27",
                      "range_start": "192.168.7.10", "range_end": "192.168.7.14"});
    let config = json!({"type": "macvlan", "ipam": ipam}).to_string();
    json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"config": config}})
}

/// A pod with IPs on these networks.
fn attached(name: &str, node: &str, own: &str, networks: &[(&str, &str)]) -> Value {
    let mut pod = pod(name, node, own, &[]);
    let one = |(name, ip): &(&str, &str)| json!({"name": name, "interface": "net1", "ips": [ip]});
    let status: Vec<Value> = networks.iter().map(one).collect();
    let status = json!(status).to_string();
    pod["metadata"]["annotations"] = json!({"k8s.v1.cni.cncf.io/network-status": status});
    pod
}

fn duplicates(told: &Objects) -> Vec<String> {
    lines(&told.judged()).into_iter().filter(|line| line.contains("ip-duplicate")).collect()
}

#[test]
fn a_pool_gives_each_ip_out_once_by_whatever_network() {
    let with = |pods: Vec<Value>| Objects {
        networks: vec![definition("a", ""), definition("b", ""), definition("other", "other")],
        pods,
        ..crashed()
    };
    let first = attached("one", "node-1", "10.0.1.2", &[("default/a", "192.168.7.12")]);
    let by = |network| attached("two", "node-2", "10.0.2.2", &[(network, "192.168.7.12")]);
    let told = with(vec![first.clone(), by("default/b")]);
    let pods = "shop/one on node-1, shop/two on node-2";
    let why = format!("on networks default/a and default/b of pool 192.168.7.0-27: {pods}");
    assert_eq!(
        duplicates(&told),
        [format!("certain ip-duplicate 192.168.7.12 2 pods have it {why}")]
    );
    // A pool with another network name, and a network without Whereabouts, have their own IPs.
    for network in ["default/other", "default/bridge"] {
        assert_eq!(duplicates(&with(vec![first.clone(), by(network)])), [""; 0], "{network}");
    }
    // An IP that was assigned before the bounds changed.
    let outside = |name, own, network| attached(name, "node-1", own, &[(network, "192.168.7.20")]);
    let told = with(vec![
        outside("one", "10.0.1.2", "default/a"),
        outside("two", "10.0.1.3", "default/b"),
    ]);
    assert_eq!(duplicates(&told).len(), 1);
    // IPs that another IPAM assigns beside it belong to each node.
    let told = with(vec![
        attached("one", "node-1", "10.0.1.2", &[("default/a", "172.16.0.2")]),
        attached("two", "node-2", "10.0.2.2", &[("default/b", "172.16.0.2")]),
    ]);
    assert_eq!(duplicates(&told), [""; 0]);
}

#[test]
fn a_pod_that_has_an_ip_by_two_networks_is_one_pod() {
    let both = [("default/a", "192.168.7.12"), ("default/b", "192.168.7.12")];
    let mut told = Objects {
        networks: vec![definition("a", ""), definition("b", "")],
        pods: vec![attached("one", "node-1", "10.0.1.2", &both)],
        ..crashed()
    };
    assert_eq!(duplicates(&told), [""; 0]);
    // Another pod with this IP is still found.
    told.pods.push(attached("two", "node-2", "10.0.2.2", &both[1..]));
    let found = duplicates(&told);
    assert!(found.len() == 1 && found[0].contains(" 2 pods have it "), "{found:#?}");
}

#[test]
fn a_pods_own_ip_may_be_of_a_pool_too() {
    let own = |name, node| {
        let mut pod = attached(name, node, "192.168.7.12", &[]);
        let status = json!([{"name": "default/a", "ips": ["192.168.7.12"], "default": true}]);
        pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"] =
            json!(status.to_string());
        pod
    };
    let second = [("default/b", "192.168.7.12")];
    let mut told = Objects {
        networks: vec![definition("a", ""), definition("b", "")],
        pods: vec![own("one", "node-1"), attached("two", "node-2", "10.0.2.2", &second)],
        ..crashed()
    };
    assert_eq!(duplicates(&told).len(), 1, "a second network's is another pod's own");
    // Two pods that have it as their own IP are reported once.
    told.pods[1] = own("two", "node-2");
    let found = duplicates(&told);
    assert!(found.len() == 1 && found[0].contains("2 pods have it: "), "{found:#?}");
}

#[test]
fn of_a_network_that_no_definition_is_known_of_it_is_less_sure() {
    let on = |n: usize| {
        attached(&format!("p{n}"), "node-1", &format!("10.0.1.{n}"), &[("it", "192.168.7.12")])
    };
    let mut told = Objects { pods: vec![on(1), on(2)], ..crashed() };
    let found = duplicates(&told);
    assert!(found.len() == 1 && found[0].starts_with("likely "), "{found:#?}");
    assert!(found[0].ends_with("on network it: shop/p1 on node-1, shop/p2 on node-1"));
    // Of many pods only some are named.
    told.pods = (1..=20).map(on).collect();
    let cluster = told.judged();
    let found = cluster.findings.iter().find(|one| one.code == "ip-duplicate").unwrap();
    assert!(found.why.starts_with("20 pods have it ") && found.why.ends_with(", and 4 more"));
    assert_eq!((found.pods.len(), found.remediation.len()), (16, 17));
    assert!(found.evidence[0].contains("each node may have the same"), "{:?}", found.evidence);
}
