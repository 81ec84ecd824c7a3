//! The part of the contract about `ipwatch fix`: what is to be changed, and what became of it.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Code, Interface, Netns};

/// What `fix` would change, or what it did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Fix {
    /// Nothing was changed: the items are a plan.
    pub dry_run: bool,
    /// The items are of an earlier run and are restored: `planned` means *to be restored*.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undo: bool,
    /// The items, in the order in which they are changed.
    pub items: Vec<FixItem>,
    /// How many more reservations with the same causes there are. The daemon lists them once the listed ones are freed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted: u32,
    /// The directory with the record of this run and the files that it moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
}

/// One object that a finding is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FixItem {
    /// Id of the finding.
    pub finding: String,
    /// Its code.
    pub code: Code,
    /// What is changed, with the names by which it is recognised at the moment of the change.
    #[serde(flatten)]
    pub target: FixTarget,
    /// Whether it is planned, done or not.
    pub state: FixState,
    /// Why it is left out, skipped, stranded or unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The reasons why the change is safe, a line each. Names that a container chose are quoted.
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
        /// The interface in its second line; old versions of host-local write none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ifname: Option<String>,
        /// When the file was written, RFC 3339.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<String>,
    },
    /// An allocation is removed from a pool of Whereabouts or a block of Calico in the API server.
    FreeAllocation {
        /// The IP.
        ip: IpAddr,
        /// The network. Hostile text.
        network: String,
        /// The store: `whereabouts` or `calico`.
        store: String,
        /// Its key there, as in `query ipam`: the object and the place in it. Hostile text.
        key: String,
        /// The container that it is for.
        container_id: String,
    },
    /// A netns is unmounted from the node's mount namespace.
    UnmountNetns {
        /// Where it is mounted. Hostile text.
        path: String,
        /// The netns.
        netns: Netns,
    },
    /// A pair of devices is deleted. Both ends are in the host's netns.
    DeletePair {
        /// The pod's device.
        interface: Interface,
        /// Its other end.
        peer: Interface,
    },
    /// Nothing is changed.
    Nothing {
        /// What the item is about: an IP, a path or a name. Hostile text.
        about: String,
    },
}

/// Whether an item is planned, done or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FixState {
    /// It is to be done.
    Planned,
    /// It is not part of the plan; `why` says why.
    LeftOut,
    /// It was done.
    Done,
    /// It was planned but not done, because something had changed by the moment of the change; `why` says what.
    Skipped,
    /// It was done earlier, and has been undone.
    Restored,
    /// A file was moved that had been replaced meanwhile, and it could not be put back. `why` says where it is in the record.
    Stranded,
    /// Whether it was done cannot be found out: the API server's answer was lost, and the object does not tell. `why` says
    /// more. The record keeps what `--undo` needs.
    Unknown,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}
