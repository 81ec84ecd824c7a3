//! Errors of the etcd client.

use std::path::PathBuf;
use std::time::Duration;

use crate::sources::errors::{self, Failure};

/// Why an etcd cannot be read. No variant contains a credential, or any content of a value.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EtcdError {
    /// A file is missing or wrong.
    #[error("{path}: {why}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The configuration cannot be used.
    #[error("{0}")]
    Setting(String),
    /// The connection failed.
    #[error("{what}: {why}")]
    Broken {
        /// The request.
        what: &'static str,
        why: String,
    },
    /// There was no answer in time.
    #[error("no answer to {what} within {limit:?}")]
    Silent {
        /// The request.
        what: &'static str,
        /// The timeout.
        limit: Duration,
    },
    /// The credentials were rejected.
    #[error(
        "{what}: it does not take our credentials: {why}; see calico.etcd_user_file and calico.etcd_cert_file"
    )]
    Credentials {
        /// The request.
        what: &'static str,
        /// The server's message.
        why: String,
    },
    /// The credentials were accepted, but access is denied.
    #[error("{what}: we may not read it: {why}; grant the right to read (docs/calico-etcd.md)")]
    Denied {
        /// The request.
        what: &'static str,
        /// The server's message.
        why: String,
    },
    /// This member has no leader.
    #[error("{what}: etcd has no leader: this member does not reach a majority of its cluster")]
    NoLeader {
        /// The request.
        what: &'static str,
    },
    /// The revision to resume from is no longer available: everything must be listed again.
    #[error("{what}: {why}")]
    Expired {
        /// The request.
        what: &'static str,
        /// The reason.
        why: &'static str,
    },
    /// The answer does not fit this API.
    #[error("{what}: not an answer of this API: {why}")]
    Garbage {
        /// The request.
        what: &'static str,
        why: String,
    },
    /// The answer is larger than the limit.
    #[error("{what}: an answer of more than {limit} MiB")]
    TooLarge {
        /// The request.
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
