//! Netns whose events were not all reported: because they or their owner caused too many (`ipwatch-ebpf/src/limit.rs`,
//! `sources/netlink/budget.rs`), or because the ring buffer was full. What is known of such a netns is not complete until it has been read again, and
//! nothing is concluded from what is not in it. Other netns are not concerned.
//!
//! A netns is read at once, and with growing pauses while it goes on: whoever floods costs no more than that.

use std::fmt::Write as _;

use super::Netns;
use crate::fact::{BootNs, NetnsRef, Unreported};
use crate::map::{NetnsId, NodeMap};

const MS: u64 = 1_000_000;
/// Pause before the second reading, which doubles with each.
const FIRST_PAUSE: u64 = 500 * MS;
/// The longest pause.
const LONGEST_PAUSE: u64 = 8_000 * MS;
/// Between two readings of any netns of users: whoever has one can have any number of them.
const USERS_APART: u64 = 100 * MS;
/// As many of the last pause without a loss, and the next reading is at once again.
const CALM: u64 = 4;
/// How long people are told of it afterwards.
const TOLD: u64 = 60_000 * MS;
/// Maximum number of netns in a text.
const LISTED: usize = 3;

/// When something is read again because of losses.
#[derive(Debug, Default)]
pub(super) struct Readings {
    due: BootNs,
    /// From the last reading to the next.
    pause: u64,
}

impl Readings {
    /// When to read what was lost at `at`: not before `at`, nor before what `of_all` allows for those that share a pace.
    fn next(&mut self, at: BootNs, of_all: Option<&mut BootNs>) -> BootNs {
        if self.due < at {
            if at.since(self.due) > CALM * self.pause {
                self.pause = 0;
            }
            self.due = at.max(self.due.plus(self.pause));
            if let Some(of_all) = of_all {
                self.due = self.due.max(*of_all);
                *of_all = self.due.plus(USERS_APART);
            }
            self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        }
        self.due
    }
}

/// What of a netns was not reported.
#[derive(Debug, Default)]
pub(super) struct Incomplete {
    /// The newest loss of events of addresses or devices.
    lost: BootNs,
    /// The newest for which the ring buffer had no room.
    overrun: BootNs,
    readings: Readings,
    /// All that was held back since the netns exists, and when that was last.
    held_back: u64,
    held_back_at: BootNs,
}

impl Incomplete {
    /// What an entry lacked that turned out to be the same netns.
    pub(super) fn absorb(&mut self, other: &Self) {
        self.lost = self.lost.max(other.lost);
        self.overrun = self.overrun.max(other.overrun);
        self.held_back = self.held_back.saturating_add(other.held_back);
        self.held_back_at = self.held_back_at.max(other.held_back_at);
    }
}

impl Netns {
    /// Whether events of its addresses or devices were not reported, and it has not been read since.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        let lost = self.incomplete.lost;
        lost > BootNs::default() && self.opened.is_none_or(|opened| opened <= lost)
    }

    /// When events of it were last lost because the ring buffer was full: whatever has not been reported since may no
    /// longer exist.
    pub(in crate::map) fn overrun(&self) -> BootNs {
        self.incomplete.overrun
    }
}

impl NodeMap {
    /// Events in a netns were not reported. One that is not known is about to be read, or has ended.
    pub(in crate::map) fn lost_in(&mut self, netns: &NetnsRef, unreported: Unreported, at: BootNs) {
        let Unreported { addresses, neighbours, claims, tasks, overrun } = unreported;
        if tasks > 0 {
            let due = self.kernel.task_readings.next(at, None);
            self.scheduler.walk_by(due);
        }
        let Some(id) = self.find(netns) else {
            if unreported.concerns_addresses() {
                self.doubt_left_out(netns);
            }
            return;
        };
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        let held_back = [addresses, neighbours, claims, tasks].into_iter().sum::<u64>();
        if held_back > 0 {
            let incomplete = &mut entry.incomplete;
            incomplete.held_back = incomplete.held_back.saturating_add(held_back);
            incomplete.held_back_at = at;
        }
        if entry.dying.is_some() || !unreported.concerns_addresses() {
            return;
        }
        entry.incomplete.lost = entry.incomplete.lost.max(at);
        if overrun > 0 {
            entry.incomplete.overrun = at;
            self.overrun_last = at;
            self.conflict.readdressed();
        }
        self.read_after_loss(id, at);
    }

