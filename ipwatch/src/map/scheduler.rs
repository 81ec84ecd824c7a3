//! What to find out next, and when.
//!
//! The map asks only when something happened (a netns appeared, its last task left, a task was killed), and repeats a
//! request with growing pauses until it is answered. On a healthy node nothing here runs.

mod tasks;

use serde::{Deserialize, Serialize};

use crate::fact::{BootNs, NetnsPath, TaskKey};

use super::looks::{CGROUPS, LOOKS, THREADS, Turns};
use super::openings::{Openings, Whose};
use super::queue::Queue;
use super::request::{Request, Sought};
use super::{Kinds, NetnsId, NodeMap, Table, TenantKind};

const MS: u64 = 1_000_000;
const SEC: u64 = 1_000 * MS;

/// Pauses before the second, third, … attempt to open a netns; the last one repeats.
const ADOPT_PAUSES: [u64; 6] = [20 * MS, 100 * MS, 500 * MS, 2 * SEC, 10 * SEC, 60 * SEC];
/// When to repeat an attempt that got no answer: normally every attempt is answered, however late, unless the answer
/// was lost or the thread hangs.
const ADOPT_UNANSWERED: u64 = 60 * SEC;
/// Delay before opening a netns that netlink reported as removed. If a probe reports the end by name, its report
/// arrives first.
const CONFIRM_AFTER: u64 = 20 * MS;
/// Pauses before the second, third, … search for the holders of a netns without tasks.
const SEARCH_PAUSES: [u64; 5] = [SEC, 5 * SEC, 30 * SEC, 120 * SEC, 300 * SEC];
/// A netns is created before the first process enters it; an immediate search would find nothing.
const SEARCH_AFTER_BIRTH: u64 = 400 * MS;
/// Delay after the last task left: usually the netns is about to be removed.
const SEARCH_AFTER_EMPTIED: u64 = 150 * MS;
/// After this many attempts, a netns known only by its nsid may have the inode of a known netns whose end was not
/// reported.
const TRIES_BEFORE_DOUBT: usize = 4;
/// Minimum interval between settling such doubts, all at once: creating netns that cannot be opened must not make all
/// others be opened again and again.
const DOUBTS_EVERY: u64 = 60 * SEC;
/// Pauses between walks for netns that are known only by their nsid.
const WALK_PAUSES: [u64; 5] = [5 * MS, 100 * MS, SEC, 5 * SEC, 30 * SEC];
/// After this many walks without success, the netns may be mounted where only a search finds it.
const WALKS_IN_VAIN: usize = 2;

/// How long a state must last before it is reported, and when looks are repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Thresholds {
    /// How long a task may be exiting or killed before it is reported as stuck, in ns.
    pub grace: u64,
    /// As `grace`, while the task's core is being dumped.
    pub core_dump_grace: u64,
    /// Time between the first look after the grace and the second, which confirms it.
    pub second_look: u64,
    /// How long a sandbox may be dead or removed before what it left behind is reported.
    pub sandbox_grace: u64,
    /// How old a pod's netns may be that no runtime has ever reported, or that has no tasks if there is no runtime to
    /// ask.
    pub leak_age: u64,
    /// How long a netns teardown may take without any progress.
    pub teardown_grace: u64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            grace: 5 * SEC,
            core_dump_grace: 600 * SEC,
            second_look: 500 * MS,
            sandbox_grace: 30 * SEC,
            leak_age: 300 * SEC,
            teardown_grace: 30 * SEC,
        }
    }
}

/// What to find out now, and when to ask again.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Agenda {
    /// To be found out.
    pub wants: Vec<Request>,
    /// When the next thing falls due.
    pub next: Option<BootNs>,
}

/// Attempts to open a netns so far.
#[derive(Debug, Default)]
struct Tries {
    /// Failed attempts.
    failed: usize,
    /// An attempt is under way.
    asked: bool,
    /// For a netns known only by its nsid: all others have already been reopened because of it.
    doubted: bool,
}

