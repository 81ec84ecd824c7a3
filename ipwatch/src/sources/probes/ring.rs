//! Reads the ring buffers and counts records that did not fit.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::sync::Arc;

use aya::maps::{HashMap, MapData, MapError, PerCpuArray, RingBuf};
use tokio::io::Interest;
use tokio::sync::{Mutex as AsyncMutex, Notify, mpsc, oneshot, watch};

use super::events::{self, Counters};
use super::plugin_file;
use crate::canary::Claims;
use crate::clock;
use crate::fact::Fact;
use crate::reading::Readings;
use crate::rights::{Rights, Starter};
use crate::sources::pace::Pace;
use crate::sources::ready::ready;
use crate::sources::{Closed, Emit};
use ipwatch_common::{CallEndRecord, CallKey, Header, Wire as _, kind};

/// Maximum number of facts sent at a time, so that the map is not blocked for long and memory is bounded.
const BATCH: usize = 512;

/// Maximum number of facts about calls that wait while the map is busy: more than a minute of 50 calls a second. They
/// use memory only then.
const WAITING: usize = 8192;

/// Number of events that were lost because the ring buffer was full. The numbers only grow. Addresses and devices whose
/// netns is known are not among them: that netns is read again by itself ([`super::Owed`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Losses {
    /// Netns created or torn down. Walk the netns again.
    pub netns: u64,
    /// Task events. Take a new task snapshot.
    pub tasks: u64,
    /// Addresses and devices. Dump them again.
    pub addresses: u64,
    /// Neighbours. Netlink reports them too.
    pub neighbours: u64,
    /// Runs of CNI plugins. They cannot be read again.
    pub calls: u64,
    /// Claims of an IP. The next packet repeats the claim.
    pub claims: u64,
    /// Records that the kernel half held back, because one netns, its owner or a link caused too many.
    pub suppressed: u64,
}

impl Losses {
    /// Takes the maximum of each number. Returns whether any grew.
    fn raise(&mut self, other: Self) -> bool {
        let before = *self;
        let Self { netns, tasks, addresses, neighbours, calls, claims, suppressed } = self;
        *netns = other.netns.max(*netns);
        *tasks = other.tasks.max(*tasks);
        *addresses = other.addresses.max(*addresses);
        *neighbours = other.neighbours.max(*neighbours);
        *calls = other.calls.max(*calls);
        *claims = other.claims.max(*claims);
        *suppressed = other.suppressed.max(*suppressed);
        *self != before
    }
}

/// The live events: three ring buffers, each with its own reader. Losses are reported through
/// [`super::Probes::losses`].
#[derive(Debug)]
pub struct Events {
    /// Netns, addresses and devices.
    pub events: Reader,
    /// Neighbour entries and claims of IPs.
    pub neighbours: Reader,
    pub calls: Calls,
}

#[derive(Debug)]
pub struct Calls(Arc<AsyncMutex<Reader>>);

impl Events {
    pub(super) fn new(rings: Rings, counters: &Arc<Counters>, lost: &Arc<Lost>) -> Self {
        let reader = |ring, untold| Reader {
            ring,
            untold,
            counters: Arc::clone(counters),
            lost: Arc::clone(lost),
            drops: 0,
            late: Vec::new(),
        };
        let calls = reader(rings.calls, Some(rings.untold));
        Self {
            events: reader(rings.events, None),
            neighbours: reader(rings.neighbours, None),
            calls: Calls(Arc::new(AsyncMutex::new(calls))),
        }
    }
}

#[cfg(test)]
impl Events {
    /// Runs all until the receiver of `emit` is closed.
    pub(in crate::sources) async fn run(self, emit: Emit, readings: Readings) -> io::Result<()> {
        let Self { mut events, mut neighbours, calls } = self;
        let starter = Starter::start()?;
        let calls = calls.run(&emit, &readings, &starter);
        tokio::try_join!(events.run(&emit), neighbours.run(&emit), calls).map(|_| ())
    }
}

impl Calls {
    /// Turns records into facts until the receiver of `emit` is closed.
    ///
    /// # Errors
    /// The ring buffer cannot be polled, or the thread cannot be started. Unread records remain for the next run.
    pub(crate) async fn run(
        &self,
        emit: &Emit,
        readings: &Readings,
        starter: &Starter,
    ) -> io::Result<()> {
        let (sender, waiting) = mpsc::channel(WAITING);
        let calls = Arc::clone(&self.0);
        let ended = on_a_thread(calls, sender, readings.clone(), emit.claims(), starter)?;
        // Returns when the thread has ended and all that it has read was sent.
        hand_over(waiting, emit).await;
        ended.await.unwrap_or_else(|_| Err(io::Error::other("its thread panicked")))
    }
}

