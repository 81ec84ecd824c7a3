//! Addresses of a netns: their identity in the kernel, their creation and removal. Limits are in `shares`.
//!
//! The kernel changes an IPv6 address in place: its peer, flags and lifetimes. An identity that included one of these
//! would leave a stale entry with each change, because the old one is never reported as deleted.

use std::net::{IpAddr, Ipv4Addr};

use crate::fact::{Address, AddressKey, BootNs, Mac, NetnsRef, Origin};

use super::netns::{Netns, is_routable};
use super::tombstones::Tombstone;
use crate::map::conflict::How;
use crate::map::{Kinds, NetnsId, NodeMap};

/// The identity of an address of a netns in the kernel (5.10 to 6.18).
///
/// A device has an IPv6 address once, whatever its prefix and peer (`ipv6_chk_same_addr`, net/ipv6/addrconf.c). It has
/// an IPv4 address once for each mask and subnet (`__inet_insert_ifa`, net/ipv4/devinet.c); with a peer, the subnet is
/// the peer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressId {
    pub ifindex: u32,
    /// The address of this netns, not the peer's.
    pub local: IpAddr,
    /// Prefix length; always 0 for IPv6.
    mask: u8,
    subnet: u32,
}

impl From<&AddressKey> for AddressId {
    fn from(told: &AddressKey) -> Self {
        let AddressKey { ifindex, local, prefix_len, peer } = *told;
        let (mask, subnet) = match local {
            IpAddr::V4(local) => {
                let far = match peer {
                    Some(IpAddr::V4(peer)) => peer,
                    _ => local,
                };
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix_len.min(32))).unwrap_or(0);
                (prefix_len, far.to_bits() & mask)
            }
            IpAddr::V6(_) => (0, 0),
        };
        Self { ifindex, local, mask, subnet }
    }
}

/// The smallest IP, in the order of addresses.
const LEAST_IP: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The smallest id that a device may have with an IP.
fn least(ifindex: u32, local: IpAddr) -> AddressId {
    AddressId { ifindex, local, mask: 0, subnet: 0 }
}

/// The range of all ids that a device may have with an IP.
fn all_of(ifindex: u32, local: IpAddr) -> std::ops::RangeInclusive<AddressId> {
    least(ifindex, local)..=AddressId { ifindex, local, mask: u8::MAX, subnet: u32::MAX }
}

/// An address and since when it has been known.
#[derive(Debug, Clone)]
pub struct AddressEntry {
    pub prefix_len: u8,
    /// `RT_SCOPE_*`.
    pub scope: Option<u8>,
    /// `IFA_F_*`.
    pub flags: Option<u32>,
    /// First reported.
    pub since: BootNs,
    /// Whether its creation was observed, rather than read in a dump.
    pub seen_to_come: bool,
    /// Time of the newest fact.
    pub touched: BootNs,
    /// Whether it was reported as a tenure.
    pub(super) told: bool,
}

/// `include/uapi/linux/if_addr.h`.
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;

impl AddressEntry {
    /// Another host on the link answered for it (IPv6).
    #[must_use]
    pub fn dad_failed(&self) -> bool {
        self.flags.is_some_and(|flags| flags & IFA_F_DADFAILED != 0)
    }

    /// Whether it is in use: duplicate address detection has neither failed nor is still running.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.flags.is_none_or(|flags| flags & (IFA_F_DADFAILED | IFA_F_TENTATIVE) == 0)
    }
}

impl Netns {
    /// Its addresses, by device.
    pub fn addresses(&self) -> impl ExactSizeIterator<Item = (&AddressId, &AddressEntry)> {
        self.addresses.iter()
    }