impl Tries {
    fn pause(&mut self) -> u64 {
        let pause = ADOPT_PAUSES[self.failed.min(ADOPT_PAUSES.len() - 1)];
        self.failed += 1;
        pause
    }
}

/// What is still to be found out.
#[derive(Debug)]
pub(super) struct Pending {
    adopt: Queue<NetnsId>,
    openings: Openings,
    /// When the host is to be dumped once more.
    host: Option<BootNs>,
    adopt_tries: Table<NetnsId, Tries>,
    /// Earliest time to settle doubts about inodes again.
    doubts_from: BootNs,
    search: Queue<NetnsId>,
    search_tries: Table<NetnsId, usize>,
    /// Netns that were empty and have tasks now, and when to settle whether these are visitors.
    visits: Queue<NetnsId>,
    walk: Option<BootNs>,
    walk_tries: usize,
    looks: Queue<TaskKey>,
    look_turns: Turns<TaskKey>,
    /// Leaving tasks: since when, and the number of looks after their grace.
    plans: Table<TaskKey, (BootNs, u32)>,
    /// Tasks whose next look is planned in the next agenda, which has the thresholds.
    to_plan: Vec<(TaskKey, Option<BootNs>)>,
    /// Leaders that have ended, each with its netns.
    threads: Queue<(TaskKey, NetnsId)>,
    thread_turns: Turns<u32>,
    fresh_leavers: Vec<((TaskKey, NetnsId), BootNs)>,
    /// Netns with links to unknown netns.
    unresolved_peers: Queue<NetnsId>,
    unnamed: Queue<TaskKey>,
    unnamed_tries: Table<TaskKey, usize>,
    name_turns: Turns<TaskKey>,
}

impl Default for Pending {
    fn default() -> Self {
        Self {
            adopt: Queue::default(),
            openings: Openings::default(),
            host: None,
            adopt_tries: Table::default(),
            doubts_from: BootNs::default(),
            search: Queue::default(),
            search_tries: Table::default(),
            visits: Queue::default(),
            walk: None,
            walk_tries: 0,
            looks: Queue::default(),
            look_turns: Turns::new(LOOKS),
            plans: Table::default(),
            to_plan: Vec::new(),
            threads: Queue::default(),
            thread_turns: Turns::new(THREADS),
            fresh_leavers: Vec::new(),
            unresolved_peers: Queue::default(),
            unnamed: Queue::default(),
            unnamed_tries: Table::default(),
            name_turns: Turns::new(CGROUPS),
        }
    }
}

impl Pending {
    pub(super) fn netns_appeared(&mut self, id: NetnsId, at: BootNs) {
        self.adopt.set(id, at);
        self.search.hasten(id, at.plus(SEARCH_AFTER_BIRTH));
    }

    /// The netns is reported as removed but may still exist: opening it decides, because a netns in teardown cannot be
    /// opened.
    pub(super) fn confirm_end(&mut self, id: NetnsId, at: BootNs) {
        self.adopt.set(id, at.plus(CONFIRM_AFTER));
    }

    /// What the map has of this netns may be wrong: read it again.
    pub(super) fn doubted(&mut self, id: NetnsId, host: bool, at: BootNs) {
        if host {
            self.host = Some(self.host.map_or(at, |due| due.min(at)));
        } else {
            self.adopt_tries.remove(&id);
            self.adopt.hasten(id, at);
        }
    }

    /// Events of this netns were lost. If it is being read, that goes on: what whoever floods it could otherwise do is to have
    /// it opened again and again, and every other netns waits behind that.
    pub(super) fn lost_in(&mut self, id: NetnsId, host: bool, at: BootNs) {
        if host || self.adopt_tries.get(&id).is_none_or(|tries| !tries.asked) {
            self.doubted(id, host, at);
        }
    }

    /// A runtime vouches for it: it waits behind no stranger's.
    pub(super) fn vouched(&mut self, id: NetnsId, at: BootNs) {
        if self.openings.leaves(id) {
            self.adopt.set(id, at);
        }
    }

