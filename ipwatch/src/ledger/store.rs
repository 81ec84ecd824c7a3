//! The ledger's file, `ledger.redb`: its content when it is opened, and how it is written, read and pruned. Everything
//! here blocks on the disk; only the writer thread and queries call it.

use std::fs::File;
use std::path::{Path, PathBuf};

use redb::{Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, TableError};
use rustix::fs::{FileType, Mode, OFlags};

use super::backlog::Backlog;
use super::format::{FORMAT, Identity, Loaded, StoreError};
use super::seal::{self, Seal};
use super::tables::{META, TENURES, Tables};
use super::tenure::RowKey;

/// redb's page cache. The default is 1 GiB; only a few inner pages are read repeatedly here.
const CACHE: usize = 512 * 1024;

/// Maximum number of damaged files kept beside the ledger.
const CORRUPT_KEPT: usize = 3;

#[derive(Debug)]
pub(super) struct Store {
    db: Database,
}

impl Store {
    /// Opens the file, or creates it, and adopts it for this boot.
    pub(super) fn open(path: &Path, identity: &Identity) -> Result<(Self, Loaded), StoreError> {
        let (file, fresh) = open_file(path)?;
        if !fresh {
            refuse(path)?;
        }
        seal::lift(path)?;
        match Self::open_with(file, fresh, identity) {
            // An incomplete file would be treated as damaged next time.
            Err(error) if fresh => {
                let _ = std::fs::remove_file(path);
                Err(error)
            }
            opened => opened,
        }
    }

    fn open_with(
        file: File,
        fresh: bool,
        identity: &Identity,
    ) -> Result<(Self, Loaded), StoreError> {
        let mut db = Builder::new().set_cache_size(CACHE).create_file(file)?;
        if !fresh {
            // Redundant if redb has just repaired the file, and the last check for a file without a seal. Reading every
            // page of a ledger at each start takes milliseconds.
            db.check_integrity()?;
        }
        let store = Self { db };
        let loaded = store.adopt(identity)?;
        Ok((store, loaded))
    }

    /// Checks that the file is ours, ends what an earlier boot left open, and loads what continues.
    fn adopt(&self, identity: &Identity) -> Result<Loaded, StoreError> {
        let txn = self.db.begin_write()?;
        let earlier = {
            let named = txn.list_tables()?.count();
            let mut meta = txn.open_table(META)?;
            let format = meta.get("format")?.map(|value| value.value().to_owned());
            match format.map(|format| format.parse::<u64>()) {
                Some(Ok(FORMAT)) => {}
                Some(Ok(newer)) if newer > FORMAT => return Err(StoreError::Newer(newer)),
                // Killed between creating the file and its first commit.
                None if named == 0 => {}
                _ => return Err(StoreError::Corrupted("it is not a ledger of ipwatch".to_owned())),
            }
            let earlier = meta.get("boot")?.map(|value| value.value().to_owned());
            meta.insert("format", FORMAT.to_string().as_str())?;
            meta.insert("boot", identity.boot_id.as_str())?;
            meta.insert("node", identity.node.as_str())?;
            earlier.filter(|boot| *boot != identity.boot_id)
        };
        let mut tables = Tables::open(&txn)?;
        let reboot = earlier.as_ref().map(|_| identity);
        let mut loaded = Loaded::default();
        tables.load_findings(reboot, &mut loaded)?;
        tables.load_tenures(reboot, &mut loaded)?;
        loaded.earlier = earlier;
        tables.close()?;
        txn.commit()?;
        Ok(loaded)
    }

    /// Writes a backlog, in one transaction that is on the disk when this returns.
    pub(super) fn commit(&self, backlog: &Backlog) -> Result<(), StoreError> {
        let txn = self.db.begin_write()?;
        let mut tables = Tables::open(&txn)?;
        for (id, row) in backlog.findings() {
            tables.put_finding(id, row)?;
        }
        for (name, row) in backlog.tenures() {
            tables.put_tenure(name, row)?;
        }
        tables.close()?;
        Ok(txn.commit()?)
    }

