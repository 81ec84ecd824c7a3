//! Metrics for Prometheus, on a loopback address or a Unix socket.
//!
//! `/metrics`, `/healthz` and `/readyz` over HTTP/1.1. A scrape is one [`Question`] to the daemon's core, which
//! answers with a [`Reading`] taken at one moment, which serves those that come within a second too; nothing is
//! gathered between scrapes. This room knows nothing of the map.
//!
//! - `settings`: `[metrics]`. `server`: where it listens, and what a client may do there.
//! - `answer`: from a request to a response, and which of the two formats it is.
//! - `reading`: what the core hands over. `process`: what the daemon itself costs.
//! - `families`: every metric and how a reading becomes its samples; `text`: how they are written.

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

/// A question to the daemon's core. Dropping it unanswered means that the daemon is going down.
#[derive(Debug)]
pub enum Question {
    /// `/metrics`: everything, as of a second ago at most.
    Read(oneshot::Sender<Arc<Reading>>),
    /// `/healthz` and `/readyz`: whether the first snapshot is complete. Any answer at all is health.
    Ready(oneshot::Sender<bool>),
}
