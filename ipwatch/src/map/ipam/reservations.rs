//! Reservations of the IPAM stores, and releases.
//!
//! A /16 can have 65,000 reservations, so each is stored once and indexed by key, IP and container. What a change means
//! is derived only for its IP (`mismatch`, `leaks`), in the next agenda.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::fact::{BootNs, PodName, Reservation, Unreadable};

use super::blocks;
use super::configured;
use super::leaks;
use super::mismatch::{Disputed, Match};
use super::ranges;
use super::stores::is_by_pod_object;
use crate::map::{Kinds, NetnsId, NodeMap, Table, Thresholds};

/// Maximum number of reservations, of all stores.
const MOST: usize = 262_144;
/// Maximum number of remembered releases. Releases of IPs that are still held may double it.
const MOST_RELEASES: usize = 8192;
/// How long a release is remembered after nobody has its IP any more.
const REMEMBERED: u64 = 600_000_000_000;
/// Maximum number of unreadable files.
const MOST_UNREADABLE: usize = 1024;
/// How long a file that is being written may be unreadable, in ns: a plugin that gets no CPU was seen to take six seconds
/// between the file and its content.
pub const WRITING: u64 = 10_000_000_000;
/// Maximum number of interned names (of stores, networks and interfaces).
const MOST_NAMES: usize = 4096;

/// A reservation, and when it was reported.
#[derive(Debug, Clone)]
pub struct ReservationEntry {
    /// As [`Reservation::store`].
    pub store: Arc<str>,
    /// As [`Reservation::network`].
    pub network: Arc<str>,
    /// As [`Reservation::key`].
    pub key: Arc<str>,
    pub ip: IpAddr,
    /// As [`Reservation::container_id`].
    pub container_id: Option<Arc<str>>,
    /// As [`Reservation::ifname`].
    pub ifname: Option<Arc<str>>,
    /// As [`Reservation::pod`].
    pub pod: Option<Box<PodName>>,
    /// As [`Reservation::since`].
    pub since: Option<i64>,
    /// First reported.
    pub first_seen: BootNs,
    /// Last reported.
    pub told: BootNs,
    /// When the netns that had the IP for this container ended.
    pub bereft: Option<BootNs>,
    /// Whether it was in the first listing of its store, so that the time of its creation is unknown.
    pub preexisting: bool,
}

impl ReservationEntry {
    /// Whether `ipwatch-ipam` keeps it for whoever still has the IP.
    #[must_use]
    pub fn is_parked(&self) -> bool {
        self.container_id.as_deref().is_some_and(ipwatch_ipam::name::is_parked)
    }

    /// Whether it says the same.
    fn says(&self, other: &Reservation) -> bool {
        self.is_for(other)
            && self.pod.as_deref() == other.pod.as_ref()
            && *self.network == *other.network
            && self.ifname.as_deref() == other.ifname.as_deref()
            && self.since == other.since
    }

    /// Whether the report has the same IP for the same container or pod. A container's id suffices; the uid of a pod
    /// may be reported later.
    fn is_for(&self, other: &Reservation) -> bool {
        let same_pod = || match (self.pod.as_deref(), &other.pod) {
            (Some(own), Some(pod)) => {
                own.namespace == pod.namespace
                    && own.name == pod.name
                    && (own.uid.is_none() || pod.uid.is_none() || own.uid == pod.uid)
            }
            (own, other) => own.is_none() && other.is_none(),
        };
        self.ip == other.ip
            && self.container_id.as_deref() == other.container_id.as_deref()
            && (self.container_id.is_some() || same_pod())
    }
}

/// A reservation that its store has released.
#[derive(Debug, Clone)]
pub struct Release {
    pub was: ReservationEntry,
    /// When it was released, as far as that was observed.
    pub at: BootNs,
    /// When the store last let go of the IP. Later than `at` where it was given to another one meanwhile who has not
    /// taken it up.
    last: BootNs,
}

/// A file of a store that cannot be read.
#[derive(Debug, Clone)]
pub struct UnreadableEntry {
    /// The file, and why.
    pub file: Unreadable,
    /// First reported.
    pub since: BootNs,
    /// Last reported.
    pub told: BootNs,
}

type Slot = u32;

