//! Room for the answers of all nodes: they are kept until the last one has come, so that together they must be bounded.
//!
//! Half of the room is divided among the nodes, so that nodes with large answers cannot take it from the others. The
//! other half is for whoever needs more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The room of a question to all nodes.
#[derive(Debug)]
pub(super) struct Room {
    /// What each node has for itself, in bytes.
    share: u64,
    /// What is left of the common half, in bytes.
    common: Arc<AtomicU64>,
}

impl Room {
    /// This many bytes for this many nodes.
    pub(super) fn new(bytes: u64, nodes: usize) -> Self {
        let half = bytes / 2;
        let share = half / u64::try_from(nodes.max(1)).unwrap_or(u64::MAX);
        Self { share, common: Arc::new(AtomicU64::new(half)) }
    }

    /// What one node may use.
    pub(super) fn allow(&self) -> Allowance {
        Allowance {
            own: AtomicU64::new(self.share),
            common: Arc::clone(&self.common),
            borrowed: AtomicU64::new(0),
            is_refused: AtomicBool::new(false),
            is_kept: AtomicBool::new(false),
        }
    }
}

/// The room of one node. What it took of the common half is given back when it is dropped, unless its answer is kept.
#[derive(Debug)]
pub(super) struct Allowance {
    own: AtomicU64,
    common: Arc<AtomicU64>,
    borrowed: AtomicU64,
    is_refused: AtomicBool,
    is_kept: AtomicBool,
}

impl Allowance {
    /// Takes room; `false` if there is none. One thread takes at a time.
    pub(super) fn take(&self, bytes: u64) -> bool {
        let own = self.own.load(Ordering::Relaxed);
        let rest = bytes.saturating_sub(own);
        self.own.store(own.saturating_sub(bytes), Ordering::Relaxed);
        let lend = |left: u64| left.checked_sub(rest);
        let lent = self.common.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lend).is_ok();
        if lent {
            self.borrowed.fetch_add(rest, Ordering::Relaxed);
        } else {
            self.is_refused.store(true, Ordering::Relaxed);
        }
        lent
    }

    /// Whether there was no room once.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    /// The answer is kept, and its room with it.
    pub(super) fn keep(&self) {
        self.is_kept.store(true, Ordering::Relaxed);
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        if !self.is_kept.load(Ordering::Relaxed) {
            self.common.fetch_add(self.borrowed.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_answers_leave_each_node_its_share() {
        let room = Room::new(80, 4);
        let greedy = room.allow();
        assert!(greedy.take(10) && greedy.take(40), "its share and the common half");
        assert!(!greedy.take(1) && greedy.is_refused());
        greedy.keep();
        drop(greedy);
        let modest = room.allow();
        assert!(modest.take(10) && !modest.is_refused());
        assert!(!modest.take(1), "what the first one kept is gone");
    }

    #[test]
    fn what_is_not_kept_is_given_back() {
        let room = Room::new(80, 4);
        let lost = room.allow();
        assert!(lost.take(50));
        drop(lost);
        assert!(room.allow().take(50));
    }
}