    /// Calls `each` for the rows named between `first` and `last`, in the order of their names.
    pub(super) fn history(
        &self,
        (first, last): (RowKey, RowKey),
        mut each: impl FnMut(RowKey, &[u8]),
    ) -> Result<(), StoreError> {
        let txn = self.db.begin_read()?;
        let table = match txn.open_table(TENURES) {
            Err(TableError::TableDoesNotExist(_)) => return Ok(()),
            table => table?,
        };
        for row in table.range(&first.0[..]..=&last.0[..])? {
            let (name, value) = row?;
            if let Some(name) = RowKey::read(name.value()) {
                each(name, value.value().1);
            }
        }
        Ok(())
    }

    /// Removes at most `most` rows that ended before `before`, or, with `keep`, the oldest ended ones until the rest
    /// takes no more than `keep` bytes. Returns how many were removed.
    pub(super) fn prune(
        &self,
        before: u64,
        keep: Option<u64>,
        most: usize,
    ) -> Result<usize, StoreError> {
        let txn = self.db.begin_write()?;
        let mut tables = Tables::open(&txn)?;
        let mut gone = 0;
        while gone < most && tables.drop_oldest(before, keep)? {
            gone += 1;
        }
        tables.close()?;
        if gone == 0 {
            txn.abort()?;
        } else {
            txn.commit()?;
        }
        Ok(gone)
    }

    /// Size of all rows in bytes, without the tree around them.
    pub(super) fn bytes(&self) -> Result<u64, StoreError> {
        let txn = self.db.begin_read()?;
        let meta = txn.open_table(META)?;
        let bytes = meta.get("bytes")?;
        Ok(bytes.and_then(|value| value.value().parse().ok()).unwrap_or(0))
    }

    /// Closes the file properly, so that the next start need not repair it.
    pub(super) fn close(self, path: &Path) -> Result<(), StoreError> {
        drop(self.db);
        Ok(seal::put(path)?)
    }

    /// Returns free pages to the file system.
    pub(super) fn compact(&mut self) -> Result<(), StoreError> {
        self.db.compact()?;
        Ok(())
    }
}

/// Opens or creates the file. Returns whether it is new. Only its owner can read it, because it names pods and
/// processes.
fn open_file(path: &Path) -> Result<(File, bool), StoreError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = rustix::fs::open(path, flags | OFlags::NONBLOCK, Mode::RUSR | Mode::WUSR)
        .map_err(std::io::Error::from)?;
    let stat = rustix::fs::fstat(&fd).map_err(std::io::Error::from)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(StoreError::Io("it is not a regular file".to_owned()));
    }
    Ok((File::from(fd), stat.st_size == 0))
}

/// Rejects a file that is damaged or of a newer format, before anything is written: opening a redb file for writing
/// changes it.
fn refuse(path: &Path) -> Result<(), StoreError> {
    if seal::check(path)? == Seal::Broken {
        return Err(StoreError::Corrupted("it was changed since it was closed".to_owned()));
    }
    let db = match Builder::new().set_cache_size(CACHE).open_read_only(path) {
        Ok(db) => db,
        // It was not closed properly, and only opening it for writing can tell its content. That restores the last
        // commit and adds nothing; `adopt` then checks the format.
        Err(DatabaseError::RepairAborted) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let meta = match db.begin_read()?.open_table(META) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(()),
        meta => meta?,
    };
    match meta.get("format")?.and_then(|format| format.value().parse().ok()) {
        Some(format) if format > FORMAT => Err(StoreError::Newer(format)),
        _ => Ok(()),
    }
}

/// Renames a damaged file, so that it can be examined, and keeps the last few of them.
pub(super) fn move_aside(path: &Path) -> Result<PathBuf, StoreError> {
    let aside = |n: u64| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".corrupt-{n}"));
        PathBuf::from(name)
    };
    let (Some(dir), Some(file)) = (path.parent(), path.file_name().and_then(|name| name.to_str()))
    else {
        return Err(StoreError::Io("it has no directory".to_owned()));
    };
    let mut known: Vec<u64> = std::fs::read_dir(dir)?
        .flatten()
        .filter_map(|entry| {
            entry.file_name().to_str()?.strip_prefix(file)?.strip_prefix(".corrupt-")?.parse().ok()
        })
        .collect();
    known.sort_unstable();
    let kept = aside(known.last().map_or(1, |last| last.saturating_add(1)));
    std::fs::rename(path, &kept)?;
    seal::lift(path)?;
    for old in known.iter().rev().skip(CORRUPT_KEPT - 1) {
        let _ = std::fs::remove_file(aside(*old));
    }
    Ok(kept)
}
