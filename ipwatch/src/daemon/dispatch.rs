//! Sends the map's requests to the threads that can answer them.
//!
//! There are three threads because they block for different reasons: `netns` enters namespaces and uses netlink
//! there, `looks` reads one task at a time, `search` makes whole passes. None may delay another, and none the core: a
//! job that finds its queue full is dropped, and the map asks again. What strangers can make many the map asks for some at a
//! time, so that none of it is dropped. A thread that hangs in the kernel is replaced ([`workers`]). The container runtimes
//! are asked without a thread.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use super::jobs::{LookJob, NetnsJob, SearchJob};
use super::readers::{self, Searcher, Visitor};
use super::restarts::{Pace, Part, Restarts, Trouble, Troubles};
use super::workers::{self, Post};
use crate::fact::{BootNs, NetnsRef, Observation, SourceName};
use crate::map::MOST_LOOKS;
use crate::map::request::Request;
use crate::reading::Readings;
use crate::rights::{Rights, Starter};
use crate::sources::Emit;
use crate::sources::probes::{Beside, Snapshots};
use crate::sources::procfs::Proc;
use crate::sources::runtime::Runtimes;

/// Capacity of the queues, in jobs. Their memory is taken at once: `sync_channel` makes every place at the start.
const QUEUE: usize = 4096;
/// The same, of the thread that makes whole passes.
const PASSES: usize = 512;
// What the map asks of the thread that looks at tasks always finds room, though it hangs until it is replaced. The rest is
// for what others ask of it.
const _: () = assert!(MOST_LOOKS + 256 < QUEUE);

const NETNS: Part =
    Part { name: "the thread that enters netns", sources: &[SourceName::Netlink], is_vital: true };
const LOOKS: Part =
    Part { name: "the thread that looks at tasks", sources: &[SourceName::Procfs], is_vital: true };
const SEARCH: Part = Part {
    name: "the thread that searches the node",
    sources: &[SourceName::Procfs],
    is_vital: true,
};

impl Beside for Dispatch {
    fn sweep(&self) {
        self.tasks();
    }

    fn look(&self, pid: u32) {
        self.want(Request::Threads { pid });
    }
}

/// The queues of the threads; cheap to clone.
#[derive(Clone)]
pub(super) struct Dispatch {
    readings: Readings,
    troubles: Troubles,
    netns: SyncSender<Box<NetnsJob>>,
    looks: SyncSender<LookJob>,
    search: SyncSender<SearchJob>,
    runtimes: Runtimes,
    polls: bool,
    /// An event that should be reported is not, so it is polled for.
    polls_also: Arc<AtomicBool>,
}

/// Settings of the threads.
pub(super) struct Settings {
    pub(super) observe_only: bool,
    /// Tasks that start, end or move are not all reported by events: an answer needs a fresh look.
    pub(super) polls: bool,
    pub(super) host: NetnsRef,
    pub(super) proc: Proc,
}

impl Dispatch {
    /// Starts the threads, and watches them.
    pub(super) fn start(
        settings: Settings,
        emit: &Emit,
        snapshots: Option<Snapshots>,
        runtimes: Runtimes,
        (readings, troubles): (Readings, Troubles),
        starter: &Starter,
    ) -> io::Result<Self> {
        let (netns, netns_jobs) = sync_channel(QUEUE);
        let (looks, look_jobs) = sync_channel(QUEUE);
        let (search, search_jobs) = sync_channel(PASSES);
        let Settings { observe_only, polls, host, proc: of_search } = settings;

        let visitor = Visitor { observe_only, out: emit.clone() };
        let post = |part| Restarts::new(part, Pace::default(), &troubles);
        let named = |name, rights| (name, rights, starter);
        let netns_thread = named("netns", Rights::EnterNetns);
        let visits =
            Post::start(netns_thread, post(NETNS), &readings, netns_jobs, move |worker| {
                visitor.work(worker)
            })?;
        let (proc, out) = (of_search.clone(), emit.clone());
        let looks_thread = named("looks", Rights::ReadProcesses);
        let looking =
            Post::start(looks_thread, post(LOOKS), &readings, look_jobs, move |worker| {
                readers::look(worker, &proc, host, &out)
            })?;
        let searcher = Searcher {
            out: emit.clone(),
            netns: netns.clone(),
            proc: of_search,
            has_snapshots: snapshots.is_some(),
            snapshots: Arc::new(Mutex::new(snapshots)),
            host,
            procfs_failed: Arc::default(),
        };
        let search_thread = named("search", Rights::Search);
        let searching =
            Post::start(search_thread, post(SEARCH), &readings, search_jobs, move |worker| {
                searcher.work(worker)
            })?;
        let polls_also = Arc::default();
        let dispatch =
            Self { readings, troubles, netns, looks, search, runtimes, polls, polls_also };
        let again = dispatch.clone();
        let posts: Vec<Box<dyn workers::Watched>> =
            vec![Box::new(visits), Box::new(looking), Box::new(searching)];
        let (readings, troubles) = (dispatch.readings.clone(), dispatch.troubles.clone());
        let watch =
            workers::watch(posts, readings, troubles, emit.clone(), move || again.snapshot());
        tokio::spawn(watch);
        Ok(dispatch)
    }

