//! Why the kubelet does not tell of its pods.

use std::time::Duration;

use tonic::{Code, Status};

use crate::sources::errors::{self, Failure, Unconnected};
use crate::sources::grpc::Refusal;

/// None of these carries anything of a pod.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum KubeletError {
    /// There is no connection.
    #[error(transparent)]
    Unconnected(#[from] Unconnected),
    /// Silence.
    #[error("no answer to {what} within {limit:?}")]
    Silent { what: &'static str, limit: Duration },
    /// It speaks gRPC, but not this API.
    #[error("it answers, but offers no v1alpha1.Pods (feature gate PodsAPI)")]
    NotOffered,
    /// It has not yet heard itself of all the pods it is to run.
    #[error("{what}: the kubelet has just started and does not know its pods yet")]
    Starting { what: &'static str },
    /// It had more to tell than we took, or was asked too often.
    #[error("{what}: {why}")]
    Behind { what: &'static str, why: String },
    /// It refused one call.
    #[error("{what}: {why}")]
    Refused { what: &'static str, why: String },
    /// The connection broke, or what came is not what this API answers.
    #[error("{what}: {why}")]
    Broken { what: &'static str, why: String },
    /// An answer larger than any should be.
    #[error("{what}: an answer of more than {limit} MiB")]
    TooLarge { what: &'static str, limit: usize },
}

impl KubeletError {
    /// A call failed. `limit`: bytes that its answer may have.
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

    /// Whether it may well be that this node's kubelet has no such API.
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