    /// The addresses with this IP, by device. This is a lookup rather than a scan, because a netns may have thousands
    /// of addresses.
    pub fn with_ip(&self, ip: IpAddr) -> impl Iterator<Item = (&AddressId, &AddressEntry)> {
        let mut from = Some(0);
        let devices = std::iter::from_fn(move || {
            let (key, _) = self.addresses.range(least(from?, LEAST_IP)..).next()?;
            from = key.ifindex.checked_add(1);
            Some(key.ifindex)
        });
        devices.flat_map(move |ifindex| self.on_device(ifindex, ip))
    }

    /// The addresses with this IP on one device: IPv4 allows several with different masks or subnets.
    pub fn on_device(
        &self,
        ifindex: u32,
        ip: IpAddr,
    ) -> impl Iterator<Item = (&AddressId, &AddressEntry)> {
        self.addresses.range(all_of(ifindex, ip))
    }

    /// Addresses that others can reach: neither on a loopback device nor link-local.
    pub fn routable(&self) -> impl Iterator<Item = (&AddressId, &AddressEntry)> {
        self.addresses.iter().filter(|(key, _)| self.is_routable(key))
    }

    pub(in crate::map) fn is_routable(&self, key: &AddressId) -> bool {
        #[cfg(test)]
        asked::ADDRESSES.set(asked::ADDRESSES.get() + 1);
        is_routable(key.local)
            && !self.links.get(&key.ifindex).is_some_and(|entry| entry.link.loopback)
    }
}

impl NodeMap {
    pub(in crate::map) fn set_address(
        &mut self,
        netns: &NetnsRef,
        address: &Address,
        at: BootNs,
        origin: Origin,
    ) {
        let hearsay = self.hearsay(origin);
        let Some(id) = self.resolve(netns, at) else { return };
        let key = AddressId::from(&address.key);
        let buried = self.kernel.tombstones.covers(Tombstone::Address(id, key), at);
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        // An entry of a dump is no echo: it may report what probes cannot see, or missed.
        let echo = hearsay && entry.dumping != Some(at);
        let known = entry.addresses.get(&key);
        // The kernel never changes a prefix in place: the end of the former address was missed.
        let replaced = known.is_some_and(|known| {
            known.prefix_len != address.key.prefix_len && known.touched <= at && !echo && !buried
        });
        if replaced {
            self.end_address(id, &key, at, "address-deleted");
        } else if known.is_some() {
            self.confirm_address(id, &key, address, at, echo);
            return;
        }
        let Some(entry) = self.kernel.netns.get(&id) else { return };
        if buried || (echo && entry.opened.is_some()) {
            if !buried {
                self.kernel.netlink_reconcile.raise(id, key, true, at);
            }
            return;
        }
        self.insert_address(id, key, address, at);
    }

    /// A known address was reported again.
    fn confirm_address(
        &mut self,
        id: NetnsId,
        key: &AddressId,
        address: &Address,
        at: BootNs,
        echo: bool,
    ) {
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        let overrun = entry.overrun();
        let Some(known) = entry.addresses.get_mut(key) else { return };
        if known.touched <= at || echo {
            known.scope = address.scope.or(known.scope);
            let flags = address.flags.or(known.flags);
            if std::mem::replace(&mut known.flags, flags) != flags {
                self.conflict.readdressed();
                self.conflict.ip_changed(key.local);
            }
        }
        if !echo {
            if known.touched < self.lost_last.max(overrun) {
                self.conflict.readdressed();
            }
            known.touched = known.touched.max(at);
        }
        if known.dad_failed() {
            self.address_rejected(id, key.ifindex, key.local, at);
        }
    }

    fn insert_address(&mut self, id: NetnsId, key: AddressId, address: &Address, at: BootNs) {
        if !self.make_room(id, at) {
            self.not_kept(id);
            return;
        }
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        let new = AddressEntry {
            prefix_len: address.key.prefix_len,
            scope: address.scope,
            flags: address.flags,
            since: at,
            seen_to_come: entry.dumping != Some(at),
            touched: at,
            told: false,
        };
        let dad_failed = new.dad_failed();
        entry.addresses.insert(key, new);
        self.recount(id);
        if dad_failed {
            self.address_rejected(id, key.ifindex, key.local, at);
        }
        self.conflict.ip_moved(key.local);
        self.kernel.by_ip.insert((key.local, id));
        self.count_holders(key.local);
        self.ipam.touch(key.local);
        self.announce_address(id, &key);
    }

