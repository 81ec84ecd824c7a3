//! Routes of the node to IPs that the pod behind their device does not have, and the pod that a device is named after.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use sha1::{Digest as _, Sha1};

use crate::fact::{BootNs, Link, RouteKey};

use crate::map::{Kinds, NetnsId, NodeMap, Thresholds};

/// Number of checks within the age at which an orphan route is reported.
const LOOKS: u64 = 10;
/// Number of hex digits of a hash that Calico and the VPC CNI put into a device's name.
const HASHED: usize = 11;

/// A route through a pod's device to an IP that the pod does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrphanRoute {
    pub to: RouteKey,
    /// Index of the host's device.
    pub ifindex: u32,
    /// The netns that the device leads to.
    pub netns: NetnsId,
    /// When it was first observed.
    pub since: BootNs,
}

#[derive(Debug, Default)]
pub(in crate::map) struct OrphanRoutes {
    routes: BTreeMap<RouteKey, OrphanRoute>,
    looked: BootNs,
}

impl NodeMap {
    /// Looks for orphan routes at intervals. Returns when to look next, or `None` if the host has no such routes at
    /// all.
    pub(in crate::map) fn settle_orphans(
        &mut self,
        now: BootNs,
        thresholds: &Thresholds,
    ) -> Option<BootNs> {
        let host = self.netns(self.host()?)?;
        if !host.routes().any(|(key, ..)| key.prefix_len > 0) {
            // The last removed route may have been an orphan.
            if !self.conflict.orphan_routes.routes.is_empty() {
                self.conflict.orphan_routes.routes.clear();
                self.changes.mark(Kinds::ROUTES);
            }
            return None;
        }
        let pause = thresholds.leak_age / LOOKS;
        if now.since(self.conflict.orphan_routes.looked) >= pause {
            let mut routes: BTreeMap<RouteKey, OrphanRoute> =
                self.find_orphans(now).into_iter().map(|one| (one.to, one)).collect();
            for (key, one) in &mut routes {
                if let Some(known) = self.conflict.orphan_routes.routes.get(key)
                    && (known.ifindex, known.netns) == (one.ifindex, one.netns)
                {
                    one.since = known.since;
                }
            }
            if self.conflict.orphan_routes.routes != routes {
                self.changes.mark(Kinds::ROUTES);
            }
            self.conflict.orphan_routes = OrphanRoutes { routes, looked: now };
        }
        Some(self.conflict.orphan_routes.looked.plus(pause))
    }

    fn find_orphans(&self, now: BootNs) -> Vec<OrphanRoute> {
        let Some(host) = self.host().and_then(|id| self.netns(id)) else {
            return Vec::new();
        };
        let mut by_device: BTreeMap<u32, Vec<RouteKey>> = BTreeMap::new();
        for (key, hops, _) in host.routes().filter(|(key, ..)| key.prefix_len > 0) {
            if let [hop] = hops
                && hop.gateway.is_none()
            {
                by_device.entry(hop.ifindex).or_default().push(*key);
            }
        }
        let mut found = Vec::new();
        for (ifindex, routes) in by_device {
            let Some(netns) = host.link(ifindex).and_then(|link| self.behind(link)) else {
                continue;
            };
            let has = |ip: IpAddr| self.with_ip(ip).any(|id| id == netns);
            // If the netns has one of the IPs, it is in use: the others may be translated to that one (floating IPs).
            if routes.iter().any(|key| has(key.to)) {
                continue;
            }
            let orphan = |to| OrphanRoute { to, ifindex, netns, since: now };
            found.extend(routes.into_iter().map(orphan));
        }
        found
    }

    /// The netns behind a pod's device of the host, if all of its addresses are known.
    fn behind(&self, link: &Link) -> Option<NetnsId> {
        let host = self.netns(self.host()?)?;
        if !is_pods(link) || link.peer_nsid.is_none() {
            return None;
        }
        let entry = self.netns(self.far_netns(host, link)?)?;
        // gVisor removes the address from the device and answers itself: a netns with tasks and without an address
        // tells nothing. Who only visits it is not gVisor.
        let told = entry.inhabitants().next().is_none() || entry.routable().next().is_some();
        let whole = entry.opened.is_some()
            && entry.beyond_bounds() == 0
            && !entry.is_incomplete()
            && entry.dying.is_none()
            && !entry.host
            && told;
        whole.then_some(entry.id)
    }

    /// Routes that have been orphans for at least `age`.
    pub fn orphan_routes(&self, now: BootNs, age: u64) -> impl Iterator<Item = &OrphanRoute> {
        self.conflict.orphan_routes.routes.values().filter(move |one| now.since(one.since) >= age)
    }

    /// When the next route will have been an orphan for `age`.
    #[must_use]
    pub fn next_orphan_route(&self, now: BootNs, age: u64) -> Option<BootNs> {
        let due = self.conflict.orphan_routes.routes.values().map(|one| one.since.plus(age));
        due.filter(|due| *due > now).min()
    }

    /// The pod that a device is named after, if it is or was known: `namespace/name`.
    #[must_use]
    pub fn named_after(&self, device: &str) -> Option<String> {
        let split = device.len().checked_sub(HASHED)?;
        let hash = device.get(split..).filter(|_| split > 0)?;
        let mut pods = self.workload.pods_known();
        let pod = pods.find(|pod| hash_of(&pod.namespace, &pod.name) == hash)?;
        Some(format!("{}/{}", pod.namespace, pod.name))
    }
}

/// The hash that Calico and the VPC CNI derive from a pod's name.
pub(in crate::map) fn hash_of(namespace: &str, name: &str) -> String {
    let digest = Sha1::digest(format!("{namespace}.{name}"));
    let mut text = String::new();
    for byte in digest.iter().take(HASHED.div_ceil(2)) {
        // Writing into a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text.truncate(HASHED);
    text
}

/// Whether a CNI plugin named this device: bridge and ptp, Calico, Cilium, Terway and the VPC CNI.
#[must_use]
pub fn is_pods(link: &Link) -> bool {
    let made = |prefix: &str, len: usize| {
        link.name.strip_prefix(prefix).is_some_and(|rest| {
            rest.len() == len && rest.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
    };
    link.kind.as_deref() == Some("veth")
        && (made("veth", 8) || made("cali", 11) || made("eni", 11) || made("lxc", 12))
}

#[cfg(test)]
mod tests {
    use super::hash_of;

    #[test]
    fn a_pods_device_carries_the_beginning_of_the_names_hash() {
        // printf shop.api-0 | sha1sum
        assert_eq!(hash_of("shop", "api-0"), "eb97322ec89");
    }
}
