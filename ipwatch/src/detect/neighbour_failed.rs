//! `neighbour-failed`: a pod's IP does not answer on the node's side of its link.

use crate::fact::BootNs;
use crate::finding::Candidate;
use crate::map::{NodeMap, Policy};

pub(super) fn detect(_map: &NodeMap, _now: BootNs, _policy: &Policy) -> Vec<Candidate> {
    Vec::new()
}