    pub(in crate::map) fn drop_address(
        &mut self,
        netns: &NetnsRef,
        key: &AddressKey,
        at: BootNs,
        origin: Origin,
    ) {
        let Some(id) = self.find(netns) else { return };
        let key = AddressId::from(key);
        // The probe reports the deletion in the kernel's order, before or after this; netlink's echo of it may arrive
        // after the address has been added again.
        let known = self.kernel.netns.get(&id).and_then(|entry| entry.addresses.get(&key));
        if self.hearsay(origin) {
            if known.is_some() {
                self.kernel.netlink_reconcile.raise(id, key, false, at);
            }
            return;
        }
        self.kernel.tombstones.dig(Tombstone::Address(id, key), at);
        if known.is_some_and(|known| known.touched <= at) {
            self.end_address(id, &key, at, "address-deleted");
        }
    }

    pub(in crate::map) fn end_address(
        &mut self,
        id: NetnsId,
        key: &AddressId,
        at: BootNs,
        ended_by: &'static str,
    ) {
        self.end_tenure(id, key, at, ended_by);
        if self.take_out(id, key) {
            self.note_address_lost(id, key.local, ended_by, at);
        }
    }

    /// Forgets an address. Returns whether no other address of the netns has its IP.
    pub(in crate::map) fn take_out(&mut self, id: NetnsId, key: &AddressId) -> bool {
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return false };
        if entry.addresses.remove(key).is_none() {
            return false;
        }
        // The netns may be another than the fact's: see `shares`.
        self.mark_in(id, Kinds::ADDRESSES);
        let Some(entry) = self.kernel.netns.get(&id) else { return false };
        self.conflict.readdressed();
        self.conflict.ip_changed(key.local);
        // The same IP may be on another device or have another prefix.
        let last = entry.with_ip(key.local).next().is_none();
        self.recount(id);
        if last {
            self.kernel.by_ip.remove(&(key.local, id));
            self.count_holders(key.local);
            self.ipam.touch(key.local);
        }
        last
    }

    pub(in crate::map) fn sweep_addresses(&mut self, netns: &NetnsRef, began: BootNs) {
        let Some(id) = self.find(netns) else { return };
        let Some(entry) = self.kernel.netns.get(&id) else { return };
        let stale: Vec<AddressId> = entry
            .addresses
            .iter()
            .filter(|(_, known)| known.touched < began)
            .map(|(key, _)| *key)
            .collect();
        for key in stale {
            self.end_address(id, &key, began, "address-deleted");
        }
    }

    /// Sets IFA_F_DADFAILED, which is needed before netlink repeats it.
    pub(in crate::map) fn dad_failed(
        &mut self,
        netns: &NetnsRef,
        ifindex: u32,
        ip: IpAddr,
        offender: Option<Mac>,
        at: BootNs,
    ) {
        let Some(id) = self.find(netns) else { return };
        if let Some(mac) = offender {
            self.hear(id, ifindex, ip, mac, How::Dad, at);
        }
        self.address_rejected(id, ifindex, ip, at);
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        for (_, known) in entry.addresses.range_mut(all_of(ifindex, ip)) {
            known.flags = Some(known.flags.unwrap_or(0) | IFA_F_DADFAILED);
            self.conflict.readdressed();
            self.conflict.ip_changed(ip);
            known.touched = known.touched.max(at);
        }
    }
}

/// Lets a test count work instead of time.
#[cfg(test)]
pub(in crate::map) mod asked {
    use std::cell::Cell;

    thread_local! {
        /// Number of addresses of which it was asked whether others can reach them.
        pub(in crate::map) static ADDRESSES: Cell<usize> = const { Cell::new(0) };
    }
}
