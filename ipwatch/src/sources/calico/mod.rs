//! Calico's own word on its IPs and endpoints. Read only.
//!
//! Calico keeps the same things in one of two places: as objects of the API server, or as keys of an etcd of its
//! own. What they mean is here, whatever they are kept in.
//!
//! - `documents`: the fields that are read of a block and an endpoint.
//! - `blocks`: the blocks of the cluster: what of them is this node's.
//! - `endpoints`: the endpoints of this node.
//! - `kdd`: blocks as objects of the API server. There an endpoint is the pod itself:
//!   [`kubernetes`](super::kubernetes) tells of it.
//! - `keys`, `model`: all of it as keys of an etcd.

#![cfg_attr(
    not(test),
    allow(dead_code, reason = "nothing but tests and fuzzing goes by keys where no etcd is asked")
)]

mod blocks;
mod documents;
mod endpoints;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
pub(in crate::sources) mod kdd;
mod keys;
mod model;

/// Name of the store, and of its source.
pub(in crate::sources) const STORE: &str = "calico";
