//! The kinds of IPAM stores.

use crate::fact::store;

/// Stores of the whole cluster: a reservation that no runtime of this node knows may be another node's. Calico records
/// the node of a block, but that is no proof for a node that was renamed, or removed and added again.
const OF_THE_CLUSTER: [&str; 2] = [store::WHEREABOUTS, store::CALICO];
/// Stores that report usage by blocks, and the source that reports their pools.
pub(super) const BY_BLOCKS: [(&str, &str); 1] = [(store::CALICO, store::CALICO_POOLS)];

/// Stores whose IPs are not freed by a CNI plugin.
const WITHOUT_CNI: [&str; 2] = [store::LIBNETWORK, store::NETAVARK];

/// Stores of which a reservation is no more than what a pod's object says: it ends with the object and not with the pod,
/// and whoever may create pods may have written it. It is shown to people; no finding rests on it.
const BY_POD_OBJECT: [&str; 1] = [store::AWS_BRANCH_ENI];

/// Whether a reservation of a store is no more than what a pod's object says.
pub(in crate::map) fn is_by_pod_object(store: &str) -> bool {
    BY_POD_OBJECT.contains(&store)
}

/// Whether a CNI plugin frees the reservations of a store.
#[must_use]
pub fn is_freed_by_cni(store: &str) -> bool {
    !WITHOUT_CNI.contains(&store)
}

/// Whether a store has the reservations of other nodes too.
#[must_use]
pub fn is_of_the_cluster(store: &str) -> bool {
    OF_THE_CLUSTER.contains(&store)
}

/// Whether a store reports usage by blocks.
pub(in crate::map) fn is_by_blocks(store: &str) -> bool {
    BY_BLOCKS.iter().any(|(own, _)| *own == store)
}
