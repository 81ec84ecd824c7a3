//! Reservations for containers that are not there any more.
//!
//! Nothing of such a container may be left in the kernel, and every runtime must deny it. Where there is
//! no runtime to ask, only what cannot be otherwise counts: it was written before this boot, or the netns
//! that had the IP was seen to end.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::fact::{BootNs, Holder, store};

use super::mismatch::Match;
use super::stores::is_of_the_cluster;
use crate::map::workload::HUNG;
use crate::map::workload::Proofs;
use crate::map::workload::Why;
use crate::map::workload::strip_var;
use crate::map::{Kinds, NodeMap, RangeEntry, ReservationEntry, Thresholds, Word};

/// Reservations without their container beyond which not all are asked about each time that a runtime says
/// something.
const MANY: usize = 512;
/// Then, so often.
const REVIEW: u64 = 2_000_000_000;
/// Those that are asked about in one turn, and the pause before the next.
const A_TURN: usize = 2048;
const PAUSE: u64 = 20_000_000;
/// The clock may have been set since the boot.
const CLOCK: i64 = 60_000_000_000;
/// Leaks of one network that are told one by one, and of all.
const TOLD: usize = 64;
const TOLD_OF_ALL: usize = 2048;
/// Terway keeps the IP of a pod that may come back for five minutes after its DEL, and looks every five
/// minutes for those that did not.
const STICKY: (&str, u64) = (store::TERWAY, 660_000_000_000);
/// Netns of one sandbox that are looked at.
const LOOKED_AT: usize = 8;

/// Why nobody gave a reservation back, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeakCause {
    /// It was written before the last boot.
    BeforeBoot,
    /// DEL was run, and failed.
    DelFailed,
    /// DEL was never run: every run was seen from before the reservation was made until it was a leak.
    DelNeverCalled,
    /// Nobody knows.
    Unknown,
}

impl LeakCause {
    /// Its name, which is part of the id of a finding.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BeforeBoot => "before-boot",
            Self::DelFailed => "del-failed",
            Self::DelNeverCalled => "del-never-called",
            Self::Unknown => "unknown",
        }
    }
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

/// Reserved IPs of a range that no living container has.
#[derive(Debug)]
pub struct Leaked<'a> {
    /// Those whose reservations are leaks.
    reserved: &'a BTreeMap<IpAddr, u32>,
    /// Those that nothing but a netns without tasks has.
    held: BTreeSet<IpAddr>,
}

impl Leaked<'_> {
    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.reserved.len() + self.held.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether this is one.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.reserved.contains_key(&ip) || self.held.contains(&ip)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> {
        self.reserved.keys().chain(&self.held).copied()
    }
}

/// Store and network.
type Place = (Arc<str>, Arc<str>);

#[derive(Debug, Default)]
pub(in crate::map) struct Leaks {
    /// Reservations whose IP nobody has.
    bare: BTreeSet<u32>,
    /// Those whose IP somebody has.
    held: BTreeSet<u32>,
    /// When the IP of a bare one was seen to go. netavark takes the address off before it lets go of it.
    went: BTreeMap<u32, BootNs>,
    /// Those of them whose container is gone, and from when on that counts.
    gone: BTreeMap<u32, BootNs>,
    /// Those for which it does not yet.
    waiting: BTreeSet<(BootNs, u32)>,
    /// Those for which it does, by their place too.
    due: BTreeSet<(BootNs, u32)>,
    places: BTreeMap<Place, BTreeSet<(BootNs, u32)>>,
    /// To be asked about: something was told of them.
    fresh: BTreeSet<u32>,
    /// To be asked about in their turn.
    rest: BTreeSet<u32>,
    /// What runtimes or calls say has changed.
    changed: bool,
    reviewed: BootNs,
}

impl Leaks {
    /// What runtimes or calls say has changed.
    pub(in crate::map) fn ask_all(&mut self) {
        self.changed = true;
    }

