//! Whose a record or a fact is: the canary's, or the node's.
//!
//! The netns are known by name before anything happens in them. Their making is an event itself, which tells a name
//! that nobody knows yet: until the stage has said which ones they are, a few milliseconds, nobody hands facts on and no
//! ring buffer is read ([`Claims::settled`]). What comes meanwhile waits where it would wait for a busy daemon.
//!
//! A netns is recognised by its cookie. Where only the inode is known, which the kernel hands out again at once
//! (`ns_free_inum`), it is the canary's from the start of the stage to its end; after that the rest of its teardown alone
//! is. We give its netns no nsid, but somebody else on the node may, and netlink then tells of them by that alone:
//! see `nsids`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::nsids::{Doors, Nsids};
use super::marks::{self, Mark, Who};
use crate::clock;
use crate::fact::{BootNs, Fact, Holder, NetnsRef, Observation, Origin, TaskKey};

pub(super) mod nsids;

/// Tasks of one run that are remembered. It makes six.
const MOST_TASKS: usize = 256;
/// Netns that are remembered: of the last four runs.
const MOST_NAMES: usize = 8;
/// A teardown may wait behind another one that hangs. After this its netns has appeared nowhere for so long that it
/// never will.
const FORGET_AFTER: u64 = 600_000_000_000;
/// How long a netns is remembered after its end: records of another ring buffer are read later, and a list that was
/// begun before may name it.
const TOLD_LATE: u64 = 60_000_000_000;
/// How long the end of a netns of which only the inode is told still means the canary's when the stage is gone. All else
/// that happens after that is another netns's: the kernel may give the inode to a new one at any time.
const INODE_LASTS: u64 = 2_000_000_000;
/// Between two looks whether facts may go on.
const PAUSE: Duration = Duration::from_millis(1);

/// What is the canary's. Shared by everything through which facts go.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// There is anything to look for.
    active: AtomicBool,
    /// Facts wait until this moment on the boot clock, at the latest.
    hold_until: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The stage's process, while it runs.
    stage: Option<u32>,
    names: Vec<Name>,
    /// Its tasks, and those of its plugins.
    tasks: BTreeSet<TaskKey>,
    /// What was seen in this run, and how many nanoseconds after it happened.
    marks: BTreeMap<Mark, u64>,
    /// When the stage of the last run was started: before, none of its netns was there.
    born: BootNs,
    nsids: Nsids,
    /// The netns walk has last seen a netns of the canary's waiting for its teardown.
    queued: Option<BootNs>,
}

/// A netns of the canary's.
#[derive(Debug, Clone, Copy)]
struct Name {
    netns: NetnsRef,
    born: BootNs,
    /// When its last task went.
    left: Option<BootNs>,
    /// When its teardown ended.
    gone: Option<BootNs>,
    /// Its inode was given to another netns: of what happens later, its end alone is of this one.
    reused: bool,
}

impl Name {
    /// Whether a record is about it. Where only one side knows the cookie (the kernel has it from 5.12 on, and tells it
    /// by `SO_NETNS_COOKIE` from 5.14 on), the inode decides.
    fn is_of(&self, seen: &marks::Seen) -> bool {
        if let Some(cookie) = self.netns.cookie.filter(|_| seen.netns.cookie != 0) {
            return cookie == seen.netns.cookie;
        }
        let inode = seen.netns.inode != 0 && self.netns.inode == Some(seen.netns.inode);
        inode && seen.at >= self.born.0 && self.lasts(seen)
    }

    /// Whether its inode was its own when this happened.
    fn lasts(&self, seen: &marks::Seen) -> bool {
        let torn_down = matches!(seen.mark, Some(Mark::Dying | Mark::Gone));
        let ended = self.gone.is_some_and(|gone| seen.at > gone.0);
        match self.left {
            // The stage holds it: the netns that ends is the one that had the inode before.
            None => !torn_down,
            Some(_) if torn_down && self.reused => {
                seen.mark == Some(Mark::Gone) && self.gone.is_none()
            }
            Some(left) if seen.at <= left.0 => true,
            Some(_) => seen.ends && !self.reused && !ended,
        }
    }

    /// The same for a netns that a fact names; `ends`: it is the end of a netns.
    fn is_named(&self, netns: &NetnsRef, at: BootNs, ends: bool) -> bool {
        if let (Some(one), Some(other)) = (self.netns.cookie, netns.cookie) {
            return one == other;
        }
        let inode = netns.inode.is_some() && self.netns.inode == netns.inode;
        // A list is as old as its beginning: what it names may have come meanwhile.
        let begun = !ends || self.left.is_some() && at >= self.born;
        inode && begun && !self.reused && self.left.is_none_or(|left| at <= left)
    }
}

impl Claims {
    /// A run begins: `stage` is the process that is to make its netns.
    pub(super) fn begin(&self, stage: u32) {
        let mut state = self.state();
        state.stage = Some(stage);
        state.tasks.clear();
        state.marks.clear();
        state.queued = None;
        state.born = clock::now();
        self.active.store(true, Ordering::Release);
    }

