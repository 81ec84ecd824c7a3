//! Runtimes for tests, each on a socket of its own: one that speaks the CRI, one that speaks as dockerd
//! does, and some that do neither. And what becomes of their facts.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::StreamExt as _;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixListener;
use tokio::sync::{broadcast, mpsc};
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::Grpc;
use tonic::{Response, Status};

use super::cri::messages::{
    All, Any, Capped, Container, ContainerEvent, ContainerMetadata, Envelope,
    LinuxPodSandboxStatus, Namespace, NamespaceOption, PodSandbox, PodSandboxMetadata,
    PodSandboxNetworkStatus, PodSandboxStatus, PodSandboxStatusRequest, PodSandboxStatusResponse,
    SubscribeRequest, VersionResponse,
};
use super::{First, Kind, Pace, Runtimes, Settings, Socket, begin};
use crate::fact::{Container as ContainerFact, Fact, Sandbox, Source, SourceStatus, What};
use crate::sources::Emit;

/// Bounds a wait; no test depends on how long it really takes.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Patient with whoever answers, and quick otherwise.
pub(super) fn pace() -> Pace {
    let ms = Duration::from_millis;
    Pace {
        short: PATIENCE,
        list: PATIENCE,
        first: PATIENCE,
        poll: ms(50),
        slow: Duration::from_secs(3600),
        settle: ms(5),
        after: ms(20),
        apart: ms(2),
        retry: (ms(20), ms(50)),
    }
}

/// As [`pace`], with little patience for who does not answer.
pub(super) fn hurried() -> Pace {
    Pace { short: Duration::from_millis(200), list: Duration::from_secs(1), ..pace() }
}

/// A directory for sockets.
pub(super) struct Place(tempfile::TempDir);

impl Place {
    pub(super) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }
}

/// The facts of running sources.
pub(super) struct Seen {
    facts: mpsc::Receiver<Vec<Fact>>,
    pub(super) all: Vec<Fact>,
}

/// Starts the source on these sockets, as the configuration names them.
pub(super) fn run(sockets: &[(&Path, Option<Kind>)], pace: Pace) -> (Runtimes, First, Seen) {
    let socket =
        |(path, kind): &(&Path, Option<Kind>)| Socket { path: path.to_path_buf(), kind: *kind };
    let sockets = Some(sockets.iter().map(socket).collect());
    let (emit, seen) = Seen::channel();
    let (runtimes, first) = begin(Settings { sockets, follow: true }, pace, emit);
    (runtimes, first, seen)
}

impl Seen {
    pub(super) fn channel() -> (Emit, Self) {
        let (emit, facts) = Emit::channel(64);
        (emit, Self { facts, all: Vec::new() })
    }

    /// The first fact from now on of which `fits` makes something.
    pub(super) async fn until<T>(&mut self, what: &str, fits: impl Fn(&What) -> Option<T>) -> T {
        let wait = async {
            loop {
                let batch = self.facts.recv().await.expect("the source has ended");
                let found = batch.iter().find_map(|fact| fits(&fact.what));
                self.all.extend(batch);
                if let Some(found) = found {
                    return found;
                }
            }
        };
        match tokio::time::timeout(PATIENCE, wait).await {
            Ok(found) => found,
            Err(_) => {
                let lines = self.all.iter().rev().take(20).rev();
                let seen: Vec<_> = lines.map(|fact| serde_json::to_string(fact).unwrap()).collect();
                panic!("never: {what}; last seen:\n{}", seen.join("\n"))
            }
        }
    }

    pub(super) async fn source(&mut self, name: &str, status: SourceStatus) -> Source {
        let what = format!("source {name} {status:?}");
        self.until(&what, |what| match what {
            What::Source(source) if source.name == name && source.status == status => {
                Some(source.clone())
            }
            _ => None,
        })
        .await
    }

