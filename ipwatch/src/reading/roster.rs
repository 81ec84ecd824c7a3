//! Which threads were left behind, and at what. Bookkeeping alone: no thread, no clock.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Target;
use super::execve::{self, Waits};

use crate::fact::BootNs;

/// Threads that may be left behind at once: each keeps half a megabyte of address space and its place in the kernel
/// until what it waits for answers.
pub const MOST_LEFT: usize = 8;

/// From so many on nothing is read that is known to hang while a process is in `execve` (`exec_update_lock`): one
/// dead file server may hold a whole node's processes there, and the other places are for what nobody foresaw.
const CAREFUL: usize = MOST_LEFT / 2;

/// Files of one process that may hang before none of it is read any more.
const FILES_OF_ONE: usize = 2;

/// Processes of which it is remembered since when they are passed over.
const MOST_PASSED: usize = 1024;
/// Of those as many are named.
const NAMED: usize = 8;

/// A thread that hangs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    pub id: usize,
    /// The source that it works for.
    pub source: &'static str,
    /// At what.
    pub target: Target,
    pub since: BootNs,
}

impl Left {
    /// With the mount that its path lies on.
    pub(super) fn with_mount(mut self, of: impl FnOnce(&Path) -> PathBuf) -> Self {
        if let Target::Path { path, mount } = &mut self.target {
            *mount = of(path);
        }
        self
    }
}

/// What is to become of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It works, or has nothing to do, or was dealt with.
    Works,
    /// It hung and could not be replaced, and has come back.
    WorksAgain,
    /// It hangs at this and is left behind: another one takes its place.
    LeftBehind(Target),
    /// It hangs, and another one would hang too, or there were too many before it.
    Stalled,
}

/// The threads that hang.
#[derive(Debug, Default)]
pub struct Roster {
    left: Vec<Left>,
    /// Those that hang and were not replaced.
    stalled: Vec<Left>,
    /// Processes in `execve` whose files are not read, and since when, because those of another one hang.
    passed: BTreeMap<u32, BootNs>,
}

impl Roster {
    /// How many hang.
    #[must_use]
    pub fn len(&self) -> usize {
        self.left.len() + self.stalled.len()
    }

    /// Nothing hangs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A thread hangs: what is to become of it.
    pub fn hangs(&mut self, one: Left) -> Verdict {
        // The lock is the node's: whoever asks next waits for the same.
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

    /// A thread that could not be replaced works; whether it did not before.
    pub fn unstalled(&mut self, id: usize) -> bool {
        let before = self.stalled.len();
        self.stalled.retain(|one| one.id != id);
        self.stalled.len() < before
    }

    /// A thread that was left behind has come back: what it hung at.
    pub fn returned(&mut self, id: usize) -> Option<Target> {
        let at = self.left.iter().position(|one| one.id == id)?;
        let target = self.left.remove(at).target;
        if self.in_execve().next().is_none() {
            self.passed.clear();
        }
        Some(target)
    }

    /// Whether a reader of this is to know first that its process is in no `execve`: another process's file hangs that
    /// waits for the same lock, and what one dead server did to one it may have done to many.
    #[must_use]
    pub fn is_wary_of(&self, target: &Target) -> bool {
        let Target::Process { file, .. } = target else { return false };
        execve::waits(file).is_some_and(|waits| self.in_execve().any(|hangs| hangs >= waits))
    }

    /// Since when a process is passed over, which is in `execve`.
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

    /// A process is in no `execve`, or no longer.
    pub fn has_answered(&mut self, pid: u32) {
        self.passed.remove(&pid);
    }

    /// For whom the files wait that hang by `exec_update_lock`, as far as can be told.
    fn in_execve(&self) -> impl Iterator<Item = Waits> {
        self.left.iter().filter_map(|one| match &one.target {
            Target::Process { file, .. } => execve::waits(file),
            _ => None,
        })
    }

    /// Since when it is known that a read of this would hang.
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

    /// Of each source what hangs, and for how long: a sentence for people.
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

    /// Whether a thread of this source hangs that could not be replaced, other than at rtnetlink: whatever it alone
    /// could tell is unknown.
    #[must_use]
    pub fn is_blind(&self, source: &str) -> bool {
        self.stalled.iter().any(|one| one.source == source && one.target != Target::Rtnl)
    }
}

/// Whoever reads the one hangs at the other.
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
