//! Calico's IPAM store in the API server: its objects in their documented form. Nothing of Calico runs.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::ControlPlane;

/// CRDs of Calico's kinds.
const DEFINITIONS: [&str; 5] = [
    include_str!("../../fixtures/crds/calico-ippools.yaml"),
    include_str!("../../fixtures/crds/calico-ipamblocks.yaml"),
    include_str!("../../fixtures/crds/calico-ipamhandles.yaml"),
    include_str!("../../fixtures/crds/calico-ipamconfigs.yaml"),
    include_str!("../../fixtures/crds/calico-blockaffinities.yaml"),
];
/// The daemon's additional RBAC rules.
const RIGHTS: &str = include_str!("../../../deploy/kubernetes/api/calico.yaml");
/// Addresses in a block.
const SIZE: u32 = 64;

/// Defines Calico's kinds, permits the daemon to read them, and creates a pool.
pub fn define(control: &ControlPlane) {
    for definition in DEFINITIONS {
        control.define(definition);
    }
    control.grant(RIGHTS);
    pool(control, "default", &json!({ "cidr": "100.64.0.0/10", "blockSize": 26 }));
}

/// Creates a pool.
pub fn pool(control: &ControlPlane, name: &str, spec: &Value) {
    create(control, "ippools", "IPPool", name, spec).expect("a pool");
}

/// Creates a block, named after its CIDR.
pub fn block(control: &ControlPlane, spec: &Value) -> Result<Value, String> {
    let name = spec["cidr"].as_str().expect("a CIDR").replace(['.', ':', '/'], "-");
    create(control, "ipamblocks", "IPAMBlock", &name, spec)
}

fn create(
    control: &ControlPlane,
    plural: &str,
    kind: &str,
    name: &str,
    spec: &Value,
) -> Result<Value, String> {
    let object = json!({
        "apiVersion": "crd.projectcalico.org/v1", "kind": kind,
        "metadata": { "name": name }, "spec": spec,
    });
    control.api().ask("POST", &format!("/apis/crd.projectcalico.org/v1/{plural}"), Some(&object))
}

/// Creates blocks, four for each node, the first four for `node`; every second address is assigned.
pub fn fill(control: &ControlPlane, blocks: u32, node: &str) {
    for n in 0..blocks {
        let whose = if n < 4 { node.to_owned() } else { format!("node-{}", n / 4) };
        let first = Ipv4Addr::from_bits(Ipv4Addr::new(100, 64, 0, 0).to_bits() + n * SIZE);
        let owner = |at: u32| {
            json!({ "handle_id": format!("k8s-pod-network.{:064x}", n * SIZE + at), "secondary": {
                "namespace": "shop", "node": whose, "pod": format!("api-{n}-{at}"),
                "timestamp": "2024-05-01 10:11:12.123456789 +0000 UTC",
            }})
        };
        let slot = |at: u32| if at.is_multiple_of(2) { (at / 2).into() } else { Value::Null };
        let spec = json!({
            "cidr": format!("{first}/26"), "affinity": format!("host:{whose}"),
            "strictAffinity": false, "deleted": false,
            "allocations": (0..SIZE).map(slot).collect::<Vec<_>>(),
            "unallocated": (0..SIZE).filter(|at| !at.is_multiple_of(2)).collect::<Vec<_>>(),
            "attributes": (0..SIZE / 2).map(owner).collect::<Vec<_>>(),
        });
        block(control, &spec).expect("a block");
    }
}
