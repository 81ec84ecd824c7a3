//! State of the IPAM stores: which IP is reserved for which container, from which range, and which reservations are
//! wrong.
//!
//! - `reservations`: what the stores reserve and let go of. `ranges`: out of what; `blocks`: how much of that is taken
//!   where the reservations of other nodes are not told. `configured`: the networks that CNI configurations name.
//!   `rate`: how fast. `demand`: whether a range has too few.
//! - `mismatch`: the stores against the kernel. `leaks`: reservations for containers that are gone. `stores`: what kinds
//!   of stores there are. `held`: whether whoever had an address from a store still has it.
//!
//! Invariants: what a store has not listed completely is unknown, and its absence proves nothing; every IP with a
//! change is marked before the next settling.

mod blocks;
mod configured;
mod demand;
mod held;
mod leaks;
mod mismatch;
mod ranges;
mod rate;
mod reservations;
mod stores;

pub use held::{Given, Hold, StoreNetwork};
pub use leaks::{Leak, LeakCause, Leaked};
#[cfg(test)]
pub(crate) use mismatch::JUDGED;
pub(super) use mismatch::has;
pub use mismatch::{Grounds, IpamMismatch, Match};
pub(super) use ranges::usable;
pub use ranges::{Level, RangeEntry, Usage};
pub(super) use reservations::Ipam;
pub use reservations::{Release, ReservationEntry, UnreadableEntry, WRITING};
pub(in crate::map) use stores::is_by_pod_object;
pub use stores::{is_freed_by_cni, is_of_the_cluster};

use crate::fact::BootNs;

impl Ipam {
    /// Runtimes or calls reported something new about containers: check every reservation for a leak again.
    pub(super) fn ask_all_leaks(&mut self) {
        self.leaks.ask_all();
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn assert_disputes_are_bounded(&self) {
        assert!(self.disputed.count() <= super::told::IN_ALL);
    }

    /// When the newest leak that counts began to count, and when the next one will.
    pub(super) fn leak_moments(&self) -> impl Iterator<Item = BootNs> {
        self.leaks.moments()
    }
}
