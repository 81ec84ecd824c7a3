//! Every metric, and how a reading becomes its samples. `docs/metrics.md` has the same list; a test compares the two.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::process::Process;
use super::reading::{Extent, Reading};
use super::text::{Family, Fill, Kind, Labels, Page, label};
use crate::contract::{IpamRange, Probe};
use crate::fact::SourceStatus;
use crate::finding::{Code, Severity, Status};

const fn counter(name: &'static str, help: &'static str) -> Family {
    Family { name, kind: Kind::Counter, help }
}

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family { name, kind: Kind::Gauge, help }
}

const BUILD_INFO: Family = gauge("ipwatch_build_info", "Version of ipwatch, on which node");
const READY: Family = gauge(
    "ipwatch_ready",
    "1 once everything has been read; before that, what is missing is unknown",
);
const FINDINGS: Family = gauge(
    "ipwatch_findings",
    "Open findings: causes, consequences of other findings, and acknowledged ones",
);
const CRITICAL: Family = gauge(
    "ipwatch_critical_finding_info",
    "1 for each finding that pages: critical, firing, not a consequence and not acknowledged",
);
const OPENED: Family =
    counter("ipwatch_findings_opened_total", "Findings that opened since the daemon started");
const RESOLVED: Family = counter(
    "ipwatch_findings_resolved_total",
    "Findings that were resolved since the daemon started",
);
const RANGE_USABLE: Family =
    gauge("ipwatch_ipam_range_usable", "Pods that fit into a network on this node");
const RANGE_USED: Family = gauge("ipwatch_ipam_range_used", "IPs of it that are reserved");
const RANGE_FREE: Family = gauge("ipwatch_ipam_range_free", "Pods that can still be started in it");
const RANGE_LEAKED: Family =
    gauge("ipwatch_ipam_range_leaked", "IPs of it that are reserved for containers that are gone");
const RANGE_HELD: Family =
    gauge("ipwatch_ipam_range_held", "IPs of it that are not reserved but are up on this node");
const RANGE_AVAILABLE: Family = gauge(
    "ipwatch_ipam_range_available",
    "Pods that can still be started with an IP that is not held",
);
const RANGE_LEFT: Family = gauge(
    "ipwatch_ipam_range_time_left_seconds",
    "Time until no IP is left, at the rate of the last minutes; absent if the free IPs do not decrease",
);
const ADDRESS: Family =
    gauge("ipwatch_address_info", "1 for each IP of a pod that is up in a network namespace");
const SOURCE: Family =
    gauge("ipwatch_source_status", "1 for the current status of the source, 0 for the others");
const PROBE: Family =
    gauge("ipwatch_probe_status", "1 for the current status of the kernel event, 0 for the others");
/// The values that [`standing`] returns.
const SOURCE_STATES: [&str; 4] = ["active", "degraded", "down", "disabled"];
/// The values of `status` of a [`Probe`].
const PROBE_STATES: [&str; 4] = ["active", "fallback", "degraded", "missing"];
const EVENTS: Family = counter("ipwatch_probe_events_total", "Events that were seen");
const EVENTS_LOST: Family = counter(
    "ipwatch_probe_events_lost_total",
    "Events that were not reported: the buffer was full, or one party caused too many",
);
const MISSED: Family = counter(
    "ipwatch_probe_runs_missed_total",
    "Events that a BPF program missed because it was already running; updated every ten seconds",
);
const MISSED_EVENTS: Family = counter(
    "ipwatch_missed_events_total",
    "Events that no probe reported: a sweep of all tasks found their effect",
);
const LATENCY: Family = Family {
    name: "ipwatch_event_latency_seconds",
    kind: Kind::Histogram,
    help: "Time from an event in the kernel to the update of the map",
};
const FACTS: Family = counter("ipwatch_facts_total", "Facts that the map processed");
const RESYNCS: Family = counter(
    "ipwatch_resyncs_total",
    "How often everything was read again because events were lost",
);
const NETNS_RESYNCS: Family = counter(
    "ipwatch_netns_resyncs_total",
    "How often events of one network namespace were lost or held back, so that it is read again",
);
const NOT_TAKEN: Family = counter(
    "ipwatch_refused_total",
    "Invalid names that a source reported, and runs of CNI plugins that are not trusted",
);
const PLUGIN: Family = counter(
    "ipwatch_ipam_plugin_total",
    "What ipwatch-ipam did and could not do, since it was installed",
);
const PUBLISHED: Family = counter(
    "ipwatch_telemetry_published_total",
    "Changes of findings that were handed to the sinks",
);
const EXPORTED: Family =
    counter("ipwatch_telemetry_exported_total", "Items that the receiver accepted, by signal");
