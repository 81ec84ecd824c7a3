//! rtnetlink: links, addresses, neighbours, routes and nsids of every netns.
//!
//! - [`Listener`] hears what changes, everywhere at once: `NETLINK_LISTEN_ALL_NSID`.
//! - [`Requests`] asks: the names of a netns, what is in it, and which TCP connections the kernel still
//!   closes there.
//!
//! Only a netns with an nsid is heard. A veth that is moved into a netns gives it one; any other gets
//! one from [`Requests::adopt`], which dumps it only then, so that nothing falls in between.

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
