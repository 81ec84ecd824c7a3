//! The container and the pod of a netns.
//!
//! The runtime that knows the netns's sandbox is the best source (`owner`). Without one there are three others, the
//! strongest first: the container id in a task's cgroup path that is also in the CNI result cache (the sandbox's own
//! process), the pod uid in a cgroup path, and a cached result with the netns path or the IP of this netns.

use std::net::IpAddr;

use crate::contract::{Container, Pod};
use crate::fact::{Attachment, TaskKey};

use super::owner::{Certainty, mounts_of};
use crate::fact::cgroup::attribution;
use crate::map::{NetnsId, NodeMap, SandboxEntry};

/// The state of a sandbox or container that its runtime does not have any more.
const GONE: &str = "gone";

impl NodeMap {
    /// The container and the pod of a netns's sandbox, as far as known. Who only visits the netns is no witness, nor is who
    /// entered it when those of its sandbox had left, however long he stays.
    #[must_use]
    pub fn sandbox_of(&self, id: NetnsId) -> (Option<Container>, Option<Pod>) {
        let Some(entry) = self.netns(id) else { return (None, None) };
        if entry.host {
            return (None, None);
        }
        if let Some(told) = entry.owner().and_then(|owner| self.sandbox_told(&owner.sandbox)) {
            return told;
        }
        let owner = entry.owner().filter(|owner| owner.certainty != Certainty::ByIp);
        let settled = owner.filter(|_| entry.was_left() && !self.was_entered_new(entry));
        let owned = owner.and_then(|owner| self.attachment_of(&owner.sandbox));
        let mut uid = None;
        let mut first_container = None;
        // Thousands of threads may be in one cgroup.
        let mut last = None;
        let witnesses = (!entry.is_visited()).then(|| entry.cgroups());
        for (_, cgroup) in witnesses.into_iter().flatten() {
            if cgroup.is_none() || std::mem::replace(&mut last, cgroup) == cgroup {
                continue;
            }
            let (container, pod_uid) = self.container_in(cgroup);
            let id = container.as_ref().and_then(|container| container.id.as_deref());
            if settled.is_some_and(|owner| !self.is_of(&owner.sandbox, id, pod_uid.as_deref())) {
                continue;
            }
            if let Some(attachment) = container
                .as_ref()
                .and_then(|container| self.attachment_of(container.id.as_deref()?))
                .filter(|its| owned.is_none_or(|owned| owned.container_id == its.container_id))
            {
                return (container, pod(Some(attachment), pod_uid));
            }
            uid = uid.or(pod_uid);
            first_container = first_container.or(container);
        }
        let attachment = owned
            .or_else(|| self.attachment_by_uid(uid.as_deref()?))
            .or_else(|| self.attachment_by_place(id, uid.as_deref()));
        let sandbox = attachment.map(|attachment| Container {
            id: Some(attachment.container_id.clone()),
            runtime: first_container.as_ref().and_then(|container| container.runtime.clone()),
            ..Container::default()
        });
        (sandbox.or(first_container), pod(attachment, uid))
    }

    /// Whether a container, or else the pod with this uid, is a sandbox's.
    fn is_of(&self, sandbox: &str, container: Option<&str>, uid: Option<&str>) -> bool {
        let of = match container {
            Some(id) => Some(self.sandbox_with(id, || uid.map(str::to_owned)).unwrap_or(id)),
            None => uid.and_then(|uid| Some(&*self.attachment_by_uid(uid)?.container_id)),
        };
        of == Some(sandbox)
    }

    /// The container and the pod of a sandbox, as its runtime reports them.
    #[must_use]
    pub fn sandbox_told(&self, id: &str) -> Option<(Option<Container>, Option<Pod>)> {
        let SandboxEntry { sandbox, gone, .. } = self.sandbox(id)?;
        let word = if gone.is_some() { GONE } else { &sandbox.word };
        let container = Container {
            id: Some(sandbox.id.clone()),
            runtime: Some(sandbox.runtime.clone()),
            name: sandbox.name.clone(),
            state: Some(word.to_owned()),
        };
        let pod = sandbox.pod.as_ref().map(|pod| Pod {
            namespace: Some(pod.namespace.clone()),
            name: Some(pod.name.clone()),
            uid: pod.uid.clone(),
            attempt: sandbox.attempt,
            state: Some(word.to_owned()),
        });
        Some((Some(container), pod))
    }

    /// The container of a task and its pod's uid, according to its cgroup.
    #[must_use]
    pub fn container_of(&self, task: &TaskKey) -> (Option<Container>, Option<String>) {
        self.container_in(self.task(task).and_then(|entry| entry.cgroup.as_deref()))
    }