/// What the kernel half writes for [`Events`].
pub(super) struct Rings {
    pub(super) events: RingBuf<MapData>,
    pub(super) neighbours: RingBuf<MapData>,
    pub(super) calls: RingBuf<MapData>,
    pub(super) untold: Untold,
}

/// Ends of runs that did not fit into the ring buffer.
pub(super) type Untold = HashMap<MapData, CallKey, [u8; CallEndRecord::SIZE]>;

/// Where a reader sends facts.
enum Out<'a> {
    Map(&'a Emit),
    Waiting(mpsc::Sender<Fact>),
}

impl Out<'_> {
    async fn tell(&self, facts: Vec<Fact>) -> Result<(), Closed> {
        match self {
            Self::Map(emit) => emit.send(facts).await,
            Self::Waiting(sender) => {
                for fact in facts {
                    sender.send(fact).await.map_err(|_| Closed)?;
                }
                Ok(())
            }
        }
    }
}

/// Reads the calls on a thread of their own: while the map works, nothing else runs on the daemon's only thread, and on
/// a busy node that can last longer than the ring buffer has room for. The receiver gets the result when the thread
/// ends.
fn on_a_thread(
    calls: Arc<AsyncMutex<Reader>>,
    sender: mpsc::Sender<Fact>,
    readings: Readings,
    claims: Arc<Claims>,
    starter: &Starter,
) -> io::Result<oneshot::Receiver<io::Result<()>>> {
    let runtime = calls_runtime()?;
    let read = async move {
        let closed = sender.clone();
        // The previous thread has released the lock, or is about to.
        let mut calls = calls.lock().await;
        tokio::select! {
            read = calls.read(Out::Waiting(sender), &claims) => read,
            () = closed.closed() => Ok(()),
        }
    };
    let (done, ended) = oneshot::channel();
    let work = move || {
        plugin_file::leave_behind(readings);
        // Fails if there is no receiver any more: the daemon is shutting down.
        let _ = done.send(runtime.block_on(read));
    };
    starter.spawn("calls", Rights::Read, work)?;
    Ok(ended)
}

/// With timers, because records wait for the canary ([`Claims::settled`]).
fn calls_runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()
}

async fn hand_over(mut waiting: mpsc::Receiver<Fact>, emit: &Emit) {
    loop {
        let mut facts = Vec::new();
        if waiting.recv_many(&mut facts, BATCH).await == 0 || emit.send(facts).await.is_err() {
            return;
        }
    }
}

pub struct Reader {
    ring: RingBuf<MapData>,
    untold: Option<Untold>,
    counters: Arc<Counters>,
    lost: Arc<Lost>,
    /// The value of [`Counts::drops`] at the last check.
    drops: u64,
    /// Ends of runs that were found outside the ring buffer. They are sent after everything in the ring buffer.
    late: Vec<Fact>,
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

impl Reader {
    /// Turns records into facts until the receiver of `emit` is closed.
    ///
    /// # Errors
    /// The ring buffer cannot be polled. Unread records remain for the next run.
    pub async fn run(&mut self, emit: &Emit) -> io::Result<()> {
        self.read(Out::Map(emit), &emit.claims()).await
    }

    /// Reads until the receiver is closed.
    async fn read(&mut self, out: Out<'_>, claims: &Claims) -> io::Result<()> {
        // SAFETY: the ring buffer owns its map's fd and lives longer than this borrow of it.
        let fd = unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) };
        // A duplicate fd, so that the ring buffer survives a failed registration.
        let readable = ready(fd.try_clone_to_owned()?, Interest::READABLE)?;
        let mut pace = Pace::new(clock::now());
        loop {
            claims.settled().await;
            let mut guard = readable.readable().await?;
            let mut facts = Vec::with_capacity(64);
            let mut empty = false;
            while facts.len() < BATCH && !claims.is_held() {
                let Some(record) = self.ring.next() else {
                    empty = true;
                    break;
                };
                if is_owed(&record) {
                    self.lost.owed.notify_one();
                } else {
                    decode(&record, &self.counters, claims, &mut facts);
                }
            }
            if empty {
                facts.append(&mut self.late);
            }
            if self.lost.is_news(&mut self.drops) {
                self.late.extend(
                    self.untold
                        .as_mut()
                        .into_iter()
                        .flat_map(|map| take(map, &self.counters, claims)),
                );
            }
            if empty && self.late.is_empty() {
                guard.clear_ready();
            }
            if out.tell(facts).await.is_err() {
                return Ok(());
            }
            if empty {
                pace.after_read().await;
            }
        }
    }
}

