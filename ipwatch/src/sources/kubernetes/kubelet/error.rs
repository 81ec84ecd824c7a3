//! Why the kubelet does not tell of its pods.

use std::io;
use std::path::Path;
use std::time::Duration;

use tonic::{Code, Status};

use crate::sources::errors::{self, Failure, causes, chain, cut};

/// None of these carries anything of a pod.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum KubeletError {
    /// The socket is not there.
    #[error("no socket at {0}")]
    Missing(String),
    /// It is there, but nobody takes the connection.
    #[error("{path}: {why}")]
    Connect { path: String, why: String },
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
    /// Connecting failed.
    pub(super) fn connect(path: &Path, error: &(dyn std::error::Error + 'static)) -> Self {
        let io = causes(error).find_map(|cause| cause.downcast_ref::<io::Error>());
        let path = path.display().to_string();
        match io.map(io::Error::kind) {
            Some(io::ErrorKind::NotFound) => Self::Missing(path),
            Some(io::ErrorKind::ConnectionRefused) => {
                Self::Connect { path, why: "nobody listens on the socket".to_owned() }
            }
            _ => Self::Connect { path, why: chain(error) },
        }
    }

    /// A call failed. `limit`: bytes that its answer may have.
    pub(super) fn of(what: &'static str, limit: usize, status: &Status) -> Self {
        let why = || cut(&format!("{:?}: {}", status.code(), status.message()));
        match status.code() {
            Code::Unimplemented => Self::NotOffered,
            Code::OutOfRange => Self::TooLarge { what, limit: limit >> 20 },
            // Of the connection, or of our own decoding, never the kubelet's word.
            _ if std::error::Error::source(status).is_some() => {
                Self::Broken { what, why: chain(status) }
            }
            Code::FailedPrecondition => Self::Starting { what },
            Code::ResourceExhausted => Self::Behind { what, why: why() },
            _ => Self::Refused { what, why: why() },
        }
    }

    /// Whether it may well be that this node's kubelet has no such API.
    pub(super) fn may_be_without(&self) -> bool {
        matches!(self, Self::Missing(_) | Self::NotOffered | Self::Refused { .. })
    }
}

impl Failure for KubeletError {
    fn silent(what: &'static str, limit: Duration) -> Self {
        Self::Silent { what, limit }
    }
}

/// Why a session with the kubelet ended.
pub(super) type Ended = errors::Ended<KubeletError>;
