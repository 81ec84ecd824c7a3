//! Names of netns that the map does not keep (see `census`), so that what is told of them later does not make them anew.
//! Pure bookkeeping.
//!
//! The rules for names are those of `identity`: a cookie is one netns's for good, an inode and an nsid are those of the netns
//! that had them last. A name leaves with its netns, or when a complete walk does not find it any more.

use std::collections::BTreeSet;

use crate::fact::{BootNs, NetnsRef};
use crate::map::Table;

/// Maximum number of netns whose names are remembered: the rest of what a walk can list beside those that are kept.
pub(super) const MAX_LEFT_OUT: usize = 5_119;

/// What is known of a netns that is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It has not been read, or something happened to its devices since: an IP of the node may be in it.
    Unread,
    /// When it was given up, no device connected it with the rest of the node.
    Apart,
    /// Its teardown has begun, before it was read: until that ends, an IP of the node may be in it. A walk that missed it may
    /// have been wrong about that.
    Ending,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) names: NetnsRef,
    /// Who owns its user namespace, once somebody has looked.
    pub(super) user: Option<(u32, bool)>,
    pub(super) state: State,
    /// Since when it is known of which nothing is known. `None`: it was read before it was given up.
    pub(super) unknown_since: Option<BootNs>,
    /// Time of the newest fact that named it.
    seen: BootNs,
    /// When it was said to be [`State::Ending`].
    ends_since: BootNs,
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
    /// Those of `unread` that were never read, by the time since when nothing is known of them.
    never_read: BTreeSet<(BootNs, Slot)>,
    /// Those that are [`State::Ending`].
    ending: BTreeSet<Slot>,
    turns: u64,
    newest_next: bool,
    /// When names were first and last met for which there was no room, if no complete walk has shown since that there is none
    /// such.
    beyond: Option<(BootNs, BootNs)>,
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
            never_read: BTreeSet::new(),
            ending: BTreeSet::new(),
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
        self.beyond.is_some() || !self.unread.is_empty() || !self.ending.is_empty()
    }

    /// Whether one that was there at this time was never read.
    pub(super) fn has_unknown_since(&self, at: BootNs) -> bool {
        let ending = self.ending.iter().filter_map(|slot| self.get(*slot)?.unknown_since);
        self.beyond.is_some_and(|(first, _)| first <= at)
            || self.never_read.first().is_some_and(|(since, _)| *since <= at)
            || ending.into_iter().any(|since| since <= at)
    }

    pub(super) fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    pub(super) fn has_never_read(&self) -> bool {
        !self.never_read.is_empty()
    }

    /// Whether there are any that have been read.
    pub(super) fn has_apart(&self) -> bool {
        self.len() > self.unread.len() + self.ending.len()
    }

    /// Since when there are some whose names are not remembered.
    pub(super) fn beyond_since(&self) -> Option<BootNs> {
        self.beyond.map(|(first, _)| first)
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
        if self.is_empty() {
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
        (state, unknown_since): (State, Option<BootNs>),
        at: BootNs,
    ) -> bool {
        if !self.has_room() {
            let first = unknown_since.unwrap_or(at);
            let (before, last) = self.beyond.unwrap_or((first, at));
            self.beyond = Some((before.min(first), last.max(at)));
            return false;
        }
        self.turns += 1;
        let (turn, ends_since) = (self.turns, at);
        let entry = Entry { names: *names, user, state, unknown_since, seen: at, ends_since, turn };
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
        match state {
            State::Unread => self.is_to_be_read(slot, (turn, unknown_since)),
            State::Ending => drop(self.ending.insert(slot)),
            State::Apart => {}
        }
        self.bind(slot, names);
        true
    }

    fn is_to_be_read(&mut self, slot: Slot, (turn, unknown_since): (u64, Option<BootNs>)) {
        self.unread.insert((turn, slot));
        if let Some(since) = unknown_since {
            self.never_read.insert((since, slot));
        }
    }

    pub(super) fn remove(&mut self, slot: Slot) -> Option<Entry> {
        let entry = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        self.unread.remove(&(entry.turn, slot));
        if let Some(since) = entry.unknown_since {
            self.never_read.remove(&(since, slot));
        }
        self.ending.remove(&slot);
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
        if self.is_empty() {
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

    /// Something happened to its devices, or may have. Returns whether that was not so before.
    pub(super) fn doubt(&mut self, slot: Slot) -> bool {
        let Some(entry) = self.get_mut(slot).filter(|entry| entry.state == State::Apart) else {
            return false;
        };
        entry.state = State::Unread;
        let turn = entry.turn;
        self.unread.insert((turn, slot))
    }

    /// The same of all.
    pub(super) fn doubt_all(&mut self) {
        let all = (0..).zip(&self.slots).filter(|(_, entry)| entry.is_some());
        let slots: Vec<Slot> = all.map(|(slot, _)| slot).collect();
        for slot in slots {
            self.doubt(slot);
        }
    }

    /// A netns that had these names has ended. Returns whether it was known.
    pub(super) fn ended(&mut self, names: &NetnsRef, at: BootNs) -> bool {
        let known = self.meant_by(names, at);
        for slot in &known {
            self.remove(*slot);
        }
        !known.is_empty()
    }

    /// The teardown of a netns that had these names has begun, and its end will be told. Its nsid is free, and may be
    /// another's by now: by that alone, it is not known whose teardown it is. Returns whether it was known.
    pub(super) fn ends(&mut self, names: &NetnsRef, at: BootNs) -> bool {
        let known = self.meant_by(names, at);
        let by_nsid = names.cookie.is_none() && names.inode.is_none();
        for slot in &known {
            let Some(was) = self.get(*slot).map(|entry| entry.names) else { continue };
            let left = NetnsRef { nsid: None, ..was };
            if left == NetnsRef::default() {
                self.remove(*slot);
                continue;
            }
            self.unbind(*slot, &NetnsRef { nsid: was.nsid, ..NetnsRef::default() });
            if let Some(entry) = self.get_mut(*slot) {
                entry.names = left;
            }
            if !by_nsid {
                self.is_ending(*slot, at);
            }
        }
        !known.is_empty()
    }

    /// Its teardown has begun.
    fn is_ending(&mut self, slot: Slot, at: BootNs) {
        let Some(entry) = self.get_mut(slot) else { return };
        if entry.state == State::Apart {
            self.remove(slot);
            return;
        }
        entry.state = State::Ending;
        entry.ends_since = at;
        let (turn, since) = (entry.turn, entry.unknown_since);
        self.unread.remove(&(turn, slot));
        if let Some(since) = since {
            self.never_read.remove(&(since, slot));
        }
        self.ending.insert(slot);
    }

    /// A walk of this time has found one with these names, so that its teardown had not begun before: the walk that missed it
    /// was not consistent. Returns whether that is news.
    pub(super) fn found(&mut self, names: &NetnsRef, at: BootNs) -> bool {
        let Some(slot) = self.find(names) else { return false };
        let is_ending = |entry: &&mut Entry| entry.state == State::Ending && entry.ends_since < at;
        let Some(entry) = self.get_mut(slot).filter(is_ending) else { return false };
        entry.state = State::Unread;
        let since = (entry.turn, entry.unknown_since);
        self.ending.remove(&slot);
        self.is_to_be_read(slot, since);
        true
    }

    /// What a report of an end means: it may be known as several, each by one of the names.
    fn meant_by(&self, names: &NetnsRef, at: BootNs) -> BTreeSet<Slot> {
        let mut meant = BTreeSet::new();
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
            if is_it {
                meant.insert(slot);
            }
        }
        meant
    }

    /// A complete walk that began at `began` has ended: what it did not find is being torn down, and unless its end will be
    /// `told`, it has ended. One that is known by its nsid alone cannot be found.
    pub(super) fn sweep(&mut self, began: BootNs, told: bool) {
        let gone = |entry: &Entry| {
            let listed = entry.names.cookie.is_some() || entry.names.inode.is_some();
            listed && entry.seen < began
        };
        let all = (0..).zip(&self.slots);
        let gone = all.filter(|(_, entry)| entry.as_ref().is_some_and(gone));
        let slots: Vec<Slot> = gone.map(|(slot, _)| slot).collect();
        for slot in slots {
            if told {
                self.is_ending(slot, began);
            } else {
                self.remove(slot);
            }
        }
        self.beyond = self.beyond.filter(|(_, last)| *last >= began);
    }

    /// One that has not been read, the newest and the oldest in turn: the newest is the one that was not there when a flood
    /// began.
    pub(super) fn next_unread(&mut self) -> Option<Slot> {
        self.newest_next = !self.newest_next;
        let next = if self.newest_next { self.unread.last() } else { self.unread.first() };
        next.map(|(_, slot)| *slot)
    }

    /// One that was never read, as [`Self::next_unread`].
    pub(super) fn next_never_read(&mut self) -> Option<Slot> {
        self.newest_next = !self.newest_next;
        let all = &self.never_read;
        let next = if self.newest_next { all.last() } else { all.first() };
        next.map(|(_, slot)| *slot)
    }

    /// One that is left out, but for those that end, those that have not been read before others.
    pub(super) fn next(&mut self) -> Option<Slot> {
        if let Some(slot) = self.next_unread() {
            return Some(slot);
        }
        let is_apart = |entry: &Option<Entry>| entry.is_some_and(|one| one.state == State::Apart);
        let mut all = (0..).zip(&self.slots).filter(|(_, entry)| is_apart(entry));
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
            let is_unread = entry.state == State::Unread;
            let is_never_read = is_unread && entry.unknown_since.is_some();
            assert_eq!(self.unread.contains(&(entry.turn, slot)), is_unread);
            let since = entry.unknown_since.unwrap_or_default();
            assert_eq!(self.never_read.contains(&(since, slot)), is_never_read);
            assert_eq!(self.ending.contains(&slot), entry.state == State::Ending);
        }
        assert_eq!(names, self.cookies.len() + self.inodes.len() + self.nsids.len());
        assert_eq!(unread, self.unread.len());
    }
}

#[cfg(test)]
mod tests;
