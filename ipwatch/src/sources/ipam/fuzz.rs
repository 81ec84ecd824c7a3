//! For the fuzz targets.

use std::path::Path;

use super::bolt::Snapshot;
use super::{aws, cilium, conflist, host_local, libnetwork, netavark, terway};

const PATH: &str = "/t";

/// A bolt file, as each of the stores in one.
pub fn bolt(bytes: &[u8]) {
    let Ok(snapshot) = Snapshot::parse(bytes.to_vec(), "") else { return };
    let path = Path::new(PATH);
    let _ = libnetwork::content(&snapshot, path);
    let _ = terway::content(&snapshot, path);
    let _ = netavark::content(&snapshot, path);
}

/// A document of libnetwork, as each kind.
pub fn libnetwork(bytes: &[u8]) {
    libnetwork::document(bytes, Path::new(PATH));
}

/// A pod's resources in Terway's file.
pub fn terway(bytes: &[u8]) {
    let _ = terway::add(&mut Vec::new(), Path::new(PATH), b"namespace/pod", bytes);
}

/// The file of a network of podman's.
pub fn netavark(bytes: &[u8]) {
    let _ = netavark::range(bytes, Path::new(PATH));
}

/// A reservation of host-local.
pub fn host_local(bytes: &[u8]) {
    let _ = host_local::parse(bytes);
}

/// A network configuration.
pub fn conflist(bytes: &[u8]) {
    let _ = conflist::parse(bytes);
}

/// The AWS VPC CNI's checkpoint.
pub fn aws(bytes: &[u8]) {
    let _ = aws::parse(bytes, PATH);
}

/// Cilium's state of an endpoint, in both shapes.
pub fn cilium(bytes: &[u8]) {
    let _ = cilium::parse(bytes, PATH);
    let _ = cilium::parse_header(bytes, PATH);
}
