//! Tenures: who held an IP from when to when. Pure: the open tenures, and the naming of rows, which allows the history
//! of one IP to be read without the others'.
//!
//! In memory a tenure has neither a name nor JSON nor dates as text: a netns can add and remove an address a thousand
//! times a second, and most of these tenures are never written (`flaps`). The writer makes all of them.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::id::tenure_hash;
use crate::clock::WallMs;
use crate::contract::{Netns, Prefix, Tenure};
use crate::map::{Begun, Named, TenureKey};

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

/// The key that a tenure was opened with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Known(TenureKey),
    /// The hash of the key of a row that an earlier run left open: the file has no more of it.
    Hashed([u8; 16]),
}

impl Key {
    fn hash(&self) -> u128 {
        match self {
            Self::Known(key) => tenure_hash(key),
            Self::Hashed(hash) => u128::from_be_bytes(*hash),
        }
    }
}

/// A tenure as it is kept in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    key: Key,
    /// Its name, unless `key` and `from` make it: a tenure that an earlier run opened, or that continues under another
    /// key.
    name: Option<Box<RowKey>>,
    ip: IpAddr,
    netns: Place,
    who: Option<Arc<Named>>,
    from: WallMs,
    preexisting: bool,
    /// When and why it ended.
    ended: Option<(WallMs, &'static str)>,
    /// See [`Tenure::times`].
    times: Option<u32>,
}

/// [`Netns`] in fewer bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    cookie: Option<u64>,
    inode: Option<u32>,
    nsid: Option<i32>,
    path: Option<Arc<str>>,
    state: Option<Arc<str>>,
}

impl From<Netns> for Place {
    fn from(Netns { cookie, inode, nsid, path, state }: Netns) -> Self {
        Self { cookie, inode, nsid, path: path.map(Arc::from), state: state.map(Arc::from) }
    }
}

impl Place {
    fn netns(&self) -> Netns {
        let Self { cookie, inode, nsid, path, state } = self;
        let text = |text: &Option<Arc<str>>| text.as_deref().map(str::to_owned);
        Netns { cookie: *cookie, inode: *inode, nsid: *nsid, path: text(path), state: text(state) }
    }
}

impl Row {
    fn new(key: TenureKey, begun: Begun) -> Self {
        let Begun { ip, netns, from, preexisting } = begun;
        Self {
            key: Key::Known(key),
            name: None,
            ip,
            netns: netns.into(),
            who: None,
            from,
            preexisting,
            ended: None,
            times: None,
        }
    }

    /// An open row as the file has it. `None` if it cannot be read.
    pub(super) fn read(hash: u128, name: RowKey, json: &[u8]) -> Option<Self> {
        let tenure: Tenure = serde_json::from_slice(json).ok()?;
        let Tenure { ip, netns, container, pod, from, preexisting, .. } = tenure;
        let who = Named { container, pod };
        Some(Self {
            key: Key::Hashed(hash.to_be_bytes()),
            name: Some(Box::new(name)),
            ip,
            netns: netns.into(),
            who: who.is_known().then(|| Arc::new(who)),
            from: WallMs::parse(&from)?,
            preexisting,
            ended: None,
            times: None,
        })
    }

    /// Its name in the file.
    #[must_use]
    pub fn name(&self) -> RowKey {
        let own = || RowKey::new(self.ip, at_least_1(self.from), self.hash());
        self.name.as_deref().copied().unwrap_or_else(own)
    }

    /// Hash of the key that it was opened with.
    #[must_use]
    pub fn hash(&self) -> u128 {
        self.key.hash()
    }

