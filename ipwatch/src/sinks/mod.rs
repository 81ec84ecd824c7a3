//! Where findings go beside the socket: the log, an OpenTelemetry collector, and the cluster.
//!
//! Publishing never waits. What a sink cannot take it drops, the oldest first, and counts.
//!
//! - `journal`: the log.
//! - `otlp`: the collector; `queue`: what waits for it.
//! - `events`: Events of the cluster.
//! - `span`, `call`, `tenure`, `teardown`, `log_record`, `metrics`: what is sent, in the SDK's types where they can be
//!   made. `names`, `attributes`: in which words. `wire`: the messages.

mod attributes;
pub mod call;
pub mod events;
pub mod journal;
mod log_record;
pub mod metrics;
pub mod names;
pub mod otlp;
mod queue;
mod span;
pub mod teardown;
pub mod tenure;
mod wire;

use crate::fact::SourceStatus;
use crate::finding::{Change, Finding};
use events::Events;
pub use opentelemetry::trace::Link;
use otlp::{Otlp, OtlpError, Settings};

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
    /// And in the cluster; `None` when it is told of nothing.
    pub events: Option<events::Counters>,
}

/// Every sink.
#[derive(Debug)]
pub struct Sinks {
    otlp: Option<Otlp>,
    events: Option<Events>,
    published: u64,
}

impl Sinks {
    /// The log, and a collector if there are settings for one. To be called within the runtime.
    ///
    /// # Errors
    /// The settings cannot work. A collector that does not answer is no error: it may come later.
    pub fn start(otlp: Option<Settings>, node: &Node) -> Result<Self, OtlpError> {
        let otlp = otlp.map(|settings| Otlp::start(settings, node)).transpose()?;
        Ok(Self { otlp, events: None, published: 0 })
    }

    /// Tells the cluster too, first of what fires already.
    pub fn tell_cluster<'a>(&mut self, events: Events, open: impl Iterator<Item = &'a Finding>) {
        open.for_each(|finding| events.publish(finding));
        self.events = Some(events);
    }

    /// Tells every sink of a change, and what it concerns. Never waits.
    pub fn publish(&mut self, change: &Change, links: &[Link]) {
        self.published += 1;
        journal::write(change);
        if let Some(otlp) = &self.otlp {
            otlp.publish(change, links);
        }
        if let Some(events) = &self.events {
            events.publish(&change.finding);
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
        Counters {
            published: self.published,
            otlp: self.otlp.as_ref().map(Otlp::counters),
            events: self.events.as_ref().map(Events::counters),
        }
    }

    /// How those stand that may fail, by name: the collector and the cluster, where there are any.
    pub fn standing(&self) -> impl Iterator<Item = (&'static str, SourceStatus, String)> {
        let otlp = self.otlp.as_ref().map(|otlp| ("otlp", otlp.standing()));
        let events = self.events.as_ref().map(|events| (events::NAME, events.standing()));
        otlp.into_iter().chain(events).map(|(name, (status, detail))| (name, status, detail))
    }

    /// Sends what waits, for two seconds at most, and ends. The last count.
    pub async fn shutdown(self) -> Counters {
        let otlp = async {
            match self.otlp {
                Some(otlp) => Some(otlp.shutdown().await),
                None => None,
            }
        };
        let events = async {
            match self.events {
                Some(events) => Some(events.shutdown().await),
                None => None,
            }
        };
        let (otlp, events) = tokio::join!(otlp, events);
        Counters { published: self.published, otlp, events }
    }
}

#[cfg(test)]
pub(crate) mod tests;