    /// Queues a request. If there is no room, the map asks again: by itself, or after it is given the returned
    /// observation.
    pub(super) fn want(&self, want: Request) -> Option<Observation> {
        let taken = match want {
            Request::Adopt { netns, doors, neighbours } => {
                let job = NetnsJob::Adopt { netns, doors, neighbours };
                let taken = self.visit(job);
                return (!taken).then_some(Observation::NetnsClosed { netns });
            }
            Request::Peers { netns, doors, numbers } => {
                self.visit(NetnsJob::Peers { netns, doors, numbers })
            }
            Request::Host => self.visit(NetnsJob::Host),
            Request::Look { task } => self.looks.try_send(LookJob::Look(task)).is_ok(),
            Request::Threads { pid } => self.looks.try_send(LookJob::Threads(pid)).is_ok(),
            Request::Cgroup { task } => self.looks.try_send(LookJob::Cgroup(task)).is_ok(),
            Request::Holders { netns } => self.search.try_send(SearchJob::Holders(netns)).is_ok(),
            Request::Runtime { runtime } => {
                self.runtimes.ask(&runtime);
                true
            }
            Request::ContainerMounts { ids } => {
                self.search.try_send(SearchJob::ContainerMounts(ids)).is_ok()
            }
            Request::Cleanup => self.looks.try_send(LookJob::Cleanup).is_ok(),
            Request::Walk { everywhere } => {
                let job = SearchJob::Snapshot { mounts: false, done: None };
                let taken = self.search.try_send(job).is_ok();
                taken && (!everywhere || self.search.try_send(SearchJob::AllMounts).is_ok())
            }
        };
        if !taken {
            tracing::debug!("a job was dropped: its thread is busy");
        }
        None
    }

    /// Queues a job of the thread that enters netns. Returns whether there was room.
    fn visit(&self, job: NetnsJob) -> bool {
        self.netns.try_send(Box::new(job)).is_ok()
    }

    /// Reads everything: netns, tasks, mounts, and the host's links and addresses.
    pub(super) fn snapshot(&self) {
        self.visit(NetnsJob::Host);
        let _ = self.search.try_send(SearchJob::Snapshot { mounts: true, done: None });
    }

    /// Reads only the list of netns.
    pub(super) fn walk(&self) {
        let _ = self.search.try_send(SearchJob::Walk);
    }

    /// Reads only which task is in which netns.
    pub(super) fn tasks(&self) {
        let _ = self.search.try_send(SearchJob::Tasks);
    }

    /// Reads everything that probes list: netns, tasks and files.
    pub(super) fn lists(&self) {
        let _ = self.search.try_send(SearchJob::Lists);
    }

    /// Reads the netns mounts, after a change of the mount table.
    pub(super) fn mounts(&self) {
        let _ = self.search.try_send(SearchJob::Mounts);
    }

    /// Whether an answer needs a fresh look, because events do not report everything.
    pub(super) fn polls(&self) -> bool {
        self.polls || self.polls_also.load(Relaxed)
    }

    /// Sets whether to poll for an event that is attached but not reported.
    pub(super) fn poll_also(&self, polls: bool) {
        self.polls_also.store(polls, Relaxed);
    }

    /// Reads netns and tasks. The receiver completes when the facts are on their way to the core.
    pub(super) fn refresh(&self) -> oneshot::Receiver<()> {
        let (done, receiver) = oneshot::channel();
        let job = SearchJob::Snapshot { mounts: false, done: Some(done) };
        // If the queue is full, `done` is dropped with the job and the receiver completes at once.
        let _ = self.search.try_send(job);
        receiver
    }

    /// The netns of any process.
    pub(super) fn presence(&self, pid: u32) -> oneshot::Receiver<Option<NetnsRef>> {
        let (answer, receiver) = oneshot::channel();
        let _ = self.looks.try_send(LookJob::Presence(pid, answer));
        receiver
    }

    /// Parts that have ended and reads that hang, by the source that they concern.
    pub(super) fn troubles(&self, now: BootNs) -> Vec<Trouble> {
        let mut troubles = self.troubles.report();
        for (source, text) in self.readings.report(now) {
            let is_blind = self.readings.is_blind(source);
            match troubles.iter_mut().find(|trouble| trouble.source == source) {
                Some(trouble) => {
                    trouble.text = format!("{}; {text}", trouble.text);
                    trouble.is_blind |= is_blind;
                }
                None => troubles.push(Trouble { source, text, ended: None, is_blind }),
            }
        }
        troubles
    }

    /// Waits until a part ends or works again. Cancel-safe, for a single waiter.
    pub(super) async fn troubled(&self) {
        self.troubles.changed().await;
    }
}
