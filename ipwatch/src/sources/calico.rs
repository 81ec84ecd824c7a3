//! Calico's own word on its IPs and endpoints. Read only.
//!
//! Calico keeps the same things in one of two places: as objects of the API server, or as keys of an etcd of its
//! own. What they mean is here, whatever they are kept in.
//!
//! - `documents`: the fields that are read of a block, a pool and an endpoint.
//! - `blocks`: the blocks of the cluster: what of them is this node's, and how much of each is taken.
//! - `pools`: what they are cut from, in either place.
//! - `endpoints`: the endpoints of this node.
//! - `keys`: what is told of either, key by key.
//! - `kdd`: blocks and pools as objects of the API server. There an endpoint is the pod itself:
//!   [`kubernetes`](super::kubernetes) tells of it.
//! - `etcd`: where it is an etcd of its own. `model`: what its keys mean.

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

/// Name of the store, and of its source.
pub(in crate::sources) const STORE: &str = store::CALICO;
/// Name of the source of its pools.
const POOLS: &str = store::CALICO_POOLS;

/// Starts to ask for Calico's objects in the API server, if `cluster` says so, and an etcd, if one is named. `node`: what
/// this node is called, unless `cluster` knows better. To be called within the runtime of tokio.
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
