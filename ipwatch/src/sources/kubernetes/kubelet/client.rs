//! The client of `v1alpha1.Pods`, over gRPC on a Unix socket.

use tokio::sync::mpsc;
use tonic::Request;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;

use super::error::KubeletError;
use super::messages::{Nothing, Pods};
use super::{LIST, WATCH};
use crate::sources::grpc;
use crate::sources::socket::SocketPath;

/// Maximum size in bytes of a list. 500 pods with all managed fields have 10 MiB.
const LIST_LIMIT: usize = 32 << 20;
/// Maximum size in bytes of an event, which contains one pod.
const EVENT_LIMIT: usize = 4 << 20;
/// Number of requests that may wait for the connection.
const QUEUE: usize = 4;

#[derive(Clone)]
pub(super) struct Client(Channel);

impl Client {
    pub(super) async fn connect(way: &SocketPath) -> Result<Self, KubeletError> {
        Ok(Self(grpc::connect(way, QUEUE).await?))
    }

    /// Lists every pod that the kubelet should run.
    pub(super) async fn list(&self) -> Result<Pods, KubeletError> {
        let mut grpc = self.grpc(LIST, LIST_LIMIT).await?;
        let path = PathAndQuery::from_static("/v1alpha1.Pods/ListPods");
        let codec = tonic_prost::ProstCodec::<Nothing, Pods>::default();
        let answer = grpc.unary(Request::new(Nothing {}), path, codec).await;
        answer
            .map(tonic::Response::into_inner)
            .map_err(|status| KubeletError::of(LIST, LIST_LIMIT, &status))
    }

    /// Signals each change. Returns the error when the watch ends.
    pub(super) async fn watch(&self, changed: mpsc::Sender<()>) -> KubeletError {
        match self.follow(changed).await {
            Ok(()) => KubeletError::Broken { what: WATCH, why: "it has ended".to_owned() },
            Err(error) => error,
        }
    }

    async fn follow(&self, changed: mpsc::Sender<()>) -> Result<(), KubeletError> {
        let failed = |status| KubeletError::of(WATCH, EVENT_LIMIT, &status);
        let mut grpc = self.grpc(WATCH, EVENT_LIMIT).await?;
        let path = PathAndQuery::from_static("/v1alpha1.Pods/WatchPods");
        let codec = tonic_prost::ProstCodec::<Nothing, Nothing>::default();
        let answer = grpc.server_streaming(Request::new(Nothing {}), path, codec).await;
        let mut events = answer.map_err(failed)?.into_inner();
        while events.message().await.map_err(failed)?.is_some() {
            // If the channel is full, a list is due that shows this change too.
            let _ = changed.try_send(());
        }
        Ok(())
    }

    async fn grpc(&self, what: &'static str, limit: usize) -> Result<Grpc<Channel>, KubeletError> {
        let broken = |why| KubeletError::Broken { what, why };
        grpc::ready(&self.0, limit).await.map_err(broken)
    }
}
