//! Where findings go beside the socket: the log, and an OpenTelemetry collector.
//!
//! Publishing never waits. What a sink cannot take it drops, the oldest first, and counts.

pub mod call;
pub mod journal;
pub mod otlp;
mod queue;
mod span;

use crate::finding::Change;
use otlp::{Otlp, OtlpError, Settings};

/// Who sends the telemetry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The node's name.
    pub name: String,
    /// Version of ipwatch.
    pub version: String,
}

/// What went where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Changes that were published.
    pub published: u64,
    /// What became of them at the collector; `None` when none is configured.
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

    /// Tells every sink. Never waits.
    pub fn publish(&mut self, change: &Change) {
        self.published += 1;
        journal::write(change);
        if let Some(otlp) = &self.otlp {
            otlp.publish(change);
        }
    }

    /// Where runs of CNI plugins are put, if there is a collector.
    #[must_use]
    pub fn calls(&self) -> Option<otlp::Calls> {
        self.otlp.as_ref().map(Otlp::calls)
    }

    /// What went where.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters { published: self.published, otlp: self.otlp.as_ref().map(Otlp::counters) }
    }

    /// Why the collector takes nothing, when it does not.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.otlp.as_ref().and_then(Otlp::trouble)
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
mod tests;
