//! Tenures: who held an IP from when to when. Pure: the open tenures, and the naming of rows, which allows the history
//! of one IP to be read without the others'.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::id::tenure_hash;
use crate::contract::Prefix;
use crate::contract::{Container, Netns, Pod, Tenure};

/// Name of a tenure's row: family, address, beginning (the newest first) and the hash of its key. In byte order, all
/// rows of one prefix are adjacent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowKey(pub [u8; RowKey::LEN]);

impl RowKey {
    /// Length in bytes.
    pub const LEN: usize = 1 + 16 + 8 + 8;

    /// The row of a tenure of `ip` that began at `from` (wall clock, milliseconds).
    fn new(ip: IpAddr, from: u64, hash: u128) -> Self {
        let mut key = [0; Self::LEN];
        let (family, address) = bytes(ip);
        key[0] = family;
        key[1..17].copy_from_slice(&address);
        key[17..25].copy_from_slice(&(!from).to_be_bytes());
        key[25..].copy_from_slice(&hash.to_be_bytes()[..8]);
        Self(key)
    }

    /// When the tenure began, according to the name.
    #[must_use]
    pub fn from(&self) -> u64 {
        let mut from = [0; 8];
        from.copy_from_slice(&self.0[17..25]);
        !u64::from_be_bytes(from)
    }

    /// Parses a row's name. `None` if it is invalid.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// The first and the last name that rows of `prefix` can have.
    #[must_use]
    pub fn range(prefix: Option<Prefix>) -> (Self, Self) {
        let (mut first, mut last) = ([0; Self::LEN], [0xff; Self::LEN]);
        if let Some(prefix) = prefix {
            let (family, address) = bytes(prefix.ip);
            let width = if family == 4 { 32 } else { 128 };
            // IPv4 is in the last four of the sixteen bytes.
            let len = 128 - width + u32::from(prefix.len).min(width);
            let host = u128::MAX.checked_shr(len).unwrap_or(0);
            let address = u128::from_be_bytes(address);
            (first[0], last[0]) = (family, family);
            first[1..17].copy_from_slice(&(address & !host).to_be_bytes());
            last[1..17].copy_from_slice(&(address | host).to_be_bytes());
        }
        (Self(first), Self(last))
    }
}

fn bytes(ip: IpAddr) -> (u8, [u8; 16]) {
    match ip {
        IpAddr::V4(ip) => {
            let mut bytes = [0; 16];
            bytes[12..].copy_from_slice(&ip.octets());
            (4, bytes)
        }
        IpAddr::V6(ip) => (6, ip.octets()),
    }
}

/// A tenure as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub name: RowKey,
    /// Hash of the key that it was opened with.
    pub hash: u128,
    /// The [`Tenure`] as JSON: a third of the decoded size, and the format of the store. Shared with the write that is
    /// under way.
    pub json: Arc<[u8]>,
    /// When it ended (wall clock, milliseconds); 0 while it lasts.
    pub ended: u64,
}

impl Row {
    fn new(hash: u128, tenure: &Tenure) -> Self {
        Self {
            name: RowKey::new(tenure.ip, millis(&tenure.from), hash),
            hash,
            json: encode(tenure),
            ended: tenure.to.as_deref().map_or(0, millis),
        }
    }

    /// The decoded tenure; `None` if it cannot be read.
    #[must_use]
    pub fn tenure(&self) -> Option<Tenure> {
        serde_json::from_slice(&self.json).ok()
    }

    /// The same row, ended.
    #[must_use]
    pub fn end(&self, to: &str, ended_by: &str) -> Option<(Self, Tenure)> {
        let mut tenure = self.tenure()?;
        // A clock that was set back must not make a tenure end before it began.
        let to = if to < tenure.from.as_str() { tenure.from.clone() } else { to.to_owned() };
        tenure.to = Some(to);
        tenure.ended_by = Some(ended_by.to_owned());
        Some((Self { name: self.name, ..Self::new(self.hash, &tenure) }, tenure))
    }

    /// The same row, extended by a later tenure of the same address. `None` if it cannot be read.
    pub(super) fn prolonged(&self, later: &Tenure) -> Option<Self> {
        let mut tenure = self.tenure()?;
        tenure.to.clone_from(&later.to);
        tenure.ended_by.clone_from(&later.ended_by);
        tenure.container = later.container.clone().or(tenure.container);
        tenure.pod = later.pod.clone().or(tenure.pod);
        tenure.times = Some(tenure.times.unwrap_or(1).saturating_add(1));
        Some(Self { name: self.name, ..Self::new(self.hash, &tenure) })
    }
}

fn encode(tenure: &Tenure) -> Arc<[u8]> {
    // Plain structs of strings and numbers: serialising them cannot fail.
    serde_json::to_vec(tenure).unwrap_or_default().into()
}

