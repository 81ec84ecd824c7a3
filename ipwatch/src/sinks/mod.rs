//! Where findings go beside the socket: the log, and an OpenTelemetry collector.
//!
//! Publishing never waits. What a sink cannot take it drops, the oldest first, and counts.
//!
//! - `journal`: the log.
//! - `otlp`: the collector; `queue`: what waits for it.
//! - `span`, `call`, `tenure`, `teardown`, `log_record`, `metrics`: what is sent. `names`, `attributes`: in
//!   which words.

mod attributes;
pub mod call;
pub mod journal;
mod log_record;
pub mod metrics;
pub mod names;
pub mod otlp;
mod queue;
mod span;
pub mod teardown;
pub mod tenure;

use crate::fact::SourceStatus;
use crate::finding::Change;
use otlp::{Otlp, OtlpError, Settings};
pub use span::Link;

/// Who sends the telemetry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The node's name.
    pub name: String,
    /// Version of ipwatch.
    pub version: String,
    /// What else the telemetry is to say of it.
    pub resource: Vec<(String, String)>,
}

/// What went where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Changes that were published.
    pub published: u64,
    /// What became of everything at the collector; `None` when none is configured.
    pub otlp: Option<otlp::Counters>,
}

/// Every sink.
#[derive(Debug)]
pub struct Sinks {
    otlp: Option<Otlp>,
    published: u64,
}

impl Sinks {
    /// The log, and a collector if there are settings for one. To be called within the runtime.
    ///
    /// # Errors
    /// The settings cannot work. A collector that does not answer is no error: it may come later.
    pub fn start(otlp: Option<Settings>, node: &Node) -> Result<Self, OtlpError> {
        let otlp = otlp.map(|settings| Otlp::start(settings, node)).transpose()?;
        Ok(Self { otlp, published: 0 })
    }

    /// Tells every sink of a change, and what it concerns. Never waits.
    pub fn publish(&mut self, change: &Change, links: &[Link]) {
        self.published += 1;
        journal::write(change);
        if let Some(otlp) = &self.otlp {
            otlp.publish(change, links);
        }
    }

    /// The collector, if there is one.
    #[must_use]
    pub fn otlp(&self) -> Option<&Otlp> {
        self.otlp.as_ref()
    }

    /// What went where.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters { published: self.published, otlp: self.otlp.as_ref().map(Otlp::counters) }
    }

    /// How the collector stands, if there is one.
    #[must_use]
    pub fn standing(&self) -> Option<(SourceStatus, String)> {
        self.otlp.as_ref().map(Otlp::standing)
    }

    /// Sends what waits, for two seconds at most, and ends. The last count.
    pub async fn shutdown(self) -> Counters {
        let otlp = match self.otlp {
            Some(otlp) => Some(otlp.shutdown().await),
            None => None,
        };
        Counters { published: self.published, otlp }
    }
}

#[cfg(test)]
pub(crate) mod tests;
