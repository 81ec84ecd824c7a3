//! Whether a container may belong to a runtime that is not queried.
//!
//! The denial of every queried runtime proves nothing about a container of another one. So it counts only if no other
//! runtime can own the container. The possible owners of each container are derived from evidence that does not depend
//! on any runtime's answer:
//!
//! - its monitor, a running containerd-shim or conmon (`fact::Monitor`). The monitor's working directory is the
//!   container's bundle, which names the runtime's state directory and therefore the instance. It is trusted in both
//!   directions: only root outside of containers can run one (`sources/procfs/runtimes.rs`).
//! - its cgroup, which names the kind of runtime under the systemd driver. It is trusted to rule a kind out, unless it
//!   is within another container's cgroup or within a part of the tree that a user's systemd manages: there users other
//!   than root create cgroups.
//! - the path of its netns, as reported by its runtime, the CNI result cache or the ADD: files and arguments of root's.
//!   It is trusted to rule a kind out.
//!
//! The running runtimes are known from the list of processes (`fact::RuntimeProcess`). Without such a list, as in old
//! recordings, nothing is in doubt.

use std::collections::BTreeMap;

use crate::fact::{BootNs, Engine, Monitor, RuntimeProcess};

use super::sandbox::strip_var;
use crate::fact::cgroup::{attribution, is_roots};
use crate::map::NodeMap;

/// The containerd namespace that its CRI plugin shows.
const KUBERNETES: &str = "k8s.io";
/// Maximum number of tasks of one netns that are checked.
const LOOKED_AT: usize = 64;

/// Why no queried runtime can tell whether a container lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why<'a> {
    /// A queried runtime does not answer, or no report of the runtimes has arrived yet.
    Silent,
    /// No queried runtime has a pod: the kubelet's runtime may be another.
    NoPods,
    /// This runtime runs and is not queried, and may own the container.
    NotAsked(&'a RuntimeProcess),
    /// The container's monitor runs, and was started by none of the queried runtimes.
    Monitored(&'a Monitor),
    /// The list of running runtimes could not be read.
    Unread,
}

/// The runtimes and monitors that run on the node.
#[derive(Debug, Default)]
pub(in crate::map) struct Processes {
    /// Whether they have been reported.
    told: bool,
    complete: bool,
    runtimes: Vec<RuntimeProcess>,
    monitors: Vec<Monitor>,
    by_container: BTreeMap<String, usize>,
    by_child: BTreeMap<u32, usize>,
}

impl NodeMap {
    pub(in crate::map) fn set_runtime_processes(
        &mut self,
        runtimes: &[RuntimeProcess],
        monitors: &[Monitor],
        complete: bool,
    ) {
        let (mut by_container, mut by_child) = (BTreeMap::new(), BTreeMap::new());
        for (index, monitor) in monitors.iter().enumerate() {
            by_container.extend(monitor.container_id.clone().map(|id| (id, index)));
            by_child.extend(monitor.children.iter().map(|pid| (*pid, index)));
        }
        self.workload.processes = Processes {
            told: true,
            complete,
            runtimes: runtimes.to_vec(),
            monitors: monitors.to_vec(),
            by_container,
            by_child,
        };
        self.workload.owners.ask_all();
        self.ipam.ask_all_leaks();
    }

    /// When the last runtime was started, if each was started after a sandbox was being made, and has been listed since.
    /// An earlier run of them made it: none is at work on it, because a runtime forgets unfinished work when it ends.
    ///
    /// `seen` is when something of the sandbox was first seen. Only the boot clock counts here: if the wall clock was
    /// set between two dates, they are not in the order in which they were written.
    #[must_use]
    pub fn runtimes_started_after(&self, sandbox: &str, seen: Option<BootNs>) -> Option<BootNs> {
        let added = self.call_history(sandbox).and_then(|history| history.add.first);
        let made = seen.into_iter().chain(added).min()?;
        let (oldest, last) = self.workload.processes.started()?;
        (oldest > made && self.all_listed()? > last).then_some(last)
    }

    /// Whether every runtime has been listed since it was started.
    pub(super) fn are_listed_since_their_start(&self) -> bool {
        let started = self.workload.processes.started();
        started.zip(self.all_listed()).is_some_and(|((_, last), listed)| listed > last)
    }

    /// Why the denial of every queried runtime proves nothing about this sandbox. `None` if no other runtime can own
    /// it.
    #[must_use]
    pub fn doubt_about(&self, sandbox: &str) -> Option<Why<'_>> {
        let processes = &self.workload.processes;
        if !processes.told {
            return None;
        }
        if !processes.complete {
            return Some(Why::Unread);
        }
        let mut monitored = false;
        for monitor in self.monitors_of(sandbox) {
            monitored = true;
            if let Some(why) = processes.doubt_by(monitor) {
                return Some(why);
            }
        }
        // The runtime that started the container is queried.
        if monitored {
            return None;
        }
        let mut others = processes.runtimes.iter().filter(|other| is_unasked(other)).peekable();
        others.peek()?;
        let engines = self.engines_of(sandbox);
        others.find(|other| engines.allow(other.engine)).map(Why::NotAsked)
    }

    /// The monitors of a sandbox: the one with its id, and those with children that live in its netns. One of these may
    /// come from another container, so a monitor without doubt does not settle the others.
    fn monitors_of(&self, sandbox: &str) -> impl Iterator<Item = &Monitor> {
        let processes = &self.workload.processes;
        let own = processes.by_container.get(sandbox).copied();
        let netns = self.workload.owners.netns_of(sandbox).filter_map(|id| self.netns(id));
        let lived_in = netns.filter(|netns| !netns.is_visited());
        let tasks = lived_in.flat_map(|netns| netns.tasks().take(LOOKED_AT));
        let parents = tasks.filter_map(|task| processes.by_child.get(&task.pid).copied());
        own.into_iter().chain(parents).filter_map(|index| processes.monitors.get(index))
    }

    /// The kinds of runtimes that can own a sandbox.
    fn engines_of(&self, sandbox: &str) -> Engines {
        let mut engines = Engines::default();
        for path in self.paths_of(sandbox) {
            engines.only(by_path(path));
        }
        let uid = self.pod_of(sandbox).and_then(|pod| pod.uid);
        let netns = self.workload.owners.netns_of(sandbox).filter_map(|id| self.netns(id));
        for (_, cgroup) in netns.flat_map(|netns| netns.cgroups().take(LOOKED_AT)) {
            let Some(path) = cgroup.filter(|path| is_roots(path)) else { continue };
            let Some(found) = attribution(path) else { continue };
            let own = found.container_id.as_deref() == Some(sandbox)
                || uid.is_some() && found.pod_uid == uid;
            if let Some(engine) = found.runtime.filter(|_| own).and_then(by_name) {
                engines.only(&[engine]);
            }
        }
        engines
    }
}

