//! Neighbours that do not answer, and permanent entries that were removed or changed.
//!
//! A failed entry is remembered for a while after the kernel dropped it: the limit of the table (`gc_thresh3`) is for
//! the whole machine, and a full table drops failed entries first (`neigh_forced_gc`). A full table by itself makes no
//! entry fail: without room for an entry no request is sent (`neigh_alloc`).

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::fact::{BootNs, Mac, Neighbour};

use super::evidence::{Admission, Evidence};
use crate::map::kernel::{Tenant, is_silent};
use crate::map::{NetnsId, NodeMap};

/// `NUD_*`, `include/uapi/linux/neighbour.h`.
const INCOMPLETE: u16 = 0x01;
const FAILED: u16 = 0x20;
pub(in crate::map) const PERMANENT: u16 = 0x80;
pub(in crate::map) const INCOMPLETE_OR_FAILED: u16 = INCOMPLETE | FAILED;

const SEC: u64 = 1_000_000_000;
/// The kernel sends three requests, a second apart (`mcast_solicit`, `retrans_time`).
const UNANSWERED: u64 = 3 * SEC;
/// A failed entry without a new attempt for this long says nothing about the present.
const STALE: u64 = 120 * SEC;
/// The probe and netlink report one failure within this time.
const TWICE_TOLD: u64 = SEC / 2;
/// Removing a netns first takes down its devices, and with them their entries: a permanent entry counts as lost only
/// after this.
const MISSED: u64 = 3 * SEC;
/// Maximum number of failures, and of permanent entries, of all netns but the host's.
const MAX: usize = 4096;
/// Maximum for one netns. The host may have one failure for each pod.
const MAX_EACH: usize = 512;

type Key = (NetnsId, u32, IpAddr);

/// An entry without an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unanswered {
    pub since: BootNs,
    /// When the entry last changed.
    pub changed: BootNs,
    /// Number of failures: each attempt to send makes the kernel try again.
    pub failures: u32,
    /// Since when the kernel has been sending requests.
    pub asked: Option<BootNs>,
    /// When it last answered, if that was observed.
    pub confirmed: Option<BootNs>,
}

/// A permanent entry, and whether it was removed or has another MAC now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fixed {
    pub mac: Mac,
    /// When it was first observed.
    pub since: BootNs,
    /// When it was removed or changed.
    pub lost: Option<BootNs>,
    /// The MAC that replaced it.
    pub other: Option<Mac>,
}

#[derive(Debug, Default)]
pub(in crate::map) struct UnansweredEntries {
    silent: Kept<Unanswered>,
    fixed: Kept<Fixed>,
}

/// The entries of one kind: scanning a range from one netns must not push out those of others.
#[derive(Debug)]
struct Kept<T> {
    entries: BTreeMap<Key, T>,
    evidence: Evidence<Key, MAX_EACH, MAX>,
}

trait Aged {
    /// The entry that is oldest by this time is forgotten first.
    fn age(&self) -> BootNs;
}

impl Aged for Unanswered {
    fn age(&self) -> BootNs {
        self.changed
    }
}

impl Aged for Fixed {
    fn age(&self) -> BootNs {
        self.since
    }
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), evidence: Evidence::default() }
    }
}

impl<T: Aged> Kept<T> {
    /// Adds an entry, unless others need the room.
    fn insert(&mut self, key: Key, tenant: Option<Tenant>, entry: T) {
        match self.evidence.admit(key.0, tenant, |_| false) {
            Admission::Fits => {}
            Admission::InsteadOf(other) => {
                self.entries.remove(&other);
            }
            Admission::Refused => return,
        }
        self.evidence.add(key.0, tenant, key, entry.age());
        self.entries.insert(key, entry);
    }

    fn change(&mut self, key: &Key, change: impl FnOnce(&mut T)) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let before = entry.age();
        change(entry);
        self.evidence.renew(key.0, *key, before, entry.age());
    }

    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.evidence.remove(key.0, *key, entry.age());
        }
    }

    fn remove_all(&mut self, keys: Vec<Key>) {
        keys.iter().for_each(|key| self.remove(key));
    }

    fn forget_device(&mut self, id: NetnsId, ifindex: u32) {
        let on_it = self.evidence.of(id).filter(|(_, on, _)| *on == ifindex);
        self.remove_all(on_it.copied().collect());
    }

    fn forget_netns(&mut self, id: NetnsId) {
        self.remove_all(self.evidence.of(id).copied().collect());
        self.evidence.forget_netns(id);
    }
}

/// What else is known about the reported entry.
#[derive(Debug, Clone, Copy)]
pub(in crate::map) struct EntryContext {
    /// When it last answered.
    pub(in crate::map) confirmed: Option<BootNs>,
    /// The tenant to which its netns counts; `None`: it is in the host's.
    pub(in crate::map) tenant: Option<Tenant>,
    /// A dump reported it: its state may be old.
    pub(in crate::map) dumped: bool,
}

impl Unanswered {
    /// When the missing answer counts as a failure rather than as late.
    fn counts_from(&self) -> BootNs {
        match self.asked {
            Some(asked) if self.failures == 0 => asked.plus(UNANSWERED),
            _ => self.changed,
        }
    }
}

impl UnansweredEntries {
    pub(in crate::map) fn told(
        &mut self,
        id: NetnsId,
        new: &Neighbour,
        place: EntryContext,
        at: BootNs,
    ) {
        let key = (id, new.ifindex, new.ip);
        if is_silent(new.state) {
            self.silent_again(key, new.state, place, at);
        } else if new.mac.is_some() {
            self.silent.remove(&key);
        }
        // Permanent entries of the host are flannel's, one for each node, and come and go with the nodes.
        if let Some(tenant) = place.tenant {
            self.fixed_told(key, new, tenant, at);
        }
    }

