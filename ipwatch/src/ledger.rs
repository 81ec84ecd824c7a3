//! The ledger: candidates become findings with a life, and the life is on disk.
//!
//! - `state`: findings and tenures as they stand, and what of them is to be written; pure. Its parts: [`life`]
//!   (pending, firing, resolved), [`tenure`] (who held an IP from when to when) and `flaps` (how many rows of these one
//!   netns may have).
//! - `file`: what opens the file, reads back and queues. `backlog`, `writer`: the thread that writes it.
//!   `store`, `tables`, `seal`: the file itself; `claim`: its directory, which is one daemon's.
//!
//! Within one boot, ids, `since` and `firing_at` survive the daemon, kill -9 included. A reboot ends
//! everything: no netns outlives it, so what an earlier boot left open is closed and never merged
//! with what is seen now.

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
pub use self::state::{Ledger, Word, Writes};

#[cfg(test)]
mod tests;
