//! Netlink's word on addresses against the probes'. Where probes tell of addresses netlink only repeats
//! them, and its word neither makes nor ends one (`netns`). But a probe can miss: the kernel skips a program
//! that runs on that CPU already (`bpf_prog_enter_recur`, 6.1 to 6.18) and counts it, which is read every
//! ten seconds. So what netlink says and no probe has confirmed after a while has the netns read anew.

use std::collections::VecDeque;

use crate::fact::BootNs;

use super::tombstones::Tombstone;
use crate::map::{AddressId, NetnsId, NodeMap};

/// How far apart the two may come: both are read by one task, each from a queue of its own.
const APART: u64 = 500_000_000;
/// Doubts at a time. In a storm of more the oldest are forgotten, and the count of what was missed decides.
const MOST: usize = 1_024;

/// What netlink said.
#[derive(Debug)]
struct Doubt {
    at: BootNs,
    netns: NetnsId,
    key: AddressId,
    /// That it is there; else that it is gone.
    there: bool,
}

/// What no probe has confirmed yet, the oldest first.
#[derive(Debug, Default)]
pub(in crate::map) struct Unconfirmed(VecDeque<Doubt>);

impl Unconfirmed {
    /// Netlink has said that an address is there, or gone, and the map knows otherwise.
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
    /// Looks at the doubts that no probe has settled by now; when the next one is due.
    pub(in crate::map) fn settle_doubts(&mut self, now: BootNs) -> Option<BootNs> {
        while self.kernel.netlink_reconcile.due().is_some_and(|due| due <= now) {
            let Some(doubt) = self.kernel.netlink_reconcile.0.pop_front() else { break };
            let Some(entry) = self.kernel.netns.get(&doubt.netns) else { continue };
            let known = entry.addresses.get(&doubt.key);
            // What a probe told shortly before is what netlink repeated, or newer than that.
            let lately = BootNs(doubt.at.0.saturating_sub(APART));
            let missed = if doubt.there {
                let buried = Tombstone::Address(doubt.netns, doubt.key);
                known.is_none() && !self.kernel.tombstones.covers(buried, lately)
            } else {
                known.is_some_and(|known| known.touched < lately)
            };
            if !missed || entry.dying.is_some() {
                continue;
            }
            self.scheduler.doubted(doubt.netns, entry.host, now);
        }
        self.kernel.netlink_reconcile.due()
    }
}
