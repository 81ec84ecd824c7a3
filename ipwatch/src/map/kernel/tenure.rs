//! Tenures: who had an IP from when to when, as events for the ledger's history and for `watch`.
//!
//! A netns is announced once its permanent identity is known, so that the key of a tenure stays the same until its end.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::clock::WallMs;
use crate::contract::{self, Container, Pod};
use crate::fact::{Attachment, BootNs, NetnsRef};

use super::TenantKind;
use crate::map::{AddressEntry, AddressId, Identity, Netns, NetnsId, NodeMap};

/// Maximum number of events kept until the daemon takes them. A replay that never takes them must not grow without
/// bound.
const MAX_EVENTS: usize = 65_536;
/// So many of them may be of netns in user namespaces, where a user can add and remove addresses without end.
const MAX_OF_USERS: usize = MAX_EVENTS / 2;

/// Identifies a tenure: the same until the tenure ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TenureKey {
    pub netns: Identity,
    /// Index of the device.
    pub ifindex: u32,
    pub ip: IpAddr,
    pub prefix_len: u8,
}

impl fmt::Display for TenureKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}/{}", self.netns, self.ifindex, self.ip, self.prefix_len)
    }
}

/// A tenure that has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    pub ip: IpAddr,
    pub netns: contract::Netns,
    pub from: WallMs,
    /// It was already held then, when ipwatch first looked.
    pub preexisting: bool,
}

/// Who has the netns of a tenure.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Named {
    pub container: Option<Container>,
    pub pod: Option<Pod>,
}

impl Named {
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.container.is_some() || self.pod.is_some()
    }
}

/// A change of tenure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenureEvent {
    /// An address was added, or existed at the start.
    Held { key: TenureKey, begun: Begun },
    /// The container or pod became known.
    Named { key: TenureKey, who: Arc<Named> },
    /// Two netns turned out to be one: the tenure continues under another key.
    Moved {
        /// The former key.
        from: TenureKey,
        /// The key from now on.
        to: TenureKey,
        /// The netns, with all its names.
        netns: contract::Netns,
    },
    /// The address was removed.
    Released {
        key: TenureKey,
        at: BootNs,
        /// `address-deleted`, `device-gone`, `netns-gone`, `not-kept`.
        ended_by: &'static str,
        whose: TenantKind,
    },
}

#[derive(Debug, Default)]
pub(in crate::map) struct Outbox {
    events: Vec<TenureEvent>,
    /// How many of them are of netns in user namespaces.
    of_users: usize,
    /// Number of tenures that began or ended and for which there was no room.
    untold: u64,
    /// Netns whose container or pod must be reported, once for all changes until the next take.
    unnamed: BTreeMap<NetnsId, Unnamed>,
}

/// The tenures of a netns whose container and pod must be reported.
#[derive(Debug)]
enum Unnamed {
    /// All: the container or pod is new.
    All,
    /// Only these new ones; the others have been reported.
    These(BTreeSet<AddressId>),
}

impl Outbox {
    /// A netns was merged into another, which has its tenures.
    pub(in crate::map) fn forget(&mut self, id: NetnsId) {
        self.unnamed.remove(&id);
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn assert_is_bounded(&self) {
        assert!(self.events.len() <= MAX_EVENTS && self.of_users <= MAX_OF_USERS);
    }

    /// `of_user`: it is about a netns in a user namespace.
    fn push(&mut self, event: TenureEvent, of_user: bool) {
        if self.events.len() < MAX_EVENTS && (!of_user || self.of_users < MAX_OF_USERS) {
            self.of_users += usize::from(of_user);
            self.events.push(event);
        } else if matches!(event, TenureEvent::Held { .. } | TenureEvent::Released { .. }) {
            self.untold = self.untold.saturating_add(1);
        }
    }
}

impl NodeMap {
    /// The tenure events since the last call.
    pub fn take_tenures(&mut self) -> Vec<TenureEvent> {
        for (id, which) in std::mem::take(&mut self.kernel.tenures.unnamed) {
            self.name_tenures_of(id, which);
        }
        self.kernel.tenures.of_users = 0;
        std::mem::take(&mut self.kernel.tenures.events)
    }

    /// Number of tenures that began or ended since the last call and are in no event, for want of room.
    pub fn take_untold_tenures(&mut self) -> u64 {
        std::mem::take(&mut self.kernel.tenures.untold)
    }