/// Milliseconds since 1970 of an RFC 3339 date; at least 1, because 0 means "not ended".
pub(super) fn millis(date: &str) -> u64 {
    date.parse::<jiff::Timestamp>()
        .ok()
        .and_then(|stamp| u64::try_from(stamp.as_millisecond()).ok())
        .unwrap_or(0)
        .max(1)
}

/// The open tenures.
#[derive(Debug, Default)]
pub struct Open {
    rows: HashMap<u128, Row>,
}

impl Open {
    /// An IP is held. Returns the row to write, if it is new or has changed: an open tenure continues with its own
    /// beginning.
    pub fn held(&mut self, key: &str, mut tenure: Tenure) -> Option<Row> {
        let hash = tenure_hash(key);
        let known = self.rows.get(&hash).map(|row| (row.name, row.tenure()));
        if let Some((_, Some(known))) = &known {
            tenure.from.clone_from(&known.from);
            tenure.preexisting = known.preexisting;
            tenure.container = tenure.container.or_else(|| known.container.clone());
            tenure.pod = tenure.pod.or_else(|| known.pod.clone());
            if *known == tenure {
                return None;
            }
        }
        let mut row = Row::new(hash, &tenure);
        if let Some((name, _)) = known {
            row.name = name;
        }
        self.rows.insert(hash, row.clone());
        Some(row)
    }

    /// The container or pod of an open tenure became known. Returns the row to write, if it has changed.
    pub fn named(
        &mut self,
        key: &str,
        container: Option<Container>,
        pod: Option<Pod>,
    ) -> Option<Row> {
        let row = self.rows.get_mut(&tenure_hash(key))?;
        let known = row.tenure()?;
        let mut tenure = known.clone();
        tenure.container = container.or(tenure.container);
        tenure.pod = pod.or(tenure.pod);
        if tenure == known {
            return None;
        }
        row.json = encode(&tenure);
        Some(row.clone())
    }

    /// A tenure continues under another key, of a netns that is now known by these names. Returns the row to write, and
    /// the row that it replaces if the other key was held as well.
    pub fn moved(&mut self, from: &str, to: &str, netns: Netns) -> Option<(Row, Option<RowKey>)> {
        let mut row = self.rows.remove(&tenure_hash(from))?;
        if let Some(tenure) = row.tenure() {
            row.json = encode(&Tenure { netns, ..tenure });
        }
        let hash = tenure_hash(to);
        row.hash = hash;
        // The older of the two is kept.
        let older = self.rows.get(&hash).filter(|known| known.name.from() < row.name.from());
        let superseded = match older {
            Some(_) => Some(row.name),
            None => self.continue_from(row),
        };
        Some((self.rows.get(&hash)?.clone(), superseded))
    }

    /// An IP is no longer held. Returns the ended row, and the ended tenure.
    pub fn released(&mut self, key: &str, to: &str, ended_by: &str) -> Option<(Row, Tenure)> {
        self.rows.remove(&tenure_hash(key))?.end(to, ended_by)
    }

    /// Ends every tenure whose key is not in `alive`.
    pub fn settle(
        &mut self,
        alive: &HashSet<String>,
        to: &str,
        ended_by: &str,
    ) -> Vec<(Row, Tenure)> {
        let alive: HashSet<u128> = alive.iter().map(|key| tenure_hash(key)).collect();
        self.rows
            .extract_if(|hash, _| !alive.contains(hash))
            .filter_map(|(_, row)| row.end(to, ended_by))
            .collect()
    }

    /// Continues a tenure that an earlier run of this boot left open. Returns a row to remove if this run has opened
    /// the same tenure again: that row covers a shorter time.
    pub fn continue_from(&mut self, earlier: Row) -> Option<RowKey> {
        let newer = self.rows.insert(earlier.hash, earlier.clone())?;
        if newer.name == earlier.name {
            return None;
        }
        // What was learnt since is kept under the older name.
        if let (Some(tenure), Some(Tenure { from, preexisting, .. })) =
            (newer.tenure(), earlier.tenure())
        {
            let tenure = Tenure { from, preexisting, ..tenure };
            let row = Row { name: earlier.name, json: encode(&tenure), ..earlier };
            self.rows.insert(row.hash, row);
        }
        Some(newer.name)
    }

    /// Whether this key is held.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.rows.contains_key(&tenure_hash(key))
    }

    /// The open tenure with this key.
    #[must_use]
    pub fn tenure(&self, key: &str) -> Option<Tenure> {
        self.rows.get(&tenure_hash(key))?.tenure()
    }

    /// The open row with this hash of its key.
    #[must_use]
    pub fn get(&self, hash: u128) -> Option<&Row> {
        self.rows.get(&hash)
    }

    /// Every open row.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.values()
    }
}

#[cfg(test)]
mod tests;
