//! Why a runtime does not answer.

use std::time::Duration;

use crate::sources::errors::{self, Failure, Unconnected};

/// What keeps a runtime from answering. None of these carries anything of an answer's content: that
/// may hold secrets.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum RuntimeError {
    /// There is no connection.
    #[error(transparent)]
    Unconnected(#[from] Unconnected),
    /// Silence.
    #[error("no answer to {what} within {limit:?}")]
    Silent { what: &'static str, limit: Duration },
    /// It speaks gRPC, but offers no CRI.
    #[error("it answers, but offers no CRI")]
    NoCri,
    /// It refused one call.
    #[error("{what}: {why}")]
    Refused { what: &'static str, why: String },
    /// What came is not what this API answers.
    #[error("{what}: not an answer of this API: {why}")]
    Garbage { what: &'static str, why: String },
    /// An answer larger than any should be.
    #[error("{what}: an answer of more than {limit} MiB")]
    TooLarge { what: &'static str, limit: usize },
}

impl RuntimeError {
    /// Whether the other API may be what this socket speaks.
    pub(super) fn may_be_another(&self) -> bool {
        matches!(self, Self::NoCri | Self::Refused { .. } | Self::Garbage { .. })
    }
}

impl Failure for RuntimeError {
    fn silent(what: &'static str, limit: Duration) -> Self {
        // It may be what was left of another. For people: 900ms, not 899.999713ms.
        let hundredths = limit.as_secs_f64().mul_add(100.0, 0.5).floor();
        Self::Silent { what, limit: Duration::from_millis(hundredths as u64 * 10) }
    }
}

/// Why a session with a runtime ended.
pub(super) type Ended = errors::Ended<RuntimeError>;
