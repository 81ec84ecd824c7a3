//! Sends what the map wants to know to the threads that can find it out.
//!
//! Three threads, because their troubles differ: `netns` enters namespaces and talks netlink there,
//! `looks` reads one task at a time, `search` makes whole passes. None may hold up another, and none
//! the core: a job that finds its queue full is dropped, and the map asks again. The container runtimes
//! are asked without a thread.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};

use tokio::sync::oneshot;

use super::orphans::Ask;
use super::threads::{self, Searcher, Visitor};
use crate::clock;
use crate::fact::{BootNs, NetnsRef, TaskKey, What};
use crate::map::want::{Door, Want};
use crate::sources::Emit;
use crate::sources::probes::Snapshots;
use crate::sources::procfs::Proc;
use crate::sources::runtime::Runtimes;

/// Jobs that may wait for one thread.
const QUEUE: usize = 4096;

/// For the thread `netns`.
pub(super) enum NetnsJob {
    Host,
    Adopt { netns: NetnsRef, doors: Vec<Door> },
    Peers { netns: NetnsRef, doors: Vec<Door>, numbers: BTreeSet<i32> },
    Orphans(Ask),
}

/// For the thread `looks`.
pub(super) enum LookJob {
    Look(TaskKey),
    Threads(u32),
    Cgroup(TaskKey),
    Cleanup,
    Presence(u32, oneshot::Sender<Option<NetnsRef>>),
}

/// For the thread `search`.
pub(super) enum SearchJob {
    /// Netns and tasks, and with `mounts` the netns mounts too.
    Snapshot {
        mounts: bool,
        done: Option<oneshot::Sender<()>>,
    },
    Walk,
    Tasks,
    /// Every list that probes give.
    Lists,
    Mounts,
    Holders(Vec<NetnsRef>),
    ContainerMounts(Vec<String>),
}

/// Since when a thread has been busy with its job, on the boot clock; 0 while it waits for one.
#[derive(Debug, Clone, Default)]
pub(super) struct Busy(Arc<AtomicU64>);

impl Busy {
    /// Does a job and keeps the time.
    pub(super) fn during<T>(&self, job: impl FnOnce() -> T) -> T {
        self.0.store(clock::now().0, Relaxed);
        let done = job();
        self.0.store(0, Relaxed);
        done
    }

    fn hangs(&self, now: BootNs) -> bool {
        let since = self.0.load(Relaxed);
        since != 0 && now.since(BootNs(since)) > HANGS_AFTER
    }
}

/// A job that takes longer hangs in the kernel.
const HANGS_AFTER: u64 = 10_000_000_000;

/// Where jobs are put.
#[derive(Clone)]
pub(super) struct Desk {
    busy: [Busy; 3],
    netns: SyncSender<NetnsJob>,
    looks: SyncSender<LookJob>,
    search: SyncSender<SearchJob>,
    runtimes: Runtimes,
    polls: bool,
    /// An event that was to be told is not, so that it is polled for.
    polls_also: Arc<AtomicBool>,
}

/// How the threads work.
pub(super) struct Settings {
    pub(super) observe_only: bool,
    /// Tasks that come and go, or move, are not pushed: whoever asks wants a fresh look.
    pub(super) polls: bool,
    pub(super) host: NetnsRef,
}

impl Desk {
    /// Starts the threads. `requests` is made on the thread that uses it, because it moves between
    /// netns.
    pub(super) fn start(
        settings: Settings,
        emit: &Emit,
        snapshots: Option<Snapshots>,
        runtimes: Runtimes,
    ) -> io::Result<Self> {
        let (netns, netns_jobs) = sync_channel(QUEUE);
        let (looks, look_jobs) = sync_channel(QUEUE);
        let (search, search_jobs) = sync_channel(QUEUE);
        let busy = <[Busy; 3]>::default();
        let [netns_busy, look_busy, search_busy] = busy.clone();
        let Settings { observe_only, polls, host } = settings;

        let visitor = Visitor { observe_only, out: emit.clone(), busy: netns_busy };
        threads::spawn("netns", move || visitor.work(netns_jobs))?;
        let out = emit.clone();
        threads::spawn("looks", move || {
            threads::look(&look_jobs, &Proc::new(), host, &out, &look_busy)
        })?;
        let searcher = Searcher {
            out: emit.clone(),
            netns: netns.clone(),
            proc: Proc::new(),
            snapshots,
            host,
            busy: search_busy,
            procfs_failed: None,
        };
        threads::spawn("search", move || searcher.work(&search_jobs))?;
        let polls_also = Arc::default();
        Ok(Self { busy, netns, looks, search, runtimes, polls, polls_also })
    }

