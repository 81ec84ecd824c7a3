//! Whose a record or a fact is: the canary's, or the node's.
//!
//! The netns are known by name before anything happens in them. Their making is an event itself, which tells a name
//! that nobody knows yet: until the stage has said which ones they are, a few milliseconds, nobody hands facts on and no
//! ring buffer is read ([`Claims::settled`]). What comes meanwhile waits where it would wait for a busy daemon.
//!
//! We give its netns no nsid, but somebody else on the node may, `ipwatch scan` for one: then netlink tells of them by that
//! alone. So an nsid that was not met before is compared with theirs, as long as the stage is there.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ipwatch_common::Netns;

use super::marks::{self, Mark, Who};
use crate::clock;
use crate::fact::{BootNs, Fact, Holder, NetnsRef, Origin, TaskKey, What};
use crate::sources::netlink::Numbers;

/// Tasks of one run that are remembered. It makes six.
const MOST_TASKS: usize = 256;
/// Netns that are remembered: of the last four runs.
const MOST_NAMES: usize = 8;
/// Nsids that are remembered within one run.
const MOST_NSIDS: usize = 4096;
/// A teardown may wait behind another one that hangs. After this its netns has appeared nowhere for so long that it
/// never will.
const FORGET_AFTER: u64 = 600_000_000_000;
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
    /// The netns themselves, to ask for their nsids, while the stage stands.
    doors: Option<Doors>,
    /// Nsids that were met, and whether they are of the canary's netns.
    nsids: BTreeMap<i32, bool>,
    /// The netns walk has last seen a netns of the canary's waiting for its teardown.
    queued: Option<BootNs>,
}

/// A way to the canary's netns. It holds them, and so it ends with the stage.
#[derive(Debug)]
pub(super) struct Doors {
    pub(super) netns: [OwnedFd; 2],
    pub(super) numbers: Numbers,
}

/// A netns of the canary's.
#[derive(Debug, Clone, Copy)]
struct Name {
    netns: NetnsRef,
    /// When its last task went.
    left: Option<BootNs>,
}

impl Claims {
    /// A run begins: `stage` is the process that is to make its netns.
    pub(super) fn begin(&self, stage: u32) {
        let mut state = self.state();
        state.stage = Some(stage);
        state.tasks.clear();
        state.marks.clear();
        state.queued = None;
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
        state.doors = doors;
        state.names.extend(netns.map(|netns| Name { netns, left: None }));
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
        state.doors = None;
        state.nsids.retain(|_, ours| *ours);
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
            state.names.retain(|name| !is(name.netns, &seen.netns));
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
        facts.retain(|fact| !state.takes(fact, now));
        self.rest(&mut state, now);
    }

