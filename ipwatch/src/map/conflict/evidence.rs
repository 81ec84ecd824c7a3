//! How many observations are kept as evidence, and which are forgotten first. Pure bookkeeping, for `claims`, `rejected`
//! and `unanswered`.
//!
//! A netns gives up its own oldest observation if it has its maximum. If all netns together have theirs, `tenants` says who
//! gives: whoever creates more netns gets no more room, and a pod gives only to other pods. The host's netns has room of its
//! own. What is forgotten is counted by netns.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::fact::BootNs;
use crate::map::kernel::{Room, Tenant};
use crate::map::{NetnsId, NodeMap, Table};

/// So many of the oldest observations are passed over at most if they are to be spared.
const PASSED_OVER: usize = 64;

/// The keys of what is kept: of one netns at most `OF_ONE`, and of all but the host's at most `IN_ALL`.
#[derive(Debug)]
pub(super) struct Evidence<K, const OF_ONE: usize, const IN_ALL: usize> {
    kept: Table<NetnsId, Keys<K>>,
    room: Room,
    forgotten: u64,
    forgotten_of: Table<NetnsId, u64>,
}

/// What is kept of one netns.
#[derive(Debug)]
struct Keys<K> {
    /// `None`: it is the host's.
    tenant: Option<Tenant>,
    by_age: BTreeSet<(BootNs, K)>,
}

/// Whether one more observation can be kept.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission<K> {
    Fits,
    /// If this one, which has been removed and counted, is forgotten.
    InsteadOf(K),
    /// No: others need the room. It has been counted.
    Refused,
}

impl<K, const OF_ONE: usize, const IN_ALL: usize> Default for Evidence<K, OF_ONE, IN_ALL> {
    fn default() -> Self {
        Self {
            kept: Table::default(),
            room: Room::default(),
            forgotten: 0,
            forgotten_of: Table::default(),
        }
    }
}

impl<K: Copy + Ord, const OF_ONE: usize, const IN_ALL: usize> Evidence<K, OF_ONE, IN_ALL> {
    /// The keys of a netns, the oldest first.
    pub(super) fn of(&self, id: NetnsId) -> impl Iterator<Item = &K> {
        self.kept.get(&id).into_iter().flat_map(|keys| &keys.by_age).map(|(_, key)| key)
    }

    /// Decides whether one more observation of a netns can be kept, and what is forgotten for it. The oldest goes first,
    /// unless `spared` says that something older has to be forgotten last.
    pub(super) fn admit(
        &mut self,
        id: NetnsId,
        tenant: Option<Tenant>,
        spared: impl Fn(&K) -> bool,
    ) -> Admission<K> {
        let own = self.kept.get(&id).map_or(0, |keys| keys.by_age.len());
        let from = match tenant {
            _ if own >= OF_ONE => id,
            Some(tenant) if self.room.kept() >= IN_ALL => {
                // If nobody has more than this netns, its own oldest gives way to what is newer.
                self.room.giver(tenant, own, 1).map_or(id, |giver| giver.id)
            }
            _ => return Admission::Fits,
        };
        let by_age = self.kept.get(&from).map(|keys| &keys.by_age);
        let oldest = by_age.into_iter().flatten().take(PASSED_OVER);
        let oldest = oldest.clone().find(|(_, key)| !spared(key)).or_else(|| oldest.clone().next());
        let Some((at, key)) = oldest.copied() else {
            self.count_forgotten(id);
            return Admission::Refused;
        };
        self.remove(from, key, at);
        self.count_forgotten(from);
        Admission::InsteadOf(key)
    }

    /// As [`Evidence::admit`], for what stands and is not only heard now and then: a netns keeps what it has, and another one
    /// gives its newest. Nothing is counted as forgotten, because whatever stands can be found again.
    pub(super) fn admit_standing(&mut self, id: NetnsId, tenant: Option<Tenant>) -> Admission<K> {
        let own = self.kept.get(&id).map_or(0, |keys| keys.by_age.len());
        let from = match tenant {
            _ if own >= OF_ONE => None,
            Some(tenant) if self.room.kept() >= IN_ALL => {
                self.room.giver(tenant, own, 1).map(|giver| giver.id)
            }
            _ => return Admission::Fits,
        };
        let keys = from.and_then(|from| Some((from, self.kept.get(&from)?)));
        let newest = keys.and_then(|(from, keys)| Some((from, keys.by_age.last().copied()?)));
        let Some((from, (at, key))) = newest else { return Admission::Refused };
        self.remove(from, key, at);
        Admission::InsteadOf(key)
    }

    fn count_forgotten(&mut self, id: NetnsId) {
        self.forgotten = self.forgotten.saturating_add(1);
        let count = self.forgotten_of.entry(id).or_default();
        *count = count.saturating_add(1);
    }

