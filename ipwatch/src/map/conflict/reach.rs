//! Which endpoints share a link or a router: where a broadcast frame arrives, and which IPs on two netns can be
//! confused with each other.
//!
//! A gap in the data leads nowhere: no conclusion is drawn from it. `plan` says which device is attached to which,
//! `flood` sends a frame through them, `router` handles links that are routed separately, `duplicates` queries both for
//! every IP on more than one netns, and `view` renders the result.
//!
//! Everything is computed on demand, and cached until the wiring changes.

mod duplicates;
mod flood;
mod plan;
mod router;
mod view;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::OnceLock;

#[cfg(test)]
pub(crate) use duplicates::COMPARED;
pub use duplicates::{Duplicate, Holding};

use crate::contract::Prefix;
use crate::fact::is_canary;
use crate::map::kernel::is_routable;
use crate::map::{Kinds, NetnsId, NodeMap};

/// Maximum number of steps for one reach.
const STEPS: usize = 1 << 20;

/// A device of a netns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    pub netns: NetnsId,
    pub ifindex: u32,
}

/// The endpoints that share a link with an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reach {
    /// Each endpoint, and the first bridge, parent or tunnel on the way to it. If a frame goes from one end of a pair
    /// to the other, this is the device that it leaves by.
    pub endpoints: Vec<(Endpoint, Endpoint)>,
    /// Whether everything was followed to its end.
    pub complete: bool,
}

/// Where two addresses meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Meeting {
    /// They share a link: this bridge, parent, tunnel or pair.
    Link(Endpoint),
    /// Each is on its own link to this router, which sends packets for the IP to only one of them.
    Router(NetnsId),
}

/// Cached results.
#[derive(Debug, Default)]
pub(in crate::map) struct Reachability {
    plan: OnceLock<plan::Plan>,
    duplicates: OnceLock<duplicates::Found>,
    /// IPs that more than one netns has.
    crowded: BTreeSet<IpAddr>,
    /// IPs that are shared on purpose.
    shared: Vec<Prefix>,
}

impl Reachability {
    /// A link, a name or a VLAN has changed.
    pub(in crate::map) fn rewired(&mut self) {
        self.plan.take();
        self.duplicates.take();
    }

    /// An address, a route, an owner or a netns' creation time has changed: the last two tell which duplicate came
    /// first.
    pub(in crate::map) fn readdressed(&mut self) {
        self.duplicates.take();
    }
}

impl NodeMap {
    /// Sets the IPs that are shared on purpose: anycast, and virtual IPs that move.
    pub fn share(&mut self, shared: Vec<Prefix>) {
        self.changes.begin();
        self.changes.mark(Kinds::ALL);
        self.conflict.reach.shared = shared;
        self.conflict.readdressed();
        self.conflict.claims.unsettle();
    }

    /// Whether an IP is shared on purpose.
    pub(in crate::map) fn is_shared_ip(&self, ip: IpAddr) -> bool {
        is_canary(ip) || self.conflict.reach.shared.iter().any(|prefix| prefix.contains(ip))
    }

    fn plan(&self) -> &plan::Plan {
        self.conflict.reach.plan.get_or_init(|| plan::Plan::of(self))
    }

    /// Whether a netns has a device that is the peer of one in the host's netns or a child of one (macvlan, ipvlan, vlan), or a
    /// device of the machine, such as a virtual function of a network card.
    pub(in crate::map) fn leads_to_host(&self, netns: NetnsId) -> bool {
        self.plan().leads_to_host.contains(&netns)
    }

    /// What shares a link with this endpoint: what hears it and is heard by it.
    #[must_use]
    pub fn reach(&self, from: Endpoint) -> Reach {
        let plan = self.plan();
        let mut budget = flood::Budget(STEPS);
        plan.find(from).map_or_else(Reach::default, |dev| flood::reach(plan, dev, &mut budget))
    }

    /// Where the holders of two IPs meet, if they do.
    #[must_use]
    pub fn meeting(&self, a: (Endpoint, IpAddr), b: (Endpoint, IpAddr)) -> Option<Meeting> {
        let reach = self.reach(a.0);
        let link = reach.endpoints.iter().find(|(there, _)| *there == b.0);
        link.map(|(_, by)| Meeting::Link(*by)).or_else(|| router::meeting(self, self.plan(), a, b))
    }

    /// The IPs on two netns that can be confused with each other. A netns may be in several.
    #[must_use]
    pub fn duplicates(&self) -> &[Duplicate] {
        &self.found_duplicates().all
    }

    /// Whether these and those that are left out are all, but for those among netns of users: every other link was followed to
    /// its end.
    #[must_use]
    pub fn has_all_duplicates(&self) -> bool {
        self.found_duplicates().is_whole
    }

    /// The same of those among netns of users.
    #[must_use]
    pub fn has_all_duplicates_of_users(&self) -> bool {
        self.found_duplicates().is_whole_of_users
    }

    /// The duplicates that are not told, because there are too many, by IP.
    #[must_use]
    pub fn left_out_duplicates(&self) -> &[Duplicate] {
        &self.found_duplicates().left_out
    }

    fn found_duplicates(&self) -> &duplicates::Found {
        self.conflict.reach.duplicates.get_or_init(|| duplicates::find(self))
    }

    /// Updates the set of IPs with several holders after a netns got or lost an IP.
    pub(in crate::map) fn count_holders(&mut self, ip: IpAddr) {
        if !is_routable(ip) {
            return;
        }
        let holders = self.kernel.within(ip, ip).take(2).count();
        let crowded = &mut self.conflict.reach.crowded;
        if holders > 1 {
            crowded.insert(ip);
        } else if !crowded.remove(&ip) {
            return;
        }
        self.conflict.readdressed();
    }
}
