//! `gateway-neighbour-lost`: a pod's default next hop does not answer.

use crate::fact::BootNs;
use crate::finding::Candidate;
use crate::map::{NodeMap, Policy};

pub(super) fn detect(_map: &NodeMap, _now: BootNs, _policy: &Policy) -> Vec<Candidate> {
    Vec::new()
}
