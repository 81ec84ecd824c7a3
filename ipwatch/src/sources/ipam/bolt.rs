//! Reads bolt files, in which libnetwork, Terway and podman store their reservations.
//!
//! The existing crates (`bbolt-rs`, `nut`) take the file's lock, which its owner holds as long as it runs, and map a
//! file that others write. This reader takes no lock, copies the file and reads the copy. Bolt never writes a page that
//! the newest transaction uses (`bbolt`, `tx.go` and `freelist.go`: pages are reused from the second commit after they
//! were freed), so a copy is consistent if the newest transaction is the same before and after it.

mod page;
mod walk;

use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use self::page::{LARGEST_PAGE, Malformed, Meta};
pub(crate) use self::walk::Entry;
use super::{Content, Directory, Store, Trouble};
use crate::bounded;

/// Maximum size in bytes of a file. A node's reservations take some hundred kilobytes.
const LARGEST: usize = 64 << 20;

/// How often the file is copied if its owner commits meanwhile.
const TRIES: usize = 3;

/// A store that is one bolt file.
pub(super) struct BoltStore {
    /// Name of the store and of its source.
    pub(super) name: &'static str,
    /// Directory of the file.
    pub(super) dir: PathBuf,
    /// Name of the file.
    pub(super) file: &'static str,
    /// The consequence for its owner if the file is damaged or not a bolt file.
    pub(super) effect: &'static str,
    /// Parses the content.
    pub(super) content: fn(&Snapshot, &Path) -> Result<Content, Trouble>,
}

impl Store for BoltStore {
    fn name(&self) -> &'static str {
        self.name
    }

    fn directories(&self) -> Vec<Directory> {
        vec![Directory { path: self.dir.clone(), nested: false }]
    }

    fn is_part(&self, path: &Path) -> bool {
        path.file_name().is_some_and(|name| name == self.file)
    }

    fn read(&self, path: &Path) -> Result<Content, Trouble> {
        (self.content)(&Snapshot::take(path, self.effect)?, path)
    }
}

/// A copy of a bolt file, as of one transaction.
pub(crate) struct Snapshot {
    bytes: Vec<u8>,
    meta: Meta,
    /// The consequence for its owner if the file is damaged.
    effect: &'static str,
}

impl Snapshot {
    /// Copies the file. `effect`: the consequence for its owner if the file is damaged or not a bolt file.
    pub(crate) fn take(path: &Path, effect: &'static str) -> Result<Self, Trouble> {
        let told = |error: &io::Error| match error.kind() {
            io::ErrorKind::NotFound => Trouble::Gone,
            _ => Trouble::Unreadable { reason: error.to_string(), effect: None },
        };
        let mut file = bounded::open_regular(path).map_err(|error| told(&error))?;
        for _ in 0..TRIES {
            let bytes = copy(&mut file).map_err(|error| told(&error))?;
            if bytes.is_empty() {
                // Bolt creates an empty file and then writes its first pages.
                return Err(Trouble::Busy("it is empty".to_owned()));
            }
            let snapshot = Self::parse(bytes, effect)?;
            let now = head(&file).map_err(|error| told(&error))?;
            if Meta::newest(&now) == Ok(snapshot.meta) {
                return Ok(snapshot);
            }
        }
        Err(Trouble::Busy("its owner commits faster than it can be copied".to_owned()))
    }

    /// Checks the content of a file.
    pub(crate) fn parse(bytes: Vec<u8>, effect: &'static str) -> Result<Self, Trouble> {
        let meta =
            if bytes.len() > LARGEST { Err(Malformed::TooLarge) } else { Meta::newest(&bytes) };
        let meta = meta.map_err(|error| malformed(&error, effect))?;
        Ok(Self { bytes, meta, effect })
    }

    /// Passes each value and each bucket in the file to `each`, in no particular order.
    pub(crate) fn entries<'a>(
        &'a self,
        mut each: impl FnMut(&Entry<'_, 'a>) -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        let walked =
            walk::walk(&self.bytes, &self.meta, |entry| each(entry).map_err(Stop::Aborted));
        walked.map_err(|stop| match stop {
            Stop::Damaged(error) => malformed(&error, self.effect),
            Stop::Aborted(trouble) => trouble,
        })
    }

    /// Passes the values of one top-level bucket to `each`. The bucket must exist: its owner creates it in its first
    /// transaction.
    pub(crate) fn values<'a>(
        &'a self,
        bucket: &str,
        mut each: impl FnMut(&'a [u8], &'a [u8]) -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        let name = bucket.as_bytes();
        let mut there = false;
        self.entries(|entry| match (entry.path, entry.value) {
            ([], None) if entry.key == name => {
                there = true;
                Ok(())
            }
            ([within], Some(value)) if *within == name => each(entry.key, value),
            _ => Ok(()),
        })?;
        if there { Ok(()) } else { Err(Trouble::Busy(format!("it has no bucket `{bucket}`"))) }
    }
}

/// Why a walk ended early.
enum Stop {
    /// The file is damaged.
    Damaged(Malformed),
    Aborted(Trouble),
}

impl From<Malformed> for Stop {
    fn from(error: Malformed) -> Self {
        Self::Damaged(error)
    }
}

fn malformed(error: &Malformed, effect: &'static str) -> Trouble {
    Trouble::Unreadable { reason: error.to_string(), effect: Some(effect) }
}

fn copy(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    // Read from start to end: the transaction is read before the pages that it uses.
    file.take(LARGEST as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads the beginning of the file, which contains its transactions.
fn head(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 2 * LARGEST_PAGE];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, filled as u64)? {
            0 => break,
            read => filled += read,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
mod tests;
