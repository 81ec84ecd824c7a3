//! The node, and how well its sources see it.

use serde::{Deserialize, Serialize};

use super::NetnsRef;

/// The boot and the node that a stream of facts belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// The node's name.
    pub node: String,
    /// Kernel release (`uname -r`).
    pub kernel: String,
    /// Wall clock minus boot clock in nanoseconds: converts a [`BootNs`](super::BootNs) to a date.
    pub wall_offset: i64,
    /// The daemon's own netns, which is the host's.
    pub host: NetnsRef,
}

/// What the probes can see, as far as the map needs it to interpret silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Sight {
    /// Whether the end of a teardown is observed ([`Observation::NetnsGone`](super::Observation::NetnsGone)). If not, a
    /// netns is removed when its teardown begins, because its end would never be reported.
    pub teardown_end: bool,
    /// Whether the release of a task's namespaces is observed, zombies included.
    pub release: bool,
    /// Whether every address change is observed in the kernel's own order. A later netlink message then only adds
    /// detail: it neither adds nor removes an address.
    #[serde(default)]
    pub addresses: bool,
    /// Whether every run of a CNI plugin is observed. If not, it is unknown whether a DEL is under way.
    #[serde(default)]
    pub calls: bool,
    /// Whether tasks that start, end and move between netns are observed. A change that only a snapshot shows was then
    /// missed.
    #[serde(default)]
    pub tasks: bool,
}

/// The state of a source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// `probes`, `netlink`, `neighbours`, `routes`, `procfs`, `cni`, `kubernetes`, …; a runtime's own name, or
    /// `runtime` as long as there is none.
    pub name: String,
    /// Its status.
    pub status: SourceStatus,
    /// One line for people: why it is not `active`, or how it works.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// Whether a source's silence means anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceStatus {
    /// It reports everything that it should.
    Active,
    /// It reports only a part, or with delay.
    Degraded,
    /// It does not answer: what it would have reported is unknown.
    Down,
    /// Switched off by the configuration, or nothing to query.
    Disabled,
}
