//! Finds where the file systems of containers are mounted. A mount that was copied into the mount namespace of another
//! container keeps the first container's directory busy after its end.

use std::collections::{HashMap, HashSet};
use std::io;

use super::files::Dir;
use super::mounts::{self, Mount};
use super::namespaces::{self, MountNamespace};
use super::propagation::Propagation;
use super::{Proc, cgroup, fact, look};
use crate::clock;
use crate::fact::{BootNs, ContainerMount, Fact, Observation, Process};

/// Maximum number of containers in one search.
const MOST_IDS: usize = 1024;
/// Maximum number of mounts reported for one container. More make the search incomplete.
const MOST_MOUNTS: usize = 64;
/// Maximum length of the reported paths, in all, in bytes. The containers of which more is found are incomplete too.
const MOST_BYTES: usize = 8 << 20;
/// Nanoseconds after which a search is given up.
const LONGEST: u64 = 3_000_000_000;

impl Proc {
    /// Finds every mount whose mount point, or whose root within its file system, is in a directory named after one of
    /// these containers, in every mount namespace that a process is in; but for copies that go with a mount of the node.
    ///
    /// # Errors
    /// `/proc` cannot be listed.
    pub fn container_mounts(&self, ids: &[String]) -> io::Result<Vec<Fact>> {
        let wanted: HashSet<&[u8]> =
            ids.iter().filter(|id| is_name(id)).take(MOST_IDS).map(|id| id.as_bytes()).collect();
        let mut search = Search {
            wanted: &wanted,
            found: Vec::new(),
            told: HashMap::new(),
            cut: HashSet::new(),
            bytes: 0,
        };
        let mut mount_ids = HashSet::new();
        let mut propagation = self.propagation(|mount| search.container(mount).is_some());
        let until = clock::now().plus(LONGEST);
        let pass = namespaces::each_mount(&self.root, &self.perils, until, |place, mount| {
            let is_copy = propagation.is_copy(mount);
            if let Some(id) = search.container(mount)
                && !is_copy
                && mount_ids.insert(mount.id)
            {
                search.tell(id, place, mount);
            }
        })?;
        let Search { found, cut, .. } = search;
        let host = self.host_mount_ns();
        let mut residents = HashMap::new();
        let mut facts = Vec::with_capacity(found.len() + 1);
        for mut mount in found {
            mount.host = host == Some(mount.mount_ns);
            let pids = pass.processes.get(&mount.mount_ns).map_or(&[][..], Vec::as_slice);
            let residents = residents.entry(mount.mount_ns).or_insert_with(|| self.residents(pids));
            mount.processes.clone_from(&residents.processes);
            mount.cgroup.clone_from(&residents.cgroup);
            mount.started = residents.started;
            facts.push(fact(Observation::ContainerMount(mount)));
        }
        let whole = pass.complete && wanted.len() == ids.len();
        let (cut, rest): (Vec<String>, Vec<String>) =
            ids.iter().cloned().partition(|id| cut.contains(id.as_bytes()));
        for (ids, complete) in [(rest, whole), (cut, false)] {
            if !ids.is_empty() {
                facts.push(fact(Observation::ContainerMountsSearched { ids, complete }));
            }
        }
        Ok(facts)
    }

    /// How the node's wanted mounts propagate. If they cannot be read, nothing counts as a copy.
    pub(super) fn propagation(&self, wanted: impl Fn(&Mount<'_>) -> bool) -> Propagation {
        let of =
            |process: &str| Propagation::of(&self.root.join(process).join("mountinfo"), &wanted);
        of("1").or_else(|_| of("self")).unwrap_or_default()
    }

    /// The mount namespace of the first process, where runtimes mount; the daemon's own if the first process's cannot
    /// be read.
    pub(super) fn host_mount_ns(&self) -> Option<u64> {
        let root = Dir::open(&self.root).ok()?;
        let of = |name: &str| root.dir(name).and_then(|dir| dir.namespace("ns/mnt", "mnt")).ok();
        of("1").or_else(|| of("self"))
    }

    /// What is told of the processes of a mount namespace.
    fn residents(&self, pids: &[u32]) -> Residents {
        let mut residents = Residents::default();
        let mut is_dated = true;
        for &pid in pids {
            let Ok(dir) = Dir::open(&self.root.join(pid.to_string())) else { continue };
            let comm = dir.comm();
            if comm.is_empty() {
                continue; // gone
            }
            if residents.cgroup.is_none() {
                let lines = dir.text("cgroup").ok();
                residents.cgroup = lines.as_deref().and_then(cgroup::naming).map(ToOwned::to_owned);
            }
            match look::started(&dir) {
                Some(at) => {
                    let oldest = residents.started.map_or(at, |oldest| oldest.min(at));
                    residents.started = Some(oldest);
                }
                None => is_dated = false,
            }
            residents.processes.push(Process { pid, comm });
        }
        // One of unknown age may be the oldest.
        residents.started = residents.started.filter(|_| is_dated);
        residents
    }
}

/// The processes of a mount namespace.
#[derive(Debug, Default)]
struct Residents {
    processes: Vec<Process>,
    /// That of the first process whose cgroup is readable.
    cgroup: Option<String>,
    /// When the oldest was started, if all tell.
    started: Option<BootNs>,
}

/// Whether an id can be a directory name.
fn is_name(id: &str) -> bool {
    !id.is_empty() && !id.contains('/')
}

struct Search<'a> {
    wanted: &'a HashSet<&'a [u8]>,
    found: Vec<ContainerMount>,
    /// Number of mounts reported for each container.
    told: HashMap<&'a [u8], usize>,
    /// Containers with more mounts than that.
    cut: HashSet<&'a [u8]>,
    /// Length of the paths in `found`, in bytes.
    bytes: usize,
}

impl<'a> Search<'a> {
    /// The container that a mount belongs to.
    fn container(&self, mount: &Mount<'_>) -> Option<&'a [u8]> {
        // Every container has its cgroup mounted, with the path to it as the root of that mount; nothing waits for that
        // mount.
        if matches!(mount.fs_type, b"cgroup" | b"cgroup2") {
            return None;
        }
        let named = |path: &[u8]| {
            path.split(|&byte| byte == b'/').find_map(|part| self.wanted.get(part).copied())
        };
        named(mount.point).or_else(|| named(mount.root))
    }

    fn tell(&mut self, id: &'a [u8], place: MountNamespace, mount: &Mount<'_>) {
        let told = self.told.entry(id).or_default();
        let path = mounts::text(mount.point);
        let bytes = self.bytes + path.len();
        if *told >= MOST_MOUNTS || bytes > MOST_BYTES {
            self.cut.insert(id);
            return;
        }
        *told += 1;
        self.bytes = bytes;
        self.found.push(ContainerMount {
            container_id: String::from_utf8_lossy(id).into_owned(),
            mount_ns: place.mount_ns,
            host: false,
            path,
            fs_type: mounts::text(mount.fs_type),
            processes: Vec::new(),
            cgroup: None,
            started: None,
        });
    }
}

#[cfg(test)]
mod tests;
