//! Paths: the repository, its build output, and the cache outside of it.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The root of the repository.
pub(crate) fn repository() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own)
}

/// Cargo's output directory.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| repository().join("target"), |dir| repository().join(dir))
}

/// A directory of the cache, created if missing: `$XDG_CACHE_HOME/ipwatch/NAME` or `~/.cache/ipwatch/NAME`. Its
/// kernels, tools and environments outlive a checkout.
pub(crate) fn cache(name: &str) -> Result<PathBuf> {
    let dir = base()?.join(name);
    std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    Ok(dir)
}

/// Locks the cache, which all checkouts of a user share. Must be held while the cache is modified, and must not be
/// taken twice by one process: the second call would wait forever.
pub(crate) fn lock() -> Result<File> {
    lock_named("lock")
}

/// A separate lock with this name, for a part of the cache that takes long to fill.
pub(crate) fn lock_named(name: &str) -> Result<File> {
    let base = base()?;
    std::fs::create_dir_all(&base).with_context(|| base.display().to_string())?;
    let path = base.join(name);
    let open = || {
        let file = File::options().create(true).append(true).open(&path)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                println!("waiting for another xtask that fills {}", base.display());
                file.lock()?;
            }
            Err(TryLockError::Error(error)) => return Err(error),
            Ok(()) => {}
        }
        Ok(file)
    };
    open().with_context(|| path.display().to_string())
}

fn base() -> Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME") {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir),
        _ => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    Ok(base.join("ipwatch"))
}
