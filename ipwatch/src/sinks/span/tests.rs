use std::collections::HashMap;

use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::{Span, Status, status};

use super::super::attributes::TEXT;
use super::*;
use crate::sinks::queue::Kind;
use crate::sinks::tests::{opened, resolved, updated};
use crate::sinks::wire::Origin;

/// The span of a change without links.
fn span(change: &Change) -> Span {
    super::span(change, &[]).into()
}

const T0: u64 = 1_767_225_600_000_000_000; // 2026-01-01T00:00:00Z
const SECOND: u64 = 1_000_000_000;

fn values(attributes: &[KeyValue]) -> HashMap<&str, Value> {
    let value = |pair: &KeyValue| pair.value.clone().and_then(|value| value.value).unwrap();
    attributes.iter().map(|pair| (pair.key.as_str(), value(pair))).collect()
}

fn string(text: &str) -> Value {
    Value::StringValue(text.to_owned())
}

#[test]
fn one_finding_is_one_trace() {
    let [open, update, end] =
        [opened("a"), updated("a"), resolved("a")].map(|change| span(&change));
    let other = span(&opened("b"));
    assert_eq!((open.trace_id.len(), open.span_id.len()), (16, 8));
    assert_eq!(open.trace_id, update.trace_id);
    assert_eq!(open.trace_id, end.trace_id);
    assert_ne!(open.trace_id, other.trace_id);
    let names = [&open, &update, &end].map(|span| span.name.as_str());
    let code = "ip-held-by-stuck-process";
    let told = ["ipwatch.finding.opened", "ipwatch.finding.firing", "ipwatch.finding"];
    assert_eq!(names, told.map(|name| format!("{name} {code}")));

    assert_eq!(end.parent_span_id, Vec::<u8>::new());
    assert_eq!((&open.parent_span_id, &update.parent_span_id), (&end.span_id, &end.span_id));
    assert_ne!(open.span_id, update.span_id);
    assert_ne!(update.span_id, end.span_id);
}

#[test]
fn a_span_that_is_made_again_is_the_same_one() {
    assert_eq!(span(&updated("a")), span(&updated("a")));
}

#[test]
fn an_acknowledgement_that_is_taken_back_is_no_span_of_before() {
    let fires = updated("a");
    let unacked = |at: &str| Change { at: Some(at.to_owned()), ..updated("a") };
    let (once, again) = (unacked("2026-01-01T00:00:20.000Z"), unacked("2026-01-01T00:00:30.000Z"));
    assert_ne!(span(&once).span_id, span(&fires).span_id);
    assert_ne!(span(&once).span_id, span(&again).span_id);
    assert_eq!(span(&once).end_time_unix_nano, T0 + 20 * SECOND);
}

#[test]
fn the_root_has_the_whole_length_and_its_children_are_moments_within_it() {
    let time = |change| {
        let span = span(&change);
        (span.start_time_unix_nano, span.end_time_unix_nano)
    };
    assert_eq!(time(opened("a")), (T0 + 6 * SECOND, T0 + 6 * SECOND));
    assert_eq!(time(updated("a")), (T0 + 8 * SECOND, T0 + 8 * SECOND));
    assert_eq!(time(resolved("a")), (T0, T0 + 60 * SECOND));
}

#[test]
fn the_root_knows_what_happened_meanwhile() {
    let mut change = resolved("a");
    let at = "2026-01-01T00:00:30.000Z".to_owned();
    change.finding.acked = Some(crate::finding::Ack { at, uid: None, until: None, note: None });
    let told = |change| {
        let events = span(&change).events.into_iter();
        events.map(|event| (event.name, event.time_unix_nano)).collect::<Vec<_>>()
    };
    let named = |name: &str, seconds| (name.to_owned(), T0 + seconds * SECOND);
    let evidence = named("ipwatch.evidence", 5);
    let all =
        [evidence.clone(), named("ipwatch.finding.firing", 8), named("ipwatch.finding.acked", 30)];
    assert_eq!(told(change), all);
    assert_eq!(told(updated("a")), [evidence], "a moment has no past");
}

#[test]
fn what_to_do_is_told_once_when_it_fires() {
    let tells =
        |change| values(&span(&change).attributes).contains_key("ipwatch.finding.remediation");
    assert!(tells(updated("a")));
    let mut later = updated("a");
    later.finding.last_seen = "2026-01-01T00:00:09.000Z".to_owned();
    assert_eq!(span(&later).name, "ipwatch.finding.updated ip-held-by-stuck-process");
    assert!(!tells(opened("a")) && !tells(later) && !tells(resolved("a")));
}

#[test]
fn attributes_have_the_names_that_everybody_knows() {
    let mut change = opened("a");
    change.finding.caused_by = Some("b".to_owned());
    let span = span(&change);
    let values = values(&span.attributes);
    for (key, value) in [
        ("ipwatch.finding.id", string("a")),
        ("ipwatch.finding.code", string("ip-held-by-stuck-process")),
        ("ipwatch.finding.severity", string("warning")),
        ("ipwatch.finding.status", string("pending")),
        ("ipwatch.finding.change", string("opened")),
        ("ipwatch.finding.caused_by", string("b")),
        ("network.local.address", string("10.0.3.17")),
        ("ipwatch.netns.cookie", Value::IntValue(4711)),
        ("ipwatch.netns.inode", Value::IntValue(4_026_532_177)),
        ("k8s.namespace.name", string("shop")),
        ("k8s.pod.name", string("api-0")),
        ("k8s.pod.uid", string("7f3a")),
        ("container.id", string("c0ffee")),
        ("process.pid", Value::IntValue(812)),
        ("process.command", string("java")),
        ("thread.name", string("java")),
    ] {
        assert_eq!(values.get(key), Some(&value), "{key}");
    }
    assert!(!values.contains_key("thread.id"), "what is unknown is absent");
    let Value::ArrayValue(holders) = &values["ipwatch.holders"] else { panic!() };
    assert_eq!(holders.values[0].value, Some(string("pid 812 java, exiting")));
}

