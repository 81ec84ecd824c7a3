//! Files that only root may change: bounded reads, private directories and atomic replacement. No symlink is followed.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::Path;

use rustix::fs::OFlags;

/// Flags for a path in a directory that somebody else may write to: `O_NONBLOCK` because opening a FIFO would block.
pub(crate) const OPEN_FLAGS: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK);

/// Creates a directory and those above it, with mode 0700. It may exist.
pub(crate) fn make_dir(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().recursive(true).mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// The content of a file of at most `max` bytes. `None`: there is no such file.
pub(crate) fn read_small(path: &Path, max: usize) -> io::Result<Option<Vec<u8>>> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OPEN_FLAGS.bits().cast_signed());
    let file = match options.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    file.take(limit).read_to_end(&mut bytes)?;
    if bytes.len() > max {
        return Err(io::Error::other(format!("longer than {max} bytes")));
    }
    Ok(Some(bytes))
}

/// What a file has after [`replace`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attributes {
    /// Its permission bits.
    pub mode: u32,
    /// Its user and group; without them, those of this process.
    pub owner: Option<(u32, u32)>,
    /// Whether it is synced first, so that a crash of the node leaves the old or the new content.
    pub synced: bool,
}

impl Attributes {
    /// Mode 0600, synced.
    pub(crate) const PRIVATE: Self = Self { mode: 0o600, owner: None, synced: true };
}

/// Replaces a file atomically: a reader sees the old or the new content.
pub(crate) fn replace(path: &Path, bytes: &[u8], attributes: Attributes) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // No runtime reads a file of this name as a configuration.
    let new = path.with_file_name(format!(".{name}.ipwatch-new"));
    // A killed process may have left one.
    let _ = fs::remove_file(&new);
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    if let Some((uid, gid)) = attributes.owner {
        fchown(&file, Some(uid), Some(gid))?;
    }
    file.set_permissions(Permissions::from_mode(attributes.mode))?;
    if attributes.synced {
        file.sync_all()?;
    }
    fs::rename(&new, path)
}
