pub(super) mod apiserver;
pub(crate) mod hostile;

use std::collections::BTreeSet;

use crate::finding::{Change, ChangeKind, Code, Finding, Status, Subject};
use crate::testing::finding;

/// A finding as it opens, with everything it can carry.
pub(crate) fn opened(id: &str) -> Change {
    Change::new(ChangeKind::Opened, finding(id))
}

/// The texts about the finding in the journal and in an Event.
pub(crate) fn sentences(finding: Finding) -> [String; 2] {
    let event = super::events::message(&finding);
    [super::journal::sentence(&Change::new(ChangeKind::Opened, finding)), event]
}

/// The same finding, firing.
pub(super) fn updated(id: &str) -> Change {
    let mut change = opened(id);
    change.change = ChangeKind::Updated;
    change.finding.status = Status::Firing;
    change.finding.firing_at = Some("2026-01-01T00:00:08.000Z".to_owned());
    change
}

/// The same finding, resolved.
pub(super) fn resolved(id: &str) -> Change {
    let mut change = updated(id);
    change.change = ChangeKind::Resolved;
    change.finding.status = Status::Resolved;
    change.finding.resolved_at = Some("2026-01-01T00:01:00.000Z".to_owned());
    change
}

/// A change with every optional field set.
pub(super) fn full() -> Change {
    let mut change = resolved("a");
    let finding = &mut change.finding;
    (finding.preexisting, finding.caused_by) = (true, Some("b".to_owned()));
    let at = "2026-01-01T00:00:00.000Z".to_owned();
    finding.acked = Some(crate::finding::Ack { at, uid: Some(1000), until: None, note: None });
    (finding.subject.network, finding.holders[0].tid) = (Some("pods".to_owned()), Some(813));
    finding.holders = std::iter::repeat_n(finding.holders[0].clone(), 20).collect();
    let container = finding.subject.container.as_mut().unwrap();
    (container.name, container.runtime) = (Some("web".to_owned()), Some("containerd".to_owned()));
    finding.subject.netns.as_mut().unwrap().path = Some("/run/netns/a".to_owned());
    change
}

/// A finding about two reservations.
pub(crate) fn of_two_reservations(id: &str) -> Change {
    let mut change = opened(id);
    let reserved = |ip: &str| crate::contract::Reserved {
        ip: ip.parse().unwrap(),
        key: format!("/var/lib/cni/networks/pods/{ip}"),
        container: None,
        pod: None,
    };
    change.finding.code = Code::IpamReservationLeaked;
    change.finding.holders.clear();
    change.finding.subject = Subject {
        network: Some("pods".to_owned()),
        reservations: vec![reserved("10.0.3.17"), reserved("10.0.3.18")],
        reservations_omitted: 3,
        ..Subject::default()
    };
    change
}

/// The names of all attributes of a change, a run, a teardown and a tenure with every optional field set.
pub(super) fn everything_sent() -> BTreeSet<String> {
    use super::{attributes, call, log_record, metrics, span, teardown, tenure};
    use opentelemetry::KeyValue;

    let change = full();
    let mut run = call::tests::run(7, None);
    run.error = Some("no IP".to_owned());
    run.entry.call.netns_path = Some("/run/netns/a".to_owned());
    run.entry.ended.as_mut().unwrap().signal = Some(9);

    let held = tenure::tests::held(Some("2026-01-01T00:01:00.000Z"));
    let links = vec![tenure::link(&held.tenure, "boot"), span::to_finding(&change.finding)];
    let spans = [
        span::span(&change, &links),
        span::span(&updated("a"), &[]),
        span::span(&of_two_reservations("b"), &[]),
        call::span(&run),
        tenure::span(&held),
        teardown::span(&teardown::tests::teardown(Some(30), true)),
    ];
    let of = |pairs: Vec<KeyValue>| pairs.into_iter().map(|pair| pair.key.to_string());
    let mut all: BTreeSet<String> = BTreeSet::new();
    for span in spans {
        all.extend(of(span.attributes));
        all.extend(span.events.into_iter().flat_map(|event| of(event.attributes)));
        all.extend(span.links.into_iter().flat_map(|link| of(link.attributes)));
    }
    let record = log_record::record(&change).attributes;
    let points = metrics::tests::points(&metrics::tests::snapshot());
    all.extend(record.into_iter().chain(points).map(|pair| pair.key));
    all.extend(attributes::resource(&node()).iter().map(|(key, _)| key.to_string()));
    all
}

pub(super) fn node() -> super::Node {
    super::Node {
        name: "node-17".into(),
        host_id: Some("c1238f1f0bcf4fc487d067fa2f3f0140".into()),
        kubernetes: Some("node-17.example".into()),
        cluster: Some("production".into()),
        instance: Some("5d6a7c3e-0b1f-4f8e-9c52-1f0f4a2b7d11".into()),
        version: "1.2.3".into(),
        resource: Vec::new(),
    }
}
