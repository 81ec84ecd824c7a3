//! The sinks that findings are published to: the log, an OpenTelemetry collector, and the Kubernetes API.
//!
//! Publishing never blocks. A sink that is full drops its oldest items and counts them.
//!
//! - `journal`: the log.
//! - `otlp`: the collector; `queue`: what waits for it.
//! - `events`: Events of the cluster. `conditions`: conditions of its Node. `server`: how both reach the API server.
//! - `span`, `call`, `tenure`, `teardown`, `log_record`, `metrics`: build the telemetry, in the types of the
//!   OpenTelemetry SDK where those can be constructed. `names`, `attributes`: attribute names and values. `wire`: the
//!   OTLP messages.

mod attributes;
pub mod call;
pub mod conditions;
pub mod events;
pub mod journal;
mod log_record;
pub mod metrics;
pub mod names;
pub mod otlp;
mod queue;
mod server;
mod span;
pub mod teardown;
pub mod tenure;
mod wire;

use crate::contract::Step;
use crate::escape::escape;
use crate::fact::{BootNs, SourceStatus};
use crate::finding::{Change, Code, Finding};
use crate::reading::Readings;
use crate::remedy::end_of_quotation;
use conditions::{Conditions, Sight};
use events::Events;
pub use opentelemetry::trace::Link;
use otlp::{Otlp, OtlpError, Settings};
pub use span::to_finding;

/// Who sends the telemetry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The node's name.
    pub name: String,
    /// Its id, which no other host has; absent where it has no machine id.
    pub host_id: Option<String>,
    /// Its name in the cluster, where it is in one.
    pub kubernetes: Option<String>,
    /// The name of that cluster, where it is configured.
    pub cluster: Option<String>,
    /// Id of this run of ipwatch, which no other has; absent where the kernel gives none.
    pub instance: Option<String>,
    /// Version of ipwatch.
    pub version: String,
    /// Further resource attributes (`OTEL_RESOURCE_ATTRIBUTES`).
    pub resource: Vec<(String, String)>,
}

/// Counters of all sinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Changes that were published.
    pub published: u64,
    /// Items exported and dropped by the OTLP sink; `None` if no collector is configured.
    pub otlp: Option<otlp::Counters>,
    /// The same for Kubernetes Events; `None` if they are not enabled.
    pub events: Option<events::Counters>,
    /// The same for conditions of the Node.
    pub conditions: Option<conditions::Counters>,
}

/// Every sink. By default, the log alone.
#[derive(Debug, Default)]
pub struct Sinks {
    otlp: Option<Otlp>,
    events: Option<Events>,
    conditions: Option<Conditions>,
    pace: journal::Pace,
    published: u64,
}

impl Sinks {
    /// Starts the OTLP sink beside the log. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The settings are invalid. A collector that is unreachable is not an error: it may come up later.
    pub fn start(otlp: Settings, node: &Node, readings: &Readings) -> Result<Self, OtlpError> {
        Ok(Self { otlp: Some(Otlp::start(otlp, node, readings)?), ..Self::default() })
    }

    /// Adds the Kubernetes Events sink, and publishes the findings that are already open to it.
    pub fn tell_cluster<'a>(&mut self, events: Events, open: impl Iterator<Item = &'a Finding>) {
        open.for_each(|finding| events.publish(finding));
        self.events = Some(events);
    }

    /// Adds the sink for conditions of the Node; the same.
    pub fn keep_conditions<'a>(
        &mut self,
        conditions: Conditions,
        open: impl Iterator<Item = &'a Finding>,
    ) {
        open.for_each(|finding| conditions.publish(finding));
        self.conditions = Some(conditions);
    }

    /// Takes findings of an earlier run, which are no changes.
    pub fn restore<'a>(&self, open: impl Iterator<Item = &'a Finding>) {
        if let Some(conditions) = &self.conditions {
            open.for_each(|finding| conditions.publish(finding));
        }
    }

    /// Tells those sinks that say that nothing is wrong what can be judged now. Never blocks.
    pub fn judge(&self, sight: impl Fn(Code) -> Sight) {
        if let Some(conditions) = &self.conditions {
            conditions.judge(sight);
        }
    }

    /// Publishes a change, with links to the spans it refers to, to every sink. Never blocks. If it is about a netns of an
    /// unprivileged user, it counts to the log lines of that user.
    pub fn publish(
        &mut self,
        change: &Change,
        links: &[Link],
        user: Option<journal::User>,
        now: BootNs,
    ) {
        self.published += 1;
        if user.is_none_or(|user| self.pace.admits(change, user, now)) {
            journal::write(change);
        }
        if let Some(otlp) = &self.otlp {
            otlp.publish(change, links);
        }
        if let Some(events) = &self.events {
            events.publish(&change.finding);
        }
        if let Some(conditions) = &self.conditions {
            conditions.publish(&change.finding);
        }
    }

    /// Logs how many changes of findings were not logged.
    pub fn tell_held_back(&mut self, now: BootNs) {
        for said in self.pace.due(now) {
            tracing::info!(target: journal::TARGET, "{said}");
        }
    }

    /// The collector, if there is one.
    #[must_use]
    pub fn otlp(&self) -> Option<&Otlp> {
        self.otlp.as_ref()
    }

    /// Counters of all sinks.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            published: self.published,
            otlp: self.otlp.as_ref().map(Otlp::counters),
            events: self.events.as_ref().map(Events::counters),
            conditions: self.conditions.as_ref().map(Conditions::counters),
        }
    }

    /// Status of the sinks that can fail, by name: `otlp`, Kubernetes Events and conditions, if enabled.
    pub fn standing(&self) -> impl Iterator<Item = (&'static str, SourceStatus, String)> {
        let otlp = self.otlp.as_ref().map(|otlp| (otlp::NAME, otlp.standing()));
        let events = self.events.as_ref().map(|events| (events::NAME, events.standing()));
        let conditions = self.conditions.as_ref();
        let conditions = conditions.map(|sink| (conditions::NAME, sink.standing()));
        let all = otlp.into_iter().chain(events).chain(conditions);
        all.map(|(name, (status, detail))| (name, status, detail))
    }

    /// Flushes the queues for two seconds at most, stops, and returns the final counters.
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
        let conditions = async {
            match self.conditions {
                Some(conditions) => Some(conditions.shutdown().await),
                None => None,
            }
        };
        let (otlp, events, conditions) = tokio::join!(otlp, events, conditions);
        Counters { published: self.published, otlp, events, conditions }
    }
}

/// What follows a text that was cut.
const CUT: char = '…';

/// Truncates a text to `most` bytes; a quotation that is cut is closed.
fn cut(mut text: String, most: usize) -> String {
    if text.len() <= most {
        return text;
    }
    text.truncate(text.floor_char_boundary(most.saturating_sub(CUT.len_utf8() + 1)));
    let end = end_of_quotation(&text);
    text.push(CUT);
    text.push_str(end);
    text
}

/// A step of the finding `id` in one line of at most `most` bytes. A command that does not fit is left out: a part of
/// it would be another command.
fn action(step: &Step, id: &str, most: usize) -> String {
    let line = escape(&step.line()).into_owned();
    if line.len() <= most {
        return line;
    }
    let more = match step.command {
        Some(_) => format!(" (see ipwatch explain {id})"),
        None => String::new(),
    };
    cut(escape(&step.what).into_owned(), most.saturating_sub(more.len())) + &more
}

#[cfg(test)]
pub(crate) mod tests;