    /// It is to be opened already, or is being opened.
    pub(super) fn opens(&self, id: NetnsId) -> bool {
        self.adopt.contains(&id)
    }

    pub(super) fn adopted(&mut self, id: NetnsId) {
        self.openings.leaves(id);
        self.adopt.cancel(&id);
        self.adopt_tries.remove(&id);
    }

    /// Lists netns and tasks again by `due` at the latest.
    pub(super) fn walk_by(&mut self, due: BootNs) {
        self.walk = Some(self.walk.map_or(due, |walk| walk.min(due)));
    }

    /// The netns could not be opened, or not read completely.
    pub(super) fn not_adopted(&mut self, id: NetnsId, at: BootNs) {
        self.openings.answered(id);
        if let Some(tries) = self.adopt_tries.get_mut(&id).filter(|tries| tries.asked) {
            tries.asked = false;
            let pause = tries.pause();
            self.adopt.set(id, at.plus(pause));
        }
    }

    /// Number of failed attempts to open it.
    pub(super) fn failed_to_open(&self, id: NetnsId) -> usize {
        self.adopt_tries.get(&id).map_or(0, |tries| tries.failed)
    }

    /// A link of this netns may lead to a netns that is still unknown at `due`.
    pub(super) fn meet(&mut self, id: NetnsId, due: BootNs) {
        self.unresolved_peers.hasten(id, due);
    }

    pub(super) fn next_stranger(&mut self, now: BootNs) -> Option<NetnsId> {
        self.unresolved_peers.pop(now)
    }

    pub(super) fn holder_appeared(&mut self, id: NetnsId, at: BootNs) {
        let Some(tries) = self.adopt_tries.get_mut(&id) else { return };
        tries.failed = 0;
        // An attempt under way may succeed; otherwise the next one comes soon.
        if !tries.asked {
            self.adopt.hasten(id, at);
        }
    }

    /// A task has entered. While it may be a visitor, all goes on as it was planned.
    pub(super) fn task_entered(&mut self, id: NetnsId, at: BootNs, was_empty: bool) {
        if was_empty {
            self.visited(id, at);
        }
        self.holder_appeared(id, at);
    }

    /// Whoever is in it, which was empty, may be a visitor.
    pub(super) fn visited(&mut self, id: NetnsId, at: BootNs) {
        if !self.visits.contains(&id) {
            self.visits.set(id, at);
        }
    }

    /// Tasks live in it. It needs no search, unless a holder found earlier must be checked for its release (`searching`).
    pub(super) fn inhabited(&mut self, id: NetnsId, searching: bool) {
        if !searching {
            self.search.cancel(&id);
            self.search_tries.remove(&id);
        }
    }

    /// The last task has left. After a visit that changed nothing (`is_same`) the searches go on as they were planned:
    /// otherwise two that look into the same netns, such as two ipwatch, would make each other look for ever.
    pub(super) fn emptied(&mut self, id: NetnsId, at: BootNs, is_same: bool) {
        self.visits.cancel(&id);
        if !is_same || !self.search.contains(&id) {
            self.search_tries.remove(&id);
            self.search.set(id, at.plus(SEARCH_AFTER_EMPTIED));
        }
    }

    /// A known holder was released.
    pub(super) fn holders_changed(&mut self, id: NetnsId, at: BootNs) {
        if self.search.contains(&id) {
            self.search.hasten(id, at.plus(SEARCH_AFTER_EMPTIED));
        }
    }

    /// A search has ended; `soon` is when the next one is needed, if that is known.
    pub(super) fn searched(&mut self, id: NetnsId, at: BootNs, soon: Option<BootNs>) {
        if let Some(tries) = self.search_tries.get(&id) {
            let pause = SEARCH_PAUSES[tries.saturating_sub(1).min(SEARCH_PAUSES.len() - 1)];
            let next = at.plus(pause);
            self.search.set(id, soon.map_or(next, |soon| soon.min(next)));
        }
    }

    /// From `due` on, a netns without tasks looks leaked.
    pub(super) fn hasten_search(&mut self, id: NetnsId, due: BootNs) {
        if self.search.contains(&id) {
            self.search.hasten(id, due);
        }
    }

