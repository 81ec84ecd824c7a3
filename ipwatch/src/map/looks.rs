//! Limits how much the thread that looks at processes is asked for at a time, and says whose turn it is. Pure.
//!
//! One thread reads `/proc`, one process after the other. Whoever may start a process can have tens of thousands that hang in
//! their exit, or that begin or end at one time. Only a few of what is to be read are therefore passed to the thread at a
//! time, by the rank of whose they are (`kernel/tenants.rs`): a pod's waits behind those few of users, and behind none that
//! wait. Within a rank tenants take turns, and of one tenant whoever has waited longest is next.
//!
//! What was asked for is under way until it is answered, or for so long that the answer must have been lost. All bounds
//! together are less than what the thread's queue takes: `daemon/dispatch.rs` drops nothing that is asked for here.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;
use std::ops::Bound::{Excluded, Unbounded};

use super::Table;
use super::kernel::Tenant;
use super::queue::Queue;
use crate::fact::BootNs;

const MS: u64 = 1_000_000;

/// How much of one kind is under way at a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// By the rank of the tenant: pods, root, users.
    at_once: [usize; Tenant::RANKS],
    /// For how long, if no answer comes.
    pub(super) patience: u64,
}

impl Pace {
    /// How much is asked for at most within this time, if nothing is answered.
    const fn most_within(self, ns: u64) -> usize {
        let [pods, root, users] = self.at_once;
        // The quotient is small.
        (pods + root + users) * (ns / self.patience + 1) as usize
    }
}

/// Looks at leaving tasks: some 0.2 ms each, with the kernel stack.
pub(super) const LOOKS: Pace = Pace { at_once: [256, 64, 64], patience: 2_000 * MS };
/// Cgroups of tasks: one file each. At the start all tasks are nobody known's.
pub(super) const CGROUPS: Pace = Pace { at_once: [256, 128, 128], patience: 1_000 * MS };
/// Threads of processes whose leader has ended. No answer says that there are none, so that this is a pace.
pub(super) const THREADS: Pace = Pace { at_once: [128, 16, 16], patience: 250 * MS };
/// Maximum number of processes of one rank that wait to be looked through for threads. The next look at all tasks shows what
/// is beyond.
pub(super) const THREADS_WAIT: usize = 4_096;

/// How long a thread hangs at a read before another one takes over its queue (`daemon/workers.rs`).
const HANGS: u64 = 2_000 * MS;
/// Maximum number of requests to the thread that looks at processes while it hangs.
pub const MOST_LOOKS: usize =
    LOOKS.most_within(HANGS) + CGROUPS.most_within(HANGS) + THREADS.most_within(HANGS);

/// What is under way of one kind, and what waits.
#[derive(Debug)]
pub(super) struct Turns<K> {
    pace: Pace,
    /// By the rank of the tenant.
    lanes: [Lane<K>; Tenant::RANKS],
    /// Of those that wait: whose they are, and which one it was in the order in which they came.
    waiting: Table<K, (Tenant, u64)>,
    came: u64,
    /// Of those under way: what changed since they were asked for, so that the answer may be of before.
    again: BTreeSet<K>,
}

/// Those of one rank.
#[derive(Debug)]
struct Lane<K> {
    /// Until when each counts, if no answer comes.
    under_way: Queue<K>,
    waiting: BTreeMap<Tenant, BTreeSet<(u64, K)>>,
    waits: usize,
    /// Whose turn it was last.
    last: Option<Tenant>,
}

impl<K: Ord + Hash + Copy> Lane<K> {
    fn new() -> Self {
        Self { under_way: Queue::default(), waiting: BTreeMap::new(), waits: 0, last: None }
    }

    fn put(&mut self, tenant: Tenant, place: (u64, K)) {
        self.waiting.entry(tenant).or_default().insert(place);
        self.waits += 1;
    }

    fn take(&mut self, tenant: Tenant, place: (u64, K)) {
        let Some(own) = self.waiting.get_mut(&tenant) else { return };
        if own.remove(&place) {
            self.waits -= 1;
        }
        if own.is_empty() {
            self.waiting.remove(&tenant);
        }
    }