    /// When the newest of those that count began to, and the next one that will.
    pub(in crate::map) fn moments(&self) -> impl Iterator<Item = BootNs> {
        let (newest, next) = (self.due.last(), self.waiting.first());
        newest.into_iter().chain(next).map(|(from, _)| *from)
    }

    fn is_due(&self, slot: u32) -> bool {
        self.gone.get(&slot).is_some_and(|from| self.due.contains(&(*from, slot)))
    }

    /// Plans what is to be asked about now. When to plan again.
    fn plan(&mut self, now: BootNs) -> Option<BootNs> {
        if !self.changed {
            return None;
        }
        let soonest = self.reviewed.plus(if self.bare.len() > MANY { REVIEW } else { 0 });
        // Those that are asked about in their turn are asked about first.
        if now < soonest || !self.rest.is_empty() {
            return Some(soonest.max(now.plus(PAUSE)));
        }
        (self.changed, self.reviewed) = (false, now);
        self.rest = self.bare.clone();
        None
    }

    /// Takes those that are asked about in this turn.
    fn take(&mut self) -> Vec<u32> {
        let mut taken = Vec::new();
        for queue in [&mut self.fresh, &mut self.rest] {
            while taken.len() < A_TURN
                && let Some(slot) = queue.pop_first()
            {
                taken.push(slot);
            }
        }
        taken
    }
}

impl super::reservations::Ipam {
    /// A reservation is none any more whose IP nobody has.
    pub(in crate::map) fn forget_leak(&mut self, slot: u32, entry: &ReservationEntry) {
        self.leaks.bare.remove(&slot);
        self.leaks.held.remove(&slot);
        self.leaks.went.remove(&slot);
        self.leaks.fresh.remove(&slot);
        self.leaks.rest.remove(&slot);
        self.set_leak(slot, entry, None);
    }

    fn set_leak(&mut self, slot: u32, entry: &ReservationEntry, from: Option<BootNs>) {
        let leaks = &mut self.leaks;
        let known = leaks.gone.get(&slot).copied();
        if known == from {
            return;
        }
        if let Some(known) = known {
            leaks.gone.remove(&slot);
            leaks.waiting.remove(&(known, slot));
            if leaks.due.remove(&(known, slot)) {
                let place = (entry.store.clone(), entry.network.clone());
                if let Some(here) = leaks.places.get_mut(&place) {
                    here.remove(&(known, slot));
                    if here.is_empty() {
                        leaks.places.remove(&place);
                    }
                }
                self.ranges.unleaked(entry);
            }
        }
        if let Some(from) = from {
            self.leaks.gone.insert(slot, from);
            self.leaks.waiting.insert((from, slot));
        }
    }

    /// Moves those that count by now to the others. When the next one does.
    fn promote_leaks(&mut self, now: BootNs) -> Option<BootNs> {
        while let Some((from, slot)) = self.leaks.waiting.first().copied() {
            if from > now {
                return Some(from);
            }
            self.leaks.waiting.pop_first();
            let Some(entry) = self.get(slot) else { continue };
            let entry = entry.clone();
            self.leaks.due.insert((from, slot));
            let place = (entry.store.clone(), entry.network.clone());
            self.leaks.places.entry(place).or_default().insert((from, slot));
            self.ranges.leaked(&entry);
        }
        None
    }
}

impl NodeMap {
    /// A first look at what is reserved of an IP.
    pub(in crate::map) fn review_leaks(&mut self, ip: IpAddr) {
        let slots: Vec<(u32, bool)> = self
            .ipam
            .of_ip(ip)
            .map(|(slot, entry)| (slot, entry.container_id.is_some() && self.is_bare(entry)))
            .collect();
        for (slot, bare) in slots {
            if bare {
                let leaks = &mut self.ipam.leaks;
                if leaks.held.remove(&slot) {
                    leaks.went.insert(slot, self.now);
                }
                leaks.bare.insert(slot);
                leaks.fresh.insert(slot);
                continue;
            }
            if self.ipam.leaks.bare.contains(&slot)
                && let Some(entry) = self.ipam.get(slot).cloned()
            {
                self.ipam.forget_leak(slot, &entry);
            }
            self.ipam.leaks.held.insert(slot);
        }
    }

