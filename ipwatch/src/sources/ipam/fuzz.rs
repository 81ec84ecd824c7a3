//! Entry points of the fuzz targets.

use std::path::Path;

use super::bolt::Snapshot;
use super::{aws, cilium, conflist, host_local, libnetwork, netavark, terway};

const PATH: &str = "/t";

/// Parses a bolt file as each of the stores that use one.
pub fn bolt(bytes: &[u8]) {
    let Ok(snapshot) = Snapshot::parse(bytes.to_vec(), "") else { return };
    let path = Path::new(PATH);
    let _ = libnetwork::content(&snapshot, path);
    let _ = terway::content(&snapshot, path);
    let _ = netavark::content(&snapshot, path);
}

/// Parses a document of libnetwork, as each kind.
pub fn libnetwork(bytes: &[u8]) {
    libnetwork::document(bytes, Path::new(PATH));
}

/// Parses a pod's resources in Terway's file.
pub fn terway(bytes: &[u8]) {
    let _ = terway::add(&mut Vec::new(), Path::new(PATH), b"namespace/pod", bytes);
}

/// Parses the file of a podman network.
pub fn netavark(bytes: &[u8]) {
    let _ = netavark::range(bytes, Path::new(PATH));
}

/// Parses a reservation of host-local.
pub fn host_local(bytes: &[u8]) {
    let _ = host_local::parse(bytes);
}

/// Parses a network configuration.
pub fn conflist(bytes: &[u8]) {
    let _ = conflist::parse(bytes);
}

/// Parses the AWS VPC CNI's checkpoint.
pub fn aws(bytes: &[u8]) {
    let _ = aws::parse(bytes, PATH);
}

/// Parses Cilium's state of an endpoint, in both formats.
pub fn cilium(bytes: &[u8]) {
    let _ = cilium::parse(bytes, PATH);
    let _ = cilium::parse_header(bytes, PATH);
}