    /// Finds it out, or lets the map ask again: by itself, or because it is told what is returned.
    pub(super) fn want(&self, want: Want) -> Option<What> {
        let taken = match want {
            Want::Adopt { netns, doors } => {
                let taken = self.netns.try_send(NetnsJob::Adopt { netns, doors }).is_ok();
                return (!taken).then_some(What::NetnsClosed { netns });
            }
            Want::Peers { netns, doors, numbers } => {
                self.netns.try_send(NetnsJob::Peers { netns, doors, numbers }).is_ok()
            }
            Want::Host => self.netns.try_send(NetnsJob::Host).is_ok(),
            Want::Look { task } => self.looks.try_send(LookJob::Look(task)).is_ok(),
            Want::Threads { pid } => self.looks.try_send(LookJob::Threads(pid)).is_ok(),
            Want::Cgroup { task } => self.looks.try_send(LookJob::Cgroup(task)).is_ok(),
            Want::Holders { netns } => self.search.try_send(SearchJob::Holders(netns)).is_ok(),
            Want::Runtime { runtime } => {
                self.runtimes.ask(&runtime);
                true
            }
            Want::ContainerMounts { ids } => {
                self.search.try_send(SearchJob::ContainerMounts(ids)).is_ok()
            }
            Want::Cleanup => self.looks.try_send(LookJob::Cleanup).is_ok(),
            Want::Walk => {
                let job = SearchJob::Snapshot { mounts: false, done: None };
                self.search.try_send(job).is_ok()
            }
        };
        if !taken {
            tracing::debug!("a job was dropped: its thread is busy");
        }
        None
    }

    /// Reads everything: netns, tasks, mounts, and the host's links and addresses.
    pub(super) fn snapshot(&self) {
        let _ = self.netns.try_send(NetnsJob::Host);
        let _ = self.search.try_send(SearchJob::Snapshot { mounts: true, done: None });
    }

    /// Only which netns there are.
    pub(super) fn walk(&self) {
        let _ = self.search.try_send(SearchJob::Walk);
    }

    /// Only which tasks are where.
    pub(super) fn tasks(&self) {
        let _ = self.search.try_send(SearchJob::Tasks);
    }

    /// Everything that probes list: netns, tasks and files.
    pub(super) fn lists(&self) {
        let _ = self.search.try_send(SearchJob::Lists);
    }

    /// The mount table has changed.
    pub(super) fn mounts(&self) {
        let _ = self.search.try_send(SearchJob::Mounts);
    }

    /// Whether an answer needs a fresh look, because not everything is pushed.
    pub(super) fn polls(&self) -> bool {
        self.polls || self.polls_also.load(Relaxed)
    }

    /// An event is not told although it was to be, or is again.
    pub(super) fn poll_also(&self, polls: bool) {
        self.polls_also.store(polls, Relaxed);
    }

    /// Reads netns and tasks; done when what was read is on its way to the core.
    pub(super) fn refresh(&self) -> oneshot::Receiver<()> {
        let (done, receiver) = oneshot::channel();
        let job = SearchJob::Snapshot { mounts: false, done: Some(done) };
        // When the queue is full, `done` is dropped with the job and the answer does not wait.
        let _ = self.search.try_send(job);
        receiver
    }

    /// The netns of a process, whichever that is.
    pub(super) fn presence(&self, pid: u32) -> oneshot::Receiver<Option<NetnsRef>> {
        let (answer, receiver) = oneshot::channel();
        let _ = self.looks.try_send(LookJob::Presence(pid, answer));
        receiver
    }

    /// Sources whose thread hangs: what they would tell is unknown.
    pub(super) fn hanging(&self, now: BootNs) -> Vec<&'static str> {
        let names = ["netlink", "procfs", "procfs"];
        let hanging = self.busy.iter().zip(names).filter(|(busy, _)| busy.hangs(now));
        hanging.map(|(_, name)| name).collect()
    }
}
