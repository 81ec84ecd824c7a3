//! Reservations for containers that are not there any more.
//!
//! Nothing of such a container may be left in the kernel, and every runtime must deny it. Where there is
//! no runtime to ask, only what cannot be otherwise counts: it was written before this boot, or the netns
//! that had the IP was seen to end.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::fact::BootNs;

use super::dispute::{Match, is_mounted_at};
use super::{NodeMap, Policy, RangeEntry, ReservationEntry, Word};

/// Leaks beyond which they are not all asked about each time that a runtime says something.
const MANY: usize = 512;
/// Then, so often.
const REVIEW: u64 = 2_000_000_000;
/// The clock may have been set since the boot.
const CLOCK: i64 = 60_000_000_000;
/// Leaks that are told one by one.
const TOLD: usize = 256;
/// Netns of one sandbox that are looked at.
const LOOKED_AT: usize = 8;

/// Why nobody gave a reservation back, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeakCause {
    /// It was written before the last boot.
    BeforeBoot,
    /// DEL was run, and failed.
    DelFailed,
    /// DEL was never run: every run has been seen since before the reservation was made.
    DelNeverCalled,
    /// Nobody knows.
    Unknown,
}

/// A reservation whose container is gone.
#[derive(Debug)]
pub struct Leak<'a> {
    /// The reservation.
    pub entry: &'a ReservationEntry,
    /// Why.
    pub cause: LeakCause,
    /// The moment from which it counts.
    pub from: BootNs,
}

#[derive(Debug, Default)]
pub(super) struct Leaks {
    /// Reservations whose IP nobody has.
    bare: BTreeSet<u32>,
    /// Those of them whose container is gone, and from when on that counts.
    gone: BTreeMap<u32, BootNs>,
    due: BTreeSet<u32>,
    waiting: BTreeSet<(BootNs, u32)>,
    /// To be asked about.
    fresh: BTreeSet<u32>,
    /// What runtimes or calls say has changed.
    changed: bool,
    reviewed: BootNs,
}

impl Leaks {
    pub(super) fn forget(&mut self, slot: u32) {
        self.bare.remove(&slot);
        self.fresh.remove(&slot);
        self.set(slot, None);
    }

    fn set(&mut self, slot: u32, from: Option<BootNs>) {
        let known = self.gone.get(&slot).copied();
        if known == from {
            return;
        }
        if let Some(known) = known {
            self.waiting.remove(&(known, slot));
            self.due.remove(&slot);
            self.gone.remove(&slot);
        }
        if let Some(from) = from {
            self.gone.insert(slot, from);
            self.waiting.insert((from, slot));
        }
    }

    /// Moves those that count by now to the others. When the next one does.
    fn promote(&mut self, now: BootNs) -> Option<BootNs> {
        while let Some((from, slot)) = self.waiting.first().copied() {
            if from > now {
                return Some(from);
            }
            self.waiting.pop_first();
            self.due.insert(slot);
        }
        None
    }

    /// What runtimes or calls say has changed.
    pub(super) fn ask_all(&mut self) {
        self.changed = true;
    }

    /// When the newest of those that count began to, and the next one that will.
    pub(super) fn moments(&self) -> impl Iterator<Item = BootNs> {
        let newest = self.due.iter().filter_map(|slot| self.gone.get(slot)).max().copied();
        let next = self.waiting.first().map(|(from, _)| *from);
        newest.into_iter().chain(next)
    }
}

impl NodeMap {
    /// A first look at what is reserved of an IP.
    pub(super) fn review_leaks(&mut self, ip: IpAddr) {
        let slots: Vec<(u32, bool)> = self
            .ipam
            .of_ip(ip)
            .map(|(slot, entry)| (slot, entry.container_id.is_some() && self.is_bare(entry)))
            .collect();
        for (slot, bare) in slots {
            if bare {
                self.ipam.leaks.bare.insert(slot);
                self.ipam.leaks.fresh.insert(slot);
            } else {
                self.ipam.leaks.forget(slot);
            }
        }
    }

    /// Whether nobody who could be its container has the IP.
    fn is_bare(&self, entry: &ReservationEntry) -> bool {
        // Those that are being torn down have it still.
        let mut all = self.with_ip(entry.ip).filter_map(|id| self.netns.get(&id));
        all.all(|netns| netns.host || self.belongs(netns, entry) == Match::Other)
    }

    /// Finds out which of them are leaks. Says when the next one begins to count.
    pub(super) fn settle_leaks(
        &mut self,
        now: BootNs,
        policy: &Policy,
        all: bool,
    ) -> Option<BootNs> {
        let leaks = &mut self.ipam.leaks;
        let mut again = None;
        if leaks.changed || all {
            let soonest = leaks.reviewed.plus(if leaks.bare.len() > MANY { REVIEW } else { 0 });
            if now >= soonest {
                (leaks.changed, leaks.reviewed) = (false, now);
                leaks.fresh = leaks.bare.clone();
            } else {
                leaks.changed = true;
                again = Some(soonest);
            }
        }
        let fresh = std::mem::take(&mut leaks.fresh);
        let found: Vec<(u32, Option<BootNs>)> = fresh
            .into_iter()
            .filter_map(|slot| Some((slot, self.lost_from(self.ipam.get(slot)?, policy))))
            .collect();
        for (slot, from) in found {
            self.ipam.leaks.set(slot, from);
        }
        let next = self.ipam.leaks.promote(now);
        [next, again].into_iter().flatten().min()
    }

