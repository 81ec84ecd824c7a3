//! A state directory is one daemon's for as long as that daemon lives, whether its file is open or not: a disk that is
//! full closes the file, and another daemon would put its own history in the place of the one that waits to be written.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::format::StoreError;

/// A directory that is locked, until this is dropped. Nothing is made in it, for there may be no room.
#[derive(Debug)]
pub(super) struct Claim {
    dir: File,
}

impl Claim {
    /// Locks the directory.
    ///
    /// # Errors
    /// [`StoreError::Locked`]: another daemon has. It is open to nobody, or not there.
    pub(super) fn on(path: &Path) -> Result<Self, StoreError> {
        let dir = File::open(path)?;
        match rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(StoreError::Locked),
            // On NFS what is locked must be open for writing, which no directory can be (nfs(5)). The file has a lock of
            // its own while it is open.
            Err(error) => tracing::debug!(%error, "{} cannot be locked", path.display()),
            Ok(()) => {}
        }
        Ok(Self { dir })
    }

    /// Whether it is on the directory that has this path now.
    pub(super) fn is_on(&self, path: &Path) -> bool {
        let which = |data: Metadata| (data.dev(), data.ino());
        let own = self.dir.metadata().map(which);
        let its = path.metadata().map(which);
        own.is_ok_and(|own| its.is_ok_and(|its| own == its))
    }
}
