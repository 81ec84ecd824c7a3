//! The stores of IPAM plugins: which IPs are reserved, for whom, and out of which ranges.
//!
//! Each kind of store is one file here and one [`Store`]; what follows files and turns their changes into
//! facts is shared. Everything is read only: no lock is taken and no file is written.

mod bolt;
mod document;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod libnetwork;
mod netavark;
mod subnet;
mod terway;

use std::path::{Path, PathBuf};

use crate::fact::{Range, Reservation};

/// One kind of store.
pub(crate) trait Store: Send + 'static {
    /// Its name, and its source's.
    fn name(&self) -> &'static str;

    /// The directories whose files it is made of, as they are to be now; asked again whenever everything
    /// is read anew.
    fn directories(&self) -> Vec<Directory>;

    /// Whether this file of such a directory is a part of the store. Looks at the name alone.
    fn is_part(&self, path: &Path) -> bool;

    /// What the file says: all of it, each time.
    ///
    /// # Errors
    /// It says nothing that can be relied upon. What it said before stands.
    fn read(&self, path: &Path) -> Result<Content, Trouble>;
}

/// A directory of a store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Directory {
    /// Its path.
    pub(crate) path: PathBuf,
    /// The files are in the directories below it (one level), which come and go.
    pub(crate) nested: bool,
}

/// What a file says.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Content {
    pub(crate) reservations: Vec<Reservation>,
    pub(crate) ranges: Vec<Range>,
}

/// Why a file says nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Trouble {
    /// It went away while it was looked at.
    #[error("it is gone")]
    Gone,
    /// Its owner is writing it: it is to be read again soon.
    #[error("it is being written: {0}")]
    Busy(String),
    /// It is not what this store writes.
    #[error("{reason}")]
    Unreadable {
        /// What is wrong with it.
        reason: String,
        /// What its owner makes of that.
        effect: Option<&'static str>,
    },
}
