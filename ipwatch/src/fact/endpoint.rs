//! What a CNI's own datastore says of the pods that it has wired.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// A workload endpoint of this node, as Calico's agent goes by: without one it takes a pod's device for nobody's.
/// Each fact is whole: what it lacks the datastore does not tell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Name of the source that tells of it: `calico`, or `kubernetes` where the pod itself is the endpoint.
    pub store: String,
    /// Its key there. Hostile text.
    pub key: String,
    /// The pod's namespace. Hostile text.
    pub namespace: String,
    /// The pod. Hostile text.
    pub pod: String,
    /// For which container. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The node's end of its device. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Its IPs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<IpAddr>,
}
