//! rtnetlink: links, addresses, neighbours, routes and nsids of every netns.
//!
//! - [`Listener`] receives changes in all netns through one set of sockets: `NETLINK_LISTEN_ALL_NSID`.
//! - [`Requests`] queries one netns: its names, its contents, and the TCP connections that the kernel is still closing
//!   there.
//!
//! Only a netns with an nsid sends events to the listener. The kernel assigns an nsid when a veth is moved into a
//! netns; [`Requests::adopt`] assigns one to any other netns, and dumps it only afterwards, so that no change is missed
//! in between.

mod budget;
mod diag;
mod driver;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod listen;
mod make;
mod netns_open;
mod parse;
mod remove;
mod requests;
mod sieve;
mod socket;
mod talk;

pub(crate) use make::{Given, Maker, Numbers};

pub use listen::{Counters, Listener, Lost};
pub(crate) use remove::remove_link;
pub use requests::{AdoptError, Requests};

pub(super) use netns_open::netns_of_socket;

#[cfg(test)]
pub(crate) mod testing;
