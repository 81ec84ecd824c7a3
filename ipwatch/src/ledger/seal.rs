//! The seal: a hash of the ledger's file, written beside the file when it is closed properly.
//!
//! redb checks every page of a file that was **not** closed properly, and trusts one that was: damage to a closed file
//! is noticed only when the page is read, sometimes by a panic (measured with redb 4.4: in one of ten damaged closed
//! files), and a daemon that panics on its own store never starts again. So a closed file is compared with its seal
//! before redb opens it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::bounded;

/// Whether a file is the same as when it was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seal {
    /// It is the same.
    Whole,
    /// It was changed since.
    Broken,
    /// It was not closed properly: redb checks it.
    Absent,
}

/// Compares a file with its seal.
pub(super) fn check(path: &Path) -> io::Result<Seal> {
    let sealed = match bounded::read_regular(&beside(path), 2 * 32) {
        Ok(sealed) => sealed.bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Seal::Absent),
        Err(error) => return Err(error),
    };
    Ok(if sealed == hash(path)? { Seal::Whole } else { Seal::Broken })
}

/// Writes the seal. Must be called after redb has closed the file.
pub(super) fn put(path: &Path) -> io::Result<()> {
    let seal = beside(path);
    let mut unnamed = seal.clone().into_os_string();
    unnamed.push(".new");
    let mut file = File::create(&unnamed)?;
    file.write_all(&hash(path)?)?;
    file.sync_all()?;
    std::fs::rename(&unnamed, &seal)?;
    sync_dir(path)
}

/// Removes the seal. Must be called before redb writes to the file. The removal is on the disk when this returns, so
/// that a crash leaves no old seal on a newer file.
pub(super) fn lift(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(beside(path)) {
        Ok(()) => sync_dir(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".sealed");
    PathBuf::from(name)
}

fn hash(path: &Path) -> io::Result<Vec<u8>> {
    let (mut file, mut hash) = (File::open(path)?, Sha256::new());
    let mut block = vec![0; 64 * 1024];
    loop {
        match file.read(&mut block)? {
            0 => break,
            len => hash.update(&block[..len]),
        }
    }
    Ok(hash.finalize().iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect())
}

fn sync_dir(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}
