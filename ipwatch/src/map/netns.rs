//! What is in a netns, its devices apart (`links`), and the rules of order between events and dumps.
//!
//! An entry remembers the time of the fact that last touched it. A fact older than that is ignored;
//! a deletion leaves a grave for a while, so that a dump which read the entry before the deletion
//! cannot bring it back. A finished dump sweeps what was last touched before it began.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::fact::{
    Address, AddressKey, BootNs, Holder, Link, Mac, NetnsRef, Origin, Scope, TaskKey,
};

use super::claims::How;
use super::graves::Grave;
use super::neighbours::NeighbourEntry;
use super::wiring::Wiring;
use super::{Identity, NetnsId, NodeMap, Owner};

/// Addresses kept per netns. A node with IPVS has one for each service.
const MAX_ADDRESSES: usize = 16_384;
/// IPs kept of all netns together: whoever makes one netns can make many.
const MAX_IN_ALL: usize = 262_144;

/// One network namespace.
#[derive(Debug)]
pub struct Netns {
    /// Its id in this map.
    pub id: NetnsId,
    /// What identifies it within the boot.
    pub identity: Identity,
    /// Every name known of it.
    pub names: NetnsRef,
    /// It is the host's own.
    pub host: bool,
    /// When it was first heard of.
    pub first_seen: BootNs,
    /// When its teardown was seen to begin, or its nsid was taken away.
    pub dying: Option<BootNs>,
    /// Its addresses were dumped whole at least once.
    pub dumped: bool,
    /// When the dump of its addresses began that is being applied.
    dumping: Option<BootNs>,
    /// The same of its neighbours.
    pub(super) dumping_neighbours: Option<BootNs>,
    /// Links and addresses that were beyond the bounds.
    pub(super) more: u64,
    /// Its addresses have been told as tenures.
    pub(super) announced: bool,
    pub(super) touched: BootNs,
    pub(super) links: BTreeMap<u32, LinkEntry>,
    pub(super) addresses: BTreeMap<AddressKey, AddressEntry>,
    pub(super) neighbours: BTreeMap<(u32, IpAddr), NeighbourEntry>,
    pub(super) wiring: Wiring,
    pub(super) tasks: BTreeSet<TaskKey>,
    pub(super) holders: BTreeMap<Holder, BootNs>,
    /// When a search for holders last ended, and whether it was complete.
    pub(super) searched: Option<(BootNs, bool)>,
    /// The newest searches, so many, found nothing that holds it.
    pub(super) bare_searches: u32,
    /// Whose it is.
    pub(super) owner: Option<Owner>,
    /// No task has been in it since.
    pub(super) idle_since: Option<BootNs>,
}

/// A link and when it was last told of.
#[derive(Debug, Clone)]
pub struct LinkEntry {
    /// The link.
    pub link: Link,
    /// First seen.
    pub since: BootNs,
    /// Time of the newest fact.
    pub touched: BootNs,
}

/// An address and since when it stands.
#[derive(Debug, Clone)]
pub struct AddressEntry {
    /// `RT_SCOPE_*`.
    pub scope: Option<u8>,
    /// `IFA_F_*`.
    pub flags: Option<u32>,
    /// First seen.
    pub since: BootNs,
    /// It was seen to come, and not read in a dump.
    pub seen_to_come: bool,
    /// Time of the newest fact.
    pub touched: BootNs,
    /// It was told as a tenure.
    pub(super) told: bool,
}

/// `include/uapi/linux/if_addr.h`.
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_TENTATIVE: u32 = 0x40;

impl AddressEntry {
    /// Another one on the link answered for it (IPv6).
    #[must_use]
    pub fn dad_failed(&self) -> bool {
        self.flags.is_some_and(|flags| flags & IFA_F_DADFAILED != 0)
    }

    /// It is in use: neither given up nor still being tried out.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.flags.is_none_or(|flags| flags & (IFA_F_DADFAILED | IFA_F_TENTATIVE) == 0)
    }
}

