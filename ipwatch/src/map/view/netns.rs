//! Netns and addresses in the types of the JSON contract.

use std::net::IpAddr;

use crate::contract::{self, Prefix, Selector};
use crate::fact::{BootNs, Holder, NetnsRef, TaskKey};

use crate::map::{AddressEntry, AddressId, Netns, NetnsId, NodeMap};

/// A task that has been in a netns for less time may be only passing through.
const PASSING: u64 = 5_000_000_000;
/// Maximum number of listed threads of one process.
const THREADS: usize = 32;

impl NodeMap {
    /// Addresses that match a selector, in IP order, then by netns, without ids of findings. A netns without any
    /// address is one entry without `ip`, unless the selector is by IP.
    #[must_use]
    pub fn addresses(&self, selector: &Selector) -> Vec<contract::Address> {
        let ids: Vec<NetnsId> = match selector {
            Selector::Ip(prefix) => return self.addresses_in(prefix.as_ref()),
            Selector::Netns(None) => self.all_netns().map(|entry| entry.id).collect(),
            Selector::Netns(Some(name)) => self.netns_named_like(name),
            Selector::Pod(name) => self.netns_of_pod(name.as_deref()),
            Selector::Pid(pid) => {
                let mut ids: Vec<NetnsId> = self.tasks_of(*pid).map(|task| task.netns).collect();
                ids.sort_unstable();
                ids.dedup();
                ids
            }
        };
        self.addresses_of(&ids)
    }

    /// Every address of these netns.
    #[must_use]
    pub fn addresses_of(&self, ids: &[NetnsId]) -> Vec<contract::Address> {
        let mut views = Vec::new();
        for entry in ids.iter().filter_map(|id| self.netns(*id)) {
            if entry.addresses().len() == 0 {
                views.push(self.address_view(entry, None));
            }
            views.extend(entry.addresses().map(|address| self.address_view(entry, Some(address))));
        }
        views.sort_by_key(|view| (view.ip, view.netns.inode));
        views
    }

    fn addresses_in(&self, prefix: Option<&Prefix>) -> Vec<contract::Address> {
        let range = prefix.map(Prefix::range);
        let entries: Vec<(IpAddr, NetnsId)> = match range {
            Some((first, last)) => self.kernel.within(first, last).collect(),
            None => self.kernel.addresses().collect(),
        };
        let mut views = Vec::new();
        for (ip, id) in entries {
            let Some(entry) = self.netns(id) else { continue };
            views.extend(entry.with_ip(ip).map(|address| self.address_view(entry, Some(address))));
        }
        views
    }

    fn netns_named_like(&self, name: &str) -> Vec<NetnsId> {
        let number = name.parse::<u64>().ok();
        let matches = |entry: &&Netns| {
            let names = &entry.names;
            let by_number = number.is_some_and(|number| {
                names.cookie == Some(number)
                    || names.inode.map(u64::from) == Some(number)
                    || names.nsid.and_then(|nsid| u64::try_from(nsid).ok()) == Some(number)
            });
            by_number
                || (name == "host" && entry.host)
                || entry.holders().any(|holder| match holder {
                    Holder::Mount { path, .. } => {
                        path == name || path.rsplit('/').next() == Some(name)
                    }
                    _ => false,
                })
        };
        self.all_netns().filter(matches).map(|entry| entry.id).collect()
    }

    fn netns_of_pod(&self, name: Option<&str>) -> Vec<NetnsId> {
        let matches = |entry: &&Netns| {
            let (container, pod) = self.sandbox_of(entry.id);
            let Some(name) = name else { return pod.is_some() };
            let pod_matches = pod.is_some_and(|pod| {
                let full = match (&pod.namespace, &pod.name) {
                    (Some(namespace), Some(own)) => format!("{namespace}/{own}") == name,
                    _ => false,
                };
                full || pod.name.as_deref() == Some(name)
                    || pod.uid.is_some_and(|uid| name.len() >= 4 && uid.starts_with(name))
            });
            pod_matches
                || container
                    .and_then(|container| container.id)
                    .is_some_and(|id| name.len() >= 4 && id.starts_with(name))
        };
        self.all_netns().filter(matches).map(|entry| entry.id).collect()
    }