    /// The end of the next list; whether it was complete.
    pub(super) async fn list(&mut self) -> bool {
        self.until("the end of a list", |what| match what {
            What::Ended { complete, .. } => Some(*complete),
            _ => None,
        })
        .await
    }

    /// A sandbox whose netns is known.
    pub(super) async fn whole(&mut self, id: &str) -> Sandbox {
        self.until(&format!("sandbox {id}, whole"), |what| match what {
            What::Sandbox(sandbox) if sandbox.id == id && sandbox.netns_path.is_some() => {
                Some(sandbox.clone())
            }
            _ => None,
        })
        .await
    }

    /// What is told within a while.
    pub(super) async fn settle(&mut self) {
        let until = tokio::time::Instant::now() + Duration::from_millis(300);
        while let Ok(Some(batch)) = tokio::time::timeout_at(until, self.facts.recv()).await {
            self.all.extend(batch);
        }
    }

    pub(super) fn sandboxes(&self) -> impl Iterator<Item = &Sandbox> {
        self.all.iter().filter_map(|fact| match &fact.what {
            What::Sandbox(sandbox) => Some(sandbox),
            _ => None,
        })
    }

    pub(super) fn containers(&self) -> impl Iterator<Item = &ContainerFact> {
        self.all.iter().filter_map(|fact| match &fact.what {
            What::Container(container) => Some(container),
            _ => None,
        })
    }
}

/// A runtime that speaks the CRI. Without services it offers `runtime.v1` and no events.
#[derive(Clone)]
pub(super) struct Cri(Arc<Mutex<CriState>>);

pub(super) struct CriState {
    pub(super) name: String,
    pub(super) services: BTreeSet<&'static str>,
    pub(super) sandboxes: Capped<PodSandbox>,
    pub(super) containers: Capped<Container>,
    /// By sandbox.
    pub(super) info: BTreeMap<String, String>,
    pub(super) host_network: bool,
    /// Sandboxes that are not told of when asked after.
    pub(super) stuck: BTreeSet<String>,
    /// Every method called so far.
    pub(super) calls: Vec<String>,
    events: broadcast::Sender<Envelope>,
    /// Of the CRI, if it offers any.
    pub(super) cri_events: Option<broadcast::Sender<ContainerEvent>>,
}

pub(super) const V1: &str = "runtime.v1.RuntimeService";
pub(super) const V1ALPHA2: &str = "runtime.v1alpha2.RuntimeService";
pub(super) const CONTAINERD_EVENTS: &str = "containerd.services.events.v1.Events";

impl Cri {
    pub(super) fn new(name: &str) -> Self {
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
    pub(super) fn with(self, id: &str) -> Self {
        self.state().add(id);
        self
    }

    pub(super) fn state(&self) -> MutexGuard<'_, CriState> {
        self.0.lock().unwrap()
    }

    pub(super) fn calls(&self, method: &str) -> usize {
        self.state().calls.iter().filter(|called| *called == method).count()
    }

    /// Sends an event to whoever listens by containerd's own service.
    pub(super) fn event(&self, topic: &str, event: impl Message) {
        let event = Some(Any { value: event.encode_to_vec().into() });
        let _ = self.state().events.send(Envelope { topic: topic.to_owned().into(), event });
    }

    /// Says by the CRI's events that a container was removed.
    pub(super) fn removes(&self, id: &str) {
        let event = ContainerEvent { container_id: id.to_owned().into(), kind: 3 };
        let _ = self.state().cri_events.as_ref().unwrap().send(event);
    }

