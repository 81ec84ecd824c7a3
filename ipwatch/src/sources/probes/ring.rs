//! Reading the ring buffer and counting what did not fit.

use std::fmt;
use std::io;
use std::sync::Arc;

use aya::maps::{MapData, PerCpuArray, RingBuf};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use super::events::{self, Counters};
use crate::sources::Emit;
use ipwatch_common::kind;

/// Facts handed over at a time: the map is never held up for long, and memory is bounded.
const BATCH: usize = 512;

/// Events that were lost because nobody read them in time. Each number only ever grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Losses {
    /// Netns made or torn down: walk the netns again.
    pub netns: u64,
    /// Tasks and signals: take a new task snapshot.
    pub tasks: u64,
    /// Addresses and devices: dump them again.
    pub addresses: u64,
    /// Neighbours: dump them again.
    pub neighbours: u64,
    /// Runs of CNI plugins: nothing tells of them again.
    pub calls: u64,
    /// Neighbour updates that the kernel half held back, because there were too many in one second.
    pub suppressed: u64,
}

/// The live end of the probes.
pub struct Events {
    ring: AsyncFd<RingBuf<MapData>>,
    capacity: usize,
    counts: Counts,
    counters: Arc<Counters>,
    losses: watch::Sender<Losses>,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

impl Events {
    pub(super) fn new(
        ring: RingBuf<MapData>,
        capacity: usize,
        counts: Counts,
        counters: Arc<Counters>,
        losses: watch::Sender<Losses>,
    ) -> io::Result<Self> {
        // SAFETY: the ring buffer owns its map's fd, gives the same one whenever it is asked, and
        // closes it no sooner than it is dropped, which is after its registration.
        let ring = unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) }?;
        Ok(Self { ring, capacity, counts, counters, losses })
    }

    /// Turns records into facts until the receiving end of `emit` goes away. Losses are told through
    /// [`super::Probes::losses`].
    ///
    /// # Errors
    /// The ring buffer cannot be polled.
    pub async fn run(mut self, emit: Emit) -> io::Result<()> {
        let mut drained = 0;
        loop {
            let mut guard = self.ring.readable_mut().await?;
            let mut facts = Vec::with_capacity(64);
            let ring = guard.get_inner_mut();
            let mut empty = false;
            while facts.len() < BATCH {
                let Some(record) = ring.next() else {
                    empty = true;
                    break;
                };
                // A record takes an 8-byte header and is aligned to 8 bytes.
                drained += record.len().next_multiple_of(8) + 8;
                match events::decode(&record, &mut facts) {
                    Ok(kind) => self.counters.count(kind),
                    Err(malformed) => tracing::warn!(%malformed, "probes: a record was skipped"),
                }
            }
            if empty {
                guard.clear_ready();
            }
            if emit.send(facts).await.is_err() {
                return Ok(());
            }
            // Nothing is lost unless the buffer was full, and then all of it is read now: there is
            // no need to look at the counters otherwise.
            if drained >= self.capacity / 2 {
                drained = 0;
                self.tell_losses();
            } else if empty {
                drained = 0;
            }
        }
    }

    fn tell_losses(&self) {
        match self.counts.read() {
            Ok(losses) => {
                self.losses.send_if_modified(|told| {
                    let more = *told != losses;
                    *told = losses;
                    more
                });
            }
            Err(error) => tracing::warn!(%error, "probes: the loss counters cannot be read"),
        }
    }
}

/// The kernel half's counters.
pub(super) struct Counts {
    pub(super) dropped: PerCpuArray<MapData, u64>,
    pub(super) suppressed: PerCpuArray<MapData, u64>,
}

impl Counts {
    fn read(&self) -> Result<Losses, aya::maps::MapError> {
        let sum = |counters: &PerCpuArray<MapData, u64>, index: u32| {
            counters.get(&index, 0).map(|cpus| cpus.iter().sum::<u64>())
        };
        let mut losses = Losses { suppressed: sum(&self.suppressed, 0)?, ..Losses::default() };
        for kind in kind::NETNS_CREATED..=kind::CALL_ENDED {
            let lost = sum(&self.dropped, u32::from(kind))?;
            *match kind {
                kind::NETNS_CREATED..=kind::NETNS_GONE => &mut losses.netns,
                kind::TASK_FORK..=kind::SIGNAL => &mut losses.tasks,
                kind::IPV4_UP..=kind::DEVICE_MOVED => &mut losses.addresses,
                kind::NEIGHBOUR => &mut losses.neighbours,
                _ => &mut losses.calls,
            } += lost;
        }
        Ok(losses)
    }
}