    fn silent_again(&mut self, key: Key, state: u16, place: EntryContext, at: BootNs) {
        let EntryContext { confirmed, tenant, dumped } = place;
        // The kernel announces only failures, each without the request before it (`neigh_timer_handler`). A repeated
        // report is therefore another failure, unless it comes from a dump or is the second report of one failure.
        let known = self.silent.entries.get(&key);
        let (asked, failed) = (state & INCOMPLETE != 0, state & FAILED != 0);
        if known.is_some_and(|known| {
            dumped
                || failed && known.failures > 0 && at.since(known.changed) < TWICE_TOLD
                || asked && known.asked.is_some()
        }) {
            return;
        }
        if known.is_none() {
            let new = Unanswered { since: at, changed: at, failures: 0, asked: None, confirmed };
            self.silent.insert(key, tenant, new);
        }
        self.silent.change(&key, |known| {
            if at.since(known.changed) > STALE {
                (known.since, known.failures) = (at, 0);
            }
            known.changed = at;
            known.asked = asked.then_some(at);
            known.failures = known.failures.saturating_add(u32::from(failed));
        });
    }

    fn fixed_told(&mut self, key: Key, new: &Neighbour, tenant: Tenant, at: BootNs) {
        let permanent = new.mac.filter(|_| new.state & PERMANENT != 0);
        match (self.fixed.entries.get_mut(&key), permanent) {
            (Some(known), Some(mac)) if known.mac == mac => {
                (known.lost, known.other) = (None, None);
            }
            (Some(known), other) => {
                known.lost.get_or_insert(at);
                known.other = other;
            }
            (None, Some(mac)) => {
                let new = Fixed { mac, since: at, lost: None, other: None };
                self.fixed.insert(key, Some(tenant), new);
            }
            (None, None) => {}
        }
    }

    /// The entry was removed.
    pub(in crate::map) fn gone(&mut self, id: NetnsId, ifindex: u32, ip: IpAddr, at: BootNs) {
        let key = (id, ifindex, ip);
        if self.silent.entries.get(&key).is_some_and(|known| known.failures == 0) {
            self.silent.remove(&key);
        }
        if let Some(known) = self.fixed.entries.get_mut(&key) {
            known.lost.get_or_insert(at);
            known.other = None;
        }
    }

    pub(in crate::map) fn forget_device(&mut self, id: NetnsId, ifindex: u32) {
        self.silent.forget_device(id, ifindex);
        self.fixed.forget_device(id, ifindex);
    }

    pub(in crate::map) fn forget_netns(&mut self, id: NetnsId) {
        self.silent.forget_netns(id);
        self.fixed.forget_netns(id);
    }

    /// It may have turned out whose a netns is.
    pub(in crate::map) fn counts_to(&mut self, id: NetnsId, tenant: Option<Tenant>) {
        self.silent.evidence.counts_to(id, tenant);
        self.fixed.evidence.counts_to(id, tenant);
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(in crate::map) fn assert_evidence_is_bounded(&self) {
        self.silent.evidence.assert_is_bounded();
        self.fixed.evidence.assert_is_bounded();
    }

    /// Number of entries of each netns that were forgotten for want of room.
    pub(in crate::map) fn forgotten(&self) -> impl Iterator<Item = (NetnsId, u64)> {
        let silent = self.silent.evidence.forgotten_by_netns();
        silent.chain(self.fixed.evidence.forgotten_by_netns())
    }

    /// Forgets outdated failures. Returns when the next entry begins to count, or becomes stale.
    pub(in crate::map) fn settle(&mut self, now: BootNs) -> Option<BootNs> {
        let stale = |known: &Unanswered| now.since(known.changed) >= STALE;
        let entries = self.silent.entries.iter();
        let stale = entries.filter(|(_, known)| stale(known)).map(|(key, _)| *key).collect();
        self.silent.remove_all(stale);
        self.due(now)
    }

    /// When the next entry begins to count, or becomes stale.
    fn due(&self, now: BootNs) -> Option<BootNs> {
        let silent = self.silent.entries.values();
        let counts = silent.clone().map(Unanswered::counts_from);
        let stale = silent.map(|known| known.changed.plus(STALE));
        let fixed = self.fixed.entries.values();
        let missed = fixed.filter_map(|known| Some(known.lost?.plus(MISSED)));
        counts.chain(stale).chain(missed).filter(|due| *due > now).min()
    }
}

impl NodeMap {
    /// When the next unanswered or lost permanent entry begins to count, or ceases to.
    #[must_use]
    pub fn next_silence(&self, now: BootNs) -> Option<BootNs> {
        self.conflict.unanswered.due(now)
    }

    /// Entries without an answer, in any netns, by netns, device and IP.
    pub fn silent(&self, now: BootNs) -> impl Iterator<Item = (&Key, &Unanswered)> {
        let counts = move |known: &Unanswered| {
            known.counts_from() <= now && now.since(known.changed) < STALE
        };
        self.conflict.unanswered.silent.entries.iter().filter(move |(_, known)| counts(known))
    }

    /// Permanent entries of pods that were removed or have another MAC.
    pub fn unfixed(&self, now: BootNs) -> impl Iterator<Item = (&Key, &Fixed)> {
        let missed = move |known: &Fixed| known.lost.is_some_and(|lost| lost.plus(MISSED) <= now);
        self.conflict.unanswered.fixed.entries.iter().filter(move |(_, known)| missed(known))
    }
}