    /// Adds an observation that was admitted.
    pub(super) fn add(&mut self, id: NetnsId, tenant: Option<Tenant>, key: K, at: BootNs) {
        let keys = self.kept.entry(id).or_insert_with(|| Keys { tenant, by_age: BTreeSet::new() });
        keys.by_age.insert((at, key));
        self.resize(id);
    }

    pub(super) fn remove(&mut self, id: NetnsId, key: K, at: BootNs) {
        let Some(keys) = self.kept.get_mut(&id) else { return };
        keys.by_age.remove(&(at, key));
        self.resize(id);
    }

    /// An observation was repeated.
    pub(super) fn renew(&mut self, id: NetnsId, key: K, before: BootNs, now: BootNs) {
        if before == now {
            return;
        }
        let Some(keys) = self.kept.get_mut(&id) else { return };
        if keys.by_age.remove(&(before, key)) {
            keys.by_age.insert((now, key));
        }
    }

    /// Sets the tenant of a netns.
    pub(super) fn counts_to(&mut self, id: NetnsId, tenant: Option<Tenant>) {
        if let Some(keys) = self.kept.get_mut(&id) {
            keys.tenant = tenant;
            self.resize(id);
        }
    }

    /// A netns has gone, and everything that was kept of it.
    pub(super) fn forget_netns(&mut self, id: NetnsId) {
        self.kept.remove(&id);
        self.forgotten_of.remove(&id);
        self.room.set(id, Tenant::Root, 0);
    }

    fn resize(&mut self, id: NetnsId) {
        let Some(keys) = self.kept.get(&id) else { return };
        match keys.tenant {
            Some(tenant) => self.room.set(id, tenant, keys.by_age.len()),
            None => self.room.set(id, Tenant::Root, 0),
        }
        if keys.by_age.is_empty() {
            self.kept.remove(&id);
        }
    }

    /// Checks the bounds, and the sizes against the keys.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn assert_is_bounded(&self) {
        assert!(self.room.kept() <= IN_ALL);
        assert!(self.kept.values().all(|keys| (1..=OF_ONE).contains(&keys.by_age.len())));
        let tenants = self.kept.values().filter(|keys| keys.tenant.is_some());
        assert_eq!(self.room.kept(), tenants.map(|keys| keys.by_age.len()).sum::<usize>());
    }

    /// The netns of which anything is kept.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn netns(&self) -> impl Iterator<Item = NetnsId> {
        self.kept.keys().copied()
    }

    /// Number of observations forgotten for want of room.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// The same for each netns that still exists.
    pub(super) fn forgotten_by_netns(&self) -> impl Iterator<Item = (NetnsId, u64)> {
        self.forgotten_of.iter().map(|(id, count)| (*id, *count))
    }
}

