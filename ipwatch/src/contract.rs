//! The JSON contract, schema `ipwatch/v1`: what every command prints with `-o json` and what the socket answers. Fields
//! may be added; a field never changes its meaning.
//!
//! Every document is a [`Document`]: an envelope and one list. Unknown fields are absent. `docs/contract/*.json` has
//! one example of each, which the tests read.

#![warn(missing_docs)]

mod cluster;
mod codes;
mod finding;
mod fix;
mod fleet;
mod held;
mod holder;
mod ipam;
mod past;
mod plugin_run;
pub mod report;
mod step;

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

pub use self::cluster::{Cluster, ClusterFinding, ClusterRange};
pub use self::codes::Code;
pub use self::finding::{
    Ack, Change, ChangeKind, Evidence, Finding, Reserved, Severity, Status, Subject,
};
pub use self::fix::{Fix, FixItem, FixState, FixTarget};
pub use self::fleet::{Fleet, FleetNode};
pub use self::held::{Held, HeldAddress, HeldCall, HeldQuestion, HeldState};
pub use self::holder::{
    Holder, HolderKind, in_short as holders_in_short, unlisted as holders_unlisted,
};
pub use self::ipam::{IpamEntry, IpamHolder, IpamNetwork, IpamRange, Reservation, Verdict};
pub use self::past::Past;
pub use self::plugin_run::PluginRun;
pub use self::step::{Run, Step};
pub use crate::prefix::Prefix;

use crate::fact::{Mac, Name, SourceStatus};

/// The name of the schema, in every document.
pub const SCHEMA: &str = "ipwatch/v1";

/// The envelope and the requested list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The node's name.
    pub node: String,
    /// When the answer was made, RFC 3339.
    pub taken_at: String,
    /// The sources that were queried, with their status: silence of a source that is not `active` proves nothing.
    pub sources: Vec<SourceState>,
    /// The answer.
    #[serde(flatten)]
    pub body: Body,
    /// `query ipam`, in addition to the ranges: the reservations, IP by IP.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reservations: Vec<IpamEntry>,
    /// `query ipam`, in addition to the ranges: networks without one, as in the stores of Cilium, AWS and Terway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<IpamNetwork>,
    /// `doctor`, in addition to the probes: what was rejected from sources.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refused>,
    /// `doctor`, beside the probes, and `query findings`: codes of findings that cannot be judged, because a source that they rest on does not
    /// answer. None of them begins or ends meanwhile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blind: Vec<Code>,
    /// `doctor`, beside the probes: which daemon answers, on which kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub daemon: Option<DaemonInfo>,
    /// `query history` of an IP or a pod, beside the tenures: runs of CNI plugins for those containers, under way or ended
    /// within the last ten minutes, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<PluginRun>,
}

/// Which daemon answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonInfo {
    /// Its version.
    pub version: String,
    /// The kernel's release, as `uname -r` has it.
    pub kernel: String,
    /// The machine's architecture: `x86_64`, `aarch64`.
    pub machine: String,
}

/// Invalid names of one kind from a source, or disregarded runs of CNI plugins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The source.
    pub source: String,
    /// The kind of the names.
    pub name: Name,
    /// Number of rejections since the daemon started.
    pub count: u64,
    /// Time of the last rejection, RFC 3339.
    pub last: String,
}

/// One list of answers, under the name of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Body {
    /// `query ip|netns|pod|pid`.
    Addresses(Vec<Address>),
    /// `scan`, `query findings`.
    Findings(Vec<Finding>),
    /// `query neigh`.
    Neighbours(Vec<Neighbour>),
    /// `query history`.
    History(Vec<Tenure>),
    /// `doctor`.
    Probes(Vec<Probe>),
    /// `query ipam`.
    Ranges(Vec<IpamRange>),
    /// `check`.
    Verdict(Verdict),
    /// `cluster scan`.
    Cluster(Cluster),
    /// `fix`.
    Fix(Fix),
    /// What `ipwatch-ipam` asks.
    Held(Held),
}

/// Selects addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// All, or those within a prefix.
    Ip(Option<Prefix>),
    /// Those of a netns: cookie, inode, nsid, path or name of its mount. `None`: every netns.
    Netns(Option<String>),
    /// Those of a pod: `namespace/name`, a name, or a prefix of uid or container id. `None`: every pod.
    Pod(Option<String>),
    /// Those of the netns that a process (or one thread of it) holds.
    Pid(u32),
}

/// A source and its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceState {
    /// Its name.
    pub name: String,
    /// Its status.
    pub status: SourceStatus,
    /// The reason, or how it works, in one line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// One address and everything known about it. A netns without any address is reported as one entry without `ip`, so
/// that a leaked one is visible.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The IP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<IpAddr>,
    /// Prefix length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_len: Option<u8>,
    /// `global`, `site`, `link`, `host` or a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// Its netns.
    pub netns: Netns,
    /// Its device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<Interface>,
    /// What keeps the netns alive.
    pub holders: Vec<Holder>,
    /// Its container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
    /// Its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
    /// Its reservation in an IPAM store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<Reservation>,
    /// Since when the address has been here, as far as ipwatch observed it, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// It was already here at that time, when ipwatch first looked: it has been here for at least so long.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub preexisting: bool,
    /// Ids of findings about it.
    pub findings: Vec<String>,
    /// What it shares a link or a router with, if that was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reach: Option<Vec<Segment>>,
}

