//! Errors of a runtime's client.

use std::time::Duration;

use crate::sources::errors::{self, Failure, Unconnected};

/// Why a runtime does not answer. No variant contains anything of an answer's content, which may contain secrets.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum RuntimeError {
    #[error(transparent)]
    Unconnected(#[from] Unconnected),
    /// There was no answer in time.
    #[error("no answer to {what} within {limit:?}")]
    Silent { what: &'static str, limit: Duration },
    /// The socket speaks gRPC, but does not offer the CRI.
    #[error("it answers, but does not serve the CRI")]
    NoCri,
    /// The runtime refused one call.
    #[error("{what}: {why}")]
    Refused { what: &'static str, why: String },
    /// The connection failed, or the answer does not fit this API.
    #[error("{what}: not an answer of this API: {why}")]
    Garbage { what: &'static str, why: String },
    /// The answer is larger than the limit.
    #[error("{what}: an answer of more than {limit} MiB")]
    TooLarge { what: &'static str, limit: usize },
}

impl RuntimeError {
    /// Whether the socket may speak the other API.
    pub(super) fn may_be_another(&self) -> bool {
        matches!(self, Self::NoCri | Self::Refused { .. } | Self::Garbage { .. })
    }
}

impl Failure for RuntimeError {
    fn silent(what: &'static str, limit: Duration) -> Self {
        // The limit may be the rest of another one. Rounded for people: 900ms, not 899.999713ms.
        let hundredths = limit.as_secs_f64().mul_add(100.0, 0.5).floor();
        Self::Silent { what, limit: Duration::from_millis(hundredths as u64 * 10) }
    }
}

/// Why a session with a runtime ended.
pub(super) type Ended = errors::Ended<RuntimeError>;
