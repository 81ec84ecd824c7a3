//! Errors of the kubelet's client.

use std::time::Duration;

use tonic::{Code, Status};

use crate::sources::errors::{self, Failure, Unconnected};
use crate::sources::grpc::Refusal;

/// Why the kubelet's pods are unknown. No variant contains any content of a pod.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum KubeletError {
    #[error(transparent)]
    Unconnected(#[from] Unconnected),
    /// There was no answer in time.
    #[error("no answer to {what} within {limit:?}")]
    Silent { what: &'static str, limit: Duration },
    /// The socket speaks gRPC, but does not offer this API.
    #[error("it answers, but offers no v1alpha1.Pods (feature gate PodsAPI)")]
    NotOffered,
    /// The kubelet does not know all of its pods yet.
    #[error("{what}: the kubelet has just started and does not know its pods yet")]
    Starting { what: &'static str },
    /// We read too slowly, or sent too many requests.
    #[error("{what}: {why}")]
    Behind { what: &'static str, why: String },
    /// The kubelet refused one call.
    #[error("{what}: {why}")]
    Refused { what: &'static str, why: String },
    /// The connection failed, or the answer does not fit this API.
    #[error("{what}: {why}")]
    Broken { what: &'static str, why: String },
    /// The answer is larger than the limit.
    #[error("{what}: an answer of more than {limit} MiB")]
    TooLarge { what: &'static str, limit: usize },
}

impl KubeletError {
    /// The error for a failed call. `limit`: maximum size of its answer in bytes.
    pub(super) fn of(what: &'static str, limit: usize, status: &Status) -> Self {
        match Refusal::of(limit, status) {
            Refusal::NotOffered => Self::NotOffered,
            Refusal::TooLarge(limit) => Self::TooLarge { what, limit },
            Refusal::Broken(why) => Self::Broken { what, why },
            Refusal::Said(Code::FailedPrecondition, _) => Self::Starting { what },
            Refusal::Said(Code::ResourceExhausted, why) => Self::Behind { what, why },
            Refusal::Said(_, why) => Self::Refused { what, why },
        }
    }

    /// Whether this node's kubelet may not have this API at all.
    pub(super) fn may_be_without(&self) -> bool {
        matches!(self, Self::Unconnected(Unconnected::Missing(_)) | Self::NotOffered)
    }
}

impl Failure for KubeletError {
    fn silent(what: &'static str, limit: Duration) -> Self {
        Self::Silent { what, limit }
    }
}

/// Why a session with the kubelet ended.
pub(super) type Ended = errors::Ended<KubeletError>;
