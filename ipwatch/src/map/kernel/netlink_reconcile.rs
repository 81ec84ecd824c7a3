//! Compares netlink's reports of addresses with those of probes. If probes report addresses, netlink only repeats them,
//! and neither adds nor removes an address (`addresses`). But a probe can miss one: the kernel skips a program that is
//! already running on the same CPU (`bpf_prog_enter_recur`, 6.1 to 6.18) and counts it, and the count is read every ten
//! seconds. Therefore, if netlink reports something that no probe confirms after a while, the netns is read again.

use std::collections::VecDeque;

use crate::fact::BootNs;

use super::tombstones::Tombstone;
use crate::map::{AddressId, NetnsId, NodeMap};

/// Maximum delay between the two: one task reads both, each from a queue of its own.
const APART: u64 = 500_000_000;
/// Maximum number of doubts. If there are more, the oldest are dropped, and the counter of skipped programs decides.
const MOST: usize = 1_024;

/// A report by netlink.
#[derive(Debug)]
struct Doubt {
    at: BootNs,
    netns: NetnsId,
    key: AddressId,
    /// Whether the address was added rather than removed.
    there: bool,
}

/// Reports that no probe has confirmed yet, the oldest first.
#[derive(Debug, Default)]
pub(in crate::map) struct Unconfirmed(VecDeque<Doubt>);

impl Unconfirmed {
    /// Netlink reported that an address was added or removed, and the map disagrees.
    pub(in crate::map) fn raise(
        &mut self,
        netns: NetnsId,
        key: AddressId,
        there: bool,
        at: BootNs,
    ) {
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back(Doubt { at, netns, key, there });
    }

    fn due(&self) -> Option<BootNs> {
        self.0.front().map(|doubt| doubt.at.plus(APART))
    }
}

impl NodeMap {
    /// Handles the doubts that no probe has settled by `now`. Returns when the next one is due.
    pub(in crate::map) fn settle_doubts(&mut self, now: BootNs) -> Option<BootNs> {
        while self.kernel.netlink_reconcile.due().is_some_and(|due| due <= now) {
            let Some(doubt) = self.kernel.netlink_reconcile.0.pop_front() else { break };
            let Some(entry) = self.kernel.netns.get(&doubt.netns) else { continue };
            let known = entry.addresses.get(&doubt.key);
            // A slightly earlier report by a probe is the one that netlink repeats, or newer.
            let lately = BootNs(doubt.at.0.saturating_sub(APART));
            let missed = if doubt.there {
                let buried = Tombstone::Address(doubt.netns, doubt.key);
                known.is_none() && !self.kernel.tombstones.covers(buried, lately)
            } else {
                known.is_some_and(|known| known.touched < lately)
            };
            // It is read again anyway, at its own pace, or has been since.
            let read = entry.opened.is_some_and(|opened| opened > doubt.at);
            if !missed || entry.dying.is_some() || entry.is_incomplete() || read {
                continue;
            }
            self.scheduler.doubted(doubt.netns, entry.host, now);
        }
        self.kernel.netlink_reconcile.due()
    }
}