    /// The moment from which a reservation whose IP nobody has is a leak, if its container is gone.
    fn lost_from(&self, entry: &ReservationEntry, policy: &Policy) -> Option<BootNs> {
        let id = entry.container_id.as_deref()?;
        let mut netns = self.owners.netns_of(id).take(LOOKED_AT);
        if netns.any(|id| self.netns.contains_key(&id)) || self.has_mount_of(id) {
            return None;
        }
        let quick = self.surely_gone_from(entry, policy);
        let from = match self.word_on(id) {
            Word::Lives | Word::Dead(_) => None,
            Word::Gone(sandbox) => {
                Some(sandbox.gone.unwrap_or_default().plus(policy.sandbox_grace))
            }
            Word::Denied(first) => {
                Some(quick.unwrap_or_else(|| self.made(entry).plus(policy.leak_age)).max(first))
            }
            Word::NobodyToAsk => quick,
            // Those that are there answer, and have no pods: a kubelet's may be another.
            Word::Unknown => {
                quick.filter(|_| self.runtimes().next().is_some() && self.runtimes_answer())
            }
        }?;
        let called = self.call_history(id).map(|history| {
            let went = [history.add, history.del];
            let running = went.iter().any(|went| went.running > 0);
            let ended = went.iter().filter_map(|went| went.ended).max();
            (running, ended.unwrap_or_default().plus(policy.sandbox_grace))
        });
        match called {
            Some((true, _)) => None,
            Some((_, ended)) => Some(from.max(ended)),
            None => Some(from),
        }
    }

    /// The same by what cannot be otherwise, whatever runtimes know.
    fn surely_gone_from(&self, entry: &ReservationEntry, policy: &Policy) -> Option<BootNs> {
        if let Some(bereft) = entry.bereft {
            return Some(bereft.plus(policy.sandbox_grace));
        }
        // Runtimes clean up after a boot what they find; they are given the time.
        self.is_before_boot(entry)
            .then(|| entry.first_seen.plus(policy.sandbox_grace).max(BootNs(policy.leak_age)))
    }

    fn is_before_boot(&self, entry: &ReservationEntry) -> bool {
        let offset = self.boot.as_ref().map(|boot| boot.wall_offset);
        entry.since.zip(offset).is_some_and(|(since, boot)| since.saturating_add(CLOCK) < boot)
    }

    /// When it was made, as far as is known.
    fn made(&self, entry: &ReservationEntry) -> BootNs {
        let offset = self.boot.as_ref().map_or(0, |boot| boot.wall_offset);
        let since = entry.since.map(|since| since.saturating_sub(offset));
        let since = since.and_then(|since| u64::try_from(since.max(0)).ok()).map(BootNs);
        since.map_or(entry.first_seen, |since| since.min(entry.first_seen))
    }

    /// Whether a netns is mounted where this container's was.
    fn has_mount_of(&self, id: &str) -> bool {
        let cached = self.attachment_of(id).and_then(|known| known.netns_path.as_deref());
        let called = self.call_history(id).and_then(|known| known.netns_path.as_deref());
        let paths: Vec<&str> = [cached, called].into_iter().flatten().collect();
        !paths.is_empty()
            && self.netns.values().any(|netns| paths.iter().any(|path| is_mounted_at(netns, path)))
    }

    /// Why nobody gave it back.
    fn leak_cause(&self, entry: &ReservationEntry) -> LeakCause {
        let history = entry.container_id.as_deref().and_then(|id| self.call_history(id));
        let del = history.map(|history| history.del).unwrap_or_default();
        if del.failures > 0 {
            return LeakCause::DelFailed;
        }
        if self.is_before_boot(entry) {
            return LeakCause::BeforeBoot;
        }
        let seen = self.calls_seen_since().is_some_and(|since| since < entry.first_seen);
        if seen && !entry.preexisting && del.first.is_none() {
            return LeakCause::DelNeverCalled;
        }
        LeakCause::Unknown
    }

    /// Reservations whose containers are gone, as many as are told one by one.
    pub fn leaks(&self) -> impl Iterator<Item = Leak<'_>> {
        self.ipam.leaks.due.iter().take(TOLD).filter_map(|slot| {
            let entry = self.ipam.get(*slot)?;
            let from = *self.ipam.leaks.gone.get(slot)?;
            Some(Leak { entry, cause: self.leak_cause(entry), from })
        })
    }

    /// Whether a reservation's container is gone.
    #[must_use]
    pub fn is_leaked(&self, store: &str, key: &str) -> bool {
        self.ipam.slot(store, key).is_some_and(|slot| self.ipam.leaks.due.contains(&slot))
    }

    /// Reserved IPs of a range that no living container has: their containers are gone, or what is left of
    /// these is only a netns.
    #[must_use]
    pub fn leaked_in(&self, range: &RangeEntry, now: BootNs, policy: &Policy) -> Vec<IpAddr> {
        let due = self.ipam.leaks.due.iter().filter_map(|slot| self.ipam.get(*slot));
        let mut leaked: Vec<IpAddr> = due
            .filter(|entry| range.is_of(entry) && range.contains(entry.ip))
            .map(|entry| entry.ip)
            .collect();
        let left = self.taskless().filter(|netns| {
            netns.dying.is_none() && self.leaked_from(netns, policy).is_some_and(|from| from <= now)
        });
        for netns in left {
            for (key, _) in netns.routable() {
                let mut reserved = self.reservations_of(key.local);
                if reserved
                    .any(|entry| range.is_of(entry) && self.belongs(netns, entry) == Match::Same)
                    && range.contains(key.local)
                {
                    leaked.push(key.local);
                }
            }
        }
        leaked.sort_unstable();
        leaked.dedup();
        leaked
    }
}
