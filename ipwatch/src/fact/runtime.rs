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

/// The kinds of container runtimes that are told apart by their processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Engine {
    /// containerd, for whoever speaks CRI to it.
    #[serde(rename = "containerd")]
    Containerd,
    /// CRI-O.
    #[serde(rename = "cri-o")]
    CriO,
    /// dockerd, with the containerd behind it.
    #[serde(rename = "docker")]
    Docker,
    /// podman, which has no daemon unless somebody serves its API.
    #[serde(rename = "podman")]
    Podman,
}

impl Engine {
    /// As the runtimes call themselves.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Engine::Containerd => "containerd",
            Engine::CriO => "cri-o",
            Engine::Docker => "docker",
            Engine::Podman => "podman",
        }
    }
}

/// A container runtime that runs on the node, whether or not it is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeProcess {
    /// Its process.
    pub pid: u32,
    /// What it is.
    pub engine: Engine,
    /// Unix sockets on which it listens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sockets: Vec<String>,
    /// State directories in which its containers' bundles lie. Empty: not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dirs: Vec<String>,
    /// ipwatch asks it: one of its sockets is configured, or was found in its usual place.
    #[serde(default)]
    pub asked: bool,
    /// The configuration says that no pod of this node is its.
    #[serde(default)]
    pub ignored: bool,
}

/// The process beside a container that its runtime left there to wait for it: a containerd-shim or a conmon. While
/// it runs, the container is somebody's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Monitor {
    /// Its process.
    pub pid: u32,
    /// The runtime that started it, as far as it can be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<Engine>,
    /// That runtime's state directory, by the working directory of the monitor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// The containerd namespace, by the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The container, by the same: of a pod's shim the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// Its children: the first processes of its containers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<u32>,
    /// The configuration says that no pod of this node is its.
    #[serde(default)]
    pub ignored: bool,
}
