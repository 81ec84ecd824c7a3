//! The part of the contract about `ipwatch fix`: what is to be changed, and what became of it.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Code, Interface, Netns};

/// What `fix` would change, or has changed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Fix {
    /// Nothing was changed: this is what would be.
    pub dry_run: bool,
    /// What an earlier run moved away is to be restored, or was: `planned` is to be restored then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undo: bool,
    /// Each thing, in the order in which it is changed.
    pub items: Vec<FixItem>,
    /// How many reservations of the same causes the daemon does not list. They are listed as these are freed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted: u32,
    /// The directory that has the record of what was changed, and what was moved away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
}

/// One thing that a finding is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FixItem {
    /// Id of the finding.
    pub finding: String,
    /// Its code.
    pub code: Code,
    /// What is changed, and by which names it is known to be the same.
    #[serde(flatten)]
    pub target: FixTarget,
    /// Where it stands.
    pub state: FixState,
    /// Why it is left out or was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What shows that it is right to change it, a line each. Hostile names in it are quoted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub proof: Vec<String>,
}

/// What is changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "kebab-case")]
pub enum FixTarget {
    /// A reservation of host-local is moved out of its store.
    FreeReservation {
        /// The IP.
        ip: IpAddr,
        /// The network.
        network: String,
        /// The file. Hostile text.
        path: String,
        /// The container in its first line.
        container_id: String,
        /// The interface in its second one; old plugins write none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ifname: Option<String>,
        /// When it was written, RFC 3339.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<String>,
    },
    /// A netns is unmounted from the node's mount namespace.
    UnmountNetns {
        /// Where it is mounted. Hostile text.
        path: String,
        /// Which one.
        netns: Netns,
    },
    /// A pair of devices is deleted, of which both ends are on the node.
    DeletePair {
        /// The pod's device.
        interface: Interface,
        /// Its other end.
        peer: Interface,
    },
    /// Nothing that `fix` does.
    Nothing {
        /// What it would be: an IP, a path or a name. Hostile text.
        about: String,
    },
}

/// Where an item stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FixState {
    /// It is to be done.
    Planned,
    /// It is no part of the plan.
    LeftOut,
    /// It was done.
    Done,
    /// It was to be done, and was not: at the moment of the change something did not agree any more.
    Skipped,
    /// It was done, and was undone.
    Restored,
    /// It was moved away, was another one by then, and could not be put back: it is in the record. `why` says where.
    Stranded,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}
