//! Which device of the node leads to a pod, and the gateways of a pod's default routes.

use std::net::IpAddr;

use crate::fact::{Link, RouteKey};
use crate::remedy::said;

use crate::map::{Endpoint, Netns, NetnsId, NodeMap};

impl Netns {
    /// The next hops of the default routes, each with its device.
    pub fn gateways(&self) -> impl Iterator<Item = (IpAddr, u32)> {
        let default = self.routes().filter(|(key, ..)| key.prefix_len == 0);
        let hops = default.flat_map(|(_, hops, _)| hops);
        hops.filter_map(|hop| Some((hop.gateway?, hop.ifindex)))
    }

    /// The routes to one single IP, each with its devices.
    pub(in crate::map) fn routes_for(
        &self,
        ip: IpAddr,
    ) -> impl Iterator<Item = (&RouteKey, Vec<u32>)> {
        let to = self.routes().filter(move |(key, ..)| key.prefix_len > 0 && key.to == ip);
        to.map(|(key, hops, _)| (key, hops.iter().map(|hop| hop.ifindex).collect()))
    }
}

impl NodeMap {
    /// Whether a device of the host leads to an IP on a device of a netns: they share a link, or the host has a route
    /// to the IP through it.
    #[must_use]
    pub fn leads_to(&self, ifindex: u32, ip: IpAddr, netns: NetnsId, on: u32) -> bool {
        let Some(host) = self.host().and_then(|id| self.netns(id)) else {
            return false;
        };
        let there = Endpoint { netns, ifindex: on };
        // A VM behind a pod's device has the IP that a dummy device in the pod's netns shows.
        let ends_there = || {
            let link = host.link(ifindex).filter(|link| link.peer == Some(on));
            link.and_then(|link| self.far_netns(host, link)) == Some(netns)
        };
        let routed = host.routes_for(ip).any(|(_, devices)| devices.contains(&ifindex));
        // Not true of a macvlan or ipvlan and its parent: the kernel isolates these two from each other.
        let reach = || self.reach(Endpoint { netns: host.id, ifindex });
        routed && ends_there() || reach().endpoints.iter().any(|(other, _)| *other == there)
    }

    /// The host's routes to one IP, as text.
    #[must_use]
    pub fn routes_to(&self, ip: IpAddr) -> Vec<String> {
        let host = self.host().and_then(|id| self.netns(id));
        let Some(host) = host else { return Vec::new() };
        let name = |ifindex: &u32| {
            host.link(*ifindex).map_or_else(|| ifindex.to_string(), |link| said(&link.name))
        };
        let text = |(key, devices): (&RouteKey, Vec<u32>)| {
            let devices: Vec<String> = devices.iter().map(name).collect();
            format!("the node's route to {ip}/{} is through {}", key.prefix_len, devices.join(", "))
        };
        host.routes_for(ip).map(text).collect()
    }

    /// The other end of a veth pair, in any netns.
    #[must_use]
    pub fn other_end(&self, netns: NetnsId, ifindex: u32) -> Option<&Link> {
        let entry = self.netns(netns)?;
        let link = entry.link(ifindex).filter(|link| link.is_pair())?;
        let other = self.netns(self.far_netns(entry, link)?)?.link(link.peer?)?;
        (other.peer == Some(ifindex)).then_some(other)
    }
}
