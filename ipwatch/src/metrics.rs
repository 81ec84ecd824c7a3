//! Metrics for Prometheus, on a loopback address or a Unix socket.
//!
//! Serves `/metrics`, `/healthz` and `/readyz` over HTTP/1.1. A scrape is one [`Question`] to the daemon's core,
//! which answers with a [`Reading`] taken at one moment. A reading is reused for a second; nothing is gathered
//! between scrapes. This room does not depend on the map.
//!
//! - `settings`: `[metrics]`. `server`: the listener and its limits.
//! - `answer`: from a request to a response, and negotiation of the format.
//! - `reading`: the data from the core. `process`: what the daemon itself costs.
//! - `families`: every metric and how a reading becomes its samples; `text`: the two text formats.

mod answer;
mod families;
mod process;
mod reading;
mod server;
mod settings;
mod text;

use std::sync::Arc;

use tokio::sync::oneshot;

#[cfg(test)]
pub(crate) use self::families::tests::page_of;
pub use self::reading::{
    AddressInfo, CRITICAL, Counted, CriticalFinding, Extent, FindingGroup, LatencyReading, RANGES,
    Reading, Role, Signal, Sizes,
};
pub use self::server::{BindError, Server};
pub use self::settings::{Listen, Settings};

/// A question to the daemon's core. If it is dropped unanswered, the daemon is shutting down.
#[derive(Debug)]
pub enum Question {
    /// `/metrics`: a reading that is at most a second old.
    Read(oneshot::Sender<Arc<Reading>>),
    /// `/healthz` and `/readyz`: whether the daemon is ready. Any answer at all means healthy.
    Ready(oneshot::Sender<bool>),
}
