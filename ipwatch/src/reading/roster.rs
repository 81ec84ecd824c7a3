//! Records which threads were left behind, and at what they hang. Bookkeeping only: no thread, no clock.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Target;
use super::execve::{self, Waits};

use crate::fact::BootNs;

/// Maximum number of threads that are left behind at once: each keeps half a megabyte of address space and its place in
/// the kernel until what it waits for answers.
pub const MOST_LEFT: usize = 8;

/// From this number on, `stack` and `pidfd_getfd`, which wait while a process is in `execve` (`exec_update_lock`), are
/// no longer read: one dead file server may hold the processes of a whole node there, and the other places are for
/// unforeseen cases.
const CAREFUL: usize = MOST_LEFT / 2;

/// Number of files of one process that may hang before none of its files is read any more.
const FILES_OF_ONE: usize = 2;

/// Maximum number of skipped processes whose start time is remembered.
const MOST_PASSED: usize = 1024;
/// Maximum number of them that a report names.
const NAMED: usize = 8;

/// A thread that hangs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    pub id: usize,
    /// The source that it works for.
    pub source: &'static str,
    /// What it hangs at.
    pub target: Target,
    pub since: BootNs,
}

impl Left {
    /// Adds the mount that its path is on.
    pub(super) fn with_mount(mut self, of: impl FnOnce(&Path) -> PathBuf) -> Self {
        if let Target::Path { path, mount } = &mut self.target {
            *mount = of(path);
        }
        self
    }
}

/// What must be done with a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: it works, is idle, or was already handled.
    Works,
    /// It hung and could not be replaced, and has returned.
    WorksAgain,
    /// It hangs at this target and is left behind: it must be replaced.
    LeftBehind(Target),
    /// It hangs and must not be replaced: a new one would hang too, or too many were left behind.
    Stalled,
}

#[derive(Debug, Default)]
pub struct Roster {
    left: Vec<Left>,
    /// Threads that hang and were not replaced.
    stalled: Vec<Left>,
    /// Processes in `execve` whose files are not read because those of another one hang, and since when.
    passed: BTreeMap<u32, BootNs>,
}

impl Roster {
    /// Number of threads that hang.
    #[must_use]
    pub fn len(&self) -> usize {
        self.left.len() + self.stalled.len()
    }

    /// Whether no thread hangs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Records a thread that hangs. Returns what must be done with it.
    pub fn hangs(&mut self, one: Left) -> Verdict {
        // The lock is the node's: a new thread would wait for the same.
        if one.target == Target::Rtnl || self.left.len() >= MOST_LEFT {
            if !self.stalled.iter().any(|other| other.id == one.id) {
                self.stalled.push(one);
            }
            return Verdict::Stalled;
        }
        self.unstalled(one.id);
        let target = one.target.clone();
        self.left.push(one);
        Verdict::LeftBehind(target)
    }

    /// Records that a thread that could not be replaced works. Returns whether it hung before.
    pub fn unstalled(&mut self, id: usize) -> bool {
        let before = self.stalled.len();
        self.stalled.retain(|one| one.id != id);
        self.stalled.len() < before
    }

    /// Records that a thread that was left behind has returned. Returns what it hung at.
    pub fn returned(&mut self, id: usize) -> Option<Target> {
        let at = self.left.iter().position(|one| one.id == id)?;
        let target = self.left.remove(at).target;
        if self.in_execve().next().is_none() {
            self.passed.clear();
        }
        Some(target)
    }

    /// Whether a reader of this target must first check that its process is not in `execve`: a file of another process,
    /// which waits for the same lock, hangs, and one dead server may have stopped many processes.
    #[must_use]
    pub fn is_wary_of(&self, target: &Target) -> bool {
        let Target::Process { file, .. } = target else { return false };
        execve::waits(file).is_some_and(|waits| self.in_execve().any(|hangs| hangs >= waits))
    }

    /// Since when a process that is in `execve` is skipped.
    pub fn passes_over(&mut self, pid: u32, now: BootNs) -> BootNs {
        let hangs = self.left.iter().find(|one| is_of(&one.target, pid)).map(|one| one.since);
        if let Some(since) = hangs.or_else(|| self.passed.get(&pid).copied()) {
            return since;
        }
        if self.passed.len() < MOST_PASSED {
            self.passed.insert(pid, now);
        }
        now
    }

    /// A process is not in `execve`, or no longer.
    pub fn has_answered(&mut self, pid: u32) {
        self.passed.remove(&pid);
    }

    /// Who waits for the locks of the hanging files (`exec_update_lock`), as far as known.
    fn in_execve(&self) -> impl Iterator<Item = Waits> {
        self.left.iter().filter_map(|one| match &one.target {
            Target::Process { file, .. } => execve::waits(file),
            _ => None,
        })
    }

    /// Since when it is known that a read of this target would hang.
    #[must_use]
    pub fn refuses(&self, target: &Target) -> Option<BootNs> {
        let like = |one: &&Left| alike(&one.target, target);
        if let Some(one) = self.left.iter().find(like) {
            return Some(one.since);
        }
        let Target::Process { pid, file } = target else { return None };
        let mut of_it = self.left.iter().filter(|one| is_of(&one.target, *pid));
        let first = of_it.next();
        if of_it.count() + 1 >= FILES_OF_ONE
            && let Some(first) = first
        {
            return Some(first.since);
        }
        let risky = file.ends_with("stack") || file.starts_with("pidfd");
        (risky && self.left.len() >= CAREFUL).then(|| self.left[0].since)
    }

    /// For each source, what hangs and for how long, as a sentence for people.
    #[must_use]
    pub fn report(&self, now: BootNs) -> Vec<(&'static str, String)> {
        let mut told: Vec<(&'static str, String)> = Vec::new();
        for one in self.left.iter().chain(&self.stalled) {
            let seconds = now.since(one.since) / 1_000_000_000;
            let mut text = format!("{} has not answered for {seconds} s", one.target);
            if one.target == Target::Rtnl {
                text.push_str(
                    ": a task holds rtnl_mutex. No IP changes meanwhile, and no new network namespace can be read",
                );
            }
            match told.iter_mut().find(|(source, _)| *source == one.source) {
                Some((_, all)) => {
                    all.push_str("; ");
                    all.push_str(&text);
                }
                None => told.push((one.source, text)),
            }
        }
        if let Some((_, all)) = told.first_mut().filter(|_| !self.passed.is_empty()) {
            let named: Vec<String> = self.passed.keys().take(NAMED).map(u32::to_string).collect();
            let more = self.passed.len() - named.len();
            all.push_str("; also in execve, and not read: pid ");
            all.push_str(&named.join(", "));
            if more > 0 {
                all.push_str(&format!(" and {more} more"));
            }
        }
        told
    }

    /// Whether a thread of this source hangs that could not be replaced, other than at rtnetlink: whatever only this
    /// thread could report is unknown.
    #[must_use]
    pub fn is_blind(&self, source: &str) -> bool {
        self.stalled.iter().any(|one| one.source == source && one.target != Target::Rtnl)
    }
}

/// Whether a reader of `target` would hang like the reader of `hangs`.
fn alike(hangs: &Target, target: &Target) -> bool {
    match (hangs, target) {
        (Target::Path { path: at, mount }, Target::Path { path, .. }) => {
            let on_it = !mount.as_os_str().is_empty() && path.starts_with(mount);
            on_it || path.starts_with(at)
        }
        (hangs, target) => hangs == target,
    }
}

fn is_of(target: &Target, of: u32) -> bool {
    matches!(target, Target::Process { pid, .. } if *pid == of)
}
