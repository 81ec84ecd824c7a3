//! A change of a finding as an OTLP log record with the ids of the span of the same change. Pure.
//!
//! This builds the OTLP message, not the SDK's `SdkLogRecord`, whose constructor is private to its crate
//! (opentelemetry_sdk 0.33, `SdkLogRecord::new`): only the logger of a provider can create one.

use opentelemetry_proto::tonic::Attributes;
use opentelemetry_proto::tonic::common::v1::{AnyValue, any_value::Value};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, SeverityNumber};

use super::attributes::{clean, nanos};
use super::journal;
use super::span::{SAMPLED, attributes, ids, moment};
use crate::finding::{Change, ChangeKind, Severity};

/// The log record of a change. A resolved finding has severity INFO, whatever it had before.
pub(super) fn record(change: &Change) -> LogRecord {
    let finding = &change.finding;
    let (at, verb) = moment(change);
    let (trace_id, span_id) = ids(change);
    let severity = match finding.severity {
        _ if change.change == ChangeKind::Resolved => SeverityNumber::Info,
        Severity::Critical => SeverityNumber::Error,
        Severity::Warning => SeverityNumber::Warn,
        Severity::Info => SeverityNumber::Info,
    };
    let about = journal::about(finding).map(|about| format!(" {about}")).unwrap_or_default();
    let body = format!("{verb}: {}{about}: {}", finding.code, clean(&finding.impact));
    LogRecord {
        time_unix_nano: nanos(at),
        observed_time_unix_nano: nanos(at),
        severity_number: severity as i32,
        severity_text: journal::severity(finding.severity).to_owned(),
        body: Some(AnyValue { value: Some(Value::StringValue(body)) }),
        attributes: Attributes::from(attributes(change)).0,
        flags: SAMPLED.to_u8().into(),
        trace_id: trace_id.to_bytes().to_vec(),
        span_id: span_id.to_bytes().to_vec(),
        event_name: "ipwatch.finding".to_owned(),
        ..LogRecord::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sinks::span::span;
    use crate::sinks::tests::{opened, resolved};
    use opentelemetry_proto::tonic::trace::v1::Span;

    #[test]
    fn a_record_points_at_the_span_of_the_same_change() {
        let change = opened("a");
        let span = Span::from(span(&change, &[]));
        let record = record(&change);
        assert_eq!((record.trace_id, record.span_id), (span.trace_id, span.span_id));
        assert_eq!(record.time_unix_nano, span.end_time_unix_nano);
        assert_eq!(record.attributes, span.attributes);
    }

    #[test]
    fn severity_is_that_of_the_finding_until_it_is_over() {
        assert_eq!(record(&opened("a")).severity_number, SeverityNumber::Warn as i32);
        assert_eq!(record(&resolved("a")).severity_number, SeverityNumber::Info as i32);
        let mut hostile = opened("a");
        hostile.finding.impact = "\u{1b}[2J".to_owned();
        let Some(Value::StringValue(body)) = record(&hostile).body.unwrap().value else { panic!() };
        assert_eq!(body, "opened: ip-held-by-stuck-process 10.0.3.17: \\x1b[2J");
    }
}
