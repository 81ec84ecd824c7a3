//! Reads what the kernel half records about tasks in tables: new tasks, and thread groups that are exiting. Both are
//! read a moment later, so that short-lived tasks and normal exits cost next to nothing.
//!
//! Nothing is read while nothing happens: the kernel half wakes the reader only once, however much happens, until the
//! reader has looked again. There is no timer in the kernel: kprobe and raw tracepoint programs cannot have one.
//!
//! A group that is still exiting after the time that a normal exit takes is examined: its members that still hold a
//! netns are reported as tasks, with the time and the sender of the signal. A group without such a member is reported
//! as released.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{Array, HashMap, MapData, RingBuf};
use ipwatch_common::{
    FreshKey, Header, Leaving, MOST_FRESH, MOST_LEAVING, OUTSIDE, TaskRecord, Wire as _, kind,
};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::events::{self, KILL_BIT, PF_EXITING, TICK};
use super::ring::Lost;
use super::snapshot;
use crate::canary::Claims;
use crate::clock;
use crate::fact::{BootNs, Fact, Observation, Origin, Sender, Task, TaskKey};
use crate::sources::{Closed, Emit};

const MS: u64 = 1_000_000;
/// Nanoseconds from the first event to the look, so that several events are handled together.
const PAUSE: u64 = 100 * MS;
/// Minimum age in nanoseconds of a task that is reported: most short-lived tasks have ended by then.
const YOUNG: u64 = 30 * MS;
/// Nanoseconds that an exiting thread group is left alone: thousands of threads take about 100 ms.
const SETTLES: u64 = 1_000 * MS;
/// Nanoseconds after which a reported group is examined again, in case its end was missed.
const AGAIN: u64 = 30_000 * MS;
/// Minimum nanoseconds between two reads of all tasks after task events were lost.
const SWEEPS: u64 = 1_000 * MS;
/// The tables are read at least this often, even without an event.
const IDLE: Duration = Duration::from_secs(30);
/// Bound on a listing, in multiples of the table size: if the table changes during a listing, the listing restarts and
/// returns keys again.
const REPEATS: usize = 3;

/// The tables that the kernel half fills.
pub(super) struct Tables {
    pub(super) ring: RingBuf<MapData>,
    pub(super) roused: Array<MapData, u32>,
    pub(super) fresh: HashMap<MapData, FreshKey, [u8; TaskRecord::SIZE]>,
    pub(super) leaving: HashMap<MapData, u64, [u8; Leaving::SIZE]>,
    pub(super) named: HashMap<MapData, u64, u64>,
}

/// Reads the tables. It blocks and needs its own thread.
pub struct Tasks {
    tables: Tables,
    ebpf: Arc<Mutex<Ebpf>>,
    lost: Arc<Lost>,
    /// Groups that were in the table at the last look.
    watched: BTreeMap<u64, Watched>,
    losses: Losses,
}

/// Lost task events.
#[derive(Debug, Default)]
struct Losses {
    /// The total count of lost records at the last check.
    drops: u64,
    /// Of these, records about tasks.
    tasks: u64,
    /// When a read of all tasks was last requested.
    swept: BootNs,
    /// Whether a read of all tasks must be requested.
    owed: bool,
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tasks").finish_non_exhaustive()
    }
}

/// Requests of the reader to the daemon.
pub trait Beside {
    /// All tasks must be read, because task events were lost.
    fn sweep(&self);
    /// This process must be examined through procfs, because the iterator does not run.
    fn look(&self, pid: u32);
}

/// The state of a group between two looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Watched {
    start: u64,
    since: u64,
    news: u32,
    killed: u64,
    /// When the group must be examined.
    due: BootNs,
}

impl Watched {
    fn new(entry: &Leaving) -> Self {
        let Leaving { start, since, news, ending, .. } = *entry;
        // A leader that exits before its threads no longer covers them, so they are reported at once.
        let due = BootNs(since).plus(if ending != 0 { SETTLES } else { YOUNG });
        Self { start, since, news, killed: 0, due }
    }

    /// Takes over changes of the entry; a change can bring the next look forward.
    fn update(&mut self, entry: &Leaving, now: BootNs) {
        if (self.start, self.since) != (entry.start, entry.since) {
            *self = Self::new(entry);
        }
        if self.news != entry.news {
            self.news = entry.news;
            self.due = self.due.min(now.plus(SETTLES));
        }
        if entry.killed != self.killed {
            self.due = self.due.min(BootNs(entry.killed).plus(SETTLES));
        }
    }
}

impl Tasks {
    pub(super) fn new(tables: Tables, ebpf: Arc<Mutex<Ebpf>>, lost: Arc<Lost>) -> Self {
        Self { tables, ebpf, lost, watched: BTreeMap::new(), losses: Losses::default() }
    }

