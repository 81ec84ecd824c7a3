//! Contradictions: one IP on two endpoints that can reach each other, several claims to one IP, neighbours that do not
//! answer, and routes to nonexistent endpoints.
//!
//! - `reach`: which endpoints can reach each other, and which IPs are on two of them. `witness`: who else relies on
//!   such an IP.
//! - `claims`: which MACs were seen to claim an IP; `neighbour_conflict`: which claims contradict each other.
//!   `rejected`: addresses that failed duplicate address detection. `unanswered`: neighbours without an answer.
//!   `evidence`: how much of all these is kept.
//! - `ways`: which device leads to a pod; `orphan_routes`: routes to endpoints that do not exist.
//!
//! Invariants: a plan of reachability matches the current links, or is discarded; a claim is attributed to an endpoint
//! only as long as that endpoint may have the MAC that made it.

mod claims;
mod evidence;
mod neighbour_conflict;
mod orphan_routes;
mod reach;
mod rejected;
mod unanswered;
mod ways;
mod witness;

use std::net::IpAddr;

pub(super) use claims::How;
pub use claims::Side;
pub use neighbour_conflict::{Conflict, Grounds as ConflictGrounds, Party};
pub(super) use orphan_routes::hash_of;
pub use orphan_routes::{OrphanRoute, is_pods};
#[cfg(test)]
pub(super) use reach::COMPARED;
pub use reach::{Duplicate, Endpoint, Holding, Meeting, Reach};
pub(super) use unanswered::{EntryContext, INCOMPLETE_OR_FAILED, PERMANENT};
pub use unanswered::{Fixed, Unanswered};

use super::NetnsId;
use super::kernel::Tenant;
use crate::fact::{BootNs, Neighbour};

/// See the [module's documentation](self).
#[derive(Debug, Default)]
pub(super) struct Conflicts {
    reach: reach::Reachability,
    claims: claims::Claims,
    unanswered: unanswered::UnansweredEntries,
    orphan_routes: orphan_routes::OrphanRoutes,
}

impl Conflicts {
    /// A link, a name or a VLAN has changed.
    pub(super) fn rewired(&mut self) {
        self.reach.rewired();
        self.claims.unsettle();
    }

    /// An address, a route, an owner or a netns' creation time has changed: the last two tell which duplicate came
    /// first.
    pub(super) fn readdressed(&mut self) {
        self.reach.readdressed();
    }

    /// The set of endpoints with this IP has changed.
    pub(super) fn ip_moved(&mut self, ip: IpAddr) {
        self.claims.touch(ip);
    }

    /// An address with this IP was removed or altered.
    pub(super) fn ip_changed(&mut self, ip: IpAddr) {
        self.claims.unsettle_ip(ip);
    }

    /// A neighbour entry was added or changed.
    pub(super) fn neighbour_told(
        &mut self,
        id: NetnsId,
        new: &Neighbour,
        place: EntryContext,
        at: BootNs,
    ) {
        self.unanswered.told(id, new, place, at);
    }

    /// A neighbour entry was removed.
    pub(super) fn neighbour_gone(&mut self, id: NetnsId, ifindex: u32, ip: IpAddr, at: BootNs) {
        self.unanswered.gone(id, ifindex, ip, at);
    }

    /// A device was removed; its neighbour entries no longer count.
    pub(super) fn forget_device(&mut self, id: NetnsId, ifindex: u32) {
        self.unanswered.forget_device(id, ifindex);
        self.claims.forget_device(id, ifindex);
    }

    /// As `forget_device`, for a whole netns.
    pub(super) fn forget_netns(&mut self, id: NetnsId) {
        self.unanswered.forget_netns(id);
        self.claims.forget_netns(id);
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn assert_evidence_is_bounded(&self, exists: impl Fn(NetnsId) -> bool) {
        self.claims.assert_evidence_is_bounded(exists);
        self.unanswered.assert_evidence_is_bounded();
    }

    /// It may have turned out whose a netns is. `None`: it is the host's.
    pub(super) fn counts_to(&mut self, id: NetnsId, tenant: Option<Tenant>) {
        self.unanswered.counts_to(id, tenant);
        self.claims.counts_to(id, tenant);
    }

    /// Forgets entries whose silence is no longer evidence. Returns when to call this next.
    pub(super) fn settle_unanswered(&mut self, now: BootNs) -> Option<BootNs> {
        self.unanswered.settle(now)
    }
}
