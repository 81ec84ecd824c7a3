//! The tasks of one netns, and which of them are leaving: exiting, killed or unreadable. Each kind is found without a walk
//! over the other, because whoever has thousands of one must not make each look for the other slow.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::fact::TaskKey;

/// See the [module's documentation](self).
#[derive(Debug, Default)]
pub(in crate::map) struct Residents {
    /// Each with its cgroup, if known.
    all: BTreeMap<TaskKey, Option<Rc<str>>>,
    staying: BTreeSet<TaskKey>,
    leaving: BTreeSet<TaskKey>,
}

impl Residents {
    pub(in crate::map) fn len(&self) -> usize {
        self.all.len()
    }

    pub(in crate::map) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(in crate::map) fn keys(&self) -> impl ExactSizeIterator<Item = &TaskKey> {
        self.all.keys()
    }

    /// Each with its cgroup, if known.
    pub(in crate::map) fn iter(&self) -> impl Iterator<Item = (&TaskKey, &Option<Rc<str>>)> {
        self.all.iter()
    }

    /// The known cgroups.
    pub(super) fn cgroups(&self) -> impl Iterator<Item = &Rc<str>> {
        self.all.values().flatten()
    }

    /// Those that are not leaving.
    pub(super) fn staying(&self) -> &BTreeSet<TaskKey> {
        &self.staying
    }

    /// Those that are leaving.
    pub(super) fn leaving(&self) -> &BTreeSet<TaskKey> {
        &self.leaving
    }

    pub(super) fn insert(&mut self, key: TaskKey, cgroup: Option<Rc<str>>, is_leaving: bool) {
        self.all.insert(key, cgroup);
        self.set_leaving(key, is_leaving);
    }

    /// Sets the cgroup of one that is there.
    pub(super) fn set_cgroup(&mut self, key: TaskKey, cgroup: Option<Rc<str>>) {
        if let Some(known) = self.all.get_mut(&key) {
            *known = cgroup;
        }
    }

    /// One that is there begins to leave, or stays after all.
    pub(super) fn set_leaving(&mut self, key: TaskKey, is_leaving: bool) {
        if !self.all.contains_key(&key) {
            return;
        }
        let (from, to) = match is_leaving {
            true => (&mut self.staying, &mut self.leaving),
            false => (&mut self.leaving, &mut self.staying),
        };
        from.remove(&key);
        to.insert(key);
    }

    /// Returns whether it was there.
    pub(super) fn remove(&mut self, key: &TaskKey) -> bool {
        self.staying.remove(key);
        self.leaving.remove(key);
        self.all.remove(key).is_some()
    }

    /// Takes those of an entry that turned out to be the same netns.
    pub(super) fn append(&mut self, other: &mut Self) {
        for (key, cgroup) in std::mem::take(&mut other.all) {
            self.insert(key, cgroup, other.leaving.contains(&key));
        }
        *other = Self::default();
    }
}
