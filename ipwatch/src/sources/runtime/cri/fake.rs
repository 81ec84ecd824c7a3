//! A runtime for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::StreamExt as _;
use prost::Message;
use tokio::net::UnixListener;
use tokio::sync::broadcast;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::Grpc;
use tonic::{Response, Status};

use super::messages::{
    All, Any, Capped, Container, ContainerEvent, ContainerMetadata, Envelope,
    LinuxPodSandboxStatus, Namespace, NamespaceOption, PodSandbox, PodSandboxMetadata,
    PodSandboxNetworkStatus, PodSandboxStatus, PodSandboxStatusRequest, PodSandboxStatusResponse,
    SubscribeRequest, VersionResponse,
};
use crate::testing::serve_grpc;

/// A runtime that speaks the CRI. By default it offers `runtime.v1` and no events.
#[derive(Clone)]
pub(in super::super) struct Cri(Arc<Mutex<CriState>>);

pub(in super::super) struct CriState {
    pub(in super::super) name: String,
    pub(in super::super) services: BTreeSet<&'static str>,
    pub(in super::super) sandboxes: Capped<PodSandbox>,
    pub(in super::super) containers: Capped<Container>,
    /// By sandbox.
    pub(in super::super) info: BTreeMap<String, String>,
    pub(in super::super) host_network: bool,
    /// Sandboxes whose status request fails.
    pub(in super::super) stuck: BTreeSet<String>,
    /// Every method called so far.
    pub(in super::super) calls: Vec<String>,
    events: broadcast::Sender<Envelope>,
    /// Of the CRI, if it offers any.
    pub(in super::super) cri_events: Option<broadcast::Sender<ContainerEvent>>,
}

pub(in super::super) const V1: &str = "runtime.v1.RuntimeService";
pub(in super::super) const V1ALPHA2: &str = "runtime.v1alpha2.RuntimeService";
pub(in super::super) const CONTAINERD_EVENTS: &str = "containerd.services.events.v1.Events";

impl Cri {
    pub(in super::super) fn new(name: &str) -> Self {
        Self(Arc::new(Mutex::new(CriState {
            name: name.to_owned(),
            services: BTreeSet::from([V1]),
            sandboxes: Capped::default(),
            containers: Capped::default(),
            info: BTreeMap::new(),
            host_network: false,
            stuck: BTreeSet::new(),
            calls: Vec::new(),
            events: broadcast::channel(64).0,
            cri_events: None,
        })))
    }

    /// Adds a sandbox that is ready, in the netns `/run/netns/ID`.
    pub(in super::super) fn with(self, id: &str) -> Self {
        self.state().add(id);
        self
    }

    pub(in super::super) fn state(&self) -> MutexGuard<'_, CriState> {
        self.0.lock().unwrap()
    }

    pub(in super::super) fn calls(&self, method: &str) -> usize {
        self.state().calls.iter().filter(|called| *called == method).count()
    }

    /// Sends an event to the clients of containerd's own event service.
    pub(in super::super) fn event(&self, topic: &str, event: impl Message) {
        let event = Some(Any { value: event.encode_to_vec().into() });
        let _ = self.state().events.send(Envelope { topic: topic.to_owned().into(), event });
    }

    /// Reports through the CRI's events that a container was removed.
    pub(in super::super) fn removes(&self, id: &str) {
        let event = ContainerEvent { container_id: id.to_owned().into(), kind: 3 };
        let _ = self.state().cri_events.as_ref().unwrap().send(event);
    }

    /// Waits until a client subscribes to the events.
    pub(in super::super) async fn has_listener(&self) {
        loop {
            let cri = self.state().cri_events.as_ref().map_or(0, broadcast::Sender::receiver_count);
            if cri + self.state().events.receiver_count() > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Serves until the returned value is dropped; then every connection is closed.
    pub(in super::super) fn serve_for_now(&self, path: &Path) -> Server {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let (fake, path) = (self.clone(), path.to_owned());
        let (up, is_up) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                fake.serve(&path);
                up.send(()).unwrap();
                let _ = stopped.await;
            });
        });
        is_up.recv().unwrap();
        Server(Some((stop, thread)))
    }

    /// Serves on a socket.
    pub(in super::super) fn serve(&self, path: &Path) {
        let listener = UnixListener::bind(path).unwrap();
        let fake = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let fake = fake.clone();
            async move { Ok::<_, Infallible>(fake.answer(request).await) }
        });
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve_grpc(stream, service.clone()));
            }
        });
    }

    async fn answer(&self, request: http::Request<Body>) -> http::Response<Body> {
        let path = request.uri().path().trim_start_matches('/').to_owned();
        let (service, method) = path.split_once('/').unwrap();
        self.state().calls.push(method.to_owned());
        if !self.state().services.contains(service) {
            return Status::unimplemented("unknown service").into_http();
        }
        match method {
            "Version" => {
                let runtime_name = self.state().name.clone().into();
                let version = VersionResponse { runtime_name, runtime_version: "v1.2.3".into() };
                unary::<All, _>(request, |_| Ok(version)).await
            }
            "ListPodSandbox" => {
                let list = self.state().sandboxes.clone();
                unary::<All, _>(request, |_| Ok(list)).await
            }
            "ListContainers" => {
                let list = self.state().containers.clone();
                unary::<All, _>(request, |_| Ok(list)).await
            }
            "PodSandboxStatus" => self.status(request).await,
            "Subscribe" => {
                let events = self.state().events.subscribe();
                streaming::<SubscribeRequest, Envelope>(request, events).await
            }
            "GetContainerEvents" => {
                let Some(events) =
                    self.state().cri_events.as_ref().map(|events| events.subscribe())
                else {
                    return Status::unimplemented("no events").into_http();
                };
                streaming::<All, ContainerEvent>(request, events).await
            }
            _ => Status::unimplemented("unknown method").into_http(),
        }
    }

    async fn status(&self, request: http::Request<Body>) -> http::Response<Body> {
        let fake = self.clone();
        let answer = unary(request, move |asked: PodSandboxStatusRequest| {
            let state = fake.state();
            let id = asked.pod_sandbox_id;
            if state.stuck.contains(&id) {
                return Err(Status::cancelled("stuck"));
            }
            let found = state.sandboxes.items.iter().find(|item| item.id == id.as_bytes());
            let found = found.ok_or_else(|| Status::not_found("no such sandbox"))?;
            let info = state.info.get(&id).cloned().unwrap_or_else(|| info(&id));
            Ok(PodSandboxStatusResponse {
                status: Some(PodSandboxStatus {
                    state: found.state,
                    network: Some(PodSandboxNetworkStatus {
                        ip: "10.0.0.2".into(),
                        additional_ips: Vec::new(),
                    }),
                    linux: Some(LinuxPodSandboxStatus {
                        namespaces: Some(Namespace {
                            options: Some(NamespaceOption {
                                network: if state.host_network { 2 } else { 0 },
                            }),
                        }),
                    }),
                }),
                info: BTreeMap::from([("info".to_owned(), info.into_bytes())]),
            })
        })
        .await;
        if answer.headers().get("grpc-status").is_some_and(|status| status == "1") {
            std::future::pending::<()>().await;
        }
        answer
    }
}

