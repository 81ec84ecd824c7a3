//! Compares a full page with the documentation.

use super::*;
use crate::contract::SourceState;
use crate::finding::Code;
use crate::metrics::text::{Format, write};
use crate::metrics::{
    AddressInfo, Counted, CriticalFinding, Extent, FindingGroup, LatencyReading, Role, Signal,
};

fn range(network: &str) -> IpamRange {
    IpamRange {
        store: "host-local".into(),
        network: network.into(),
        range: "10.0.3.2-10.0.3.254".into(),
        usable: 253,
        used: 251,
        leaked: Some(38),
        free: 2,
        held: Some(1),
        available: Some(1),
        path: None,
        time_left: Some(90),
    }
}

fn probe(event: &str, seen: Option<u64>) -> Probe {
    Probe {
        event: event.into(),
        rung: "tp_btf".into(),
        hook: "signal_generate".into(),
        status: "active".into(),
        why: None,
        seen,
        lost: None,
        canary: None,
        missed: None,
        attached_again: None,
    }
}

/// A reading with every field set.
fn full() -> Reading {
    let group = FindingGroup {
        code: Code::IpDuplicate,
        severity: Severity::Critical,
        status: Status::Firing,
        role: Role::Cause,
    };
    let critical = CriticalFinding {
        id: "k3f9aaaaaaaaaaaa".into(),
        code: Code::IpDuplicate,
        extent: Extent::Node,
        ip: Some("10.0.3.17".into()),
        network: None,
        namespace: Some("shop".into()),
        pod: Some("api-0".into()),
    };
    let address = AddressInfo {
        ip: "10.0.3.17".parse().unwrap(),
        netns: "4026532177".into(),
        namespace: "shop".into(),
        pod: "api-0".into(),
    };
    let source =
        SourceState { name: "netlink".into(), status: SourceStatus::Active, detail: String::new() };
    Reading {
        missed_events: [("process-fork", 2)].into(),
        node: "node-17".into(),
        kernel: "6.12".into(),
        whole: true,
        findings: [(group, 2)].into(),
        critical: Counted { told: vec![critical], omitted: 1 },
        opened: [((Code::IpDuplicate, Severity::Critical), 3)].into(),
        resolved: [(Code::IpDuplicate, 2)].into(),
        ranges: Counted { told: vec![(Extent::Node, range("cbr0"))], omitted: 0 },
        addresses: Some(Counted { told: vec![address], omitted: 4 }),
        probes: vec![probe("task-signalled", Some(7)), probe("netns-list", None)],
        refused: vec![crate::contract::Refused {
            source: "containerd".into(),
            name: crate::fact::Name::ContainerId,
            count: 3,
            last: String::new(),
        }],
        latency: LatencyReading { buckets: vec![(0.001, 2)], sum: 0.001, count: 2 },
        telemetry: [("findings", Signal { exported: 5, dropped: 6, waiting: 7 })].into(),
        failures: Some(1),
        not_kept: [(crate::map::NotKept { kind: "tasks", of: "users" }, 12)].into(),
        sources: vec![source],
        ..Reading::default()
    }
}

/// A page on which every value that others choose is `word`.
pub(crate) fn page_of(word: &str) -> String {
    let text = || word.to_owned();
    let mut reading = full();
    (reading.node, reading.kernel) = (text(), text());
    for critical in &mut reading.critical.told {
        let labels = [&mut critical.network, &mut critical.namespace, &mut critical.pod];
        labels.into_iter().for_each(|label| *label = Some(text()));
    }
    for (_, range) in &mut reading.ranges.told {
        (range.network, range.range) = (text(), text());
    }
    for address in reading.addresses.iter_mut().flat_map(|all| &mut all.told) {
        (address.namespace, address.pod) = (text(), text());
    }
    page(reading)
}

fn page(reading: Reading) -> String {
    let process = Process {
        cpu: Some(1.5),
        resident: Some(1 << 20),
        virtual_memory: Some(1 << 30),
        started: Some(1.7e9),
        fds: Some(50),
        max_fds: Some(1024),
    };
    let plugin = vec![("unanswered-timeout".to_owned(), 3)];
    let scrape = Scrape { reading: Arc::new(reading), process, refused: 9, plugin };
    write(scrape, Format::Plain).unwrap()
}

/// Type and labels, by name.
type Described = BTreeMap<String, (String, Vec<String>)>;

/// The metrics of a page.
fn served(page: &str) -> Described {
    let mut served = Described::new();
    for line in page.lines() {
        if let Some(typed) = line.strip_prefix("# TYPE ") {
            let (name, kind) = typed.split_once(' ').unwrap();
            assert!(
                served.insert(name.into(), (kind.into(), Vec::new())).is_none(),
                "{name} twice"
            );
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().unwrap();
            let family =
                ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let (_, labels) = served.get_mut(family.unwrap_or(name)).expect(line);
            let inner = line.split_once('{').map_or("", |(_, rest)| rest);
            *labels = inner
                .split("=\"")
                .filter_map(|part| part.rsplit([',', '"']).next())
                .filter(|name| !name.is_empty() && !name.contains('}') && *name != "le")
                .map(str::to_owned)
                .collect();
        }
    }
    served
}

