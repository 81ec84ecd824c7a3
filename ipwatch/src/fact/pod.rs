//! Pods of this node, as the API server reports them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// A pod as the API server has it. Each fact is complete: what it lacks is not set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// `metadata.uid`: never reused.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// `status.phase`. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// `status.podIPs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<IpAddr>,
    /// `metadata.deletionTimestamp`: when it should be removed. Unix time in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<i64>,
    /// How long its processes may take to end, in seconds: `metadata.deletionGracePeriodSeconds`, else
    /// `spec.terminationGracePeriodSeconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace: Option<u64>,
    /// The uid that the kubelet gave to the static pod that this one represents: the pod in the API server is only its
    /// mirror, and may be removed and recreated while the static pod lives on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror_of: Option<String>,
}