impl Processes {
    /// When the first and the last of the runtimes that run were started, if that is known of all and each is queried.
    fn started(&self) -> Option<(BootNs, BootNs)> {
        let counted = || self.runtimes.iter().filter(|one| !one.ignored);
        if !self.complete || counted().any(is_unasked) {
            return None;
        }
        let started: Option<Vec<BootNs>> = counted().map(|one| one.started).collect();
        let started = started?;
        started.iter().min().copied().zip(started.iter().max().copied())
    }

    /// Whether the container of this monitor may live although every queried runtime denies it.
    fn doubt_by<'a>(&'a self, monitor: &'a Monitor) -> Option<Why<'a>> {
        if monitor.ignored {
            return None;
        }
        let fits =
            |other: &&RuntimeProcess| monitor.engine.is_none_or(|engine| engine == other.engine);
        let mut kind = self.runtimes.iter().filter(fits);
        let owner = match &monitor.dir {
            // Each instance has a state directory of its own.
            Some(dir) => kind.find(|other| other.dirs.contains(dir)),
            // The monitor does not name its instance: assume one that is not queried before one that is.
            None => {
                let asked = kind.clone().find(|other| !is_unasked(other));
                kind.find(|other| is_unasked(other)).or(asked)
            }
        };
        match owner {
            Some(other) if is_unasked(other) => Some(Why::NotAsked(other)),
            // CRI shows only one of containerd's namespaces.
            Some(other) if other.engine == Engine::Containerd && !other.ignored => {
                let hidden = monitor.namespace.as_deref().is_some_and(|name| name != KUBERNETES);
                hidden.then_some(Why::Monitored(monitor))
            }
            Some(_) => None,
            None => Some(Why::Monitored(monitor)),
        }
    }
}

fn is_unasked(other: &RuntimeProcess) -> bool {
    !other.asked && !other.ignored
}

/// A set of kinds; initially all of them.
#[derive(Debug, Default)]
struct Engines(Option<Vec<Engine>>);

impl Engines {
    /// Restricts the set to these kinds. Evidence that contradicts earlier evidence rules nothing out.
    fn only(&mut self, these: &[Engine]) {
        if these.is_empty() {
            return;
        }
        self.0 = Some(match self.0.take() {
            None => these.to_vec(),
            Some(known) => {
                let both: Vec<Engine> =
                    known.iter().copied().filter(|one| these.contains(one)).collect();
                if both.is_empty() {
                    known.into_iter().chain(these.to_vec()).collect()
                } else {
                    both
                }
            }
        });
    }

    fn allow(&self, engine: Engine) -> bool {
        self.0.as_ref().is_none_or(|these| these.contains(&engine))
    }
}

/// The kinds of runtimes that make a netns at this path; empty if the path does not tell.
fn by_path(path: &str) -> &'static [Engine] {
    const PLACES: [(&str, &[Engine]); 4] = [
        ("/run/docker/netns/", &[Engine::Docker]),
        ("/run/crio/ns/", &[Engine::CriO]),
        ("/run/netns/netns-", &[Engine::Podman]),
        // The name that CNI's own library gives.
        ("/run/netns/cni-", &[Engine::Containerd, Engine::CriO, Engine::Podman]),
    ];
    let path = strip_var(path);
    PLACES.iter().find(|(place, _)| path.starts_with(place)).map_or(&[], |(_, these)| these)
}

/// The kind with this name in a cgroup path.
fn by_name(name: &str) -> Option<Engine> {
    let all = [Engine::Containerd, Engine::CriO, Engine::Docker, Engine::Podman];
    all.into_iter().find(|engine| engine.name() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_that_contradict_each_other_rule_nothing_out() {
        let mut engines = Engines::default();
        assert!(engines.allow(Engine::Podman));
        engines.only(by_path("/var/run/netns/cni-1"));
        assert!(engines.allow(Engine::CriO) && !engines.allow(Engine::Docker));
        engines.only(&[Engine::CriO]);
        assert!(engines.allow(Engine::CriO) && !engines.allow(Engine::Containerd));
        engines.only(by_path("/run/docker/netns/0123456789ab"));
        assert!(engines.allow(Engine::CriO) && engines.allow(Engine::Docker));
        engines.only(by_path("/run/netns/blue"));
        assert!(engines.allow(Engine::Docker), "no sign");
    }
}
