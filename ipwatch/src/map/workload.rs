//! Workloads of the node: sandboxes, containers, pods and runs of CNI plugins, as runtimes, the API server, the CNI
//! cache and Calico's datastore report them, and the owner of each netns.
//!
//! - `sandbox`: the container and pod of a netns or an IP. `owner`: the sandbox that a netns was made for.
//! - `runtime`: reports of container runtimes, and since when; `crash_loop`: sandboxes that are recreated again and
//!   again. `unasked`: whether a container may belong to a runtime that is not queried. `container_mounts`: mounts of
//!   dead containers.
//! - `pods`: the API server's report of this node's pods. `endpoints`: endpoints in Calico's datastore, and living pods
//!   that it lacks.
//! - `calls`: runs of CNI plugins; `seen`: since when none could be missed; `late_del`: DELs of old sandboxes, and what
//!   they remove from the pod's new one.
//!
//! Invariants: only the owner of a container can report it dead, and a container is not removed unless every runtime
//! that could own it denies it; a netns has at most one owner, and a certain owner replaces a guessed one.

mod calls;
mod container_mounts;
mod crash_loop;
mod endpoints;
mod late_del;
mod owner;
mod pods;
mod proof;
mod runtime;
mod sandbox;
mod seen;
mod unasked;

use std::collections::BTreeMap;

pub(super) use calls::HUNG;
pub use calls::{CallEnd, CallEntry, CallHistory, CommandStats};
pub use container_mounts::Leftover;
pub use crash_loop::{Attempt, Loop, WINDOW as LOOP_WINDOW};
pub(super) use endpoints::PODS;
pub use endpoints::{EndpointEntry, MissingEndpoint, StaleEndpoint};
pub use late_del::{LateDel, Lost, LostWhat};
pub(super) use owner::mounts_of;
pub use owner::{Certainty, Owner};
pub(super) use pods::PodRoom;
pub use pods::{DeletedPod, PodEntry};
pub(super) use proof::Proofs;
pub use runtime::{ContainerEntry, SandboxEntry, SandboxVerdict};
pub(crate) use sandbox::strip_var;
pub use unasked::Why;

use crate::fact::{Attachment, BootNs, Life, PodName};

use super::{NetnsId, NodeMap};

/// See the [module's documentation](self).
#[derive(Debug, Default)]
pub(super) struct Workload {
    /// Results of CNI plugins, by container and interface, with the time of the last report.
    attachments: BTreeMap<(String, String), (Attachment, BootNs)>,
    runtimes: runtime::Runtimes,
    processes: unasked::Processes,
    pods: pods::Pods,
    owners: owner::Owners,
    container_mounts: container_mounts::ContainerMounts,
    calls: calls::Calls,
    late_dels: late_del::LateDels,
    endpoints: endpoints::Endpoints,
}

impl Workload {
    /// A fact about this netns arrived: determine its owner again.
    pub(super) fn ask_owner(&mut self, id: NetnsId) {
        self.owners.ask(id);
    }

    /// The netns was removed.
    pub(super) fn forget_owner(&mut self, id: NetnsId, owner: Option<&Owner>) {
        self.owners.forget(id, owner);
    }

    /// Every netns that this sandbox is known to have.
    pub(super) fn netns_of(&self, sandbox: &str) -> impl Iterator<Item = NetnsId> {
        self.owners.netns_of(sandbox)
    }

    /// The sandbox of this container, as its runtime reports it.
    pub(super) fn sandbox_of_container(&self, id: &str) -> Option<&str> {
        self.runtimes.sandbox_of_container(id)
    }

    /// The first process of each living sandbox with a network of its own, as its runtime reports it.
    pub(super) fn first_pids(&self) -> impl Iterator<Item = u32> {
        let lives = |entry: &&SandboxEntry| {
            let sandbox = &entry.sandbox;
            entry.gone.is_none() && sandbox.life == Life::Alive && !sandbox.host_network
        };
        self.runtimes.sandboxes().filter(lives).filter_map(|entry| entry.sandbox.pid)
    }

    /// The container whose netns, according to a plugin's arguments, is at this path.
    #[cfg(test)]
    pub(super) fn container_at(&self, path: &str) -> Option<&str> {
        self.calls.container_at(path)
    }

    /// The pod of every sandbox that a runtime or the CNI cache knows.
    pub(super) fn pods_known(&self) -> impl Iterator<Item = &PodName> {
        let sandboxes = self.runtimes.sandboxes().filter_map(|entry| entry.sandbox.pod.as_ref());
        let cached = self.attachments.values().filter_map(|(known, _)| known.pod.as_ref());
        sandboxes.chain(cached)
    }

    /// Results of plugins for this container.
    pub(super) fn attachments_of(&self, id: &str) -> impl Iterator<Item = &Attachment> {
        let from = (id.to_owned(), String::new());
        let own = self.attachments.range(from..).take_while(move |((of, _), _)| of == id);
        own.map(|(_, (attachment, _))| attachment)
    }

    /// All results of ADD.
    pub(super) fn attachments(&self) -> impl Iterator<Item = &Attachment> {
        self.attachments.values().map(|(attachment, _)| attachment)
    }
}

impl NodeMap {
    pub(super) fn set_attachment(&mut self, attachment: &Attachment, at: BootNs) {
        let key = (attachment.container_id.clone(), attachment.ifname.clone());
        let renamed = self.workload.attachments.get(&key).is_none_or(|(old, _)| old != attachment);
        self.workload.attachments.insert(key, (attachment.clone(), at));
        if renamed {
            self.name_tenures(attachment);
            self.workload.owners.ask_all();
            for (ip, _) in &attachment.ips {
                self.ipam.touch(*ip);
            }
        }
    }

    pub(super) fn drop_attachment(&mut self, container_id: &str, ifname: &str) {
        self.workload.attachments.remove(&(container_id.to_owned(), ifname.to_owned()));
    }

    /// A complete listing of the CNI cache that began at `began` has ended.
    pub(super) fn sweep_attachments(&mut self, began: BootNs) {
        self.workload.attachments.retain(|_, (_, touched)| *touched >= began);
    }
}
