//! The threads behind the [`dispatch`](super::dispatch): each takes jobs, reads from its source, and emits the facts.

use std::io;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::jobs::{LookJob, NetnsJob, SearchJob};
use super::search_pace::Pace;
use super::workers::{Ended, Worker, doubted, still_holds};
use super::{fds_in_flight, orphan_sockets};
use crate::clock;
use crate::fact::{Fact, Holder, NetnsRef, Observation, Origin, Source, SourceName, SourceStatus};
use crate::sources::netlink::{AdoptError, Requests};
use crate::sources::probes::Snapshots;
use crate::sources::procfs::{Proc, Search};
use crate::sources::{Closed, Emit};

/// The thread `netns`, which enters namespaces.
#[derive(Clone)]
pub(super) struct Visitor {
    pub(super) observe_only: bool,
    pub(super) out: Emit,
}

impl Visitor {
    /// Works until the daemon shuts down. A thread that cannot return from a netns must not go on: it ends, and a new
    /// thread takes its jobs.
    pub(super) fn work(&self, worker: &Worker<Box<NetnsJob>>) -> Ended {
        let requests = Requests::new();
        let mut requests =
            requests.map_err(|error| format!("no network namespace can be read: {error}"))?;
        while let Some(job) = worker.next() {
            let adopting = match &*job {
                NetnsJob::Adopt { netns, .. } => Some(*netns),
                _ => None,
            };
            let (answer, left) = worker.during(|| match *job {
                NetnsJob::Host => requests.dump_host(),
                NetnsJob::Adopt { netns, doors, neighbours } => {
                    requests.adopt(netns, &doors, &neighbours, self.observe_only)
                }
                NetnsJob::Peers { netns, doors, numbers } => requests.peers(netns, &doors, numbers),
                NetnsJob::Orphans(ask) => ask.with(&mut requests, self.observe_only),
            });
            let (facts, error) = match answer {
                Ok(facts) => (facts, None),
                Err(error) => {
                    let facts = adopting.map_or_else(Vec::new, |netns| refused(netns, &error));
                    (facts, Some(error))
                }
            };
            let told = left.as_ref().and_then(doubted);
            if self.out.send_blocking(facts.into_iter().chain(told).collect()).is_err()
                || left.is_some()
            {
                return Ok(());
            }
            match error {
                Some(error) if error.is_fatal() => return Err(error.to_string()),
                Some(error) => tracing::debug!("{error}"),
                None => {}
            }
        }
        Ok(())
    }
}

/// The facts to report if a netns could not be opened. If another netns was entered instead, it has the inode of the
/// requested one, whose end may not have been reported.
fn refused(netns: NetnsRef, error: &AdoptError) -> Vec<Fact> {
    let entered = match error {
        AdoptError::Mismatch { found, .. } => {
            netns.inode.is_none_or(|_| netns.inode == found.inode).then_some(*found)
        }
        _ => None,
    };
    let told = entered.map(|netns| Observation::Netns { netns }).into_iter();
    let told = told.chain([Observation::NetnsClosed { netns }]);
    let at = clock::now();
    told.map(|what| Fact { at, origin: Origin::Netlink, what }).collect()
}

/// Whether a fact is of a task in one of these netns.
fn is_task_in(fact: &Fact, wanted: &[NetnsRef]) -> bool {
    match &fact.what {
        Observation::Task(task) => {
            wanted.iter().any(|netns| orphan_sockets::is_same(&task.netns, netns))
        }
        _ => false,
    }
}

/// Whether a fact is of what holds one of these netns.
fn holds_one_of(fact: &Fact, wanted: &[NetnsRef]) -> bool {
    match &fact.what {
        Observation::Holder { netns: held, .. } => {
            wanted.iter().any(|netns| orphan_sockets::is_same(held, netns))
        }
        _ => false,
    }
}

/// Removes our own threads and files: they are in a netns briefly to read it, and hold none.
fn of_others(mut facts: Vec<Fact>) -> Vec<Fact> {
    let own = std::process::id();
    facts.retain(|fact| match &fact.what {
        Observation::Task(task) => task.key.pid != own,
        Observation::Holder {
            holder: Holder::Fd { pid, .. } | Holder::Socket { pid, .. }, ..
        } => *pid != own,
        _ => true,
    });
    facts
}

/// The thread `looks`, which reads one task at a time.
pub(super) fn look(worker: &Worker<LookJob>, proc: &Proc, host: NetnsRef, out: &Emit) -> Ended {
    while let Some(job) = worker.next() {
        let (facts, left) = worker.during(|| match job {
            LookJob::Look(task) => proc.look(task).map(|fact| vec![fact]),
            LookJob::Threads(pid) => proc.threads(pid, host),
            LookJob::Cgroup(task) => proc.cgroup(task).map(|fact| fact.into_iter().collect()),
            LookJob::Cleanup => proc.cleanup_worker().map(|fact| vec![fact]),
            LookJob::Presence(pid, answer) => {
                let _ = answer.send(proc.netns_of(pid).ok());
                Ok(Vec::new())
            }
        });
        let mut facts = facts.unwrap_or_else(|error| {
            tracing::debug!("procfs: {error}");
            Vec::new()
        });
        if let Some(target) = &left {
            facts = still_holds(facts);
            facts.extend(doubted(target));
        }
        if out.send_blocking(facts).is_err() || left.is_some() {
            return Ok(());
        }
    }
    Ok(())
}

