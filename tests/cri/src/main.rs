//! `ipwatch-test-cri SOCKET COMMAND …`: runs pods in a real containerd, as kubelet would, or answers in place of a
//! containerd where there is none.
//!
//! A separate program, so that the test binary, which is also loaded into VMs, contains no gRPC.
//!
//! - `ready`: succeeds if the runtime and its network are ready.
//! - `network HANDLER`: succeeds if a network is loaded for this handler of the runtime.
//! - `sandbox KEY=VALUE…`: creates a sandbox and prints its id. Keys: `namespace`, `name`, `uid`, `attempt`,
//!   `host-network` (any value), `handler` (of the runtime), `secret` (set in labels and annotations),
//!   `net-admin` (any value: the container has that capability), `ids` (the first of the 65,536 ids of a user namespace).
//! - `container SANDBOX KEY=VALUE… -- COMMAND…`: creates a container in it that runs COMMAND, and prints its id.
//!   Further keys: `image`, `dir` (the directory of the host that it sees as `/host`), `secret` (set in its
//!   environment too). The sandbox's keys have to be repeated: the runtime asks for them.
//! - `stop SANDBOX`, `remove SANDBOX`: stops or removes the sandbox.
//! - `purge FIRST LAST`: stops and removes every sandbox whose pod's uid begins with FIRST and ends with LAST.
//! - `stop-container CONTAINER SECONDS`: sends SIGTERM, and SIGKILL after SECONDS.
//! - `list`: prints a line `ID STATE NAMESPACE/NAME ATTEMPT` for each sandbox, then one for each container, indented.
//! - `serve FILE`: a mock runtime that answers from FILE as it is at each call (see [`serve`]).

mod config;
mod cri;
mod serve;

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use hyper_util::rt::TokioIo;
use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint, Uri};

use config::Wanted;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ipwatch-test-cri: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &[String]) -> Result<()> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let [socket, command, rest @ ..] = words.as_slice() else {
        bail!("usage: SOCKET ready|network|sandbox|container|stop|remove|purge|list|serve …");
    };
    if *command == "serve" {
        let [file] = rest else { bail!("usage: SOCKET serve FILE") };
        return serve::serve(socket, file).await;
    }
    let mut runtime = Runtime::connect(socket).await?;
    match (*command, rest) {
        ("ready", []) => runtime.ready().await,
        ("network", [handler]) => runtime.network(handler).await,
        ("sandbox", keys) => runtime.sandbox(&Wanted::parse(keys)?).await,
        ("container", [sandbox, keys @ ..]) => {
            runtime.container(sandbox, &Wanted::parse(keys)?).await
        }
        ("stop", [sandbox]) => runtime.act("StopPodSandbox", sandbox).await,
        ("remove", [sandbox]) => runtime.act("RemovePodSandbox", sandbox).await,
        ("purge", [first, last]) => runtime.purge(first, last).await,
        ("stop-container", [container, seconds]) => {
            runtime.stop_container(container, seconds.parse().context("seconds")?).await
        }
        ("list", []) => runtime.list().await,
        _ => bail!("{command}: no such command, or not with these arguments"),
    }
}

struct Runtime(Grpc<Channel>);

impl Runtime {
    async fn connect(socket: &str) -> Result<Self> {
        let path = socket.to_owned();
        // The URI is not used: the connector connects to the socket.
        let channel = Endpoint::from_static("http://cri.local")
            .connect_with_connector(tower::service_fn(move |_: Uri| {
                let path = path.clone();
                async move { tokio::net::UnixStream::connect(path).await.map(TokioIo::new) }
            }))
            .await
            .with_context(|| format!("connect to {socket}"))?;
        Ok(Self(Grpc::new(channel)))
    }

    async fn call<Q, A>(&mut self, method: &'static str, request: Q) -> Result<A>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        self.0.ready().await?;
        let codec = tonic_prost::ProstCodec::<Q, A>::default();
        let path = PathAndQuery::from_maybe_shared(format!("/runtime.v1.RuntimeService/{method}"))?;
        let answer = self.0.unary(tonic::Request::new(request), path, codec).await;
        Ok(answer.with_context(|| method.to_owned())?.into_inner())
    }

