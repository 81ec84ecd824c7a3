//! Whereabouts' IPAM store in the API server: its objects and those of Multus, in their documented form. Neither
//! controller runs.

use std::net::Ipv4Addr;

use serde_json::{Map, Value, json};

use super::ControlPlane;

/// CRD of Whereabouts' pools.
pub const IP_POOLS: &str = include_str!("../../fixtures/crds/whereabouts-ippools.yaml");
/// CRD of Whereabouts' overlapping reservations.
const OVERLAPPING: &str = include_str!("../../fixtures/crds/whereabouts-overlapping.yaml");
/// CRD of Multus' networks.
pub const NETWORKS: &str = include_str!("../../fixtures/crds/net-attach-def.yaml");
/// The daemon's RBAC rules to read Whereabouts' pools, from our manifest.
const RIGHTS: &str = include_str!("../../../deploy/kubernetes/api/whereabouts.yaml");
/// Namespace of Whereabouts' objects.
const NAMESPACE: &str = "kube-system";
/// Path of its pools.
pub const POOLS: &str = "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/kube-system/ippools";

/// Defines Whereabouts' kinds, and permits the daemon to read them.
pub fn whereabouts(control: &ControlPlane) {
    whereabouts_as(control, IP_POOLS);
}

/// Like [`whereabouts`], with another CRD for the pools.
pub fn whereabouts_as(control: &ControlPlane, pools: &str) {
    control.define(pools);
    control.define(NETWORKS);
    control.grant(RIGHTS);
}

/// Creates a pool.
pub fn pool(control: &ControlPlane, name: &str, spec: &Value) -> Result<Value, String> {
    let pool = json!({
        "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
        "metadata": { "name": name }, "spec": spec,
    });
    control.api().ask("POST", POOLS, Some(&pool))
}

/// Defines the overlapping reservations; returns their path.
#[must_use]
pub fn overlapping(control: &ControlPlane) -> String {
    control.define(OVERLAPPING);
    POOLS.replace("ippools", "overlappingrangeipreservations")
}

/// Creates the overlapping reservation of an IP with its owner, replacing an earlier one.
pub fn reserve(control: &ControlPlane, all: &str, ip: &str, podref: &str, id: &str) {
    let path = format!("{all}/{ip}");
    if control.api().get(&path).is_ok() {
        control.api().ask("DELETE", &path, None).expect("delete a reservation");
    }
    let object = json!({
        "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "OverlappingRangeIPReservation",
        "metadata": { "name": ip }, "spec": { "podref": podref, "containerid": id },
    });
    control.api().create(all, &object);
}

/// Creates a network whose IPs come from Whereabouts, with these keys in its `ipam`.
pub fn network(control: &ControlPlane, name: &str, ipam: &Value) {
    let mut ipam = ipam.clone();
    ipam["type"] = "whereabouts".into();
    let config = json!({ "cniVersion": "0.3.1", "type": "ipvlan", "master": "eth0", "ipam": ipam });
    let network = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": name }, "spec": { "config": config.to_string() },
    });
    let path =
        format!("/apis/k8s.cni.cncf.io/v1/namespaces/{NAMESPACE}/network-attachment-definitions");
    control.api().create(&path, &network);
}

/// The name of Whereabouts' pool for a range.
#[must_use]
pub fn pool_name(range: &str) -> String {
    range.replace([':', '/'], "-")
}

/// Creates pools of 1,000 allocations each, with a network for each, until there are this many allocations: each of
/// another container, none of this node.
pub fn fill(control: &ControlPlane, allocations: usize) {
    for n in 0..allocations.div_ceil(1_000) {
        let first =
            Ipv4Addr::from_bits(Ipv4Addr::new(100, 64, 0, 0).to_bits() + (n as u32) * 1_024);
        let range = format!("{first}/22");
        let name = pool_name(&range);
        let here = (allocations - n * 1_000).min(1_000);
        let all: Map<String, Value> = (1..=here).map(|at| allocation(n * 1_000 + at, at)).collect();
        pool(control, &name, &json!({ "range": range, "allocations": all })).expect("a pool");
        network(control, &format!("net-{n}"), &json!({ "range": range }));
    }
}

fn allocation(number: usize, offset: usize) -> (String, Value) {
    let value = json!({
        "id": format!("{number:064x}"), "podref": format!("shop/api-{number}"), "ifname": "net1",
    });
    (offset.to_string(), value)
}