    /// Keys of every current tenure.
    #[must_use]
    pub fn tenure_keys(&self) -> std::collections::HashSet<TenureKey> {
        let mut keys = std::collections::HashSet::new();
        for entry in self.kernel.netns.values().filter(|entry| entry.announced && !entry.host) {
            keys.extend(entry.routable().filter_map(|(key, _)| self.tenure_key(entry.id, key)));
        }
        keys
    }

    /// The key of the tenure that an address is, as it is shown.
    #[must_use]
    pub fn tenure_of(&self, shown: &contract::Address) -> Option<TenureKey> {
        let (ip, interface) = (shown.ip?, shown.interface.as_ref()?);
        let contract::Netns { cookie, inode, nsid, .. } = shown.netns;
        let id = self.find(&NetnsRef { cookie, inode, nsid })?;
        let mut keys = self.netns(id)?.on_device(interface.index, ip);
        let same = |known: &AddressEntry| Some(known.prefix_len) == shown.prefix_len;
        let (key, _) = keys.find(|(_, known)| same(known))?;
        self.tenure_key(id, key)
    }

    /// Keys of the tenures that an IP has in a netns, told or not: what a finding that names both is about.
    pub fn tenures_in(&self, id: NetnsId, ip: IpAddr) -> impl Iterator<Item = TenureKey> {
        let addresses = self.kernel.netns.get(&id).into_iter().flat_map(|entry| &entry.addresses);
        let keys = addresses.map(|(key, _)| key).filter(move |key| key.local == ip);
        keys.filter_map(move |key| self.tenure_key(id, key))
    }

    /// The key of an address's tenure; `None` for addresses of the host and those that nobody else could get.
    fn tenure_key(&self, id: NetnsId, key: &AddressId) -> Option<TenureKey> {
        let entry = self.kernel.netns.get(&id)?;
        let known = entry.addresses.get(key)?;
        (!entry.host && entry.is_routable(key)).then(|| tenure_name(entry, key, known.prefix_len))
    }

    fn begun(&self, entry: &Netns, key: &AddressId, known: &AddressEntry) -> Begun {
        Begun {
            ip: key.local,
            netns: self.netns_view(entry),
            from: self.calendar().wall(known.since),
            preexisting: !known.seen_to_come,
        }
    }

    /// Reports the addresses of a netns, once its identity will not change any more.
    pub(in crate::map) fn announce(&mut self, id: NetnsId) {
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        let lasting = entry.names.cookie.is_some() || entry.opened.is_some();
        if entry.announced || entry.host || !lasting {
            return;
        }
        entry.announced = true;
        let keys: Vec<AddressId> = entry.addresses.keys().copied().collect();
        for key in keys {
            self.announce_address(id, &key);
        }
    }

    /// Reports those addresses that have not been reported: they came with another entry of the same netns.
    pub(in crate::map) fn announce_rest(&mut self, id: NetnsId) {
        let Some(entry) = self.kernel.netns.get(&id) else { return };
        let untold = entry.addresses.iter().filter(|(_, known)| !known.told);
        for key in untold.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.announce_address(id, &key);
        }
    }

    pub(in crate::map) fn announce_address(&mut self, id: NetnsId, key: &AddressId) {
        let Some(entry) = self.kernel.netns.get(&id).filter(|entry| entry.announced) else {
            return;
        };
        let Some(known) = entry.addresses.get(key) else { return };
        if entry.host || !entry.is_routable(key) {
            return;
        }
        let name = tenure_name(entry, key, known.prefix_len);
        let (begun, of_user) = (self.begun(entry, key, known), entry.is_of_a_user_namespace());
        self.kernel.tenures.push(TenureEvent::Held { key: name, begun }, of_user);
        let none = || Unnamed::These(BTreeSet::new());
        if let Unnamed::These(new) = self.kernel.tenures.unnamed.entry(id).or_insert_with(none) {
            new.insert(*key);
        }
        let entry = self.kernel.netns.get_mut(&id).and_then(|entry| entry.addresses.get_mut(key));
        if let Some(known) = entry {
            known.told = true;
        }
    }

