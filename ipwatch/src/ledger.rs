//! The ledger: turns candidates into findings with a state over time, and stores that on disk.
//!
//! - `state`: the current findings and tenures, and what must be written of them; pure. Its parts: [`life`] (pending,
//!   firing, resolved), [`tenure`] (who held an IP from when to when) and `flaps` (the limit on rows of one netns).
//! - `file`: opens the file, reads it back and queues rows. `backlog`, `writer`: the thread that writes it. `store`,
//!   `tables`, `seal`: the file itself; `claim`: the lock on its directory.
//!
//! Within one boot, ids, `since` and `firing_at` survive the daemon, kill -9 included. A reboot ends everything: no
//! netns outlives it, so what an earlier boot left open is closed and never merged with current observations.

mod backlog;
mod claim;
mod file;
mod flaps;
mod format;
mod id;
pub mod life;
mod seal;
mod state;
mod store;
mod tables;
pub mod tenure;
mod writer;

pub use self::file::{History, LedgerError, LedgerFile, Retention, Written};
pub use self::format::Loaded;
pub use self::state::{AckRequest, Ledger, Writes};
pub use self::tenure::Row as TenureRow;

#[cfg(test)]
mod tests;
