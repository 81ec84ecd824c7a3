//! What was reported of the files of a store, to find what changes.
//!
//! Of a reservation only its key and a hash are kept: the map has the rest, and a store may have 65,000 reservations.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

use super::Content;
use crate::clock;
use crate::fact::{BootNs, Configured, Fact, Observation, Origin, Range, Scope};
use crate::sources::{Closed, Emit, files};

/// Maximum number of reservations followed in one store: two /16.
const MOST: usize = 131_072;

/// Maximum number of ranges of one store.
const MOST_RANGES: usize = 1_024;

/// Maximum number of facts in one batch.
const BATCH: usize = 1_024;

/// Where the facts of a store are sent.
pub(super) struct Out {
    emit: Emit,
    facts: Vec<Fact>,
}

impl Out {
    pub(super) fn new(emit: Emit) -> Self {
        Self { emit, facts: Vec::new() }
    }

    pub(super) fn push(&mut self, at: BootNs, what: Observation) -> Result<(), Closed> {
        self.facts.push(Fact { at, origin: Origin::Ipam, what });
        if self.facts.len() >= BATCH { self.flush() } else { Ok(()) }
    }

    /// Sends one fact, from async code.
    pub(super) async fn tell(&mut self, at: BootNs, what: Observation) -> Result<(), Closed> {
        self.emit.send(vec![Fact { at, origin: Origin::Ipam, what }]).await
    }

    /// Sends the collected facts. Never call it on an async worker.
    ///
    /// # Errors
    /// The daemon is shutting down; or the calling thread hung, and another one reports this store by now.
    pub(super) fn flush(&mut self) -> Result<(), Closed> {
        files::send(&self.emit, std::mem::take(&mut self.facts))
    }

    /// Drops the facts that were not sent yet.
    pub(super) fn discard(&mut self) {
        self.facts.clear();
    }
}

/// The content of a store's files.
pub(super) struct Known {
    store: &'static str,
    directories: BTreeMap<PathBuf, HashMap<OsString, Said>>,
    hasher: RandomState,
    reservations: usize,
    ranges: usize,
    /// Whether ranges were added, changed or removed.
    ranges_changed: bool,
    /// Number of reservations and ranges beyond the limits.
    beyond: usize,
}

/// The content of one file.
struct Said {
    /// Sorted by key.
    reservations: Box<[Reported]>,
    ranges: Vec<Range>,
    /// A configuration that names networks alone does not show that the store is in use.
    networks: Vec<Configured>,
}

struct Reported {
    /// `None`: the file's path.
    key: Option<Box<str>>,
    hash: u64,
}

impl Reported {
    fn key(&self, path: &Path) -> String {
        match &self.key {
            Some(key) => key.to_string(),
            None => path.display().to_string(),
        }
    }
}

/// Finds the reservation with this key in a sorted list.
fn find<'a>(told: &'a [Reported], key: Option<&str>) -> Option<&'a Reported> {
    told.binary_search_by(|told| told.key.as_deref().cmp(&key)).ok().map(|at| &told[at])
}

