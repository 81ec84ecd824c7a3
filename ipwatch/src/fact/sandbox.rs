//! The containers of netns, according to the CNI result cache.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// One interface of one container, as libcni cached the result of its ADD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The sandbox's container id.
    pub container_id: String,
    /// The interface in the container.
    pub ifname: String,
    /// The network's name in its conflist.
    pub network: String,
    /// Path of the netns, if the result has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns_path: Option<String>,
    /// IPs with their prefix lengths.
    pub ips: Vec<(IpAddr, u8)>,
    /// When the cache entry was written, as Unix time in nanoseconds: the end of the ADD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<i64>,
    /// The pod, from the `K8S_POD_*` arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodName>,
}

/// A pod as its CNI arguments name it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodName {
    /// `K8S_POD_NAMESPACE`.
    pub namespace: String,
    /// `K8S_POD_NAME`.
    pub name: String,
    /// `K8S_POD_UID`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}
