//! What container runtimes say of their sandboxes and containers.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::PodName;

/// A pod sandbox, or with Docker a container that has a netns of its own. Each fact is whole: what it
/// lacks the runtime does not tell, or was not asked yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Name of the source that tells: `containerd`, `cri-o`, `docker`.
    pub runtime: String,
    /// Its id in that runtime.
    pub id: String,
    /// The pod. Absent for a container that no kubelet made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodName>,
    /// Attempt number of the sandbox within its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Name of a container that no kubelet made. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether it lives, as far as the runtime knows.
    pub life: Life,
    /// The runtime's own word for it: `Ready`, `NotReady`, `running`, `exited`, `dead`, `removing`.
    pub word: String,
    /// When it was made, Unix time in nanoseconds by the runtime's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<i64>,
    /// The IPs that the runtime believes it has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<IpAddr>,
    /// Path of its netns on the node, where the runtime tells. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns_path: Option<String>,
    /// Its first process, where the runtime tells, while it lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// It shares the node's netns: no address is its own.
    #[serde(default)]
    pub host_network: bool,
}

/// A container within a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// Name of the source that tells.
    pub runtime: String,
    /// Its id in that runtime.
    pub id: String,
    /// The sandbox it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Its name in the pod. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether it lives, as far as the runtime knows.
    pub life: Life,
    /// The runtime's own word for it: `Running`, `Exited`, …
    pub word: String,
}

/// Whether a runtime believes that something lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Life {
    /// It runs, or is paused.
    Alive,
    /// It has ended, or is being removed.
    Dead,
    /// It is being made, or the runtime does not know itself.
    Unclear,
}
