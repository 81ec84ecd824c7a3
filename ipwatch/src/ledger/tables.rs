//! The tables of the ledger's file, and how adding or removing a row changes each of them.
//!
//! ```text
//! findings          id             → (resolved at, record)      0 = alive
//! findings_open     id             → ()
//! findings_ended    (at, id)       → ()                         retention walks it from the oldest
//! tenures           row name       → (ended at, tenure)         row names order by IP, newest first
//! tenures_open      hash of key    → row name
//! tenures_ended     (at, row name) → ()
//! meta              name           → value                      format, boot, node, bytes
//! ```

use redb::{ReadableTable, Table, TableDefinition, WriteTransaction};

use super::backlog::FindingRow;
use super::format::{Identity, Loaded, StoreError};
use super::life::{RESOLVED_KEPT, Record};
use super::tenure::{Row, RowKey};
use crate::clock::WallMs;
use crate::finding::{Change, ChangeKind, Status};

pub(super) const META: TableDefinition<'_, &str, &str> = TableDefinition::new("meta");
pub(super) const TENURES: TableDefinition<'_, &[u8], (u64, &[u8])> =
    TableDefinition::new("tenures");
const FINDINGS: TableDefinition<'_, &str, (u64, &[u8])> = TableDefinition::new("findings");
const FINDINGS_OPEN: TableDefinition<'_, &str, ()> = TableDefinition::new("findings_open");
const FINDINGS_ENDED: TableDefinition<'_, (u64, &str), ()> = TableDefinition::new("findings_ended");
const TENURES_OPEN: TableDefinition<'_, u128, &[u8]> = TableDefinition::new("tenures_open");
const TENURES_ENDED: TableDefinition<'_, (u64, &[u8]), ()> = TableDefinition::new("tenures_ended");

/// An ended row, as the two `…_ended` tables name it.
enum Ended {
    Finding(String),
    Tenure(RowKey),
}

/// Every table, open in one transaction.
pub(super) struct Tables<'txn> {
    findings: Table<'txn, &'static str, (u64, &'static [u8])>,
    findings_open: Table<'txn, &'static str, ()>,
    findings_ended: Table<'txn, (u64, &'static str), ()>,
    tenures: Table<'txn, &'static [u8], (u64, &'static [u8])>,
    tenures_open: Table<'txn, u128, &'static [u8]>,
    tenures_ended: Table<'txn, (u64, &'static [u8]), ()>,
    meta: Table<'txn, &'static str, &'static str>,
    /// Size of all rows in bytes; written back by [`Tables::close`].
    bytes: u64,
}

impl<'txn> Tables<'txn> {
    pub(super) fn open(txn: &'txn WriteTransaction) -> Result<Self, StoreError> {
        let meta = txn.open_table(META)?;
        let bytes = meta.get("bytes")?.and_then(|value| value.value().parse().ok()).unwrap_or(0);
        Ok(Self {
            findings: txn.open_table(FINDINGS)?,
            findings_open: txn.open_table(FINDINGS_OPEN)?,
            findings_ended: txn.open_table(FINDINGS_ENDED)?,
            tenures: txn.open_table(TENURES)?,
            tenures_open: txn.open_table(TENURES_OPEN)?,
            tenures_ended: txn.open_table(TENURES_ENDED)?,
            meta,
            bytes,
        })
    }

    /// Must be called before the commit.
    pub(super) fn close(mut self) -> Result<(), StoreError> {
        self.meta.insert("bytes", self.bytes.to_string().as_str())?;
        Ok(())
    }

    pub(super) fn put_finding(&mut self, id: &str, row: &FindingRow) -> Result<(), StoreError> {
        let old = self.findings.insert(id, (row.ended, row.json.as_slice()))?;
        let old = old.map(|old| (old.value().0, old.value().1.len()));
        self.count(id.len() + row.json.len(), old.map(|(_, len)| id.len() + len));
        if let Some((ended, _)) = old
            && ended != 0
        {
            self.findings_ended.remove((ended, id))?;
        }
        if row.ended == 0 {
            self.findings_open.insert(id, ())?;
        } else {
            self.findings_open.remove(id)?;
            self.findings_ended.insert((row.ended, id), ())?;
        }
        Ok(())
    }

    pub(super) fn put_tenure(&mut self, name: &RowKey, row: &Row) -> Result<(), StoreError> {
        let (name, json) = (&name.0[..], row.json());
        let (hash, now) = (row.hash(), row.ended());
        let old = self.tenures.insert(name, (now, json.as_slice()))?;
        let old = old.map(|old| (old.value().0, old.value().1.len()));
        self.count(name.len() + json.len(), old.map(|(_, len)| name.len() + len));
        if let Some((ended, _)) = old
            && ended != 0
        {
            self.tenures_ended.remove((ended, name))?;
        }
        if now == 0 {
            self.tenures_open.insert(hash, name)?;
            return Ok(());
        }
        self.tenures_ended.insert((now, name), ())?;
        // The same key may have been opened again in the same batch, under another name.
        let current = self.tenures_open.get(hash)?.is_some_and(|open| open.value() == name);
        if current {
            self.tenures_open.remove(hash)?;
        }
        Ok(())
    }