    /// When it ended (wall clock, milliseconds); 0 while it lasts.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.ended.map_or(0, |(at, _)| at_least_1(at))
    }

    /// Whether the container or the pod is known.
    pub(super) fn is_named(&self) -> bool {
        self.who.is_some()
    }

    /// The tenure with dates.
    #[must_use]
    pub fn tenure(&self) -> Tenure {
        let Named { container, pod } = self.who.as_deref().cloned().unwrap_or_default();
        Tenure {
            ip: self.ip,
            netns: self.netns.netns(),
            container,
            pod,
            from: self.from.to_string(),
            preexisting: self.preexisting,
            to: self.ended.map(|(at, _)| at.to_string()),
            ended_by: self.ended.map(|(_, by)| by.to_owned()),
            times: self.times,
        }
    }

    /// The tenure as JSON, as it is stored.
    pub(super) fn json(&self) -> Vec<u8> {
        // Plain structs of strings and numbers: serialising them cannot fail.
        serde_json::to_vec(&self.tenure()).unwrap_or_default()
    }

    /// The same row, ended.
    pub(super) fn end(mut self, to: WallMs, ended_by: &'static str) -> Self {
        // A clock that was set back must not make a tenure end before it began.
        self.ended = Some((to.max(self.from), ended_by));
        self
    }

    /// Extends it by a later tenure of the same address.
    pub(super) fn prolong(&mut self, later: &Self) {
        self.ended = later.ended;
        self.learn(later.who.as_ref());
        self.times = Some(self.times.unwrap_or(1).saturating_add(1));
    }

    /// Takes over the container and the pod, as far as they are known.
    fn learn(&mut self, newer: Option<&Arc<Named>>) {
        let Some(newer) = newer else { return };
        let older = self.who.as_deref();
        let merged = older.filter(|older| *older != &**newer).map(|older| Named {
            container: newer.container.as_ref().or(older.container.as_ref()).cloned(),
            pod: newer.pod.as_ref().or(older.pod.as_ref()).cloned(),
        });
        self.who = Some(match merged {
            Some(merged) if merged != **newer => Arc::new(merged),
            _ => Arc::clone(newer),
        });
    }

    /// Puts this row, which began earlier, in the place of one with the same key. Returns that one if the file may have
    /// it under another name.
    fn replace(&mut self, newer: Option<Self>) -> Option<Self> {
        let newer = newer.filter(|newer| newer.name() != self.name())?;
        // What was learnt since is kept under the older name.
        self.netns.clone_from(&newer.netns);
        self.who.clone_from(&newer.who);
        Some(newer)
    }
}

/// Milliseconds since 1970 of an RFC 3339 date; at least 1, because 0 means "not ended".
pub(super) fn millis(date: &str) -> u64 {
    WallMs::parse(date).map_or(1, at_least_1)
}

fn at_least_1(at: WallMs) -> u64 {
    u64::try_from(at.0).unwrap_or(0).max(1)
}

/// The open tenures.
#[derive(Debug, Default)]
pub struct Open {
    rows: HashMap<TenureKey, Row, foldhash::fast::RandomState>,
    /// Rows that an earlier run of this boot left open, by the hash of their key, until it is known.
    inherited: HashMap<u128, Row>,
}

impl Open {
    /// An IP is held. Returns the row to write, if it is new or has changed: an open tenure continues with its own
    /// beginning.
    pub fn held(&mut self, key: TenureKey, begun: Begun) -> Option<Row> {
        self.claim(&key);
        let Some(known) = self.rows.get_mut(&key) else {
            let row = Row::new(key, begun);
            self.rows.insert(key, row.clone());
            return Some(row);
        };
        let (ip, netns) = (begun.ip, Place::from(begun.netns));
        if (known.ip, &known.netns) == (ip, &netns) {
            return None;
        }
        (known.ip, known.netns) = (ip, netns);
        Some(known.clone())
    }

    /// The container or pod of an open tenure became known. Returns the row to write, if it has changed.
    pub fn named(&mut self, key: &TenureKey, who: &Arc<Named>) -> Option<Row> {
        self.claim(key);
        let row = self.rows.get_mut(key)?;
        let before = row.who.clone();
        row.learn(Some(who));
        (row.who != before).then(|| row.clone())
    }