    /// Netns that are searched for holders because they have no tasks.
    pub(super) fn taskless(&self) -> impl Iterator<Item = &NetnsId> {
        self.search.keys()
    }

    /// Checks that nothing is planned for a netns that is not kept.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn assert_is_of_kept(&self, is_kept: impl Fn(NetnsId) -> bool) {
        let tried = self.adopt_tries.keys().chain(self.search_tries.keys());
        let planned =
            self.adopt.keys().chain(self.search.keys()).chain(self.unresolved_peers.keys());
        let planned = planned.chain(self.visits.keys());
        assert!(planned.chain(tried).all(|id| is_kept(*id)));
    }

    /// Checks that whoever has entered a netns that was empty will be taken for one who lives there.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn assert_visits_end(&self, mut visited: impl Iterator<Item = NetnsId>) {
        assert!(visited.all(|id| self.visits.contains(&id)));
    }

    pub(super) fn forget_netns(&mut self, id: NetnsId) {
        self.adopted(id);
        self.search.cancel(&id);
        self.search_tries.remove(&id);
        self.visits.cancel(&id);
        self.unresolved_peers.cancel(&id);
    }
}

/// State of an agenda while it is built.
struct Turn<'a> {
    now: BootNs,
    thresholds: &'a Thresholds,
    wants: Vec<Request>,
}

