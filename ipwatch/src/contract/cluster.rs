//! The part of the contract that no node answers: what `ipwatch cluster scan` finds.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::Severity;
use super::Step;

/// What no node alone can know: `cluster scan`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cluster {
    /// The API server.
    pub server: String,
    /// What the stores of the cluster can hand out.
    pub ranges: Vec<ClusterRange>,
    /// What is wrong, the worst first.
    pub findings: Vec<ClusterFinding>,
    /// So many more are not listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u64,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// What a store of the cluster can hand out, and how much of it is taken.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ClusterRange {
    /// `whereabouts` or `calico`.
    pub store: String,
    /// The object: `ippools.whereabouts.cni.cncf.io kube-system/10.0.0.0-27`. Hostile text.
    pub object: String,
    /// First and last IPs that it hands out, parts apart by `, `; or the prefix, where the bounds are unknown.
    pub range: String,
    /// Where the bounds come from. Hostile text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<String>,
    /// IPs that it can hand out. Absent: the bounds are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usable: Option<u64>,
    /// IPs allocated.
    pub used: u64,
    /// IPs allocated for what is gone.
    pub leaked: u64,
    /// IPs allocated for a pod that lives and does not have them, as far as is known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub doubtful: u64,
    /// IPs that it can still hand out. Absent: the bounds are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free: Option<u64>,
    /// IPs that it can hand out again once what has leaked is freed.
    pub recoverable: u64,
    /// Whether the allocations could be compared with the pods. If not, `leaked` is 0 and says nothing.
    pub compared: bool,
}

/// One thing that is wrong with what the cluster keeps of IPs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterFinding {
    /// Which kind.
    pub code: String,
    /// How soon a person must act.
    pub severity: Severity,
    /// `certain`, `likely` or `doubtful`.
    pub certainty: String,
    /// The IP it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<IpAddr>,
    /// The object it stands in, as in [`ClusterRange::object`]. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// Where in the object: the offset or ordinal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<String>,
    /// The container's id or Calico's handle. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The pod that it names, and those that have the IP: `namespace/name`. Hostile text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<String>,
    /// The nodes it is about. Hostile text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// What is wrong, in one line. Hostile text.
    pub why: String,
    /// What else is known. Hostile text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<String>,
    /// What to do, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remediation: Vec<Step>,
}
