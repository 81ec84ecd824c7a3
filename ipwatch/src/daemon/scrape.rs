//! The reading that answers a scrape, taken from the map, the ledger and the sinks between two turns.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::core::Core;
use super::scraped::Scrape;
use crate::clock;
use crate::contract::{Body, Document, IpamRange, Prefix, Probe};
use crate::finding::{Code, Finding, Severity};
use crate::map::{Netns, NodeMap, NotKept, is_of_the_cluster};
use crate::metrics::{
    AddressInfo, CRITICAL, Counted, CriticalFinding, Extent, FindingGroup, Question, RANGES,
    Reading, Role, Signal, Sizes,
};
use crate::sinks;

/// Answers from the last reading if it is recent enough, else from a new one.
pub(super) fn answer(core: &mut Core, question: Question) {
    match question {
        Question::Ready(reply) => {
            let _ = reply.send(core.is_ready());
        }
        Question::Read(reply) => {
            let now = clock::now();
            let reading = core.scrape.last(now).unwrap_or_else(|| {
                let reading = Arc::new(read(core));
                let addresses = reading.addresses.as_ref().map_or(0, |all| all.told.len());
                core.memory.worked(addresses, now);
                core.scrape.last = Some((now, Arc::clone(&reading)));
                reading
            });
            let _ = reply.send(reading);
        }
    }
}

fn read(core: &Core) -> Reading {
    let Document { node, sources, body, .. } = core.document(Body::Probes(probes(core)));
    let probes = if let Body::Probes(probes) = body { probes } else { Vec::new() };
    let boot = core.map().boot();
    let mut reading = Reading {
        node,
        kernel: boot.map(|boot| boot.kernel.clone()).unwrap_or_default(),
        whole: core.is_whole(),
        opened: opened(&core.scrape.opened),
        resolved: resolved(&core.scrape.resolved),
        ranges: ranges(core),
        addresses: core.scrape.settings.address_info.then(|| addresses(core)),
        probes,
        refused: core.map().refused(),
        missed: core.missed(),
        missed_events: core.map().missed_events(),
        latency: core.latency.reading(),
        facts: core.scrape.facts,
        resyncs: core.scrape.resyncs,
        netns_resyncs: core.scrape.netns_resyncs,
        sources,
        ledger: core.file.backlog(),
        sizes: sizes(core.map()),
        not_kept: not_kept(core),
        unrecorded: core.ledger().forgotten(),
        beyond_bounds: core.map().beyond_bounds(),
        forgotten_claims: core.map().forgotten_claims(),
        ..Reading::default()
    };
    findings(&mut reading, core.ledger().open_findings(), core.map());
    telemetry(&mut reading, core.sinks.counters());
    reading
}

/// What is not kept for want of room, findings included.
fn not_kept(core: &Core) -> BTreeMap<NotKept, u64> {
    let mut all = core.map().unkept_by_kind();
    for ((whose, _), count) in core.engine.untold() {
        *all.entry(NotKept { kind: "findings", of: whose.class() }).or_default() += count;
    }
    all
}

/// Begins every counter at 0, so that its first increase is visible.
fn from_zero<K: Ord + Copy>(
    all: impl Iterator<Item = K>,
    counts: &BTreeMap<K, u64>,
) -> BTreeMap<K, u64> {
    all.map(|key| (key, counts.get(&key).copied().unwrap_or_default())).collect()
}

fn opened(counts: &BTreeMap<(Code, Severity), u64>) -> BTreeMap<(Code, Severity), u64> {
    const SEVERITIES: [Severity; 3] = [Severity::Info, Severity::Warning, Severity::Critical];
    let all = Code::ALL.iter().flat_map(|code| SEVERITIES.map(|severity| (*code, severity)));
    from_zero(all, counts)
}

fn resolved(counts: &BTreeMap<Code, u64>) -> BTreeMap<Code, u64> {
    from_zero(Code::ALL.iter().copied(), counts)
}

/// Every event, its rung, and how many events of this kind were missed.
pub(super) fn probes(core: &Core) -> Vec<Probe> {
    let missed = core.map().missed_events();
    let mut report = core.eyes.report();
    for probe in &mut report {
        probe.missed = missed.get(probe.event.as_str()).copied().filter(|count| *count > 0);
    }
    report
}

/// A cluster-wide pool that is exhausting is the same finding on every node.
fn extent(finding: &Finding, map: &NodeMap) -> Extent {
    let network = finding.subject.network.as_ref();
    let is_shared = finding.code == Code::IpamRangeExhausting
        && map
            .ranges()
            .any(|entry| entry.is_of_the_cluster() && Some(&entry.range.network) == network);
    if is_shared { Extent::Cluster } else { Extent::Node }
}

