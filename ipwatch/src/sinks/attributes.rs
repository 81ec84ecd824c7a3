//! Builds attributes: escapes and truncates values, and writes netns, container, pod and holders the same way on every
//! span and log record. Pure.

use std::time::{Duration, SystemTime};

use opentelemetry::trace::{SpanId, TraceId};
use opentelemetry::{Array, InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::Resource;
use sha2::{Digest, Sha256};

use super::Node;
use super::names::{self, Name};
use crate::contract::{Container, Holder, Netns, Pod, holders_unlisted};
use crate::escape::escape;
use crate::remedy::end_of_quotation;

/// Maximum number of holders in one attribute; `ipwatch.holders.count` has their total.
const HOLDERS: usize = 16;
/// Maximum length of a text in bytes. A kernel stack fits.
pub(super) const TEXT: usize = 4096;

/// The resource. `OTEL_RESOURCE_ATTRIBUTES` overrides our own attributes.
pub(super) fn resource(node: &Node) -> Resource {
    let said = node.resource.iter();
    Resource::builder_empty()
        .with_attributes(own(node))
        .with_attributes(said.map(|(key, value)| KeyValue::new(key.clone(), clean(value))))
        .build()
}

/// Sort key of a resource attribute: our own first, then those of `OTEL_RESOURCE_ATTRIBUTES` in their order.
pub(super) fn place(key: &str, node: &Node) -> (Option<usize>, Option<usize>) {
    let said = node.resource.iter().position(|(said, _)| said == key);
    (said, own(node).position(|own| own.key.as_str() == key))
}

fn own(node: &Node) -> impl Iterator<Item = KeyValue> {
    let optional = [
        (names::SERVICE_INSTANCE_ID, &node.instance),
        (names::HOST_ID, &node.host_id),
        (names::K8S_NODE_NAME, &node.kubernetes),
        (names::K8S_CLUSTER_NAME, &node.cluster),
    ];
    let known = |(name, value): (Name, &Option<String>)| value.as_deref().map(|it| text(name, it));
    let always = [
        word(names::SERVICE_NAME, "ipwatch"),
        text(names::SERVICE_VERSION, &node.version),
        text(names::HOST_NAME, &node.name),
    ];
    always.into_iter().chain(optional.into_iter().filter_map(known))
}

/// The instrumentation scope.
pub(super) fn scope(node: &Node) -> InstrumentationScope {
    InstrumentationScope::builder("ipwatch").with_version(node.version.clone()).build()
}

pub(super) fn netns(netns: &Netns, out: &mut Vec<KeyValue>) {
    out.extend(netns.cookie.map(|cookie| number(names::NETNS_COOKIE, cookie)));
    out.extend(netns.inode.map(|inode| number(names::NETNS_INODE, inode.into())));
    out.extend(netns.path.as_deref().map(|path| text(names::NETNS_PATH, path)));
}

pub(super) fn container(container: &Container, out: &mut Vec<KeyValue>) {
    out.extend(container.id.as_deref().map(|id| text(names::CONTAINER_ID, id)));
    out.extend(container.name.as_deref().map(|name| text(names::CONTAINER_NAME, name)));
    let runtime = container.runtime.as_deref();
    out.extend(runtime.map(|name| text(names::CONTAINER_RUNTIME_NAME, name)));
}

pub(super) fn pod(pod: &Pod, out: &mut Vec<KeyValue>) {
    out.extend(pod.namespace.as_deref().map(|name| text(names::K8S_NAMESPACE_NAME, name)));
    out.extend(pod.name.as_deref().map(|name| text(names::K8S_POD_NAME, name)));
    out.extend(pod.uid.as_deref().map(|uid| text(names::K8S_POD_UID, uid)));
}

/// The first holder by the names of the semantic conventions, and all holders as one list.
pub(super) fn holders(holders: &[Holder], out: &mut Vec<KeyValue>) {
    let Some(first) = holders.first() else { return };
    out.extend(first.pid.map(|pid| number(names::PROCESS_PID, pid.into())));
    out.extend(first.tid.map(|tid| number(names::THREAD_ID, tid.into())));
    if let Some(comm) = &first.comm {
        // `comm` is per thread in the kernel; that of the leader is the name of the process.
        out.push(text(names::THREAD_NAME, comm));
        out.push(text(names::PROCESS_COMMAND, comm));
    }
    let lines: Vec<String> = holders.iter().take(HOLDERS).map(holder).collect();
    out.push(list(names::HOLDERS, lines.iter().map(String::as_str)));
    let all = (holders.len() as u64).saturating_add(holders_unlisted(holders));
    if all > HOLDERS as u64 {
        out.push(number(names::HOLDERS_COUNT, all));
    }
}

fn holder(holder: &Holder) -> String {
    let mut line = holder.words();
    if let Some(place) = holder.mount_place() {
        line.push_str(&format!(" in {place}"));
    }
    if holder.exiting == Some(true) {
        line.push_str(", exiting");
    }
    line
}

/// A value from our own code. It needs no escaping.
pub(super) fn word(name: Name, value: &'static str) -> KeyValue {
    KeyValue::new(name.as_str(), value)
}

pub(super) fn text(name: Name, value: &str) -> KeyValue {
    KeyValue::new(name.as_str(), clean(value))
}

pub(super) fn flag(name: Name, value: bool) -> KeyValue {
    KeyValue::new(name.as_str(), value)
}

/// OTLP has signed integers only. A larger cookie is written as a decimal string.
pub(super) fn number(name: Name, value: u64) -> KeyValue {
    let digits = |_| Value::from(value.to_string());
    KeyValue::new(name.as_str(), i64::try_from(value).map_or_else(digits, Value::I64))
}

pub(super) fn list<'a>(name: Name, items: impl Iterator<Item = &'a str>) -> KeyValue {
    let items = items.map(|item| clean(item).into()).collect();
    KeyValue::new(name.as_str(), Value::Array(Array::String(items)))
}

/// Escapes control characters, because collectors print what they receive, and truncates. A cut quotation is closed.
pub(super) fn clean(value: &str) -> String {
    let cut = &value[..value.floor_char_boundary(TEXT)];
    let end = if cut.len() < value.len() { end_of_quotation(cut) } else { "" };
    escape(cut).into_owned() + end
}

pub(super) fn more(len: usize, most: usize) -> u32 {
    u32::try_from(len.saturating_sub(most)).unwrap_or(u32::MAX)
}

/// A trace id derived from names that are never reused.
pub(super) fn trace_id(parts: &[&str]) -> TraceId {
    TraceId::from_bytes(beginning(hash(parts)))
}

/// A span id derived from names that are never reused.
pub(super) fn span_id(parts: &[&str]) -> SpanId {
    SpanId::from_bytes(beginning(hash(parts)))
}

fn beginning<const N: usize>(hash: [u8; 32]) -> [u8; N] {
    std::array::from_fn(|at| hash[at])
}

fn hash(parts: &[&str]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
        // A separator: neither ids nor dates contain NUL.
        hash.update([0]);
    }
    hash.finalize().into()
}

/// Unix time in nanoseconds of an RFC 3339 date; 0 when it is none.
pub(super) fn nanos(date: &str) -> u64 {
    date.parse::<jiff::Timestamp>()
        .ok()
        .and_then(|stamp| u64::try_from(stamp.as_nanosecond()).ok())
        .unwrap_or(0)
}

/// The inverse of [`nanos`], for the SDK's types.
pub(super) fn moment(nanos: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos)
}