/// The metrics in the documentation's table.
fn documented() -> Described {
    let text = include_str!("../../../../docs/metrics.md");
    let rows = text.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let name = cells.get(1)?.strip_prefix('`')?.strip_suffix('`')?;
        // The other tables list paths and alerts.
        (cells.len() == 7).then(|| {
            let labels = cells[3].split(", ").map(|label| label.trim_matches('`').to_owned());
            let labels = labels.filter(|label| !label.is_empty()).collect();
            (name.to_owned(), (cells[2].to_owned(), labels))
        })
    });
    rows.collect()
}

#[test]
fn the_documentation_has_every_metric_and_no_other() {
    let (served, documented) = (served(&page(full())), documented());
    for (name, as_served) in &served {
        assert_eq!(documented.get(name), Some(as_served), "{name} in docs/metrics.md");
    }
    for name in documented.keys() {
        assert!(served.contains_key(name), "docs/metrics.md has {name}, which is not served");
    }
}

#[test]
fn a_reading_is_told_as_it_is() {
    let page = page(full());
    for line in [
        "ipwatch_findings{code=\"ip-duplicate\",severity=\"critical\",status=\"firing\",role=\"cause\"} 2",
        "ipwatch_critical_finding_info{id=\"k3f9aaaaaaaaaaaa\",code=\"ip-duplicate\",scope=\"node\",ip=\"10.0.3.17\",network=\"\",namespace=\"shop\",pod=\"api-0\",node=\"node-17\"} 1",
        "ipwatch_address_info{ip=\"10.0.3.17\",netns=\"4026532177\",namespace=\"shop\",pod=\"api-0\",node=\"node-17\"} 1",
        "ipwatch_ipam_range_free{store=\"host-local\",network=\"cbr0\",range=\"10.0.3.2-10.0.3.254\",scope=\"node\"} 2",
        "ipwatch_findings_opened_total{code=\"ip-duplicate\",severity=\"critical\"} 3",
        "ipwatch_source_status{source=\"netlink\",status=\"active\"} 1",
        "ipwatch_source_status{source=\"netlink\",status=\"down\"} 0",
        "ipwatch_probe_status{event=\"netns-list\",rung=\"tp_btf\",status=\"active\"} 1",
        "ipwatch_probe_status{event=\"netns-list\",rung=\"tp_btf\",status=\"missing\"} 0",
        "ipwatch_probe_events_lost_total{event=\"task-signalled\"} 0",
        "ipwatch_refused_total{source=\"containerd\",name=\"container-id\"} 3",
        "ipwatch_telemetry_dropped_total{signal=\"findings\"} 6",
        "ipwatch_event_latency_seconds_bucket{le=\"+Inf\"} 2",
        "ipwatch_metrics_omitted{metric=\"ipwatch_address_info\"} 4",
        "ipwatch_metrics_omitted{metric=\"ipwatch_critical_finding_info\"} 1",
        "ipwatch_metrics_refused_total 9",
        "ipwatch_missed_events_total{event=\"process-fork\"} 2",
    ] {
        assert!(page.lines().any(|told| told == line), "{line}\nis not in\n{page}");
    }
    assert!(!page.contains("ipwatch_probe_events_lost_total{event=\"netns-list\"}"));
}

#[test]
fn what_has_a_state_is_in_exactly_one() {
    let told = |all, current| states(all, current).collect::<Vec<_>>();
    assert_eq!(told(&["up", "down"], "down"), [("up", 0), ("down", 1)]);
    assert_eq!(told(&["up"], "sideways"), [("up", 0), ("sideways", 1)], "one that is not listed");
    use SourceStatus::{Active, Degraded, Disabled, Down};
    for status in [Active, Degraded, Down, Disabled] {
        assert!(SOURCE_STATES.contains(&standing(status)));
    }
}

#[test]
fn a_pool_of_the_cluster_is_marked_as_one() {
    let ranges = vec![(Extent::Cluster, range("ippool"))];
    let page = page(Reading { ranges: Counted { told: ranges, omitted: 0 }, ..full() });
    assert!(page.contains("network=\"ippool\",range=\"10.0.3.2-10.0.3.254\",scope=\"cluster\"} 2"));
}

#[test]
fn addresses_are_not_told_unless_asked_for() {
    let page = page(Reading { addresses: None, ..full() });
    assert!(!page.contains("ipwatch_address_info"));
}

#[test]
fn two_ranges_of_one_name_are_one_series_and_a_count() {
    let long = "x".repeat(500);
    let ranges = ["1", "2"].map(|end| (Extent::Node, range(&format!("{long}{end}")))).into();
    let page = page(Reading { ranges: Counted { told: ranges, omitted: 3 }, ..full() });
    let series = page.lines().filter(|line| line.starts_with("ipwatch_ipam_range_free{")).count();
    assert_eq!(series, 1);
    assert!(page.contains("ipwatch_metrics_omitted{metric=\"ipwatch_ipam_range_free\"} 4"));
}
