//! Kubernetes' Container Runtime Interface, over gRPC on a Unix socket.
//!
//! Requested are the version, the list of sandboxes, the list of containers, and once for each sandbox its verbose
//! status. A container's verbose status, which contains its environment, is never requested.

mod events;
#[cfg(test)]
pub(super) mod fake;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod info;
pub(super) mod messages;
#[cfg(test)]
mod tests;

use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

use self::messages::{
    All, Capped, Container, PodSandbox, PodSandboxStatusRequest, PodSandboxStatusResponse,
    VersionResponse,
};
use super::error::RuntimeError;
use super::known::Details;
use super::reporter::{self, Found};
use crate::fact::{self, Life};
use crate::sources::errors::cut;
use crate::sources::grpc::{self, Refusal};
use crate::sources::socket::SocketPath;

/// Maximum size in bytes of a list. 10,000 containers with their labels and annotations take a few MiB.
const LIST_LIMIT: usize = 16 << 20;
/// Maximum size in bytes of one sandbox's status.
const STATUS_LIMIT: usize = 4 << 20;
/// Maximum size in bytes of any other answer.
const SMALL_LIMIT: usize = 256 << 10;
/// Number of requests that may wait for the connection.
const QUEUE: usize = 16;

/// The newest first: the next is tried only if the runtime does not know this one.
const VERSIONS: [&str; 2] = ["v1", "v1alpha2"];

/// `PodSandboxState`
const SANDBOX_READY: i32 = 0;
/// `NamespaceMode`
const NODE: i32 = 2;

/// A runtime that speaks the CRI.
#[derive(Clone)]
pub(super) struct Client {
    channel: Channel,
    /// `v1`, `v1alpha2`
    api: &'static str,
    name: String,
    version: String,
}

impl Client {
    pub(super) async fn connect(way: &SocketPath) -> Result<Self, RuntimeError> {
        let channel = grpc::connect(way, QUEUE).await?;
        for api in VERSIONS {
            let mut client =
                Self { channel: channel.clone(), api, name: String::new(), version: String::new() };
            match client.call::<_, VersionResponse>("Version", All {}, SMALL_LIMIT).await {
                Ok(version) => {
                    client.name = reporter::name(&version.runtime_name);
                    client.version = cut(&reporter::name(&version.runtime_version));
                    return Ok(client);
                }
                Err(RuntimeError::NoCri) => {}
                Err(error) => return Err(error),
            }
        }
        Err(RuntimeError::NoCri)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn version(&self) -> String {
        format!("{}, CRI {}", self.version, self.api)
    }

    /// Lists all sandboxes and containers.
    pub(super) async fn list(&self, runtime: &str) -> Result<Found, RuntimeError> {
        let mut found = Found::default();
        let sandboxes: Capped<PodSandbox> = self.call("ListPodSandbox", All {}, LIST_LIMIT).await?;
        found.dropped += sandboxes.more;
        for item in sandboxes.items {
            match sandbox(runtime, &item) {
                Some(sandbox) => found.sandboxes.push(sandbox),
                None => found.leave_out(),
            }
        }
        let containers: Capped<Container> = self.call("ListContainers", All {}, LIST_LIMIT).await?;
        found.dropped += containers.more;
        for item in containers.items {
            match container(runtime, &item) {
                Some(container) => found.containers.push(container),
                None => found.leave_out(),
            }
        }
        Ok(found)
    }

    /// The netns of one sandbox, and its IPs.
    pub(super) async fn details(&self, id: &str) -> Result<Details, RuntimeError> {
        let request = PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: true };
        let answer: PodSandboxStatusResponse =
            self.call("PodSandboxStatus", request, STATUS_LIMIT).await?;
        let info = answer.info.get("info").map(|json| info::read(json)).unwrap_or_default();
        let status = answer.status.unwrap_or_default();
        let network = status.network.unwrap_or_default();
        let ips = std::iter::once(&network.ip)
            .chain(network.additional_ips.iter().map(|other| &other.ip))
            .map(|ip| &ip[..]);
        let options = status.linux.and_then(|linux| linux.namespaces?.options);
        Ok(Details {
            pid: info.pid,
            netns_path: info.netns_path,
            ips: reporter::ips(ips),
            host_network: options.map(|options| options.network == NODE),
            life: Some(sandbox_life(status.state)),
        })
    }

