//! Builds OTLP requests from the SDK's types with the conversions of opentelemetry-proto. Pure.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use opentelemetry_sdk::trace::SpanData;
use opentelemetry_semantic_conventions::SCHEMA_URL;

use super::metrics::{Snapshot, metrics};
use super::queue::Kind;
use super::span::SAMPLED;
use super::{Node, attributes};

/// Resource and instrumentation scope, which are the same in every request.
#[derive(Debug)]
pub(super) struct Origin {
    resource: Option<Resource>,
    scope: Option<InstrumentationScope>,
}

impl Origin {
    pub(super) fn new(node: &Node) -> Self {
        let mut resource = Resource::from(&attributes::resource(node));
        // The SDK keeps them in a HashMap, whose order differs at each start.
        resource.attributes.sort_by_key(|pair| attributes::place(&pair.key, node));
        let scope = InstrumentationScope::from((attributes::scope(node), None));
        Self { resource: Some(resource), scope: Some(scope) }
    }

    /// Spans of one kind.
    pub(super) fn traces(&self, kind: Kind, spans: Vec<SpanData>) -> ExportTraceServiceRequest {
        let scope = self.scope.clone();
        let spans = spans.into_iter().map(|span| message(kind, span)).collect();
        let scope_spans = vec![ScopeSpans { scope, spans, ..ScopeSpans::default() }];
        let resource = self.resource.clone();
        let one = ResourceSpans { resource, scope_spans, schema_url: SCHEMA_URL.to_owned() };
        ExportTraceServiceRequest { resource_spans: vec![one] }
    }

    pub(super) fn logs(&self, log_records: Vec<LogRecord>) -> ExportLogsServiceRequest {
        let scope = self.scope.clone();
        let scope_logs = vec![ScopeLogs { scope, log_records, ..ScopeLogs::default() }];
        let resource = self.resource.clone();
        let one = ResourceLogs { resource, scope_logs, schema_url: SCHEMA_URL.to_owned() };
        ExportLogsServiceRequest { resource_logs: vec![one] }
    }

    pub(super) fn metrics(
        &self,
        snapshots: &[impl AsRef<Snapshot>],
    ) -> ExportMetricsServiceRequest {
        let of = |snapshot: &_| {
            let (scope, metrics) = (self.scope.clone(), metrics(AsRef::as_ref(snapshot)));
            let scope_metrics = vec![ScopeMetrics { scope, metrics, ..ScopeMetrics::default() }];
            let resource = self.resource.clone();
            ResourceMetrics { resource, scope_metrics, schema_url: SCHEMA_URL.to_owned() }
        };
        ExportMetricsServiceRequest { resource_metrics: snapshots.iter().map(of).collect() }
    }
}

/// Converts a span. Two fields differ from the conversion of opentelemetry-proto 0.33 (`transform::trace`), so that
/// the bytes stay the same as in earlier versions.
fn message(kind: Kind, span: SpanData) -> Span {
    let mut span = Span::from(span);
    for link in &mut span.links {
        // The conversion marks the linked context as known to be local. It may have been sent before a restart.
        link.flags = SAMPLED.to_u8().into();
    }
    if matches!(kind, Kind::Teardowns | Kind::Tenures) {
        // These have no status. The conversion writes an empty message.
        span.status = None;
    }
    span
}