const DROPPED: Family =
    counter("ipwatch_telemetry_dropped_total", "Items that were dropped, by signal");
const WAITING: Family = gauge("ipwatch_telemetry_waiting", "Items in the queue");
const FAILURES: Family = counter("ipwatch_telemetry_failures_total", "Failed attempts to send");
const LEDGER_WAITING: Family =
    gauge("ipwatch_ledger_rows_waiting", "Rows that are queued for the disk");
const LEDGER_LOST: Family =
    counter("ipwatch_ledger_rows_lost_total", "Rows that were lost because the queue was full");
const NETNS: Family = gauge("ipwatch_netns", "Network namespaces in the map");
const ADDRESSES: Family = gauge("ipwatch_addresses", "Addresses in the map");
const TASKS: Family = gauge("ipwatch_tasks", "Tasks in the map: those outside the host's netns");
const NEIGHBOURS: Family = gauge("ipwatch_neighbours", "Neighbour entries in the map");
const BEYOND: Family = gauge(
    "ipwatch_beyond_bounds",
    "Addresses, links, neighbours, routes and VLANs that are not kept because they exceed a limit",
);
const NOT_KEPT: Family = gauge(
    "ipwatch_not_kept",
    "What the map does not keep for want of room, by kind and by whose it is",
);
const UNRECORDED: Family = counter(
    "ipwatch_tenures_unrecorded_total",
    "Tenures without a row in the history: their network namespace or its user has more than is kept",
);
const FORGOTTEN: Family = counter(
    "ipwatch_claims_forgotten_total",
    "Claims of IPs that were evicted because the table was full",
);
const OMITTED: Family =
    gauge("ipwatch_metrics_omitted", "Series of a metric that are left out because of its limit");
const REFUSED: Family = counter(
    "ipwatch_metrics_refused_total",
    "Scrapes that were rejected because all connections were in use",
);
const CPU: Family = counter("process_cpu_seconds_total", "User and system CPU time of the daemon");
const RESIDENT: Family = gauge("process_resident_memory_bytes", "Resident memory of the daemon");
const VIRTUAL: Family = gauge("process_virtual_memory_bytes", "Virtual memory of the daemon");
const STARTED: Family =
    gauge("process_start_time_seconds", "When the daemon started, since the Unix epoch");
const FDS: Family = gauge("process_open_fds", "Open file descriptors of the daemon");
const MAX_FDS: Family = gauge("process_max_fds", "Maximum number of open file descriptors");

/// Everything that one scrape contains.
#[derive(Debug)]
pub(super) struct Scrape {
    pub(super) reading: Arc<Reading>,
    pub(super) process: Process,
    /// Clients that found no free connection.
    pub(super) refused: u64,
    /// What `ipwatch-ipam` has counted, by event; empty if it has not been used.
    pub(super) plugin: Vec<(String, u64)>,
}

impl Fill for Scrape {
    fn fill(&self, page: &mut Page<'_>) -> fmt::Result {
        let mut omitted = BTreeMap::new();
        self.findings(page, &mut omitted)?;
        self.ranges(page, &mut omitted)?;
        self.addresses(page, &mut omitted)?;
        self.sight(page)?;
        self.losses(page)?;
        self.sizes(page)?;
        let omitted = omitted
            .into_iter()
            .map(|(name, count): (&str, u64)| (vec![("metric", name.to_owned())], count));
        page.family(&OMITTED, omitted)?;
        page.single(&REFUSED, self.refused)?;
        let plugin =
            self.plugin.iter().map(|(event, count)| (vec![("event", event.clone())], *count));
        page.family(&PLUGIN, plugin)?;
        self.own(page)
    }
}

/// The value of one metric for a range.
type Column = fn(&IpamRange) -> u64;
/// The value of one metric for a range, if it is known.
type OptionalColumn = fn(&IpamRange) -> Option<u64>;
/// Number of series left out, by metric.
type Omitted = BTreeMap<&'static str, u64>;