/// A runtime that can be stopped.
pub(in super::super) struct Server(
    Option<(tokio::sync::oneshot::Sender<()>, std::thread::JoinHandle<()>)>,
);

impl Drop for Server {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.0.take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}

impl CriState {
    pub(in super::super) fn add(&mut self, id: &str) {
        self.sandboxes.items.push(PodSandbox {
            id: id.to_owned().into(),
            metadata: Some(PodSandboxMetadata {
                name: format!("pod-{id}").into(),
                uid: format!("uid-{id}").into(),
                namespace: "shop".into(),
                attempt: 3,
            }),
            state: 0,
            created_at: 1_700_000_000_000_000_000,
        });
    }

    pub(in super::super) fn add_container(
        &mut self,
        id: &str,
        sandbox: &str,
        name: &str,
        state: i32,
    ) {
        self.containers.items.push(Container {
            id: id.to_owned().into(),
            pod_sandbox_id: sandbox.to_owned().into(),
            metadata: Some(ContainerMetadata { name: name.to_owned().into() }),
            state,
        });
    }
}

fn info(id: &str) -> String {
    let namespaces = format!(r#"[{{"type":"network","path":"/run/netns/{id}"}}]"#);
    format!(r#"{{"pid":4711,"runtimeSpec":{{"linux":{{"namespaces":{namespaces}}}}}}}"#)
}

async fn unary<Q, A>(
    request: http::Request<Body>,
    answer: impl FnOnce(Q) -> Result<A, Status>,
) -> http::Response<Body>
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
{
    let mut answer = Some(answer);
    let service = tower::service_fn(|request: tonic::Request<Q>| {
        let answer = (answer.take().unwrap())(request.into_inner());
        async move { answer.map(Response::new) }
    });
    let codec = tonic_prost::ProstCodec::<A, Q>::default();
    Grpc::new(codec).max_encoding_message_size(usize::MAX).unary(service, request).await
}

async fn streaming<Q, A>(
    request: http::Request<Body>,
    events: broadcast::Receiver<A>,
) -> http::Response<Body>
where
    Q: Message + Default + 'static,
    A: Message + Default + Clone + 'static,
{
    let events = futures_util::stream::unfold(events, |mut events| async {
        events.recv().await.ok().map(|event| (Ok(event), events))
    });
    let mut events = Some(events.boxed());
    let service = tower::service_fn(move |_: tonic::Request<Q>| {
        let events = events.take().unwrap();
        async move { Ok::<_, Status>(Response::new(events)) }
    });
    let codec = tonic_prost::ProstCodec::<A, Q>::default();
    Grpc::new(codec).server_streaming(service, request).await
}
