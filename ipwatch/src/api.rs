//! The local API: versioned JSON over HTTP on a Unix socket, so that `curl --unix-socket` works.
//!
//! The server turns a request into an [`Ask`], sends it to the daemon's core and writes the
//! [`Document`] that comes back. It knows nothing of the map.

pub mod client;
#[cfg(test)]
pub(crate) mod fake;
pub mod route;
pub mod server;

use std::net::IpAddr;

use serde::Serialize;
use tokio::sync::{broadcast, oneshot};

use crate::contract::{Document, HeldQuestion, Neighbour, Tenure};
pub use crate::contract::{Past, Prefix, Selector};
use crate::finding::{Change, Code};

/// A question to the daemon's core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// `query ip|netns|pod|pid`: addresses.
    Addresses(Selector),
    /// `query ip --reach`: the same, each with what shares its link.
    Reach(Selector),
    /// `query neigh`: neighbour entries, of all IPs or of those within one prefix.
    Neighbours(Option<Prefix>),
    /// `query findings`: open ones, and resolved ones too with `all`. `what` narrows: a finding's id
    /// or unique prefix of it, a code, an IP, or namespace/pod.
    Findings {
        /// Resolved ones too.
        all: bool,
        /// Only these.
        what: Option<String>,
    },
    /// `query history`: who had an IP from when to when, newest first.
    History(Past),
    /// `query ipam`: ranges, and beside them reservations: those of one network or within one prefix, else
    /// those about which store, kernel and runtime do not agree.
    Ipam {
        /// Within this prefix.
        ip: Option<Prefix>,
        network: Option<String>,
    },
    /// `check`: whether an IP can be given to a new container.
    Check {
        ip: IpAddr,
        /// What this container has of it does not count.
        container: Option<String>,
    },
    /// What `ipwatch-ipam` asks: who still has an address.
    Held(HeldQuestion),
    /// `doctor`: every event and the rung it stands on.
    Doctor,
    /// `doctor --canary`: the same after each event was made once, in netns of our own.
    Canary,
    /// `ack`: an open finding is known and is not to page again. With `Unack`, the only ones that change
    /// anything that stays.
    Ack {
        /// Its id or the beginning of it.
        what: String,
        /// For so many seconds; absent: until it is over.
        seconds: Option<u64>,
        /// Why.
        note: Option<String>,
    },
    /// `unack`: it may page again.
    Unack {
        /// Its id or the beginning of it.
        what: String,
    },
}

impl Ask {
    /// Whether it changes something: such a request is a POST, so that nothing is changed by looking.
    #[must_use]
    pub fn changes(&self) -> bool {
        matches!(self, Ask::Canary | Ask::Ack { .. } | Ask::Unack { .. })
    }
}

/// Why the core has no document to give.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// Nothing matches. (HTTP 404, exit code 3.)
    #[error("{0}")]
    NotFound(String),
    /// A short id or name means more than one thing. (HTTP 409, exit code 2.)
    #[error("{0}")]
    Ambiguous(String),
    /// The daemon is going down, or has not finished its first snapshot. (HTTP 503, exit code 2.)
    #[error("{0}")]
    Unavailable(String),
}

/// A question and where its answer goes.
#[derive(Debug)]
pub struct Request {
    /// The question.
    pub ask: Ask,
    /// The user who asks.
    pub uid: u32,
    /// The answer.
    pub reply: oneshot::Sender<Result<Document, AskError>>,
}

/// Where events are put for those who follow: two streams, so that neighbours, which may be many, cost no
/// follower of the other one an event.
#[derive(Debug, Clone)]
pub struct Streams {
    events: broadcast::Sender<Event>,
    neighbours: broadcast::Sender<Event>,
}

impl Streams {
    /// Two streams; a follower may be this far behind.
    #[must_use]
    pub fn new(lag: usize) -> Self {
        Self { events: broadcast::channel(lag).0, neighbours: broadcast::channel(lag).0 }
    }

    /// Tells everybody who follows. Findings about neighbours go to both streams.
    pub fn send(&self, event: Event) {
        let about_neighbours = match &event {
            Event::Neighbour(_) => true,
            Event::Finding(change) => NEIGHBOURS.contains(&change.finding.code),
            _ => false,
        };
        // Nobody may be following.
        if about_neighbours {
            let _ = self.neighbours.send(event.clone());
        }
        if !matches!(event, Event::Neighbour(_)) {
            let _ = self.events.send(event);
        }
    }

    /// Tells those who follow neighbours that so many of them are not told of.
    pub fn neighbours_lagged(&self, dropped: u64) {
        if dropped > 0 {
            let _ = self.neighbours.send(Event::Lagged { dropped });
        }
    }

    /// Whether anybody follows neighbours.
    #[must_use]
    pub fn wants_neighbours(&self) -> bool {
        self.neighbours.receiver_count() > 0
    }

    /// Follows one of them from now on.
    pub(crate) fn follow(&self, stream: Stream) -> broadcast::Receiver<Event> {
        match stream {
            Stream::Events => self.events.subscribe(),
            Stream::Neighbours => self.neighbours.subscribe(),
        }
    }
}

/// Which stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Findings and addresses.
    Events,
    /// Neighbour entries, and findings about them.
    Neighbours,
}

/// Findings that whoever follows neighbours is told of.
const NEIGHBOURS: [Code; 4] =
    [Code::IpDuplicate, Code::NeighbourConflict, Code::NeighbourFailed, Code::GatewayNeighbourLost];

/// What `watch` follows: one JSON document a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase", tag = "event")]
pub enum Event {
    /// A finding opened, changed or was resolved.
    Finding(Box<Change>),
    /// An address came.
    Held(Tenure),
    /// An address went.
    Released(Tenure),
    /// A neighbour entry changed, or one more MAC claims its IP: how it is now.
    Neighbour(Box<Neighbour>),
    /// This many events before this line are missing: the follower did not read fast enough, or, of
    /// neighbours, there were too many at once.
    Lagged {
        /// How many.
        dropped: u64,
    },
}