    /// Whether nobody who could be its container has the IP.
    fn is_bare(&self, entry: &ReservationEntry) -> bool {
        // Those that are being torn down have it still.
        let mut all = self.with_ip(entry.ip).filter_map(|id| self.netns(id));
        // Parked for whoever has it: its own id is nobody's.
        if entry.is_parked() {
            return all.all(|netns| netns.host);
        }
        all.all(|netns| netns.host || self.belongs(netns, entry) == Match::Other)
    }

    /// Finds out which of them are leaks. Says when the next one begins to count.
    pub(in crate::map) fn settle_leaks(
        &mut self,
        now: BootNs,
        thresholds: &Thresholds,
        all: bool,
    ) -> Option<BootNs> {
        let leaks = &mut self.ipam.leaks;
        leaks.changed |= all;
        let again = leaks.plan(now);
        let taken = leaks.take();
        let more = !leaks.fresh.is_empty() || !leaks.rest.is_empty();
        let mounted = OnceCell::new();
        let found: Vec<(u32, Option<BootNs>)> = taken
            .into_iter()
            .map(|slot| (slot, self.lost_from(slot, thresholds, &mounted)))
            .collect();
        for (slot, from) in found {
            if self.ipam.leaks.gone.get(&slot).copied() != from
                && let Some(entry) = self.ipam.get(slot).cloned()
            {
                self.ipam.set_leak(slot, &entry, from);
                self.changes.mark(Kinds::IPAM);
            }
        }
        let waiting = self.ipam.leaks.waiting.len();
        let next = self.ipam.promote_leaks(now);
        if self.ipam.leaks.waiting.len() != waiting {
            self.changes.mark(Kinds::IPAM);
        }
        [next, again, more.then(|| now.plus(PAUSE))].into_iter().flatten().min()
    }

    /// Whether a reservation has still to be judged, or counts as a leak within `sandbox_grace`.
    #[must_use]
    pub fn awaits_leaks(&self, now: BootNs, thresholds: &Thresholds) -> bool {
        let leaks = &self.ipam.leaks;
        let soon = |from: BootNs| from.since(now) <= thresholds.sandbox_grace;
        let next = leaks.waiting.first();
        !leaks.fresh.is_empty() || !leaks.rest.is_empty() || next.is_some_and(|next| soon(next.0))
    }

