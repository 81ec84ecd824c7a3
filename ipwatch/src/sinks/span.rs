//! A change of a finding as an OTLP span. Pure.
//!
//! A finding is one trace, whose id is made from the finding's. Its root is the span of its opening,
//! sent at once and of no length: a trace whose root came only with the end would be an incomplete
//! one for as long as somebody needs it. Every update is a child of no length, and the end is a
//! child that lasts from `since` to `resolved_at`. All ids are made from what the finding says, so a
//! span that is sent twice is the same span, and a restarted daemon finds the same parent.

use opentelemetry_proto::tonic::common::v1::{
    AnyValue, ArrayValue, InstrumentationScope, KeyValue, any_value::Value,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{
    ResourceSpans, ScopeSpans, Span, SpanFlags, Status, span, status,
};
use sha2::{Digest, Sha256};

use super::{Node, journal};
use crate::contract::{Container, Holder, HolderKind, Netns, Pod};
use crate::escape::escape;
use crate::finding::{Change, ChangeKind, Evidence, Finding, Severity};

/// More evidence than this is counted, not sent.
const EVIDENCE: usize = 64;
/// More holders than this are counted, not sent.
const HOLDERS: usize = 16;
/// Texts are cut here: a kernel stack fits, a hostile text does no harm.
const TEXT: usize = 4096;
/// W3C trace flag `sampled`: the low byte of a span's flags.
pub(super) const SAMPLED: u32 = 1;

/// The spans of these changes, from this node.
pub(super) fn request(changes: &[Change], node: &Node) -> Vec<ResourceSpans> {
    from_node(changes.iter().map(span).collect(), node)
}

/// Spans, from this node.
pub(super) fn from_node(spans: Vec<Span>, node: &Node) -> Vec<ResourceSpans> {
    let resource = Resource {
        attributes: vec![
            text("service.name", "ipwatch"),
            text("service.version", &node.version),
            text("host.name", &node.name),
        ],
        ..Resource::default()
    };
    let scope = InstrumentationScope {
        name: "ipwatch".to_owned(),
        version: node.version.clone(),
        ..InstrumentationScope::default()
    };
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }];
    vec![ResourceSpans { resource: Some(resource), scope_spans, ..ResourceSpans::default() }]
}

fn span(change: &Change) -> Span {
    let finding = &change.finding;
    let root = span_id(&[&finding.id, &finding.since, "opened"]);
    let (at, name) = match change.change {
        ChangeKind::Opened => (finding.last_seen.as_str(), "opened"),
        ChangeKind::Updated => {
            let fired = finding.firing_at.as_deref().unwrap_or_default();
            (finding.last_seen.as_str().max(fired), "updated")
        }
        ChangeKind::Resolved => (finding.resolved_at.as_deref().unwrap_or_default(), "resolved"),
    };
    let status = journal::status(finding.status);
    let severity = journal::severity(finding.severity);
    let end = nanos(at);
    let (span_id, parent, start) = match change.change {
        ChangeKind::Opened => (root, Vec::new(), end),
        ChangeKind::Updated => {
            (self::span_id(&[&finding.id, &finding.since, name, at, status, severity]), root, end)
        }
        ChangeKind::Resolved => (
            self::span_id(&[&finding.id, &finding.since, name, at]),
            root,
            nanos(&finding.since).min(end),
        ),
    };
    let mut attributes = attributes(finding);
    attributes.push(text("ipwatch.finding.change", name));
    Span {
        trace_id: hash(&["trace", &finding.id])[..16].to_vec(),
        span_id,
        parent_span_id: parent,
        flags: SAMPLED | SpanFlags::ContextHasIsRemoteMask as u32,
        name: format!("ipwatch.finding {}", finding.code),
        kind: span::SpanKind::Internal as i32,
        start_time_unix_nano: start,
        end_time_unix_nano: end,
        attributes,
        events: finding.evidence.iter().take(EVIDENCE).map(event).collect(),
        dropped_events_count: more(finding.evidence.len(), EVIDENCE),
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
            text("ipwatch.evidence.source", &evidence.source),
            text("ipwatch.evidence.text", &evidence.text),
        ],
        dropped_attributes_count: 0,
    }
}

fn attributes(finding: &Finding) -> Vec<KeyValue> {
    let subject = &finding.subject;
    let mut out = vec![
        text("ipwatch.finding.id", &finding.id),
        text("ipwatch.finding.code", finding.code.as_str()),
        text("ipwatch.finding.severity", journal::severity(finding.severity)),
        text("ipwatch.finding.status", journal::status(finding.status)),
        text("ipwatch.finding.since", &finding.since),
        text("ipwatch.finding.impact", &finding.impact),
        list("ipwatch.finding.remediation", finding.remediation.iter().map(String::as_str)),
    ];
    if finding.preexisting {
        out.push(attribute("ipwatch.finding.preexisting", Value::BoolValue(true)));
    }
    out.extend(finding.caused_by.as_deref().map(|id| text("ipwatch.finding.caused_by", id)));
    out.extend(subject.ip.map(|ip| text("network.local.address", &ip.to_string())));
    out.extend(subject.network.as_deref().map(|name| text("ipwatch.cni.network", name)));
    subject.netns.iter().for_each(|netns| self::netns(netns, &mut out));
    subject.container.iter().for_each(|container| self::container(container, &mut out));
    subject.pod.iter().for_each(|pod| pod_names(pod, &mut out));
    holders(&finding.holders, &mut out);
    out
}