impl NodeMap {
    /// What was forgotten for want of room, by tenant, for people; those of whom most was forgotten come first.
    #[must_use]
    pub fn said_of_forgotten(&self) -> Option<String> {
        /// By kind, and the netns concerned.
        type Forgotten = ([u64; 3], BTreeSet<NetnsId>);
        const LISTED: usize = 3;
        const KINDS: [&str; 3] = [
            "claims of IPs",
            "neighbours that are permanent or do not answer",
            "rejected addresses",
        ];
        let claims = self.conflict.claims.forgotten().map(|(id, count)| (id, 0, count));
        let neighbours = self.conflict.unanswered.forgotten().map(|(id, count)| (id, 1, count));
        let rejected = self.unkept_rejected().map(|(id, count)| (id, 2, count));
        // `None` is the host's netns.
        let mut tenants: BTreeMap<Option<Tenant>, Forgotten> = BTreeMap::new();
        let all = claims.chain(neighbours).chain(rejected).filter(|(.., count)| *count > 0);
        for (id, kind, count) in all {
            let Some(entry) = self.netns(id) else { continue };
            let (forgotten, netns) = tenants.entry(entry.counts_to()).or_default();
            forgotten[kind] += count;
            netns.insert(id);
        }
        let mut tenants: Vec<_> = tenants.into_iter().collect();
        tenants.sort_by_key(|(_, (forgotten, _))| std::cmp::Reverse(forgotten.iter().sum::<u64>()));
        let of = |(tenant, (forgotten, netns)): &(Option<Tenant>, Forgotten)| {
            let mut said =
                tenant.map_or("the host".to_owned(), |tenant| self.said_of_tenant(tenant));
            let mut apart = ": ";
            for (kind, count) in KINDS.iter().zip(forgotten).filter(|(_, count)| **count > 0) {
                let _ = write!(said, "{apart}{count} {kind}");
                apart = ", ";
            }
            let _ = write!(said, ", of {} network namespaces", netns.len());
            said
        };
        let listed: Vec<String> = tenants.iter().take(LISTED).map(of).collect();
        (!listed.is_empty()).then(|| format!("forgotten for want of room: {}", listed.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: Option<Tenant> = Some(Tenant::User(Some(1000)));
    const BOB: Option<Tenant> = Some(Tenant::User(Some(1001)));

    fn id(n: u64) -> NetnsId {
        NetnsId::numbered(n)
    }

    #[derive(Default)]
    struct Kept {
        evidence: Evidence<u64, 8, 32>,
        at: u64,
    }

    impl Kept {
        fn observe(&mut self, netns: u64, tenant: Option<Tenant>, count: u64) {
            for _ in 0..count {
                self.at += 1;
                if self.evidence.admit(id(netns), tenant, |_| false) != Admission::Refused {
                    self.evidence.add(id(netns), tenant, self.at, BootNs(self.at));
                }
            }
        }

        fn of(&self, netns: u64) -> Vec<u64> {
            self.evidence.of(id(netns)).copied().collect()
        }
    }

    #[test]
    fn a_netns_forgets_its_own_oldest() {
        let mut kept = Kept::default();
        kept.observe(1, ALICE, 10);
        assert_eq!(kept.of(1), (3..=10).collect::<Vec<_>>());
        kept.observe(0, None, 9);
        assert_eq!((kept.of(0).len(), kept.evidence.forgotten()), (8, 3));
        let by_netns: std::collections::BTreeMap<_, _> =
            kept.evidence.forgotten_by_netns().collect();
        assert_eq!(by_netns, [(id(0), 1), (id(1), 2)].into());
        kept.evidence.forget_netns(id(1));
        assert_eq!((kept.of(1).len(), kept.evidence.forgotten()), (0, 3));
        assert_eq!(kept.evidence.forgotten_by_netns().count(), 1);
    }

    #[test]
    fn many_netns_of_one_user_displace_nothing_of_a_pod_or_of_another_user() {
        let mut kept = Kept::default();
        let pod = Some(Tenant::Pod(id(1)));
        kept.observe(0, None, 8);
        kept.observe(1, pod, 6);
        kept.observe(2, BOB, 4);
        (10..40).for_each(|netns| kept.observe(netns, ALICE, 8));
        assert_eq!((kept.of(0).len(), kept.of(1).len(), kept.of(2).len()), (8, 6, 4));
        let hers: usize = (10..40).map(|netns| kept.of(netns).len()).sum();
        assert_eq!(hers, 32 - 6 - 4);
        kept.observe(3, pod, 8);
        assert_eq!((kept.of(3).len(), kept.of(2).len()), (8, 4), "she has most, and gives");
    }

    #[test]
    fn whose_it_is_may_turn_out_later() {
        let mut kept = Kept::default();
        (1..=4).for_each(|netns| kept.observe(netns, ALICE, 8));
        kept.evidence.counts_to(id(1), Some(Tenant::Pod(id(1))));
        kept.evidence.counts_to(id(9), BOB);
        kept.observe(5, BOB, 8);
        assert_eq!((kept.of(1).len(), kept.of(5).len()), (8, 8));
        let hers = kept.of(2).len();
        kept.evidence.counts_to(id(2), None);
        kept.observe(6, BOB, hers as u64);
        assert_eq!((kept.of(2).len(), kept.of(6).len()), (hers, hers), "the host's takes no room");
    }

    #[test]
    fn what_is_spared_goes_last_and_what_is_repeated_is_new() {
        let mut kept = Kept::default();
        kept.observe(1, ALICE, 8);
        kept.evidence.renew(id(1), 1, BootNs(1), BootNs(100));
        assert_eq!(kept.evidence.admit(id(1), ALICE, |key| *key < 4), Admission::InsteadOf(4));
        assert_eq!(kept.evidence.admit(id(1), ALICE, |_| true), Admission::Fits);
        kept.evidence.add(id(1), ALICE, 200, BootNs(200));
        assert_eq!(kept.evidence.admit(id(1), ALICE, |_| true), Admission::InsteadOf(2));
    }

    #[test]
    fn of_what_stands_a_netns_keeps_its_first_and_gives_its_newest() {
        let mut kept = Kept::default();
        kept.observe(1, ALICE, 8);
        assert_eq!(kept.evidence.admit_standing(id(1), ALICE), Admission::Refused);
        (2..=4).for_each(|netns| kept.observe(netns, ALICE, 8));
        assert_eq!(kept.evidence.admit_standing(id(5), BOB), Admission::InsteadOf(32));
        kept.evidence.add(id(5), BOB, 100, BootNs(100));
        assert_eq!((kept.of(4), kept.of(5)), ((25..=31).collect(), vec![100]));
        assert_eq!(kept.evidence.forgotten(), 0);
    }

    #[test]
    fn nobody_gives_to_a_newcomer_of_the_lowest_rank() {
        let mut kept = Kept::default();
        (1..=4).for_each(|netns| kept.observe(netns, Some(Tenant::Root), 8));
        assert_eq!(kept.evidence.admit(id(5), ALICE, |_| false), Admission::Refused);
        assert_eq!(kept.evidence.forgotten_by_netns().collect::<Vec<_>>(), [(id(5), 1)]);
    }
}