    /// Looks no further when nothing is left to look for.
    fn rest(&self, state: &mut State, now: BootNs) {
        state.names.retain(|name| name.left.is_none_or(|left| now.since(left) < FORGET_AFTER));
        if state.names.is_empty() && state.stage.is_none() {
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
        let there = self.names.iter().any(|name| {
            let lasts = seen.ends || name.left.is_none_or(|left| seen.at <= left.0);
            is(name.netns, &seen.netns) && (lasts || has_cookies(name.netns, &seen.netns))
        });
        let nowhere = seen.netns.inode == 0 && seen.netns.cookie == 0;
        match seen.who {
            Who::Netns => {
                // An inode that is given to a new netns is not ours any more.
                if seen.mark == Some(Mark::Created) {
                    let by_cookie = |name: &Name| has_cookies(name.netns, &seen.netns);
                    self.names.retain(|name| {
                        name.left.is_none() || by_cookie(name) || !is(name.netns, &seen.netns)
                    });
                    return self.names.iter().any(|name| is(name.netns, &seen.netns));
                }
                there
            }
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

    fn learn(&mut self, task: TaskKey) {
        if self.tasks.len() < MOST_TASKS {
            self.tasks.insert(task);
        }
    }

    /// Whether a fact is the canary's. What it shows is noted.
    fn takes(&mut self, fact: &Fact, now: BootNs) -> bool {
        if let Some(nsid) = place(&fact.what).and_then(by_nsid) {
            let ours = self.is_our_nsid(nsid);
            if ours && matches!(fact.what, What::NetnsDying { .. }) {
                self.nsids.remove(&nsid);
            }
            return ours;
        }
        let (ours, mark) = match &fact.what {
            What::Netns { netns } => (self.is_named(netns, fact.at), Some(Mark::NetnsListed)),
            What::Task(task) => {
                let ours = self.is_named(&task.netns, fact.at) || self.stage == Some(task.key.pid);
                if ours {
                    // Its end names no netns.
                    self.learn(task.key);
                }
                (ours, Some(Mark::TaskListed))
            }
            What::Holder { netns, holder } => {
                let fd = matches!(holder, Holder::Fd { .. });
                (self.is_named(netns, fact.at), fd.then_some(Mark::FileListed))
            }
            What::NetnsDying { netns } => {
                // As if it had begun before the stage went, which is what began it.
                let ours = self.is_named(netns, BootNs(fact.at.0.saturating_sub(INODE_LASTS)));
                if ours {
                    self.queued = Some(fact.at);
                }
                (ours, None)
            }
            What::TaskExiting { task } | What::TaskReleased { task } => {
                (self.tasks.contains(task), None)
            }
            // Of a child that was killed and is slow to go. Somebody else who kills one of them, or the stage, is told.
            What::Signalled { by, .. } => (self.stage.is_some_and(|stage| stage == by.pid), None),
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

    fn is_our_nsid(&mut self, nsid: i32) -> bool {
        if let Some(ours) = self.nsids.get(&nsid) {
            return *ours;
        }
        let Some(Doors { netns, numbers }) = &mut self.doors else { return false };
        let ours = netns.iter().any(|netns| numbers.of(netns.as_fd()).ok().flatten() == Some(nsid));
        if self.nsids.len() < MOST_NSIDS {
            self.nsids.insert(nsid, ours);
        }
        ours
    }

    /// Whether a netns that was there at this time is the canary's.
    fn is_named(&self, netns: &NetnsRef, at: BootNs) -> bool {
        self.names.iter().any(|name| match (name.netns.cookie, netns.cookie) {
            (Some(one), Some(other)) => one == other,
            _ => {
                let lasts = name.left.is_none_or(|left| at <= left);
                lasts && netns.inode.is_some() && name.netns.inode == netns.inode
            }
        })
    }
}

/// The netns of a fact that has one.
fn place(what: &What) -> Option<&NetnsRef> {
    match what {
        What::Netns { netns }
        | What::NetnsCreated { netns }
        | What::NetnsDying { netns }
        | What::PeerNetns { netns, .. }
        | What::Port { netns, .. }
        | What::Vlans { netns, .. }
        | What::NetnsGone { netns }
        | What::NetnsClosed { netns }
        | What::Link { netns, .. }
        | What::LinkGone { netns, .. }
        | What::Address { netns, .. }
        | What::AddressGone { netns, .. }
        | What::DadFailed { netns, .. }
        | What::Neighbour { netns, .. }
        | What::NeighbourGone { netns, .. }
        | What::Claimed { netns, .. }
        | What::Route { netns, .. }
        | What::RouteGone { netns, .. }
        | What::HoldersSearched { netns, .. } => Some(netns),
        _ => None,
    }
}

/// The nsid of a netns of which nothing else is known.
fn by_nsid(netns: &NetnsRef) -> Option<i32> {
    netns.nsid.filter(|_| netns.cookie.is_none() && netns.inode.is_none())
}

/// Whether a record's netns is this one. Where only one side knows the cookie (the kernel has it from 5.12 on, and tells
/// it by `SO_NETNS_COOKIE` from 5.14 on), the inode decides.
fn is(name: NetnsRef, netns: &Netns) -> bool {
    match name.cookie.filter(|_| netns.cookie != 0) {
        Some(cookie) => cookie == netns.cookie,
        None => netns.inode != 0 && name.inode == Some(netns.inode),
    }
}

fn has_cookies(name: NetnsRef, netns: &Netns) -> bool {
    name.cookie.is_some() && netns.cookie != 0
}

#[cfg(test)]
#[path = "claims_tests.rs"]
mod tests;
