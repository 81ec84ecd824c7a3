//! Reservations for containers that no longer exist.
//!
//! Nothing of such a container may be left in the kernel, and every runtime must deny it. If there is no runtime to
//! ask, only proof counts: the reservation was written before this boot, or the netns that had the IP was seen to end.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::fact::{BootNs, Holder, store};

use super::mismatch::Match;
use super::stores::{is_by_pod_object, is_of_the_cluster};
use crate::map::workload::HUNG;
use crate::map::workload::Proofs;
use crate::map::workload::Why;
use crate::map::workload::strip_var;
use crate::map::{Kinds, NodeMap, RangeEntry, ReservationEntry, SandboxVerdict, Thresholds};

/// Above this number of reservations without a container, not all are reviewed each time a runtime reports something.
const MANY: usize = 512;
/// In that case, they are reviewed at most this often.
const REVIEW: u64 = 2_000_000_000;
/// Maximum number reviewed in one turn, followed by [`PAUSE`].
const A_TURN: usize = 2048;
const PAUSE: u64 = 20_000_000;
/// Tolerance: the clock may have been set since the boot.
const CLOCK: i64 = 60_000_000_000;
/// Maximum number of leaks that are reported individually: of one network, and of all networks.
const TOLD: usize = 64;
const TOLD_OF_ALL: usize = 2048;
/// Terway keeps the IP of a pod that may come back for five minutes after its DEL, and looks every five minutes for
/// pods that did not.
const STICKY: (&str, u64) = (store::TERWAY, 660_000_000_000);
/// Maximum number of netns of one sandbox that are checked.
const LOOKED_AT: usize = 8;

/// Why a reservation was not released, if known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeakCause {
    /// The reservation was written before the last boot.
    BeforeBoot,
    /// DEL was called, and failed.
    DelFailed,
    /// DEL was never called: every call was observed from before the reservation was made until it became a leak.
    DelNeverCalled,
    /// The cause is unknown.
    Unknown,
}

impl LeakCause {
    /// The name of the cause, which is part of a finding's id.
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

/// A reservation whose container no longer exists.
#[derive(Debug)]
pub struct Leak<'a> {
    pub entry: &'a ReservationEntry,
    pub cause: LeakCause,
    /// The moment from which it counts as a leak.
    pub from: BootNs,
}

/// Reserved IPs of a range that no living container has.
#[derive(Debug)]
pub struct Leaked<'a> {
    /// IPs whose reservations are leaks.
    reserved: &'a BTreeMap<IpAddr, u32>,
    /// IPs held only by a netns without tasks.
    held: BTreeSet<IpAddr>,
}

impl Leaked<'_> {
    #[must_use]
    pub fn len(&self) -> usize {
        self.reserved.len() + self.held.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.reserved.contains_key(&ip) || self.held.contains(&ip)
    }

    pub fn iter(&self) -> impl Iterator<Item = IpAddr> {
        self.reserved.keys().chain(&self.held).copied()
    }
}

/// Store and network.
type NetworkKey = (Arc<str>, Arc<str>);

#[derive(Debug, Default)]
pub(in crate::map) struct Leaks {
    /// Reservations whose IP no possible owner has.
    bare: BTreeSet<u32>,
    /// Reservations whose IP a possible owner has.
    held: BTreeSet<u32>,
    /// When the IP of a bare reservation was removed. netavark removes the address before it releases the reservation.
    went: BTreeMap<u32, BootNs>,
    /// Bare reservations whose container no longer exists, and the moment from which each counts as a leak.
    pub(super) gone: BTreeMap<u32, BootNs>,
    /// Entries of `gone` that do not count yet.
    waiting: BTreeSet<(BootNs, u32)>,
    /// Entries of `gone` that count; `places` has them by store and network.
    due: BTreeSet<(BootNs, u32)>,
    places: BTreeMap<NetworkKey, BTreeSet<(BootNs, u32)>>,
    /// To be reviewed first: something was reported about them.
    fresh: BTreeSet<u32>,
    /// To be reviewed in turn.
    rest: BTreeSet<u32>,
    /// Runtimes or calls reported something new.
    changed: bool,
    reviewed: BootNs,
}

impl Leaks {
    /// Runtimes or calls reported something new: schedules a review of all.
    pub(in crate::map) fn ask_all(&mut self) {
        self.changed = true;
    }

    /// When the newest leak that counts began to, and when the next one will.
    pub(in crate::map) fn moments(&self) -> impl Iterator<Item = BootNs> {
        let (newest, next) = (self.due.last(), self.waiting.first());
        newest.into_iter().chain(next).map(|(from, _)| *from)
    }

    fn is_due(&self, slot: u32) -> bool {
        self.gone.get(&slot).is_some_and(|from| self.due.contains(&(*from, slot)))
    }