    pub(in crate::map) fn end_tenure(
        &mut self,
        id: NetnsId,
        key: &AddressId,
        at: BootNs,
        ended_by: &'static str,
    ) {
        let Some(entry) = self.kernel.netns.get_mut(&id) else { return };
        let Some(known) = entry.addresses.get_mut(key) else { return };
        let (told, prefix_len) = (std::mem::take(&mut known.told), known.prefix_len);
        // A tenure that was reported is ended even if its address has turned out since not to need one.
        if !told && (entry.host || !entry.is_routable(key)) {
            return;
        }
        // A key has no peer: several IPv4 addresses may share one.
        let shares = |other: &AddressEntry| other.told && other.prefix_len == prefix_len;
        if told && entry.on_device(key.ifindex, key.local).any(|(_, other)| shares(other)) {
            return;
        }
        let (name, whose) = (tenure_name(entry, key, prefix_len), entry.tenant().into());
        let of_user = entry.is_of_a_user_namespace();
        if !told
            && let Some(entry) = self.kernel.netns.get(&id)
            && let Some(known) = entry.addresses.get(key)
        {
            let begun = self.begun(entry, key, known);
            self.kernel.tenures.push(TenureEvent::Held { key: name, begun }, of_user);
        }
        let released = TenureEvent::Released { key: name, at, ended_by, whose };
        self.kernel.tenures.push(released, of_user);
    }

    pub(in crate::map) fn end_all_tenures(
        &mut self,
        id: NetnsId,
        at: BootNs,
        ended_by: &'static str,
    ) {
        if let Some(which) = self.kernel.tenures.unnamed.remove(&id) {
            self.name_tenures_of(id, which);
        }
        let Some(entry) = self.kernel.netns.get(&id) else { return };
        let keys: Vec<AddressId> = entry.addresses.keys().copied().collect();
        for key in keys {
            self.end_tenure(id, &key, at, ended_by);
        }
    }

    /// The container or pod of a netns became known.
    pub(in crate::map) fn netns_named(&mut self, id: NetnsId) {
        if self.kernel.netns.get(&id).is_some_and(|entry| entry.announced) {
            self.kernel.tenures.unnamed.insert(id, Unnamed::All);
        }
    }

    /// The keys under which the tenures of a netns were reported, before the netns is merged into another.
    pub(in crate::map) fn told_tenures(entry: &Netns) -> Vec<(AddressId, TenureKey)> {
        let told = entry.addresses.iter().filter(|(_, known)| known.told);
        told.map(|(key, known)| (*key, tenure_name(entry, key, known.prefix_len))).collect()
    }

    /// Continues the reported tenures of a netns that was merged into `id`. Those that cannot continue are ended.
    pub(in crate::map) fn move_tenures(
        &mut self,
        id: NetnsId,
        told: Vec<(AddressId, TenureKey)>,
        at: BootNs,
    ) {
        let moved = !told.is_empty();
        for (key, from) in told {
            let Some(entry) = self.kernel.netns.get(&id) else { return };
            let of_user = entry.is_of_a_user_namespace();
            match self.tenure_key(id, &key) {
                Some(to) if to == from => {}
                Some(to) => {
                    let netns = self.netns_view(entry);
                    self.kernel.tenures.push(TenureEvent::Moved { from, to, netns }, of_user);
                }
                None => {
                    let (ended_by, whose) = ("address-deleted", entry.tenant().into());
                    let ended = TenureEvent::Released { key: from, at, ended_by, whose };
                    self.kernel.tenures.push(ended, of_user);
                }
            }
        }
        if moved {
            self.netns_named(id);
        }
    }

    fn name_tenures_of(&mut self, id: NetnsId, which: Unnamed) {
        let (container, pod) = self.sandbox_of(id);
        let who = Arc::new(Named { container, pod });
        if !who.is_known() {
            return;
        }
        let Some(entry) = self.kernel.netns.get(&id) else { return };
        let of_user = entry.is_of_a_user_namespace();
        let addresses = match which {
            Unnamed::All => entry.routable().map(|(key, _)| *key).collect(),
            Unnamed::These(new) => new,
        };
        for address in addresses {
            if let Some(key) = self.tenure_key(id, &address) {
                let who = Arc::clone(&who);
                self.kernel.tenures.push(TenureEvent::Named { key, who }, of_user);
            }
        }
    }

    /// A CNI result was reported: the tenures of its IPs may be named now.
    pub(in crate::map) fn name_tenures(&mut self, attachment: &Attachment) {
        let mut ids: Vec<NetnsId> =
            attachment.ips.iter().flat_map(|(ip, _)| self.with_ip(*ip)).collect();
        ids.sort_unstable();
        ids.dedup();
        for id in ids {
            self.netns_named(id);
        }
    }
}

fn tenure_name(entry: &Netns, key: &AddressId, prefix_len: u8) -> TenureKey {
    TenureKey { netns: entry.identity, ifindex: key.ifindex, ip: key.local, prefix_len }
}
