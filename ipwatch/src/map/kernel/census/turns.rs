//! Every few seconds: who of those that are left out is taken in, and who gives a place for it.

use std::collections::{BTreeMap, BTreeSet};

use super::super::left_out::{Entry, State};
use super::super::tenants::{Tenant, Yields};
use super::{LOOK, since_of};
use crate::fact::BootNs;
use crate::map::{Netns, NetnsId, NodeMap};

/// How often places are given to those that were left out, and to how many at a time.
const TURN: u64 = 2_000_000_000;
const AT_A_TIME: usize = 64;
/// How many of them may have been read before.
const AGAIN_AT_A_TIME: usize = 16;
/// How many of a user's give their places at a time to others that nobody has read, if none of them yields.
const GIVEN_AT_A_TIME: usize = 8;
/// Between two walks for the tasks of those that were taken in.
const WALKS_APART: u64 = 10_000_000_000;
/// How many of those that cannot give their place are passed over in one turn.
const PASSED_OVER: usize = 512;
/// After so many failed attempts, one that cannot be opened gives its place to others that may be.
const TRIED: usize = 4;
/// How long one that cannot give its place is not asked again.
const ASKED_AGAIN: u64 = 30_000_000_000;

impl NodeMap {
    /// Takes in what was left out: into free places, or into those of netns that have been read and are of no use. Returns
    /// when to call this again.
    pub(in crate::map) fn settle_left_out(&mut self, now: BootNs) -> Option<BootNs> {
        let waits = self.has_unread_from_before();
        if std::mem::replace(&mut self.kernel.census.waits, waits) && !waits {
            // What was reserved then could not be judged.
            self.ipam.ask_all_leaks();
        }
        self.doubt_what_is_led_to(now);
        let census = &self.kernel.census;
        if !census.has_something_to_do() {
            return None;
        }
        let due = census.turned.plus(TURN);
        if now < due && census.turned > BootNs::default() {
            return Some(due);
        }
        self.kernel.census.turned = now;
        let mut taken_in = self.fill_free_places(now);
        taken_in += self.exchange(now);
        let census = &mut self.kernel.census;
        // A walk reads every process of the node.
        if taken_in > 0 && census.walked <= now {
            census.walked = census.walked.plus(WALKS_APART).max(now);
            self.scheduler.walk_by(census.walked);
        }
        let census = &mut self.kernel.census;
        let may_be_named = census.left_out.is_more() && census.left_out.has_room();
        if may_be_named && now.since(census.looked) >= LOOK {
            census.looked = now;
            self.scheduler.walk_by(now);
        }
        self.kernel.census.has_something_to_do().then(|| now.plus(TURN))
    }

    fn fill_free_places(&mut self, now: BootNs) -> usize {
        let (mut taken_in, mut again) = (0, 0);
        while taken_in < AT_A_TIME && !self.kernel.census.is_full() {
            let census = &mut self.kernel.census;
            let next = if census.left_out.has_unread() {
                census.left_out.next_unread()
            } else if census.has_room() && again < AGAIN_AT_A_TIME {
                again += 1;
                census.left_out.next()
            } else {
                None
            };
            let Some(entry) = next.and_then(|slot| census.left_out.remove(slot)) else { break };
            self.take_in_again(entry, now);
            taken_in += 1;
        }
        taken_in
    }

    fn take_in_again(&mut self, entry: Entry, now: BootNs) {
        let unknown_since = match entry.state {
            State::Apart => None,
            State::Unread | State::Ending => since_of(Some(&entry), now),
        };
        self.insert_known(&entry.names, entry.user, unknown_since, now);
    }

    /// Gives places of netns that have been read, and that nothing connects with the node, to those that have not been read.
    fn exchange(&mut self, now: BootNs) -> usize {
        let census = &mut self.kernel.census;
        if !census.left_out.has_unread() || !census.is_full() {
            return 0;
        }
        if now.since(census.passed_over.0) >= ASKED_AGAIN {
            let asked_again = std::mem::take(&mut census.passed_over.1);
            census.passed_over.0 = now;
            asked_again.into_iter().for_each(|id| self.recensus(id));
        }
        let connected = self.connected();
        let (mut taken_in, mut passed_over) = (0, 0);
        while taken_in < AT_A_TIME && passed_over < PASSED_OVER {
            let census = &mut self.kernel.census;
            let Some(giver) = census.room.giver(Tenant::User(None), 0, 1) else { break };
            if census.room.yields(giver.id) == Yields::Last {
                break;
            }
            if !self.is_apart(giver.id, &connected.all) {
                self.kernel.census.passed_over.1.insert(giver.id);
                self.recensus(giver.id);
                passed_over += 1;
                continue;
            }
            let left_out = &mut self.kernel.census.left_out;
            let Some(entry) = left_out.next_unread().and_then(|slot| left_out.remove(slot)) else {
                break;
            };
            self.give_up(giver.id, State::Apart, now);
            self.take_in_again(entry, now);
            taken_in += 1;
        }
        if taken_in == 0 {
            taken_in = self.exchange_unread(&connected.all, now);
        }
        taken_in
    }

    /// Whether it is known that nothing connects a user's netns with the node.
    fn is_apart(&self, id: NetnsId, connected: &BTreeSet<NetnsId>) -> bool {
        // What was lost since it was read, or is not kept of it, may connect it.
        let is_known = |entry: &Netns| {
            entry.opened.is_some_and(|opened| opened > self.lost_last) && !entry.lacks_ways_out()
        };
        let entry = self.kernel.netns.get(&id);
        entry.is_some_and(|entry| entry.yields() != Yields::Last && is_known(entry))
            && !connected.contains(&id)
    }

    /// Gives places to those that were never read at the cost of whoever has most of those that were, even if none of his can
    /// be given up as of no use. What he gives then must be read again some time.
    fn exchange_unread(&mut self, connected: &BTreeSet<NetnsId>, now: BootNs) -> usize {
        if !self.kernel.census.left_out.has_never_read() {
            return 0;
        }
        let mut users: BTreeMap<Tenant, Vec<NetnsId>> = BTreeMap::new();
        for entry in self.kernel.all() {
            let is_shut = || {
                let is_tried = self.scheduler.failed_to_open(entry.id) >= TRIED;
                is_tried && entry.opened.is_none() && entry.tenant() == Tenant::User(None)
            };
            if (entry.is_a_users_and_read() || is_shut()) && !entry.is_named_by_root() {
                users.entry(entry.tenant()).or_default().push(entry.id);
            }
        }
        let Some(mut most) = users.into_values().max_by_key(Vec::len) else { return 0 };
        most.sort_unstable();
        let mut taken_in = 0;
        for giver in most.into_iter().rev().take(GIVEN_AT_A_TIME) {
            let left_out = &mut self.kernel.census.left_out;
            let next = left_out.next_never_read();
            let Some(entry) = next.and_then(|slot| left_out.remove(slot)) else { break };
            let is_apart = self.is_apart(giver, connected);
            self.give_up(giver, if is_apart { State::Apart } else { State::Unread }, now);
            self.take_in_again(entry, now);
            taken_in += 1;
        }
        taken_in
    }
}