impl Scrape {
    fn findings(&self, page: &mut Page<'_>, omitted: &mut Omitted) -> fmt::Result {
        let reading = &self.reading;
        let build = vec![
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("node", label(&reading.node)),
            ("kernel", label(&reading.kernel)),
        ];
        page.family(&BUILD_INFO, [(build, 1u64)])?;
        page.single(&READY, reading.whole)?;
        let groups = reading.findings.iter().map(|(group, count)| {
            let labels = vec![
                ("code", group.code.as_str().to_owned()),
                ("severity", severity(group.severity).to_owned()),
                ("status", status(group.status).to_owned()),
                ("role", group.role.as_str().to_owned()),
            ];
            (labels, *count)
        });
        page.family(&FINDINGS, groups)?;
        let told = reading.critical.told.iter().map(|finding| {
            let text = |text: &Option<String>| label(text.as_deref().unwrap_or_default());
            let labels = vec![
                ("id", finding.id.clone()),
                ("code", finding.code.as_str().to_owned()),
                ("scope", finding.extent.as_str().to_owned()),
                ("ip", text(&finding.ip)),
                ("network", text(&finding.network)),
                ("namespace", text(&finding.namespace)),
                ("pod", text(&finding.pod)),
                ("node", label(&reading.node)),
            ];
            (labels, 1u64)
        });
        let doubled = page.family(&CRITICAL, told)?;
        omitted.insert(CRITICAL.name, reading.critical.omitted + doubled);
        let code = |code: &Code| ("code", code.as_str().to_owned());
        let opened = reading.opened.iter().map(|((of, bad), count)| {
            (vec![code(of), ("severity", severity(*bad).to_owned())], *count)
        });
        page.family(&OPENED, opened)?;
        let resolved = reading.resolved.iter().map(|(of, count)| (vec![code(of)], *count));
        page.family(&RESOLVED, resolved).map(|_| ())
    }

    fn ranges(&self, page: &mut Page<'_>, omitted: &mut Omitted) -> fmt::Result {
        let ranges = &self.reading.ranges;
        let labels = |(extent, range): &(Extent, IpamRange)| -> Labels {
            vec![
                ("store", label(&range.store)),
                ("network", label(&range.network)),
                ("range", label(&range.range)),
                ("scope", extent.as_str().to_owned()),
            ]
        };
        let columns: [(&Family, Column); 3] = [
            (&RANGE_USABLE, |range| range.usable),
            (&RANGE_USED, |range| range.used),
            (&RANGE_FREE, |range| range.free),
        ];
        for (family, value) in columns {
            let samples = ranges.told.iter().map(|told| (labels(told), value(&told.1)));
            let doubled = page.family(family, samples)?;
            omitted.insert(family.name, ranges.omitted + doubled);
        }
        // An unknown value has no series.
        let optional: [(&Family, OptionalColumn); 3] = [
            (&RANGE_LEAKED, |range| range.leaked),
            (&RANGE_HELD, |range| range.held),
            (&RANGE_AVAILABLE, |range| range.available),
        ];
        for (family, value) in optional {
            let told = ranges.told.iter();
            let samples = told.filter_map(|told| Some((labels(told), value(&told.1)?)));
            let doubled = page.family(family, samples)?;
            omitted.insert(family.name, ranges.omitted + doubled);
        }
        let left = ranges.told.iter().filter_map(|told| Some((labels(told), told.1.time_left?)));
        page.family(&RANGE_LEFT, left).map(|_| ())
    }

    fn addresses(&self, page: &mut Page<'_>, omitted: &mut Omitted) -> fmt::Result {
        let Some(addresses) = &self.reading.addresses else { return Ok(()) };
        let node = label(&self.reading.node);
        let samples = addresses.told.iter().map(|address| {
            let labels = vec![
                ("ip", address.ip.to_string()),
                ("netns", address.netns.clone()),
                ("namespace", label(&address.namespace)),
                ("pod", label(&address.pod)),
                ("node", node.clone()),
            ];
            (labels, 1u64)
        });
        // One IP twice in one netns is one series; it does not count as left out.
        page.family(&ADDRESS, samples)?;
        omitted.insert(ADDRESS.name, addresses.omitted);
        Ok(())
    }

    /// Sources, probes, and latency.
    fn sight(&self, page: &mut Page<'_>) -> fmt::Result {
        let reading = &self.reading;
        let sources = reading.sources.iter().flat_map(|source| {
            states(&SOURCE_STATES, standing(source.status)).map(|(status, is)| {
                (vec![("source", label(&source.name)), ("status", status.to_owned())], is)
            })
        });
        page.family(&SOURCE, sources)?;
        let event = |probe: &Probe| -> Labels { vec![("event", probe.event.clone())] };
        let probes = reading.probes.iter().flat_map(|probe| {
            states(&PROBE_STATES, &probe.status).map(|(status, is)| {
                let mut labels = event(probe);
                labels.push(("rung", probe.rung.clone()));
                labels.push(("status", status.to_owned()));
                (labels, is)
            })
        });
        page.family(&PROBE, probes)?;
        let seen = reading.probes.iter();
        page.family(&EVENTS, seen.filter_map(|probe| Some((event(probe), probe.seen?))))?;
        // A loss of 0 is exported for events that are counted at all.
        let counted = reading.probes.iter().filter(|probe| probe.seen.is_some());
        page.family(
            &EVENTS_LOST,
            counted.map(|probe| (event(probe), probe.lost.unwrap_or_default())),
        )?;
        page.single(&MISSED, reading.missed)?;
        let missed = reading.missed_events.iter();
        let missed = missed.map(|(event, count)| (vec![("event", (*event).to_owned())], *count));
        page.family(&MISSED_EVENTS, missed)?;
        let latency = &reading.latency;
        page.histogram(&LATENCY, &latency.buckets, latency.sum, latency.count)
    }

