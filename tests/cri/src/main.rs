//! `ipwatch-test-cri SOCKET COMMAND …`: runs a pod in a real containerd, as kubelet would.
//!
//! A program of its own, so that the test binary, which is also loaded into VMs, carries no gRPC.
//!
//! - `ready`: succeeds once the runtime and its network are.
//! - `run NAMESPACE NAME UID IMAGE DIR COMMAND…`: a sandbox and one container that runs COMMAND and
//!   sees the host's DIR as `/host`; prints both ids.
//! - `stop SANDBOX`: stops and removes it.

mod cri;

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use hyper_util::rt::TokioIo;
use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint, Uri};

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
    match words.as_slice() {
        [socket, "ready"] => Runtime::connect(socket).await?.ready().await,
        [socket, "run", namespace, name, uid, image, dir, command @ ..] => {
            let pod = Pod { namespace, name, uid };
            let container = container_config(image, dir, command);
            Runtime::connect(socket).await?.run(&pod, container).await
        }
        [socket, "stop", sandbox] => Runtime::connect(socket).await?.stop(sandbox).await,
        _ => {
            bail!("usage: SOCKET ready | run NAMESPACE NAME UID IMAGE DIR COMMAND… | stop SANDBOX")
        }
    }
}

struct Pod<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
}

struct Runtime(Grpc<Channel>);

impl Runtime {
    async fn connect(socket: &str) -> Result<Self> {
        let path = socket.to_owned();
        // The URI is never looked at: the connector goes to the socket.
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

    /// Succeeds once the runtime and its network are ready.
    async fn ready(&mut self) -> Result<()> {
        let answer: cri::StatusResponse = self.call("Status", cri::StatusRequest {}).await?;
        let conditions = answer.status.map(|status| status.conditions).unwrap_or_default();
        match conditions.iter().find(|condition| !condition.status) {
            None if !conditions.is_empty() => Ok(()),
            Some(condition) => bail!("{}: {}", condition.kind, condition.message),
            None => bail!("no conditions told"),
        }
    }

    async fn run(&mut self, pod: &Pod<'_>, container: cri::ContainerConfig) -> Result<()> {
        let config = sandbox_config(pod);
        let request = cri::RunPodSandboxRequest { config: Some(config.clone()) };
        let sandbox: cri::RunPodSandboxResponse = self.call("RunPodSandbox", request).await?;
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: sandbox.pod_sandbox_id.clone(),
            config: Some(container),
            sandbox_config: Some(config),
        };
        let container: cri::ContainerId = self.call("CreateContainer", request).await?;
        let _: cri::Nothing = self.call("StartContainer", container.clone()).await?;
        println!("{} {}", sandbox.pod_sandbox_id, container.container_id);
        Ok(())
    }

    async fn stop(&mut self, sandbox: &str) -> Result<()> {
        let id = cri::SandboxId { pod_sandbox_id: sandbox.to_owned() };
        let _: cri::Nothing = self.call("StopPodSandbox", id.clone()).await?;
        let _: cri::Nothing = self.call("RemovePodSandbox", id).await?;
        Ok(())
    }
}

fn sandbox_config(pod: &Pod<'_>) -> cri::PodSandboxConfig {
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: pod.name.to_owned(),
            uid: pod.uid.to_owned(),
            namespace: pod.namespace.to_owned(),
            attempt: 0,
        }),
        linux: Some(cri::LinuxPodSandboxConfig {
            // What kubelet's cgroupfs driver makes.
            cgroup_parent: format!("/kubepods/besteffort/pod{}", pod.uid),
        }),
    }
}

fn container_config(image: &str, dir: &str, command: &[&str]) -> cri::ContainerConfig {
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: "main".to_owned(), attempt: 0 }),
        image: Some(cri::ImageSpec { image: image.to_owned() }),
        command: command.iter().map(|&word| word.to_owned()).collect(),
        mounts: vec![cri::Mount { container_path: "/host".to_owned(), host_path: dir.to_owned() }],
    }
}
