//! The endpoints that share a link or a router with an address, in the types of the JSON contract.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{Endpoint, flood, router};
use crate::contract::{Address, Member, Segment, SegmentKind};
use crate::fact::NetnsRef;
use crate::map::view::interface_view;
use crate::map::{NetnsId, NodeMap};

/// Maximum number of endpoints in one answer. The reach of the addresses beyond that stays unknown.
const MAX_MEMBERS: usize = 16_384;
const STEPS: usize = 1 << 21;

/// The ends of pairs, by the router and the routing table at the other end.
type Routers = BTreeMap<(NetnsId, u32), Vec<Endpoint>>;

impl NodeMap {
    /// Fills in the reach of each address.
    pub fn draw_reach(&self, addresses: &mut [Address]) {
        let (mut left, mut budget) = (MAX_MEMBERS, flood::Budget(STEPS));
        let plan = self.plan();
        let mut routers = Routers::new();
        for (id, dev) in plan.devs.iter().enumerate() {
            if let Some(port) = router::port(self, plan, id) {
                routers.entry((port.netns, port.table)).or_default().push(dev.at);
            }
        }
        for address in addresses {
            let (Some(ip), Some(interface)) = (address.ip, &address.interface) else { continue };
            let (cookie, inode) = (address.netns.cookie, address.netns.inode);
            let names = NetnsRef { cookie, inode, nsid: address.netns.nsid };
            let Some(netns) = self.find(&names) else { continue };
            let at = Endpoint { netns, ifindex: interface.index };
            let Some(reach) = self.segments(at, ip, &routers, &mut budget) else { return };
            let count: usize = reach.iter().map(|segment| segment.members.len()).sum();
            if count > left {
                return;
            }
            left -= count;
            address.reach = Some(reach);
        }
    }

    /// `None` if it takes too many steps.
    fn segments(
        &self,
        from: Endpoint,
        ip: IpAddr,
        routers: &Routers,
        budget: &mut flood::Budget,
    ) -> Option<Vec<Segment>> {
        let plan = self.plan();
        let Some(dev) = plan.find(from) else { return Some(Vec::new()) };
        let reach = flood::reach(plan, dev, budget);
        if !reach.complete {
            return None;
        }
        let mut links: BTreeMap<Endpoint, Vec<Member>> = BTreeMap::new();
        for (to, by) in reach.endpoints {
            links.entry(by).or_default().extend(self.member(to, ip));
        }
        let mut segments: Vec<Segment> = links
            .into_iter()
            .filter_map(|(by, members)| {
                let netns = self.netns(by.netns)?;
                Some(Segment {
                    kind: SegmentKind::Link,
                    netns: self.netns_view(netns),
                    interface: Some(interface_view(netns, by.ifindex)),
                    members,
                })
            })
            .collect();
        let port = router::port(self, plan, dev);
        segments.extend(port.and_then(|port| self.routed(port, from, ip, routers)));
        Some(segments)
    }

    /// The router at the other end of a pair, and the other endpoints behind it.
    fn routed(
        &self,
        own: router::Port,
        from: Endpoint,
        ip: IpAddr,
        routers: &Routers,
    ) -> Option<Segment> {
        let ends = routers.get(&(own.netns, own.table))?.iter();
        let mut ends: Vec<Endpoint> =
            ends.filter(|at| at.netns != from.netns).copied().take(MAX_MEMBERS).collect();
        ends.sort_unstable();
        let members: Vec<Member> = ends.into_iter().filter_map(|at| self.member(at, ip)).collect();
        let netns = self.netns_view(self.netns(own.netns)?);
        let router = Segment { kind: SegmentKind::Router, netns, interface: None, members };
        (!router.members.is_empty()).then_some(router)
    }

    fn member(&self, at: Endpoint, ip: IpAddr) -> Option<Member> {
        let netns = self.netns(at.netns)?;
        let (container, pod) = self.sandbox_of(at.netns);
        let own = netns.addresses().filter(|(key, _)| key.ifindex == at.ifindex);
        let mut ips: Vec<IpAddr> = own.map(|(key, _)| key.local).collect();
        ips.dedup();
        Some(Member {
            netns: self.netns_view(netns),
            interface: interface_view(netns, at.ifindex),
            same_ip: ips.contains(&ip),
            ips,
            container,
            pod,
        })
    }
}
