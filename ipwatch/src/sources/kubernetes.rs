//! The Kubernetes API server: this node's pods and, if configured, Whereabouts' pools. [`calico`](super::calico)
//! follows Calico's objects through the same client. Read only here; the client also serves `sinks::events` and
//! `sinks::conditions`.
//!
//! - `credentials`: the server's address and our identity. `kubeconfig`: parses a kubeconfig. `program`: runs a
//!   credential plugin.
//! - `client`: requests with limits. `connection`: its connections.
//! - `documents`: the fields that are read.
//! - `read`: parses answers while they arrive.
//! - `reflector`: list, watch, resume.
//! - `list`: everything of one kind, once, for commands other than the daemon.
//! - `node`: how many pods this node may have.
//! - `pods`: the pods of this node. `kubelet`: the same from the kubelet, if the API server is not asked.
//! - `whereabouts`: the pools of the cluster. `networks`: the ranges of those pools.

mod branch_enis;
mod client;
mod connection;
mod credentials;
pub(crate) mod documents;
mod error;
#[cfg(test)]
mod fake;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod kubeconfig;
pub(crate) mod kubelet;
pub(crate) mod list;
pub(crate) mod networks;
mod node;
mod pods;
mod program;
mod read;
pub(super) mod reflector;
#[cfg(test)]
mod tests;
pub(crate) mod whereabouts;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use self::client::{Api, Content};
pub(crate) use self::credentials::Credentials;
pub(crate) use self::error::ApiError;
use self::reflector::Kind;
use crate::clock;
use crate::fact::{Fact, Name, Observation, Origin, Source, SourceName, SourceStatus};
use crate::reading::Readings;
use crate::sources::Emit;
use crate::sources::socket::SocketPath;

const SOURCE: &str = SourceName::Kubernetes.as_str();

/// `[kubernetes]`: whether and how the API server is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Whether to ask it. Absent: if a kubeconfig is named, or if running as a pod with a service account.
    pub enabled: Option<bool>,
    /// A kubeconfig; the kubelet's own suffices.
    pub kubeconfig: Option<PathBuf>,
    /// Directory of the service account, with `token` and `ca.crt`.
    pub service_account: Option<PathBuf>,
    /// Also follow Whereabouts' pools, which are those of the whole cluster.
    pub whereabouts: bool,
    /// Also follow Calico's blocks, which are those of the whole cluster, and the endpoints of this node's pods.
    pub calico: bool,
    /// Report findings that fire to the cluster, as Events: `sinks::events`.
    pub events: bool,
    /// The namespaces in which Events may be written. Empty: in all.
    pub event_namespaces: Vec<String>,
    /// Keep conditions about pod IPs on this node's Node object: `sinks::conditions`.
    pub node_conditions: bool,
    /// The name of this node in the cluster.
    pub node: Option<String>,
    /// The name of the cluster.
    pub cluster: Option<String>,
    /// Socket of the kubelet's pod API, which is asked where the API server is not. Empty: neither is.
    pub kubelet_socket: PathBuf,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            enabled: None,
            kubeconfig: None,
            service_account: None,
            whereabouts: false,
            calico: false,
            events: false,
            event_namespaces: Vec::new(),
            node_conditions: false,
            node: None,
            cluster: None,
            kubelet_socket: PathBuf::from(kubelet::SOCKET),
        }
    }
}

impl Settings {
    /// The first path that is not absolute.
    pub(crate) fn wrong_path(&self) -> Option<&Path> {
        let socket = Some(&self.kubelet_socket).filter(|path| !path.as_os_str().is_empty());
        let paths = self.kubeconfig.iter().chain(&self.service_account).chain(socket);
        paths.map(PathBuf::as_path).find(|path| !path.is_absolute())
    }

    /// The first of the namespaces for Events that is no name of a namespace.
    pub(crate) fn wrong_namespace(&self) -> Option<&str> {
        self.event_namespaces.iter().map(String::as_str).find(|name| !Name::Namespace.fits(name))
    }

