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
    /// Every node on which a pod of ipwatch is, by name.
    pub nodes: Vec<FleetNode>,
}

/// One node, and its answers or why there are none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetNode {
    /// The node.
    pub node: String,
    /// The pod of ipwatch on it.
    pub pod: String,
    /// Why it has not answered: nothing is known about this node then. May quote hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// `query findings`; or `query ip`, `query history` and `query ipam` of one IP.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub documents: Vec<Document>,
}
