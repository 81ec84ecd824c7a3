//! A change of a finding as an OTLP span. Pure.
//!
//! A finding is one trace, whose id is made from the finding's. Its root is the span of its opening,
//! sent at once and of no length: a trace whose root came only with the end would be an incomplete
//! one for as long as somebody needs it. Every update is a child of no length, and the end is a
//! child that lasts from `since` to `resolved_at`. Links lead to the tenure of the IP and to the runs of
//! CNI plugins that it concerns. All ids are made from what the finding says, so a
//! span that is sent twice is the same span, and a restarted daemon finds the same parent.

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::trace::v1::{
    ResourceSpans, ScopeSpans, Span, SpanFlags, Status, span, status,
};

use super::attributes::{clean, flag, list, more, nanos, text};
use super::{Node, attributes, journal, names};
use crate::finding::{Change, ChangeKind, Evidence, Finding, Severity};

/// More evidence than this is counted, not sent.
const EVIDENCE: usize = 64;
/// W3C trace flag `sampled`: the low byte of a span's flags.
pub(super) const SAMPLED: u32 = 1;

/// Flags of every span: sampled, and its parent is known not to be remote.
pub(super) const FLAGS: u32 = SAMPLED | SpanFlags::ContextHasIsRemoteMask as u32;

/// What a span points at, by the ids that are made of its names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The other trace.
    pub trace_id: Vec<u8>,
    /// The span in it.
    pub span_id: Vec<u8>,
    /// `tenure` or `cni-call`.
    pub kind: &'static str,
}

impl Link {
    fn of(&self) -> span::Link {
        span::Link {
            trace_id: self.trace_id.clone(),
            span_id: self.span_id.clone(),
            attributes: vec![text(names::LINK_KIND, self.kind)],
            flags: SAMPLED,
            ..span::Link::default()
        }
    }
}

/// A change, and what it concerns.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Published {
    /// The change.
    pub(super) change: Change,
    /// What it concerns.
    pub(super) links: Vec<Link>,
}

/// Spans, from this node.
pub(super) fn from_node(spans: Vec<Span>, node: &Node) -> Vec<ResourceSpans> {
    let scope = Some(attributes::scope(node));
    let scope_spans = vec![ScopeSpans { scope, spans, ..ScopeSpans::default() }];
    let resource = Some(attributes::resource(node));
    vec![ResourceSpans { resource, scope_spans, ..ResourceSpans::default() }]
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
pub(super) fn ids(change: &Change) -> (Vec<u8>, Vec<u8>) {
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

fn root(finding: &Finding) -> Vec<u8> {
    attributes::span_id(&[&finding.id, &finding.since, "opened"])
}

/// The span of a change.
pub(super) fn span(published: &Published) -> Span {
    let change = &published.change;
    let finding = &change.finding;
    let ((trace_id, span_id), (at, _)) = (ids(change), moment(change));
    let end = nanos(at);
    let (parent_span_id, start) = match change.change {
        ChangeKind::Opened => (Vec::new(), end),
        ChangeKind::Updated => (root(finding), end),
        ChangeKind::Resolved => (root(finding), nanos(&finding.since).min(end)),
    };
    Span {
        trace_id,
        span_id,
        parent_span_id,
        flags: FLAGS,
        name: format!("ipwatch.finding {}", finding.code),
        kind: span::SpanKind::Internal as i32,
        start_time_unix_nano: start,
        end_time_unix_nano: end,
        attributes: attributes(change),
        events: finding.evidence.iter().take(EVIDENCE).map(event).collect(),
        dropped_events_count: more(finding.evidence.len(), EVIDENCE),
        links: published.links.iter().map(Link::of).collect(),
        status: Some(outcome(finding)),
        ..Span::default()
    }
}

/// What a person should act on is an error, so that the tools that look for failed traces find it.
fn outcome(finding: &Finding) -> Status {
    match finding.severity {
        Severity::Info => Status::default(),
        Severity::Warning | Severity::Critical => {
            Status { code: status::StatusCode::Error as i32, message: clean(&finding.impact) }
        }
    }
}

fn event(evidence: &Evidence) -> span::Event {
    span::Event {
        time_unix_nano: nanos(&evidence.at),
        name: "ipwatch.evidence".to_owned(),
        attributes: vec![
            text(names::EVIDENCE_SOURCE, &evidence.source),
            text(names::EVIDENCE_TEXT, &evidence.text),
        ],
        dropped_attributes_count: 0,
    }
}

/// What a change says, on its span and in its log record.
pub(super) fn attributes(change: &Change) -> Vec<KeyValue> {
    let finding = &change.finding;
    let subject = &finding.subject;
    let mut out = vec![
        text(names::FINDING_ID, &finding.id),
        text(names::FINDING_CODE, finding.code.as_str()),
        text(names::FINDING_SEVERITY, journal::severity(finding.severity)),
        text(names::FINDING_STATUS, journal::status(finding.status)),
        text(names::FINDING_CHANGE, moment(change).1),
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
