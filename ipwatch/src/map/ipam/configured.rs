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
        networks.all.insert(key, (network.clone(), at));
    }

    pub(in crate::map) fn sweep_configured(&mut self, store: &str, began: BootNs) {
        self.ipam.networks.all.retain(|(own, ..), (_, told)| own != store || *told >= began);
    }

    /// Whether configurations are known, none names this network, and none takes networks from elsewhere. A living pod
    /// must be in a network that they name: otherwise the runtimes may read other configurations.
    pub(in crate::map) fn is_not_configured(&self, name: &str) -> bool {
        let Networks { all, more } = &self.ipam.networks;
        let named = |name: &str| all.values().any(|(network, _)| network.name == name);
        !more
            && !named(name)
            && !all.values().any(|(network, _)| network.elsewhere)
            && self.workload.attachments().any(|attachment| {
                named(&attachment.network)
                    && matches!(self.verdict_on(&attachment.container_id), SandboxVerdict::Lives)
            })
    }
}
