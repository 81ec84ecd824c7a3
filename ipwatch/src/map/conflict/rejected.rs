//! Addresses that the kernel rejected because duplicate address detection failed (IPv6), and which of them count as
//! conflicts.
//!
//! A permanent address stays where it is rejected (`addrconf_dad_failure` behind `addrconf_dad_stop`, 6.18), so that each is
//! a conflict which stands and is judged in every step. Whoever can make a netns can have thousands: a far end that answers
//! every probe is enough. A netns therefore keeps its first ones, so that their findings last; if all netns together have
//! their maximum, `tenants` says who gives. What is not kept is no conflict and proves nothing: it is taken up when there is
//! room, because the map has the address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::claims::Key;
use super::evidence::{Admission, Evidence};
use crate::fact::BootNs;
use crate::map::kernel::{Tenant, is_routable};
use crate::map::{Kinds, Netns, NetnsId, NodeMap};

/// Maximum number of one netns, and of all but the host's.
const MAX_PER_NETNS: usize = 32;
const MAX: usize = 128;
/// How often, in ns, and in how many netns at once it is looked for more.
const LOOK_AGAIN: u64 = 1_000_000_000;
const AT_A_TIME: usize = 32;

#[derive(Debug, Default)]
pub(super) struct Rejected {
    /// Since when each is known to be rejected.
    kept: BTreeMap<Key, BootNs>,
    evidence: Evidence<Key, MAX_PER_NETNS, MAX>,
    /// Netns with more than are kept, as far as is known.
    short: BTreeSet<NetnsId>,
    /// When it was last looked for more, and the last netns that was looked at.
    looked: (BootNs, Option<NetnsId>),
}

impl Rejected {
    /// Those that are kept, by IP.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Key> {
        self.kept.keys()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    fn has(&self, key: &Key) -> bool {
        self.kept.contains_key(key)
    }

    /// Adds an address. Returns whether it is kept.
    pub(super) fn add(&mut self, key: Key, tenant: Option<Tenant>, at: BootNs) -> bool {
        if self.has(&key) {
            return true;
        }
        match self.evidence.admit_standing(key.1, tenant) {
            Admission::Fits => {}
            Admission::InsteadOf(other) => {
                self.kept.remove(&other);
                self.short.insert(other.1);
            }
            Admission::Refused => {
                self.short.insert(key.1);
                return false;
            }
        }
        self.evidence.add(key.1, tenant, key, at);
        self.kept.insert(key, at);
        true
    }

    fn remove(&mut self, key: &Key) {
        if let Some(at) = self.kept.remove(key) {
            self.evidence.remove(key.1, *key, at);
        }
    }

    pub(super) fn forget_device(&mut self, id: NetnsId, ifindex: u32) {
        let on_it = self.evidence.of(id).filter(|(_, _, on)| *on == ifindex);
        on_it.copied().collect::<Vec<Key>>().iter().for_each(|key| self.remove(key));
    }

    pub(super) fn forget_netns(&mut self, id: NetnsId) {
        let all: Vec<Key> = self.evidence.of(id).copied().collect();
        all.iter().for_each(|key| self.remove(key));
        self.evidence.forget_netns(id);
        self.short.remove(&id);
    }

    /// It may have turned out whose a netns is.
    pub(super) fn counts_to(&mut self, id: NetnsId, tenant: Option<Tenant>) {
        self.evidence.counts_to(id, tenant);
    }

    /// When it is looked for more.
    pub(super) fn due(&self) -> Option<BootNs> {
        (!self.short.is_empty()).then(|| self.looked.0.plus(LOOK_AGAIN))
    }

