//! Errors of the API server's client.

use std::path::PathBuf;
use std::time::Duration;

use crate::sources::errors::{self, Failure};

/// Why the API server cannot be read. No variant contains a credential, or any content of an object.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ApiError {
    /// A file that is needed to connect is missing or wrong.
    #[error("{path}: {why}")]
    File { path: PathBuf, why: String },
    /// The configuration cannot be used, or a request could not be built.
    #[error("{0}")]
    Setting(String),
    /// The connection failed.
    #[error("{what}: {why}")]
    Broken { what: &'static str, why: String },
    /// There was no answer in time.
    #[error("no answer to {what} within {limit:?}")]
    Silent { what: &'static str, limit: Duration },
    /// The credentials were rejected.
    #[error(
        "{what}: it does not take our credentials (401): the token has expired, or is another cluster's"
    )]
    Unauthorized { what: &'static str },
    /// The request was refused.
    #[error("{what}: {code} {why}")]
    Refused { what: &'static str, code: u16, why: String },
    /// 429, with the server's `Retry-After`.
    #[error("{what}: rate limited (429)")]
    Busy { what: &'static str, after: Option<Duration> },
    /// The version to resume from is too old (410): everything must be listed again.
    #[error("{what}: the last resource version is too old (410)")]
    Expired { what: &'static str },
    /// The answer does not fit this API.
    #[error("{what}: not an answer of this API: {why}")]
    Garbage { what: &'static str, why: String },
    /// The answer is larger than the limit.
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
