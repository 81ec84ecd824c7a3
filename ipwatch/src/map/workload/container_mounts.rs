//! Mounts of dead containers that are left in a mount namespace.
//!
//! The search is made only after a container died, for a batch at a time, and repeated only while mounts are left: a
//! node where nothing dies reads no mountinfo.
//!
//! A pod that starts while another one ends has the file systems of that one until they are removed. The search begins a
//! grace after the death and passes over that. Of a container that was dead when ipwatch started nobody knows since when:
//! its mounts count if two searches found them. And what only processes have that are younger than the grace is no
//! leftover yet; it is searched for again when they are older.

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
    /// The time before that.
    before: Option<BootNs>,
    /// How often it was found.
    looks: u32,
}

impl Leftover {
    /// When its processes have been there for a grace.
    fn settles(&self, thresholds: &Thresholds) -> BootNs {
        self.mount.started.map_or(BootNs::default(), |at| at.plus(thresholds.sandbox_grace))
    }

    /// Whether they had been when it was last found.
    fn is_settled(&self, thresholds: &Thresholds) -> bool {
        self.settles(thresholds) <= self.seen
    }

    /// When it is to be searched for again, if before the others.
    fn due(&self, thresholds: &Thresholds) -> Option<BootNs> {
        let settles = self.settles(thresholds);
        if settles > self.seen {
            return Some(settles);
        }
        // The second look at what had not settled before.
        let fresh = self.before.is_some_and(|before| before < settles);
        fresh.then(|| self.seen.plus(thresholds.second_look))
    }
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
    /// When to search, if of the mounts that are left one is to be searched for at `sooner`.
    fn due(self, thresholds: &Thresholds, sooner: Option<BootNs>) -> Option<BootNs> {
        match self {
            Stage::Fresh(dead) => Some(dead.plus(thresholds.sandbox_grace)),
            Stage::Found(at) => Some(at.plus(thresholds.second_look)),
            Stage::Watched { searched, .. } => {
                let again = searched.plus(SEARCH_AGAIN);
                // What was due by then is being searched for.
                Some(sooner.filter(|at| *at > searched).map_or(again, |at| at.min(again)))
            }
            Stage::Clean => None,
        }
    }
}

/// A dead container.
#[derive(Debug)]
struct Suspect {
    stage: Stage,
    /// How often a mount is found before it counts.
    enough: u32,
}

#[derive(Debug, Default)]
pub(in crate::map) struct ContainerMounts {
    suspects: BTreeMap<String, Suspect>,
    mounts: BTreeMap<(String, u64, String), Leftover>,
    searched: BootNs,
    /// When the next search is due, if nothing changes.
    next: Option<BootNs>,
    changed: bool,
}

impl ContainerMounts {
    /// The container died; `None`: before its runtime was asked for the first time.
    pub(in crate::map) fn suspect(&mut self, id: &str, dead: Option<BootNs>) {
        if !self.suspects.contains_key(id) && self.suspects.len() < MAX_SUSPECTS {
            let stage = Stage::Fresh(dead.unwrap_or_default());
            let enough = if dead.is_some() { 1 } else { 2 };
            self.suspects.insert(id.to_owned(), Suspect { stage, enough });
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
        let open = |suspect: &Suspect| matches!(suspect.stage, Stage::Fresh(_) | Stage::Found(_));
        self.suspects.values().any(open)
    }

    /// Whether a mount of the container is left.
    pub(in crate::map) fn holds(&self, id: &str) -> bool {
        self.of(id).next().is_some()
    }

    /// The mounts of a container.
    fn of<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a Leftover> {
        let from = (id.to_owned(), 0, String::new());
        self.mounts.range(from..).take_while(move |((owner, ..), _)| owner == id).map(|(_, it)| it)
    }

    /// When to search for the mounts of a container.
    fn due_of(&self, id: &str, stage: Stage, thresholds: &Thresholds) -> Option<BootNs> {
        let sooner = self.of(id).filter_map(|leftover| leftover.due(thresholds)).min();
        let due = stage.due(thresholds, sooner)?;
        let gathered = matches!(stage, Stage::Fresh(_));
        Some(if gathered { due.max(self.searched.plus(GATHER)) } else { due })
    }

    /// Applies the result of a search that began at `began`.
    fn searched(&mut self, id: &str, complete: bool, began: BootNs) {
        if complete {
            self.mounts.retain(|(owner, ..), known| owner != id || known.seen >= began);
        }
        let left = self.holds(id);
        let fewest = self.of(id).map(|known| known.looks).min();
        let Some(suspect) = self.suspects.get_mut(id) else { return };
        let missed = match suspect.stage {
            Stage::Watched { incomplete, .. } => incomplete,
            _ => 0,
        };
        // Each counts after that many, and fires after one more.
        let look_again = fewest.is_some_and(|looks| looks <= suspect.enough);
        suspect.stage = match (left, complete) {
            (true, true) if look_again => Stage::Found(began),
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
        let due: Vec<String> = self
            .suspects
            .iter()
            .filter(|(id, suspect)| {
                self.due_of(id, suspect.stage, thresholds).is_some_and(|due| due <= now)
            })
            .map(|(id, _)| id.clone())
            .take(BATCH)
            .collect();
        for id in &due {
            // Until the answer arrives; without an answer the search is repeated.
            let Some(suspect) = self.suspects.get_mut(id) else { continue };
            let incomplete = match suspect.stage {
                Stage::Watched { incomplete, .. } => incomplete,
                _ => 0,
            };
            suspect.stage = Stage::Watched { searched: now, incomplete };
        }
        if !due.is_empty() {
            self.searched = now;
        }
        let due_of =
            |(id, suspect): (&String, &Suspect)| self.due_of(id, suspect.stage, thresholds);
        self.next = self.suspects.iter().filter_map(due_of).min();
        self.changed = false;
        due
    }
}

impl NodeMap {
    pub(in crate::map) fn set_container_mount(&mut self, mount: &ContainerMount, at: BootNs) {
        let ContainerMounts { mounts, .. } = &mut self.workload.container_mounts;
        let key = (mount.container_id.clone(), mount.mount_ns, mount.path.clone());
        let known = mounts.get(&key);
        let first_seen = known.map_or(at, |known| known.first_seen);
        let before = known.map(|known| known.seen);
        let looks = known.map_or(0, |known| known.looks).saturating_add(1);
        if mounts.len() < MAX_MOUNTS || known.is_some() {
            let leftover = Leftover { mount: mount.clone(), first_seen, seen: at, before, looks };
            mounts.insert(key, leftover);
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

    /// Mounts of dead containers that the last search found, and that count.
    pub fn leftovers(&self, thresholds: &Thresholds) -> impl Iterator<Item = &Leftover> {
        let ContainerMounts { mounts, suspects, .. } = &self.workload.container_mounts;
        mounts.values().filter(|leftover| {
            let suspect = suspects.get(&leftover.mount.container_id);
            leftover.is_settled(thresholds)
                && suspect.is_none_or(|suspect| leftover.looks >= suspect.enough)
        })
    }
}
