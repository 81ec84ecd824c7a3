//! Endpoints of pods in a CNI's own datastore.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// A workload endpoint of this node in Calico's datastore: without one, Calico's agent treats a pod's device as unused.
/// Each fact is complete: what it lacks is not in the datastore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Name of the source that reports it: `calico`, or `kubernetes` if the pod itself is the endpoint.
    pub store: String,
    /// Its key in the datastore. Hostile text.
    pub key: String,
    /// The pod's namespace. Hostile text.
    pub namespace: String,
    /// The pod. Hostile text.
    pub pod: String,
    /// The container that it is for. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The node's end of the pod's device. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Its IPs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<IpAddr>,
}
