//! The canary: events that we make ourselves, in network namespaces of our own, to see whether the probes tell of them.
//!
//! "Attached" says that the kernel has taken a program, not that it tells of anything. So a child of the daemon makes
//! each event for once, and what comes of it is compared with what was to come.
//!
//! - `stage`: the child. It makes two netns, addresses, a device, processes, and goes with all of them.
//! - `run`: the daemon's side of it: starts the child, talks with it, ends it in time.
//! - [`Claims`]: which records and facts are the canary's. They are taken out before anybody else sees them, so that it
//!   appears in no map, finding, history or recording, and in no metric but the kernel half's own counters; no nsid is
//!   ever given to its netns.
//! - `marks`: what was seen of it; `judge`: what that proves. Both are pure. Of what a healthy task does the kernel half
//!   tells no record, it only counts it: there the canary goes by the counter.
//! - [`Proofs`]: how each event has been judged last.

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

/// First argument of the child, which no command has.
pub(crate) const STAGE: &str = "canary-stage";

/// What the canary's plugin is run for: no runtime names a container so.
pub(crate) const CONTAINER: &str = "ipwatch-canary";

/// Documentation's own addresses (RFC 5737, RFC 3849), which nobody has. The IPv6 ones are of a prefix of ours, by which
/// another ipwatch on this node knows that what it sees in it disturbs nobody.
const IPV4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const IPV4_PEERS: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 2), Ipv4Addr::new(192, 0, 2, 3)];
const IPV6: Ipv6Addr = ipv6(1);
const IPV6_PEERS: [Ipv6Addr; 2] = [ipv6(2), ipv6(3)];
/// Whose neighbour entry is made, and with which MAC.
const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);
const NEIGHBOUR_MAC: [u8; 6] = [0x02, 0x00, 0x5e, 0x00, 0x53, 0x01];
/// Both ends of the device, of which one is moved.
const ENDS: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 51, 100, 1), Ipv4Addr::new(198, 51, 100, 2)];

/// The address that both ends of the device are to have, at one attempt.
const fn twice(attempt: u16) -> Ipv6Addr {
    ipv6(0x10 + attempt)
}

const fn ipv6(host: u16) -> Ipv6Addr {
    let [a, b, c, d, ..] = CANARY.segments();
    Ipv6Addr::new(a, b, c, d, 0, 0, 0, host)
}

/// Attempts at an address that another one has: each is one packet and its answer.
const ATTEMPTS: u16 = 6;
