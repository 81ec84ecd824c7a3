//! A change of a finding as a span. Pure.
//!
//! A finding is one trace. Its root span lasts from `since` to `resolved_at` and is therefore sent at the end; that the
//! finding fired and was acknowledged are events of it. Until then a child span without duration is sent for each
//! change, and its name says which: opened, firing or updated. Links point to the tenures of the IP, to the CNI plugin
//! runs involved and to the finding that is its cause. All ids are derived from the finding: a span that is sent twice
//! has the same id, and a restarted daemon computes the same parent.

use opentelemetry::trace::{
    Event, Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use super::attributes::{self, clean, flag, list, more, nanos, text, word};
use super::{action, journal, names};
use crate::finding::{Change, ChangeKind, Evidence, Finding, Severity};

/// Maximum number of evidence events; the rest is counted in `dropped_events_count`.
const EVIDENCE: usize = 64;

/// The trace flags of all our spans.
pub(super) const SAMPLED: TraceFlags = TraceFlags::SAMPLED;

/// A trace id and a span id.
pub(super) type Ids = (TraceId, SpanId);

/// A link to another span of this node. `kind` is `tenure`, `cni-call` or `cause`.
pub(super) fn link((trace_id, span_id): Ids, kind: &'static str) -> Link {
    let context = SpanContext::new(trace_id, span_id, SAMPLED, false, TraceState::NONE);
    Link::new(context, vec![word(names::LINK_KIND, kind)], 0)
}

/// A link to the root span of the finding that another one follows from. It is sent when that finding ends.
pub fn to_finding(cause: &Finding) -> Link {
    link((trace(cause), root(cause)), "cause")
}

/// A span without events, links and status. `times` are start and end in nanoseconds since the epoch.
pub(super) fn plain(
    name: impl Into<std::borrow::Cow<'static, str>>,
    (trace_id, span_id): Ids,
    parent: Option<SpanId>,
    times: (u64, u64),
    mut attributes: Vec<KeyValue>,
) -> SpanData {
    // Spans are queued as long as the collector is unreachable.
    attributes.shrink_to_fit();
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
        // The same for all spans: `wire` sets it once per request.
        instrumentation_scope: InstrumentationScope::default(),
    }
}

/// Span events, and the number of those left out.
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

/// Whether the finding fires with this change: nothing that was seen or done is newer.
fn fires(change: &Change) -> bool {
    let fired = change.finding.firing_at.as_deref();
    change.change == ChangeKind::Updated && fired == Some(moment(change).0)
}

/// The trace of a finding, and the span of this change in it.
pub(super) fn ids(change: &Change) -> Ids {
    let (finding, (at, name)) = (&change.finding, moment(change));
    let span = match change.change {
        ChangeKind::Opened => attributes::span_id(&[&finding.id, &finding.since, name]),
        ChangeKind::Updated => {
            let status = journal::status(finding.status);
            let severity = journal::severity(finding.severity);
            let acked = if finding.acked.is_some() { "acked" } else { "" };
            attributes::span_id(&[&finding.id, &finding.since, name, at, status, severity, acked])
        }
        ChangeKind::Resolved => root(finding),
    };
    (trace(finding), span)
}

fn trace(finding: &Finding) -> TraceId {
    attributes::trace_id(&["trace", &finding.id])
}

fn root(finding: &Finding) -> SpanId {
    attributes::span_id(&[&finding.id, &finding.since, "root"])
}

/// The name of a change's span. It says at a glance, and to a search, what happened.
fn name(change: &Change) -> String {
    let code = change.finding.code;
    match change.change {
        ChangeKind::Opened => format!("ipwatch.finding.opened {code}"),
        ChangeKind::Updated if fires(change) => format!("ipwatch.finding.firing {code}"),
        ChangeKind::Updated => format!("ipwatch.finding.updated {code}"),
        ChangeKind::Resolved => format!("ipwatch.finding {code}"),
    }
}

/// The span of a change, with links to the spans it refers to.
pub(super) fn span(change: &Change, links: &[Link]) -> SpanData {
    let finding = &change.finding;
    let end = nanos(moment(change).0);
    let (parent, start, milestones) = match change.change {
        ChangeKind::Opened | ChangeKind::Updated => (Some(root(finding)), end, Vec::new()),
        ChangeKind::Resolved => (None, nanos(&finding.since).min(end), milestones(finding)),
    };
    let mut span = plain(name(change), ids(change), parent, (start, end), attributes(change));
    let evidence = finding.evidence.iter().take(EVIDENCE).map(event);
    let told = evidence.chain(milestones).collect();
    span.events = events(told, more(finding.evidence.len(), EVIDENCE));
    span.links.links = links.to_vec();
    span.status = outcome(finding);
    span
}

/// Warnings and critical findings have the status Error, so that searches for failed traces find them.
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

/// The times at which the finding fired and was acknowledged.
fn milestones(finding: &Finding) -> Vec<Event> {
    let fired = finding.firing_at.as_deref().map(|at| ("ipwatch.finding.firing", at));
    let acked = finding.acked.as_ref().map(|ack| ("ipwatch.finding.acked", ack.at.as_str()));
    let event = |(name, at)| Event::new(name, attributes::moment(nanos(at)), Vec::new(), 0);
    fired.into_iter().chain(acked).map(event).collect()
}

/// The attributes of a change, for its span and its log record. The remediation is included once, when the finding
/// fires.
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
    ];
    if fires(change) {
        let advice = finding.advice();
        let actions: Vec<String> =
            advice.iter().map(|step| action(step, &finding.id, attributes::TEXT)).collect();
        out.push(list(names::FINDING_REMEDIATION, actions.iter().map(String::as_str)));
    }
    if finding.severity != Severity::Info {
        out.push(word(names::ERROR_TYPE, finding.code.as_str()));
    }
    if finding.preexisting {
        out.push(flag(names::FINDING_PREEXISTING, true));
    }
    out.extend(finding.acked.as_ref().map(|ack| text(names::FINDING_ACKED, &ack.at)));
    out.extend(finding.caused_by.as_deref().map(|id| text(names::FINDING_CAUSED_BY, id)));
    out.extend(subject.ip.map(|ip| text(names::NETWORK_LOCAL_ADDRESS, &ip.to_string())));
    if subject.several().is_some() {
        let ips: Vec<String> = subject.ips().map(|ip| ip.to_string()).collect();
        out.push(list(names::FINDING_IPS, ips.iter().map(String::as_str)));
    }
    out.extend(subject.network.as_deref().map(|name| text(names::CNI_NETWORK, name)));
    subject.netns.iter().for_each(|netns| attributes::netns(netns, &mut out));
    subject.container.iter().for_each(|container| attributes::container(container, &mut out));
    subject.pod.iter().for_each(|pod| attributes::pod(pod, &mut out));
    attributes::holders(&finding.holders, &mut out);
    out
}

#[cfg(test)]
mod tests;
