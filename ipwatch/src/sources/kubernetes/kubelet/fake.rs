//! A fake kubelet for tests: its pod API, and its failures.

use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::StreamExt as _;
use prost::Message;
use prost::bytes::Bytes;
use tokio::net::UnixListener;
use tokio::sync::{broadcast, oneshot};
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::Grpc;
use tonic::{Response, Status};

use super::messages::{Nothing, ObjectMeta, Pod, PodIp, PodSpec, PodStatus, Pods};
use crate::testing::serve_grpc;

#[derive(Clone)]
pub(super) struct Kubelet(Arc<Mutex<State>>);

pub(super) struct State {
    pub(super) pods: Vec<Bytes>,
    /// If set, every call fails with this status.
    pub(super) refuses: Option<Status>,
    /// Whether lists are never answered.
    pub(super) hangs: bool,
    pub(super) lists: usize,
    pub(super) watches: usize,
    /// When replaced, every watch ends.
    events: broadcast::Sender<Event>,
}

/// `WatchPodsEvent`
#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(bytes = "bytes", tag = "2")]
    pod: Bytes,
}

pub(super) fn uid(n: u32) -> String {
    format!("00000000-0000-4000-8000-{n:012}")
}

pub(super) fn pod(n: u32) -> Pod {
    Pod {
        metadata: Some(ObjectMeta {
            name: format!("api-{n}"),
            namespace: "shop".to_owned(),
            uid: uid(n),
            deletion_timestamp: None,
            deletion_grace_period_seconds: None,
        }),
        spec: Some(PodSpec {
            termination_grace_period_seconds: Some(20),
            node_name: "node-1".to_owned(),
        }),
        status: Some(PodStatus {
            phase: "Running".to_owned(),
            pod_ips: vec![PodIp { ip: format!("10.0.0.{n}") }],
        }),
    }
}

impl Kubelet {
    pub(super) fn new(pods: &[u32]) -> Self {
        Self(Arc::new(Mutex::new(State {
            pods: pods.iter().map(|n| pod(*n).encode_to_vec().into()).collect(),
            refuses: None,
            hangs: false,
            lists: 0,
            watches: 0,
            events: broadcast::channel(64).0,
        })))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Sets the pods that it should run, and reports a change.
    pub(super) fn changes(&self, kind: i32, pods: Vec<Pod>) {
        let mut state = self.state();
        state.pods = pods.iter().map(|pod| pod.encode_to_vec().into()).collect();
        let _ = state.events.send(Event { kind, pod: Bytes::from_static(b"\xff\xff") });
    }

    /// Ends every watch, as the kubelet does for slow watchers.
    pub(super) fn cuts_off(&self) {
        self.state().events = broadcast::channel(64).0;
    }

    /// Serves until the returned value is dropped; then every connection is closed.
    pub(super) fn serve(&self, path: &Path) -> Running {
        let listener = std::os::unix::net::UnixListener::bind(path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let fake = self.clone();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::spawn(fake.accept(UnixListener::from_std(listener).unwrap()));
                let _ = stopped.await;
            });
        });
        Running(Some((stop, thread)))
    }

    async fn accept(self, listener: UnixListener) {
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let fake = self.clone();
            async move { Ok::<_, Infallible>(fake.answer(request).await) }
        });
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve_grpc(stream, service.clone()));
        }
    }

    async fn answer(&self, request: http::Request<Body>) -> http::Response<Body> {
        if let Some(status) = self.state().refuses.clone() {
            return status.into_http();
        }
        match request.uri().path() {
            "/v1alpha1.Pods/ListPods" => {
                let (pods, hangs) = {
                    let mut state = self.state();
                    state.lists += 1;
                    (state.pods.clone(), state.hangs)
                };
                if hangs {
                    std::future::pending::<()>().await;
                }
                let service = tower::service_fn(move |_: tonic::Request<Nothing>| {
                    let pods = Pods { pods: pods.clone(), more: 0 };
                    async move { Ok::<_, Status>(Response::new(pods)) }
                });
                let codec = tonic_prost::ProstCodec::<Pods, Nothing>::default();
                let mut grpc = Grpc::new(codec).max_encoding_message_size(usize::MAX);
                grpc.unary(service, request).await
            }
            "/v1alpha1.Pods/WatchPods" => {
                let events = {
                    let mut state = self.state();
                    state.watches += 1;
                    state.events.subscribe()
                };
                let events = futures_util::stream::unfold(Some(events), |events| async {
                    let mut events = events?;
                    match events.recv().await {
                        Ok(event) => Some((Ok(event), Some(events))),
                        Err(_) => {
                            let status = Status::resource_exhausted("watch client channel closed");
                            Some((Err(status), None))
                        }
                    }
                });
                let mut events = Some(events.boxed());
                let service = tower::service_fn(move |_: tonic::Request<Nothing>| {
                    let events = events.take().unwrap();
                    async move { Ok::<_, Status>(Response::new(events)) }
                });
                let codec = tonic_prost::ProstCodec::<Event, Nothing>::default();
                Grpc::new(codec).server_streaming(service, request).await
            }
            _ => Status::unimplemented("unknown service").into_http(),
        }
    }
}

/// A running kubelet. Dropping it stops the kubelet and leaves its socket.
pub(super) struct Running(Option<(oneshot::Sender<()>, std::thread::JoinHandle<()>)>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.0.take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}