    /// Events in netns of users were not reported, in more of them than are told one by one.
    pub(in crate::map) fn lost_in_users(&mut self, at: BootNs) {
        self.doubt_all_left_out();
        let theirs = |entry: &&Netns| entry.may_be_nested() && entry.dying.is_none();
        let all: Vec<NetnsId> = self.kernel.all().filter(theirs).map(|entry| entry.id).collect();
        for id in all {
            if let Some(entry) = self.kernel.netns.get_mut(&id) {
                entry.incomplete.lost = entry.incomplete.lost.max(at);
                self.read_after_loss(id, at);
            }
        }
    }

    /// Has a netns read again. One that is being read is read once more when that has ended: see
    /// [`read_once_more`](Self::read_once_more).
    fn read_after_loss(&mut self, id: NetnsId, at: BootNs) {
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        let of_all = entry.is_of_a_user_namespace().then_some(&mut self.kernel.users_read_from);
        let (host, due) = (entry.host, entry.incomplete.readings.next(at, of_all));
        self.scheduler.lost_in(id, host, due);
        self.mark_short(id);
    }

    /// A netns has been read. If that began before the newest loss, it must be read once more.
    pub(super) fn read_once_more(&mut self, id: NetnsId) {
        let Some(entry) = self.kernel.netns.get(&id).filter(|entry| entry.is_incomplete()) else {
            return;
        };
        let (host, due) = (entry.host, entry.incomplete.readings.due);
        self.scheduler.doubted(id, host, due);
    }

    /// The netns that have caused more events than are reported within the last minute, for people, those with most first;
    /// and whether addresses are among these events, so that such a netns is read again.
    #[must_use]
    pub fn said_of_held_back(&self, now: BootNs) -> Option<(String, bool)> {
        let recent = |entry: &&Netns| {
            let Incomplete { held_back, held_back_at, .. } = entry.incomplete;
            held_back > 0 && now.since(held_back_at) < TOLD
        };
        let mut all: Vec<&Netns> = self.kernel.all().filter(recent).collect();
        all.sort_by_key(|entry| (std::cmp::Reverse(entry.incomplete.held_back), entry.id));
        let are_read = |entry: &Netns| {
            let lost = entry.incomplete.lost;
            lost > BootNs::default() && now.since(lost) < TOLD
        };
        let mut said = "network namespaces with more events than are reported: ".to_owned();
        for (place, entry) in all.iter().take(LISTED).enumerate() {
            let apart = if place > 0 { ", " } else { "" };
            let name = match (entry.host, entry.names.inode) {
                (true, _) => "the host's".to_owned(),
                (false, Some(inode)) => format!("net:[{inode}]"),
                (false, None) => entry.identity.to_string(),
            };
            let whose = entry.user.filter(|(uid, _)| *uid != 0);
            let whose = whose.map(|(uid, _)| format!(" of uid {uid}")).unwrap_or_default();
            let count = entry.incomplete.held_back;
            let read = if are_read(entry) { ", read again" } else { "" };
            let _ = write!(said, "{apart}{name}{whose}: {count} held back{read}");
        }
        if let Some(more) = all.len().checked_sub(LISTED).filter(|more| *more > 0) {
            let _ = write!(said, " and {more} more");
        }
        let read = all.iter().any(|entry| are_read(entry));
        (!all.is_empty()).then_some((said, read))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_loss_is_read_at_once_and_those_that_follow_ever_later() {
        let mut readings = Readings::default();
        let mut at = BootNs(10_000 * MS);
        let mut dues = Vec::new();
        for _ in 0..200 {
            let due = readings.next(at, None);
            assert!(due >= at);
            dues.push(due.0 / MS);
            at = at.plus(100 * MS);
        }
        dues.dedup();
        assert_eq!(dues[..6], [10_000, 10_500, 11_500, 13_500, 17_500, 25_500]);
        let at = BootNs((25_500 + 8_000 * CALM) * MS);
        assert_eq!(readings.next(at.plus(MS), None), at.plus(MS), "it was calm meanwhile");
    }
}
