//! The Docker Engine API, over HTTP on a Unix socket.
//!
//! Requested are the version, the list of containers, the state of each new one, and events. Docker has no sandboxes: a
//! container with its own netns is reported as one, and those that share its netns as its containers. Pods that kubelet
//! runs through dockershim or cri-dockerd are recognised by their names.

mod documents;
#[cfg(test)]
pub(super) mod fake;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod http;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use self::documents::{Capped, Inspected, Listed, Version};
use super::error::RuntimeError;
use super::known::Details;
use super::reporter::{self, Found};
use super::watch::{Event, Events};
use crate::fact::{Container, Life, PodName, Sandbox};
use crate::sources::errors::cut;
use crate::sources::socket::SocketPath;

/// Maximum size in bytes of a list. One container takes a few KiB.
const LIST_LIMIT: usize = 16 << 20;
/// Maximum size in bytes of one container's state, which includes its whole configuration.
const INSPECT_LIMIT: usize = 4 << 20;
const VERSION_LIMIT: usize = 1 << 20;
/// Maximum size in bytes of an event, which includes labels.
const EVENT_LIMIT: usize = 1 << 20;

/// Only container events that change whether one is alive, because every exec probe of a container is an event too.
const EVENTS: &str = concat!(
    "/events?filters=%7B%22type%22%3A%5B%22container%22%5D%2C%22event%22%3A%5B%22create%22%2C",
    "%22start%22%2C%22die%22%2C%22pause%22%2C%22unpause%22%2C%22rename%22%2C%22destroy%22%5D%7D"
);

/// A Docker daemon, or one with the same API.
#[derive(Clone)]
pub(super) struct Client {
    way: SocketPath,
    name: &'static str,
    version: String,
}

impl Client {
    pub(super) async fn connect(way: &SocketPath) -> Result<Self, RuntimeError> {
        let what = "/version";
        let body = http::get(way, what, what).await?.body(VERSION_LIMIT).await?;
        let version: Version = documents::read(what, &body)?;
        let component = version.components.and_then(|components| components.0);
        let is_podman = component.is_some_and(|name| name.starts_with("Podman"));
        Ok(Self {
            way: way.clone(),
            name: if is_podman { "podman" } else { "docker" },
            version: cut(&format!(
                "{}, API {}",
                version.version.unwrap_or_default(),
                version.api_version
            )),
        })
    }

    pub(super) fn name(&self) -> &str {
        self.name
    }

    pub(super) fn version(&self) -> String {
        self.version.clone()
    }

    /// Lists all containers.
    pub(super) async fn list(&self, runtime: &str) -> Result<Found, RuntimeError> {
        let what = "/containers/json";
        let answer = http::get(&self.way, what, "/containers/json?all=true").await?;
        let list: Capped<Listed> = documents::read(what, &answer.body(LIST_LIMIT).await?)?;
        Ok(sorted(runtime, &list))
    }

    /// The netns of one container, and its IPs.
    pub(super) async fn details(&self, id: &str) -> Result<Details, RuntimeError> {
        let what = "/containers/ID/json";
        let target = format!("/containers/{id}/json");
        let answer = http::get(&self.way, what, &target).await?;
        let inspected: Inspected = documents::read(what, &answer.body(INSPECT_LIMIT).await?)?;
        let network = inspected.network_settings.unwrap_or_default();
        let ips = network.networks.unwrap_or_default().0;
        let state = inspected.state;
        let pid = state.as_ref().and_then(|state| state.pid).filter(|pid| *pid > 0);
        let status = state.and_then(|state| state.status);
        Ok(Details {
            pid: pid.and_then(|pid| u32::try_from(pid).ok()),
            netns_path: network.sandbox_key.as_deref().and_then(reporter::path),
            ips: reporter::ips(ips.iter().map(String::as_bytes)),
            host_network: None,
            life: status.as_deref().map(life),
        })
    }

    /// Forwards events until the daemon ends the stream.
    pub(super) async fn events(&self, out: Events) -> Result<(), RuntimeError> {
        let what = "/events";
        let mut answer = http::get(&self.way, what, EVENTS).await?;
        let mut pending: Vec<u8> = Vec::new();
        while let Some(piece) = answer.piece().await? {
            pending.extend_from_slice(&piece);
            while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = pending.drain(..=end).collect();
                if let Some(event) = event(documents::read(what, &line)?) {
                    // If the channel is full, a list is due that shows this change too.
                    let _ = out.try_send(event);
                }
            }
            if pending.len() > EVENT_LIMIT {
                return Err(RuntimeError::TooLarge { what, limit: EVENT_LIMIT >> 20 });
            }
        }
        Ok(())
    }
}

fn event(event: documents::Event) -> Option<Event> {
    let id = event.actor.and_then(|actor| reporter::id(actor.id?.as_bytes()));
    Some(match (event.action?.as_str(), id) {
        ("destroy", Some(id)) => Event::Removed(id),
        ("start", Some(id)) => Event::Started(id),
        _ => Event::Changed,
    })
}

/// The network mode of a container (`HostConfig.NetworkMode`).
enum Network<'a> {
    Own,
    Host,
    /// That of another container, by id or by name.
    Of(&'a str),
}