    /// A netns by its names.
    #[must_use]
    pub fn netns_view(&self, entry: &Netns) -> contract::Netns {
        let NetnsRef { cookie, inode, nsid } = entry.names;
        let path = entry
            .holders()
            .filter_map(|holder| match holder {
                Holder::Mount { path, .. } => Some(path),
                _ => None,
            })
            .min_by_key(|path| path.len());
        let state = match (entry.host, entry.dying) {
            (true, _) => Some("host"),
            (false, Some(_)) => Some("dying"),
            (false, None) => None,
        };
        contract::Netns {
            cookie,
            inode,
            nsid,
            path: path.cloned(),
            state: state.map(str::to_owned),
        }
    }

    fn address_view(
        &self,
        entry: &Netns,
        address: Option<(&AddressId, &AddressEntry)>,
    ) -> contract::Address {
        let (container, pod) = self.sandbox_of(entry.id);
        contract::Address {
            ip: address.map(|(key, _)| key.local),
            prefix_len: address.map(|(_, known)| known.prefix_len),
            scope: address.and_then(|(_, known)| known.scope).map(scope_name),
            netns: self.netns_view(entry),
            interface: address.map(|(key, _)| interface_view(entry, key.ifindex)),
            holders: self.holder_views(entry.id),
            container,
            pod,
            reservation: address.and_then(|(key, _)| self.reservation_at(entry, key.local)),
            since: address.map(|(_, known)| self.calendar().date(known.since)),
            preexisting: address.is_some_and(|(_, known)| !known.seen_to_come),
            findings: Vec::new(),
            reach: None,
        }
    }

    /// What keeps a netns alive. Nothing is listed for the host's.
    #[must_use]
    pub fn holder_views(&self, id: NetnsId) -> Vec<contract::Holder> {
        let Some(entry) = self.netns(id) else { return Vec::new() };
        self.views_of(entry, entry.tasks())
    }

    /// What keeps a netns alive, of its tasks these.
    fn views_of<'a>(
        &self,
        entry: &Netns,
        tasks: impl Iterator<Item = &'a TaskKey>,
    ) -> Vec<contract::Holder> {
        if entry.host {
            return Vec::new();
        }
        let mut views = self.task_views(tasks);
        views.extend(entry.holders().map(other_view));
        if views.is_empty() && entry.held_by_kernel() && entry.dying.is_none() {
            views.push(contract::Holder::of_kind(contract::HolderKind::Kernel));
            views.extend(entry.candidates().map(other_view));
        }
        views
    }

    /// As [`NodeMap::holder_views`], without the visitors of a netns that is empty but for them: they keep nothing alive,
    /// and each would change the findings about it.
    #[must_use]
    pub fn lasting_views(&self, id: NetnsId) -> Vec<contract::Holder> {
        let Some(entry) = self.netns(id) else { return Vec::new() };
        self.views_of(entry, entry.inhabitants())
    }

    /// As [`NodeMap::lasting_views`], without tasks that entered recently: health probes and shells pass through a pod
    /// all day, and each would change the findings about it. All tasks are listed if all are recent, and those that
    /// may be of a pod are.
    #[must_use]
    pub fn resident_views(&self, id: NetnsId, now: BootNs) -> Vec<contract::Holder> {
        let Some(entry) = self.netns(id) else { return Vec::new() };
        self.views_of(entry, self.residents(entry, now))
    }

    /// The tasks of [`NodeMap::resident_views`].
    pub fn residents<'a>(
        &'a self,
        entry: &'a Netns,
        now: BootNs,
    ) -> impl Iterator<Item = &'a TaskKey> {
        let passes = move |key: &TaskKey| {
            let task = self.task(key).filter(|task| task.exiting.is_none());
            task.is_some_and(|task| now.since(task.since) < PASSING)
        };
        let (left, all) = (self.is_revisited(entry), entry.tasks().all(passes));
        entry.tasks().filter(move |key| !left && (all || !passes(key)))
    }

    /// These tasks, which are sorted. Of each process the first ones are listed and the others are counted: an exit of
    /// thousands of threads can take minutes.
    fn task_views<'a>(&self, tasks: impl Iterator<Item = &'a TaskKey>) -> Vec<contract::Holder> {
        let mut views: Vec<contract::Holder> = Vec::new();
        let (mut pid, mut first, mut listed) = (None, 0, 0);
        for key in tasks {
            if pid != Some(key.pid) {
                (pid, first, listed) = (Some(key.pid), views.len(), 0);
            }
            if listed < THREADS {
                views.extend(self.task_view(key));
                listed += 1;
            } else if let Some(first) = views.get_mut(first) {
                *first.more_threads.get_or_insert(0) += 1;
            }
        }
        views
    }

    /// When [`NodeMap::resident_views`] will include a task that it omits at `now`.
    #[must_use]
    pub fn next_resident(&self, id: NetnsId, now: BootNs) -> Option<BootNs> {
        let tasks = self.netns(id).into_iter().flat_map(Netns::tasks);
        let due = tasks.filter_map(|key| Some(self.task(key)?.since.plus(PASSING)));
        due.filter(|due| *due > now).min()
    }

    /// A task as a holder.
    #[must_use]
    pub fn task_view(&self, key: &crate::fact::TaskKey) -> Option<contract::Holder> {
        let task = self.task(key)?;
        let kind = if key.is_leader() {
            contract::HolderKind::Process
        } else {
            contract::HolderKind::Thread
        };
        let since = task.exiting.unwrap_or(task.since);
        Some(contract::Holder {
            pid: Some(key.pid),
            tid: (!key.is_leader()).then_some(key.tid),
            comm: Some(task.comm.clone()),
            state: task.state,
            exiting: task.exiting.map(|_| true),
            since: Some(self.calendar().date(since)),
            ..contract::Holder::of_kind(kind)
        })
    }
}

