//! The part of the contract about many nodes: `kubectl ipwatch findings` and `kubectl ipwatch ip`.

use serde::{Deserialize, Serialize};

use super::Document;

/// What the ipwatch of each node has answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fleet {
    /// `ipwatch/v1`.
    pub schema: String,
    /// When the last node answered, RFC 3339.
    pub taken_at: String,
    /// Every node of the cluster but Windows nodes, by name. Only those with a pod of ipwatch, if `nodes_unlisted` is set.
    pub nodes: Vec<FleetNode>,
    /// Why the nodes of the cluster could not be listed: whether others exist, without a pod of ipwatch, is unknown then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes_unlisted: Option<String>,
}

/// One node, and its answers or why there are none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetNode {
    /// The node.
    pub node: String,
    /// The pod of ipwatch on it; empty if there is none.
    pub pod: String,
    /// Why it has not answered: nothing is known about this node then. May quote hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// `query findings`; or `query ip`, `query history` and `query ipam` of one IP.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub documents: Vec<Document>,
}
