//! The node, and how well its sources see it.

use serde::{Deserialize, Serialize};

use super::NetnsRef;

/// Which boot of which node a stream of facts belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// The node's name.
    pub node: String,
    /// Kernel release (`uname -r`).
    pub kernel: String,
    /// Wall clock minus boot clock in nanoseconds: turns a [`BootNs`](super::BootNs) into a date for people.
    pub wall_offset: i64,
    /// The daemon's own netns, which is the host's.
    pub host: NetnsRef,
}

/// What the probes can see, where the map must know it to read a silence rightly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Sight {
    /// The end of a teardown is seen ([`Observation::NetnsGone`](super::What::NetnsGone)). If not, a dying netns is dropped when
    /// its nsid is: nothing would ever tell that it ended.
    pub teardown_end: bool,
    /// A task giving up its namespaces is seen, zombies included.
    pub release: bool,
    /// Every address change is seen in the kernel's own order. Netlink's later word on one then only
    /// adds detail: it neither makes nor ends an address.
    #[serde(default)]
    pub addresses: bool,
    /// Every run of a CNI plugin is seen. If not, nobody knows whether a DEL is under way.
    #[serde(default)]
    pub calls: bool,
    /// Tasks that come, go and move between netns are seen. What a snapshot then shows that no event had told was
    /// missed.
    #[serde(default)]
    pub tasks: bool,
}

/// The state of a source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// `probes`, `netlink`, `neighbours`, `routes`, `procfs`, `cni`, `kubernetes`, …; a runtime's own name, or
    /// `runtime` while there is none.
    pub name: String,
    /// Its state.
    pub status: SourceStatus,
    /// One line for people: why it is not `active`, or how it works.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// Whether a source's silence means anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceStatus {
    /// It tells all it should.
    Active,
    /// It tells a part, or later than it could.
    Degraded,
    /// It does not answer: what it would have told is unknown.
    Down,
    /// Switched off by the configuration, or not there to be asked.
    Disabled,
}
