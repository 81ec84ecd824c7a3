//! Neighbour entries in the types of the JSON contract: the holders of the IP, the device with the MAC, and conflicts.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::contract::{self, Claimant, IpamHolder, Prefix};
use crate::fact::Mac;

use super::netns::{interface_view, state_name};
use crate::map::Conflict;
use crate::map::{Netns, NetnsId, NodeMap};

impl NodeMap {
    /// Number of entries.
    #[must_use]
    pub fn neighbour_count(&self) -> usize {
        self.all_netns().map(|entry| entry.neighbours().len()).sum()
    }

    /// Neighbour entries, of all IPs or of those within one prefix.
    #[must_use]
    pub fn neighbours(&self, prefix: Option<&Prefix>) -> Vec<contract::Neighbour> {
        let range = prefix.map(Prefix::range);
        let within = |ip: IpAddr| range.is_none_or(|(first, last)| first <= ip && ip <= last);
        let (macs, conflicts) = (self.macs(), self.conflicts(self.now));
        let mut views: Vec<contract::Neighbour> = Vec::new();
        for netns in self.all_netns() {
            for entry in netns.neighbours().filter(|entry| within(entry.neighbour.ip)) {
                let (ifindex, ip) = (entry.neighbour.ifindex, entry.neighbour.ip);
                views.push(self.neighbour_view(netns, ifindex, ip, &macs, &conflicts));
            }
        }
        views.sort_by_key(|view| (view.ip, view.netns.inode));
        views
    }

    /// One entry, with the state `GONE` if it was removed.
    pub(in crate::map) fn neighbour_view(
        &self,
        netns: &Netns,
        ifindex: u32,
        ip: IpAddr,
        macs: &BTreeMap<Mac, Vec<(NetnsId, u32)>>,
        conflicts: &[Conflict],
    ) -> contract::Neighbour {
        let entry = netns.neighbour(ifindex, ip);
        let mac = entry.and_then(|entry| entry.neighbour.mac);
        // A MAC may be on several devices, as with ipvlan: prefer the one whose netns has the IP.
        let places = mac.and_then(|mac| macs.get(&mac)).map(Vec::as_slice).unwrap_or_default();
        let has_ip = |id: NetnsId| self.with_ip(ip).any(|other| other == id);
        let place = places.iter().find(|(id, _)| has_ip(*id)).or(places.first());
        let here = |one: &&Conflict| (one.ip, one.netns, one.ifindex) == (ip, netns.id, ifindex);
        let on_it = |one: &&Conflict| {
            one.ip == ip && self.segment(one.netns, one.ifindex) == self.segment(netns.id, ifindex)
        };
        let conflict = conflicts.iter().find(here).or_else(|| conflicts.iter().find(on_it));
        contract::Neighbour {
            ip,
            mac,
            state: entry.map_or_else(|| "GONE".to_owned(), |e| state_name(e.neighbour.state)),
            netns: self.netns_view(netns),
            interface: interface_view(netns, ifindex),
            since: Some(self.calendar().date(entry.map_or(self.now, |entry| entry.changed))),
            holders: self.ip_holders(ip),
            mac_of: place.and_then(|(id, ifindex)| self.device_view(*id, *ifindex)),
            conflict: conflict.map(|conflict| self.claimants(conflict)).unwrap_or_default(),
        }
    }

    /// Every MAC of a conflict.
    fn claimants(&self, conflict: &Conflict) -> Vec<Claimant> {
        let of = |party: &crate::map::Party| Claimant {
            mac: party.mac,
            of: party.home.and_then(|home| self.device_view(home.netns, home.ifindex)),
            heard: party.heard.as_ref().map(|side| self.calendar().date(side.last)),
        };
        conflict.parties.iter().map(of).collect()
    }

    /// A device, its netns and the owner of that.
    fn device_view(&self, id: NetnsId, ifindex: u32) -> Option<IpamHolder> {
        let netns = self.netns(id)?;
        let (container, pod) = self.sandbox_of(id);
        Some(IpamHolder {
            netns: self.netns_view(netns),
            interface: Some(interface_view(netns, ifindex)),
            container,
            pod,
        })
    }
}