    /// A tenure continues under another key, of a netns that is now known by these names. Returns the row to write, and
    /// the row that it replaces if the other key was held as well.
    pub fn moved(
        &mut self,
        from: &TenureKey,
        to: TenureKey,
        netns: Netns,
    ) -> Option<(Row, Option<Row>)> {
        let mut row = self.take(from)?;
        row.name = Some(Box::new(row.name()));
        (row.key, row.netns) = (Key::Known(to), netns.into());
        self.claim(&to);
        // The older of the two is kept.
        if let Some(older) = self.rows.get(&to).filter(|known| known.from < row.from) {
            return Some((older.clone(), Some(row)));
        }
        let superseded = row.replace(self.rows.remove(&to));
        self.rows.insert(to, row.clone());
        Some((row, superseded))
    }

    /// An IP is no longer held. Returns the ended row.
    pub fn released(&mut self, key: &TenureKey, to: WallMs, ended_by: &'static str) -> Option<Row> {
        Some(self.take(key)?.end(to, ended_by))
    }

    /// Ends every tenure whose key is not in `alive`.
    pub fn settle(
        &mut self,
        alive: &HashSet<TenureKey>,
        to: WallMs,
        ended_by: &'static str,
    ) -> Vec<Row> {
        if !self.inherited.is_empty() {
            alive.iter().for_each(|key| self.claim(key));
        }
        let over = self.rows.extract_if(|key, _| !alive.contains(key)).map(|(_, row)| row);
        let over = over.chain(self.inherited.drain().map(|(_, row)| row));
        over.map(|row| row.end(to, ended_by)).collect()
    }

    /// Continues tenures that an earlier run of this boot left open. Returns rows to remove because this run has opened
    /// the same tenure again: they cover a shorter time.
    pub(super) fn continue_from(&mut self, earlier: Vec<Row>) -> Vec<Row> {
        let keys = self.by_hash();
        let next = |mut row: Row| match keys.get(&row.hash()) {
            None => {
                let newer = self.inherited.remove(&row.hash());
                let superseded = row.replace(newer);
                self.inherited.insert(row.hash(), row);
                superseded
            }
            Some(key) => {
                row.key = Key::Known(*key);
                let superseded = row.replace(self.rows.remove(key));
                self.rows.insert(*key, row);
                superseded
            }
        };
        earlier.into_iter().filter_map(next).collect()
    }

    /// The keys of the tenures that this run has opened, by their hash.
    fn by_hash(&self) -> HashMap<u128, TenureKey> {
        self.rows.keys().map(|key| (tenure_hash(key), *key)).collect()
    }

    /// Those of `rows` whose key is held, and the others.
    pub(super) fn split(&self, rows: Vec<Row>) -> (Vec<Row>, Vec<Row>) {
        let keys = self.by_hash();
        let is_held = |hash| keys.contains_key(&hash) || self.inherited.contains_key(&hash);
        rows.into_iter().partition(|row| is_held(row.hash()))
    }

    /// Whether this key is held.
    #[must_use]
    pub fn contains(&self, key: &TenureKey) -> bool {
        self.get(key).is_some()
    }

    /// The open tenure with this key.
    #[must_use]
    pub fn tenure(&self, key: &TenureKey) -> Option<Tenure> {
        self.get(key).map(Row::tenure)
    }

    fn get(&self, key: &TenureKey) -> Option<&Row> {
        let inherited = || self.inherited.get(&tenure_hash(key));
        self.rows.get(key).or_else(|| if self.inherited.is_empty() { None } else { inherited() })
    }

    /// Every open row.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.values().chain(self.inherited.values())
    }

    fn take(&mut self, key: &TenureKey) -> Option<Row> {
        self.claim(key);
        self.rows.remove(key)
    }

    /// Moves the row that an earlier run opened with this key to those whose key is known.
    fn claim(&mut self, key: &TenureKey) {
        if self.inherited.is_empty() {
            return;
        }
        if let Some(row) = self.inherited.remove(&tenure_hash(key)) {
            self.rows.insert(*key, Row { key: Key::Known(*key), ..row });
        }
    }
}

#[cfg(test)]
mod tests;
