//! The networks that the node's CNI configurations name: a network without a known range may still be handing out IPs.

use std::collections::BTreeMap;

use crate::fact::{BootNs, Configured};

use crate::map::{NodeMap, SandboxVerdict};

/// Maximum number of networks. A node has a few.
const MOST: usize = 1024;

/// Networks by store, file and name, and when each was last reported.
#[derive(Debug, Default)]
pub(in crate::map) struct Networks {
    all: BTreeMap<(String, String, String), (Configured, BootNs)>,
    /// Whether some were left out.
    more: bool,
    /// A living pod was seen in one of them since the last change: they are the configurations that the runtimes read.
    /// That a runtime does not answer any more changes nothing about it.
    in_use: bool,
}

impl NodeMap {
    pub(in crate::map) fn set_configured(&mut self, network: &Configured, at: BootNs) {
        let networks = &mut self.ipam.networks;
        let key = (network.store.clone(), network.path.clone(), network.name.clone());
        if networks.all.get(&key).is_some_and(|(_, told)| *told > at) {
            return;
        }
        if networks.all.len() >= MOST && !networks.all.contains_key(&key) {
            networks.more = true;
            return;
        }
        let known = networks.all.insert(key, (network.clone(), at));
        networks.in_use &= known.is_some_and(|(known, _)| known == *network);
    }

    pub(in crate::map) fn sweep_configured(&mut self, store: &str, began: BootNs) {
        let networks = &mut self.ipam.networks;
        let before = networks.all.len();
        networks.all.retain(|(own, ..), (_, told)| own != store || *told >= began);
        networks.in_use &= networks.all.len() == before;
    }

    /// Remembers that a living pod is in a configured network, if somebody may ask for it.
    pub(in crate::map) fn see_configured(&mut self) {
        let asked = self.unreadable().next().is_some() || !self.ipam.leaks.gone.is_empty();
        if asked && !self.ipam.networks.in_use {
            self.ipam.networks.in_use = self.lives_in_configured();
        }
    }

    /// Whether a living pod is in a network that the configurations name.
    fn lives_in_configured(&self) -> bool {
        let Networks { all, .. } = &self.ipam.networks;
        self.workload.attachments().any(|attachment| {
            all.values().any(|(network, _)| network.name == attachment.network)
                && matches!(self.verdict_on(&attachment.container_id), SandboxVerdict::Lives)
        })
    }

    /// Whether configurations are known, none names this network, and none takes networks from elsewhere. A living pod
    /// must be, or have been, in a network that they name: otherwise the runtimes may read other configurations.
    pub(in crate::map) fn is_not_configured(&self, name: &str) -> bool {
        let Networks { all, more, in_use } = &self.ipam.networks;
        let named = |name: &str| all.values().any(|(network, _)| network.name == name);
        !more
            && !named(name)
            && !all.values().any(|(network, _)| network.elsewhere)
            && (*in_use || self.lives_in_configured())
    }
}
