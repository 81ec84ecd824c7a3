//! Whether the sandbox that was given an address by a store still has it. `ipwatch-ipam` asks this before an ADD returns an
//! address and before a DEL frees one.
//!
//! A netns that merely has the address (of an unprivileged user, or of a pod with `NET_ADMIN`) was not given it by a store,
//! and does not count. That a sandbox was given the address is proven by one of three things, which only root can write:
//! the store has released its reservation, the store still has the reservation, or the runtime's cached result of the
//! sandbox's ADD names the address. That a netns belongs to this sandbox must be known by more than the address itself
//! ([`Certainty::ByIp`]). And the netns must be connected to a device of the node, or have a device of the machine: an
//! address that cannot be reached conflicts with no other.
//!
//! On which of its devices such a netns has the address does not matter, be it `lo`, a dummy or a bridge over the pod's own
//! device: Linux answers ARP for each of its local addresses on whatever device is asked (`arp_process`, net/ipv4/arp.c, 6.12,
//! with `arp_ignore` = 0), and sends from all of them. Loopback and link-local addresses are nobody's. What the node's own
//! netns has there (`kube-ipvs0`, anycast addresses on `lo`) is not asked about: it counts to no sandbox.
//!
//! A netns in teardown still has its devices and addresses until `cleanup_net` removes them (`default_device_exit_batch`,
//! net/core/dev.c, 6.12), which may take as long as another netns of the same batch hangs. It counts as any other.

use std::net::IpAddr;

use crate::fact::{BootNs, CniCommand, SourceName, store};

use super::mismatch::{Match, SETTLE, UNSEEN_CALL, address_since, has};
use super::reservations::{Release, ReservationEntry};
use crate::map::kernel::is_routable;
use crate::map::{CallEntry, Netns, NodeMap};

/// How long after the begin of a DEL or of a teardown, or the end of a failed ADD, the address is expected to go at any
/// moment, in ns.
const ON_ITS_WAY: u64 = 2_000_000_000;
/// The store whose networks have the names of CNI networks. Other stores may use names of their own.
const NAMED_BY_CNI: &str = store::HOST_LOCAL;

/// A network of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreNetwork<'a> {
    /// The store.
    pub store: &'a str,
    /// The network.
    pub network: &'a str,
}

impl StoreNetwork<'_> {
    fn has(self, entry: &ReservationEntry) -> bool {
        *entry.store == *self.store
            && (self.store != NAMED_BY_CNI || *entry.network == *self.network)
    }
}

/// Whether an address is still held.
#[derive(Debug, Clone, Copy)]
pub enum Hold<'a> {
    /// No netns that was given it has it.
    Nobody,
    /// This netns has it, and its own DEL is running or has just ended.
    Leaving(&'a Netns, Given),
    /// This netns has it.
    Still(&'a Netns, Given),
    /// A source that would tell is down or incomplete.
    Unknown,
}

/// What proves that a sandbox was given an address by a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Given {
    /// The store released the reservation at this time.
    Released(BootNs),
    /// The store has the reservation, as far as the map knows.
    Reserved,
    /// The result of its ADD is in the runtime's cache.
    Cached,
}

impl Given {
    /// Its name in the contract.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Released(_) => "released",
            Self::Reserved => "reserved",
            Self::Cached => "cached",
        }
    }
}

