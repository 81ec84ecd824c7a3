//! Why the API server does not answer.

use std::path::PathBuf;
use std::time::Duration;

use crate::sources::errors::{self, Failure};

/// What keeps the API server from telling. None of these carries a credential, nor anything of an object.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ApiError {
    /// There is no way to it: a file is missing or wrong.
    #[error("{path}: {why}")]
    File { path: PathBuf, why: String },
    /// What is to be said to it cannot be made.
    #[error("{0}")]
    Setting(String),
    /// No connection, or it broke.
    #[error("{what}: {why}")]
    Broken { what: &'static str, why: String },
    /// Silence.
    #[error("no answer to {what} within {limit:?}")]
    Silent { what: &'static str, limit: Duration },
    /// It does not take the credentials.
    #[error(
        "{what}: it does not take our credentials (401): the token has expired, or is another cluster's"
    )]
    Unauthorized { what: &'static str },
    /// It refuses.
    #[error("{what}: {code} {why}")]
    Refused { what: &'static str, code: u16, why: String },
    /// 429, with the `Retry-After` of the server.
    #[error("{what}: rate limited (429)")]
    Busy { what: &'static str, after: Option<Duration> },
    /// What was to be resumed is too long ago (410): everything must be listed again.
    #[error("{what}: what was told last is too long ago (410)")]
    Expired { what: &'static str },
    /// What came is not what this API answers.
    #[error("{what}: not an answer of this API: {why}")]
    Garbage { what: &'static str, why: String },
    /// More than any answer should be.
    #[error("{what}: an answer of more than {limit} MiB")]
    TooLarge { what: &'static str, limit: usize },
}

impl Failure for ApiError {
    fn silent(what: &'static str, limit: Duration) -> Self {
        Self::Silent { what, limit }
    }
}

/// Why a session with the API server ended.
pub(super) type Ended = errors::Ended<ApiError>;
