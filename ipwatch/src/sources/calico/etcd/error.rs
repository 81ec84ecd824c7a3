//! Why an etcd does not tell.

use std::path::PathBuf;
use std::time::Duration;

use crate::sources::Closed;

/// Longest text of the server's own that is repeated in an error.
const LONGEST: usize = 200;

/// What keeps an etcd from telling. None of these carries a credential, nor anything of a value.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EtcdError {
    /// A file is missing or wrong.
    #[error("{path}: {why}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// What is configured cannot be used.
    #[error("{0}")]
    Setting(String),
    /// No connection, or it broke.
    #[error("{what}: {why}")]
    Broken {
        /// What was asked for.
        what: &'static str,
        /// How.
        why: String,
    },
    /// Silence.
    #[error("no answer to {what} within {limit:?}")]
    Silent {
        /// What was asked for.
        what: &'static str,
        /// How long it was waited for.
        limit: Duration,
    },
    /// It does not take the credentials.
    #[error(
        "{what}: it does not take our credentials: {why}; see calico.etcd_user_file and calico.etcd_cert_file"
    )]
    Credentials {
        /// What was asked for.
        what: &'static str,
        /// In its words.
        why: String,
    },
    /// It takes them, and refuses.
    #[error("{what}: we may not read it: {why}; grant the right to read (docs/calico-etcd.md)")]
    Denied {
        /// What was asked for.
        what: &'static str,
        /// In its words.
        why: String,
    },
    /// This member knows no leader.
    #[error("{what}: it has no leader: most members of the cluster are away from it")]
    NoLeader {
        /// What was asked for.
        what: &'static str,
    },
    /// What was to be resumed it no longer has: everything must be listed again.
    #[error("{what}: {why}")]
    Expired {
        /// What was asked for.
        what: &'static str,
        /// Why not.
        why: &'static str,
    },
    /// What came is not what this API answers.
    #[error("{what}: not an answer of this API: {why}")]
    Garbage {
        /// What was asked for.
        what: &'static str,
        /// What it is.
        why: String,
    },
    /// More than any answer should be.
    #[error("{what}: an answer of more than {limit} MiB")]
    TooLarge {
        /// What was asked for.
        what: &'static str,
        /// In MiB.
        limit: usize,
    },
}

/// `work`, or silence.
pub(super) async fn within<T>(
    what: &'static str,
    limit: Duration,
    work: impl Future<Output = Result<T, EtcdError>>,
) -> Result<T, EtcdError> {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done,
        Err(_) => Err(EtcdError::Silent { what, limit }),
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
    cut(&texts.join(": "))
}

/// Why a session with an etcd ended.
pub(super) enum Ended {
    /// The etcd.
    Etcd(EtcdError),
    /// The daemon is going down.
    Closed,
}

impl From<EtcdError> for Ended {
    fn from(error: EtcdError) -> Self {
        Self::Etcd(error)
    }
}

impl From<Closed> for Ended {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}