    fn container_in(&self, cgroup: Option<&str>) -> (Option<Container>, Option<String>) {
        let Some(found) = cgroup.and_then(attribution) else { return (None, None) };
        let Some(id) = found.container_id else { return (None, found.pod_uid) };
        if let Some((container, pod)) = self.sandbox_told(&id) {
            return (container, found.pod_uid.or(pod.and_then(|pod| pod.uid)));
        }
        let told = self.container(&id);
        let state = told.map(|told| match told.gone {
            Some(_) => GONE.to_owned(),
            None => told.container.word.clone(),
        });
        let container = Container {
            runtime: told
                .map(|told| told.container.runtime.clone())
                .or_else(|| found.runtime.map(str::to_owned)),
            name: told.and_then(|told| told.container.name.clone()),
            state,
            id: Some(id),
        };
        (Some(container), found.pod_uid)
    }

    /// Mount paths of a sandbox's netns, as reported by its runtime, the CNI cache and its ADD.
    pub(in crate::map) fn paths_of(&self, id: &str) -> impl Iterator<Item = &str> {
        let told = self.sandbox(id).and_then(|entry| entry.sandbox.netns_path.as_deref());
        let cached = self.attachment_of(id).and_then(|known| known.netns_path.as_deref());
        let called = self.call_history(id).and_then(|known| known.netns_path.as_deref());
        [told, cached, called].into_iter().flatten()
    }

    pub(in crate::map) fn attachment_of(&self, container_id: &str) -> Option<&Attachment> {
        let from = (container_id.to_owned(), String::new());
        let (key, (attachment, _)) = self.workload.attachments.range(from..).next()?;
        (key.0 == container_id).then_some(attachment)
    }

    pub(in crate::map) fn attachment_by_uid(&self, uid: &str) -> Option<&Attachment> {
        self.workload.attachments.values().map(|(attachment, _)| attachment).find(|attachment| {
            attachment.pod.as_ref().is_some_and(|pod| pod.uid.as_deref() == Some(uid))
        })
    }

    /// The cached result with the mount path of the netns, else the only one with one of its IPs. A result of another
    /// pod (`uid`) is never used: its IP may have been handed out twice.
    pub(in crate::map) fn attachment_by_place(
        &self,
        id: NetnsId,
        uid: Option<&str>,
    ) -> Option<&Attachment> {
        if self.workload.attachments.is_empty() {
            return None;
        }
        let entry = self.netns(id)?;
        let fits = |attachment: &&Attachment| {
            let theirs = attachment.pod.as_ref().and_then(|pod| pod.uid.as_deref());
            uid.is_none() || theirs.is_none() || theirs == uid
        };
        let paths: Vec<&str> = mounts_of(entry).collect();
        let all =
            || self.workload.attachments.values().map(|(attachment, _)| attachment).filter(fits);
        let by_path = all().find(|attachment| {
            let theirs = attachment.netns_path.as_deref().map(strip_var);
            theirs.is_some_and(|theirs| paths.iter().any(|path| strip_var(path) == theirs))
        });
        if by_path.is_some() {
            return by_path;
        }
        // Each of the results is looked for among its addresses, of which a stranger may add thousands, not the other way
        // round.
        let has = |ip: IpAddr| {
            self.kernel.has(ip, id) && entry.with_ip(ip).any(|(key, _)| entry.is_routable(key))
        };
        let mut by_ip = all().filter(|attachment| {
            // A result that names another mounted netns is not about this one.
            let elsewhere = attachment.netns_path.is_some() && !paths.is_empty();
            // Nor is the result of a sandbox whose netns is known: the next pod may have its IP by now.
            let known = |sandbox: &str| self.has_other_netns(sandbox, id, Certainty::ByCgroup);
            !elsewhere
                && attachment.ips.iter().any(|(ip, _)| has(*ip))
                && !known(&attachment.container_id)
        });
        by_ip.next().filter(|_| by_ip.next().is_none())
    }
}

/// `/var/run` is a link to `/run`: runtimes use either.
pub(crate) fn strip_var(path: &str) -> &str {
    path.strip_prefix("/var").filter(|rest| rest.starts_with("/run/")).unwrap_or(path)
}

fn pod(attachment: Option<&Attachment>, uid: Option<String>) -> Option<Pod> {
    let named = attachment.and_then(|attachment| attachment.pod.as_ref());
    let pod = Pod {
        namespace: named.map(|pod| pod.namespace.clone()),
        name: named.map(|pod| pod.name.clone()),
        uid: named.and_then(|pod| pod.uid.clone()).or(uid),
        ..Pod::default()
    };
    (pod != Pod::default()).then_some(pod)
}