fn other_view(other: &Holder) -> contract::Holder {
    use contract::HolderKind;
    match other {
        Holder::Mount { mount_ns, path, comm, .. } => contract::Holder {
            mount_path: Some(path.clone()),
            mount_ns_pid: other.process(),
            mount_ns_comm: comm.clone().filter(|_| other.process().is_some()),
            mount_ns: Some(*mount_ns),
            ..contract::Holder::of_kind(HolderKind::Mount)
        },
        Holder::Fd { pid, fd, comm } => contract::Holder {
            pid: Some(*pid),
            fd: Some(*fd),
            comm: Some(comm.clone()),
            ..contract::Holder::of_kind(HolderKind::Fd)
        },
        Holder::Socket { pid, fd, comm } => contract::Holder {
            pid: Some(*pid),
            fd: Some(*fd),
            comm: Some(comm.clone()),
            ..contract::Holder::of_kind(HolderKind::Socket)
        },
        Holder::Candidate { pid, fd, comm, unread } => contract::Holder {
            pid: Some(*pid),
            fd: Some(*fd),
            comm: Some(comm.clone()),
            unread_fds: Some(*unread),
            ..contract::Holder::of_kind(HolderKind::Candidate)
        },
        Holder::Orphan { text } => contract::Holder {
            socket: Some(text.clone()),
            ..contract::Holder::of_kind(HolderKind::Socket)
        },
    }
}

pub(in crate::map) fn interface_view(entry: &Netns, ifindex: u32) -> contract::Interface {
    let link = entry.link(ifindex);
    let master = link.and_then(|link| link.master).and_then(|master| entry.link(master));
    contract::Interface {
        name: link.map(|link| link.name.clone()),
        index: ifindex,
        mac: link.and_then(|link| link.mac),
        kind: link.and_then(|link| link.kind.clone()),
        master: master.map(|master| master.name.clone()),
    }
}

/// `RT_SCOPE_*` as `ip` spells it.
#[must_use]
pub fn scope_name(scope: u8) -> String {
    match scope {
        0 => "global".into(),
        200 => "site".into(),
        253 => "link".into(),
        254 => "host".into(),
        255 => "nowhere".into(),
        other => other.to_string(),
    }
}

/// `NUD_*` as `ip neigh` spells it.
#[must_use]
pub fn state_name(state: u16) -> String {
    const NAMES: [(u16, &str); 8] = [
        (0x01, "INCOMPLETE"),
        (0x02, "REACHABLE"),
        (0x04, "STALE"),
        (0x08, "DELAY"),
        (0x10, "PROBE"),
        (0x20, "FAILED"),
        (0x40, "NOARP"),
        (0x80, "PERMANENT"),
    ];
    let name = NAMES.iter().find(|(bit, _)| state & bit != 0).map(|(_, name)| *name);
    name.unwrap_or("NONE").to_owned()
}