fn netns(netns: &Netns, out: &mut Vec<KeyValue>) {
    out.extend(netns.cookie.map(|cookie| number("ipwatch.netns.cookie", cookie)));
    out.extend(netns.inode.map(|inode| number("ipwatch.netns.inode", inode.into())));
    out.extend(netns.path.as_deref().map(|path| text("ipwatch.netns.path", path)));
}

fn container(container: &Container, out: &mut Vec<KeyValue>) {
    out.extend(container.id.as_deref().map(|id| text("container.id", id)));
    out.extend(container.name.as_deref().map(|name| text("container.name", name)));
    out.extend(container.runtime.as_deref().map(|name| text("container.runtime.name", name)));
}

pub(super) fn pod_names(pod: &Pod, out: &mut Vec<KeyValue>) {
    out.extend(pod.namespace.as_deref().map(|name| text("k8s.namespace.name", name)));
    out.extend(pod.name.as_deref().map(|name| text("k8s.pod.name", name)));
    out.extend(pod.uid.as_deref().map(|uid| text("k8s.pod.uid", uid)));
}

/// The first holder in the names that everybody knows, and all of them in one list.
fn holders(holders: &[Holder], out: &mut Vec<KeyValue>) {
    let Some(first) = holders.first() else { return };
    out.extend(first.pid.map(|pid| number("process.pid", pid.into())));
    out.extend(first.tid.map(|tid| number("thread.id", tid.into())));
    if let Some(comm) = &first.comm {
        // The kernel names threads; the leader's name is the process's.
        out.push(text("thread.name", comm));
        out.push(text("process.command", comm));
    }
    let lines: Vec<String> = holders.iter().take(HOLDERS).map(holder).collect();
    out.push(list("ipwatch.holders", lines.iter().map(String::as_str)));
    if holders.len() > HOLDERS {
        out.push(number("ipwatch.holders.count", holders.len() as u64));
    }
}

fn holder(holder: &Holder) -> String {
    let mut line = match holder.kind {
        HolderKind::Process => "process",
        HolderKind::Thread => "thread",
        HolderKind::Mount => "mount",
        HolderKind::Fd => "fd",
        HolderKind::Socket => "socket",
        HolderKind::Kernel => "kernel",
    }
    .to_owned();
    let numbers = [("pid", holder.pid), ("tid", holder.tid), ("fd", holder.fd)];
    for (name, number) in numbers.into_iter().filter_map(|(name, n)| n.map(|n| (name, n))) {
        line.push_str(&format!(" {name} {number}"));
    }
    for name in [&holder.comm, &holder.mount_path].into_iter().flatten() {
        line.push(' ');
        line.push_str(name);
    }
    if holder.exiting == Some(true) {
        line.push_str(" exiting");
    }
    line
}

fn attribute(key: &str, value: Value) -> KeyValue {
    let value = Some(AnyValue { value: Some(value) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

pub(super) fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(clean(value)))
}

/// OTLP knows signed numbers only; a cookie beyond them is told in digits.
pub(super) fn number(key: &str, value: u64) -> KeyValue {
    let digits = || Value::StringValue(value.to_string());
    attribute(key, i64::try_from(value).map_or_else(|_| digits(), Value::IntValue))
}

fn list<'a>(key: &str, items: impl Iterator<Item = &'a str>) -> KeyValue {
    let values =
        items.map(|item| AnyValue { value: Some(Value::StringValue(clean(item))) }).collect();
    attribute(key, Value::ArrayValue(ArrayValue { values }))
}

/// Collectors print what they get: hostile text is made harmless here too, and cut.
pub(super) fn clean(value: &str) -> String {
    let cut = value.char_indices().map(|(at, _)| at).take_while(|at| *at <= TEXT).last();
    let cut = if value.len() <= TEXT { value.len() } else { cut.unwrap_or(0) };
    escape(&value[..cut]).into_owned()
}

fn more(len: usize, most: usize) -> u32 {
    u32::try_from(len.saturating_sub(most)).unwrap_or(u32::MAX)
}

pub(super) fn span_id(parts: &[&str]) -> Vec<u8> {
    hash(parts)[..8].to_vec()
}

pub(super) fn hash(parts: &[&str]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
        // Neither ids nor dates hold a NUL.
        hash.update([0]);
    }
    hash.finalize().into()
}

fn nanos(date: &str) -> u64 {
    date.parse::<jiff::Timestamp>()
        .ok()
        .and_then(|stamp| u64::try_from(stamp.as_nanosecond()).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests;
