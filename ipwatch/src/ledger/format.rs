//! What the ledger's file is opened with and brings back, and why it cannot be used.

use super::life::Record;
use super::tenure::Row;
use crate::contract::Tenure;
use crate::finding::{Change, Finding};

/// Version of the tables (`tables.rs`). One that is newer is left alone: the ipwatch that wrote it knows
/// what is in it, this one does not.
pub(super) const FORMAT: u64 = 1;

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreError {
    /// Another process has it open.
    #[error("another process has it open")]
    Locked,
    /// A newer ipwatch wrote it.
    #[error("its format is {0}")]
    Newer(u64),
    /// It is no ledger, or not a whole one.
    #[error("{0}")]
    Corrupted(String),
    /// The disk, or its permissions.
    #[error("{0}")]
    Io(String),
}

impl<E: Into<redb::Error>> From<E> for StoreError {
    fn from(error: E) -> Self {
        match error.into() {
            redb::Error::DatabaseAlreadyOpen => Self::Locked,
            redb::Error::UpgradeRequired(version) => Self::Newer(version.into()),
            redb::Error::Io(error) => match error.kind() {
                std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof => {
                    Self::Corrupted(error.to_string())
                }
                _ => Self::Io(error.to_string()),
            },
            // The disk failed before, and redb refuses to go on with this handle.
            error @ (redb::Error::PreviousIo | redb::Error::DatabaseClosed) => {
                Self::Io(error.to_string())
            }
            error => Self::Corrupted(error.to_string()),
        }
    }
}

/// Whose file it is from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    /// `fact::Boot::boot_id`.
    pub(super) boot_id: String,
    /// `fact::Boot::node`.
    pub(super) node: String,
    /// Date at which this boot began: what an earlier one left open ended then at the latest.
    pub(super) began: String,
}

/// What the file held when it was opened.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Findings of this boot that were alive.
    pub(super) findings: Vec<Record>,
    /// The last that were resolved, oldest first.
    pub(super) resolved: Vec<Finding>,
    /// Findings of an earlier boot that were alive: the reboot resolved them, just now.
    pub(super) ended_by_reboot: Vec<Change>,
    /// Tenures of this boot that were open.
    pub(super) tenures: Vec<Row>,
    /// Tenures of an earlier boot that were open: the reboot ended them.
    pub(super) tenures_of_before: Vec<Tenure>,
    /// The earlier boot.
    pub(super) earlier: Option<String>,
    /// Rows that could not be read: a newer ipwatch of the same format wrote them, or a bug did.
    pub(super) unreadable: usize,
}