    /// Loads the findings. With `reboot`, open ones belong to an earlier boot: their netns no longer exist, so they are
    /// resolved.
    pub(super) fn load_findings(
        &mut self,
        reboot: Option<&Identity>,
        loaded: &mut Loaded,
    ) -> Result<(), StoreError> {
        let open: Result<Vec<String>, redb::StorageError> = self
            .findings_open
            .iter()?
            .map(|row| row.map(|(id, _)| id.value().to_owned()))
            .collect();
        for id in open? {
            let Some(mut record) = self.record(&id)? else {
                loaded.unreadable += 1;
                continue;
            };
            let Some(identity) = reboot else {
                loaded.findings.push(record);
                continue;
            };
            record.finding.status = Status::Resolved;
            let over = identity.began.clone().max(record.finding.since.clone());
            record.finding.resolved_at = Some(over);
            self.put_finding(&id, &FindingRow::new(&record))?;
            let change = Change::new(ChangeKind::Resolved, record.finding);
            loaded.ended_by_reboot.push(change);
        }
        let last: Result<Vec<String>, redb::StorageError> = self
            .findings_ended
            .iter()?
            .rev()
            .take(RESOLVED_KEPT)
            .map(|row| row.map(|(key, _)| key.value().1.to_owned()))
            .collect();
        for id in last?.iter().rev() {
            match self.record(id)? {
                Some(record) => loaded.resolved.push(record.finding),
                None => loaded.unreadable += 1,
            }
        }
        Ok(())
    }

    /// Loads the open tenures. With `reboot`, they belong to an earlier boot, which ended them.
    pub(super) fn load_tenures(
        &mut self,
        reboot: Option<&Identity>,
        loaded: &mut Loaded,
    ) -> Result<(), StoreError> {
        let open: Result<Vec<_>, redb::StorageError> = self
            .tenures_open
            .iter()?
            .map(|row| row.map(|(hash, name)| (hash.value(), RowKey::read(name.value()))))
            .collect();
        for (hash, name) in open? {
            let row = match name {
                Some(name) => self.row(hash, name)?,
                None => None,
            };
            let Some(row) = row else {
                loaded.unreadable += 1;
                continue;
            };
            match reboot {
                None => loaded.tenures.push(row),
                Some(identity) => {
                    let row = row.end(WallMs::parse(&identity.began).unwrap_or_default(), "reboot");
                    self.put_tenure(&row.name(), &row)?;
                    loaded.tenures_of_before.push(row.tenure());
                }
            }
        }
        Ok(())
    }

    /// Removes the row that ended first, if that was before `before` or if all rows together take more than `keep`
    /// bytes. Returns `false` if there is none to remove.
    pub(super) fn drop_oldest(
        &mut self,
        before: u64,
        keep: Option<u64>,
    ) -> Result<bool, StoreError> {
        let finding = self.findings_ended.first()?.map(|(key, _)| {
            let (at, id) = key.value();
            (at, Ended::Finding(id.to_owned()))
        });
        let tenure = self.tenures_ended.first()?.and_then(|(key, _)| {
            let (at, name) = key.value();
            RowKey::read(name).map(|name| (at, Ended::Tenure(name)))
        });
        let oldest = match (finding, tenure) {
            (Some(finding), Some(tenure)) if tenure.0 < finding.0 => Some(tenure),
            (finding, tenure) => finding.or(tenure),
        };
        let Some((at, row)) = oldest else { return Ok(false) };
        if at >= before && keep.is_none_or(|keep| self.bytes <= keep) {
            return Ok(false);
        }
        let freed = match row {
            Ended::Finding(id) => {
                self.findings_ended.remove((at, id.as_str()))?;
                self.findings.remove(id.as_str())?.map(|row| id.len() + row.value().1.len())
            }
            Ended::Tenure(name) => {
                self.tenures_ended.remove((at, &name.0[..]))?;
                self.tenures.remove(&name.0[..])?.map(|row| name.0.len() + row.value().1.len())
            }
        };
        self.count(0, freed);
        Ok(true)
    }

    fn record(&self, id: &str) -> Result<Option<Record>, StoreError> {
        let row = self.findings.get(id)?;
        Ok(row.and_then(|row| serde_json::from_slice(row.value().1).ok()))
    }

    fn row(&self, hash: u128, name: RowKey) -> Result<Option<Row>, StoreError> {
        let row = self.tenures.get(&name.0[..])?;
        Ok(row.and_then(|row| Row::read(hash, name, row.value().1)))
    }

    fn count(&mut self, new: usize, old: Option<usize>) {
        self.bytes = self.bytes.saturating_add(new as u64).saturating_sub(old.unwrap_or(0) as u64);
    }
}
