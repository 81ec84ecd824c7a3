//! The endpoints of this node, by key.

use std::collections::{BTreeMap, BTreeSet};

use crate::fact::{BootNs, Endpoint, Observation, Scope};

use super::STORE;
use super::documents::Workload;

/// Maximum number of endpoints reported. A node runs some hundred pods.
const MOST: usize = 4096;

/// The reported endpoints, and whether each could be parsed.
#[derive(Default)]
pub(super) struct Endpoints {
    told: BTreeMap<String, bool>,
    listed: Option<BTreeSet<String>>,
    /// Number of endpoints beyond the limit, since the last list began.
    beyond: usize,
}

impl Endpoints {
    /// Number of endpoints of which only the key could be parsed, and of those beyond the limit.
    pub(super) fn wrong(&self) -> usize {
        self.told.values().filter(|understood| !**understood).count() + self.beyond
    }

    /// Whether no endpoint was left out.
    pub(super) fn is_whole(&self) -> bool {
        self.beyond == 0
    }

    pub(super) fn began(&mut self, out: &mut Vec<Observation>) {
        (self.listed, self.beyond) = (Some(BTreeSet::new()), 0);
        out.push(Observation::Began(scope()));
    }

    pub(super) fn ended(&mut self, began: BootNs, complete: bool, out: &mut Vec<Observation>) {
        let listed = self.listed.take().unwrap_or_default();
        let complete = complete && self.beyond == 0;
        if complete {
            self.told.retain(|key, _| listed.contains(key));
        }
        out.push(Observation::Ended { scope: scope(), began, complete });
    }

    /// Reports the current state of an endpoint of this node. `named`: namespace and pod from its key, which are used
    /// if its value could not be parsed.
    pub(super) fn put(
        &mut self,
        key: &str,
        named: (&str, &str),
        workload: Option<Workload>,
        out: &mut Vec<Observation>,
    ) {
        if let Some(listed) = &mut self.listed {
            listed.insert(key.to_owned());
        }
        if self.told.len() >= MOST && !self.told.contains_key(key) {
            self.beyond += 1;
            if self.listed.is_none() {
                // A consumer must not take a part for all endpoints.
                out.push(Observation::Ended { scope: scope(), began: BootNs(0), complete: false });
            }
            return;
        }
        self.told.insert(key.to_owned(), workload.is_some());
        let Workload { namespace, pod, container, device, ips, .. } = workload.unwrap_or_default();
        out.push(Observation::Endpoint(Endpoint {
            store: STORE.to_owned(),
            key: key.to_owned(),
            namespace: namespace.unwrap_or_else(|| named.0.to_owned()),
            pod: pod.unwrap_or_else(|| named.1.to_owned()),
            container,
            device,
            ips,
        }));
    }

    pub(super) fn gone(&mut self, key: &str, out: &mut Vec<Observation>) {
        if self.told.remove(key).is_some() {
            out.push(Observation::EndpointGone { store: STORE.to_owned(), key: key.to_owned() });
        }
    }
}

pub(super) fn scope() -> Scope {
    Scope::Endpoints { store: STORE.to_owned() }
}