#[test]
fn evidence_is_an_event_at_its_own_time() {
    let span = span(&opened("a"));
    assert_eq!(span.events.len(), 1);
    assert_eq!(span.events[0].time_unix_nano, T0 + 5 * SECOND);
    let values = values(&span.events[0].attributes);
    assert_eq!(values["ipwatch.evidence.source"], string("procfs"));
    assert_eq!(values["ipwatch.evidence.text"], string("state D in nfs_wait_bit_killable"));
}

#[test]
fn what_a_person_acts_on_is_an_error() {
    let of = |severity| {
        let mut change = opened("a");
        change.finding.severity = severity;
        let span = span(&change);
        let error = values(&span.attributes).get("error.type").cloned();
        (span.status.unwrap(), error)
    };
    assert_eq!(of(Severity::Info), (Status::default(), None));
    for severity in [Severity::Warning, Severity::Critical] {
        let (status, error) = of(severity);
        assert_eq!(status.code, status::StatusCode::Error as i32);
        assert_eq!(status.message, "the IP cannot be used");
        assert_eq!(error, Some(string(opened("a").finding.code.as_str())));
    }
}

#[test]
fn hostile_text_is_escaped_and_cut() {
    let mut change = opened("a");
    change.finding.holders[0].comm = Some("\u{1b}[2Jx".to_owned());
    change.finding.evidence[0].text = "ü".repeat(TEXT);
    let one = change.finding.evidence[0].clone();
    change.finding.evidence.extend(std::iter::repeat_n(one, EVIDENCE));
    let span = span(&change);
    assert_eq!(values(&span.attributes)["process.command"], string("\\x1b[2Jx"));
    assert_eq!((span.events.len(), span.dropped_events_count), (EVIDENCE, 1));
    let Value::StringValue(text) = &values(&span.events[0].attributes)["ipwatch.evidence.text"]
    else {
        panic!()
    };
    assert_eq!(text.len(), TEXT, "cut between characters");
}

#[test]
fn a_cookie_beyond_signed_numbers_is_told_in_digits() {
    let mut change = opened("a");
    change.finding.subject.netns.as_mut().unwrap().cookie = Some(u64::MAX);
    let span = span(&change);
    assert_eq!(values(&span.attributes)["ipwatch.netns.cookie"], string("18446744073709551615"));
}

#[test]
fn the_resource_names_the_node() {
    let mut node = crate::sinks::tests::node();
    node.resource = vec![
        ("service.name".to_owned(), "watch".to_owned()),
        ("deployment".to_owned(), "core".to_owned()),
        ("deployment".to_owned(), "edge".to_owned()),
    ];
    let spans = ["a", "b"].map(|id| super::span(&opened(id), &[]));
    let spans = Origin::new(&node).traces(Kind::Findings, spans.into()).resource_spans;
    assert_eq!(spans.len(), 1);
    assert_eq!(spans[0].scope_spans[0].spans.len(), 2);
    let resource = spans[0].resource.clone().unwrap();
    let values = values(&resource.attributes);
    assert_eq!(values.len(), resource.attributes.len(), "each once, as it was said last");
    assert_eq!(values["service.name"], string("watch"), "what the environment says goes first");
    assert_eq!(values["deployment"], string("edge"));
    assert_eq!(values["service.version"], string("1.2.3"));
    assert_eq!(values["host.name"], string("node-17"));
    assert_eq!(values["host.id"], string("c1238f1f0bcf4fc487d067fa2f3f0140"));
    assert_eq!(values["k8s.node.name"], string("node-17.example"));
    assert_eq!(values["k8s.cluster.name"], string("production"));
    assert!(values.contains_key("service.instance.id"));
}

#[test]
fn a_consequence_leads_to_the_root_of_its_cause() {
    let root = Span::from(super::span(&resolved("a"), &[]));
    let mut later = updated("a").finding;
    later.severity = Severity::Critical;
    let span = Span::from(super::span(&opened("b"), &[super::to_finding(&later)]));
    let link = &span.links[0];
    assert_eq!((&link.trace_id, &link.span_id), (&root.trace_id, &root.span_id));
    assert_eq!(values(&link.attributes)["ipwatch.link.kind"], string("cause"));
}

#[test]
fn links_lead_to_what_the_finding_concerns() {
    let ids = (TraceId::from_bytes([1; 16]), SpanId::from_bytes([2; 8]));
    let span = Span::from(super::span(&opened("a"), &[super::link(ids, "tenure")]));
    assert_eq!((&span.links[0].trace_id, &span.links[0].span_id), (&vec![1; 16], &vec![2; 8]));
    assert_eq!(values(&span.links[0].attributes)["ipwatch.link.kind"], string("tenure"));
}