    /// The netns that are looked at now.
    fn take_due(&mut self, now: BootNs) -> Vec<NetnsId> {
        if self.due().is_none_or(|due| due > now) {
            return Vec::new();
        }
        let from = self.looked.1;
        let after = self.short.iter().filter(|id| Some(**id) > from);
        let next = after.chain(&self.short).copied().take(AT_A_TIME.min(self.short.len()));
        let next: Vec<NetnsId> = next.collect();
        self.looked = (now, next.last().copied());
        next
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn assert_is_bounded(&self, exists: impl Fn(NetnsId) -> bool) {
        self.evidence.assert_is_bounded();
        let keys = self.evidence.netns().flat_map(|id| self.evidence.of(id));
        assert_eq!(keys.count(), self.kept.len());
        assert!(self.kept.keys().all(|(_, id, _)| exists(*id)));
        assert!(self.short.iter().all(|id| exists(*id)));
    }
}

impl NodeMap {
    /// The kernel rejected an address.
    pub(in crate::map) fn address_rejected(
        &mut self,
        id: NetnsId,
        ifindex: u32,
        ip: IpAddr,
        at: BootNs,
    ) {
        let Some(tenant) = self.netns(id).map(Netns::counts_to).filter(|_| is_routable(ip)) else {
            return;
        };
        self.conflict.claims.dad.add((ip, id, ifindex), tenant, at);
    }

    /// Whether an address has failed duplicate address detection.
    pub(super) fn has_failed(&self, (ip, id, ifindex): &Key) -> bool {
        let entry = self.netns(*id);
        let mut own = entry.into_iter().flat_map(|entry| entry.on_device(*ifindex, *ip));
        own.any(|(_, known)| known.dad_failed())
    }

    /// Forgets addresses that are no longer rejected or no longer there, and takes up others if there is room.
    pub(super) fn settle_rejected(&mut self, now: BootNs) {
        let kept = self.conflict.claims.dad.iter();
        let gone: Vec<Key> = kept.filter(|key| !self.has_failed(key)).copied().collect();
        gone.iter().for_each(|key| self.conflict.claims.dad.remove(key));
        for id in self.conflict.claims.dad.take_due(now) {
            let Some(entry) = self.netns(id) else { continue };
            let tenant = entry.counts_to();
            let more: Vec<Key> = self.unkept_of(entry).take(MAX_PER_NETNS).collect();
            let rejected = &mut self.conflict.claims.dad;
            if more.is_empty() {
                rejected.short.remove(&id);
            }
            let taken = more.into_iter().take_while(|key| rejected.add(*key, tenant, now)).count();
            if taken > 0 {
                self.changes.mark(Kinds::NEIGHBOURS);
            }
        }
    }

    /// The rejected addresses of a netns that are not kept.
    fn unkept_of(&self, entry: &Netns) -> impl Iterator<Item = Key> {
        let rejected = &self.conflict.claims.dad;
        let failed =
            entry.addresses().filter(|(key, known)| known.dad_failed() && is_routable(key.local));
        let keys = failed.map(move |(key, _)| (key.local, entry.id, key.ifindex));
        keys.filter(move |key| !rejected.has(key))
    }

    /// Number of rejected addresses of each netns that are not kept.
    pub(super) fn unkept_rejected(&self) -> impl Iterator<Item = (NetnsId, u64)> {
        let short = self.conflict.claims.dad.short.iter().filter_map(move |id| self.netns(*id));
        short.map(move |entry| (entry.id, self.unkept_of(entry).count() as u64))
    }

    /// Whether an address with this IP on a link of this netns was rejected and is not kept: that no conflict is found does
    /// not show that there is none.
    #[must_use]
    pub fn leaves_out_rejected(&self, id: NetnsId, ip: IpAddr) -> bool {
        let rejected = &self.conflict.claims.dad;
        let Some(entry) = self.netns(id).filter(|_| !rejected.short.is_empty()) else {
            return false;
        };
        let links: BTreeSet<_> =
            entry.with_ip(ip).map(|(key, _)| self.segment(id, key.ifindex)).collect();
        let others = self.with_ip(ip).filter(|other| rejected.short.contains(other));
        let mut unkept = others.filter_map(|other| self.netns(other)).flat_map(|other| {
            let failed = other.with_ip(ip).filter(|(_, known)| known.dad_failed());
            failed.map(move |(key, _)| (ip, other.id, key.ifindex))
        });
        unkept.any(|key| !rejected.has(&key) && links.contains(&self.segment(key.1, key.2)))
    }
}
