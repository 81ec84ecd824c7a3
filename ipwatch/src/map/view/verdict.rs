//! `ipwatch check`: whether an IP can be given to a new container on this node, and if not, why.

use std::net::{IpAddr, Ipv4Addr};

use crate::contract::{Reservation, Verdict};
use crate::fact::SourceName;
use crate::remedy::said;

use super::ipam::{LISTED, reservation_view};
use crate::map::ipam::is_by_pod_object;
use crate::map::{Netns, NodeMap, ReservationEntry};

/// Minimum length of an abbreviated container id. Runtimes print 12 or 13 characters.
const SHORT_ID: usize = 12;

impl NodeMap {
    /// Whether an IP can be given to a new container on this node. With `container`, an id or the beginning of one,
    /// reservations for that container and addresses in its netns do not count. Ids of findings are not filled in.
    #[must_use]
    pub fn verdict(&self, ip: IpAddr, container: Option<&str>) -> Verdict {
        let pools = self.networks_with(ip);
        let mut reasons = Vec::new();
        reasons.extend(self.no_hosts_address(ip, !pools.is_empty()));
        let own = |id: Option<&str>| is_own(container, id);
        let all = self.with_ip(ip).filter_map(|id| self.netns(id));
        // A user's netns that nothing connects with the node is in nobody's way.
        for netns in all.filter(|netns| !self.is_users_apart(netns)).take(LISTED) {
            let sandbox = netns.owner().map(|owner| &*owner.sandbox);
            if !own(sandbox) {
                reasons.push(self.holding(netns, ip));
            }
        }
        // What anybody who creates pods may have written is shown, and decides nothing.
        let counts = |entry: &&ReservationEntry| !is_by_pod_object(&entry.store);
        for entry in self.reservations_of(ip).filter(counts).take(LISTED) {
            if own(entry.container_id.as_deref()) {
                continue;
            }
            let whose = entry.container_id.as_deref().unwrap_or("a pod");
            let leaked =
                if self.is_leaked(&entry.store, &entry.key) { ", which is gone" } else { "" };
            reasons.push(format!(
                "{} has it reserved in network {} for {whose}{leaked}: {}",
                entry.store,
                said(&entry.network),
                said(&entry.key)
            ));
        }
        // If a source is silent, the IP may be in use.
        let silent = |name: &str| format!("{name} does not answer: nobody knows");
        for name in [SourceName::Netlink, SourceName::Procfs] {
            reasons.extend(Some(silent(name.as_str())).filter(|_| !self.answers(name)));
        }
        reasons.extend(self.stores().filter(|store| !self.store_answers(store)).map(silent));
        let short = self.short_within_reach().filter(|netns| netns.with_ip(ip).next().is_none());
        reasons.extend(short.take(LISTED).map(|netns| {
            let kept = netns.addresses().len();
            if netns.is_incomplete() {
                return format!(
                    "{} is being read again, because events of it were lost: nobody knows",
                    name(netns)
                );
            }
            format!(
                "{} has more addresses than the {kept} that are kept: nobody knows",
                name(netns)
            )
        }));
        let unknown = self.said_of_unknown_netns();
        reasons.extend(unknown.map(|said| format!("{said}: nobody knows")));
        let reservations: Vec<Reservation> =
            self.reservations_of(ip).take(LISTED).map(reservation_view).collect();
        Verdict {
            ip,
            free: reasons.is_empty(),
            reasons,
            in_pool: Some(
                !pools.is_empty() || self.reservations_of(ip).any(|entry| counts(&entry)),
            ),
            pools,
            holders: self.ip_holders(ip),
            reservations,
            findings: Vec::new(),
        }
    }

    /// The networks of this node that can hand out the IP.
    fn networks_with(&self, ip: IpAddr) -> Vec<String> {
        let with = self.ranges().filter(|range| range.contains(ip));
        let mut names: Vec<String> = with.map(|range| range.range.network.clone()).collect();
        names.sort_unstable();
        names.dedup();
        names.truncate(LISTED);
        names
    }

    /// Why no host can have this address, if so. An address that a pool hands out is valid: a pool may use the first
    /// and the last one of a network, as Calico's blocks do. Networks are those of the host's own devices and those that
    /// plugins reported for containers; the devices of any other netns are not asked, because its root user could define
    /// them.
    fn no_hosts_address(&self, ip: IpAddr, in_pool: bool) -> Option<String> {
        let broadcast = ip == IpAddr::V4(Ipv4Addr::BROADCAST);
        if ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() || broadcast {
            return Some("no container can have this address".to_owned());
        }
        let IpAddr::V4(v4) = ip else { return None };
        if in_pool {
            return None;
        }
        let host = self.host().and_then(|id| self.netns(id));
        let own = host.into_iter().flat_map(Netns::addresses);
        let own = own.map(|(key, entry)| (key.local, entry.prefix_len));
        let given = self.workload.attachments().flat_map(|one| one.ips.iter().copied());
        own.chain(given).find_map(|(local, length)| edge_of(v4, local, length))
    }

    fn holding(&self, netns: &Netns, ip: IpAddr) -> String {
        let on = netns.with_ip(ip).next();
        let device = on.and_then(|(key, _)| Some(netns.link(key.ifindex)?.name.clone()));
        let device = device.map(|name| format!(" on {name}")).unwrap_or_default();
        if netns.host {
            return format!("the node itself has it{device}");
        }
        let pod = self.sandbox_of(netns.id).1;
        let pod = pod.and_then(|pod| Some(format!("pod {}/{}", pod.namespace?, pod.name?)));
        let name = name(netns);
        let whose = pod.map(|pod| format!(" ({pod})")).unwrap_or_default();
        let dying = if netns.dying.is_some() { ", which is being torn down" } else { "" };
        format!("{name}{whose} has it{device}{dying}")
    }
}

/// That an address is the first or the last one of a network, if so: of the network in which a host has `local`.
fn edge_of(ip: Ipv4Addr, local: IpAddr, length: u8) -> Option<String> {
    let IpAddr::V4(local) = local else { return None };
    // A /31 has neither (RFC 3021).
    if !(1..=30).contains(&length) {
        return None;
    }
    let rest = u32::MAX >> length;
    let first = local.to_bits() & !rest;
    let what = match ip.to_bits() {
        bits if bits == first => "network",
        bits if bits == first | rest => "broadcast",
        _ => return None,
    };
    Some(format!("it is the {what} address of {}/{length}", Ipv4Addr::from_bits(first)))
}

/// Whether `id` is the requested container, by its whole id or a beginning that is long enough.
fn is_own(container: Option<&str>, id: Option<&str>) -> bool {
    let (Some(asked), Some(id)) = (container, id) else { return false };
    id == asked || (asked.len() >= SHORT_ID && id.starts_with(asked))
}

fn name(netns: &Netns) -> String {
    let inode = netns.names.inode;
    inode.map_or_else(|| netns.identity.to_string(), |inode| format!("net:[{inode}]"))
}