/// A step of an agenda: derives what follows from the changes, adds requests, and returns when it must run again at the
/// latest.
type Step = fn(&mut NodeMap, &mut Turn<'_>) -> Option<BootNs>;

/// The steps of an agenda, in order: each reads the results of the earlier ones.
const STEPS: &[Step] = &[
    // Who may own a netns depends on who lives in it.
    |map, turn| {
        map.settle_visits(turn.now);
        None
    },
    // Then the owners: what a runtime, a store or a neighbour reports of a sandbox is applied to its netns.
    |map, turn| {
        map.settle_owners(turn.thresholds);
        None
    },
    |map, turn| {
        map.plan_looks(turn.thresholds);
        None
    },
    // Both may schedule netns to be reopened, so they come before the requests for that.
    |map, turn| map.reread_short(turn.now),
    |map, turn| map.settle_left_out(turn.now),
    |map, turn| map.settle_doubts(turn.now),
    // The requests.
    |map, turn| {
        let host = map.scheduler.host.take_if(|due| *due <= turn.now);
        turn.wants.extend(host.map(|_| Request::Host));
        None
    },
    |map, turn| {
        map.want_strangers(turn.now, &mut turn.wants);
        None
    },
    |map, turn| {
        map.want_adoptions(turn.now, &mut turn.wants);
        None
    },
    |map, turn| {
        map.want_searches(turn.now, &mut turn.wants);
        None
    },
    |map, turn| {
        map.want_looks(turn.now, &mut turn.wants);
        map.want_threads(turn.now, &mut turn.wants);
        map.want_names(turn.now, &mut turn.wants);
        None
    },
    |map, turn| map.want_runtimes(turn.now, turn.thresholds, &mut turn.wants),
    |map, turn| map.want_container_mounts(turn.now, turn.thresholds, &mut turn.wants),
    |map, turn| {
        map.want_cleanup(turn.now, &mut turn.wants);
        map.kernel.teardown_due()
    },
    // Before the stores are compared: a forgotten plugin run no longer excuses a reservation.
    |map, turn| map.tidy_calls(turn.now),
    |map, turn| map.settle_ipam(turn.now, turn.thresholds),
    |map, turn| map.settle_claims(turn.now),
    |map, turn| map.conflict.settle_unanswered(turn.now),
    |map, turn| map.settle_orphans(turn.now, turn.thresholds),
    |map, turn| map.settle_losses(turn.now),
    // Last: reads changes in links, addresses and owners, which come from the steps above.
    |map, turn| map.next_overlap(turn.now),
];

impl Pending {
    /// When the next entry of these queues falls due.
    fn next(&self) -> Option<BootNs> {
        let queues = [
            self.adopt.next(),
            self.host,
            self.search.next(),
            self.visits.next(),
            self.looks.next(),
            self.threads.next(),
            self.walk,
            self.unnamed.next(),
            self.unresolved_peers.next(),
            self.look_turns.due(),
            self.thread_turns.due(),
            self.name_turns.due(),
        ];
        queues.into_iter().flatten().min()
    }
}

impl NodeMap {
    /// What to find out at `now`. Returned requests are removed from the queues, and come back later if no fact answers
    /// them.
    pub fn agenda(&mut self, now: BootNs, thresholds: &Thresholds) -> Agenda {
        self.changes.begin();
        self.thresholds = *thresholds;
        let mut turn = Turn { now, thresholds, wants: Vec::new() };
        let due = STEPS.iter().filter_map(|step| step(self, &mut turn)).min();
        let next = [due, self.scheduler.next()].into_iter().flatten().min();
        Agenda { wants: turn.wants, next }
    }

    /// Opens and dumps every netns again, after a loss of events.
    pub fn reopen_all(&mut self, now: BootNs) {
        for entry in self.kernel.all().filter(|entry| !entry.host && entry.dying.is_none()) {
            self.scheduler.adopt_tries.remove(&entry.id);
            self.scheduler.adopt.set(entry.id, now);
        }
    }

    /// Reopens every netns that has a name to open it by: its inode may now belong to a netns that is known only by its
    /// nsid. Done once for each of the latter.
    fn reopen_named(&mut self, now: BootNs) {
        for entry in self.kernel.all().filter(|entry| !entry.host && entry.dying.is_none()) {
            if entry.names.cookie.is_some() || entry.names.inode.is_some() {
                self.scheduler.adopt_tries.remove(&entry.id);
                self.scheduler.adopt.set(entry.id, now);
            } else if let Some(tries) = self.scheduler.adopt_tries.get_mut(&entry.id) {
                tries.doubted |= tries.failed >= TRIES_BEFORE_DOUBT;
            }
        }
    }

    /// Plans every look again, after a change of thresholds.
    pub fn replan(&mut self) {
        let pending = &mut self.scheduler;
        pending.to_plan.extend(pending.plans.keys().map(|task| (*task, None)));
    }

    /// Whether there is a netns that has not been opened and has failed fewer than two attempts.
    #[must_use]
    pub fn has_unopened(&self) -> bool {
        self.scheduler.adopt.keys().any(|id| {
            self.scheduler.adopt_tries.get(id).is_none_or(|tries| tries.failed < 2)
                && self.netns(*id).is_some_and(|entry| entry.opened.is_none())
        })
    }

    /// Asks for a netns to be opened.
    fn adoption(&mut self, id: NetnsId, now: BootNs) -> Option<Request> {
        let entry = self.kernel.get(id)?;
        let tries = self.scheduler.adopt_tries.entry(id).or_default();
        let again = tries.failed > 0;
        tries.asked = true;
        self.scheduler.adopt.set(id, now.plus(ADOPT_UNANSWERED));
        let doors = self.doors(id);
        // The second try at a door that may not exist: only a search can find another.
        if doors == [NetnsPath::Handle] && again {
            self.scheduler.search.hasten(id, now);
        }
        let neighbours = entry.neighbours();
        let neighbours = neighbours.map(|known| (known.neighbour.ifindex, known.neighbour.ip));
        Some(Request::Adopt { netns: entry.names, doors, neighbours: neighbours.collect() })
    }

    fn want_adoptions(&mut self, now: BootNs, wants: &mut Vec<Request>) {
        let mut doubt = false;
        while let Some(id) = self.scheduler.adopt.pop(now) {
            let Some(entry) = self.kernel.get(id) else { continue };
            // Nobody has answered for so long that it is asked for again.
            self.scheduler.openings.answered(id);
            let tries = self.scheduler.adopt_tries.entry(id).or_default();
            if entry.names.cookie.is_none() && entry.names.inode.is_none() {
                doubt |= tries.failed >= TRIES_BEFORE_DOUBT && !tries.doubted;
                let pause = tries.pause();
                self.scheduler.adopt.set(id, now.plus(pause));
                self.scheduler.walk.get_or_insert(now);
                continue;
            }
            let whose = match entry.is_of_a_user_namespace() {
                true => Whose::AUsers,
                false => Whose::NotKnownYet,
            };
            if entry.is_strangers() && !self.scheduler.openings.admits(id, whose) {
                self.scheduler.adopt.set(id, now.plus(ADOPT_UNANSWERED));
            } else {
                wants.extend(self.adoption(id, now));
            }
        }
        while let Some(id) = self.scheduler.openings.next() {
            wants.extend(self.adoption(id, now));
        }
        // If ends are reported, the map knows which inodes are free, and needs no doubts.
        if doubt && !self.sight.teardown_end && self.scheduler.doubts_from <= now {
            self.scheduler.doubts_from = now.plus(DOUBTS_EVERY);
            self.reopen_named(now);
        }
        if self.scheduler.walk.is_some_and(|due| due <= now) {
            let everywhere = self.scheduler.walk_tries >= WALKS_IN_VAIN;
            wants.push(Request::Walk { everywhere });
            let pause = WALK_PAUSES[self.scheduler.walk_tries.min(WALK_PAUSES.len() - 1)];
            self.scheduler.walk_tries += 1;
            let nameless = self.all_netns().any(|entry| {
                entry.names.cookie.is_none()
                    && entry.names.inode.is_none()
                    && entry.opened.is_none()
            });
            self.scheduler.walk = nameless.then(|| now.plus(pause));
            if !nameless {
                self.scheduler.walk_tries = 0;
            }
        }
    }

    /// Ways into a netns, the cheapest first.
    pub(super) fn doors(&self, id: NetnsId) -> Vec<NetnsPath> {
        const MAX_DOORS: usize = 8;
        let Some(entry) = self.netns(id) else { return Vec::new() };
        let tasks = entry.tasks().map(|task| NetnsPath::Task { pid: task.pid, tid: task.tid });
        let holders = entry.holders().filter_map(NetnsPath::through);
        tasks.chain(holders).take(MAX_DOORS).chain([NetnsPath::Handle]).collect()
    }

    fn settle_visits(&mut self, now: BootNs) {
        while let Some(id) = self.scheduler.visits.pop(now) {
            if let Some(due) = self.settle_visit(id, now) {
                self.scheduler.visits.set(id, due);
            }
        }
    }

    fn want_searches(&mut self, now: BootNs, wants: &mut Vec<Request>) {
        let mut netns = Vec::new();
        while let Some(id) = self.scheduler.search.pop(now) {
            // A netns that leaves the search is no longer counted as without tasks.
            self.changes.mark(Kinds::NETNS);
            let Some(entry) = self.kernel.get(id) else { continue };
            if entry.dying.is_some() {
                continue;
            }
            if entry.tasks().len() > 0 && !entry.has_hidden_holder() {
                // What is empty but for a visitor is searched after that; and most that are new are not empty any more.
                if self.scheduler.visits.contains(&id) {
                    self.scheduler.search.set(id, now.plus(SEARCH_AFTER_BIRTH));
                }
                continue;
            }
            let tries = self.scheduler.search_tries.entry(id).or_default();
            let pause = SEARCH_PAUSES[(*tries).min(SEARCH_PAUSES.len() - 1)];
            *tries += 1;
            self.scheduler.search.set(id, now.plus(pause));
            if entry.names.cookie.is_some() || entry.names.inode.is_some() {
                let whose = TenantKind::from(entry.tenant());
                let last = entry.searched().and_then(|(at, complete)| complete.then_some(at));
                let since = last.unwrap_or(entry.first_seen);
                netns.push(Sought { netns: entry.names, whose, since });
            }
        }
        if !netns.is_empty() {
            wants.push(Request::Holders { netns });
        }
    }
}
