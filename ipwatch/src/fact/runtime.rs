//! Sandboxes and containers, as container runtimes report them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{BootNs, PodName};

/// A pod sandbox, or with Docker a container with a netns of its own. Each fact is complete: what it lacks the runtime
/// does not report, or was not queried yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Name of the source: `containerd`, `cri-o`, `docker`.
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
    /// Whether it lives, according to the runtime.
    pub life: Life,
    /// The runtime's own word for its state: `Ready`, `NotReady`, `running`, `exited`, `dead`, `removing`.
    pub word: String,
    /// When it was created, as Unix time in nanoseconds by the runtime's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<i64>,
    /// The IPs that it has according to the runtime.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<IpAddr>,
    /// Path of its netns on the node, if the runtime reports it. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns_path: Option<String>,
    /// Its first process, if the runtime reports it, while it lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Whether it shares the node's netns: no address is its own.
    #[serde(default)]
    pub host_network: bool,
}

/// A container within a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// Name of the source.
    pub runtime: String,
    /// Its id in that runtime.
    pub id: String,
    /// The sandbox that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Its name in the pod. Hostile text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether it lives, according to the runtime.
    pub life: Life,
    /// The runtime's own word for its state: `Running`, `Exited`, …
    pub word: String,
}

/// Whether something lives, according to a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Life {
    /// It runs, or is paused.
    Alive,
    /// It has ended, or is being removed.
    Dead,
    /// It is being created, or the runtime does not know its state.
    Unclear,
}

/// Kinds of container runtimes, identified by their processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Engine {
    /// containerd, for clients of its CRI.
    #[serde(rename = "containerd")]
    Containerd,
    /// CRI-O.
    #[serde(rename = "cri-o")]
    CriO,
    /// dockerd, with the containerd behind it.
    #[serde(rename = "docker")]
    Docker,
    /// podman, which has no daemon unless its API service runs.
    #[serde(rename = "podman")]
    Podman,
}

impl Engine {
    /// The runtimes' own names.
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

/// A container runtime that runs on the node, whether or not it is queried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeProcess {
    /// Its process.
    pub pid: u32,
    /// The kind of runtime.
    pub engine: Engine,
    /// When it was started. Of a dockerd with a containerd of its own: when the dockerd was, which makes the netns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<BootNs>,
    /// Unix sockets on which it listens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sockets: Vec<String>,
    /// State directories with the bundles of its containers. Empty if unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dirs: Vec<String>,
    /// Whether ipwatch queries it: one of its sockets is configured, or was found in its usual place.
    #[serde(default)]
    pub asked: bool,
    /// Whether the configuration says that it has no pod of this node.
    #[serde(default)]
    pub ignored: bool,
}

/// The process that a runtime left to wait for a container: a containerd-shim or a conmon. While it runs, the container
/// has an owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Monitor {
    /// Its process.
    pub pid: u32,
    /// The runtime that started it, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<Engine>,
    /// That runtime's state directory, according to the monitor's working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// The containerd namespace, according to the working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The container, according to the working directory; for a pod's shim the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// Its children: the first processes of its containers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<u32>,
    /// Whether the configuration says that it has no pod of this node.
    #[serde(default)]
    pub ignored: bool,
}
