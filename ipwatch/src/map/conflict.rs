//! What cannot both be right: one IP twice where the two can meet, several claims to one IP, neighbours that do not
//! answer, and routes that lead to nobody.
//!
//! - `reach`: who can reach whom, and which IPs two have who meet. `witness`: who else says that such an IP matters.
//! - `claims`: who was heard to claim an IP; `neighbour_conflict`: which claims cannot both be right. `unanswered`:
//!   neighbours without an answer.
//! - `ways`: which device leads to a pod; `orphan_routes`: routes that lead to nobody.
//!
//! What always holds: a plan of who reaches whom is of the links that stand now, or is not there; a claim is somebody's
//! only as long as the MAC that made it may have it.

mod claims;
mod neighbour_conflict;
mod orphan_routes;
mod reach;
mod unanswered;
mod ways;
mod witness;

use std::net::IpAddr;

pub(super) use claims::How;
pub use claims::Side;
pub use neighbour_conflict::{Conflict, Grounds as ConflictGrounds, Party};
pub(super) use orphan_routes::hash_of;
pub use orphan_routes::{OrphanRoute, is_pods};
pub use reach::{Duplicate, Endpoint, Holding, Meeting, Reach};
pub use unanswered::{Fixed, Unanswered};
pub(super) use unanswered::{INCOMPLETE_OR_FAILED, PERMANENT, Place};

use super::NetnsId;
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

    /// An address or a route has changed, or what tells who came first: whose a netns is, and when that was made.
    pub(super) fn readdressed(&mut self) {
        self.reach.readdressed();
    }

    /// Who has this IP has changed.
    pub(super) fn ip_moved(&mut self, ip: IpAddr) {
        self.claims.touch(ip);
    }

    /// Somebody has this IP no more, or in another way.
    pub(super) fn ip_changed(&mut self, ip: IpAddr) {
        self.claims.unsettle_ip(ip);
    }

    /// The kernel found that somebody else on the link has this IP.
    pub(super) fn address_refused(&mut self, id: NetnsId, ifindex: u32, ip: IpAddr) {
        self.claims.dad_failed(id, ifindex, ip);
    }

    /// A neighbour entry is as this says.
    pub(super) fn neighbour_told(
        &mut self,
        id: NetnsId,
        new: &Neighbour,
        place: Place,
        at: BootNs,
    ) {
        self.unanswered.told(id, new, place, at);
    }

    /// A neighbour entry is gone.
    pub(super) fn neighbour_gone(&mut self, id: NetnsId, ifindex: u32, ip: IpAddr, at: BootNs) {
        self.unanswered.gone(id, ifindex, ip, at);
    }

    /// A device is gone, and with it what its neighbour entries said.
    pub(super) fn forget_device(&mut self, id: NetnsId, ifindex: u32) {
        self.unanswered.forget_device(id, ifindex);
        self.claims.forget_device(id, ifindex);
    }

    /// The same of a whole netns.
    pub(super) fn forget_netns(&mut self, id: NetnsId) {
        self.unanswered.forget_netns(id);
        self.claims.forget_netns(id);
    }

    /// Forgets which neighbours' silence says nothing any more. Returns when that is next to be done.
    pub(super) fn settle_unanswered(&mut self, now: BootNs) -> Option<BootNs> {
        self.unanswered.settle(now)
    }
}
