//! `ipwatch-ipam`, a CNI IPAM plugin that delegates and asks.
//!
//! It stands in a network configuration where the IPAM plugin stood, runs that one (the delegate) and passes its results
//! and errors through as they are. Around it:
//!
//! - [`gate`]: a DEL that would free an IP which a stuck process still has is put off.
//! - [`park`]: an ADD that got such an IP keeps it reserved under an id of ours, and asks for another one.
//!
//! Whether an IP is still held, only the daemon knows ([`ask`]), and only its proof counts: without an answer in 20 ms
//! everything is as it would be without this plugin, and [`tally`] counts it. The one invariant: every address in a
//! returned result is stored by the delegate under exactly the runtime's `CNI_CONTAINERID` and `CNI_IFNAME`.
//!
//! `ipwatch cni release` uses [`parked`] as well; what a parked reservation is called ([`name`]) the daemon knows too.
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
