//! Why a runtime does not answer.

use std::io;
use std::time::Duration;

use crate::sources::Closed;

/// Longest text of a runtime's own that is repeated in an error.
const LONGEST: usize = 200;

/// What keeps a runtime from answering. None of these carries anything of an answer's content: that
/// may hold secrets.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum RuntimeError {
    /// The socket is not there.
    #[error("no socket at {0}")]
    Missing(String),
    /// It is there, but nobody takes the connection.
    #[error("{path}: {why}")]
    Connect { path: String, why: String },
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

    /// Connecting failed.
    pub(super) fn connect(path: &std::path::Path, error: &io::Error) -> Self {
        let path = path.display().to_string();
        match error.kind() {
            io::ErrorKind::NotFound => Self::Missing(path),
            io::ErrorKind::ConnectionRefused => {
                Self::Connect { path, why: "nobody listens on the socket".to_owned() }
            }
            _ => Self::Connect { path, why: error.to_string() },
        }
    }
}

/// `work`, or silence.
pub(super) async fn within<T>(
    what: &'static str,
    limit: Duration,
    work: impl Future<Output = Result<T, RuntimeError>>,
) -> Result<T, RuntimeError> {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done,
        Err(_) => {
            // For people: 900ms, not 899.999713ms.
            let hundredths = limit.as_secs_f64().mul_add(100.0, 0.5).floor();
            let limit = Duration::from_millis(hundredths as u64 * 10);
            Err(RuntimeError::Silent { what, limit })
        }
    }
}

/// The beginning of a text, never half a character.
pub(super) fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(LONGEST)].to_owned()
}

/// Why a session with a runtime ended.
pub(super) enum Ended {
    /// The runtime.
    Runtime(RuntimeError),
    /// The daemon is going down.
    Closed,
}

impl From<RuntimeError> for Ended {
    fn from(error: RuntimeError) -> Self {
        Self::Runtime(error)
    }
}

impl From<Closed> for Ended {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}
