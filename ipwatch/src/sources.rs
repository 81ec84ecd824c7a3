//! The outside world. Each source says only what it saw, as [`Fact`]s, and decides nothing.
//!
//! - [`probes`]: eBPF programs: events as they happen, and snapshots read out of the kernel.
//! - [`netlink`]: links, addresses, neighbours and nsids of every netns.
//! - [`arp`]: who claims an IP on the links of the host, where the probes cannot tell.
//! - [`procfs`]: tasks, careful looks at one task, and searches for who holds a netns.
//! - [`cni`]: the CNI result cache, which names the pod an IP was given to.
//! - [`calico`]: its blocks and endpoints, in the API server or in an etcd of its own.
//! - [`ipam`]: the stores of IPAM plugins.
//! - [`runtime`]: container runtimes, which know which sandboxes live.
//! - [`kubernetes`]: the API server, which knows which pods are to be here.
//!
//! What those that ask servers have in common: `session`, `errors`, `backoff`, `body`, `socket`, `grpc`,
//! `url`, `json`; those that follow files: `files`, `inotify`.

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

/// Facts that are handed over at a time.
const BATCH: usize = 128;

/// Where a source puts what it saw. Bounded: a source that is faster than the map waits, and what it
/// loses meanwhile (ring buffer, socket buffer) is counted where it is lost and then read again.
///
/// It is the only way to the map, so that no source can forget to have names checked: see [`Gate`].
#[derive(Debug, Clone)]
pub struct Emit {
    sender: mpsc::Sender<Vec<Fact>>,
    gate: Arc<Mutex<Gate>>,
    claims: Arc<Claims>,
}

impl Emit {
    /// A sender and the receiving end, with room for `batches`.
    #[must_use]
    pub fn channel(batches: usize) -> (Self, mpsc::Receiver<Vec<Fact>>) {
        let (sender, receiver) = mpsc::channel(batches);
        (Self { sender, gate: Arc::default(), claims: Arc::default() }, receiver)
    }

    /// What is the canary's, and goes no further than here.
    pub(crate) fn claims(&self) -> Arc<Claims> {
        Arc::clone(&self.claims)
    }

    /// Nobody listens any more: the daemon goes down.
    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Hands facts over from async code.
    ///
    /// # Errors
    /// The daemon is going down.
    pub async fn send(&self, mut facts: Vec<Fact>) -> Result<(), Closed> {
        self.claims.settled().await;
        self.admit(&mut facts);
        for batch in batches(facts) {
            self.sender.send(batch).await.map_err(|_| Closed)?;
        }
        Ok(())
    }

    /// Hands facts over from a thread of its own. Never call it on an async worker.
    ///
    /// # Errors
    /// The daemon is going down.
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
        // A thread that died here left at most a list that counts as short.
        self.gate.lock().unwrap_or_else(PoisonError::into_inner).admit(facts);
    }
}

/// The same facts, in parts of [`BATCH`]: whoever fills a netns with addresses decides how long a dump of it is, and
/// what waits for the map is bounded in facts, not in dumps.
fn batches(facts: Vec<Fact>) -> impl Iterator<Item = Vec<Fact>> {
    let mut facts = facts.into_iter();
    std::iter::from_fn(move || {
        let batch: Vec<Fact> = facts.by_ref().take(BATCH).collect();
        Some(batch).filter(|batch| !batch.is_empty())
    })
}

/// The receiving end has gone: stop quietly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the daemon is going down")]
pub struct Closed;
