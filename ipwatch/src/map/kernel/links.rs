//! Devices, and what is removed with them: addresses, routes, neighbours.

use crate::fact::{BootNs, Link, NetnsRef, Origin};

use super::fittings::Fitting;
use super::netns::LinkEntry;
use super::tombstones::Tombstone;
use crate::map::{AddressEntry, AddressId, NodeMap};

/// Maximum number of links of one netns. The host has one for each pod.
const MAX_LINKS: usize = 8_192;

impl NodeMap {
    pub(in crate::map) fn set_link(&mut self, netns: &NetnsRef, link: &Link, at: BootNs) {
        let Some(id) = self.resolve(netns, at) else {
            self.wired_left_out(netns, link);
            return;
        };
        if self.kernel.tombstones.covers(Tombstone::Link(id, link.ifindex), at) {
            return;
        }
        let Some(entry) = self.kernel.netns.get(&id) else { return };
        let is_new = !entry.links.contains_key(&link.ifindex);
        if is_new && entry.links.len() >= MAX_LINKS {
            self.not_kept_of(id, Fitting::Link, 1);
            return;
        }
        if is_new && !self.make_room_for(id, Fitting::Link, at) {
            return;
        }
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        let mut went_down = false;
        match entry.links.get_mut(&link.ifindex) {
            Some(known) if known.touched > at => {}
            Some(known) => {
                let driver = same_driver(&known.link, link);
                let was = std::mem::replace(&mut known.link, link.clone());
                went_down = was.up && !link.up;
                known.touched = at;
                if let Some(parent) = &mut known.link.parent {
                    parent.driver = parent.driver.take().or(driver);
                }
                if was != known.link {
                    self.conflict.rewired();
                }
            }
            None => {
                let new = LinkEntry { link: link.clone(), since: at, touched: at };
                entry.links.insert(link.ifindex, Box::new(new));
                self.conflict.rewired();
            }
        }
        entry.pair_up(link.ifindex);
        // Only if it was up before: the first route of a new device may be reported before the device, by another
        // socket.
        if went_down {
            entry.wiring.forget_routes(link.ifindex, at);
            self.conflict.readdressed();
        }
        if is_new || went_down {
            self.refit(id);
        }
        self.met(id, link, at);
        self.want_vlans(id, link, at);
    }

    pub(in crate::map) fn drop_link(
        &mut self,
        netns: &NetnsRef,
        ifindex: u32,
        at: BootNs,
        origin: Origin,
    ) {
        let hearsay = self.hearsay(origin);
        let Some(id) = self.find(netns) else { return };
        self.kernel.tombstones.dig(Tombstone::Link(id, ifindex), at);
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        if entry.links.get(&ifindex).is_some_and(|known| known.touched > at) {
            return;
        }
        entry.links.remove(&ifindex);
        entry.pair_up(ifindex);
        entry.wiring.forget_device(ifindex, at);
        self.conflict.rewired();
        self.forget_device_neighbours(id, ifindex);
        self.refit(id);
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        // If probes report addresses, they report these deletions too, in order.
        if hearsay {
            return;
        }
        let on_it = |(key, known): &(&AddressId, &AddressEntry)| {
            key.ifindex == ifindex && known.touched <= at
        };
        let addresses: Vec<AddressId> =
            entry.addresses.iter().filter(on_it).map(|(key, _)| *key).collect();
        for key in addresses {
            self.end_address(id, &key, at, "device-gone");
        }
    }

    pub(in crate::map) fn sweep_links(&mut self, netns: &NetnsRef, began: BootNs) {
        let Some(entry) = self.find(netns).and_then(|id| self.kernel.netns.get(&id)) else {
            return;
        };
        let stale: Vec<u32> = entry
            .links
            .values()
            .filter(|known| known.touched < began)
            .map(|known| known.link.ifindex)
            .collect();
        for ifindex in stale {
            self.drop_link(netns, ifindex, began, Origin::Netlink);
        }
    }
}

/// The known driver of the device behind a link, if it is still the same device. Only a dump reports the driver.
fn same_driver(known: &Link, new: &Link) -> Option<String> {
    let (known, new) = (known.parent.as_ref()?, new.parent.as_ref()?);
    let same = known.bus == new.bus && known.address == new.address;
    known.driver.clone().filter(|_| same)
}