impl<'a> Network<'a> {
    fn of(listed: &'a Listed) -> Self {
        let mode = listed.host_config.as_ref().and_then(|config| config.network_mode.as_deref());
        match mode {
            Some("host") => Self::Host,
            Some(mode) => mode.strip_prefix("container:").map_or(Self::Own, Self::Of),
            None => Self::Own,
        }
    }
}

fn sorted(runtime: &str, list: &Capped<Listed>) -> Found {
    let mut found = Found { dropped: list.more, ..Found::default() };
    let mut names = None;
    for listed in &list.items {
        let Some(id) = reporter::id(listed.id.as_bytes()) else {
            found.leave_out();
            continue;
        };
        let name = own_name(listed);
        let kubelets = name.and_then(Kubelets::parse);
        let network = Network::of(listed);
        match (&kubelets, &network) {
            (Some(Kubelets::Container { name, .. }), _) => {
                let name = Some(*name);
                let names = names.get_or_insert_with(|| documents::by_name(&list.items));
                found.containers.push(container(runtime, id, name, &network, names, listed));
            }
            (None, Network::Of(_)) => {
                let names = names.get_or_insert_with(|| documents::by_name(&list.items));
                found.containers.push(container(runtime, id, name, &network, names, listed));
            }
            (kubelets, _) => {
                let host_network = matches!(network, Network::Host);
                found.sandboxes.push(sandbox(
                    runtime,
                    id,
                    name,
                    kubelets.as_ref(),
                    host_network,
                    listed,
                ));
            }
        }
    }
    found
}

fn sandbox(
    runtime: &str,
    id: String,
    name: Option<&str>,
    kubelets: Option<&Kubelets<'_>>,
    host_network: bool,
    listed: &Listed,
) -> Sandbox {
    let (life, word) = life(listed.state.as_deref().unwrap_or_default());
    let pod = kubelets.and_then(Kubelets::pod);
    let name = name.filter(|_| pod.is_none()).and_then(|name| reporter::named(name.as_bytes()));
    let networks = listed.network_settings.as_ref().and_then(|network| network.networks.as_ref());
    let ips = networks.map(|networks| networks.0.as_slice()).unwrap_or_default();
    Sandbox {
        runtime: runtime.to_owned(),
        id,
        attempt: kubelets.and_then(Kubelets::attempt),
        pod,
        name,
        life,
        word: word.to_owned(),
        created: listed.created.and_then(|seconds| seconds.checked_mul(1_000_000_000)),
        ips: reporter::ips(ips.iter().map(String::as_bytes)),
        netns_path: None,
        pid: None,
        host_network,
    }
}

fn container(
    runtime: &str,
    id: String,
    name: Option<&str>,
    network: &Network<'_>,
    names: &BTreeMap<&str, &str>,
    listed: &Listed,
) -> Container {
    let (life, word) = life(listed.state.as_deref().unwrap_or_default());
    let sandbox = match network {
        Network::Of(other) => {
            let id = names.get(other).copied().unwrap_or(other);
            reporter::id(id.as_bytes())
        }
        Network::Own | Network::Host => None,
    };
    let name = name.and_then(|name| reporter::named(name.as_bytes()));
    Container { runtime: runtime.to_owned(), id, sandbox, name, life, word: word.to_owned() }
}

/// A container's own name. Other names are links, `/other/alias`.
fn own_name(listed: &Listed) -> Option<&str> {
    let mut names = listed.names.as_deref().unwrap_or_default().iter();
    names.find_map(|name| name.strip_prefix('/').filter(|name| !name.contains('/')))
}

/// `State.Status` (moby, `State.StateString`).
fn life(status: &str) -> (Life, &'static str) {
    match status {
        "running" => (Life::Alive, "running"),
        "paused" => (Life::Alive, "paused"),
        "exited" => (Life::Dead, "exited"),
        "dead" => (Life::Dead, "dead"),
        "removing" => (Life::Dead, "removing"),
        "created" => (Life::Unclear, "created"),
        "restarting" => (Life::Unclear, "restarting"),
        _ => (Life::Unclear, "unknown"),
    }
}

/// A container that kubelet created: `k8s_CONTAINER_POD_NAMESPACE_UID_ATTEMPT` (dockershim and cri-dockerd,
/// `makeContainerName`, `makeSandboxName`). None of these parts can contain `_`. After a name conflict a random part
/// follows.
enum Kubelets<'a> {
    Sandbox { pod: &'a str, namespace: &'a str, uid: &'a str, attempt: Option<u32> },
    Container { name: &'a str },
}

impl<'a> Kubelets<'a> {
    fn parse(name: &'a str) -> Option<Self> {
        let parts: Vec<&str> = name.splitn(8, '_').collect();
        let (["k8s", name, pod, namespace, uid, attempt]
        | ["k8s", name, pod, namespace, uid, attempt, _]) = *parts.as_slice()
        else {
            return None;
        };
        Some(if name == "POD" {
            Self::Sandbox { pod, namespace, uid, attempt: attempt.parse().ok() }
        } else {
            Self::Container { name }
        })
    }

    fn pod(&self) -> Option<PodName> {
        match self {
            Self::Sandbox { pod, namespace, uid, .. } => {
                reporter::pod(namespace.as_bytes(), pod.as_bytes(), uid.as_bytes())
            }
            Self::Container { .. } => None,
        }
    }

    fn attempt(&self) -> Option<u32> {
        match self {
            Self::Sandbox { attempt, .. } => *attempt,
            Self::Container { .. } => None,
        }
    }
}
