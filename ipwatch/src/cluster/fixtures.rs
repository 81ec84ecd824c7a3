//! Example clusters as API objects, for tests.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::checks::judge;
use super::objects;
use super::read::testing;
use super::remedy::Kubectl;
use super::snapshot::{Listed, Snapshot};
use crate::contract::{Cluster, ClusterFinding};

/// A cluster as API objects.
#[derive(Default, Clone)]
pub(super) struct Objects {
    pub(super) pools: Vec<Value>,
    pub(super) overlapping: Vec<Value>,
    pub(super) networks: Vec<Value>,
    pub(super) blocks: Vec<Value>,
    pub(super) handles: Vec<Value>,
    pub(super) calico_pools: Vec<Value>,
    pub(super) nodes: Vec<Value>,
    pub(super) pods: Vec<Value>,
}

impl Objects {
    pub(super) fn look(&self) -> Snapshot {
        let mut look = Snapshot {
            pools: testing::pools(&self.pools),
            overlapping: testing::overlapping(&self.overlapping),
            bounds: testing::bounds(&self.networks),
            blocks: testing::blocks(&self.blocks),
            handles: testing::handles(&self.handles),
            calico_pools: testing::calico_pools(&self.calico_pools),
            ..Snapshot::default()
        };
        let read = |value: &Value| serde_json::from_value::<objects::Pod>(value.clone()).unwrap();
        look.pods = Listed::all(self.pods.iter().map(|pod| read(pod).world()).collect());
        let read = |value: &Value| serde_json::from_value::<objects::Node>(value.clone()).unwrap();
        let nodes = self.nodes.iter().map(|node| read(node).world());
        look.nodes = Listed::all(nodes.collect::<BTreeMap<_, _>>());
        look
    }

    /// Whether every pod and every node can be parsed.
    pub(super) fn can_be_read(&self) -> bool {
        let pod = |value: &Value| serde_json::from_value::<objects::Pod>(value.clone()).is_ok();
        let node = |value: &Value| serde_json::from_value::<objects::Node>(value.clone()).is_ok();
        self.pods.iter().all(pod) && self.nodes.iter().all(node)
    }

    pub(super) fn judged(&self) -> Cluster {
        let look = self.look();
        judge("https://10.0.0.1:6443", &look, &look, &Kubectl::default())
    }
}

