//! Data that the ledger's file is opened with and returns, and errors that make it unusable.

use super::life::Record;
use super::tenure::Row;
use crate::contract::Tenure;
use crate::finding::{Change, Finding};

/// Version of the tables (`tables.rs`). A file with a newer version is left alone: only the ipwatch that wrote it knows
/// its content.
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
    /// It is no ledger, or is damaged.
    #[error("{0}")]
    Corrupted(String),
    /// An error of the disk, or of its permissions.
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
            // The disk failed before, and redb refuses further use of this handle.
            error @ (redb::Error::PreviousIo | redb::Error::DatabaseClosed) => {
                Self::Io(error.to_string())
            }
            error => Self::Corrupted(error.to_string()),
        }
    }
}

/// The current owner of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    /// `fact::Boot::boot_id`.
    pub(super) boot_id: String,
    /// `fact::Boot::node`.
    pub(super) node: String,
    /// Date at which this boot began: tenures and findings of an earlier boot ended then at the latest.
    pub(super) began: String,
}

/// The content of the file when it was opened.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Open findings of this boot.
    pub(super) findings: Vec<Record>,
    /// The last resolved findings, oldest first.
    pub(super) resolved: Vec<Finding>,
    /// Open findings of an earlier boot, which the reboot has resolved.
    pub(super) ended_by_reboot: Vec<Change>,
    /// Open tenures of this boot.
    pub(super) tenures: Vec<Row>,
    /// Open tenures of an earlier boot, which the reboot has ended.
    pub(super) tenures_of_before: Vec<Tenure>,
    /// Id of the earlier boot.
    pub(super) earlier: Option<String>,
    /// Number of rows that could not be read: a newer ipwatch with the same format wrote them, or a bug did.
    pub(super) unreadable: usize,
}
