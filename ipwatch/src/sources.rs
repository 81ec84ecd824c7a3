//! The outside world. Each source reports only what it saw, as [`Fact`]s, and decides nothing.
//!
//! - [`probes`]: eBPF programs: live events, and snapshots read from the kernel.
//! - [`netlink`]: links, addresses, neighbours, routes and nsids of every netns.
//! - [`arp`]: ARP claims of IPs on the links of the host, if no probe can report them.
//! - [`procfs`]: tasks, close looks at one task, and searches for the holders of a netns.
//! - [`cni`]: the CNI result cache, which names the pod that an IP was given to.
//! - [`calico`]: Calico's blocks and endpoints, in the API server or in an etcd of its own.
//! - [`ipam`]: the stores of IPAM plugins.
//! - [`runtime`]: container runtimes, which know which sandboxes are alive.
//! - [`kubernetes`]: the API server, which knows which pods should be on this node.
//!
//! Shared by the clients of servers: `session`, `errors`, `backoff`, `body`, `socket`, `grpc`, `url`, `json`; by those
//! that follow files: `files`, `inotify`.

pub mod arp;
pub(crate) mod backoff;
mod body;
pub mod calico;
pub mod cni;
mod errors;
mod files;
mod grpc;
mod initial_sync;
mod inotify;
pub mod ipam;
pub(crate) mod json;
pub mod kubernetes;
pub mod netlink;
mod pace;
pub mod probes;
pub mod procfs;
mod ready;
pub mod runtime;
mod session;
pub(crate) mod socket;
#[cfg(test)]
mod testing;
mod url;
pub(crate) mod wall_clock;

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;

pub use self::initial_sync::First;
pub(crate) use self::initial_sync::Unheard;

use crate::canary::Claims;
use crate::fact::{Fact, Gate};

/// Maximum number of facts sent at a time.
const BATCH: usize = 128;

/// Where a source sends its facts. The channel is bounded: a source that is faster than the map waits, and what it
/// loses meanwhile (ring buffer, socket buffer) is counted where it is lost and then read again.
///
/// This is the only way to the map, so that no source can forget to have names checked: see [`Gate`].
#[derive(Debug, Clone)]
pub struct Emit {
    sender: mpsc::Sender<Vec<Fact>>,
    gate: Arc<Mutex<Gate>>,
    claims: Arc<Claims>,
}

impl Emit {
    /// A sender and its receiver, with room for `batches`.
    #[must_use]
    pub fn channel(batches: usize) -> (Self, mpsc::Receiver<Vec<Fact>>) {
        let (sender, receiver) = mpsc::channel(batches);
        (Self { sender, gate: Arc::default(), claims: Arc::default() }, receiver)
    }

    /// What belongs to the canary and is filtered out here.
    pub(crate) fn claims(&self) -> Arc<Claims> {
        Arc::clone(&self.claims)
    }

    /// Whether the receiver is closed: the daemon is shutting down.
    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Sends facts from async code.
    ///
    /// # Errors
    /// The daemon is shutting down.
    pub async fn send(&self, mut facts: Vec<Fact>) -> Result<(), Closed> {
        self.claims.settled().await;
        self.admit(&mut facts);
        for batch in batches(facts) {
            self.sender.send(batch).await.map_err(|_| Closed)?;
        }
        Ok(())
    }

    /// Sends facts from a thread. Never call it on an async worker.
    ///
    /// # Errors
    /// The daemon is shutting down.
    pub fn send_blocking(&self, mut facts: Vec<Fact>) -> Result<(), Closed> {
        self.claims.settled_blocking();
        self.admit(&mut facts);
        for batch in batches(facts) {
            self.sender.blocking_send(batch).map_err(|_| Closed)?;
        }
        Ok(())
    }

    fn admit(&self, facts: &mut Vec<Fact>) {
        self.claims.admit(facts);
        // If a thread panicked here, at most one list was left incomplete, and it counts as incomplete.
        self.gate.lock().unwrap_or_else(PoisonError::into_inner).admit(facts);
    }
}

/// Splits facts into batches of [`BATCH`]. The size of a netns's dump can be chosen by an untrusted party, so what
/// waits for the map is bounded in facts, not in dumps.
fn batches(facts: Vec<Fact>) -> impl Iterator<Item = Vec<Fact>> {
    let mut facts = facts.into_iter();
    std::iter::from_fn(move || {
        let batch: Vec<Fact> = facts.by_ref().take(BATCH).collect();
        Some(batch).filter(|batch| !batch.is_empty())
    })
}

/// The receiver is closed: stop without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the daemon is stopping")]
pub struct Closed;
