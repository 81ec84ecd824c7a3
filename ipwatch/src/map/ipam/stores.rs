//! What kinds of stores there are.

use crate::fact::store;

/// Stores that are the whole cluster's: what no runtime of this node knows may be another node's. Calico says whose
/// a block is, and its word on a node that has another name now, or is gone and came back, is no proof.
const OF_THE_CLUSTER: [&str; 2] = [store::WHEREABOUTS, store::CALICO];
/// Stores that tell so, and the source that tells of their pools.
pub(super) const BY_BLOCKS: [(&str, &str); 1] = [(store::CALICO, store::CALICO_POOLS)];

/// Stores whose IPs are not freed by a CNI plugin.
const WITHOUT_CNI: [&str; 2] = [store::LIBNETWORK, store::NETAVARK];

/// Whether a CNI plugin frees what is reserved in a store.
pub(in crate::map) fn is_freed_by_cni(store: &str) -> bool {
    !WITHOUT_CNI.contains(&store)
}

/// Whether a store has the reservations of other nodes too.
#[must_use]
pub fn is_of_the_cluster(store: &str) -> bool {
    OF_THE_CLUSTER.contains(&store)
}

/// Whether a store tells by blocks what is taken.
pub(in crate::map) fn is_by_blocks(store: &str) -> bool {
    BY_BLOCKS.iter().any(|(own, _)| *own == store)
}