impl Netns {
    pub(super) fn new(
        id: NetnsId,
        identity: Identity,
        names: NetnsRef,
        host: bool,
        at: BootNs,
    ) -> Self {
        Self {
            id,
            identity,
            names,
            host,
            first_seen: at,
            dying: None,
            dumped: false,
            dumping: None,
            dumping_neighbours: None,
            more: 0,
            announced: false,
            touched: at,
            links: BTreeMap::new(),
            addresses: BTreeMap::new(),
            neighbours: BTreeMap::new(),
            wiring: Wiring::default(),
            tasks: BTreeSet::new(),
            holders: BTreeMap::new(),
            searched: None,
            bare_searches: 0,
            owner: None,
            idle_since: Some(at),
        }
    }

    pub(super) fn learn_names(&mut self, names: &NetnsRef) {
        self.names.cookie = names.cookie.or(self.names.cookie);
        self.names.inode = names.inode.or(self.names.inode);
        if self.dying.is_none() {
            self.names.nsid = names.nsid.or(self.names.nsid);
        }
    }

    /// Takes over what an entry held that turned out to be this same netns: the newer word wins.
    pub(super) fn absorb(&mut self, other: &mut Netns) {
        self.first_seen = self.first_seen.min(other.first_seen);
        self.touched = self.touched.max(other.touched);
        self.dying = self.dying.or(other.dying);
        self.dumped |= other.dumped;
        absorb_map(&mut self.links, &mut other.links, |entry| entry.touched);
        absorb_map(&mut self.addresses, &mut other.addresses, |entry| entry.touched);
        absorb_map(&mut self.neighbours, &mut other.neighbours, |entry| entry.touched);
        absorb_map(&mut self.holders, &mut other.holders, |touched| *touched);
        self.wiring.absorb(std::mem::take(&mut other.wiring));
        self.tasks.append(&mut other.tasks);
        self.owner = self.owner.take().or(other.owner.take());
        self.idle_since = self.idle_since.max(other.idle_since).filter(|_| self.tasks.is_empty());
    }

    /// Its addresses, by device.
    pub fn addresses(&self) -> impl Iterator<Item = (&AddressKey, &AddressEntry)> {
        self.addresses.iter()
    }

    /// Those with this IP, by device: found, not searched for, for a netns may have thousands of others.
    pub fn with_ip(&self, ip: IpAddr) -> impl Iterator<Item = (&AddressKey, &AddressEntry)> {
        let mut from = Some(0);
        let devices = std::iter::from_fn(move || {
            let (key, _) = self.addresses.range(least(from?, LEAST_IP)..).next()?;
            from = key.ifindex.checked_add(1);
            Some(key.ifindex)
        });
        devices.flat_map(move |ifindex| self.on_device(ifindex, ip))
    }

    /// Those with this IP on one device: they differ in prefix or peer.
    pub fn on_device(
        &self,
        ifindex: u32,
        ip: IpAddr,
    ) -> impl Iterator<Item = (&AddressKey, &AddressEntry)> {
        self.addresses.range(all_of(ifindex, ip))
    }

    /// Its links, by index.
    pub fn links(&self) -> impl Iterator<Item = &LinkEntry> {
        self.links.values()
    }

    /// One link.
    #[must_use]
    pub fn link(&self, ifindex: u32) -> Option<&Link> {
        self.links.get(&ifindex).map(|entry| &entry.link)
    }

    /// Its neighbours.
    pub fn neighbours(&self) -> impl Iterator<Item = &NeighbourEntry> {
        self.neighbours.values()
    }

    /// The tasks known in it: processes, and threads whose process is not.
    pub fn tasks(&self) -> impl Iterator<Item = &TaskKey> {
        self.tasks.iter()
    }

    /// An fd or a socket holds it, which only another search can tell the end of.
    pub(super) fn has_hidden_holder(&self) -> bool {
        self.holders.keys().any(|holder| !matches!(holder, Holder::Mount { .. }))
    }