impl Known {
    pub(super) fn new(store: &'static str) -> Self {
        Self {
            store,
            directories: BTreeMap::new(),
            hasher: RandomState::new(),
            reservations: 0,
            ranges: 0,
            ranges_changed: false,
            beyond: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.reservations + self.ranges == 0
    }

    /// Resets the count beyond the limits, because everything will be read again.
    pub(super) fn recount(&mut self) {
        self.beyond = 0;
    }

    /// Counts entries that are not even read.
    pub(super) fn leave_out(&mut self, more: usize) {
        self.beyond += more;
    }

    pub(super) fn beyond(&self) -> usize {
        self.beyond
    }

    /// Whether there is room again for a good part of what was left out.
    pub(super) fn has_room(&self) -> bool {
        self.beyond > 0
            && self.reservations < MOST - MOST / 8
            && self.ranges < MOST_RANGES - MOST_RANGES / 8
    }

    /// The directories whose files have content.
    pub(super) fn directories(&self) -> impl Iterator<Item = &PathBuf> {
        self.directories.keys()
    }

    /// Takes the content of a file and reports changes. `all`: reports everything.
    pub(super) fn says(
        &mut self,
        path: &Path,
        mut content: Content,
        all: bool,
        at: BootNs,
        out: &mut Out,
    ) -> Result<(), Closed> {
        let before = self.take(path);
        let (old, old_ranges, old_networks) = match &before {
            Some(said) => (&*said.reservations, &*said.ranges, &*said.networks),
            None => (&[][..], &[][..], &[][..]),
        };
        self.limit(&mut content);
        let mut told = Vec::with_capacity(content.reservations.len());
        for reservation in content.reservations {
            let own = path.to_str() == Some(&reservation.key);
            let key = (!own).then(|| reservation.key.clone().into_boxed_str());
            let hash = self.hasher.hash_one(&reservation);
            if all || find(old, key.as_deref()).is_none_or(|old| old.hash != hash) {
                out.push(at, Observation::Reservation(reservation))?;
            }
            told.push(Reported { key, hash });
        }
        told.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        for old in old.iter().filter(|old| find(&told, old.key.as_deref()).is_none()) {
            let key = old.key(path);
            out.push(at, Observation::ReservationGone { store: self.store.to_owned(), key })?;
        }
        let Content { ranges, networks, .. } = content;
        self.ranges_changed |= ranges != old_ranges || networks != old_networks;
        self.put(path, Said { reservations: told.into(), ranges, networks });
        Ok(())
    }

    /// Cuts the content to the limits.
    fn limit(&mut self, content: &mut Content) {
        let room = MOST.saturating_sub(self.reservations);
        self.beyond += content.reservations.len().saturating_sub(room);
        content.reservations.truncate(room);
        let room = MOST_RANGES.saturating_sub(self.ranges);
        self.beyond += content.ranges.len().saturating_sub(room);
        content.ranges.truncate(room);
    }

    /// Handles the removal of a file.
    pub(super) fn gone(&mut self, path: &Path, out: &mut Out) -> Result<(), Closed> {
        let Some(said) = self.take(path) else { return Ok(()) };
        self.ranges_changed |= !said.ranges.is_empty() || !said.networks.is_empty();
        for told in &said.reservations {
            let key = told.key(path);
            let what = Observation::ReservationGone { store: self.store.to_owned(), key };
            out.push(clock::now(), what)?;
        }
        Ok(())
    }

    /// Handles the removal of all files in a directory except those that are `left`.
    pub(super) fn gone_but(
        &mut self,
        directory: &Path,
        left: impl Fn(&OsStr) -> bool,
        out: &mut Out,
    ) -> Result<(), Closed> {
        let Some(files) = self.directories.get(directory) else { return Ok(()) };
        let gone: Vec<PathBuf> =
            files.keys().filter(|name| !left(name)).map(|name| directory.join(name)).collect();
        for path in gone {
            self.gone(&path, out)?;
        }
        Ok(())
    }

    /// Reports all ranges, if one has changed.
    pub(super) fn tell_ranges(&mut self, out: &mut Out) -> Result<(), Closed> {
        if !std::mem::take(&mut self.ranges_changed) {
            return Ok(());
        }
        let began = clock::now();
        let scope = Scope::Ranges { store: self.store.to_owned() };
        out.push(began, Observation::Began(scope.clone()))?;
        for said in self.directories.values().flat_map(HashMap::values) {
            for range in &said.ranges {
                out.push(began, Observation::Range(range.clone()))?;
            }
            for network in &said.networks {
                out.push(began, Observation::Configured(network.clone()))?;
            }
        }
        // Complete, because the former ranges of an unreadable file stay valid and are included.
        out.push(clock::now(), Observation::Ended { scope, began, complete: true })
    }

    fn take(&mut self, path: &Path) -> Option<Said> {
        let (directory, name) = (path.parent()?, path.file_name()?);
        let files = self.directories.get_mut(directory)?;
        let said = files.remove(name)?;
        if files.is_empty() {
            self.directories.remove(directory);
        }
        self.reservations -= said.reservations.len();
        self.ranges -= said.ranges.len();
        Some(said)
    }

    fn put(&mut self, path: &Path, said: Said) {
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { return };
        if said.reservations.is_empty() && said.ranges.is_empty() && said.networks.is_empty() {
            return;
        }
        self.reservations += said.reservations.len();
        self.ranges += said.ranges.len();
        if let Some(files) = self.directories.get_mut(directory) {
            files.insert(name.to_owned(), said);
        } else {
            let files = HashMap::from([(name.to_owned(), said)]);
            self.directories.insert(directory.to_owned(), files);
        }
    }
}