#[derive(Debug, Default)]
pub(in crate::map) struct Ipam {
    slots: Vec<Option<ReservationEntry>>,
    free: Vec<Slot>,
    keys: Table<Arc<str>, Table<Arc<str>, Slot>>,
    by_ip: BTreeSet<(IpAddr, Slot)>,
    by_container: BTreeSet<(Arc<str>, Slot)>,
    names: BTreeSet<Arc<str>>,
    /// Number of reservations that exceeded the maximum.
    pub(super) beyond: u64,
    /// Releases, by IP, store and key.
    releases: BTreeMap<(IpAddr, Arc<str>, Arc<str>), Release>,
    pruned: BootNs,
    /// When the first complete listing of a store's reservations began.
    listed: BTreeMap<String, BootNs>,
    unreadable: BTreeMap<(String, String), UnreadableEntry>,
    pub(super) ranges: ranges::Ranges,
    pub(super) networks: configured::Networks,
    pub(super) blocks: blocks::Blocks,
    pub(super) leaks: leaks::Leaks,

    /// IPs with changes since the last settling.
    dirty: BTreeSet<IpAddr>,
    /// Any IP may have changed.
    all_dirty: bool,
    /// IPs that are up in a netns without a matching reservation, according to a cheap check.
    pub(super) doubtful: BTreeSet<IpAddr>,
    /// Of these, with the netns, the ones that are known to be unreserved.
    pub(super) unreserved: BTreeSet<(IpAddr, NetnsId)>,
    pub(super) disputed: Disputed,
}

impl Ipam {
    fn name(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return known.clone();
        }
        let new: Arc<str> = name.into();
        if self.names.len() < MOST_NAMES {
            self.names.insert(new.clone());
        }
        new
    }

    pub(in crate::map) fn slot(&self, store: &str, key: &str) -> Option<Slot> {
        self.keys.get(store)?.get(key).copied()
    }

    pub(in crate::map) fn get(&self, slot: Slot) -> Option<&ReservationEntry> {
        self.slots.get(slot as usize)?.as_ref()
    }

    fn get_mut(&mut self, slot: Slot) -> Option<&mut ReservationEntry> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    pub(in crate::map) fn of_ip(
        &self,
        ip: IpAddr,
    ) -> impl Iterator<Item = (Slot, &ReservationEntry)> {
        self.within(ip, ip)
    }

    /// Reservations of the IPs from `first` to `last`, in IP order.
    pub(in crate::map) fn within(
        &self,
        first: IpAddr,
        last: IpAddr,
    ) -> impl Iterator<Item = (Slot, &ReservationEntry)> {
        let slots = (first <= last).then(|| self.by_ip.range((first, 0)..=(last, Slot::MAX)));
        let slots = slots.into_iter().flatten();
        slots.filter_map(|(_, slot)| Some((*slot, self.get(*slot)?)))
    }

    pub(in crate::map) fn all(&self) -> impl Iterator<Item = (Slot, &ReservationEntry)> {
        self.by_ip.iter().filter_map(|(_, slot)| Some((*slot, self.get(*slot)?)))
    }

    fn insert(&mut self, entry: ReservationEntry) {
        if self.by_ip.len() >= MOST {
            self.beyond += 1;
            return;
        }
        self.ranges.came(
            &entry,
            self.by_ip
                .range((entry.ip, 0)..=(entry.ip, Slot::MAX))
                .filter_map(|(_, slot)| self.slots.get(*slot as usize)?.as_ref()),
        );
        let slot = self.free.pop().unwrap_or(self.slots.len() as Slot);
        self.by_ip.insert((entry.ip, slot));
        if let Some(id) = &entry.container_id {
            self.by_container.insert((id.clone(), slot));
        }
        let keys = self.keys.entry(entry.store.clone()).or_default();
        keys.insert(entry.key.clone(), slot);
        self.dirty.insert(entry.ip);
        match self.slots.get_mut(slot as usize) {
            Some(place) => *place = Some(entry),
            None => self.slots.push(Some(entry)),
        }
    }

    fn remove(&mut self, slot: Slot) -> Option<ReservationEntry> {
        let entry = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        self.by_ip.remove(&(entry.ip, slot));
        if let Some(id) = &entry.container_id {
            self.by_container.remove(&(id.clone(), slot));
        }
        if let Some(keys) = self.keys.get_mut(&entry.store) {
            keys.remove(&entry.key);
        }
        self.forget_leak(slot, &entry);
        self.dirty.insert(entry.ip);
        self.ranges.went(
            &entry,
            self.by_ip
                .range((entry.ip, 0)..=(entry.ip, Slot::MAX))
                .filter_map(|(_, slot)| self.slots.get(*slot as usize)?.as_ref()),
        );
        Some(entry)
    }

    fn release(&mut self, was: ReservationEntry, at: BootNs) {
        let key = (was.ip, was.store.clone(), was.key.clone());
        self.releases.insert(key, Release { was, at, last: at });
    }

    /// Reservations for containers whose id begins so.
    pub(super) fn beginning_with<'a>(
        &'a self,
        prefix: &'a str,
    ) -> impl Iterator<Item = &'a ReservationEntry> {
        let from: Arc<str> = prefix.into();
        let all = self.by_container.range((from, 0)..);
        let all = all.take_while(move |(id, _)| id.starts_with(prefix));
        all.filter_map(|(_, slot)| self.get(*slot))
    }

    /// Whether this reservation was released after `at`.
    fn released_since(&self, reservation: &Reservation, at: BootNs) -> bool {
        let mut releases = self.releases_of(reservation.ip);
        releases.any(|release| {
            release.last > at
                && *release.was.store == *reservation.store
                && *release.was.key == *reservation.key
        })
    }

    pub(in crate::map) fn releases_of(&self, ip: IpAddr) -> impl Iterator<Item = &Release> {
        let first: (IpAddr, Arc<str>, Arc<str>) = (ip, "".into(), "".into());
        let of_ip = self.releases.range(first..).take_while(move |((own, ..), _)| *own == ip);
        of_ip.map(|(_, release)| release)
    }

    /// Something that decides who has this IP has changed: an address, an owner, an attachment or a call.
    pub(in crate::map) fn touch(&mut self, ip: IpAddr) {
        self.dirty.insert(ip);
    }

    /// Sandboxes, ranges or stores have changed.
    pub(in crate::map) fn touch_all(&mut self) {
        self.all_dirty = true;
    }
}

