//! Names of netns that the map does not keep (see `census`), so that what is told of them later does not make them anew.
//! Pure bookkeeping.
//!
//! The rules for names are those of `identity`: a cookie is one netns's for good, an inode and an nsid are those of the netns
//! that had them last. A name leaves with its netns, or when a complete walk does not find it any more.

use std::collections::BTreeSet;

use crate::fact::{BootNs, NetnsRef};
use crate::map::Table;

/// Maximum number of netns whose names are remembered; they take 2.7 MiB (twice as many were measured with 5.4).
const MAX_LEFT_OUT: usize = 16_384;

/// What is known of a netns that is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It has not been read, or something happened to its devices since: an IP of the node may be in it.
    Unread,
    /// When it was given up, no device connected it with the rest of the node.
    Apart,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) names: NetnsRef,
    /// Who owns its user namespace, once somebody has looked.
    pub(super) user: Option<(u32, bool)>,
    pub(super) state: State,
    /// Time of the newest fact that named it.
    seen: BootNs,
    /// Ascends with the order in which they were left out.
    turn: u64,
}

/// The place of an entry.
pub(super) type Slot = u32;

/// Whether a netns with some names is left out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Met {
    No,
    /// It is this one.
    Is(Slot),
    /// The fact is older than what is known of the one that has these names now.
    Older,
}

#[derive(Debug)]
pub(super) struct LeftOut {
    pub(super) most: usize,
    slots: Vec<Option<Entry>>,
    free: Vec<Slot>,
    cookies: Table<u64, Slot>,
    inodes: Table<u32, Slot>,
    nsids: Table<i32, Slot>,
    /// Those that are [`State::Unread`], in the order in which they were left out.
    unread: BTreeSet<(u64, Slot)>,
    turns: u64,
    newest_next: bool,
    /// When names were last met for which there was no room, if no complete walk has shown since that there is none such.
    beyond: Option<BootNs>,
}

impl Default for LeftOut {
    fn default() -> Self {
        Self {
            most: MAX_LEFT_OUT,
            slots: Vec::new(),
            free: Vec::new(),
            cookies: Table::default(),
            inodes: Table::default(),
            nsids: Table::default(),
            unread: BTreeSet::new(),
            turns: 0,
            newest_next: false,
            beyond: None,
        }
    }
}

