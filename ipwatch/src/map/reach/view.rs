//! What an address shares its link or its router with, in the words of the JSON contract.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::super::NodeMap;
use super::super::view::interface_view;
use super::{Endpoint, router};
use crate::contract::{Address, Member, Segment, SegmentKind};
use crate::fact::NetnsRef;

/// Endpoints told of in one answer; those of the addresses after that are unknown.
const MAX_MEMBERS: usize = 16_384;

impl NodeMap {
    /// Fills in what each address meets.
    pub fn draw_reach(&self, addresses: &mut [Address]) {
        let mut left = MAX_MEMBERS;
        for address in addresses {
            let (Some(ip), Some(interface)) = (address.ip, &address.interface) else { continue };
            let (cookie, inode) = (address.netns.cookie, address.netns.inode);
            let names = NetnsRef { cookie, inode, nsid: address.netns.nsid };
            let Some(netns) = self.find(&names) else { continue };
            let reach = self.segments(Endpoint { netns, ifindex: interface.index }, ip);
            let count: usize = reach.iter().map(|segment| segment.members.len()).sum();
            if count > left {
                return;
            }
            left -= count;
            address.reach = Some(reach);
        }
    }

    fn segments(&self, from: Endpoint, ip: IpAddr) -> Vec<Segment> {
        let mut links: BTreeMap<Endpoint, Vec<Member>> = BTreeMap::new();
        for (to, by) in self.reach(from).endpoints {
            links.entry(by).or_default().extend(self.member(to, ip));
        }
        let mut segments: Vec<Segment> = links
            .into_iter()
            .filter_map(|(by, members)| {
                let netns = self.netns.get(&by.netns)?;
                Some(Segment {
                    kind: SegmentKind::Link,
                    netns: self.netns_view(netns),
                    interface: Some(interface_view(netns, by.ifindex)),
                    members,
                })
            })
            .collect();
        segments.extend(self.routed(from, ip));
        segments
    }

    /// The router at the other end of a pair, and whom else it has so.
    fn routed(&self, from: Endpoint, ip: IpAddr) -> Option<Segment> {
        let plan = self.plan();
        let own = router::port(self, plan, plan.find(from)?)?;
        let all = plan.devs.iter().enumerate().filter(|(_, dev)| dev.at.netns != from.netns);
        let same = all.filter(|(id, _)| {
            router::port(self, plan, *id)
                .is_some_and(|port| (port.netns, port.table) == (own.netns, own.table))
        });
        let mut ends: Vec<Endpoint> = same.map(|(_, dev)| dev.at).collect();
        ends.sort_unstable();
        let members: Vec<Member> = ends.into_iter().filter_map(|at| self.member(at, ip)).collect();
        let netns = self.netns_view(self.netns.get(&own.netns)?);
        let router = Segment { kind: SegmentKind::Router, netns, interface: None, members };
        (!router.members.is_empty()).then_some(router)
    }

    fn member(&self, at: Endpoint, ip: IpAddr) -> Option<Member> {
        let netns = self.netns.get(&at.netns)?;
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
