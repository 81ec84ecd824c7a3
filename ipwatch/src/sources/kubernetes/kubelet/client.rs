//! `v1alpha1.Pods`, over gRPC on a Unix socket.

use tokio::sync::mpsc;
use tonic::Request;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;

use super::error::KubeletError;
use super::messages::{Nothing, Pods};
use super::{LIST, WATCH};
use crate::sources::grpc;
use crate::sources::socket::Way;

/// Longest list that is read. 500 pods with all that is managed in them have 10 MiB.
const LIST_LIMIT: usize = 32 << 20;
/// Longest event: of one pod.
const EVENT_LIMIT: usize = 4 << 20;
/// Requests that may wait for the connection.
const QUEUE: usize = 4;

/// A kubelet.
#[derive(Clone)]
pub(super) struct Client(Channel);

impl Client {
    pub(super) async fn connect(way: &Way) -> Result<Self, KubeletError> {
        Ok(Self(grpc::connect(way, QUEUE).await?))
    }

    /// Every pod that the kubelet is to run.
    pub(super) async fn list(&self) -> Result<Pods, KubeletError> {
        let mut grpc = self.grpc(LIST, LIST_LIMIT).await?;
        let path = PathAndQuery::from_static("/v1alpha1.Pods/ListPods");
        let codec = tonic_prost::ProstCodec::<Nothing, Pods>::default();
        let answer = grpc.unary(Request::new(Nothing {}), path, codec).await;
        answer
            .map(tonic::Response::into_inner)
            .map_err(|status| KubeletError::of(LIST, LIST_LIMIT, &status))
    }

    /// Says that something has changed, until the kubelet ends it: then why.
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
            // When one is waiting, a list is due that shows this too.
            let _ = changed.try_send(());
        }
        Ok(())
    }

    async fn grpc(&self, what: &'static str, limit: usize) -> Result<Grpc<Channel>, KubeletError> {
        let broken = |why| KubeletError::Broken { what, why };
        grpc::ready(&self.0, limit).await.map_err(broken)
    }
}
