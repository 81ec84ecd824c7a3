//! Entry points of the fuzz targets.

use super::kdd;
use super::keys::{Kept, Keys};
use super::model::Model;
use super::pools::Pools;
use crate::fact::BootNs;
use crate::sources::kubernetes::fuzz;

/// Parses answers of the API server: lists and watch lines, of every kind that is read.
pub fn kubernetes(bytes: &[u8]) {
    fuzz::kubernetes(bytes);
    fuzz::each(bytes, &mut kdd::blocks("node-1".to_owned()), &mut Vec::new());
    fuzz::each(bytes, &mut kdd::pools(), &mut Vec::new());
}

/// Parses the values of Calico's keys: blocks, endpoints and pools.
pub fn calico(bytes: &[u8]) {
    let mut model = Model::new("node-1".to_owned());
    let mut out = Vec::new();
    model.began(&mut out);
    for key in [
        "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-26",
        "/calico/resources/v3/projectcalico.org/workloadendpoints/shop/node--1-k8s-api--0-eth0",
        "/calico/v1/host/node-1/workload/k8s/shop.api-0/endpoint/eth0",
    ] {
        model.put(key, Kept::Bytes(bytes), &mut out);
        model.put(key, Kept::Bytes(bytes), &mut out);
    }
    if let Ok(key) = std::str::from_utf8(bytes) {
        model.put(key, Kept::Bytes(b"{}"), &mut out);
        model.gone(key, &mut out);
    }
    model.ended(BootNs(1), true, &mut out);
    let mut pools = Pools::default();
    for key in [
        "/calico/resources/v3/projectcalico.org/ippools/pool",
        "/calico/v1/ipam/v4/pool/10.0.0.0-16",
    ] {
        pools.put(key, Kept::Bytes(bytes), &mut out);
        pools.put(key, Kept::Bytes(b"{"), &mut out);
    }
}