impl NodeMap {
    /// Whether an address that a store has just assigned to `container` is still held by a sandbox that was given it before.
    #[must_use]
    pub fn hold(
        &self,
        place: StoreNetwork<'_>,
        ip: IpAddr,
        container: &str,
        now: BootNs,
    ) -> Hold<'_> {
        let mut leaving = None;
        for holder in self.with_address(ip) {
            if !container.is_empty() && self.is_of_container(holder, container) == Match::Same {
                continue;
            }
            let Some((given, id)) = self.given_to(holder, place, ip, container) else { continue };
            if !self.leads_to_node(holder) {
                continue;
            }
            if self.is_leaving(holder, (given, id), now) {
                leaving = Some((holder, given));
            } else {
                return Hold::Still(holder, given);
            }
        }
        if let Some((holder, given)) = leaving {
            return Hold::Leaving(holder, given);
        }
        // That no netns has it is known only if all addresses and the content of the store are known.
        let knows = self.knows_all_addresses()
            && self.store_listed(place.store).is_some()
            && self.store_answers(place.store);
        if knows { Hold::Nobody } else { Hold::Unknown }
    }

    /// Whether the netns with this cookie still has an address.
    #[must_use]
    pub fn hold_of(&self, ip: IpAddr, cookie: u64) -> Option<&Netns> {
        self.with_address(ip).find(|netns| netns.names.cookie == Some(cookie))
    }

    /// Whether a netns with an unknown cookie has an address: it may be the one that is searched for.
    #[must_use]
    pub fn is_held_by_unknown(&self, ip: IpAddr) -> bool {
        self.with_address(ip).any(|netns| netns.names.cookie.is_none())
    }

    /// Netns that have this IP, without the host's. Unlike [`NodeMap::holders_of`], those in teardown count, and so do those
    /// that have it on `lo` or on a dummy, if another device of theirs leads to the node.
    fn with_address(&self, ip: IpAddr) -> impl Iterator<Item = &Netns> {
        let all = self.with_ip(ip).filter_map(|id| self.netns(id));
        all.filter(move |netns| {
            !netns.host && (has(netns, ip) || is_routable(ip) && self.leads_to_node(netns))
        })
    }

    /// Whether the addresses are known of every netns in which an IP of the node may be.
    #[must_use]
    pub fn knows_all_addresses(&self) -> bool {
        self.answers(SourceName::Netlink)
            && self.short_within_reach().next().is_none()
            && !self.is_left_out_within_reach()
    }

    /// The addresses that a DEL may free: those reserved for a container in a network, each with every netns of that container
    /// that has it. Whereabouts before 0.9 frees the first entry of the container, whatever its interface
    /// (`getMatchingIPReservationIndex`, pkg/allocate, 0.8.0).
    pub fn own_holds<'a>(
        &'a self,
        place: StoreNetwork<'a>,
        container: &str,
        ifname: Option<&'a str>,
    ) -> impl Iterator<Item = (IpAddr, Vec<&'a Netns>)> {
        let own = self.reservations_for(container).filter(move |entry| {
            let by_device = place.store != store::WHEREABOUTS;
            let device = entry.ifname.as_deref().zip(ifname).filter(|_| by_device);
            place.has(entry) && device.is_none_or(|(theirs, asked)| theirs == asked)
        });
        own.map(|entry| {
            let holders = self.with_address(entry.ip).filter(|netns| {
                netns.dying.is_none()
                    && self.belongs(netns, entry) == Match::Same
                    && !self.is_guess(netns, entry)
                    && self.leads_to_node(netns)
            });
            (entry.ip, holders.collect())
        })
    }

    /// The reservations under which `ipwatch-ipam` has parked a held address.
    pub fn parked(&self) -> impl Iterator<Item = &ReservationEntry> {
        self.ipam.beginning_with(ipwatch_ipam::name::PREFIX).filter(|entry| entry.is_parked())
    }

    /// The proof that the sandbox of a netns was given an address by a store, and the sandbox's id.
    fn given_to<'a>(
        &'a self,
        holder: &'a Netns,
        place: StoreNetwork<'_>,
        ip: IpAddr,
        container: &str,
    ) -> Option<(Given, &'a str)> {
        let is_its = |entry: &ReservationEntry| {
            let id = entry.container_id.as_deref();
            place.has(entry)
                && id.is_some_and(|id| id != container)
                && !entry.is_parked()
                && self.belongs(holder, entry) == Match::Same
                && !self.is_guess(holder, entry)
        };
        // An address that was added after its release was not given by the store.
        let since = address_since(holder, ip);
        let mut releases = self.releases_of(ip);
        let of = |release: &&Release| since <= release.at && is_its(&release.was);
        if let Some(release) = releases.find(of) {
            return Some((Given::Released(release.at), release.was.container_id.as_deref()?));
        }
        if let Some(entry) = self.reservations_of(ip).find(|entry| is_its(entry)) {
            return Some((Given::Reserved, entry.container_id.as_deref()?));
        }
        let owner = holder.owner().filter(|owner| owner.sandbox != container)?;
        (self.network_of(holder, ip) == Some(place.network))
            .then_some((Given::Cached, owner.sandbox.as_str()))
    }

    /// Whether any device of a netns leads to the node. A bridge, a bond or a VLAN of the netns leads where its port, slave or
    /// parent does, which is a device of the netns too.
    fn leads_to_node(&self, holder: &Netns) -> bool {
        // Connections of a netns in teardown are not known any more (`Plan::of`), and without all of its links and its names
        // of other netns nothing says that a device leads nowhere.
        holder.dying.is_some() || holder.lacks_ways_out() || self.leads_to_host(holder.id)
    }

    /// Whether an address is about to go: its DEL frees it, and the device is removed before or after that; or the netns
    /// has just begun to end.
    fn is_leaving(&self, holder: &Netns, (given, id): (Given, &str), now: BootNs) -> bool {
        if let Some(since) = holder.dying {
            return now.since(since) < ON_ITS_WAY;
        }
        if !self.sees_calls(now) {
            return match given {
                Given::Released(at) => now.since(at) < UNSEEN_CALL,
                Given::Reserved => true,
                Given::Cached => false,
            };
        }
        let is_recent = |at: BootNs, within: u64| now.since(at) < within;
        let takes_away = |entry: &CallEntry| match (entry.call.command, entry.ended) {
            // A DEL without a netns frees the IP but cannot remove the device.
            (CniCommand::Del, _) if entry.call.netns_path.is_none() => false,
            // What the ADD goes on with is up to the ADD.
            (CniCommand::Del, _) if entry.of_add => false,
            (CniCommand::Del, Some(end)) => is_recent(end.at, SETTLE),
            (CniCommand::Del | CniCommand::Add, None) => is_recent(entry.began, ON_ITS_WAY),
            // The runtime runs DEL after a failed ADD.
            (CniCommand::Add, Some(end)) => end.failed() && is_recent(end.at, ON_ITS_WAY),
            _ => false,
        };
        let mut own = self.calls().filter(|entry| entry.call.container_id.as_deref() == Some(id));
        own.any(takes_away)
    }
}
