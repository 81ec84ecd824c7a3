//! Lookups for missing and stale endpoints, built once for all of them: a wiped datastore loses the endpoints of every
//! pod at once.

use std::cell::OnceCell;
use std::collections::HashMap;

use crate::fact::{BootNs, PodName};
use crate::map::LinkEntry;
use crate::map::{EndpointEntry, Netns, NodeMap, SandboxEntry};

/// A removed endpoint, and when it was removed.
type Lost = (EndpointEntry, BootNs);
/// Namespace and name.
type Pod<'a> = (&'a str, &'a str);

/// Indexes by pod and by name. Each is built on first use: as a rule nothing is missing.
pub(super) struct Index<'a> {
    map: &'a NodeMap,
    /// Sandboxes that are not dead.
    sandboxes: OnceCell<HashMap<Pod<'a>, Vec<&'a SandboxEntry>>>,
    lost: OnceCell<HashMap<Pod<'a>, Vec<&'a Lost>>>,
    host: Option<&'a Netns>,
    links: OnceCell<HashMap<&'a str, &'a LinkEntry>>,
}

impl<'a> Index<'a> {
    pub(super) fn new(map: &'a NodeMap) -> Self {
        let host = map.host().and_then(|id| map.netns(id));
        Self {
            map,
            sandboxes: OnceCell::new(),
            lost: OnceCell::new(),
            host,
            links: OnceCell::new(),
        }
    }

    /// The node's own netns.
    pub(super) fn host(&self) -> Option<&'a Netns> {
        self.host
    }

    /// The sandboxes of a pod that are not dead.
    pub(super) fn sandboxes(&self, namespace: &'a str, pod: &'a str) -> &[&'a SandboxEntry] {
        let all = self.sandboxes.get_or_init(|| {
            let living =
                self.map.workload.runtimes.sandboxes().filter(|entry| entry.dead.is_none());
            by_pod(living.filter_map(|entry| {
                let PodName { namespace, name, .. } = entry.sandbox.pod.as_ref()?;
                Some(((&**namespace, &**name), entry))
            }))
        });
        all.get(&(namespace, pod)).map_or(&[], Vec::as_slice)
    }

    /// The removed endpoints of a pod, in all datastores.
    pub(super) fn lost(&self, namespace: &'a str, pod: &'a str) -> &[&'a Lost] {
        let all = self.lost.get_or_init(|| {
            by_pod(self.map.workload.endpoints.lost.values().map(|lost| {
                let endpoint = &lost.0.endpoint;
                ((&*endpoint.namespace, &*endpoint.pod), lost)
            }))
        });
        all.get(&(namespace, pod)).map_or(&[], Vec::as_slice)
    }

    /// The node's device with this name.
    pub(super) fn link(&self, name: &str) -> Option<&'a LinkEntry> {
        let all = self.links.get_or_init(|| {
            let mut all = HashMap::new();
            for known in self.host.into_iter().flat_map(Netns::links) {
                // Two devices may share a name until a rename is reported: take the first.
                all.entry(&*known.link.name).or_insert(known);
            }
            all
        });
        all.get(name).copied()
    }
}

/// Groups by pod, in the original order.
fn by_pod<'a, T>(all: impl Iterator<Item = (Pod<'a>, T)>) -> HashMap<Pod<'a>, Vec<T>> {
    let mut found: HashMap<Pod<'a>, Vec<T>> = HashMap::new();
    all.for_each(|(pod, one)| found.entry(pod).or_default().push(one));
    found
}