impl NodeMap {
    pub(in crate::map) fn set_reservation(&mut self, reservation: &Reservation, at: BootNs) {
        let preexisting = !self.ipam.listed.contains_key(&reservation.store);
        let ipam = &mut self.ipam;
        let slot = ipam.slot(&reservation.store, &reservation.key);
        if let Some(known) = slot.and_then(|slot| ipam.get_mut(slot)) {
            if known.told > at {
                return;
            }
            known.told = at;
            if known.says(reservation) {
                return;
            }
        } else if ipam.released_since(reservation, at) {
            return;
        }
        let before = slot.and_then(|slot| ipam.remove(slot));
        let same = before.as_ref().is_some_and(|before| before.is_for(reservation));
        let kept = before.as_ref().filter(|_| same);
        let entry = ReservationEntry {
            store: ipam.name(&reservation.store),
            network: ipam.name(&reservation.network),
            key: reservation.key.as_str().into(),
            ip: reservation.ip,
            container_id: reservation.container_id.as_deref().map(Into::into),
            ifname: reservation.ifname.as_deref().map(|name| ipam.name(name)),
            pod: reservation.pod.clone().map(Box::new),
            since: reservation.since,
            first_seen: kept.map_or(at, |kept| kept.first_seen),
            told: at,
            bereft: kept.and_then(|kept| kept.bereft),
            preexisting: kept.map_or(preexisting, |kept| kept.preexisting),
        };
        // Reserved again for the same owner: the release does not count.
        let key = (entry.ip, entry.store.clone(), entry.key.clone());
        if ipam.releases.get(&key).is_some_and(|release| release.was.is_for(reservation)) {
            ipam.releases.remove(&key);
        }
        ipam.insert(entry);
        if let Some(before) = before.filter(|_| !same) {
            self.note_release(&before, at);
            self.remember_release(before, at);
        }
    }

