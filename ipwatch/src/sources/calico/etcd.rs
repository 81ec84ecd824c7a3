//! Calico's datastore in an etcd of its own: v3 through gRPC, v2 through HTTP. Read only.
//!
//! - `settings`: the configuration.
//! - `connection`: endpoints, files, connections.
//! - `reflector`: runs sessions, with pauses between them.
//! - `v3`: list by pages, watch, resume. `grpc`, `messages`: its calls. `status`: its errors.
//! - `v2`: list, long polls, resume. `http`: its requests. `tree`: its documents.
//! - `pools`: the pools, through either API.
//! - `reporter`: turns what was read into facts.

mod connection;
mod error;
#[cfg(test)]
mod fake;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod grpc;
mod http;
mod messages;
mod pools;
mod reflector;
mod reporter;
mod settings;
mod status;
#[cfg(test)]
mod tests;
mod tree;
mod v2;
mod v3;

use std::time::Duration;

pub use self::error::EtcdError;
pub use self::settings::{Settings, Version};

use super::keys::Keys;
use crate::fact::SourceStatus;
use crate::sources::Emit;

/// Maximum number of keys that are followed: 5,000 nodes with 10 blocks each, and their pods.
const MOST_KEYS: usize = 500_000;
/// Maximum length in bytes of a key. The longest names of a node, a namespace and a pod need about 1,200; etcd has no
/// limit.
const LONGEST_KEY: usize = 2048;
/// Maximum length in bytes of a value. A block of 64 IPs has about 16 KiB, and etcd accepts at most 1.5 MiB.
const VALUE_LIMIT: usize = 1 << 20;

/// Timeouts of each step, and the pauses between. Pauses are jittered by half.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// For reading the files, and for connecting.
    open: Duration,
    /// Until the start of an answer.
    answer: Duration,
    /// For one page of a list, or for a whole list without pages.
    list: Duration,
    /// Interval and timeout of keepalive pings. etcd disconnects a client that pings more often than every 5 s.
    ping: (Duration, Duration),
    /// Interval of checks whether the server is alive.
    alive: Duration,
    /// For one long poll.
    poll: Duration,
    /// After this time a session counts as successful.
    well: Duration,
    /// First and longest pause after a failure.
    retry: (Duration, Duration),
}

impl Default for Pace {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self {
            open: s(15),
            answer: s(15),
            list: s(60),
            ping: (s(10), s(5)),
            alive: s(30),
            poll: s(300),
            well: s(10),
            retry: (s(1), s(60)),
        }
    }
}

/// Starts the source, if endpoints are configured. `node`: the name of this node. Must be called within the tokio
/// runtime.
pub(super) fn start<K: Keys>(settings: &Settings, node: &str, keys: K, emit: &Emit) {
    let (settings, emit) = (settings.clone(), emit.clone());
    if settings.etcd_endpoints.is_empty() {
        return;
    }
    let reporter = reporter::Reporter::new(keys, emit);
    match settings.etcd_api {
        Version::V3 => {
            tokio::spawn(reflector::run(v3::Store, settings, Pace::default(), reporter));
        }
        Version::V2 => {
            // Its connections have no pings.
            let pace = Pace { alive: Duration::from_secs(15), ..Pace::default() };
            tokio::spawn(reflector::run(v2::Store::new(node), settings, pace, reporter));
        }
    }
}

/// The same for the pools.
pub(super) fn start_pools<K: Keys>(settings: &Settings, keys: K, emit: &Emit) {
    let (settings, emit) = (settings.clone(), emit.clone());
    if settings.etcd_endpoints.is_empty() {
        return;
    }
    let reporter = reporter::Reporter::new(keys, emit);
    let pace = Pace { retry: pools::RETRY, ..Pace::default() };
    match settings.etcd_api {
        Version::V3 => {
            tokio::spawn(reflector::run(pools::Pools(pools::V3), settings, pace, reporter))
        }
        Version::V2 => {
            tokio::spawn(reflector::run(pools::Pools(pools::V2), settings, pace, reporter))
        }
    };
}