    /// Reads until the receiver of `emit` is closed.
    ///
    /// # Errors
    /// The ring buffer cannot be polled. Unread records remain for the next run.
    pub fn run(&mut self, emit: &Emit, beside: &impl Beside) -> io::Result<()> {
        let claims = emit.claims();
        let mut due = None;
        loop {
            self.wait(due)?;
            // It is not known earlier whether a task is the canary's.
            claims.settled_blocking();
            let mut facts = Vec::new();
            let now = clock::now();
            if self.drain(&claims, &mut facts) || due.is_none() {
                let soon = now.plus(PAUSE);
                due = Some(due.map_or(soon, |due: BootNs| due.min(soon)));
            }
            if due.is_some_and(|due| due <= now) {
                due = self.look(now, &claims, &mut facts, beside);
            }
            if self.tell(facts, emit, beside).is_err() {
                return Ok(());
            }
        }
    }

    fn tell(
        &mut self,
        mut facts: Vec<Fact>,
        emit: &Emit,
        beside: &impl Beside,
    ) -> Result<(), Closed> {
        let own = std::process::id();
        facts.retain(|fact| !is_of(&fact.what, own));
        let losses = &mut self.losses;
        if self.lost.is_news(&mut losses.drops) {
            let tasks = self.lost.losses.borrow().tasks;
            losses.owed |= tasks > losses.tasks;
            losses.tasks = tasks;
        }
        let now = clock::now();
        if losses.owed && now.since(losses.swept) >= SWEEPS {
            losses.owed = false;
            losses.swept = now;
            beside.sweep();
        }
        emit.send_blocking(facts)
    }

