//! The data of a scrape, taken by the core at one moment, and bounded.

use std::collections::BTreeMap;

use crate::contract::{IpamRange, Probe, Refused, SourceState};
use crate::finding::{Code, Severity, Status};
use crate::map::NotKept;

/// Maximum number of ranges of one node.
pub const RANGES: usize = 256;
/// Maximum number of critical findings with a series of their own.
pub const CRITICAL: usize = 64;

/// The daemon's state at one moment.
#[derive(Debug, Default)]
pub struct Reading {
    /// The node's name.
    pub node: String,
    pub kernel: String,
    /// Whether the first snapshot is complete.
    pub whole: bool,
    /// Number of open findings, by group.
    pub findings: BTreeMap<FindingGroup, u64>,
    /// Findings that fire, are critical and have no cause among the findings, one by one.
    pub critical: Counted<CriticalFinding>,
    /// Findings opened since the start, by the severity with which they opened; every code is present with each
    /// severity.
    pub opened: BTreeMap<(Code, Severity), u64>,
    /// Findings resolved since the start; every code is present.
    pub resolved: BTreeMap<Code, u64>,
    /// The IPAM ranges.
    pub ranges: Counted<(Extent, IpamRange)>,
    /// IPs of pods; `None` if `address_info` is off.
    pub addresses: Option<Counted<AddressInfo>>,
    /// Every event and its rung.
    pub probes: Vec<Probe>,
    /// Names that sources reported and that were rejected.
    pub refused: Vec<Refused>,
    /// Events that no program saw because it was already running, as of the last count.
    pub missed: u64,
    /// Events of tasks that no probe reported, by event.
    pub missed_events: BTreeMap<&'static str, u64>,
    /// Latency from an event in the kernel to the map.
    pub latency: LatencyReading,
    /// Number of facts that the map took.
    pub facts: u64,
    /// How often everything was read again after a loss of events.
    pub resyncs: u64,
    /// How often single netns were read again because of events that were not reported.
    pub netns_resyncs: u64,
    /// Counters of the telemetry, by signal; empty without a collector and without Events.
    pub telemetry: BTreeMap<&'static str, Signal>,
    /// Number of changes that were published.
    pub published: u64,
    /// Failed attempts to send; `None` without a collector and without Events.
    pub failures: Option<u64>,
    /// Status of every source.
    pub sources: Vec<SourceState>,
    /// Number of rows that wait to be written to disk, and of those that were dropped because the queue was full.
    pub ledger: (u64, u64),
    /// Sizes of the map.
    pub sizes: Sizes,
    /// What is not kept for want of room, by kind and by whose it is; without what is 0.
    pub not_kept: BTreeMap<NotKept, u64>,
    /// Tenures that are in no history: see [`Ledger::forgotten`](crate::ledger::Ledger::forgotten).
    pub unrecorded: u64,
    /// Links, addresses and routes that exceed the bounds of their netns.
    pub beyond_bounds: u64,
    /// Claims of IPs that were dropped for want of room.
    pub forgotten_claims: u64,
}

/// A list with a limit, and the number of elements left out.
#[derive(Debug)]
pub struct Counted<T> {
    /// The elements that are kept.
    pub told: Vec<T>,
    /// The number of elements left out.
    pub omitted: u64,
}

impl<T> Default for Counted<T> {
    fn default() -> Self {
        Self { told: Vec::new(), omitted: 0 }
    }
}

impl<T> Counted<T> {
    /// Keeps the first `most` elements.
    pub fn first(mut all: Vec<T>, most: usize) -> Self {
        let omitted = all.len().saturating_sub(most) as u64;
        all.truncate(most);
        Self { told: all, omitted }
    }
}

/// Findings with these properties are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FindingGroup {
    pub code: Code,
    pub severity: Severity,
    pub status: Status,
    pub role: Role,
}

/// Whether a finding needs attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Has no cause among the findings.
    Cause,
    /// Is a consequence of another finding.
    Consequence,
    /// Was acknowledged.
    Acked,
}

impl Role {
    /// The value of the label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Cause => "cause",
            Role::Consequence => "consequence",
            Role::Acked => "acked",
        }
    }
}

/// What a range or a finding extends to. If it is the whole cluster, every node reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    Node,
    Cluster,
}

impl Extent {
    /// The value of the label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Extent::Node => "node",
            Extent::Cluster => "cluster",
        }
    }
}

/// A finding that pages.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CriticalFinding {
    /// Its id, which survives restarts.
    pub id: String,
    pub code: Code,
    /// Whether every node of the cluster reports this finding.
    pub extent: Extent,
    /// The IP. `None` if the finding is about a network: its IPs come and go, but the series must stay.
    pub ip: Option<String>,
    pub network: Option<String>,
    pub namespace: Option<String>,
    pub pod: Option<String>,
}

/// An IP and its pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressInfo {
    pub ip: std::net::IpAddr,
    /// Its netns: the inode, if it is known.
    pub netns: String,
    pub namespace: String,
    pub pod: String,
}

/// Counters of one signal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Signal {
    /// Accepted by the collector.
    pub exported: u64,
    /// Dropped.
    pub dropped: u64,
    /// Queued or in flight.
    pub waiting: u64,
}

/// A histogram of latencies.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LatencyReading {
    /// Upper bounds in seconds, each with the number of latencies between the previous bound and this one.
    pub buckets: Vec<(f64, u64)>,
    /// Sum, in seconds.
    pub sum: f64,
    /// Number of latencies.
    pub count: u64,
}

/// Sizes of the map.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    pub netns: usize,
    /// Addresses in all netns.
    pub addresses: usize,
    /// Tasks outside the host's netns.
    pub tasks: usize,
    pub neighbours: usize,
}
