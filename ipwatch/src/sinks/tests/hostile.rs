//! Every text that leaves through a sink, with the name of its place.

use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_sdk::trace::SpanData;
use serde_json::Value as Json;

use super::node;
use crate::contract::{Holder, Tenure};
use crate::finding::Change;
use crate::map::Ending;
use crate::sinks::{
    Node, attributes, call, conditions, events, journal, log_record, metrics, span, teardown,
    tenure,
};

/// Places and texts.
type Texts = Vec<(String, String)>;

/// The entry in the journal, and the line on stderr where there is no journal.
pub(crate) fn in_the_log(change: &Change) -> Texts {
    let fields = journal::entry::fields(change).into_iter();
    let mut all: Texts = fields.map(|(name, text)| (format!("journal {name}"), text)).collect();
    all.push(("log line".to_owned(), journal::tests::log(std::slice::from_ref(change))));
    all
}

/// What a collector is sent about a finding.
pub(crate) fn in_otlp(change: &Change) -> Texts {
    let record = log_record::record(change);
    let mut all = of_span("finding", span::span(change, &[]));
    all.extend(of_pairs("log record", record.attributes));
    let body = record.body.map(texts_in).unwrap_or_default().into_iter();
    all.extend(body.map(|text| ("log record body".to_owned(), text)));
    all
}

/// What it is sent about who had an IP.
pub(crate) fn of_tenure(tenure: Tenure, holders: Vec<Holder>) -> Texts {
    of_span("tenure", tenure::span(&tenure::Held { tenure, holders, boot_id: "boot".into() }))
}

/// What it is sent about a run of a plugin, a netns that is torn down, and this node, where all that others say is this
/// word.
pub(crate) fn of_the_node(word: &str) -> Texts {
    let text = || Some(word.to_owned());
    let mut run = call::tests::run(7, None);
    let call = &mut run.entry.call;
    call.plugin = word.to_owned();
    (call.container_id, call.netns_path, call.ifname) = (text(), text(), text());
    if let Some(pod) = &mut call.pod {
        (pod.namespace, pod.name, pod.uid) = (word.to_owned(), word.to_owned(), text());
    }
    run.error = text();
    let mut all = of_span("run", call::span(&run));

    let mut torn_down = teardown::tests::teardown(Some(30), true);
    let Ending { netns, container, pod, looks, .. } = &mut torn_down.ending;
    netns.path = text();
    if let Some(container) = container {
        (container.id, container.name, container.runtime) = (text(), text(), text());
    }
    if let Some(pod) = pod {
        (pod.namespace, pod.name, pod.uid) = (text(), text(), text());
    }
    looks.iter_mut().for_each(|look| look.wchan = text());
    all.extend(of_span("teardown", teardown::span(&torn_down)));

    let node = Node {
        name: word.to_owned(),
        host_id: text(),
        kubernetes: text(),
        cluster: text(),
        instance: text(),
        resource: vec![("said".to_owned(), word.to_owned())],
        ..node()
    };
    let resource = attributes::resource(&node);
    all.extend(resource.iter().map(|(key, value)| (format!("resource {key}"), value.to_string())));
    // The SDK keeps them in a HashMap.
    all.sort_by(|one, other| one.0.cmp(&other.0));
    let mut snapshot = metrics::tests::snapshot();
    snapshot.probes = vec![(word.to_owned(), 7, 1)];
    all.extend(of_pairs("metric", metrics::tests::points(&snapshot)));
    all
}

/// An Event's object, and the conditions of the Node.
pub(crate) fn in_the_cluster(change: &Change) -> Texts {
    let mut all = Vec::new();
    of_object("event", events::object(&change.finding), &mut all);
    // An Event is about a pod only if the cluster can have one of that name.
    let mut named = change.finding.clone();
    if let Some(pod) = &mut named.subject.pod {
        (pod.namespace, pod.name) = (Some("shop".to_owned()), Some("api-0".to_owned()));
    }
    of_object("event of a pod", events::object(&named), &mut all);
    let messages = conditions::tests::messages(&change.finding).into_iter();
    all.extend(messages.map(|message| ("condition".to_owned(), message)));
    all
}

fn of_object(place: &str, value: Json, all: &mut Texts) {
    match value {
        Json::String(text) => all.push((place.to_owned(), text)),
        Json::Object(object) => object
            .into_iter()
            .for_each(|(field, value)| of_object(&format!("{place} {field}"), value, all)),
        Json::Array(list) => list.into_iter().for_each(|value| of_object(place, value, all)),
        _ => {}
    }
}

fn of_span(of: &str, span: SpanData) -> Texts {
    let span = Span::from(span);
    let mut all = of_pairs(&format!("span of {of}"), span.attributes);
    all.push((format!("span of {of}: name"), span.name));
    all.push((format!("span of {of}: status"), span.status.unwrap_or_default().message));
    let events = span.events.into_iter();
    all.extend(events.flat_map(|event| of_pairs(&format!("event of {of}"), event.attributes)));
    all
}

fn of_pairs(place: &str, pairs: Vec<KeyValue>) -> Texts {
    let texts = |pair: KeyValue| {
        let name = format!("{place} {}", pair.key);
        let texts = pair.value.map(texts_in).unwrap_or_default();
        texts.into_iter().map(move |text| (name.clone(), text))
    };
    pairs.into_iter().flat_map(texts).collect()
}

fn texts_in(value: AnyValue) -> Vec<String> {
    match value.value {
        Some(Value::StringValue(text)) => vec![text],
        Some(Value::ArrayValue(all)) => all.values.into_iter().flat_map(texts_in).collect(),
        _ => Vec::new(),
    }
}
