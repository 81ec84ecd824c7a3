//! Our counters as OTLP metrics. Pure.
//!
//! This builds OTLP messages. The SDK's metric data (opentelemetry_sdk 0.33, `metrics::data`) has private fields that
//! only its own instruments and readers fill. They would keep a second copy of every counter.

use std::collections::BTreeMap;

use opentelemetry::KeyValue;
use opentelemetry_proto::tonic::Attributes;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Metric, NumberDataPoint, Sum, metric::Data,
    number_data_point::Value,
};

use super::attributes::{text, word};
use super::queue::{Counters, Kind};
use super::{journal, names};
use crate::clock::Calendar;
use crate::contract::Probe;
use crate::fact::BootNs;
use crate::finding::{Code, Finding, Severity, Status};

/// The counters at one moment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Snapshot {
    /// When counting started, in nanoseconds since the epoch.
    pub since: u64,
    /// When the snapshot was taken, in nanoseconds since the epoch.
    pub at: u64,
    /// Open findings.
    pub findings: BTreeMap<(Code, Severity, Status), u64>,
    /// For each probe, the events it saw and those it lost.
    pub probes: Vec<(String, u64, u64)>,
    /// Telemetry exported and dropped before this snapshot.
    pub telemetry: Counters,
}

impl Snapshot {
    /// A snapshot at `times.1` of what was counted since the daemon started at `times.0`.
    #[must_use]
    pub fn new(
        times: (BootNs, BootNs),
        calendar: Calendar,
        findings: &[Finding],
        probes: &[Probe],
        telemetry: Counters,
    ) -> Self {
        let stamp = |at: BootNs| {
            u64::try_from(i128::from(at.0) + i128::from(calendar.wall_offset)).unwrap_or(0)
        };
        let mut by_code = BTreeMap::new();
        for Finding { code, severity, status, .. } in findings {
            *by_code.entry((*code, *severity, *status)).or_default() += 1;
        }
        let counted = |probe: &Probe| {
            let lost = probe.lost.unwrap_or_default();
            probe.seen.map(|seen| (probe.event.clone(), seen, lost))
        };
        Self {
            since: stamp(times.0),
            at: stamp(times.1),
            findings: by_code,
            probes: probes.iter().filter_map(counted).collect(),
            telemetry,
        }
    }

    /// Approximate size in memory.
    pub(super) fn size(&self) -> usize {
        let names: usize = self.probes.iter().map(|(name, ..)| name.len() + 48).sum();
        size_of::<Self>() + self.findings.len() * 32 + names
    }
}

pub(super) fn metrics(snapshot: &Snapshot) -> Vec<Metric> {
    let point = |value: u64, attributes: Vec<KeyValue>| NumberDataPoint {
        attributes: Attributes::from(attributes).0,
        start_time_unix_nano: snapshot.since,
        time_unix_nano: snapshot.at,
        value: Some(Value::AsInt(i64::try_from(value).unwrap_or(i64::MAX))),
        ..NumberDataPoint::default()
    };
    let findings = snapshot.findings.iter().map(|((code, severity, status), count)| {
        let attributes = vec![
            word(names::FINDING_CODE, code.as_str()),
            word(names::FINDING_SEVERITY, journal::severity(*severity)),
            word(names::FINDING_STATUS, journal::status(*status)),
        ];
        point(*count, attributes)
    });
    let of_kind = |value: fn(&Counters, Kind) -> u64| {
        let one = move |kind: Kind| {
            let attributes = vec![word(names::TELEMETRY_KIND, kind.as_str())];
            point(value(&snapshot.telemetry, kind), attributes)
        };
        Kind::ALL.into_iter().map(one).collect::<Vec<_>>()
    };
    let of_probe = |value: fn(&(String, u64, u64)) -> u64| {
        let one = |probe: &(String, u64, u64)| {
            point(value(probe), vec![text(names::PROBE_EVENT, &probe.0)])
        };
        snapshot.probes.iter().map(one).collect::<Vec<_>>()
    };
    vec![
        gauge("ipwatch.findings", "{finding}", "Findings that are open.", findings.collect()),
        sum(
            "ipwatch.telemetry.exported",
            "{item}",
            "Items that the collector accepted.",
            of_kind(|counters, kind| counters.of(kind).exported),
        ),
        sum(
            "ipwatch.telemetry.dropped",
            "{item}",
            "Items that were dropped before the collector accepted them.",
            of_kind(|counters, kind| counters.of(kind).dropped),
        ),
        sum("ipwatch.probe.seen", "{event}", "Events that a probe saw.", of_probe(|probe| probe.1)),
        sum(
            "ipwatch.probe.lost",
            "{event}",
            "Events that a probe saw and could not report.",
            of_probe(|probe| probe.2),
        ),
    ]
}

fn gauge(name: &str, unit: &str, what: &str, data_points: Vec<NumberDataPoint>) -> Metric {
    metric(name, unit, what, Data::Gauge(Gauge { data_points }))
}

fn sum(name: &str, unit: &str, what: &str, data_points: Vec<NumberDataPoint>) -> Metric {
    let temporality = AggregationTemporality::Cumulative as i32;
    let sum = Sum { data_points, aggregation_temporality: temporality, is_monotonic: true };
    metric(name, unit, what, Data::Sum(sum))
}

fn metric(name: &str, unit: &str, what: &str, data: Data) -> Metric {
    Metric {
        name: name.to_owned(),
        description: what.to_owned(),
        unit: unit.to_owned(),
        data: Some(data),
        ..Metric::default()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use opentelemetry_proto::tonic::common::v1::KeyValue;

    use super::*;

    pub(in super::super) fn snapshot() -> Snapshot {
        let key = (Code::IpDuplicate, Severity::Critical, Status::Firing);
        Snapshot {
            since: 1,
            at: 2,
            findings: [(key, 3)].into(),
            probes: vec![("netns-created".to_owned(), 7, 1)],
            telemetry: Counters::default(),
        }
    }

    fn data(metric: &Metric) -> &[NumberDataPoint] {
        match metric.data.as_ref().unwrap() {
            Data::Gauge(gauge) => &gauge.data_points,
            Data::Sum(sum) => &sum.data_points,
            other => panic!("{other:?}"),
        }
    }

    /// Every attribute of every point.
    pub(in super::super) fn points(snapshot: &Snapshot) -> Vec<KeyValue> {
        let all = metrics(snapshot);
        all.iter().flat_map(data).flat_map(|point| point.attributes.clone()).collect()
    }

    #[test]
    fn every_metric_is_documented() {
        let page = include_str!("../../../docs/telemetry.md");
        let (_, table) = page.split_once("## Metrics").unwrap();
        for metric in metrics(&snapshot()) {
            assert!(table.contains(&format!("| `{}` |", metric.name)), "{}", metric.name);
        }
    }

    #[test]
    fn a_finding_is_counted_by_code_severity_and_status() {
        let all = metrics(&snapshot());
        let findings = data(&all[0]);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].value, Some(Value::AsInt(3)));
        assert_eq!(findings[0].attributes[0], (&text(names::FINDING_CODE, "ip-duplicate")).into());
        assert_eq!((findings[0].start_time_unix_nano, findings[0].time_unix_nano), (1, 2));
        // One point for each kind, even if its count is 0: a counter that appears late does not show its first
        // increase.
        assert_eq!(data(&all[2]).len(), Kind::ALL.len());
    }
}