    /// Whose turn it is, and the place of the first of his.
    fn next(&self) -> Option<(Tenant, (u64, K))> {
        let from = self.last.map_or(Unbounded, Excluded);
        let later = self.waiting.range((from, Unbounded)).next();
        let (tenant, own) = later.or_else(|| self.waiting.first_key_value())?;
        Some((*tenant, *own.first()?))
    }
}

impl<K: Ord + Hash + Copy> Turns<K> {
    pub(super) fn new(pace: Pace) -> Self {
        let lanes = std::array::from_fn(|_| Lane::new());
        Self { pace, lanes, waiting: Table::default(), came: 0, again: BTreeSet::new() }
    }

    fn lane(&mut self, tenant: Tenant) -> &mut Lane<K> {
        // There are as many lanes as ranks.
        &mut self.lanes[usize::from(tenant.rank())]
    }

    /// Something is to be asked for. Returns whether it waits for its turn: what is under way is to be asked for again
    /// later.
    pub(super) fn wait(&mut self, key: K, tenant: Tenant) -> bool {
        if self.is_under_way(&key) {
            return false;
        }
        if !self.waiting.contains_key(&key) {
            self.came += 1;
            let came = self.came;
            self.waiting.insert(key, (tenant, came));
            self.lane(tenant).put(tenant, (came, key));
        }
        true
    }

    fn is_under_way(&self, key: &K) -> bool {
        self.lanes.iter().any(|lane| lane.under_way.contains(key))
    }

    /// It has changed: if it is under way, it is to be asked for again when it is answered.
    pub(super) fn changed(&mut self, key: K) {
        if self.is_under_way(&key) {
            self.again.insert(key);
        }
    }

    /// It was answered. Returns whether it is to be asked for again at once.
    pub(super) fn answered(&mut self, key: &K) -> bool {
        let again = self.again.contains(key);
        self.leaves(key);
        again
    }

    /// Number of those of this tenant's rank that wait.
    pub(super) fn waits(&self, tenant: Tenant) -> usize {
        self.lanes[usize::from(tenant.rank())].waits
    }

    /// Whether none waits.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// It turned out whose this is.
    pub(super) fn counts_to(&mut self, key: K, tenant: Tenant) {
        let Some(known) = self.waiting.get_mut(&key) else { return };
        let (before, came) = *known;
        *known = (tenant, came);
        if before != tenant {
            self.lane(before).take(before, (came, key));
            self.lane(tenant).put(tenant, (came, key));
        }
    }

    /// It need not be asked for any more.
    pub(super) fn leaves(&mut self, key: &K) {
        self.again.remove(key);
        for lane in &mut self.lanes {
            lane.under_way.cancel(key);
        }
        if let Some((tenant, came)) = self.waiting.remove(key) {
            self.lane(tenant).take(tenant, (came, *key));
        }
    }

    /// What was not answered for so long is not under way any more.
    pub(super) fn expire(&mut self, now: BootNs) {
        for lane in &mut self.lanes {
            while let Some(key) = lane.under_way.pop(now) {
                self.again.remove(&key);
            }
        }
    }

    /// The next one to ask for. It then is under way.
    pub(super) fn next(&mut self, now: BootNs) -> Option<K> {
        if self.is_idle() {
            return None;
        }
        let Pace { at_once, patience } = self.pace;
        for (lane, most) in self.lanes.iter_mut().zip(at_once) {
            if lane.under_way.len() < most
                && let Some((tenant, place)) = lane.next()
            {
                let (_, key) = place;
                lane.take(tenant, place);
                lane.last = Some(tenant);
                lane.under_way.set(key, now.plus(patience));
                self.waiting.remove(&key);
                return Some(key);
            }
        }
        None
    }

    /// When the next one may be asked for, although none is answered.
    pub(super) fn due(&self) -> Option<BootNs> {
        let busy = self.lanes.iter().filter(|lane| !lane.waiting.is_empty());
        busy.filter_map(|lane| lane.under_way.next()).min()
    }

