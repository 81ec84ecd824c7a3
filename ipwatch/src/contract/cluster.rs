//! The part of the contract that no node answers: the result of `ipwatch cluster scan`.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::Severity;
use super::Step;

/// The result of `cluster scan`: what no single node can know.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cluster {
    /// The API server.
    pub server: String,
    /// The ranges of the cluster's stores.
    pub ranges: Vec<ClusterRange>,
    /// The findings, the worst first.
    pub findings: Vec<ClusterFinding>,
    /// Number of further findings that are not listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u64,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// A range of a store of the cluster, and how much of it is taken.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ClusterRange {
    /// `whereabouts` or `calico`.
    pub store: String,
    /// The object: `ippools.whereabouts.cni.cncf.io kube-system/10.0.0.0-27`. Hostile text.
    pub object: String,
    /// First and last IPs that it hands out, parts separated by `, `; or the prefix, if the bounds are unknown.
    pub range: String,
    /// The source of the bounds. Hostile text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<String>,
    /// Number of IPs that it can hand out. Absent if the bounds are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usable: Option<u64>,
    /// Number of allocated IPs.
    pub used: u64,
    /// Number of IPs allocated for something that no longer exists.
    pub leaked: u64,
    /// Number of IPs allocated for a living pod that does not have them, as far as known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub doubtful: u64,
    /// Number of IPs that it can still hand out. Absent if the bounds are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free: Option<u64>,
    /// Number of IPs that it can hand out again once the leaks are freed.
    pub recoverable: u64,
    /// Whether the allocations could be compared with the pods. If not, `leaked` is 0 and means nothing.
    pub compared: bool,
}

/// An error in the cluster's IPAM data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterFinding {
    /// The kind.
    pub code: String,
    /// How soon a person must act.
    pub severity: Severity,
    /// `certain`, `likely` or `doubtful`.
    pub certainty: String,
    /// The IP it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<IpAddr>,
    /// The object that contains it, as in [`ClusterRange::object`]. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// The place in the object: the offset or ordinal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<String>,
    /// The container's id or Calico's handle. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The pod that the entry names, and those that have the IP: `namespace/name`. Hostile text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<String>,
    /// The nodes concerned. Hostile text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// What is wrong, in one line. Hostile text.
    pub why: String,
    /// Further evidence. Hostile text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<String>,
    /// What to do, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remediation: Vec<Step>,
}
