//! Reports the netns of which the kernel half has not told every event, so that they alone are read again.
//!
//! The kernel half wakes the reader once, however much is lost until the reader has looked. An entry is taken out of the
//! table before its netns is reported: what is lost while the netns is being read makes another entry.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use aya::maps::{Array, HashMap, MapData};
use ipwatch_common::{MOST_OWED, Owed as Record, Wire as _};
use tokio::sync::Notify;

use super::events;
use crate::clock;
use crate::fact::{Fact, Observation, Origin, Unreported};
use crate::sources::Emit;

/// Between the first loss and the look, so that several losses are handled together, and between two looks.
const PAUSE: Duration = Duration::from_millis(100);
/// Between two looks at most.
const IDLE: Duration = Duration::from_secs(30);

/// Indexes of `owes`, as in the kernel half (`ipwatch-ebpf/src/owed.rs`).
const WOKEN: u32 = 0;
const TO_USERS: u32 = 1;
const TO_ALL_USERS: u32 = 2;

/// The table that the kernel half fills.
pub(super) struct Table {
    pub(super) owed: HashMap<MapData, u64, [u8; Record::SIZE]>,
    pub(super) owes: Array<MapData, u32>,
}

/// Reads the table when it is woken.
pub struct Owed {
    table: Table,
    wake: Arc<Notify>,
}

impl std::fmt::Debug for Owed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owed").finish_non_exhaustive()
    }
}

impl Owed {
    pub(super) fn new(table: Table, wake: Arc<Notify>) -> Self {
        Self { table, wake }
    }

    /// Reports until the receiver of `emit` is closed.
    ///
    /// # Errors
    /// The table cannot be written to. Its entries remain for the next run.
    pub async fn run(&mut self, emit: &Emit) -> io::Result<()> {
        loop {
            tokio::time::sleep(PAUSE).await;
            // The names of the canary's netns may not be known yet.
            emit.claims().settled().await;
            if emit.send(self.take()?).await.is_err() {
                return Ok(());
            }
            // The flag is set and the entry is made without an order between them: one in a very long time is found late.
            let _ = tokio::time::timeout(IDLE, self.wake.notified()).await;
        }
    }

    fn take(&mut self) -> io::Result<Vec<Fact>> {
        // Reset first: an entry added to a table that was already read then wakes the reader again.
        self.table.owes.set(WOKEN, 0, 0).map_err(io::Error::other)?;
        let to_all_users = self.table.owes.get(&TO_ALL_USERS, 0).is_ok_and(|all| all != 0);
        self.table.owes.set(TO_ALL_USERS, 0, 0).map_err(io::Error::other)?;
        let keys = self.table.owed.keys().filter_map(Result::ok);
        let keys: BTreeSet<u64> = keys.take(MOST_OWED as usize).collect();
        let mut records = Vec::with_capacity(keys.len());
        for key in keys {
            let record = self.table.owed.get(&key, 0).ok();
            if self.table.owed.remove(&key).is_ok() {
                records.extend(record.and_then(|bytes| events::whole::<Record>(&bytes)));
            }
        }
        // Not before: until then users' entries are in the table that others need.
        self.table.owes.set(TO_USERS, 0, 0).map_err(io::Error::other)?;
        // After the last entry was taken out: every event in them is earlier.
        let at = clock::now();
        let users = to_all_users.then_some(Observation::LostInUsers);
        let all = records.iter().map(unreported).chain(users);
        Ok(all.map(|what| Fact { at, origin: Origin::Probe, what }).collect())
    }
}

fn unreported(record: &Record) -> Observation {
    let Record { netns, addresses, neighbours, claims, tasks, overrun, .. } = record;
    let unreported = Unreported {
        addresses: u64::from(*addresses),
        neighbours: u64::from(*neighbours),
        claims: u64::from(*claims),
        tasks: u64::from(*tasks),
        overrun: u64::from(*overrun),
    };
    Observation::LostIn { netns: events::netns_ref(netns), unreported }
}