/// The thread `search`, which makes whole passes over the node.
#[derive(Clone)]
pub(super) struct Searcher {
    pub(super) out: Emit,
    /// Queue of the thread that can enter netns.
    pub(super) netns: SyncSender<Box<NetnsJob>>,
    pub(super) proc: Proc,
    /// Shared with a thread that was left behind, which keeps the lock while it hangs in a snapshot.
    pub(super) snapshots: Arc<Mutex<Option<Snapshots>>>,
    pub(super) has_snapshots: bool,
    pub(super) host: NetnsRef,
    /// Whether the last pass over `/proc` failed; `None` before the first.
    pub(super) procfs_failed: Arc<Mutex<Option<bool>>>,
}

impl Searcher {
    pub(super) fn work(&self, worker: &Worker<SearchJob>) -> Ended {
        let mut pace = Pace::default();
        while let Some(job) = next(worker, &mut pace) {
            let (began, is_search) = (clock::now(), matches!(job, SearchJob::Holders(_)));
            let (searched, left) = worker.during(|| self.search(job));
            if is_search {
                pace.ended(began, clock::now());
            }
            let told = left.as_ref().and_then(doubted).into_iter().collect();
            let told = self.out.send_blocking(told);
            if searched.is_err() || told.is_err() || left.is_some() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The snapshots; `None` if there are none, or if another thread hangs in one.
    fn snapshots(&self) -> Option<MutexGuard<'_, Option<Snapshots>>> {
        let guard = match self.snapshots.try_lock() {
            Err(std::sync::TryLockError::Poisoned(error)) => error.into_inner(),
            guard => guard.ok()?,
        };
        guard.is_some().then_some(guard)
    }

    fn search(&self, job: SearchJob) -> Result<(), Closed> {
        match job {
            // The client has stopped waiting.
            SearchJob::Snapshot { done: Some(done), .. } if done.is_closed() => Ok(()),
            SearchJob::Snapshot { mounts, done } => {
                let taken = self.snapshot(mounts);
                if let Some(done) = done {
                    // The client may have given up.
                    let _ = done.send(());
                }
                taken
            }
            SearchJob::Walk => self.walk(),
            SearchJob::Tasks => self.tasks(),
            SearchJob::Lists => self.lists(),
            SearchJob::Mounts => self.mounts(),
            // If BPF lists the netns, mounts add nothing.
            SearchJob::AllMounts if self.has_snapshots => Ok(()),
            SearchJob::AllMounts => self.all_mounts(),
            SearchJob::Holders(sought) => {
                let netns: Vec<NetnsRef> = sought.iter().map(|one| one.netns).collect();
                self.holders(&netns)
            }
            SearchJob::ContainerMounts(ids) => self.container_mounts(&ids),
        }
    }

    fn snapshot(&self, mounts: bool) -> Result<(), Closed> {
        self.walk()?;
        self.tasks()?;
        // Without BPF only the mounts show a netns without tasks.
        if mounts || !self.has_snapshots { self.mounts() } else { Ok(()) }
    }

    fn walk(&self) -> Result<(), Closed> {
        let Some(facts) =
            self.snapshots().and_then(|mut snapshots| Some(snapshots.as_mut()?.netns()))
        else {
            return Ok(());
        };
        self.put("netns walk", facts)
    }

    fn tasks(&self) -> Result<(), Closed> {
        let facts = self.read_tasks()?;
        self.put("tasks", facts)
    }

    fn read_tasks(&self) -> Result<io::Result<Vec<Fact>>, Closed> {
        let taken = self.snapshots().and_then(|mut snapshots| Some(snapshots.as_mut()?.tasks()));
        if let Some(taken) = taken {
            match taken {
                Ok(facts) => return Ok(Ok(of_others(facts))),
                Err(error) => tracing::debug!("task snapshot: {error}"),
            }
        }
        let began = clock::now();
        let facts = self.proc.tasks(self.host).map(|facts| of_others(stamped(facts, began)));
        self.tell_procfs(facts.as_ref().err())?;
        Ok(facts)
    }

    fn lists(&self) -> Result<(), Closed> {
        self.walk()?;
        self.tasks()?;
        let taken = self.snapshots().and_then(|mut snapshots| Some(snapshots.as_mut()?.files(&[])));
        let Some(taken) = taken else { return Ok(()) };
        self.put("files", taken.map(|(facts, _)| of_others(facts)))
    }

    fn mounts(&self) -> Result<(), Closed> {
        let began = clock::now();
        let facts = self.proc.mounts().map(|facts| stamped(facts, began));
        self.tell_procfs(facts.as_ref().err())?;
        self.put("mounts", facts)
    }

    fn all_mounts(&self) -> Result<(), Closed> {
        let began = clock::now();
        let facts = self.proc.all_mounts().map(|facts| stamped(facts, began));
        self.put("all mounts", facts)
    }

    /// Everything that may hold these netns: threads, mounts, fds, sockets, connections without a process, and if there is
    /// none of these, fds in flight.
    fn holders(&self, netns: &[NetnsRef]) -> Result<(), Closed> {
        let began = clock::now();
        let tasks = self.read_tasks()?;
        let inside = tasks.iter().flatten().filter(|fact| is_task_in(fact, netns));
        let mut beside: Vec<Fact> = inside.cloned().collect();
        self.put("tasks", tasks)?;
        let mut search = Search::everything();
        let mut files_whole = true;
        let taken =
            self.snapshots().and_then(|mut snapshots| Some(snapshots.as_mut()?.files(netns)));
        if let Some(taken) = taken {
            match taken {
                Ok((facts, whole)) => {
                    let facts = of_others(facts);
                    search = Search::mounts();
                    files_whole = whole;
                    beside.extend(facts.iter().filter(|fact| holds_one_of(fact, netns)).cloned());
                    self.out.send_blocking(facts)?;
                }
                Err(error) => tracing::debug!("file snapshot: {error}"),
            }
        }
        let facts = self.proc.search(netns, search).map(|mut facts| {
            if !files_whole {
                netns.iter().for_each(|netns| orphan_sockets::leave_open(&mut facts, netns));
            }
            orphan_sockets::add(&self.netns, netns, &beside, &mut facts);
            fds_in_flight::add(&self.proc, netns, &beside, &mut facts);
            of_others(stamped(facts, began))
        });
        self.tell_procfs(facts.as_ref().err())?;
        self.put("holders", facts)
    }

    fn container_mounts(&self, ids: &[String]) -> Result<(), Closed> {
        let began = clock::now();
        let facts = self.proc.container_mounts(ids).map(|facts| stamped(facts, began));
        self.tell_procfs(facts.as_ref().err())?;
        self.put("container mounts", facts)
    }

    fn put<E: std::fmt::Display>(
        &self,
        what: &str,
        facts: Result<Vec<Fact>, E>,
    ) -> Result<(), Closed> {
        match facts {
            Ok(facts) => self.out.send_blocking(facts),
            Err(error) => {
                tracing::debug!("{what}: {error}");
                Ok(())
            }
        }
    }

    /// Reports the status of `/proc` if it has changed.
    fn tell_procfs(&self, error: Option<&io::Error>) -> Result<(), Closed> {
        let failed = Some(error.is_some());
        let mut before = self.procfs_failed.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *before, failed) == failed {
            return Ok(());
        }
        drop(before);
        let fact = match error {
            None => self.proc.state(),
            Some(error) => {
                let detail = format!("/proc does not answer: {error}");
                let (name, status) = (SourceName::Procfs.into(), SourceStatus::Down);
                let what = Observation::Source(Source { name, status, detail });
                Fact { at: clock::now(), origin: Origin::Procfs, what }
            }
        };
        self.out.send_blocking(vec![fact])
    }
}

