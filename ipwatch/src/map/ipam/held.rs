//! Whether the sandbox that had an address from a store still has it: what `ipwatch-ipam` asks before an ADD hands an
//! address out, and before a DEL frees one.
//!
//! Nothing else counts. A netns that merely has the address, be it a stranger's, a user's, or that of a pod which may
//! configure what it likes, was given it by no store, and delays nobody. Three things prove that a sandbox was given it:
//! the store let go of its reservation, the store still has it, or the runtime's cached result of its ADD names it. All
//! are written by root. That a netns is this sandbox's must be known by more than the address itself ([`Certainty::ByIp`]).
//! And it must hang on a device of the node: an address that no longer can be reached from there disturbs nobody.

use std::net::IpAddr;

use crate::fact::{BootNs, CniCommand, SourceName, store};

use super::mismatch::{Match, SETTLE, UNSEEN_CALL, address_since};
use super::reservations::{Release, ReservationEntry};
use crate::map::conflict::Endpoint;
use crate::map::{CallEntry, Netns, NodeMap};

/// How long a DEL may run, or a failed ADD be over, until the address is no longer expected to go at any moment.
const ON_ITS_WAY: u64 = 2_000_000_000;
/// Its networks have the names of CNI's. Others' stores may call theirs as they like.
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
    /// By nobody who was given it.
    Nobody,
    /// By this netns, and its own DEL is running or has just ended.
    Leaving(&'a Netns, Given),
    /// By this netns.
    Still(&'a Netns, Given),
    /// What would tell does not answer.
    Unknown,
}

/// What proves that a sandbox was given an address by a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Given {
    /// The store let go of its reservation, then.
    Released(BootNs),
    /// The store has its reservation, as far as it was heard of.
    Reserved,
    /// The result of its ADD is in the runtime's cache.
    Cached,
}

impl Given {
    /// Its word in the contract.
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
    /// Whether an address that a store has just handed to `container` is still held by the one that it was given to
    /// before.
    #[must_use]
    pub fn hold(
        &self,
        place: StoreNetwork<'_>,
        ip: IpAddr,
        container: &str,
        now: BootNs,
    ) -> Hold<'_> {
        let mut leaving = None;
        for holder in self.holders_of(ip) {
            if !container.is_empty() && self.is_of_container(holder, container) == Match::Same {
                continue;
            }
            let Some((given, id)) = self.given_to(holder, place, ip, container) else { continue };
            if !self.hangs_on_the_node(holder, ip) {
                continue;
            }
            if self.is_leaving(given, id, now) {
                leaving = Some((holder, given));
            } else {
                return Hold::Still(holder, given);
            }
        }
        if let Some((holder, given)) = leaving {
            return Hold::Leaving(holder, given);
        }
        // That nobody has it is known only where everything that is up is known, and what the store says.
        let knows = self.answers(SourceName::Netlink)
            && self.short().next().is_none()
            && self.store_listed(place.store).is_some()
            && self.store_answers(place.store);
        if knows { Hold::Nobody } else { Hold::Unknown }
    }

    /// Whether the netns with this cookie still has an address.
    #[must_use]
    pub fn hold_of(&self, ip: IpAddr, cookie: u64) -> Option<&Netns> {
        self.holders_of(ip).find(|netns| netns.names.cookie == Some(cookie))
    }

    /// Whether a netns has an address of which nobody knows the cookie: it may be any.
    #[must_use]
    pub fn is_held_by_unknown(&self, ip: IpAddr) -> bool {
        self.holders_of(ip).any(|netns| netns.names.cookie.is_none())
    }

    /// Whether it is known of every netns which addresses it has.
    #[must_use]
    pub fn knows_all_addresses(&self) -> bool {
        self.answers(SourceName::Netlink) && self.short().next().is_none()
    }

    /// What is reserved for a container in a network, each address with every netns of that container that has it.
    pub fn own_holds<'a>(
        &'a self,
        place: StoreNetwork<'a>,
        container: &str,
        ifname: Option<&'a str>,
    ) -> impl Iterator<Item = (IpAddr, Vec<&'a Netns>)> {
        let own = self.reservations_for(container).filter(move |entry| {
            let device = entry.ifname.as_deref().zip(ifname);
            place.has(entry) && device.is_none_or(|(theirs, asked)| theirs == asked)
        });
        own.map(|entry| {
            let holders = self.holders_of(entry.ip).filter(|netns| {
                self.belongs(netns, entry) == Match::Same
                    && !self.is_guess(netns, entry)
                    && self.hangs_on_the_node(netns, entry.ip)
            });
            (entry.ip, holders.collect())
        })
    }

    /// Parked reservations: those that `ipwatch-ipam` keeps for whoever still has the address.
    pub fn parked(&self) -> impl Iterator<Item = &ReservationEntry> {
        self.ipam.beginning_with(ipwatch_ipam::name::PREFIX).filter(|entry| entry.is_parked())
    }

    /// What proves that a netns's sandbox was given an address by a store, and the sandbox's id.
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
        // An address that came back after its release is no longer the store's.
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

    /// Whether the device with an address is one end of a pair with the node, or made of a device of the node.
    fn hangs_on_the_node(&self, holder: &Netns, ip: IpAddr) -> bool {
        let Some(host) = self.host() else { return false };
        let mut devices = holder.with_ip(ip).map(|(key, _)| key.ifindex);
        devices.any(|ifindex| self.is_below(Endpoint { netns: holder.id, ifindex }, host))
    }

    /// Whether an address is about to go: its DEL frees it, and takes the device away before or after that.
    fn is_leaving(&self, given: Given, id: &str, now: BootNs) -> bool {
        if !self.sees_calls(now) {
            return match given {
                Given::Released(at) => now.since(at) < UNSEEN_CALL,
                Given::Reserved => true,
                Given::Cached => false,
            };
        }
        let is_recent = |at: BootNs, within: u64| now.since(at) < within;
        let takes_away = |entry: &CallEntry| match (entry.call.command, entry.ended) {
            // Without its netns it only frees the IP.
            (CniCommand::Del, _) if entry.call.netns_path.is_none() => false,
            (CniCommand::Del, Some(end)) => is_recent(end.at, SETTLE),
            (CniCommand::Del | CniCommand::Add, None) => is_recent(entry.began, ON_ITS_WAY),
            // The runtime runs DEL after it.
            (CniCommand::Add, Some(end)) => end.failed() && is_recent(end.at, ON_ITS_WAY),
            _ => false,
        };
        let mut own = self.calls().filter(|entry| entry.call.container_id.as_deref() == Some(id));
        own.any(takes_away)
    }
}