    /// Waits until somebody listens to the events.
    pub(super) async fn has_listener(&self) {
        loop {
            let cri = self.state().cri_events.as_ref().map_or(0, broadcast::Sender::receiver_count);
            if cri + self.state().events.receiver_count() > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Serves until what this gives is dropped: then every connection breaks.
    pub(super) fn serve_for_now(&self, path: &Path) -> Server {
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
    pub(super) fn serve(&self, path: &Path) {
        let listener = UnixListener::bind(path).unwrap();
        let incoming = futures_util::stream::unfold(listener, |listener| async {
            Some((listener.accept().await.map(|(stream, _)| stream), listener))
        });
        let fake = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let fake = fake.clone();
            async move { Ok::<_, Infallible>(fake.answer(request).await) }
        });
        tokio::spawn(async move {
            tonic::transport::Server::builder()
                .serve_with_incoming(service, incoming)
                .await
                .unwrap();
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

/// A runtime that can end.
pub(super) struct Server(Option<(tokio::sync::oneshot::Sender<()>, std::thread::JoinHandle<()>)>);

impl Drop for Server {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.0.take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}

impl CriState {
    pub(super) fn add(&mut self, id: &str) {
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

    pub(super) fn add_container(&mut self, id: &str, sandbox: &str, name: &str, state: i32) {
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

/// A daemon that speaks as dockerd does: JSON by path.
#[derive(Clone)]
pub(super) struct Docker(Arc<Mutex<DockerState>>);

pub(super) struct DockerState {
    pub(super) answers: BTreeMap<String, String>,
    /// Paths that are not answered.
    pub(super) stuck: BTreeSet<String>,
    pub(super) calls: Vec<String>,
    events: broadcast::Sender<String>,
}

impl Docker {
    pub(super) fn new(list: &str) -> Self {
        let version =
            r#"{"Version":"20.10.24","ApiVersion":"1.41","Components":[{"Name":"Engine"}]}"#;
        let answers = BTreeMap::from([
            ("/version".to_owned(), version.to_owned()),
            ("/containers/json".to_owned(), list.to_owned()),
        ]);
        Self(Arc::new(Mutex::new(DockerState {
            answers,
            stuck: BTreeSet::new(),
            calls: Vec::new(),
            events: broadcast::channel(64).0,
        })))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, DockerState> {
        self.0.lock().unwrap()
    }

    pub(super) fn set(&self, path: &str, json: &str) {
        self.state().answers.insert(path.to_owned(), json.to_owned());
    }

    pub(super) fn event(&self, line: &str) {
        self.send(&format!("{line}\n"));
    }

    /// Sends this to whoever listens to the events.
    pub(super) fn send(&self, text: &str) {
        let _ = self.state().events.send(text.to_owned());
    }

    pub(super) async fn has_listener(&self) {
        while self.state().events.receiver_count() == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub(super) fn serve(&self, path: &Path) {
        let listener = UnixListener::bind(path).unwrap();
        let fake = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let fake = fake.clone();
                let service = hyper::service::service_fn(move |request| {
                    let fake = fake.clone();
                    async move { Ok::<_, Infallible>(fake.answer(&request).await) }
                });
                let serving = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                tokio::spawn(serving);
            }
        });
    }

    async fn answer(&self, request: &hyper::Request<Incoming>) -> hyper::Response<Body> {
        let path = request.uri().path().to_owned();
        self.state().calls.push(path.clone());
        if self.state().stuck.contains(&path) {
            std::future::pending::<()>().await;
        }
        if path == "/events" {
            let events = self.state().events.subscribe();
            let lines = futures_util::stream::unfold(events, |mut events| async {
                let line = events.recv().await.ok()?;
                Some((Ok::<_, Infallible>(Frame::data(Bytes::from(line))), events))
            });
            return hyper::Response::new(Body::new(StreamBody::new(lines.boxed())));
        }
        let Some(json) = self.state().answers.get(&path).cloned() else {
            let mut missing = hyper::Response::new(Body::default());
            *missing.status_mut() = hyper::StatusCode::NOT_FOUND;
            return missing;
        };
        hyper::Response::new(Body::new(Full::new(Bytes::from(json)).boxed()))
    }
}

/// A socket that takes every connection and says `text`, then nothing, for ever.
pub(super) fn says(path: &Path, text: &'static [u8]) {
    let listener = UnixListener::bind(path).unwrap();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(text).await;
            open.push(stream);
        }
    });
}