/// The next job; the searches for holders are one, and wait for their turn.
fn next(worker: &Worker<SearchJob>, pace: &mut Pace) -> Option<SearchJob> {
    loop {
        let job = match pace.due() {
            None => worker.next().map(Some)?,
            Some(due) if due <= clock::now() => None,
            Some(due) => worker.next_before(due)?,
        };
        match job {
            Some(SearchJob::Holders(netns)) => pace.add(netns),
            Some(job) => return Some(job),
            None => return Some(SearchJob::Holders(pace.take())),
        }
    }
}

/// Stamps the facts of a pass with the time at which it began, so that they do not override newer events.
fn stamped(mut facts: Vec<Fact>, began: crate::fact::BootNs) -> Vec<Fact> {
    for fact in &mut facts {
        fact.at = began;
        if let Observation::Ended { began: opened, .. } = &mut fact.what {
            *opened = began;
        }
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_the_inode_by_now_is_told() {
        let old = NetnsRef { cookie: Some(7), inode: Some(70), nsid: Some(3) };
        let told = |found| {
            let facts = refused(old, &AdoptError::Mismatch { wanted: old, found });
            facts.into_iter().map(|fact| fact.what).collect::<Vec<_>>()
        };
        let closed = Observation::NetnsClosed { netns: old };
        let new = NetnsRef { cookie: Some(8), inode: Some(70), nsid: None };
        assert_eq!(told(new), [Observation::Netns { netns: new }, closed.clone()]);
        // Another inode: that netns was not entered, and may be a namespace of another kind.
        assert_eq!(told(NetnsRef::inode(71)), std::slice::from_ref(&closed));
        let facts = refused(old, &AdoptError::Closed("gone".to_owned()));
        assert_eq!(facts.into_iter().map(|fact| fact.what).collect::<Vec<_>>(), [closed]);
    }
}