impl LeftOut {
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether nothing is left out, as far as is known.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0 && self.beyond.is_none()
    }

    /// Whether there are more than are remembered.
    pub(super) fn is_more(&self) -> bool {
        self.beyond.is_some()
    }

    pub(super) fn has_room(&self) -> bool {
        self.len() < self.most
    }

    /// Whether nothing is known of what one of them has.
    pub(super) fn is_unclear(&self) -> bool {
        self.beyond.is_some() || !self.unread.is_empty()
    }

    pub(super) fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.slots.iter().flatten()
    }

    /// The one with the strongest of these names.
    pub(super) fn find(&self, names: &NetnsRef) -> Option<Slot> {
        if let Some(slot) = names.cookie.and_then(|cookie| self.cookies.get(&cookie)) {
            return Some(*slot);
        }
        let by_inode = names.inode.and_then(|inode| self.inodes.get(&inode));
        let slot = by_inode.or_else(|| names.nsid.and_then(|nsid| self.nsids.get(&nsid)));
        // With another cookie it is another netns.
        slot.copied().filter(|slot| {
            let known = self.get(*slot).and_then(|entry| entry.names.cookie);
            known.is_none() || names.cookie.is_none()
        })
    }

    fn get(&self, slot: Slot) -> Option<&Entry> {
        self.slots.get(slot as usize)?.as_ref()
    }

    fn get_mut(&mut self, slot: Slot) -> Option<&mut Entry> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// A fact of this time has these names. Whoever had one of them before, as the others show, has ended or lost it.
    pub(super) fn meet(&mut self, names: &NetnsRef, at: BootNs) -> Met {
        if self.len() == 0 {
            return Met::No;
        }
        let found = self.find(names);
        let others = [
            names.inode.and_then(|inode| self.inodes.get(&inode)),
            names.nsid.and_then(|nsid| self.nsids.get(&nsid)),
        ];
        for other in others.map(Option::<&Slot>::copied).into_iter().flatten() {
            if Some(other) == found {
                continue;
            }
            let Some(entry) = self.get(other) else { continue };
            if at < entry.seen {
                return Met::Older;
            }
            self.strip_of(other, names);
        }
        let Some(slot) = found else { return Met::No };
        self.learn(slot, names);
        if let Some(entry) = self.get_mut(slot) {
            entry.seen = entry.seen.max(at);
        }
        Met::Is(slot)
    }

    fn learn(&mut self, slot: Slot, names: &NetnsRef) {
        let Some(entry) = self.get(slot) else { return };
        let was = entry.names;
        let now = NetnsRef {
            cookie: names.cookie.or(was.cookie),
            inode: names.inode.or(was.inode),
            nsid: names.nsid.or(was.nsid),
        };
        if now != was {
            self.unbind(slot, &was);
            self.bind(slot, &now);
            if let Some(entry) = self.get_mut(slot) {
                entry.names = now;
            }
        }
    }

    /// Adds one. Returns false if there is no room.
    pub(super) fn add(
        &mut self,
        names: &NetnsRef,
        user: Option<(u32, bool)>,
        state: State,
        at: BootNs,
    ) -> bool {
        if !self.has_room() {
            self.beyond = Some(self.beyond.map_or(at, |before| before.max(at)));
            return false;
        }
        self.turns += 1;
        let entry = Entry { names: *names, user, state, seen: at, turn: self.turns };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(entry);
                slot
            }
            None => {
                // There are at most `most`, so that the number fits.
                let slot = Slot::try_from(self.slots.len()).unwrap_or(Slot::MAX);
                self.slots.push(Some(entry));
                slot
            }
        };
        if state == State::Unread {
            self.unread.insert((self.turns, slot));
        }
        self.bind(slot, names);
        true
    }

    pub(super) fn remove(&mut self, slot: Slot) -> Option<Entry> {
        let entry = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        self.unread.remove(&(entry.turn, slot));
        self.unbind(slot, &entry.names);
        if self.free.len() == self.slots.len() {
            // Nothing is left: the memory goes back.
            *self =
                Self { most: self.most, turns: self.turns, beyond: self.beyond, ..Self::default() };
        }
        Some(entry)
    }

    fn bind(&mut self, slot: Slot, names: &NetnsRef) {
        if let Some(cookie) = names.cookie {
            self.cookies.insert(cookie, slot);
        }
        if let Some(inode) = names.inode {
            self.inodes.insert(inode, slot);
        }
        if let Some(nsid) = names.nsid {
            self.nsids.insert(nsid, slot);
        }
    }

    fn unbind(&mut self, slot: Slot, names: &NetnsRef) {
        if let Some(cookie) = names.cookie.filter(|name| self.cookies.get(name) == Some(&slot)) {
            self.cookies.remove(&cookie);
        }
        if let Some(inode) = names.inode.filter(|name| self.inodes.get(name) == Some(&slot)) {
            self.inodes.remove(&inode);
        }
        if let Some(nsid) = names.nsid.filter(|name| self.nsids.get(name) == Some(&slot)) {
            self.nsids.remove(&nsid);
        }
    }

    /// These names of one that is left out are another netns's. An inode is freed at the very end; an nsid when the teardown
    /// begins.
    fn strip_of(&mut self, slot: Slot, names: &NetnsRef) {
        let Some(entry) = self.get(slot) else { return };
        let was = entry.names;
        if was.inode.is_some() && was.inode == names.inode {
            self.remove(slot);
        } else if was.nsid.is_some() && was.nsid == names.nsid {
            let left = NetnsRef { nsid: None, ..was };
            if left == NetnsRef::default() {
                self.remove(slot);
                return;
            }
            self.unbind(slot, &NetnsRef { nsid: was.nsid, ..NetnsRef::default() });
            if let Some(entry) = self.get_mut(slot) {
                entry.names = left;
            }
        }
    }

    /// A netns that is kept has these names.
    pub(super) fn strip(&mut self, names: &NetnsRef) {
        if self.len() == 0 {
            return;
        }
        if let Some(slot) = names.cookie.and_then(|cookie| self.cookies.get(&cookie)).copied() {
            self.remove(slot);
        }
        let inode = names.inode.and_then(|inode| self.inodes.get(&inode)).copied();
        let nsid = names.nsid.and_then(|nsid| self.nsids.get(&nsid)).copied();
        for slot in [inode, nsid].into_iter().flatten() {
            self.strip_of(slot, names);
        }
    }

    /// Somebody has looked whose it is.
    pub(super) fn set_user(&mut self, slot: Slot, user: (u32, bool)) {
        if let Some(entry) = self.get_mut(slot) {
            entry.user = Some(user);
        }
    }

    /// Something happened to its devices, or may have.
    pub(super) fn doubt(&mut self, slot: Slot) {
        let Some(entry) = self.get_mut(slot) else { return };
        entry.state = State::Unread;
        let turn = entry.turn;
        self.unread.insert((turn, slot));
    }

    /// The same of all.
    pub(super) fn doubt_all(&mut self) {
        let all = (0..).zip(&self.slots).filter(|(_, entry)| entry.is_some());
        let slots: Vec<Slot> = all.map(|(slot, _)| slot).collect();
        slots.into_iter().for_each(|slot| self.doubt(slot));
    }

    /// A netns that had these names has ended, or its teardown has begun. It may be known as several, each by one of the names.
    /// Returns whether it was.
    pub(super) fn ended(&mut self, names: &NetnsRef, at: BootNs) -> bool {
        let mut was = false;
        for one in [
            NetnsRef { cookie: names.cookie, ..NetnsRef::default() },
            NetnsRef { inode: names.inode, ..NetnsRef::default() },
            NetnsRef { nsid: names.nsid, ..NetnsRef::default() },
        ] {
            let Some(slot) = self.find(&one) else { continue };
            let is_it = self.get(slot).is_some_and(|entry| {
                let by_cookie = names.cookie.is_some() && entry.names.cookie == names.cookie;
                let is_anothers = entry.names.cookie.is_some() && names.cookie.is_some();
                by_cookie || (!is_anothers && entry.seen <= at)
            });
            was |= is_it;
            if is_it {
                self.remove(slot);
            }
        }
        was
    }

    /// A complete walk that began at `began` has ended. One that is known by its nsid alone cannot be found by it.
    pub(super) fn sweep(&mut self, began: BootNs) {
        let gone = |entry: &Entry| {
            let listed = entry.names.cookie.is_some() || entry.names.inode.is_some();
            listed && entry.seen < began
        };
        let all = (0..).zip(&self.slots);
        let gone = all.filter(|(_, entry)| entry.as_ref().is_some_and(gone));
        let slots: Vec<Slot> = gone.map(|(slot, _)| slot).collect();
        for slot in slots {
            self.remove(slot);
        }
        self.beyond = self.beyond.filter(|met| *met >= began);
    }

    /// One that has not been read, the newest and the oldest in turn: the newest is the one that was not there when a flood
    /// began.
    pub(super) fn next_unread(&mut self) -> Option<Slot> {
        self.newest_next = !self.newest_next;
        let next = if self.newest_next { self.unread.last() } else { self.unread.first() };
        next.map(|(_, slot)| *slot)
    }

    /// One that is left out, those that have not been read before others.
    pub(super) fn next(&mut self) -> Option<Slot> {
        if let Some(slot) = self.next_unread() {
            return Some(slot);
        }
        let mut all = (0..).zip(&self.slots).filter(|(_, entry)| entry.is_some());
        all.next().map(|(slot, _)| slot)
    }

    /// Checks the indexes against the entries.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn assert_is_true(&self) {
        assert!(self.len() <= self.most);
        let (mut names, mut unread) = (0, 0);
        for (slot, entry) in (0..).zip(&self.slots) {
            let Some(entry) = entry else { continue };
            let NetnsRef { cookie, inode, nsid } = entry.names;
            assert_ne!(entry.names, NetnsRef::default());
            assert!(cookie.is_none_or(|name| self.cookies.get(&name) == Some(&slot)));
            assert!(inode.is_none_or(|name| self.inodes.get(&name) == Some(&slot)));
            assert!(nsid.is_none_or(|name| self.nsids.get(&name) == Some(&slot)));
            names += [cookie.is_some(), inode.is_some(), nsid.is_some()]
                .map(usize::from)
                .iter()
                .sum::<usize>();
            unread += usize::from(entry.state == State::Unread);
            assert_eq!(self.unread.contains(&(entry.turn, slot)), entry.state == State::Unread);
        }
        assert_eq!(names, self.cookies.len() + self.inodes.len() + self.nsids.len());
        assert_eq!(unread, self.unread.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(cookie: u64, inode: u32, nsid: i32) -> NetnsRef {
        NetnsRef { cookie: Some(cookie), inode: Some(inode), nsid: Some(nsid) }
    }

    fn left_out(all: &[NetnsRef]) -> LeftOut {
        let mut left_out = LeftOut { most: 4, ..LeftOut::default() };
        for names in all {
            left_out.add(names, None, State::Unread, BootNs(10));
        }
        left_out.assert_is_true();
        left_out
    }

    #[test]
    fn one_is_met_by_any_of_its_names_and_learns_the_others() {
        let mut left_out = left_out(&[NetnsRef::inode(70), NetnsRef::nsid(4)]);
        let slot = left_out.find(&NetnsRef::inode(70)).unwrap();
        assert_eq!(left_out.meet(&full(7, 70, 3), BootNs(11)), Met::Is(slot));
        for names in [NetnsRef::cookie(7), NetnsRef::nsid(3), NetnsRef::inode(70)] {
            assert_eq!(left_out.meet(&names, BootNs(12)), Met::Is(slot));
        }
        assert_eq!(left_out.meet(&NetnsRef::cookie(8), BootNs(12)), Met::No);
        // Two turn out to be one.
        assert_eq!(left_out.meet(&full(7, 70, 4), BootNs(13)), Met::Is(slot));
        assert_eq!((left_out.len(), left_out.find(&NetnsRef::nsid(3))), (1, None));
        left_out.assert_is_true();
    }

    #[test]
    fn a_reused_name_is_another_netns_unless_the_fact_is_older() {
        let mut left_out = left_out(&[full(7, 70, 3), full(8, 80, 4)]);
        assert_eq!(left_out.meet(&full(9, 70, 5), BootNs(9)), Met::Older);
        assert_eq!(left_out.len(), 2);
        assert_eq!(left_out.meet(&full(9, 70, 4), BootNs(11)), Met::No);
        assert_eq!(left_out.find(&NetnsRef::cookie(7)), None, "its inode is free: it has ended");
        assert!(left_out.find(&NetnsRef::cookie(8)).is_some(), "an nsid is free before the end");
        assert_eq!(left_out.find(&NetnsRef::nsid(4)), None);
        left_out.assert_is_true();
        left_out.strip(&NetnsRef { cookie: None, inode: Some(80), nsid: None });
        assert!(left_out.is_empty());
    }

    #[test]
    fn an_end_by_all_names_ends_what_was_known_by_each() {
        let mut left_out = left_out(&[NetnsRef::cookie(7), NetnsRef::inode(70), full(8, 80, 3)]);
        assert!(left_out.ended(&full(7, 70, 3), BootNs(20)));
        assert_eq!(left_out.len(), 1, "that nsid is another netns's");
        assert!(!left_out.ended(&NetnsRef::inode(80), BootNs(5)), "the one before");
        assert!(left_out.ended(&NetnsRef::inode(80), BootNs(20)));
        left_out.assert_is_true();
    }

    #[test]
    fn what_finds_no_room_is_known_to_be_there_until_a_walk_shows_that_it_is_not() {
        let mut left_out = left_out(&[1, 2, 3, 4].map(NetnsRef::cookie));
        assert!(!left_out.is_more());
        assert!(!left_out.add(&NetnsRef::cookie(5), None, State::Apart, BootNs(20)));
        assert!(left_out.is_more() && left_out.is_unclear());
        left_out.meet(&NetnsRef::cookie(1), BootNs(20));
        left_out.sweep(BootNs(20));
        assert_eq!((left_out.len(), left_out.is_more()), (1, true));
        left_out.sweep(BootNs(30));
        assert!(left_out.is_empty());
        left_out.assert_is_true();
    }

    #[test]
    fn the_newest_and_the_oldest_that_were_not_read_come_in_turn() {
        let mut left_out = left_out(&[1, 2, 3].map(NetnsRef::cookie));
        assert!(left_out.add(&NetnsRef::cookie(4), Some((1000, true)), State::Apart, BootNs(11)));
        let mut next = || {
            let slot = left_out.next()?;
            left_out.remove(slot)?.names.cookie
        };
        assert_eq!(
            [next(), next(), next(), next(), next()],
            [Some(3), Some(1), Some(2), Some(4), None]
        );
        left_out.add(&NetnsRef::cookie(6), None, State::Apart, BootNs(12));
        assert!(!left_out.is_unclear());
        left_out.doubt_all();
        assert!(left_out.is_unclear() && left_out.has_unread());
        left_out.assert_is_true();
    }
}
