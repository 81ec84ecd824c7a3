//! For the fuzz target.

use super::tree::{Event, Refusal, parse};

/// Answers of the v2 API: lists, events and refusals. What v3 answers is taken apart by tonic and prost.
pub fn etcd_v2(bytes: &[u8]) {
    let _ = parse(bytes, |_| true);
    let _ = serde_json::from_slice::<Event>(bytes);
    let _ = serde_json::from_slice::<Refusal>(bytes);
}
