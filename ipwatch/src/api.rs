//! The local API: versioned JSON over HTTP on a Unix socket, so that `curl --unix-socket` works.
//!
//! The server turns a request into an [`Ask`], sends it to the daemon's core and writes the [`Document`] that is
//! returned. It does not depend on the map.

pub mod client;
#[cfg(test)]
pub(crate) mod fake;
mod questions;
pub mod route;
pub mod server;
mod streams;

use std::net::IpAddr;

use serde::Serialize;

pub use self::questions::{Asking, Questions, Request, questions};
pub(crate) use self::streams::Follower;
pub use self::streams::{Stream, Streams};
use crate::contract::{HeldQuestion, Neighbour, Tenure};
pub use crate::contract::{Past, Prefix, Selector};
use crate::finding::Change;

/// A question to the daemon's core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// `query ip|netns|pod|pid`: addresses.
    Addresses(Selector),
    /// `query ip --reach`: addresses, each with what shares its link.
    Reach(Selector),
    /// `query neigh`: neighbour entries of all IPs, or of those within one prefix.
    Neighbours(Option<Prefix>),
    /// `query findings`: open findings; with `all` resolved ones as well. `what` filters by a finding's id or a
    /// unique prefix of it, a code, an IP, or namespace/pod.
    Findings {
        /// Include resolved findings.
        all: bool,
        /// The filter.
        what: Option<String>,
    },
    /// `query history`: who held an IP from when to when, newest first.
    History(Past),
    /// `query ipam`: ranges and reservations. Without a filter only reservations that are leaked or whose IP another
    /// holder has.
    Ipam {
        /// Only IPs within this prefix.
        ip: Option<Prefix>,
        network: Option<String>,
    },
    /// `check`: whether an IP can be given to a new container.
    Check {
        ip: IpAddr,
        /// IPs that this container holds do not count.
        container: Option<String>,
    },
    /// What `ipwatch-ipam` asks: who still has an address.
    Held(HeldQuestion),
    /// `doctor`: every event and the rung it stands on.
    Doctor,
    /// `doctor --canary`: as `doctor`, after the canary has made each event once in netns of our own.
    Canary,
    /// `ack`: acknowledges an open finding, so that it does not page again. Only `Ack` and `Unack` change persistent
    /// state.
    Ack {
        /// The finding's id or a prefix of it.
        what: String,
        /// How long, in seconds; `None`: until the finding ends.
        seconds: Option<u64>,
        /// The reason.
        note: Option<String>,
    },
    /// `unack`: withdraws the acknowledgement.
    Unack {
        /// The finding's id or a prefix of it.
        what: String,
    },
}

impl Ask {
    /// Whether the request changes something. Such a request is a POST, so that a GET never changes anything.
    #[must_use]
    pub fn changes(&self) -> bool {
        matches!(self, Ask::Canary | Ask::Ack { .. } | Ask::Unack { .. })
    }
}

/// Why the core cannot give a document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// Nothing matches. (HTTP 404, exit code 3.)
    #[error("{0}")]
    NotFound(String),
    /// A short id or name is ambiguous. (HTTP 409, exit code 2.)
    #[error("{0}")]
    Ambiguous(String),
    /// The daemon is shutting down, or has not finished its first snapshot. (HTTP 503, exit code 2.)
    #[error("{0}")]
    Unavailable(String),
}

/// An event of `watch`: one JSON document a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase", tag = "event")]
pub enum Event {
    /// A finding opened, changed or was resolved.
    Finding(Box<Change>),
    /// A netns got an address.
    Held(Tenure),
    /// A netns lost an address.
    Released(Tenure),
    /// A neighbour entry changed, or another MAC claims its IP: the new state.
    Neighbour(Box<Neighbour>),
    /// This many events are missing before this line: the follower did not read fast enough, or there were too many
    /// neighbours at once.
    Lagged {
        /// Number of missing events.
        dropped: u64,
    },
}