/// What an address shares with others: a link, or the router at the other end of its own link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Link or router.
    pub kind: SegmentKind,
    /// The netns of that device, or the router.
    pub netns: Netns,
    /// The bridge, parent, tunnel or end of a pair through which the others are reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<Interface>,
    /// The other devices.
    pub members: Vec<Member>,
}

/// How members of a segment are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SegmentKind {
    /// A broadcast gets from one to the other, and back.
    Link,
    /// Each member is on its own link to the router.
    Router,
}

/// A device on the same link, or at the same router.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its netns.
    pub netns: Netns,
    /// The device.
    pub interface: Interface,
    /// Its IPs.
    pub ips: Vec<IpAddr>,
    /// Its container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
    /// Its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
    /// Whether it has the requested IP itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub same_ip: bool,
}

/// A network namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Netns {
    /// `net->net_cookie`: never reused within a boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cookie: Option<u64>,
    /// The number in `net:[…]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inode: Option<u32>,
    /// Its nsid in the host's netns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nsid: Option<i32>,
    /// Where its nsfs file is mounted on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// `host`: the node's own. `dying`: its teardown has begun. Absent: any other netns that is alive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// A network device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its index in its netns.
    pub index: u32,
    /// Its MAC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// `veth`, `macvlan`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Name of its master in the same netns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<String>,
}

/// A container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Container {
    /// Its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its state, in the runtime's own word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Pod {
    /// Its Kubernetes namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its uid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Attempt number of its sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// State of its sandbox, in the runtime's own word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

impl Pod {
    /// Whether this is its name, as NAME or NAMESPACE/NAME, or its uid.
    #[must_use]
    pub fn is_called(&self, what: &str) -> bool {
        let name = self.name.as_deref();
        let whole = what.split_once('/').is_some_and(|(namespace, of)| {
            name == Some(of) && self.namespace.as_deref() == Some(namespace)
        });
        whole || name == Some(what) || self.uid.as_deref() == Some(what)
    }
}

/// An ARP or NDP entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbour {
    /// The neighbour's IP.
    pub ip: IpAddr,
    /// Its MAC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// `REACHABLE`, `STALE`, …, as `ip neigh` spells them; `GONE` for an entry that was just removed.
    pub state: String,
    /// The netns of the entry.
    pub netns: Netns,
    /// The device of the entry.
    pub interface: Interface,
    /// When it last changed, as far as ipwatch observed it, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// The holders of the IP on this node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<IpamHolder>,
    /// The device on this node that has the MAC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac_of: Option<IpamHolder>,
    /// Every MAC that has the IP, if there is more than one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conflict: Vec<Claimant>,
}

/// One of several MACs that have one IP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claimant {
    /// The MAC; absent if only duplicate address detection noticed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// The device on this node that has the MAC. Absent if it is not on this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<IpamHolder>,
    /// When it was last observed, RFC 3339. Absent if it has the IP on this node, and was not observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard: Option<String>,
}

/// Who had an IP, from when to when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenure {
    /// The IP.
    pub ip: IpAddr,
    /// The netns.
    pub netns: Netns,
    /// The container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
    /// The pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
    /// The beginning, RFC 3339.
    pub from: String,
    /// It was already held then, when ipwatch first looked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub preexisting: bool,
    /// Until when, RFC 3339; absent while it lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// `address-deleted`, `device-gone`, `netns-gone`, `reboot`, `not-kept`, `unseen` (it had ended when the daemon
    /// came back).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<String>,
    /// How often the address was added in that period, if this entry combines several tenures because its netns has too
    /// many to keep each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
}

/// One event that ipwatch needs, and how it is observed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// The event: `netns-created`, `ipv4-address`, …
    pub event: String,
    /// The rung in use: `tp_btf`, `raw_tp`, `fentry`, `kprobe`, `socket`, `netlink`, `procfs`, `snapshot`, `none`.
    pub rung: String,
    /// The kernel function, tracepoint, group or file.
    pub hook: String,
    /// `active`, `fallback` (a lower rung than the best), `degraded` (attached, but the canary's event was not seen) or
    /// `missing`.
    pub status: String,
    /// Why no higher rung is in use, and what is missing for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Number of events since the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<u64>,
    /// Number of events that were not reported: there was no room for them, or one party caused too many. Absent if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// The result of the canary: an event that ipwatch created in a network namespace of its own. Absent if it was not
    /// created yet, or no program is attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Proof>,
    /// Number of events that no probe reported: two looks at all tasks found their effects. Absent if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<u64>,
    /// Its programs told nothing and were attached again. Absent if they never were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached_again: Option<AttachedAgain>,
}

/// Programs that were attached again because the canary's event was not seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedAgain {
    /// How often since the start.
    pub times: u64,
    /// Seconds since the last time.
    pub ago_secs: u64,
}

/// The canary's result for an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// `seen`, `not-seen` (attached, not seen) or `not-tried`.
    pub verdict: String,
    /// `seen`: microseconds from the event to its report. Absent if the kernel half only counts such events, and
    /// counted one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micros: Option<u64>,
    /// Seconds since then.
    pub ago_secs: u64,
    /// `not-seen`: which part was not. `not-tried`: why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}
