//! Entry point of the fuzz target.

use prost::Message as _;
use prost::bytes::Bytes;

use super::messages;
use crate::sources::kubernetes::pods;

/// Parses answers of the kubelet's pod API: a list, and one pod.
pub fn kubelet(bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    let list = messages::Pods::decode(bytes.clone()).unwrap_or_default();
    for pod in list.pods.iter().chain([&bytes]) {
        let _ = messages::read(pod).and_then(pods::fact);
    }
}
