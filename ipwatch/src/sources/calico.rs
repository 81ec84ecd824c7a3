//! Calico's own data about its IPs and endpoints. Read only.
//!
//! Calico stores the same data in one of two places: as objects of the API server, or as keys in an etcd of its own.
//! Their meaning is the same for both.
//!
//! - `documents`: the fields that are read of a block, a pool and an endpoint.
//! - `blocks`: the blocks of the cluster: this node's allocations, and how much of each block is allocated.
//! - `pools`: the pools that blocks are taken from, in either place.
//! - `endpoints`: the endpoints of this node.
//! - `keys`: the interface for either, key by key.
//! - `kdd`: blocks and pools as objects of the API server. There, an endpoint is the pod itself:
//!   [`kubernetes`](super::kubernetes) reports it.
//! - `etcd`: the client of an etcd. `model`: the meaning of its keys.

mod blocks;
mod documents;
mod endpoints;
pub mod etcd;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
pub(in crate::sources) mod kdd;
mod keys;
mod model;
pub(in crate::sources) mod pools;

use crate::fact::store;
use crate::sources::{Emit, kubernetes};

/// Name of the store and of its source.
pub(in crate::sources) const STORE: &str = store::CALICO;
/// Name of the source of its pools.
const POOLS: &str = store::CALICO_POOLS;

/// Starts to follow Calico's objects in the API server, if `cluster` enables that, and an etcd, if one is configured.
/// `node`: the name of this node, unless `cluster` has one. Must be called within the tokio runtime.
pub fn start(settings: &etcd::Settings, cluster: &kubernetes::Settings, node: &str, emit: &Emit) {
    let node = cluster.node_name(node);
    if cluster.calico
        && let Ok(door) = cluster.door()
    {
        kubernetes::follow(kdd::blocks(node.clone()), &door, emit);
        kubernetes::follow(kdd::pools(), &door, emit);
    }
    let keys = model::Model::new(node.clone());
    etcd::start(settings, &node, keys, emit);
    etcd::start_pools(settings, pools::Pools::default(), emit);
}
