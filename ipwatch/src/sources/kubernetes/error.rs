//! Why the API server does not answer.

use std::path::PathBuf;
use std::time::Duration;

use crate::sources::Closed;

/// Longest text of the server's own that is repeated in an error.
const LONGEST: usize = 200;

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
    /// It has too much to do, and says when to come again.
    #[error("{what}: it has too much to do (429)")]
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

/// `work`, or silence.
pub(super) async fn within<T>(
    what: &'static str,
    limit: Duration,
    work: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done,
        Err(_) => Err(ApiError::Silent { what, limit }),
    }
}

/// The beginning of a text in one line, never half a character.
pub(super) fn cut(text: &str) -> String {
    let line = text.replace(|c: char| c.is_control(), " ");
    line[..line.floor_char_boundary(LONGEST)].to_owned()
}

/// An error with its causes, in one line, each said once.
pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut texts: Vec<String> = Vec::new();
    for cause in std::iter::successors(Some(error), |error| error.source()) {
        let text = cause.to_string();
        if texts.last().is_none_or(|last| !last.ends_with(&text)) {
            texts.push(text);
        }
    }
    texts.join(": ")
}

/// Why a session with the API server ended.
pub(super) enum Ended {
    /// The API server.
    Api(ApiError),
    /// The daemon is going down.
    Closed,
}

impl From<ApiError> for Ended {
    fn from(error: ApiError) -> Self {
        Self::Api(error)
    }
}

impl From<Closed> for Ended {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}
