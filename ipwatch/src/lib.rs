//! ipwatch: which IP is in which network namespace, who holds it there, and which IPs are about to break a pod start.
//!
//! ```text
//! sources ──► Fact ──► map ──► detect ──► Candidate ──► ledger ──► Finding ──► sinks, api
//! ```
//!
//! Data flows only in this direction: [`engine`], which is everything between the sources and the sinks, is pure.
//! `ARCHITECTURE.md` follows one event through all parts by file names.

pub mod api;
pub mod bounded;
mod canary;
pub mod cli;
pub mod clock;
mod cluster;
pub mod config;
pub mod contract;
pub mod daemon;
pub mod detect;
mod dial;
pub mod engine;
pub mod escape;
pub mod fact;
pub mod finding;
mod fix;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod http;
pub mod ledger;
pub mod map;
pub mod metrics;
mod nearest;
pub mod prefix;
pub mod reading;
pub mod remedy;
mod rights;
#[cfg(test)]
mod rooms;
pub mod sinks;
pub mod sources;
#[cfg(test)]
mod testing;
mod tls;