    pub(in crate::map) fn drop_reservation(&mut self, store: &str, key: &str, at: BootNs) {
        let Some(slot) = self.ipam.slot(store, key) else { return };
        if self.ipam.get(slot).is_some_and(|known| known.told > at) {
            return;
        }
        if let Some(was) = self.ipam.remove(slot) {
            self.note_release(&was, at);
            self.remember_release(was, at);
        }
    }

    /// Remembers what a store let go of. An IP that was handed out and given back before it was up does not hide who
    /// still has it, and neither does one that was parked.
    fn remember_release(&mut self, was: ReservationEntry, at: BootNs) {
        if is_by_pod_object(&was.store) {
            return;
        }
        let key = (was.ip, was.store.clone(), was.key.clone());
        let hides = self.ipam.releases.get(&key).is_some_and(|known| {
            known.was.container_id != was.container_id
                && self.still_has(&known.was)
                && !self.still_has(&was)
        });
        if hides && let Some(known) = self.ipam.releases.get_mut(&key) {
            known.last = known.last.max(at);
        } else if !was.is_parked() {
            self.ipam.release(was, at);
        }
    }

    /// Whether a netns of the one that an IP was reserved for has it.
    fn still_has(&self, entry: &ReservationEntry) -> bool {
        self.holders_of(entry.ip)
            .any(|netns| self.belongs(netns, entry) == Match::Same && !self.is_guess(netns, entry))
    }

    /// A whole list of a store has ended: what it did not name has been let go of.
    pub(in crate::map) fn sweep_reservations(&mut self, store: &str, began: BootNs) {
        let missed = |(slot, entry): (Slot, &ReservationEntry)| {
            (*entry.store == *store && entry.told < began).then_some(slot)
        };
        let missed: Vec<Slot> = self.ipam.all().filter_map(missed).collect();
        for slot in missed {
            if let Some(was) = self.ipam.remove(slot) {
                self.note_release(&was, began);
                self.remember_release(was, began);
            }
        }
        if !self.ipam.listed.contains_key(store) {
            self.ipam.listed.insert(store.to_owned(), began);
            self.ipam.touch_all();
        }
    }

    /// A store is no longer in use: its silence is no gap. It may come back with another first listing.
    pub(in crate::map) fn store_gone(&mut self, store: &str) {
        if self.ipam.listed.remove(store).is_some() {
            self.ipam.touch_all();
        }
    }

    pub(in crate::map) fn set_unreadable(&mut self, file: &Unreadable, at: BootNs) {
        let key = (file.store.clone(), file.path.clone());
        let unreadable = &mut self.ipam.unreadable;
        if unreadable.len() >= MOST_UNREADABLE && !unreadable.contains_key(&key) {
            return;
        }
        let since = unreadable.get(&key).map_or(at, |known| known.since);
        unreadable.insert(key, UnreadableEntry { file: file.clone(), since, told: at });
        if let Some(ip) = file.takes {
            self.recount_ranges(ip);
        }
    }

    pub(in crate::map) fn set_readable(&mut self, store: &str, path: &str) {
        let entry = self.ipam.unreadable.remove(&(store.to_owned(), path.to_owned()));
        if let Some(ip) = entry.and_then(|entry| entry.file.takes) {
            self.recount_ranges(ip);
        }
    }

    /// The netns of a sandbox has ended: marks the sandbox's reservations as bereft.
    pub(in crate::map) fn bereave(&mut self, sandbox: &str, at: BootNs) {
        let id: Arc<str> = sandbox.into();
        let of_it = self.ipam.by_container.range((id.clone(), 0)..=(id, Slot::MAX));
        let slots: Vec<Slot> = of_it.map(|(_, slot)| *slot).collect();
        for slot in slots {
            let Some(entry) = self.ipam.get_mut(slot) else { continue };
            entry.bereft = Some(at);
            let ip = entry.ip;
            self.ipam.touch(ip);
        }
    }

