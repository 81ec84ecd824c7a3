//! Decides whether a record or a fact belongs to the canary or to the node.
//!
//! The netns are known by name before anything happens in them. Their creation, however, is an event whose name is not
//! known yet: until the stage has named its netns, which takes a few milliseconds, no facts are sent on and no ring
//! buffer is read ([`Claims::settled`]). What arrives meanwhile waits as it would for a busy daemon.
//!
//! A netns is recognised by its cookie. If only the inode is known, which the kernel reuses at once (`ns_free_inum`),
//! the inode is the canary's from the start of the stage to its end; after that only the rest of its teardown is. We
//! give its netns no nsid, but another process on the node may, and netlink then reports them only by nsid: see
//! `nsids`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::nsids::{Doors, Nsids};
use super::marks::{self, Mark, Who};
use crate::clock;
use crate::fact::{BootNs, Fact, Holder, NetnsRef, Observation, Origin, TaskKey};

pub(super) mod nsids;

/// Maximum number of remembered tasks of one run, which creates six.
const MOST_TASKS: usize = 256;
/// Maximum number of remembered netns: those of the last four runs.
const MOST_NAMES: usize = 8;
/// In nanoseconds. A teardown may wait behind another one that hangs. After this time nothing about the netns will be
/// reported any more.
const FORGET_AFTER: u64 = 600_000_000_000;
/// Nanoseconds that a netns is remembered after its end: records of another ring buffer are read later, and a list that
/// was started before may contain it.
const TOLD_LATE: u64 = 60_000_000_000;
/// Nanoseconds for which the end of a netns that is known only by inode still counts as the canary's after the stage
/// has ended. Everything else after that belongs to another netns: the kernel may reuse the inode at any time.
const INODE_LASTS: u64 = 2_000_000_000;
/// Between two checks whether facts may be sent on.
const PAUSE: Duration = Duration::from_millis(1);

/// What belongs to the canary. Shared by everything through which facts pass.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// Whether there is anything to filter out.
    active: AtomicBool,
    /// Until when on the boot clock facts wait at most.
    hold_until: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The stage's process, while it runs.
    stage: Option<u32>,
    names: Vec<Name>,
    /// Tasks of the stage and of its plugins.
    tasks: BTreeSet<TaskKey>,
    /// What was seen in this run, and how many nanoseconds after it happened.
    marks: BTreeMap<Mark, u64>,
    /// When the stage of the last run was started: none of its netns existed before.
    born: BootNs,
    nsids: Nsids,
    /// When the netns walk last saw a netns of the canary waiting for its teardown.
    queued: Option<BootNs>,
}

/// A netns of the canary.
#[derive(Debug, Clone, Copy)]
struct Name {
    netns: NetnsRef,
    born: BootNs,
    /// When its last task ended.
    left: Option<BootNs>,
    /// When its teardown ended.
    gone: Option<BootNs>,
    /// Whether its inode was reused by another netns: of later events, only the end of the teardown is this netns's.
    reused: bool,
}

impl Name {
    /// Whether a record is about this netns. If only one side knows the cookie (the kernel has it since 5.12, and
    /// reports it through `SO_NETNS_COOKIE` since 5.14), the inode decides.
    fn is_of(&self, seen: &marks::Seen) -> bool {
        if let Some(cookie) = self.netns.cookie.filter(|_| seen.netns.cookie != 0) {
            return cookie == seen.netns.cookie;
        }
        let inode = seen.netns.inode != 0 && self.netns.inode == Some(seen.netns.inode);
        inode && seen.at >= self.born.0 && self.lasts(seen)
    }

    /// Whether the inode was this netns's when the record's event happened.
    fn lasts(&self, seen: &marks::Seen) -> bool {
        let torn_down = matches!(seen.mark, Some(Mark::Dying | Mark::Gone));
        let ended = self.gone.is_some_and(|gone| seen.at > gone.0);
        match self.left {
            // The stage still holds this netns, so the netns that ends had the inode before.
            None => !torn_down,
            Some(_) if torn_down && self.reused => {
                seen.mark == Some(Mark::Gone) && self.gone.is_none()
            }
            Some(left) if seen.at <= left.0 => true,
            Some(_) => seen.ends && !self.reused && !ended,
        }
    }

    /// As [`is_of`](Self::is_of), for the netns in a fact. `ends`: whether the fact reports the end of a netns.
    fn is_named(&self, netns: &NetnsRef, at: BootNs, ends: bool) -> bool {
        if let (Some(one), Some(other)) = (self.netns.cookie, netns.cookie) {
            return one == other;
        }
        let inode = netns.inode.is_some() && self.netns.inode == netns.inode;
        // A list has the time of its start: a netns in it may have been created since.
        let begun = !ends || self.left.is_some() && at >= self.born;
        inode && begun && !self.reused && self.left.is_none_or(|left| at <= left)
    }
}