    /// How to reach the API server. `Err`: why it is not asked.
    pub(crate) fn door(&self) -> Result<Credentials, &'static str> {
        if self.enabled == Some(false) {
            return Err("switched off by the configuration");
        }
        let pod = || Credentials::of_a_pod(self.service_account.as_deref());
        self.kubeconfig.clone().map(Credentials::Kubeconfig).or_else(pod).ok_or(
            "not asked: name a kubeconfig (kubernetes.kubeconfig), or run as a pod with a service account",
        )
    }

    /// The kubelet's socket, if the kubelet is to be asked: only if the API server is not.
    fn fallback(&self) -> Option<PathBuf> {
        let off = self.enabled == Some(false) || self.kubelet_socket.as_os_str().is_empty();
        (!off && self.door().is_err()).then(|| self.kubelet_socket.clone())
    }

    /// The name of this node in the cluster; `node` if no other is known.
    pub(crate) fn node_name(&self, node: &str) -> String {
        self.named_node().unwrap_or_else(|| node.to_owned())
    }

    /// As [`node_name`](Self::node_name), but only if this node is known to be in a cluster.
    pub(crate) fn node_of_a_cluster(&self, node: &str) -> Option<String> {
        if self.enabled == Some(false) {
            return None;
        }
        self.named_node().or_else(|| self.door().ok().map(|_| node.to_owned()))
    }

    fn named_node(&self) -> Option<String> {
        // Set by the manifests, from `spec.nodeName`.
        let told = || std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
        self.node.clone().or_else(told)
    }
}

/// Timeouts of each step, and the pauses between. Pauses are jittered by half.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// For reading the credentials.
    open: Duration,
    /// Until the start of an answer.
    answer: Duration,
    /// For one page of a list.
    list: Duration,
    /// Maximum silence of a watch, including bookmarks.
    silence: Duration,
    /// How long the server is asked to keep a watch open.
    watch: Duration,
    /// Between the end of a watch and the next one.
    between: Duration,
    /// After this time a session or watch counts as successful.
    well: Duration,
    /// First and longest pause after a failure.
    retry: (Duration, Duration),
}

impl Default for Pace {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self {
            open: s(30),
            answer: s(30),
            list: s(60),
            silence: s(180),
            watch: s(480),
            between: s(1),
            well: s(10),
            retry: (s(1), s(60)),
        }
    }
}

/// Starts the source, if the API server or the kubelet can be asked. `node`: the name of this node, unless the settings
/// have one. Must be called within the tokio runtime.
pub fn start(settings: &Settings, node: &str, emit: &Emit, readings: &Readings) {
    let emit = emit.clone();
    let door = settings.door();
    let node = settings.node_name(node);
    if let Ok(door) = &door
        && settings.whereabouts
    {
        follow(whereabouts::Pools::default(), door, &emit);
        follow(networks::Networks::default(), door, &emit);
    }
    if let Ok(door) = &door {
        let (node, door, emit) = (node.clone(), door.clone(), emit.clone());
        tokio::spawn(node::run(node, door, node::Pace::default(), emit));
    }
    let fallback = settings.fallback();
    let fallback = fallback.map(|socket| SocketPath::new(&socket, kubelet::SOURCE, readings));
    let pods = pods::Pods::of(node, settings.calico);
    tokio::spawn(async move {
        match door {
            Ok(door) => reflector::run(pods, door, Pace::default(), emit).await,
            Err(why) => {
                let told = source(SOURCE, SourceStatus::Disabled, why.to_owned());
                if let (Ok(()), Some(way)) = (emit.send(vec![told]).await, fallback) {
                    kubelet::run(way, kubelet::Pace::default(), emit).await;
                }
            }
        }
    });
}

/// Follows one kind of object. Must be called within the tokio runtime.
pub(super) fn follow(kind: impl Kind, door: &Credentials, emit: &Emit) {
    tokio::spawn(reflector::run(kind, door.clone(), Pace::default(), emit.clone()));
}

fn source(name: &str, status: SourceStatus, detail: String) -> Fact {
    let source = Source { name: name.to_owned(), status, detail };
    Fact { at: clock::now(), origin: Origin::Kubernetes, what: Observation::Source(source) }
}