/// Whether a record says that the table of what is owed has new entries.
fn is_owed(mut record: &[u8]) -> bool {
    Header::take(&mut record).is_some_and(|header| header.kind == kind::OWED)
}

fn decode(record: &[u8], counters: &Counters, claims: &Claims, facts: &mut Vec<Fact>) {
    if claims.claims(record) {
        return;
    }
    match events::decode(record, facts) {
        Ok(kind) => counters.count(kind),
        Err(malformed) => tracing::warn!(%malformed, "probes: a record was skipped"),
    }
}

/// Removes the stored ends and returns them, the oldest first.
fn take(untold: &mut Untold, counters: &Counters, claims: &Claims) -> Vec<Fact> {
    let keys: Vec<CallKey> = untold.keys().filter_map(Result::ok).collect();
    let mut facts = Vec::with_capacity(keys.len());
    for key in keys {
        if let Ok(record) = untold.get(&key, 0) {
            decode(&record, counters, claims, &mut facts);
            let _ = untold.remove(&key);
        }
    }
    facts.sort_by_key(|fact| fact.at);
    facts
}

/// Records that did not fit.
pub(super) struct Lost {
    pub(super) counts: Arc<Counts>,
    pub(super) losses: watch::Sender<Losses>,
    /// Wakes the reader of what is owed.
    pub(super) owed: Arc<Notify>,
}

impl Lost {
    /// Whether records were lost since the last check, whose count is in `drops`. If so, updates `losses`.
    pub(super) fn is_news(&self, drops: &mut u64) -> bool {
        match self.counts.drops() {
            Ok(now) if now == *drops => return false,
            Ok(now) => *drops = now,
            Err(error) => tracing::warn!(%error, "probes: the loss counter cannot be read"),
        }
        self.owed.notify_one();
        match self.counts.read() {
            Ok(losses) => {
                // Two threads update it. The numbers only grow, so an older reading changes nothing.
                self.losses.send_if_modified(|told| told.raise(losses));
            }
            Err(error) => tracing::warn!(%error, "probes: the loss counters cannot be read"),
        }
        true
    }
}

pub(super) struct Counts {
    pub(super) drops: PerCpuArray<MapData, u64>,
    pub(super) dropped: PerCpuArray<MapData, u64>,
    /// As `dropped`, of netns that are read again by themselves.
    pub(super) overrun: PerCpuArray<MapData, u64>,
    pub(super) suppressed: PerCpuArray<MapData, u64>,
    pub(super) seen: PerCpuArray<MapData, u64>,
}

impl Counts {
    /// A single number that grows when a record did not fit.
    fn drops(&self) -> Result<u64, MapError> {
        sum(&self.drops, 0)
    }

    /// Number of records of one kind that were dropped or suppressed.
    pub(super) fn of(&self, kind: u16) -> u64 {
        let count = |counters| sum(counters, u32::from(kind)).unwrap_or_default();
        count(&self.dropped) + count(&self.overrun) + count(&self.suppressed)
    }

    /// Number of events of one kind that the kernel half counted.
    pub(super) fn seen(&self, kind: u16) -> u64 {
        sum(&self.seen, u32::from(kind)).unwrap_or_default()
    }

    fn read(&self) -> Result<Losses, MapError> {
        let mut losses = Losses::default();
        for kind in kind::NETNS_CREATED..=kind::CALL_REFUSED {
            losses.suppressed += sum(&self.suppressed, u32::from(kind))?;
            let lost = sum(&self.dropped, u32::from(kind))?;
            *match kind {
                kind::NETNS_CREATED..=kind::NETNS_GONE => &mut losses.netns,
                kind::TASK_FORK..=kind::SIGNAL => &mut losses.tasks,
                kind::IPV4_UP..=kind::DEVICE_MOVED => &mut losses.addresses,
                kind::NEIGHBOUR => &mut losses.neighbours,
                kind::CLAIM..=kind::CLAIM_ON_WIRE => &mut losses.claims,
                _ => &mut losses.calls,
            } += lost;
        }
        Ok(losses)
    }
}

fn sum(counters: &PerCpuArray<MapData, u64>, index: u32) -> Result<u64, MapError> {
    counters.get(&index, 0).map(|cpus| cpus.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_of_the_calls_can_wait_for_the_canary() {
        let emit = Emit::channel(1).0;
        let claims = emit.claims();
        claims.hold(std::time::Duration::from_millis(20));
        calls_runtime().unwrap().block_on(claims.settled());
        assert!(!claims.is_held());
    }
}