    /// Succeeds if the runtime and its network are ready.
    async fn ready(&mut self) -> Result<()> {
        let answer = self.status(false).await?;
        let conditions = answer.status.map(|status| status.conditions).unwrap_or_default();
        match conditions.iter().find(|condition| !condition.status) {
            None if !conditions.is_empty() => Ok(()),
            Some(condition) => bail!("{}: {}", condition.kind, condition.message),
            None => bail!("no conditions told"),
        }
    }

    async fn status(&mut self, verbose: bool) -> Result<cri::StatusResponse> {
        self.call("Status", cri::StatusRequest { verbose }).await
    }

    /// containerd's status of its last CNI load for a handler that has its own directory of networks
    /// (`criService.Status`, pkg/cri/server/status.go, since 1.6).
    async fn network(&mut self, handler: &str) -> Result<()> {
        let answer = self.status(true).await?;
        match answer.info.get(&format!("lastCNILoadStatus.{handler}")).map(String::as_str) {
            Some("OK") => Ok(()),
            Some(said) => bail!("{said}"),
            None => bail!("nothing is told of the networks of {handler}"),
        }
    }

    async fn sandbox(&mut self, wanted: &Wanted<'_>) -> Result<()> {
        let request = cri::RunPodSandboxRequest {
            config: Some(wanted.sandbox()),
            runtime_handler: wanted.handler().to_owned(),
        };
        let made: cri::RunPodSandboxResponse = self.call("RunPodSandbox", request).await?;
        println!("{}", made.pod_sandbox_id);
        Ok(())
    }

    async fn container(&mut self, sandbox: &str, wanted: &Wanted<'_>) -> Result<()> {
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(wanted.container()),
            sandbox_config: Some(wanted.sandbox()),
        };
        let made: cri::ContainerId = self.call("CreateContainer", request).await?;
        let _: cri::Nothing = self.call("StartContainer", made.clone()).await?;
        println!("{}", made.container_id);
        Ok(())
    }

    async fn act(&mut self, method: &'static str, sandbox: &str) -> Result<()> {
        let id = cri::SandboxId { pod_sandbox_id: sandbox.to_owned() };
        let _: cri::Nothing = self.call(method, id).await?;
        Ok(())
    }

    /// Continues when a sandbox cannot be stopped or removed: the others may be.
    async fn purge(&mut self, first: &str, last: &str) -> Result<()> {
        let all: cri::ListPodSandboxResponse =
            self.call("ListPodSandbox", cri::ListRequest {}).await?;
        let is_theirs = |sandbox: &cri::PodSandbox| {
            let uid = sandbox.metadata.as_ref().map_or("", |pod| &pod.uid);
            uid.starts_with(first) && uid.ends_with(last)
        };
        let mut failed = Ok(());
        for sandbox in all.items.into_iter().filter(is_theirs) {
            for method in ["StopPodSandbox", "RemovePodSandbox"] {
                if let Err(error) = self.act(method, &sandbox.id).await {
                    failed = Err(error.context(sandbox.id));
                    break;
                }
            }
        }
        failed
    }

    async fn stop_container(&mut self, container: &str, timeout: i64) -> Result<()> {
        let request = cri::StopContainerRequest { container_id: container.to_owned(), timeout };
        let _: cri::Nothing = self.call("StopContainer", request).await?;
        Ok(())
    }

    async fn list(&mut self) -> Result<()> {
        let all: cri::ListPodSandboxResponse =
            self.call("ListPodSandbox", cri::ListRequest {}).await?;
        for sandbox in all.items {
            let pod = sandbox.metadata.unwrap_or_default();
            let state = if sandbox.state == 0 { "READY" } else { "NOTREADY" };
            println!("{} {state} {}/{} {}", sandbox.id, pod.namespace, pod.name, pod.attempt);
        }
        let all: cri::ListContainersResponse =
            self.call("ListContainers", cri::ListRequest {}).await?;
        for container in all.containers {
            let about = container.metadata.unwrap_or_default();
            let state = serve::CONTAINER_STATES.get(container.state as usize).unwrap_or(&"?");
            println!("  {} {state} {} {}", container.id, about.name, container.pod_sandbox_id);
        }
        Ok(())
    }
}
