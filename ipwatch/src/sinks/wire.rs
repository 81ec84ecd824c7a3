//! The requests that collectors get, from the SDK's types: by opentelemetry-proto's own conversion, except for
//! what stands here. Pure.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use opentelemetry_sdk::trace::SpanData;

use super::metrics::{Snapshot, metrics};
use super::queue::Kind;
use super::span::SAMPLED;
use super::{Node, attributes};

/// Who sends, and by what: the same in every request.
#[derive(Debug)]
pub(super) struct Origin {
    resource: Option<Resource>,
    scope: Option<InstrumentationScope>,
}

impl Origin {
    pub(super) fn new(node: &Node) -> Self {
        let mut resource = Resource::from(&attributes::resource(node));
        // The SDK keeps them in a HashMap, whose order is another one at each start.
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
        let one = ResourceSpans { resource, scope_spans, ..ResourceSpans::default() };
        ExportTraceServiceRequest { resource_spans: vec![one] }
    }

    pub(super) fn logs(&self, log_records: Vec<LogRecord>) -> ExportLogsServiceRequest {
        let scope = self.scope.clone();
        let scope_logs = vec![ScopeLogs { scope, log_records, ..ScopeLogs::default() }];
        let resource = self.resource.clone();
        let one = ResourceLogs { resource, scope_logs, ..ResourceLogs::default() };
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
            ResourceMetrics { resource, scope_metrics, ..ResourceMetrics::default() }
        };
        ExportMetricsServiceRequest { resource_metrics: snapshots.iter().map(of).collect() }
    }
}

/// The message of a span. Two fields are not as opentelemetry-proto 0.33 writes them (`transform::trace`), so that
/// collectors get what they always got.
fn message(kind: Kind, span: SpanData) -> Span {
    let mut span = Span::from(span);
    for link in &mut span.links {
        // It would say for certain that the other span is this process's. The daemon before a restart may have sent it.
        link.flags = SAMPLED.to_u8().into();
    }
    if matches!(kind, Kind::Teardowns | Kind::Tenures) {
        // They can neither fail nor succeed: no status, where it would write an empty one.
        span.status = None;
    }
    span
}
