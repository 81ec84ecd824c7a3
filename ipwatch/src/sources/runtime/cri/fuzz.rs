//! Entry point of the fuzz target.

use prost::Message as _;

use super::{info, messages};

/// Parses answers of a CRI runtime, and the JSON in them.
pub fn cri(bytes: &[u8]) {
    let _ = info::read(bytes);
    let _ = messages::PodSandboxStatusResponse::decode(bytes);
}