fn findings<'a>(reading: &mut Reading, open: impl Iterator<Item = &'a Finding>, map: &NodeMap) {
    let mut critical = Vec::new();
    for finding in open {
        let role = match finding {
            Finding { caused_by: Some(_), .. } => Role::Consequence,
            Finding { acked: Some(_), .. } => Role::Acked,
            _ => Role::Cause,
        };
        let Finding { code, severity, status, .. } = *finding;
        *reading.findings.entry(FindingGroup { code, severity, status, role }).or_default() += 1;
        if finding.pages() {
            let subject = &finding.subject;
            // Labels identify an alert, so they must not contain what changes while a network leaks.
            let network = subject.network.clone().filter(|_| subject.netns.is_none());
            let pod = subject.pod.as_ref().filter(|_| network.is_none());
            let ip = subject.ip.filter(|_| network.is_none());
            critical.push(CriticalFinding {
                id: finding.id.clone(),
                code: finding.code,
                extent: extent(finding, map),
                ip: ip.map(|ip| ip.to_string()),
                network,
                namespace: pod.and_then(|pod| pod.namespace.clone()),
                pod: pod.and_then(|pod| pod.name.clone()),
            });
        }
    }
    // The series that are kept must not depend on the order of a table.
    critical.sort_unstable();
    reading.critical = Counted::first(critical, CRITICAL);
}

/// Every range, without values that cannot be judged: `leaked` is unknown while a source that reports deletions is
/// away.
pub(super) fn known_ranges(core: &Core) -> Vec<IpamRange> {
    let mut all = core.map().ranges_view(clock::now(), core.thresholds());
    if core.engine.is_blind(Code::IpamReservationLeaked) {
        all.iter_mut().for_each(|range| range.leaked = None);
    }
    all
}

fn ranges(core: &Core) -> Counted<(Extent, IpamRange)> {
    let all = known_ranges(core).into_iter();
    let with_extent = |range: IpamRange| {
        let is_shared = is_of_the_cluster(&range.store);
        (if is_shared { Extent::Cluster } else { Extent::Node }, range)
    };
    Counted::first(all.map(with_extent).collect(), RANGES)
}

/// IPs of pods, sorted by IP, so that the same IPs are left out of each scrape if there are too many. Without the
/// node's own IPs and those that several holders may share.
fn addresses(core: &Core) -> Counted<AddressInfo> {
    let Scrape { settings, shared, .. } = &core.scrape;
    let within = |ip: IpAddr, prefixes: &[Prefix]| prefixes.iter().any(|one| one.contains(ip));
    let mut found: Vec<(IpAddr, &Netns)> = Vec::new();
    for netns in core.map().all_netns().filter(|netns| !netns.host) {
        let used = netns.addresses().filter(|(_, known)| known.is_used());
        let ips = used.map(|(key, _)| key.local);
        let wanted = |ip: &IpAddr| within(*ip, &settings.pod_cidrs) && !within(*ip, shared);
        found.extend(ips.filter(wanted).map(|ip| (ip, netns)));
    }
    found.sort_unstable_by_key(|(ip, netns)| (*ip, netns.id));
    found.dedup_by_key(|(ip, netns)| (*ip, netns.id));
    let Counted { told, omitted } = Counted::first(found, settings.max_address_series);
    let info = |(ip, netns): (IpAddr, &Netns)| {
        let pod = core.map().sandbox_of(netns.id).1.unwrap_or_default();
        AddressInfo {
            ip,
            netns: netns_name(netns),
            namespace: pod.namespace.unwrap_or_default(),
            pod: pod.name.unwrap_or_default(),
        }
    };
    Counted { told: told.into_iter().map(info).collect(), omitted }
}

/// The inode as in `ls -l /proc/PID/ns/net`, which is unique among netns that exist at the same time.
fn netns_name(netns: &Netns) -> String {
    netns.names.inode.map_or_else(|| netns.identity.to_string(), |inode| inode.to_string())
}

fn sizes(map: &NodeMap) -> Sizes {
    let (netns, addresses, tasks) = map.sizes();
    Sizes { netns, addresses, tasks, neighbours: map.neighbour_count() }
}

fn telemetry(reading: &mut Reading, counters: sinks::Counters) {
    reading.published = counters.published;
    let signal = |count| {
        let sinks::otlp::Count { exported, dropped, waiting } = count;
        Signal { exported, dropped, waiting }
    };
    if let Some(otlp) = counters.otlp {
        reading.failures = Some(otlp.failures);
        let all = sinks::otlp::Kind::ALL.into_iter();
        reading.telemetry = all.map(|kind| (kind.as_str(), signal(otlp.of(kind)))).collect();
    }
    if let Some(events) = counters.events {
        *reading.failures.get_or_insert(0) += events.failures;
        reading.telemetry.insert(sinks::events::NAME, signal(events.count));
    }
    if let Some(conditions) = counters.conditions {
        *reading.failures.get_or_insert(0) += conditions.failures;
        reading.telemetry.insert(sinks::conditions::NAME, signal(conditions.count));
    }
}
