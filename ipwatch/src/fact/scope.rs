//! What a dump can enumerate completely: only within such a scope does a missing entry mean that something is absent.

use serde::{Deserialize, Serialize};

use super::NetnsRef;

/// A set that a dump enumerates completely.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "scope")]
pub enum Scope {
    /// Every netns that is alive (`net->list`, which does not contain a netns queued for teardown).
    Netns,
    /// Every task outside the host's netns.
    Tasks,
    /// The links of one netns.
    Links {
        /// The netns.
        netns: NetnsRef,
    },
    /// The addresses of one netns.
    Addresses {
        /// The netns.
        netns: NetnsRef,
    },
    /// The neighbours of one netns.
    Neighbours {
        /// The netns.
        netns: NetnsRef,
    },
    /// The default routes of one netns and those to single IPs.
    Routes {
        /// The netns.
        netns: NetnsRef,
    },
    /// The nsfs mounts of one mount namespace.
    Mounts {
        /// Its inode.
        mount_ns: u64,
    },
    /// Every fd and socket that holds a netns from a process outside it.
    Files,
    /// The CNI result cache.
    Cni,
    /// Every sandbox and container of one runtime.
    Runtime {
        /// Name of its source.
        runtime: String,
    },
    /// Every pod of this node that the API server has.
    Pods,
    /// Every reservation of one store.
    Reservations {
        /// Name of the store.
        store: String,
    },
    /// Every range of one store.
    Ranges {
        /// Name of the store.
        store: String,
    },
    /// Every block of one store.
    Blocks {
        /// Name of the store.
        store: String,
    },
    /// Every endpoint of this node that one datastore has.
    Endpoints {
        /// Name of the source that reports them.
        store: String,
    },
}
