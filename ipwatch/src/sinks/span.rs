//! A change of a finding as a span. Pure.
//!
//! A finding is one trace, whose id is made from the finding's. Its root is the span of its opening,
//! sent at once and of no length: a trace whose root came only with the end would be an incomplete
//! one for as long as somebody needs it. Every update is a child of no length, and the end is a
//! child that lasts from `since` to `resolved_at`. Links lead to the tenure of the IP and to the runs of
//! CNI plugins that it concerns. All ids are made from what the finding says, so a
//! span that is sent twice is the same span, and a restarted daemon finds the same parent.

use opentelemetry::trace::{
    Event, Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use super::attributes::{self, clean, flag, list, more, nanos, text, word};
use super::{journal, names};
use crate::finding::{Change, ChangeKind, Evidence, Finding, Severity};

/// More evidence than this is counted, not sent.
const EVIDENCE: usize = 64;

/// Everything of ours is sampled.
pub(super) const SAMPLED: TraceFlags = TraceFlags::SAMPLED;

/// Which trace, and which span in it.
pub(super) type Ids = (TraceId, SpanId);

/// A link to another span of this node's, by the ids that are made of its names. `kind` is `tenure` or `cni-call`.
pub(super) fn link((trace_id, span_id): Ids, kind: &'static str) -> Link {
    let context = SpanContext::new(trace_id, span_id, SAMPLED, false, TraceState::NONE);
    Link::new(context, vec![word(names::LINK_KIND, kind)], 0)
}

/// A span with neither events nor links nor a status. `times` are Unix time in nanoseconds.
pub(super) fn plain(
    name: impl Into<std::borrow::Cow<'static, str>>,
    (trace_id, span_id): Ids,
    parent: Option<SpanId>,
    times: (u64, u64),
    attributes: Vec<KeyValue>,
) -> SpanData {
    SpanData {
        span_context: SpanContext::new(trace_id, span_id, SAMPLED, false, TraceState::NONE),
        parent_span_id: parent.unwrap_or(SpanId::INVALID),
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: name.into(),
        start_time: attributes::moment(times.0),
        end_time: attributes::moment(times.1),
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        // All have the same one: it is said once for a batch.
        instrumentation_scope: InstrumentationScope::default(),
    }
}

/// Events, and how many more there were.
pub(super) fn events(events: Vec<Event>, dropped: u32) -> SpanEvents {
    let mut all = SpanEvents::default();
    (all.events, all.dropped_count) = (events, dropped);
    all
}

/// When a change happened, and its name.
pub(super) fn moment(change: &Change) -> (&str, &'static str) {
    let finding = &change.finding;
    match change.change {
        ChangeKind::Opened => (finding.last_seen.as_str(), "opened"),
        ChangeKind::Updated => {
            let fired = finding.firing_at.as_deref().unwrap_or_default();
            let acked = finding.acked.as_ref().map_or("", |ack| ack.at.as_str());
            let at = change.at.as_deref().unwrap_or_default();
            (finding.last_seen.as_str().max(fired).max(acked).max(at), "updated")
        }
        ChangeKind::Resolved => (finding.resolved_at.as_deref().unwrap_or_default(), "resolved"),
    }
}

/// The trace of a finding, and the span of this change in it.
pub(super) fn ids(change: &Change) -> Ids {
    let (finding, (at, name)) = (&change.finding, moment(change));
    let trace = attributes::trace_id(&["trace", &finding.id]);
    let span = match change.change {
        ChangeKind::Opened => root(finding),
        ChangeKind::Updated => {
            let status = journal::status(finding.status);
            let severity = journal::severity(finding.severity);
            let acked = if finding.acked.is_some() { "acked" } else { "" };
            attributes::span_id(&[&finding.id, &finding.since, name, at, status, severity, acked])
        }
        ChangeKind::Resolved => attributes::span_id(&[&finding.id, &finding.since, name, at]),
    };
    (trace, span)
}

fn root(finding: &Finding) -> SpanId {
    attributes::span_id(&[&finding.id, &finding.since, "opened"])
}

/// The span of a change, and what it concerns.
pub(super) fn span(change: &Change, links: &[Link]) -> SpanData {
    let finding = &change.finding;
    let end = nanos(moment(change).0);
    let (parent, start) = match change.change {
        ChangeKind::Opened => (None, end),
        ChangeKind::Updated => (Some(root(finding)), end),
        ChangeKind::Resolved => (Some(root(finding)), nanos(&finding.since).min(end)),
    };
    let name = format!("ipwatch.finding {}", finding.code);
    let mut span = plain(name, ids(change), parent, (start, end), attributes(change));
    let evidence = finding.evidence.iter().take(EVIDENCE).map(event).collect();
    span.events = events(evidence, more(finding.evidence.len(), EVIDENCE));
    span.links.links = links.to_vec();
    span.status = outcome(finding);
    span
}

/// What a person should act on is an error, so that the tools that look for failed traces find it.
fn outcome(finding: &Finding) -> Status {
    match finding.severity {
        Severity::Info => Status::Unset,
        Severity::Warning | Severity::Critical => Status::error(clean(&finding.impact)),
    }
}

fn event(evidence: &Evidence) -> Event {
    let attributes = vec![
        text(names::EVIDENCE_SOURCE, &evidence.source),
        text(names::EVIDENCE_TEXT, &evidence.text),
    ];
    Event::new("ipwatch.evidence", attributes::moment(nanos(&evidence.at)), attributes, 0)
}

/// What a change says, on its span and in its log record.
pub(super) fn attributes(change: &Change) -> Vec<KeyValue> {
    let finding = &change.finding;
    let subject = &finding.subject;
    let mut out = vec![
        text(names::FINDING_ID, &finding.id),
        word(names::FINDING_CODE, finding.code.as_str()),
        word(names::FINDING_SEVERITY, journal::severity(finding.severity)),
        word(names::FINDING_STATUS, journal::status(finding.status)),
        word(names::FINDING_CHANGE, moment(change).1),
        text(names::FINDING_SINCE, &finding.since),
        text(names::FINDING_IMPACT, &finding.impact),
        list(names::FINDING_REMEDIATION, finding.remediation.iter().map(String::as_str)),
    ];
    if finding.preexisting {
        out.push(flag(names::FINDING_PREEXISTING, true));
    }
    out.extend(finding.acked.as_ref().map(|ack| text(names::FINDING_ACKED, &ack.at)));
    out.extend(finding.caused_by.as_deref().map(|id| text(names::FINDING_CAUSED_BY, id)));
    out.extend(subject.ip.map(|ip| text(names::NETWORK_LOCAL_ADDRESS, &ip.to_string())));
    out.extend(subject.network.as_deref().map(|name| text(names::CNI_NETWORK, name)));
    subject.netns.iter().for_each(|netns| attributes::netns(netns, &mut out));
    subject.container.iter().for_each(|container| attributes::container(container, &mut out));
    subject.pod.iter().for_each(|pod| attributes::pod(pod, &mut out));
    attributes::holders(&finding.holders, &mut out);
    out
}

#[cfg(test)]
mod tests;