pub(super) fn node(name: &str) -> Value {
    json!({"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
}

pub(super) fn pod(name: &str, node: &str, ip: &str, attached: &[&str]) -> Value {
    let status = json!([
        {"name": "cbr0", "interface": "eth0", "ips": [ip], "default": true},
        {"name": "default/ipvlan", "interface": "net1", "ips": attached},
    ]);
    json!({
        "metadata": {
            "namespace": "shop", "name": name, "uid": format!("uid-{name}"),
            "annotations": {"k8s.v1.cni.cncf.io/network-status": status.to_string(), "hunter2": "hunter2"},
        },
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "podIPs": [{"ip": ip}]},
    })
}

pub(super) fn pool(allocations: Value) -> Value {
    json!({
        "metadata": {"name": "192.168.7.0-27", "namespace": "kube-system"},
        "spec": {"range": "192.168.7.0/27", "allocations": allocations},
    })
}

pub(super) fn network() -> Value {
    let config = json!({
        "type": "ipvlan", "mode": "l2",
        "ipam": {"type": "whereabouts", "range": "192.168.7.0/27", "range_start": "192.168.7.10", "range_end": "192.168.7.14"},
    });
    json!({"metadata": {"name": "ipvlan", "namespace": "default"}, "spec": {"config": config.to_string()}})
}

pub(super) fn overlapping(name: &str, podref: &str) -> Value {
    let meta = json!({"name": name, "namespace": "kube-system", "uid": format!("uid-{name}"), "resourceVersion": "7"});
    json!({"metadata": meta, "spec": {"podref": podref}})
}

/// R4: five IPs, three living pods, and a crashed node that left two allocations without a podref.
pub(super) fn crashed() -> Objects {
    Objects {
        pools: vec![pool(json!({
            "10": {"id": "aaaa", "podref": "shop/web-0"},
            "11": {"id": "dead-1"},
            "12": {"id": "bbbb", "podref": "shop/web-1"},
            "13": {"id": "dead-2", "podref": ""},
            "14": {"id": "cccc"},
        }))],
        overlapping: vec![
            overlapping("192.168.7.10", "shop/web-0"),
            overlapping("192.168.7.11", "shop/old-0"),
            overlapping("192.168.7.12", "shop/web-1"),
        ],
        networks: vec![network()],
        nodes: vec![node("node-1"), node("node-2")],
        pods: vec![
            pod("web-0", "node-1", "10.0.1.2", &["192.168.7.10"]),
            pod("web-1", "node-2", "10.0.2.2", &["192.168.7.12"]),
            pod("web-2", "node-2", "10.0.2.3", &["192.168.7.14/27"]),
        ],
        ..Objects::default()
    }
}

pub(super) fn block(name: &str, cidr: &str, host: &str, attributes: Value) -> Value {
    let count = attributes.as_array().unwrap().len();
    let mut allocations: Vec<Value> = (0..count).map(|at| json!(at)).collect();
    allocations.resize(64, Value::Null);
    json!({
        "metadata": {"name": name},
        "spec": {"cidr": cidr, "affinity": format!("host:{host}"), "allocations": allocations,
                 "attributes": attributes, "unallocated": [], "strictAffinity": false},
    })
}

pub(super) fn of_pod(name: &str) -> Value {
    json!({"handle_id": format!("k8s-pod-network.{name}-id"),
           "secondary": {"namespace": "shop", "pod": name, "node": "node-1"}})
}

pub(super) fn calico_pod(name: &str, node: &str, ip: &str) -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": name, "uid": format!("uid-{name}"), "annotations": {
            "cni.projectcalico.org/podIP": format!("{ip}/32"), "cni.projectcalico.org/podIPs": format!("{ip}/32"),
        }},
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "podIPs": [{"ip": ip}]},
    })
}

pub(super) fn calico() -> Objects {
    Objects {
        blocks: vec![
            block("10-1-0-0-26", "10.1.0.0/26", "node-1", json!([
                {"handle_id": "vxlan-tunnel-addr-node-1", "secondary": {"node": "node-1", "type": "vxlanTunnelAddress"}},
                of_pod("web-0"), of_pod("gone"), {"handle_id": null, "secondary": null},
                {"handle_id": "k8s-pod-network.x\r\neth0", "secondary": {"namespace": "shop", "pod": "gone-too"}},
            ])),
            block("10-1-0-64-26", "10.1.0.64/26", "node-9", json!([of_pod("lost")])),
        ],
        calico_pools: vec![json!({"metadata": {"name": "default"}, "spec": {"cidr": "10.1.0.0/16"}})],
        handles: ["web-0", "gone", "lost", "left"]
            .map(|name| json!({"metadata": {"name": format!("k8s-pod-network.{name}-id")},
                               "spec": {"handleID": format!("k8s-pod-network.{name}-id"), "block": {}}}))
            .to_vec(),
        nodes: vec![node("node-1")],
        pods: vec![
            calico_pod("web-0", "node-1", "10.1.0.1"),
            calico_pod("lost", "node-9", "10.1.0.64"),
        ],
        ..Objects::default()
    }
}

pub(super) fn line(finding: &ClusterFinding) -> String {
    let ip = finding.ip.map(|ip| ip.to_string()).unwrap_or_default();
    format!("{} {} {ip} {}", finding.certainty, finding.code, finding.why)
}

pub(super) fn lines(cluster: &Cluster) -> Vec<String> {
    cluster.findings.iter().map(line).collect()
}

pub(super) fn commands(cluster: &Cluster) -> Vec<&str> {
    let steps = cluster.findings.iter().flat_map(|one| &one.remediation);
    steps.filter(|step| step.changes).filter_map(|step| step.command.as_deref()).collect()
}