impl Claims {
    /// A run starts. `stage`: the process that will create its netns.
    pub(super) fn begin(&self, stage: u32) {
        let mut state = self.state();
        state.stage = Some(stage);
        state.tasks.clear();
        state.marks.clear();
        state.queued = None;
        state.born = clock::now();
        self.active.store(true, Ordering::Release);
    }

    /// The stage is about to create its netns. Facts wait until it has, but at most this long.
    pub(crate) fn hold(&self, most: Duration) {
        let until = clock::now().plus(most.as_nanos() as u64);
        self.hold_until.store(until.0, Ordering::Release);
    }

    /// Sets the netns of this run.
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

    /// The stage has ended; what is reported of its netns from now on is their end.
    pub(super) fn left(&self) {
        // Taken before the doors close: while they hold the netns, its inode cannot be reused.
        let now = clock::now();
        let mut state = self.state();
        state.stage = None;
        state.nsids.end(now);
        for name in &mut state.names {
            name.left.get_or_insert(now);
        }
        self.hold_until.store(0, Ordering::Release);
    }

    /// Whether a stage runs, or hangs.
    pub(super) fn is_on_stage(&self) -> bool {
        self.state().stage.is_some()
    }

    /// What was seen of this run.
    pub(super) fn marks(&self) -> BTreeMap<Mark, u64> {
        self.state().marks.clone()
    }

    /// Whether a netns walk since `since` has seen a netns of the canary waiting for its teardown.
    pub(super) fn is_queued(&self, since: BootNs) -> bool {
        self.state().queued.is_some_and(|at| at >= since)
    }

    /// Whether facts must wait.
    pub(crate) fn is_held(&self) -> bool {
        let until = self.hold_until.load(Ordering::Acquire);
        until != 0 && clock::now().0 < until
    }

    /// Waits until facts may be sent on. Returns at once except during the few milliseconds in which the netns are
    /// created.
    pub(crate) async fn settled(&self) {
        while self.is_held() {
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The same, blocking the thread.
    pub(crate) fn settled_blocking(&self) {
        while self.is_held() {
            std::thread::sleep(PAUSE);
        }
    }

    /// Whether a record of the kernel half is the canary's. It is then noted here, and must be dropped by the caller.
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

    /// Removes the canary's facts.
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

    /// Stops filtering when nothing is left to filter out.
    fn rest(&self, state: &mut State, now: BootNs) {
        let within = |moment: Option<BootNs>, most| moment.is_none_or(|at| now.since(at) < most);
        state.names.retain(|name| within(name.left, FORGET_AFTER) && within(name.gone, TOLD_LATE));
        state.nsids.rest(now);
        if state.names.is_empty() && state.nsids.is_empty() && state.stage.is_none() {
            self.active.store(false, Ordering::Release);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // If a thread panicked while it held the lock, at worst one fact too many is reported.
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
                // The stage's own process, before it has named its netns.
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

    /// Whether a created netns is the canary's. One with the inode of a past one is not: it has reused that inode.
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

    /// Whether a fact is the canary's. Notes what the fact shows.
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
                // The removal of an nsid may be among what was lost.
                self.nsids.forget();
                (false, None)
            }
            Observation::Netns { netns } => {
                (self.is_named(netns, fact.at), Some(Mark::NetnsListed))
            }
            Observation::Task(task) => {
                let ours = self.is_named(&task.netns, fact.at) || self.stage == Some(task.key.pid);
                if ours {
                    // The record of its end will contain no netns.
                    self.learn(task.key);
                }
                (ours, Some(Mark::TaskListed))
            }
            Observation::Holder { netns, holder } => {
                let fd = matches!(holder, Holder::Fd { .. });
                (self.is_named(netns, fact.at), fd.then_some(Mark::FileListed))
            }
            Observation::NetnsDying { netns } => {
                // The stage's end causes the teardown, so the fact counts as if it began before that.
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
            // From a child that was killed and ends slowly. If another process kills a child or the stage, that is
            // reported.
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

    /// Whether a netns that existed at this time is the canary's.
    fn is_named(&self, netns: &NetnsRef, at: BootNs) -> bool {
        self.names.iter().any(|name| name.is_named(netns, at, false))
    }
}

/// The netns of a fact, if it has one.
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
        | Observation::HoldersSearched { netns, .. }
        | Observation::LostIn { netns, .. } => Some(netns),
        _ => None,
    }
}

/// The nsid of a netns, if nothing else is known of it.
fn by_nsid(netns: &NetnsRef) -> Option<i32> {
    netns.nsid.filter(|_| netns.cookie.is_none() && netns.inode.is_none())
}

#[cfg(test)]
mod tests;