    /// Waits until the ring buffer is readable, or until `due`.
    fn wait(&self, due: Option<BootNs>) -> io::Result<()> {
        let pause = due.map(|due| Duration::from_nanos(due.since(clock::now()))).unwrap_or(IDLE);
        // SAFETY: the ring buffer owns its map's fd and lives longer than this borrow of it.
        let ring = unsafe { BorrowedFd::borrow_raw(self.tables.ring.as_raw_fd()) };
        let pause = Timespec {
            tv_sec: pause.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: pause.subsec_nanos().into(),
        };
        match rustix::event::poll(&mut [PollFd::new(&ring, PollFlags::IN)], Some(&pause)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Empties the ring buffer. Returns whether a record asked to read the tables.
    fn drain(&mut self, claims: &Claims, facts: &mut Vec<Fact>) -> bool {
        let mut roused = false;
        while !claims.is_held()
            && let Some(record) = self.tables.ring.next()
        {
            if Header::take(&mut &record[..]).is_some_and(|header| header.kind == kind::ROUSE) {
                roused = true;
            } else {
                decode(&record, claims, facts);
            }
        }
        roused
    }

    /// Reads both tables. Returns when to read them again without an event.
    fn look(
        &mut self,
        now: BootNs,
        claims: &Claims,
        facts: &mut Vec<Fact>,
        beside: &impl Beside,
    ) -> Option<BootNs> {
        // Reset first: an entry added to a table that was already read then wakes the reader again.
        if let Err(error) = self.tables.roused.set(0, 0, 0) {
            tracing::warn!(%error, "probes: the tables of tasks cannot be reset");
        }
        self.drain(claims, facts);
        let young = self.fresh(now, claims, facts);
        let groups = self.groups(now, facts, beside);
        let owed = self.losses.owed.then(|| self.losses.swept.plus(SWEEPS));
        young.into_iter().chain(groups).chain(owed).min().map(|due| due.max(now.plus(PAUSE)))
    }

    /// Reports the new tasks that are old enough. Returns when the next one will be.
    fn fresh(&mut self, now: BootNs, claims: &Claims, facts: &mut Vec<Fact>) -> Option<BootNs> {
        let keys: BTreeSet<FreshKey> = bounded(self.tables.fresh.keys(), MOST_FRESH);
        let mut next = None;
        for key in keys {
            let Ok(record) = self.tables.fresh.get(&key, 0) else { continue };
            let told = Header::take(&mut &record[..]).map_or(0, |header| header.time);
            let due = BootNs(told).plus(YOUNG);
            if due > now {
                next = Some(next.map_or(due, |next: BootNs| next.min(due)));
            } else if self.tables.fresh.remove(&key).is_ok() {
                // Only the side that removes an entry handles it: a task that has ended meanwhile is no longer in the
                // table.
                decode(&record, claims, facts);
            }
        }
        next
    }

    /// Examines the groups that are due. Returns when the next one is.
    fn groups(
        &mut self,
        now: BootNs,
        facts: &mut Vec<Fact>,
        beside: &impl Beside,
    ) -> Option<BootNs> {
        let keys: BTreeSet<u64> = bounded(self.tables.leaving.keys(), MOST_LEAVING);
        let entries: BTreeMap<u64, Leaving> =
            keys.into_iter().filter_map(|key| Some((key, self.entry(key)?))).collect();
        self.watched.retain(|key, _| entries.contains_key(key));
        let mut due = Vec::new();
        for (key, entry) in &entries {
            let watched = self.watched.entry(*key).or_insert_with(|| Watched::new(entry));
            watched.update(entry, now);
            if watched.due <= now {
                due.push((*key, *entry));
            }
        }
        if !due.is_empty() {
            self.survivors(&due, now, facts, beside);
        }
        self.watched.values().map(|watched| watched.due).min()
    }

    fn entry(&self, key: u64) -> Option<Leaving> {
        events::whole(&self.tables.leaving.get(&key, 0).ok()?)
    }

    /// Reports the members of these groups that still hold a netns.
    fn survivors(
        &mut self,
        due: &[(u64, Leaving)],
        now: BootNs,
        facts: &mut Vec<Fact>,
        beside: &impl Beside,
    ) {
        // Before the listing, so that a release after the listing is reported.
        for (key, entry) in due {
            if let Err(error) = self.tables.named.insert(*key, entry.start, 0) {
                tracing::debug!(%error, "probes: a group on its way out is not marked");
            }
        }
        let members = match snapshot::leaving(&self.ebpf) {
            Ok(members) => Some(members),
            Err(error) => {
                tracing::debug!(%error, "probes: groups on their way out are looked at one by one");
                None
            }
        };
        for (key, entry) in due {
            let again = match &members {
                Some(members) => {
                    let mut own = members.iter().filter(|task| task.pid == entry.pid).peekable();
                    let some = own.peek().is_some();
                    own.for_each(|member| tell_member(member, entry, now, facts));
                    some
                }
                // A group that is not visible in our pid namespace.
                None if entry.pid == 0 => false,
                None => {
                    beside.look(entry.pid);
                    std::path::Path::new(&format!("/proc/{}", entry.pid)).exists()
                }
            };
            if again {
                self.watch_on(*key, entry, now, facts);
            } else {
                self.forget(*key, entry, now, facts);
            }
        }
    }

    /// The group still has members.
    fn watch_on(&mut self, key: u64, entry: &Leaving, now: BootNs, facts: &mut Vec<Fact>) {
        let Some(watched) = self.watched.get_mut(&key) else { return };
        watched.due = now.plus(AGAIN);
        if entry.killed != watched.killed {
            watched.killed = entry.killed;
            facts.push(signalled(entry));
        }
    }

    /// Reports a group as released because no member holds a netns, if its entry is unchanged. A changed or removed
    /// entry means that the group ended an exec, and was not listed for that reason.
    fn forget(&mut self, key: u64, entry: &Leaving, now: BootNs, facts: &mut Vec<Fact>) {
        self.watched.remove(&key);
        let same = self.entry(key).is_some_and(|now| {
            (now.start, now.since, now.news) == (entry.start, entry.since, entry.news)
        });
        if !same || self.tables.leaving.remove(&key).is_err() {
            return;
        }
        let _ = self.tables.named.remove(&key);
        let task = TaskKey { pid: entry.pid, tid: entry.pid, start: entry.start / TICK };
        if entry.pid != 0 {
            facts.push(say(now, Observation::TaskReleased { task }));
        }
    }
}

/// Appends the facts of a record, unless it is the canary's.
fn decode(record: &[u8], claims: &Claims, facts: &mut Vec<Fact>) {
    if claims.claims(record) {
        return;
    }
    if let Err(malformed) = events::decode(record, facts) {
        tracing::warn!(%malformed, "probes: a record was skipped");
    }
}

/// Whether an observation is about our own threads, which enter netns briefly to read them.
fn is_of(what: &Observation, own: u32) -> bool {
    match what {
        Observation::Task(task) => task.key.pid == own,
        Observation::TaskExiting { task } | Observation::TaskReleased { task } => task.pid == own,
        _ => false,
    }
}

/// The keys of a table that may change during the listing.
fn bounded<K: Ord>(
    keys: impl Iterator<Item = Result<K, aya::maps::MapError>>,
    most: u32,
) -> BTreeSet<K> {
    keys.take(most as usize * REPEATS).filter_map(Result::ok).collect()
}

fn say(at: BootNs, what: Observation) -> Fact {
    Fact { at, origin: Origin::Probe, what }
}

/// Reports a member, and since when it has been exiting. The task itself is reported first, because an observation
/// about an unknown task is dropped. A member that is killed but not exiting yet counts as killed from now on; the time
/// of the signal, if known, is reported separately.
fn tell_member(member: &TaskRecord, entry: &Leaving, now: BootNs, facts: &mut Vec<Fact>) {
    let mut said = *member;
    said.header.time = now.0;
    said.flags &= !PF_EXITING;
    said.pending &= !KILL_BIT;
    let key = events::task_key(member);
    let exiting = member.flags & PF_EXITING != 0;
    let since = BootNs(entry.since.max(member.start));
    if entry.ending != 0 && exiting {
        facts.push(say(now, Observation::Task(events::task(&said, None))));
        facts.push(say(since, Observation::TaskExiting { task: key }));
    }
    let task: Task = events::task(member, None);
    facts.push(say(now, Observation::Task(task)));
}

fn signalled(entry: &Leaving) -> Fact {
    let (sender, comm) = match entry.sender {
        0 => (0, "kernel".to_owned()),
        OUTSIDE => (0, events::comm(&entry.comm)),
        pid => (pid, events::comm(&entry.comm)),
    };
    let what = Observation::Signalled {
        pid: entry.pid,
        tid: entry.tid,
        signal: 9,
        group: entry.group != 0,
        by: Sender { pid: sender, comm },
    };
    say(BootNs(entry.killed), what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Leaving {
        Leaving {
            start: 5 * TICK,
            since: 100 * MS,
            killed: 0,
            pid: 7,
            ending: 1,
            news: 0,
            tid: 0,
            group: 0,
            sender: 0,
            comm: [0; 16],
        }
    }

    #[test]
    fn a_group_is_left_alone_for_as_long_as_a_healthy_end_takes() {
        let watched = Watched::new(&entry());
        assert_eq!(watched.due, BootNs(100 * MS + SETTLES));
        let alone = Leaving { ending: 0, ..entry() };
        assert_eq!(Watched::new(&alone).due, BootNs(100 * MS + YOUNG), "its threads live on");
    }

    #[test]
    fn what_happens_to_a_group_that_was_told_brings_the_next_look_forward() {
        let now = BootNs(10_000 * MS);
        let told = || Watched { due: now.plus(AGAIN), ..Watched::new(&entry()) };
        let mut watched = told();
        watched.update(&entry(), now);
        assert_eq!(watched.due, now.plus(AGAIN), "nothing new");
        watched.update(&Leaving { news: 1, ..entry() }, now);
        assert_eq!(watched.due, now.plus(SETTLES), "one more of its threads exits");
        let mut watched = told();
        watched.update(&Leaving { killed: now.0, ..entry() }, now);
        assert_eq!(watched.due, now.plus(SETTLES), "somebody sent it SIGKILL");
        let mut watched = told();
        let other = Leaving { start: 9 * TICK, since: now.0, ..entry() };
        watched.update(&other, now);
        assert_eq!(watched.due, now.plus(SETTLES), "another group has its place");
    }

    #[test]
    fn a_member_is_told_with_the_time_at_which_its_group_began_to_end() {
        let mut facts = Vec::new();
        let record = TaskRecord {
            header: Header { kind: kind::TASK_SEEN, size: 0, reserved: 0, time: 0 },
            netns: ipwatch_common::Netns { cookie: 3, inode: 4, refs: 0 },
            pid: 7,
            tid: 8,
            start: 6 * TICK,
            parent: 1,
            flags: PF_EXITING,
            state: 0,
            exit_state: 0,
            pending: 0,
            idle: 0,
            comm: [0; 16],
        };
        tell_member(&record, &entry(), BootNs(2_000 * MS), &mut facts);
        let exiting = facts.iter().position(|fact| {
            matches!(fact.what, Observation::TaskExiting { task } if task.tid == 8 && fact.at.0 == 100 * MS)
        });
        assert_eq!(exiting, Some(1), "after the task itself, which nobody may know yet: {facts:?}");
        let waits = TaskRecord { flags: 0, pending: KILL_BIT, ..record };
        facts.clear();
        tell_member(&waits, &entry(), BootNs(2_000 * MS), &mut facts);
        assert!(
            matches!(&facts[..], [Fact { what: Observation::Task(task), .. }] if task.killed && !task.exiting)
        );
    }

    #[test]
    fn who_sent_the_signal_is_told_with_its_time() {
        let mut comm = [0; 16];
        comm[..4].copy_from_slice(b"runc");
        let entry = Leaving { killed: 200 * MS, sender: 9, group: 1, tid: 7, comm, ..entry() };
        let fact = signalled(&entry);
        assert_eq!(fact.at, BootNs(200 * MS));
        let by = Sender { pid: 9, comm: "runc".to_owned() };
        assert_eq!(
            fact.what,
            Observation::Signalled { pid: 7, tid: 7, signal: 9, group: true, by }
        );
        let by_kernel = signalled(&Leaving { sender: 0, ..entry });
        assert!(matches!(by_kernel.what, Observation::Signalled { by, .. } if by.comm == "kernel"));
    }
}