    /// Derives what follows from the changes since the last call. Returns when to call this again.
    pub(in crate::map) fn settle_ipam(
        &mut self,
        now: BootNs,
        thresholds: &Thresholds,
    ) -> Option<BootNs> {
        let dirty = std::mem::take(&mut self.ipam.dirty);
        let all = std::mem::take(&mut self.ipam.all_dirty);
        if all || !dirty.is_empty() {
            self.changes.mark(Kinds::IPAM);
        }
        if all {
            let mut ips: BTreeSet<IpAddr> = self.kernel.addresses().map(|(ip, _)| ip).collect();
            ips.extend(dirty);
            self.review(&ips);
        } else {
            self.review(&dirty);
        }
        self.see_configured();
        let unlisted = self.unlisted_stores();
        let room = self.pod_room();
        if self.ipam.ranges.sample(now, &self.ipam.blocks, &unlisted, room) {
            self.changes.mark(Kinds::IPAM);
        }
        let leaks = self.settle_leaks(now, thresholds, all);
        self.prune_releases(now);
        let written = self.unreadable().map(|entry| entry.since.plus(WRITING));
        let written = written.filter(|due| *due > now).min();
        [leaks, self.settle_disputes(now), written].into_iter().flatten().min()
    }

    /// Stores with ranges that have not been read completely, or whose last report does not count.
    fn unlisted_stores(&self) -> BTreeSet<String> {
        let listed = |store: &str| self.store_listed(store).is_some() && self.store_counts(store);
        let ranges = self.ranges().filter(|range| !range.is_by_blocks());
        let stores = ranges.map(|range| &range.range.store);
        stores.filter(|store| !listed(store)).cloned().collect()
    }

    /// A cheap check of IPs with changes.
    fn review(&mut self, ips: &BTreeSet<IpAddr>) {
        for ip in ips {
            if self.is_doubtful(*ip) {
                self.ipam.doubtful.insert(*ip);
            } else {
                self.ipam.doubtful.remove(ip);
            }
            self.review_leaks(*ip);
        }
    }

    fn prune_releases(&mut self, now: BootNs) {
        const EVERY: u64 = REMEMBERED / 10;
        let full = self.ipam.releases.len() > MOST_RELEASES;
        if !full && now.since(self.ipam.pruned) < EVERY {
            return;
        }
        self.ipam.pruned = now;
        self.ipam.disputed.doubt();
        let mut releases = std::mem::take(&mut self.ipam.releases);
        let held = |ip: &IpAddr| self.holders_of(*ip).next().is_some();
        releases.retain(|(ip, ..), release| now.since(release.at) < REMEMBERED || held(ip));
        if releases.len() > MOST_RELEASES {
            let mut ages: Vec<BootNs> = releases.values().map(|release| release.at).collect();
            ages.sort_unstable();
            // Drop half of them, so that this need not be repeated at once.
            let middle = ages[ages.len() - MOST_RELEASES / 2];
            releases.retain(|(ip, ..), release| release.at >= middle || held(ip));
            while releases.len() > 2 * MOST_RELEASES {
                releases.pop_first();
            }
        }
        self.ipam.releases = releases;
    }

    /// Every reservation of an IP.
    pub fn reservations_of(&self, ip: IpAddr) -> impl Iterator<Item = &ReservationEntry> {
        self.ipam.of_ip(ip).map(|(_, entry)| entry)
    }

    /// Every reservation for a container.
    pub fn reservations_for(&self, container: &str) -> impl Iterator<Item = &ReservationEntry> {
        let id: Arc<str> = container.into();
        let of_it = self.ipam.by_container.range((id.clone(), 0)..=(id, Slot::MAX));
        of_it.filter_map(|(_, slot)| self.ipam.get(*slot))
    }

    /// Every reservation, in IP order.
    pub fn reservations(&self) -> impl Iterator<Item = &ReservationEntry> {
        self.ipam.all().map(|(_, entry)| entry)
    }

    /// Recent releases of one IP.
    pub fn releases_of(&self, ip: IpAddr) -> impl Iterator<Item = &Release> {
        self.ipam.releases_of(ip)
    }

    /// Files of stores that cannot be read.
    pub fn unreadable(&self) -> impl Iterator<Item = &UnreadableEntry> {
        self.ipam.unreadable.values()
    }

    /// Names of the stores that have completed a listing at least once.
    pub fn stores(&self) -> impl Iterator<Item = &str> {
        self.ipam.listed.keys().map(String::as_str)
    }

    /// When the first complete listing of a store began.
    #[must_use]
    pub fn store_listed(&self, store: &str) -> Option<BootNs> {
        self.ipam.listed.get(store).copied()
    }
}
