//! What the core hands over: everything that a scrape tells, taken at one moment and bounded.

use std::collections::BTreeMap;

use crate::contract::{IpamRange, Probe, Refused, SourceState};
use crate::finding::{Code, Severity, Status};

/// Ranges that are told of one node.
pub const RANGES: usize = 256;
/// Critical findings that are told one by one.
pub const CRITICAL: usize = 64;

/// The daemon at one moment.
#[derive(Debug, Default)]
pub struct Reading {
    /// The node's name.
    pub node: String,
    pub kernel: String,
    /// Everything has been read once.
    pub whole: bool,
    /// Findings that are open, counted.
    pub findings: BTreeMap<FindingGroup, u64>,
    /// Those that fire, are critical and follow from no other, one by one.
    pub critical: Counted<CriticalFinding>,
    /// Findings that opened since the start, by the severity that they opened with; every code is there with each.
    pub opened: BTreeMap<(Code, Severity), u64>,
    /// Findings that were resolved since then; every code is there.
    pub resolved: BTreeMap<Code, u64>,
    /// What the networks can still hand out.
    pub ranges: Counted<(Extent, IpamRange)>,
    /// IPs of pods; `None` when nobody wants them.
    pub addresses: Option<Counted<AddressInfo>>,
    /// How each event is seen.
    pub probes: Vec<Probe>,
    /// What sources told and was not taken.
    pub refused: Vec<Refused>,
    /// Runs of programs that the kernel left out, as of the last minute.
    pub missed: u64,
    /// Events of tasks that no probe told, by event.
    pub missed_events: BTreeMap<&'static str, u64>,
    /// From an event in the kernel to the map.
    pub latency: LatencyReading,
    /// Facts that the map took.
    pub facts: u64,
    /// How often everything was read again because events were lost.
    pub resyncs: u64,
    /// What the telemetry did, by signal; empty without a collector and without Events.
    pub telemetry: BTreeMap<&'static str, Signal>,
    /// Changes that were published.
    pub published: u64,
    /// Failed attempts to send; `None` without either.
    pub failures: Option<u64>,
    /// How every source stands.
    pub sources: Vec<SourceState>,
    /// Rows that wait to be written to disk, and those that were lost for want of room.
    pub ledger: (u64, u64),
    /// How much is known.
    pub sizes: Sizes,
    /// Links, addresses and routes beyond the bounds of their netns.
    pub beyond_bounds: u64,
    /// Claims of IPs that were forgotten for want of room.
    pub forgotten_claims: u64,
}

/// At most so many, and how many more there are.
#[derive(Debug)]
pub struct Counted<T> {
    /// Those that are told.
    pub told: Vec<T>,
    /// How many are not.
    pub omitted: u64,
}

impl<T> Default for Counted<T> {
    fn default() -> Self {
        Self { told: Vec::new(), omitted: 0 }
    }
}

impl<T> Counted<T> {
    /// The first `most` of them.
    pub fn first(mut all: Vec<T>, most: usize) -> Self {
        let omitted = all.len().saturating_sub(most) as u64;
        all.truncate(most);
        Self { told: all, omitted }
    }
}

/// Which findings are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FindingGroup {
    /// Their kind.
    pub code: Code,
    /// How bad they are.
    pub severity: Severity,
    /// Where they stand.
    pub status: Status,
    /// What is to be done about them.
    pub role: Role,
}

/// What a finding is to whoever looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// It stands for itself.
    Cause,
    /// It follows from another one.
    Consequence,
    /// Somebody knows it already.
    Acked,
}

impl Role {
    /// As a label says it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Cause => "cause",
            Role::Consequence => "consequence",
            Role::Acked => "acked",
        }
    }
}

/// Whose a range is, or what a finding is about: where it is the whole cluster's, every node reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// This node's alone.
    Node,
    /// All nodes'.
    Cluster,
}

impl Extent {
    /// As a label says it.
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
    /// Its id, which stays through restarts.
    pub id: String,
    /// Its kind.
    pub code: Code,
    /// Whether every node of the cluster reports the same.
    pub extent: Extent,
    /// The IP at stake. None where a network is: then its IPs come and go, and the series stays.
    pub ip: Option<String>,
    /// The network.
    pub network: Option<String>,
    /// The pod's namespace.
    pub namespace: Option<String>,
    /// The pod's name.
    pub pod: Option<String>,
}

/// An IP and whose it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressInfo {
    pub ip: std::net::IpAddr,
    /// Its netns: the inode where it is known.
    pub netns: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
}

/// What became of one signal at the collector.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Signal {
    /// It took them.
    pub exported: u64,
    /// It did not.
    pub dropped: u64,
    /// They wait.
    pub waiting: u64,
}

/// Latencies, counted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LatencyReading {
    /// Upper bounds in seconds, and how many fell below each and not below the one before.
    pub buckets: Vec<(f64, u64)>,
    /// All of them together, in seconds.
    pub sum: f64,
    /// How many.
    pub count: u64,
}

/// How much is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Network namespaces.
    pub netns: usize,
    /// Addresses in them.
    pub addresses: usize,
    /// Tasks outside the host's netns.
    pub tasks: usize,
    /// Neighbour entries.
    pub neighbours: usize,
}
