//! Mounts of dead containers that are left in a mount namespace.
//!
//! The search is made only after a container died, for a batch at a time, and repeated only while mounts are left: a
//! node where nothing dies reads no mountinfo.

use std::collections::BTreeMap;

use crate::fact::{BootNs, ContainerMount};

use crate::map::request::Request;
use crate::map::{NodeMap, Thresholds};

/// Maximum number of dead containers that are tracked.
const MAX_SUSPECTS: usize = 8192;
/// Maximum number of mounts.
const MAX_MOUNTS: usize = 4096;
/// Maximum number of ids in one search.
const BATCH: usize = 1024;
/// Minimum interval between first searches, so that several deaths share one.
const GATHER: u64 = 5_000_000_000;
/// Interval between searches while mounts are left, or no answer comes.
const SEARCH_AGAIN: u64 = 60_000_000_000;
/// Number of incomplete searches after which to give up.
const MAX_INCOMPLETE: u32 = 3;

#[derive(Debug, Clone)]
pub struct Leftover {
    pub mount: ContainerMount,
    /// When it was first found.
    pub first_seen: BootNs,
    /// When it was last found.
    pub seen: BootNs,
}

/// Progress of the search for a dead container's mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Dead since then, not yet searched for.
    Fresh(BootNs),
    /// To be searched for again soon: the first search found mounts.
    Found(BootNs),
    /// Searched for again and again: mounts are left, or could not be ruled out.
    Watched { searched: BootNs, incomplete: u32 },
    /// No mount is left. A dead container makes no new ones.
    Clean,
}

impl Stage {
    fn due(self, thresholds: &Thresholds) -> Option<BootNs> {
        match self {
            Stage::Fresh(dead) => Some(dead.plus(thresholds.sandbox_grace)),
            Stage::Found(at) => Some(at.plus(thresholds.second_look)),
            Stage::Watched { searched, .. } => Some(searched.plus(SEARCH_AGAIN)),
            Stage::Clean => None,
        }
    }
}

#[derive(Debug, Default)]
pub(in crate::map) struct ContainerMounts {
    suspects: BTreeMap<String, Stage>,
    mounts: BTreeMap<(String, u64, String), Leftover>,
    searched: BootNs,
    /// When the next search is due, if nothing changes.
    next: Option<BootNs>,
    changed: bool,
}

impl ContainerMounts {
    /// The container died.
    pub(in crate::map) fn suspect(&mut self, id: &str, dead: BootNs) {
        if !self.suspects.contains_key(id) && self.suspects.len() < MAX_SUSPECTS {
            self.suspects.insert(id.to_owned(), Stage::Fresh(dead));
            self.changed = true;
        }
    }

    /// The container lives after all, or is forgotten.
    pub(in crate::map) fn acquit(&mut self, id: &str) {
        if self.suspects.remove(id).is_some() {
            self.mounts.retain(|(owner, ..), _| owner != id);
            self.changed = true;
        }
    }

    /// Whether a first or second search is still to be made.
    pub(in crate::map) fn is_searching(&self) -> bool {
        let open = |stage: &Stage| matches!(stage, Stage::Fresh(_) | Stage::Found(_));
        self.suspects.values().any(open)
    }

    /// Whether a mount of the container is left.
    pub(in crate::map) fn holds(&self, id: &str) -> bool {
        let from = (id.to_owned(), 0, String::new());
        self.mounts.range(from..).next().is_some_and(|((owner, ..), _)| owner == id)
    }

    /// Applies the result of a search that began at `began`.
    fn searched(&mut self, id: &str, complete: bool, began: BootNs) {
        if complete {
            self.mounts.retain(|(owner, ..), known| owner != id || known.seen >= began);
        }
        let left = self.holds(id);
        let Some(stage) = self.suspects.get_mut(id) else { return };
        let missed = match stage {
            Stage::Watched { incomplete, .. } => *incomplete,
            _ => 0,
        };
        let first = self
            .mounts
            .range((id.to_owned(), 0, String::new())..)
            .take_while(|((owner, ..), _)| owner == id)
            .any(|(_, known)| known.first_seen == known.seen);
        *stage = match (left, complete) {
            (true, true) if first => Stage::Found(began),
            (true, _) => Stage::Watched { searched: began, incomplete: 0 },
            (false, false) if missed < MAX_INCOMPLETE => {
                Stage::Watched { searched: began, incomplete: missed + 1 }
            }
            (false, _) => Stage::Clean,
        };
        self.changed = true;
    }

    /// The ids to search for at `now`; updates `next`.
    fn due(&mut self, now: BootNs, thresholds: &Thresholds) -> Vec<String> {
        if !self.changed && self.next.is_none_or(|next| next > now) {
            return Vec::new();
        }
        let earliest = |stage: Stage| {
            let due = stage.due(thresholds)?;
            let gathered = matches!(stage, Stage::Fresh(_));
            Some(if gathered { due.max(self.searched.plus(GATHER)) } else { due })
        };
        let due: Vec<String> = self
            .suspects
            .iter()
            .filter(|(_, stage)| earliest(**stage).is_some_and(|due| due <= now))
            .map(|(id, _)| id.clone())
            .take(BATCH)
            .collect();
        for id in &due {
            // Until the answer arrives; without an answer the search is repeated.
            let incomplete = match self.suspects.get(id) {
                Some(Stage::Watched { incomplete, .. }) => *incomplete,
                _ => 0,
            };
            self.suspects.insert(id.clone(), Stage::Watched { searched: now, incomplete });
        }
        if !due.is_empty() {
            self.searched = now;
        }
        let earliest = |stage: &Stage| match stage {
            Stage::Fresh(_) => stage.due(thresholds).map(|due| due.max(self.searched.plus(GATHER))),
            stage => stage.due(thresholds),
        };
        self.next = self.suspects.values().filter_map(earliest).min();
        self.changed = false;
        due
    }
}

impl NodeMap {
    pub(in crate::map) fn set_container_mount(&mut self, mount: &ContainerMount, at: BootNs) {
        let ContainerMounts { mounts, .. } = &mut self.workload.container_mounts;
        let key = (mount.container_id.clone(), mount.mount_ns, mount.path.clone());
        let first_seen = mounts.get(&key).map_or(at, |known| known.first_seen);
        if mounts.len() < MAX_MOUNTS || mounts.contains_key(&key) {
            mounts.insert(key, Leftover { mount: mount.clone(), first_seen, seen: at });
        }
    }

    /// A search has ended; what it found was reported with times not before `at`.
    pub(in crate::map) fn container_mounts_searched(
        &mut self,
        ids: &[String],
        complete: bool,
        at: BootNs,
    ) {
        for id in ids {
            self.workload.container_mounts.searched(id, complete, at);
        }
    }

    /// Requests a search if one is due. Returns when to call this again.
    pub(in crate::map) fn want_container_mounts(
        &mut self,
        now: BootNs,
        thresholds: &Thresholds,
        wants: &mut Vec<Request>,
    ) -> Option<BootNs> {
        let ids = self.workload.container_mounts.due(now, thresholds);
        if !ids.is_empty() {
            wants.push(Request::ContainerMounts { ids });
        }
        self.workload.container_mounts.next
    }

    /// Mounts of dead containers that the last search found.
    pub fn leftovers(&self) -> impl Iterator<Item = &Leftover> {
        self.workload.container_mounts.mounts.values()
    }
}