    /// The stage is about to make them. Everybody waits until it has, but no longer than this.
    pub(crate) fn hold(&self, most: Duration) {
        let until = clock::now().plus(most.as_nanos() as u64);
        self.hold_until.store(until.0, Ordering::Release);
    }

    /// These are its netns.
    pub(super) fn know(&self, netns: [NetnsRef; 2], doors: Option<Doors>) {
        let mut state = self.state();
        let born = state.born;
        state.nsids.begin(doors);
        state.names.extend(netns.map(|netns| Name {
            netns,
            born,
            left: None,
            gone: None,
            reused: false,
        }));
        let excess = state.names.len().saturating_sub(MOST_NAMES);
        state.names.drain(..excess);
        self.hold_until.store(0, Ordering::Release);
    }

    /// The stage is gone; what the kernel tells of its netns from now on is the end of them.
    pub(super) fn left(&self) {
        // Before the doors close: as long as they hold the netns nobody else gets its inode.
        let now = clock::now();
        let mut state = self.state();
        state.stage = None;
        state.nsids.end(now);
        for name in &mut state.names {
            name.left.get_or_insert(now);
        }
        self.hold_until.store(0, Ordering::Release);
    }

    /// A stage runs, or hangs.
    pub(super) fn is_on_stage(&self) -> bool {
        self.state().stage.is_some()
    }

    /// What was seen of this run.
    pub(super) fn marks(&self) -> BTreeMap<Mark, u64> {
        self.state().marks.clone()
    }

    /// Whether a netns walk since `since` has seen a netns of the canary's waiting for its teardown.
    pub(super) fn is_queued(&self, since: BootNs) -> bool {
        self.state().queued.is_some_and(|at| at >= since)
    }

    /// Whether facts have to wait.
    pub(crate) fn is_held(&self) -> bool {
        let until = self.hold_until.load(Ordering::Acquire);
        until != 0 && clock::now().0 < until
    }

