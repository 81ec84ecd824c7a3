//! Lock on the state directory. One daemon owns the directory for as long as it lives, whether its file is open or not:
//! a full disk closes the file, and another daemon would put its own history in the place of the one that waits to be
//! written.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::format::StoreError;

/// A lock on a directory, until this is dropped. It creates nothing in the directory, because there may be no room.
#[derive(Debug)]
pub(super) struct Claim {
    dir: File,
}

impl Claim {
    /// Locks the directory.
    ///
    /// # Errors
    /// [`StoreError::Locked`]: another daemon has the lock. Otherwise the directory cannot be opened, or does not
    /// exist.
    pub(super) fn on(path: &Path) -> Result<Self, StoreError> {
        let dir = File::open(path)?;
        match rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(StoreError::Locked),
            // On NFS the locked file must be open for writing, which a directory cannot be (nfs(5)). The ledger's file
            // has a lock of its own while it is open.
            Err(error) => tracing::debug!(%error, "{} cannot be locked", path.display()),
            Ok(()) => {}
        }
        Ok(Self { dir })
    }

    /// Whether the lock is on the directory that currently has this path.
    pub(super) fn is_on(&self, path: &Path) -> bool {
        let which = |data: Metadata| (data.dev(), data.ino());
        let own = self.dir.metadata().map(which);
        let its = path.metadata().map(which);
        own.is_ok_and(|own| its.is_ok_and(|its| own == its))
    }
}
