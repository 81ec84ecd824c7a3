//! `ipwatch-ipam`, a CNI IPAM plugin that runs another one (the delegate) and asks the daemon whether an IP is still held.
//!
//! In a network configuration it takes the place of the delegate. It passes the delegate's results and errors through
//! unchanged, with two exceptions:
//!
//! - [`gate`]: a DEL that would free an IP which a stuck process still holds fails with "try again later".
//! - [`park`]: an ADD that got such an IP keeps it reserved under an id of this plugin, and requests another one.
//!
//! Whether an IP is still held is decided by the daemon ([`ask`]). If it does not answer within 20 ms, the call is served
//! as it would be without this plugin, and [`tally`] counts it. The invariant: every address in a returned result is
//! stored by the delegate under exactly the runtime's `CNI_CONTAINERID` and `CNI_IFNAME`.
//!
//! `ipwatch cni` uses [`install`] and [`parked`]. The daemon recognises parked reservations by their ids ([`name`]).
#![warn(missing_docs)]

pub mod ask;
pub mod cni;
pub mod config;
pub mod delegate;
mod files;
pub mod found;
pub mod gate;
pub mod install;
pub mod name;
pub mod park;
pub mod parked;
pub mod plugin;
pub mod state;
pub mod tally;
mod time;
pub mod wrap;

#[cfg(test)]
mod testing;