    /// Calls a method of the runtime's service.
    async fn call<Q, A>(
        &self,
        method: &'static str,
        request: Q,
        limit: usize,
    ) -> Result<A, RuntimeError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let (mut grpc, path) = self.grpc(&self.service(), method, limit).await?;
        let codec = tonic_prost::ProstCodec::<Q, A>::default();
        let answer = grpc.unary(Request::new(request), path, codec).await;
        answer.map(tonic::Response::into_inner).map_err(|status| refusal(method, limit, &status))
    }

    /// Calls a method whose answer is a stream. Returns when the first part of it arrives.
    async fn stream<Q, A>(
        &self,
        service: &str,
        method: &'static str,
        request: Q,
    ) -> Result<Streaming<A>, RuntimeError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let (mut grpc, path) = self.grpc(service, method, SMALL_LIMIT).await?;
        let codec = tonic_prost::ProstCodec::<Q, A>::default();
        let answer = grpc.server_streaming(Request::new(request), path, codec).await;
        let refused = |status| refusal(method, SMALL_LIMIT, &status);
        answer.map(tonic::Response::into_inner).map_err(refused)
    }

    fn service(&self) -> String {
        format!("runtime.{}.RuntimeService", self.api)
    }

    async fn grpc(
        &self,
        service: &str,
        method: &'static str,
        limit: usize,
    ) -> Result<(Grpc<Channel>, PathAndQuery), RuntimeError> {
        let path = PathAndQuery::from_maybe_shared(format!("/{service}/{method}"))
            .map_err(|error| RuntimeError::Garbage { what: method, why: error.to_string() })?;
        let broken = |why| RuntimeError::Garbage { what: method, why };
        Ok((grpc::ready(&self.channel, limit).await.map_err(broken)?, path))
    }
}

fn refusal(what: &'static str, limit: usize, status: &Status) -> RuntimeError {
    match Refusal::of(limit, status) {
        Refusal::NotOffered => RuntimeError::NoCri,
        Refusal::TooLarge(limit) => RuntimeError::TooLarge { what, limit },
        Refusal::Broken(why) => RuntimeError::Garbage { what, why },
        Refusal::Said(_, why) => RuntimeError::Refused { what, why },
    }
}

fn sandbox(runtime: &str, item: &PodSandbox) -> Option<fact::Sandbox> {
    let metadata = item.metadata.clone().unwrap_or_default();
    let (life, word) = sandbox_life(item.state);
    Some(fact::Sandbox {
        runtime: runtime.to_owned(),
        id: reporter::id(&item.id)?,
        pod: reporter::pod(&metadata.namespace, &metadata.name, &metadata.uid),
        attempt: Some(metadata.attempt),
        name: None,
        life,
        word: word.to_owned(),
        created: Some(item.created_at).filter(|created| *created > 0),
        ips: Vec::new(),
        netns_path: None,
        pid: None,
        host_network: false,
    })
}

fn sandbox_life(state: i32) -> (Life, &'static str) {
    if state == SANDBOX_READY { (Life::Alive, "Ready") } else { (Life::Dead, "NotReady") }
}

fn container(runtime: &str, item: &Container) -> Option<fact::Container> {
    let (life, word) = container_life(item.state);
    Some(fact::Container {
        runtime: runtime.to_owned(),
        id: reporter::id(&item.id)?,
        sandbox: reporter::id(&item.pod_sandbox_id),
        name: item.metadata.as_ref().and_then(|metadata| reporter::named(&metadata.name)),
        life,
        word: word.to_owned(),
    })
}

/// `ContainerState`
fn container_life(state: i32) -> (Life, &'static str) {
    match state {
        0 => (Life::Unclear, "Created"),
        1 => (Life::Alive, "Running"),
        2 => (Life::Dead, "Exited"),
        _ => (Life::Unclear, "Unknown"),
    }
}