    /// Schedules a review of all, if one is needed. Returns when to call this again.
    fn plan(&mut self, now: BootNs) -> Option<BootNs> {
        if !self.changed {
            return None;
        }
        let soonest = self.reviewed.plus(if self.bare.len() > MANY { REVIEW } else { 0 });
        // The current review must end first.
        if now < soonest || !self.rest.is_empty() {
            return Some(soonest.max(now.plus(PAUSE)));
        }
        (self.changed, self.reviewed) = (false, now);
        self.rest = self.bare.clone();
        None
    }

    /// Takes the reservations to review in this turn.
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
    /// Forgets a reservation that ended, or whose IP a possible owner has.
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

    /// Moves waiting leaks that count by `now` to `due`. Returns when the next one will count.
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
    /// Checks the reservations of an IP for a possible owner that has the IP, and queues the bare ones for review.
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

    /// Whether no netns that could be its container's has the IP.
    fn is_bare(&self, entry: &ReservationEntry) -> bool {
        // A netns in teardown still has it.
        let mut all = self.with_ip(entry.ip).filter_map(|id| self.netns(id));
        // Parked for whoever has it: its own id is nobody's.
        if entry.is_parked() {
            return all.all(|netns| netns.host);
        }
        all.all(|netns| match self.belongs(netns, entry) {
            _ if netns.host => true,
            Match::Other => true,
            Match::Same => netns.is_of_a_user_namespace() && self.is_guess(netns, entry),
            // Whoever makes a netns in a user namespace can give it the IPs of all reservations.
            Match::Unknown => netns.is_of_a_user_namespace(),
        })
    }

    /// Reviews reservations. Returns when to call this again.
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