    /// Checks the bounds.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn assert_is_bounded(&self, keeps: impl Fn(&K) -> bool) {
        let mut waits = 0;
        for (lane, most) in self.lanes.iter().zip(self.pace.at_once) {
            assert!(lane.under_way.len() <= most);
            assert!(lane.under_way.keys().all(&keeps));
            let own: usize = lane.waiting.values().map(BTreeSet::len).sum();
            assert_eq!(own, lane.waits);
            assert!(lane.waiting.values().all(|own| !own.is_empty()));
            waits += own;
        }
        assert_eq!(waits, self.waiting.len());
        assert!(self.waiting.keys().all(keeps));
        assert!(self.again.iter().all(|key| self.is_under_way(key)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::NetnsId;

    const ALICE: Tenant = Tenant::User(Some(1000));
    const BOB: Tenant = Tenant::User(Some(1001));
    const PACE: Pace = Pace { at_once: [2, 1, 4], patience: 100 };

    fn pod(n: u64) -> Tenant {
        Tenant::Pod(NetnsId::numbered(n))
    }

    fn next(turns: &mut Turns<u32>, now: u64) -> Vec<u32> {
        let all = std::iter::from_fn(|| turns.next(BootNs(now))).collect();
        turns.assert_is_bounded(|_| true);
        all
    }

    #[test]
    fn pods_come_first_and_tenants_take_turns() {
        let mut turns = Turns::new(PACE);
        (0..10).for_each(|n| assert!(turns.wait(n, ALICE)));
        (10..12).for_each(|n| assert!(turns.wait(n, BOB)));
        assert_eq!(next(&mut turns, 1), [0, 10, 1, 11]);
        (20..24).for_each(|n| assert!(turns.wait(n, pod(1))));
        assert!(turns.wait(30, pod(2)));
        assert!(turns.wait(40, Tenant::Root));
        assert_eq!(next(&mut turns, 2), [20, 30, 40], "each rank has places of its own");
        turns.leaves(&0);
        turns.leaves(&30);
        assert_eq!(next(&mut turns, 3), [21, 2]);
        assert_eq!(turns.waits(ALICE), 7);
    }

    #[test]
    fn what_is_not_answered_makes_way() {
        let mut turns = Turns::new(PACE);
        (0..6).for_each(|n| assert!(turns.wait(n, ALICE)));
        assert_eq!(next(&mut turns, 1), [0, 1, 2, 3]);
        assert!(!turns.wait(0, ALICE), "it is under way");
        assert_eq!(turns.due(), Some(BootNs(101)));
        turns.expire(BootNs(100));
        assert!(next(&mut turns, 100).is_empty());
        turns.expire(BootNs(101));
        assert!(turns.wait(0, ALICE));
        assert_eq!(next(&mut turns, 101), [4, 5, 0], "behind those that waited");
        assert_eq!((turns.due(), turns.is_idle()), (None, true));
    }

    #[test]
    fn what_changes_while_it_is_under_way_is_asked_for_again() {
        let mut turns = Turns::new(PACE);
        turns.changed(0);
        assert!(turns.wait(0, ALICE));
        turns.changed(0);
        assert_eq!(next(&mut turns, 1), [0]);
        assert!(!turns.answered(&0), "it changed before");
        assert!(turns.wait(0, ALICE));
        assert_eq!(next(&mut turns, 2), [0]);
        turns.changed(0);
        assert!(turns.answered(&0));
        assert!(turns.wait(0, ALICE));
        assert_eq!(next(&mut turns, 3), [0]);
        turns.changed(0);
        turns.expire(BootNs(200));
        assert!(!turns.answered(&0), "whoever waits for it asks again");
    }

    #[test]
    fn whose_it_is_may_turn_out_while_it_waits() {
        let mut turns = Turns::new(PACE);
        (0..9).for_each(|n| assert!(turns.wait(n, Tenant::User(None))));
        assert_eq!(next(&mut turns, 1), [0, 1, 2, 3]);
        turns.counts_to(8, pod(1));
        turns.counts_to(2, pod(1));
        assert_eq!(next(&mut turns, 2), [8], "what is under way stays so");
        turns.leaves(&4);
        turns.leaves(&0);
        assert_eq!(next(&mut turns, 3), [5]);
    }
}
