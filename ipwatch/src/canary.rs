//! The canary: events that the daemon makes itself, in network namespaces of its own, to check that the probes report
//! them.
//!
//! "Attached" means that the kernel has accepted a program, not that the program reports anything. Therefore a child of
//! the daemon makes each event once, and what is reported is compared with what is expected.
//!
//! - `stage`: the child. It creates two netns, addresses, a device and processes, and removes all of them when it ends.
//! - `run`: the daemon's side: starts the child, talks to it, and ends it in time.
//! - [`Claims`]: which records and facts are the canary's. They are removed before any other part sees them, so that
//!   the canary appears in no map, finding, history or recording, and in no metric except the kernel half's own
//!   counters; its netns are given no nsid.
//! - `marks`: what was seen of it; `judge`: what that proves. Both are pure. The kernel half writes no record of what a
//!   healthy task does, but counts it: for these events the canary uses the counter.
//! - [`Proofs`]: the last verdict for each event.

mod claims;
mod judge;
mod marks;
mod proofs;
mod run;
pub(crate) mod stage;

pub(crate) use claims::Claims;
pub(crate) use judge::{Verdict, judge};
pub(crate) use proofs::Proofs;
pub(crate) use run::{Help, run};

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::fact::CANARY;

/// First argument of the child; no command has this name.
pub(crate) const STAGE: &str = "canary-stage";

/// The container id with which the canary's plugin is run; no runtime uses it.
pub(crate) const CONTAINER: &str = "ipwatch-canary";

/// Addresses reserved for documentation (RFC 5737, RFC 3849), which are not in use. The IPv6 ones are in a prefix of
/// ipwatch, by which another ipwatch on this node recognises that they disturb nothing.
const IPV4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const IPV4_PEERS: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 2), Ipv4Addr::new(192, 0, 2, 3)];
const IPV6: Ipv6Addr = ipv6(1);
const IPV6_PEERS: [Ipv6Addr; 2] = [ipv6(2), ipv6(3)];
/// IP and MAC of the neighbour entry that is added.
const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);
const NEIGHBOUR_MAC: [u8; 6] = [0x02, 0x00, 0x5e, 0x00, 0x53, 0x01];
/// The addresses of both ends of the device, one of which is moved.
const ENDS: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 51, 100, 1), Ipv4Addr::new(198, 51, 100, 2)];

/// The address that both ends of the device get, for one attempt.
const fn twice(attempt: u16) -> Ipv6Addr {
    ipv6(0x10 + attempt)
}

const fn ipv6(host: u16) -> Ipv6Addr {
    let [a, b, c, d, ..] = CANARY.segments();
    Ipv6Addr::new(a, b, c, d, 0, 0, 0, host)
}

/// Number of attempts at a duplicate address: each is one packet and its answer.
const ATTEMPTS: u16 = 6;