    /// Losses of facts and of telemetry.
    fn losses(&self, page: &mut Page<'_>) -> fmt::Result {
        let reading = &self.reading;
        page.single(&FACTS, reading.facts)?;
        page.single(&RESYNCS, reading.resyncs)?;
        page.single(&NETNS_RESYNCS, reading.netns_resyncs)?;
        let refused = reading.refused.iter().map(|entry| {
            let labels = vec![("source", entry.source.clone()), ("name", entry.name.to_string())];
            (labels, entry.count)
        });
        page.family(&NOT_TAKEN, refused)?;
        page.single(&PUBLISHED, reading.published)?;
        let signals = |value: fn(&super::Signal) -> u64| {
            let all = reading.telemetry.iter();
            all.map(move |(name, signal)| (vec![("signal", (*name).to_owned())], value(signal)))
        };
        page.family(&EXPORTED, signals(|signal| signal.exported))?;
        page.family(&DROPPED, signals(|signal| signal.dropped))?;
        page.family(&WAITING, signals(|signal| signal.waiting))?;
        page.family(&FAILURES, reading.failures.map(|count| (Labels::new(), count)))?;
        let (waiting, lost) = reading.ledger;
        page.single(&LEDGER_WAITING, waiting)?;
        page.single(&LEDGER_LOST, lost)
    }

    fn sizes(&self, page: &mut Page<'_>) -> fmt::Result {
        let sizes = &self.reading.sizes;
        page.single(&NETNS, sizes.netns)?;
        page.single(&ADDRESSES, sizes.addresses)?;
        page.single(&TASKS, sizes.tasks)?;
        page.single(&NEIGHBOURS, sizes.neighbours)?;
        page.single(&BEYOND, self.reading.beyond_bounds)?;
        let not_kept = self.reading.not_kept.iter().map(|(what, count)| {
            (vec![("kind", what.kind.to_owned()), ("of", what.of.to_owned())], *count)
        });
        page.family(&NOT_KEPT, not_kept)?;
        page.single(&UNRECORDED, self.reading.unrecorded)?;
        page.single(&FORGOTTEN, self.reading.forgotten_claims)
    }

    fn own(&self, page: &mut Page<'_>) -> fmt::Result {
        let Process { cpu, resident, virtual_memory, started, fds, max_fds } = self.process;
        page.family(&CPU, cpu.map(|cpu| (Labels::new(), cpu)))?;
        page.family(&RESIDENT, resident.map(|bytes| (Labels::new(), bytes)))?;
        page.family(&VIRTUAL, virtual_memory.map(|bytes| (Labels::new(), bytes)))?;
        page.family(&STARTED, started.map(|at| (Labels::new(), at)))?;
        page.family(&FDS, fds.map(|count| (Labels::new(), count)))?;
        page.family(&MAX_FDS, max_fds.map(|count| (Labels::new(), count)))?;
        Ok(())
    }
}

/// A series for each state of something: 1 for the current state, 0 for the others. A state that `all` lacks is
/// added, so that exactly one series is 1.
fn states<'a>(
    all: &'static [&'static str],
    current: &'a str,
) -> impl Iterator<Item = (&'a str, u64)> {
    let unlisted = (!all.contains(&current)).then_some((current, 1));
    all.iter().map(move |state| (*state, u64::from(*state == current))).chain(unlisted)
}

/// As in JSON.
fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "info",
        Severity::Warning => "warning",
        Severity::Critical => "critical",
    }
}

/// As in JSON.
fn status(status: Status) -> &'static str {
    match status {
        Status::Pending => "pending",
        Status::Firing => "firing",
        Status::Resolved => "resolved",
    }
}

/// As in JSON.
fn standing(status: SourceStatus) -> &'static str {
    match status {
        SourceStatus::Active => "active",
        SourceStatus::Degraded => "degraded",
        SourceStatus::Down => "down",
        SourceStatus::Disabled => "disabled",
    }
}

#[cfg(test)]
pub(super) mod tests;