    /// What else holds it.
    pub fn holders(&self) -> impl Iterator<Item = &Holder> {
        self.holders.keys()
    }

    /// When a search for holders last ended, and whether everything answered.
    #[must_use]
    pub fn searched(&self) -> Option<(BootNs, bool)> {
        self.searched
    }

    /// More than one complete search found nothing that holds it: what does is within the kernel. One may
    /// have fallen between the last holder's end and the netns's own.
    #[must_use]
    pub fn held_by_kernel(&self) -> bool {
        self.bare_searches > 1 && self.holders.is_empty()
    }

    /// The sandbox it was made for, as far as was ever known.
    #[must_use]
    pub fn owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }

    /// Since when no task has been in it.
    #[must_use]
    pub fn idle_since(&self) -> Option<BootNs> {
        self.idle_since
    }

    /// Addresses that matter to somebody else: neither on a loopback device nor link-local.
    pub fn routable(&self) -> impl Iterator<Item = (&AddressKey, &AddressEntry)> {
        self.addresses.iter().filter(|(key, _)| self.is_routable(key))
    }

    pub(super) fn is_routable(&self, key: &AddressKey) -> bool {
        is_routable(key.local)
            && !self.links.get(&key.ifindex).is_some_and(|entry| entry.link.loopback)
    }
}

/// The least IP, in the order of addresses.
const LEAST_IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);

/// The least address that a device may have with an IP.
fn least(ifindex: u32, local: IpAddr) -> AddressKey {
    AddressKey { ifindex, local, prefix_len: 0, peer: None }
}

/// Every address that a device may have with an IP.
fn all_of(ifindex: u32, local: IpAddr) -> std::ops::RangeInclusive<AddressKey> {
    let last = IpAddr::V6(std::net::Ipv6Addr::from_bits(u128::MAX));
    let most = AddressKey { ifindex, local, prefix_len: u8::MAX, peer: Some(last) };
    least(ifindex, local)..=most
}

/// Whether an IP can be handed out at all: not loopback, link-local, multicast or unspecified.
pub(super) fn is_routable(ip: IpAddr) -> bool {
    if ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() {
        return false;
    }
    match ip {
        IpAddr::V4(ip) => !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    }
}

fn absorb_map<K: Ord, V>(
    into: &mut BTreeMap<K, V>,
    from: &mut BTreeMap<K, V>,
    touched: impl Fn(&V) -> BootNs,
) {
    for (key, value) in std::mem::take(from) {
        match into.get(&key) {
            Some(own) if touched(own) >= touched(&value) => {}
            _ => {
                into.insert(key, value);
            }
        }
    }
}

impl NodeMap {
    pub(super) fn touch_netns(&mut self, id: NetnsId, at: BootNs) {
        let Some(entry) = self.netns.get_mut(&id) else { return };
        entry.touched = entry.touched.max(at);
        // On `net->list` after all: it was called dying by a torn walk.
        if entry.dying.is_some_and(|since| since < at) {
            entry.dying = None;
            self.teardowns.revived(id);
            self.reach.rewired();
            self.agenda.netns_appeared(id, at);
        }
    }

    /// The teardown has begun. Without sight of its end this is the last that is ever heard.
    pub(super) fn netns_dying(&mut self, netns: &NetnsRef, at: BootNs) {
        let ids = self.meant_by_death(netns, at);
        if ids.is_empty() {
            self.graves_for_unknown(netns, at);
        }
        for id in ids {
            self.mark_dying(id, at);
        }
    }

    /// A netns that nobody has told of yet dies: what is still queued about it must not bring it to life.
    fn graves_for_unknown(&mut self, netns: &NetnsRef, at: BootNs) {
        if let Some(nsid) = netns.nsid {
            self.graves.netns(&NetnsRef::nsid(nsid), at);
        }
    }

