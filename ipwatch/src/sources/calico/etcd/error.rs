//! Why an etcd does not tell.

use std::path::PathBuf;
use std::time::Duration;

use crate::sources::errors::{self, Failure};

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

impl Failure for EtcdError {
    fn silent(what: &'static str, limit: Duration) -> Self {
        Self::Silent { what, limit }
    }
}

/// Why a session with an etcd ended.
pub(super) type Ended = errors::Ended<EtcdError>;
