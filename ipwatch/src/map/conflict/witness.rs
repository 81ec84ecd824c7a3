//! Who else vouches for an IP in a netns: the node, a runtime or a store. Any user can create netns in a user namespace
//! and assign any IP there; such IPs must not page anybody.

use std::net::IpAddr;

use crate::fact::cgroup::{attribution, is_roots};
use crate::fact::{BootNs, store};

use crate::fact::Unreadable;
use crate::map::{Certainty, Duplicate, Match, Netns, NodeMap, RangeEntry, ReservationEntry};

/// The store whose networks are those of the CNI configurations.
const CONFIGURED: &str = store::HOST_LOCAL;
/// Maximum number of tasks of a netns that are checked.
const ASKED: usize = 64;
/// Shorter overlaps are harmless: an address that moves is added before it is deleted, and a fail-over takes up to 200
/// ms.
const HURTS: u64 = 300_000_000;

impl NodeMap {
    /// Whether a netns is the node's own, or a runtime made it for a container.
    #[must_use]
    pub fn has_witness(&self, netns: &Netns) -> bool {
        netns.host || self.is_a_containers(netns)
    }

    /// Whether a netns has a witness, or a store reserves this IP for what may be that netns. Whoever makes a netns in a user
    /// namespace can give it any reserved IP: a reservation vouches for it only if more than the IP says that it is its.
    #[must_use]
    pub fn has_witness_of(&self, netns: &Netns, ip: IpAddr) -> bool {
        self.has_witness(netns)
            || self.reservations_of(ip).any(|entry| {
                let elsewhere = |id: &str| self.has_other_netns(id, netns.id, Certainty::ByCgroup);
                let vouches = match self.belongs(netns, entry) {
                    Match::Same => !(netns.is_of_a_user_namespace() && self.is_guess(netns, entry)),
                    Match::Unknown => !netns.is_of_a_user_namespace(),
                    Match::Other => false,
                };
                self.store_counts(&entry.store)
                    && vouches
                    && !entry.container_id.as_deref().is_some_and(elsewhere)
            })
    }

    /// Whether a netns is a container's by the report of a runtime, the CNI result cache, the path where root mounted
    /// it, or the cgroup of its tasks. A user can name cgroups freely where a part of the tree was delegated (to the
    /// session, a service with `Delegate=`, a container), so the cgroup counts only if root made it, and made the
    /// netns.
    fn is_a_containers(&self, netns: &Netns) -> bool {
        let Some(owner) = netns.owner().filter(|owner| owner.certainty != Certainty::ByIp) else {
            return false;
        };
        let id = &owner.sandbox;
        let known = owner.certainty == Certainty::Proven
            || self.sandbox(id).is_some()
            || self.container(id).is_some()
            || self.attachment_of(id).is_some();
        let contained = |path: &str| is_roots(path) && attribution(path).is_some();
        let mut cgroups = netns.cgroups().take(ASKED);
        known || (!netns.is_a_users() && cgroups.any(|(_, path)| path.is_some_and(contained)))
    }

    /// Whether no CNI configuration hands out IPs of this reservation's network any more: all configurations are read,
    /// none names the network, and everything reserved in it has leaked.
    #[must_use]
    pub fn is_nobodys_network(&self, entry: &ReservationEntry) -> bool {
        let same = |other: &ReservationEntry| {
            (&other.store, &other.network) == (&entry.store, &entry.network)
        };
        let named =
            |range: &RangeEntry| range.is_of(entry) || range.range.network == *entry.network;
        *entry.store == *CONFIGURED
            && self.store_answers(CONFIGURED)
            && self.unreadable().all(|torn| self.nobodys_file(&torn.file).is_some())
            && !self.ranges().any(named)
            && self.is_not_configured(&entry.network)
            && self
                .reservations()
                .filter(|other| same(other))
                .all(|other| self.is_leaked(&other.store, &other.key))
    }

    /// The network of an unreadable reservation, if no CNI configuration names that network: then nobody hands out its
    /// IPs. In the directory of a network each file of an IP is a reservation.
    #[must_use]
    pub fn nobodys_file<'a>(&self, file: &'a Unreadable) -> Option<&'a str> {
        let mut parts = file.path.rsplit('/');
        let is_reservation = parts.next()?.parse::<IpAddr>().is_ok();
        let network = parts.next()?;
        let ours = is_reservation && *file.store == *CONFIGURED;
        let named = |range: &RangeEntry| *range.range.network == *network;
        let known = ours && self.store_answers(CONFIGURED) && !self.ranges().any(named);
        (known && self.is_not_configured(network)).then_some(network)
    }

    /// The moment from which an overlap is reported.
    #[must_use]
    pub fn hurts_from(&self, one: &Duplicate) -> BootNs {
        one.first.since.max(one.second.since).plus(HURTS)
    }

    /// When the next overlap that is too young to be reported begins to count.
    #[must_use]
    pub fn next_overlap(&self, now: BootNs) -> Option<BootNs> {
        let from = self.duplicates().iter().map(|one| self.hurts_from(one));
        from.filter(|from| *from > now).min()
    }
}