    /// The moment from which a bare reservation counts as a leak, if its container no longer exists.
    fn lost_from<'a>(
        &'a self,
        slot: u32,
        thresholds: &Thresholds,
        mounted: &OnceCell<HashSet<&'a str>>,
    ) -> Option<BootNs> {
        let entry = self.ipam.get(slot)?;
        if entry.preexisting && self.has_unread_from_before() {
            return None;
        }
        let id = entry.container_id.as_deref()?;
        let mut netns = self.workload.netns_of(id).take(LOOKED_AT);
        if netns.any(|id| self.netns(id).is_some()) || self.has_mount_of(id, mounted) {
            return None;
        }
        let word = self.verdict_on(id);
        let gone = match word {
            SandboxVerdict::Gone(sandbox) => sandbox.gone.unwrap_or_default(),
            SandboxVerdict::Denied(first) => first,
            _ => BootNs::default(),
        };
        let gone = entry.bereft.unwrap_or_default().max(gone);
        let uid = entry.pod.as_deref().and_then(|pod| pod.uid.as_deref());
        let shorten = |proofs| grace(&entry.store, proofs, thresholds);
        // A boot ends every netns.
        let old = self.is_before_boot(entry);
        let grace = match word {
            SandboxVerdict::Gone(_) | SandboxVerdict::Denied(_) => {
                self.proven_grace((id, uid), gone, entry.bereft.is_some() || old, shorten)
            }
            _ => shorten(Proofs::default()),
        };
        let quick = match word {
            SandboxVerdict::Denied(first) if old && entry.bereft.is_none() => {
                Some(entry.first_seen.max(first).plus(grace))
            }
            _ => self.surely_gone_from(entry, grace, thresholds),
        };
        let from = match word {
            SandboxVerdict::Lives | SandboxVerdict::Dead(_) => None,
            SandboxVerdict::Gone(_) => Some(gone.plus(grace)),
            // This node cannot judge another node's container.
            SandboxVerdict::Denied(_)
                if quick.is_none() && is_of_the_cluster(&entry.store) && !self.is_ours(id) =>
            {
                None
            }
            SandboxVerdict::Denied(first) => {
                let unmade = || {
                    let aged = self.made(entry).plus(thresholds.leak_age);
                    let younger = self.runtimes_started_after(id, Some(entry.first_seen));
                    younger.map_or(aged, |started| started.max(first).plus(grace).min(aged))
                };
                let went = self.ipam.leaks.went.get(&slot).map(|at| at.plus(grace));
                Some(quick.unwrap_or_else(unmade).max(first).max(went.unwrap_or_default()))
            }
            SandboxVerdict::NobodyToAsk => quick,
            // The runtimes that exist answer and have no pods: the kubelet's runtime may be another.
            SandboxVerdict::Unknown(Why::NoPods) => quick.filter(|_| self.runtimes_answer()),
            SandboxVerdict::Unknown(_) => None,
        }?;
        let from = from.max(self.after_calls(id, grace));
        let Some(history) = self.call_history(id) else { return Some(from) };
        // The end of a call that seems to run forever was missed, or will not come.
        let running = [history.add, history.del].map(|went| went.last.filter(|_| went.running > 0));
        Some(running.into_iter().flatten().map(|began| began.plus(HUNG)).fold(from, BootNs::max))
    }

    /// Whether this node is known to have made this container: it has the result of an ADD, or observed a call.
    pub(in crate::map) fn is_ours(&self, id: &str) -> bool {
        self.attachment_of(id).is_some() || self.call_history(id).is_some()
    }

    /// The moment from which a reservation is a leak by proof, whatever runtimes know.
    fn surely_gone_from(
        &self,
        entry: &ReservationEntry,
        grace: u64,
        thresholds: &Thresholds,
    ) -> Option<BootNs> {
        if let Some(bereft) = entry.bereft {
            return Some(bereft.plus(grace));
        }
        // After a boot, runtimes clean up leftovers: where none can be asked, they are given time.
        self.is_before_boot(entry).then(|| {
            entry.first_seen.plus(thresholds.sandbox_grace).max(BootNs(thresholds.leak_age))
        })
    }

    fn is_before_boot(&self, entry: &ReservationEntry) -> bool {
        let boot = self.boot.as_ref().map(|_| self.least_offset);
        entry.since.zip(boot).is_some_and(|(since, boot)| since.saturating_add(CLOCK) < boot)
    }

    /// When a reservation was made, as far as known.
    pub(super) fn made(&self, entry: &ReservationEntry) -> BootNs {
        let offset = self.boot.as_ref().map_or(0, |boot| boot.wall_offset);
        let since = entry.since.map(|since| since.saturating_sub(offset));
        let since = since.and_then(|since| u64::try_from(since.max(0)).ok()).map(BootNs);
        since.map_or(entry.first_seen, |since| since.min(entry.first_seen))
    }

    /// Whether a netns is mounted at the path of this container's netns. `mounted` caches the paths of all netns
    /// mounts.
    fn has_mount_of<'a>(&'a self, id: &str, mounted: &OnceCell<HashSet<&'a str>>) -> bool {
        let cached = self.attachment_of(id).and_then(|known| known.netns_path.as_deref());
        let called = self.call_history(id).and_then(|known| known.netns_path.as_deref());
        let all = || {
            let holders = self.all_netns().flat_map(crate::map::Netns::holders);
            let path = |holder: &'a Holder| match holder {
                Holder::Mount { path, foreign: false, .. } => Some(strip_var(path)),
                _ => None,
            };
            holders.filter_map(path).collect()
        };
        let mut paths = [cached, called].into_iter().flatten();
        paths.any(|path| mounted.get_or_init(all).contains(strip_var(path)))
    }

    /// Why a leak that counts from `from` on was not released.
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

    /// Reservations whose containers no longer exist: of each network the oldest, up to the limit of individual
    /// reports.
    pub fn leaks(&self) -> impl Iterator<Item = Leak<'_>> {
        let told = self.ipam.leaks.places.values().flat_map(|here| here.iter().take(TOLD));
        told.take(TOLD_OF_ALL).filter_map(|(from, slot)| {
            let entry = self.ipam.get(*slot)?;
            Some(Leak { entry, cause: self.leak_cause(entry, *from), from: *from })
        })
    }

    /// Whether findings may rest on the last report of a store. Files keep their content while nobody reads them; the API
    /// server's objects go on changing while it does not answer.
    #[must_use]
    pub fn store_counts(&self, store: &str) -> bool {
        !is_by_pod_object(store) && (!is_of_the_cluster(store) || self.store_answers(store))
    }

    /// Whether a reservation counts as a leak.
    #[must_use]
    pub fn is_leaked(&self, store: &str, key: &str) -> bool {
        self.ipam.slot(store, key).is_some_and(|slot| self.ipam.leaks.is_due(slot))
    }

    /// Reserved IPs of a range that no living container has: their containers no longer exist, or only a netns is left
    /// of them.
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

    /// Number of leaked reservations of the same network, this one included.
    #[must_use]
    pub fn leaked_beside(&self, entry: &ReservationEntry) -> usize {
        let place = (entry.store.clone(), entry.network.clone());
        self.ipam.leaks.places.get(&place).map_or(0, BTreeSet::len)
    }

    /// How many of these are in [`NodeMap::leaks`], without its overall limit.
    #[must_use]
    pub fn leaks_told(&self, entry: &ReservationEntry) -> usize {
        self.leaked_beside(entry).min(TOLD)
    }

    /// Counts the leaks of a newly reported range.
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

/// How long a reservation may outlive its container.
fn grace(store: &str, proofs: Proofs, thresholds: &Thresholds) -> u64 {
    let whole = thresholds.sandbox_grace;
    let (sticky, pause) = STICKY;
    if store == sticky {
        pause.max(whole)
    } else if is_of_the_cluster(store) {
        // Reports of the API server or an etcd may be seconds late.
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