    /// Waits until facts may go on: not at all but for the few milliseconds in which the netns are made.
    pub(crate) async fn settled(&self) {
        while self.is_held() {
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The same on a thread of one's own.
    pub(crate) fn settled_blocking(&self) {
        while self.is_held() {
            std::thread::sleep(PAUSE);
        }
    }

    /// Whether a record of the kernel half is the canary's. It is then noted here, and nobody else is to see it.
    pub(crate) fn claims(&self, record: &[u8]) -> bool {
        if !self.active.load(Ordering::Acquire) {
            return false;
        }
        let Some(seen) = marks::read(record) else { return false };
        let now = clock::now();
        let mut state = self.state();
        let ours = state.is_ours(&seen);
        if ours && let Some(mark) = seen.mark {
            state.marks.entry(mark).or_insert(now.0.saturating_sub(seen.at));
        }
        if ours && seen.mark == Some(Mark::Gone) {
            let gone = BootNs(seen.at);
            for name in state.names.iter_mut().filter(|name| name.is_of(&seen)) {
                name.gone.get_or_insert(gone);
            }
        }
        self.rest(&mut state, now);
        ours
    }

    /// Takes the canary's facts out.
    pub(crate) fn admit(&self, facts: &mut Vec<Fact>) {
        if !self.active.load(Ordering::Acquire) {
            return;
        }
        let now = clock::now();
        let mut state = self.state();
        facts.retain(|fact| {
            let ours = state.takes(fact, now);
            if ours {
                tracing::trace!(?fact, "the canary's");
            }
            !ours
        });
        self.rest(&mut state, now);
    }

    /// Looks no further when nothing is left to look for.
    fn rest(&self, state: &mut State, now: BootNs) {
        let within = |moment: Option<BootNs>, most| moment.is_none_or(|at| now.since(at) < most);
        state.names.retain(|name| within(name.left, FORGET_AFTER) && within(name.gone, TOLD_LATE));
        state.nsids.rest(now);
        if state.names.is_empty() && state.nsids.is_empty() && state.stage.is_none() {
            self.active.store(false, Ordering::Release);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Whatever a thread left here that died: at worst a fact too many is told.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_ours(&mut self, seen: &marks::Seen) -> bool {
        let nowhere = seen.netns.inode == 0 && seen.netns.cookie == 0;
        let there = match seen.mark {
            Some(Mark::Created) => self.is_made(seen),
            _ => self.names.iter().any(|name| name.is_of(seen)),
        };
        match seen.who {
            Who::Netns => there,
            Who::Task(task) if there || (nowhere && self.tasks.contains(&task)) => {
                self.learn(task);
                true
            }
            Who::Task(task) => {
                let leaves = self.tasks.remove(&task);
                // The stage's own, before it has said which netns is its.
                !leaves && !nowhere && self.stage == Some(task.pid)
            }
            Who::Call(task, ours) if ours && self.stage.is_some() => {
                self.learn(task);
                true
            }
            Who::Call(..) => false,
            Who::CallEnd(task) => self.tasks.contains(&task),
        }
    }

    /// Whether the netns that was made is the canary's. One with an inode of a past one is not: it has it from there.
    fn is_made(&mut self, seen: &marks::Seen) -> bool {
        let cookie = |name: &Name| name.netns.cookie.is_some() && seen.netns.cookie != 0;
        for name in &mut self.names {
            name.reused |=
                name.left.is_some() && !cookie(name) && name.netns.inode == Some(seen.netns.inode);
        }
        self.names.iter().any(|name| !name.reused && name.is_of(seen))
    }

    fn learn(&mut self, task: TaskKey) {
        if self.tasks.len() < MOST_TASKS {
            self.tasks.insert(task);
        }
    }

    /// Whether a fact is the canary's. What it shows is noted.
    fn takes(&mut self, fact: &Fact, now: BootNs) -> bool {
        if let Some(nsid) = place(&fact.what).and_then(by_nsid) {
            return match fact.what {
                Observation::Netns { .. } => self.nsids.given(nsid),
                Observation::NetnsDying { .. } => self.nsids.taken(nsid),
                _ => self.nsids.is_ours(nsid),
            };
        }
        let (ours, mark) = match &fact.what {
            Observation::Lost { .. } => {
                // That an nsid was taken away may be among it.
                self.nsids.forget();
                (false, None)
            }
            Observation::Netns { netns } => {
                (self.is_named(netns, fact.at), Some(Mark::NetnsListed))
            }
            Observation::Task(task) => {
                let ours = self.is_named(&task.netns, fact.at) || self.stage == Some(task.key.pid);
                if ours {
                    // Its end names no netns.
                    self.learn(task.key);
                }
                (ours, Some(Mark::TaskListed))
            }
            Observation::Holder { netns, holder } => {
                let fd = matches!(holder, Holder::Fd { .. });
                (self.is_named(netns, fact.at), fd.then_some(Mark::FileListed))
            }
            Observation::NetnsDying { netns } => {
                // As if it had begun before the stage went, which is what began it.
                let began = BootNs(fact.at.0.saturating_sub(INODE_LASTS));
                let ours = self.names.iter().any(|name| {
                    let began = BootNs(began.0.max(name.born.0).min(fact.at.0));
                    name.is_named(netns, began, true)
                });
                if ours {
                    self.queued = Some(fact.at);
                }
                (ours, None)
            }
            Observation::TaskExiting { task } | Observation::TaskReleased { task } => {
                (self.tasks.contains(task), None)
            }
            Observation::NetnsGone { netns } | Observation::NetnsClosed { netns } => {
                (self.names.iter().any(|name| name.is_named(netns, fact.at, true)), None)
            }
            // Of a child that was killed and is slow to go. Somebody else who kills one of them, or the stage, is told.
            Observation::Signalled { by, .. } => {
                (self.stage.is_some_and(|stage| stage == by.pid), None)
            }
            what => (place(what).is_some_and(|netns| self.is_named(netns, fact.at)), None),
        };
        if ours
            && fact.origin == Origin::Snapshot
            && let Some(mark) = mark
        {
            self.marks.entry(mark).or_insert(now.since(fact.at));
        }
        ours
    }

    /// Whether a netns that was there at this time is the canary's.
    fn is_named(&self, netns: &NetnsRef, at: BootNs) -> bool {
        self.names.iter().any(|name| name.is_named(netns, at, false))
    }
}

/// The netns of a fact that has one.
fn place(what: &Observation) -> Option<&NetnsRef> {
    match what {
        Observation::Netns { netns }
        | Observation::NetnsCreated { netns }
        | Observation::NetnsDying { netns }
        | Observation::NetnsUser { netns, .. }
        | Observation::PeerNetns { netns, .. }
        | Observation::Port { netns, .. }
        | Observation::Vlans { netns, .. }
        | Observation::NetnsGone { netns }
        | Observation::NetnsClosed { netns }
        | Observation::Link { netns, .. }
        | Observation::LinkGone { netns, .. }
        | Observation::Address { netns, .. }
        | Observation::AddressGone { netns, .. }
        | Observation::DadFailed { netns, .. }
        | Observation::Neighbour { netns, .. }
        | Observation::NeighbourGone { netns, .. }
        | Observation::Claimed { netns, .. }
        | Observation::Route { netns, .. }
        | Observation::RouteGone { netns, .. }
        | Observation::HoldersSearched { netns, .. } => Some(netns),
        _ => None,
    }
}

/// The nsid of a netns of which nothing else is known.
fn by_nsid(netns: &NetnsRef) -> Option<i32> {
    netns.nsid.filter(|_| netns.cookie.is_none() && netns.inode.is_none())
}

#[cfg(test)]
mod tests;