    pub(super) fn mark_dying(&mut self, id: NetnsId, at: BootNs) {
        let seen_to_end = self.sight.teardown_end;
        let Some(entry) = self.netns.get_mut(&id) else { return };
        if entry.host {
            return;
        }
        // The end of a teardown is told by cookie and inode: of a netns that is known by its nsid alone
        // nothing more would ever be heard.
        let nameable = entry.names.cookie.is_some() || entry.names.inode.is_some();
        if !seen_to_end || !nameable {
            self.remove_netns(id, at, "netns-gone");
            return;
        }
        let asked = entry.dying.replace(entry.dying.unwrap_or(at)).is_none();
        self.reach.rewired();
        for key in entry.addresses.keys() {
            self.ipam.touch(key.local);
        }
        // The nsid is free from the moment RTM_DELNSID is sent (`unhash_nsid`, before pre_exit).
        if let Some(nsid) = entry.names.nsid.take() {
            let names = NetnsRef::nsid(nsid);
            self.unbind_nsid(id, nsid);
            self.graves.netns(&names, at);
        }
        self.agenda.forget_netns(id);
        if asked {
            self.teardown_asked(id, at);
        }
    }

    pub(super) fn netns_gone(&mut self, netns: &NetnsRef, at: BootNs) {
        for id in self.meant_by_death(netns, at) {
            self.remove_netns(id, at, "netns-gone");
        }
        self.graves.netns(netns, at);
    }

    /// A whole walk of `net->list` did not meet these: they are being torn down, or gone.
    pub(super) fn sweep_netns(&mut self, began: BootNs) {
        // A walk that began before the loss cannot make up for it.
        if self.lost.take_if(|lost| *lost < began).is_some() {
            let ended = |entry: &&Netns| entry.dying.is_some_and(|since| since < began);
            let ids: Vec<_> = self.netns.values().filter(ended).map(|entry| entry.id).collect();
            for id in ids {
                self.remove_netns(id, began, "netns-gone");
            }
        }
        let missed: Vec<NetnsId> = self
            .netns
            .values()
            .filter(|entry| !entry.host && entry.dying.is_none())
            .filter(|entry| entry.touched < began && entry.first_seen < began)
            // A netns known by its nsid alone cannot be met by a walk, which does not read nsids.
            .filter(|entry| entry.names.inode.is_some() || entry.names.cookie.is_some())
            .map(|entry| entry.id)
            .collect();
        if !missed.is_empty() {
            self.teardown_progress(began);
        }
        for id in missed {
            self.mark_dying(id, began);
        }
    }

    pub(super) fn set_address(
        &mut self,
        netns: &NetnsRef,
        address: &Address,
        at: BootNs,
        origin: Origin,
    ) {
        let hearsay = self.hearsay(origin);
        let Some(id) = self.resolve(netns, at) else { return };
        let buried = self.graves.covers(Grave::Address(id, address.key), at);
        let Some(entry) = self.netns.get_mut(&id) else { return };
        // An entry of a dump is no echo: it tells what probes cannot, or have lost.
        let echo = hearsay && entry.dumping != Some(at);
        if let Some(known) = entry.addresses.get_mut(&address.key) {
            if known.touched <= at || echo {
                known.scope = address.scope.or(known.scope);
                let flags = address.flags.or(known.flags);
                if std::mem::replace(&mut known.flags, flags) != flags {
                    self.reach.readdressed();
                }
            }
            if !echo {
                if known.touched < self.lost_last {
                    self.reach.readdressed();
                }
                known.touched = known.touched.max(at);
            }
            if known.dad_failed() {
                self.claims.dad_failed(id, address.key.ifindex, address.key.local);
            }
            return;
        }
        if buried || (echo && entry.dumped) {
            if !buried {
                self.doubts.raise(id, address.key, true, at);
            }
            return;
        }
        if entry.addresses.len() >= MAX_ADDRESSES || self.by_ip.len() >= MAX_IN_ALL {
            entry.more += 1;
            return;
        }
        let new = AddressEntry {
            scope: address.scope,
            flags: address.flags,
            since: at,
            seen_to_come: entry.dumping != Some(at),
            touched: at,
            told: false,
        };
        let dad_failed = new.dad_failed();
        entry.addresses.insert(address.key, new);
        if dad_failed {
            self.claims.dad_failed(id, address.key.ifindex, address.key.local);
        }
        self.claims.touch(address.key.local);
        self.by_ip.insert((address.key.local, id));
        self.count_holders(address.key.local);
        self.ipam.touch(address.key.local);
        self.announce_address(id, &address.key);
    }

