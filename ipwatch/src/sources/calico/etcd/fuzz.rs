//! Entry point of the fuzz target.

use super::tree::{Event, Refusal, parse};

/// Parses answers of the v2 API: lists, events and errors. Those of v3 are decoded by tonic and prost.
pub fn etcd_v2(bytes: &[u8]) {
    let _ = parse(bytes, |_| true);
    let _ = serde_json::from_slice::<Event>(bytes);
    let _ = serde_json::from_slice::<Refusal>(bytes);
}
