//! Who shares a link with whom, or a router: which endpoints a broadcast frame gets to, and which IPs that
//! two netns have can be mistaken for each other.
//!
//! What is not known leads nowhere: nothing is claimed from a gap. `plan` says what is plugged into what,
//! `flood` sends a frame through it, `router` knows the links that are routed one by one, `duplicates` asks
//! both for every IP that more than one netns has, and `view` draws it.
//!
//! All of it is worked out when it is asked for, and kept until the wiring changes.

mod duplicates;
mod flood;
mod plan;
mod router;
mod view;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::OnceLock;

pub use duplicates::{Duplicate, Holding};

use crate::contract::Prefix;
use crate::fact::is_canary;
use crate::map::kernel::is_routable;
use crate::map::{Kinds, NetnsId, NodeMap};

/// Steps taken for one reach.
const STEPS: usize = 1 << 20;

/// A device of a netns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    pub netns: NetnsId,
    pub ifindex: u32,
}

/// What shares a link with an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reach {
    /// Each endpoint, and what it is reached by: the first bridge, parent or tunnel on the way there. Where a
    /// frame goes from one end of a pair to the other, that is the device it leaves by.
    pub endpoints: Vec<(Endpoint, Endpoint)>,
    /// There was not more of it than is looked at.
    pub complete: bool,
}

/// By what two addresses meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Meeting {
    /// They share a link: this bridge, parent, tunnel or pair.
    Link(Endpoint),
    /// Each is at its own link to this router, which sends what is for the IP to one of them.
    Router(NetnsId),
}

/// What was worked out, until it changes.
#[derive(Debug, Default)]
pub(in crate::map) struct Reachability {
    plan: OnceLock<plan::Plan>,
    duplicates: OnceLock<duplicates::Found>,
    /// IPs that more than one netns has.
    crowded: BTreeSet<IpAddr>,
    /// IPs that several may have on purpose.
    shared: Vec<Prefix>,
}

impl Reachability {
    /// A link, a name or a VLAN has changed.
    pub(in crate::map) fn rewired(&mut self) {
        self.plan.take();
        self.duplicates.take();
    }

    /// An address or a route has changed, or what tells who came first: whose a netns is, and when that was made.
    pub(in crate::map) fn readdressed(&mut self) {
        self.duplicates.take();
    }
}

impl NodeMap {
    /// IPs that several may have on purpose: anycast, and VIPs that move.
    pub fn share(&mut self, shared: Vec<Prefix>) {
        self.changes.begin();
        self.changes.mark(Kinds::ALL);
        self.conflict.reach.shared = shared;
        self.conflict.readdressed();
        self.conflict.claims.unsettle();
    }

    /// Whether several may have an IP on purpose.
    pub(in crate::map) fn is_shared_ip(&self, ip: IpAddr) -> bool {
        is_canary(ip) || self.conflict.reach.shared.iter().any(|prefix| prefix.contains(ip))
    }

    fn plan(&self) -> &plan::Plan {
        self.conflict.reach.plan.get_or_init(|| plan::Plan::of(self))
    }

    /// Whether a device is made of one of that netns, or is the end of a pair with it.
    pub(in crate::map) fn is_below(&self, device: Endpoint, netns: NetnsId) -> bool {
        let plan = self.plan();
        let lower = plan.find(device).and_then(|dev| plan.devs[dev].lower);
        lower.is_some_and(|lower| plan.devs[lower].at.netns == netns)
    }

    /// What shares a link with this endpoint: what hears it and is heard by it.
    #[must_use]
    pub fn reach(&self, from: Endpoint) -> Reach {
        let plan = self.plan();
        let mut budget = flood::Budget(STEPS);
        plan.find(from).map_or_else(Reach::default, |dev| flood::reach(plan, dev, &mut budget))
    }

    /// By what the holders of two IPs meet, if they do.
    #[must_use]
    pub fn meeting(&self, a: (Endpoint, IpAddr), b: (Endpoint, IpAddr)) -> Option<Meeting> {
        let reach = self.reach(a.0);
        let link = reach.endpoints.iter().find(|(there, _)| *there == b.0);
        link.map(|(_, by)| Meeting::Link(*by)).or_else(|| router::meeting(self, self.plan(), a, b))
    }

    /// Which IPs two netns have that can be mistaken for each other. One netns may be in several.
    #[must_use]
    pub fn duplicates(&self) -> &[Duplicate] {
        &self.found_duplicates().all
    }

    /// Whether there are no others: they were not more than are told of, and everything was followed to its end.
    #[must_use]
    pub fn has_all_duplicates(&self) -> bool {
        self.found_duplicates().complete
    }

    fn found_duplicates(&self) -> &duplicates::Found {
        self.conflict.reach.duplicates.get_or_init(|| duplicates::find(self))
    }

    /// A netns has an IP, or has it no more: keeps in mind which ones more than one has.
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