    pub(super) fn drop_address(
        &mut self,
        netns: &NetnsRef,
        key: &AddressKey,
        at: BootNs,
        origin: Origin,
    ) {
        let Some(id) = self.find(netns) else { return };
        // In the kernel's own order the deletion was told already, or will be; netlink's echo of it may
        // come after the address has been added again.
        let known = self.netns.get(&id).and_then(|entry| entry.addresses.get(key));
        if self.hearsay(origin) {
            if known.is_some() {
                self.doubts.raise(id, *key, false, at);
            }
            return;
        }
        self.graves.dig(Grave::Address(id, *key), at);
        if known.is_some_and(|known| known.touched <= at) {
            self.end_address(id, key, at, "address-deleted");
        }
    }

    /// Removes an address and ends its tenure.
    pub(super) fn end_address(
        &mut self,
        id: NetnsId,
        key: &AddressKey,
        at: BootNs,
        ended_by: &'static str,
    ) {
        self.end_tenure(id, key, at, ended_by);
        let Some(entry) = self.netns.get_mut(&id) else { return };
        if entry.addresses.remove(key).is_none() {
            return;
        }
        self.reach.readdressed();
        // The same IP may stand on another device or with another prefix.
        if entry.with_ip(key.local).next().is_none() {
            self.by_ip.remove(&(key.local, id));
            self.count_holders(key.local);
            self.ipam.touch(key.local);
            self.note_address_lost(id, key.local, ended_by, at);
        }
    }

    pub(super) fn sweep_addresses(&mut self, netns: &NetnsRef, began: BootNs) {
        let Some(id) = self.find(netns) else { return };
        let Some(entry) = self.netns.get(&id) else { return };
        let stale: Vec<AddressKey> = entry
            .addresses
            .iter()
            .filter(|(_, known)| known.touched < began)
            .map(|(key, _)| *key)
            .collect();
        for key in stale {
            self.end_address(id, &key, began, "address-deleted");
        }
    }

    /// IFA_F_DADFAILED, for whoever asks before netlink repeats it.
    pub(super) fn dad_failed(
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
        self.claims.dad_failed(id, ifindex, ip);
        let Some(entry) = self.netns.get_mut(&id) else { return };
        for (_, known) in entry.addresses.range_mut(all_of(ifindex, ip)) {
            known.flags = Some(known.flags.unwrap_or(0) | IFA_F_DADFAILED);
            self.reach.readdressed();
            known.touched = known.touched.max(at);
        }
    }

    /// What is told with the time `at` from now on is this dump's.
    pub(super) fn dump_began(&mut self, scope: &Scope, at: BootNs) {
        let (Scope::Addresses { netns } | Scope::Neighbours { netns }) = scope else { return };
        let Some(id) = self.resolve(netns, at) else { return };
        let Some(entry) = self.netns.get_mut(&id) else { return };
        match scope {
            Scope::Addresses { .. } => entry.dumping = Some(at),
            _ => entry.dumping_neighbours = Some(at),
        }
    }

    pub(super) fn dump_ended(&mut self, netns: &NetnsRef, began: BootNs, complete: bool) {
        let Some(id) = self.resolve(netns, began) else {
            // A name of it was another's, who has died since: nothing of the dump was taken.
            for id in self.owners(netns) {
                self.agenda.not_adopted(id, self.now);
            }
            return;
        };
        let Some(entry) = self.netns.get_mut(&id) else { return };
        entry.dumping = None;
        if complete {
            entry.dumped = true;
            self.agenda.adopted(id);
            self.announce(id);
        } else {
            self.agenda.not_adopted(id, self.now);
        }
    }
}