    /// The moment from which a reservation whose IP nobody has is a leak, if its container is gone.
    fn lost_from<'a>(
        &'a self,
        slot: u32,
        thresholds: &Thresholds,
        mounted: &OnceCell<HashSet<&'a str>>,
    ) -> Option<BootNs> {
        let entry = self.ipam.get(slot)?;
        let id = entry.container_id.as_deref()?;
        let mut netns = self.workload.netns_of(id).take(LOOKED_AT);
        if netns.any(|id| self.netns(id).is_some()) || self.has_mount_of(id, mounted) {
            return None;
        }
        let word = self.word_on(id);
        let gone = match word {
            Word::Gone(sandbox) => sandbox.gone.unwrap_or_default(),
            Word::Denied(first) => first,
            _ => BootNs::default(),
        };
        let gone = entry.bereft.unwrap_or_default().max(gone);
        let uid = entry.pod.as_deref().and_then(|pod| pod.uid.as_deref());
        let shorten = |proofs| grace(&entry.store, proofs, thresholds);
        let grace = match word {
            Word::Gone(_) | Word::Denied(_) => {
                self.proven_grace((id, uid), gone, entry.bereft.is_some(), shorten)
            }
            _ => shorten(Proofs::default()),
        };
        let quick = self.surely_gone_from(entry, grace, thresholds);
        let from = match word {
            Word::Lives | Word::Dead(_) => None,
            Word::Gone(_) => Some(gone.plus(grace)),
            // Of another node's nobody here can tell.
            Word::Denied(_)
                if quick.is_none() && is_of_the_cluster(&entry.store) && !self.is_ours(id) =>
            {
                None
            }
            Word::Denied(first) => {
                let aged = || self.made(entry).plus(thresholds.leak_age);
                let went = self.ipam.leaks.went.get(&slot).map(|at| at.plus(grace));
                Some(quick.unwrap_or_else(aged).max(first).max(went.unwrap_or_default()))
            }
            Word::NobodyToAsk => quick,
            // Those that are there answer, and have no pods: a kubelet's may be another.
            Word::Unknown(Why::NoPods) => quick.filter(|_| self.runtimes_answer()),
            Word::Unknown(_) => None,
        }?;
        let from = from.max(self.after_calls(id, grace));
        let Some(history) = self.call_history(id) else { return Some(from) };
        // Of one that seems to run for ever the end was not seen, or will not come.
        let running = [history.add, history.del].map(|went| went.last.filter(|_| went.running > 0));
        Some(running.into_iter().flatten().map(|began| began.plus(HUNG)).fold(from, BootNs::max))
    }

    /// Whether this node is known to have made this container: it has the result of its ADD, or has seen it.
    pub(in crate::map) fn is_ours(&self, id: &str) -> bool {
        self.attachment_of(id).is_some() || self.call_history(id).is_some()
    }

    /// The same by what cannot be otherwise, whatever runtimes know.
    fn surely_gone_from(
        &self,
        entry: &ReservationEntry,
        grace: u64,
        thresholds: &Thresholds,
    ) -> Option<BootNs> {
        if let Some(bereft) = entry.bereft {
            return Some(bereft.plus(grace));
        }
        // Runtimes clean up after a boot what they find; they are given the time.
        self.is_before_boot(entry).then(|| {
            entry.first_seen.plus(thresholds.sandbox_grace).max(BootNs(thresholds.leak_age))
        })
    }

    fn is_before_boot(&self, entry: &ReservationEntry) -> bool {
        let boot = self.boot.as_ref().map(|_| self.least_offset);
        entry.since.zip(boot).is_some_and(|(since, boot)| since.saturating_add(CLOCK) < boot)
    }

    /// When it was made, as far as is known.
    fn made(&self, entry: &ReservationEntry) -> BootNs {
        let offset = self.boot.as_ref().map_or(0, |boot| boot.wall_offset);
        let since = entry.since.map(|since| since.saturating_sub(offset));
        let since = since.and_then(|since| u64::try_from(since.max(0)).ok()).map(BootNs);
        since.map_or(entry.first_seen, |since| since.min(entry.first_seen))
    }

    /// Whether a netns is mounted where this container's was. `mounted`: where any is, once it was asked.
    fn has_mount_of<'a>(&'a self, id: &str, mounted: &OnceCell<HashSet<&'a str>>) -> bool {
        let cached = self.attachment_of(id).and_then(|known| known.netns_path.as_deref());
        let called = self.call_history(id).and_then(|known| known.netns_path.as_deref());
        let all = || {
            let holders = self.all_netns().flat_map(crate::map::Netns::holders);
            let path = |holder: &'a Holder| match holder {
                Holder::Mount { path, .. } => Some(strip_var(path)),
                _ => None,
            };
            holders.filter_map(path).collect()
        };
        let mut paths = [cached, called].into_iter().flatten();
        paths.any(|path| mounted.get_or_init(all).contains(strip_var(path)))
    }

    /// Why nobody gave it back that is a leak from then on.
    fn leak_cause(&self, entry: &ReservationEntry, from: BootNs) -> LeakCause {
        let history = entry.container_id.as_deref().and_then(|id| self.call_history(id));
        let del = history.map(|history| history.del).unwrap_or_default();
        if del.failures > 0 {
            return LeakCause::DelFailed;
        }
        if self.is_before_boot(entry) {
            return LeakCause::BeforeBoot;
        }
        let seen = self.calls_seen_over(entry.first_seen, from).is_some();
        if seen && !entry.preexisting && del.first.is_none() {
            return LeakCause::DelNeverCalled;
        }
        LeakCause::Unknown
    }

    /// Reservations whose containers are gone, of each network as many as are told one by one, the oldest.
    pub fn leaks(&self) -> impl Iterator<Item = Leak<'_>> {
        let told = self.ipam.leaks.places.values().flat_map(|here| here.iter().take(TOLD));
        told.take(TOLD_OF_ALL).filter_map(|(from, slot)| {
            let entry = self.ipam.get(*slot)?;
            Some(Leak { entry, cause: self.leak_cause(entry, *from), from: *from })
        })
    }

    /// Whether what a store said still counts. Files stay what they are while nobody reads them; the API
    /// server's objects go on changing while it is silent.
    #[must_use]
    pub fn store_counts(&self, store: &str) -> bool {
        !is_of_the_cluster(store) || self.store_answers(store)
    }

    /// Whether a reservation's container is gone.
    #[must_use]
    pub fn is_leaked(&self, store: &str, key: &str) -> bool {
        self.ipam.slot(store, key).is_some_and(|slot| self.ipam.leaks.is_due(slot))
    }

    /// Reserved IPs of a range that no living container has: their containers are gone, or what is left of
    /// these is only a netns.
    #[must_use]
    pub fn leaked_in<'a>(
        &self,
        range: &'a RangeEntry,
        now: BootNs,
        thresholds: &Thresholds,
    ) -> Leaked<'a> {
        let left = self.taskless().filter(|netns| {
            netns.dying.is_none()
                && self.leaked_from(netns, thresholds).is_some_and(|from| from <= now)
        });
        let mut held = BTreeSet::new();
        for netns in left {
            for (key, _) in netns.routable() {
                let ip = key.local;
                let own = |entry: &ReservationEntry| {
                    range.is_of(entry) && self.belongs(netns, entry) == Match::Same
                };
                if range.contains(ip)
                    && !range.leaked.contains_key(&ip)
                    && self.reservations_of(ip).any(own)
                {
                    held.insert(ip);
                }
            }
        }
        Leaked { reserved: &range.leaked, held }
    }

    /// How many reservations of the same network have leaked, this one among them.
    #[must_use]
    pub fn leaked_beside(&self, entry: &ReservationEntry) -> usize {
        let place = (entry.store.clone(), entry.network.clone());
        self.ipam.leaks.places.get(&place).map_or(0, BTreeSet::len)
    }

    /// How many of these are among [`NodeMap::leaks`].
    #[must_use]
    pub fn leaks_told(&self, entry: &ReservationEntry) -> usize {
        self.leaked_beside(entry).min(TOLD)
    }

    /// Counts the leaks of a range that has just become known.
    pub(in crate::map) fn leaked_of(&self, range: &RangeEntry) -> BTreeMap<IpAddr, u32> {
        let mut leaked = BTreeMap::new();
        let places = self.ipam.leaks.places.iter();
        let own = places.filter(|((store, _), _)| **store == *range.range.store);
        for (_, slot) in own.flat_map(|(_, here)| here) {
            let entry = self.ipam.get(*slot).filter(|entry| range.hands_out(entry));
            if let Some(entry) = entry {
                *leaked.entry(entry.ip).or_default() += 1;
            }
        }
        leaked
    }
}

/// How long after its container is gone a reservation in a store may stand.
fn grace(store: &str, proofs: Proofs, thresholds: &Thresholds) -> u64 {
    let whole = thresholds.sandbox_grace;
    let (sticky, pause) = STICKY;
    if store == sticky {
        pause.max(whole)
    } else if is_of_the_cluster(store) {
        // What the API server or an etcd sends may be seconds late.
        proofs.shorten(whole).max(whole / 3)
    } else {
        proofs.shorten(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_late_or_is_kept_on_purpose_is_given_time() {
        let thresholds = Thresholds::default();
        let all = Proofs { empty: true, no_call: true, no_pod: true };
        let of = |store: &str| grace(store, all, &thresholds) / 1_000_000_000;
        assert_eq!([store::HOST_LOCAL, store::WHEREABOUTS, store::CALICO].map(of), [0, 10, 10]);
        assert_eq!(of(store::TERWAY), 660);
    }
}
