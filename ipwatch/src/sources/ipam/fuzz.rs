//! For the fuzz targets.

use std::path::Path;

use super::bolt::Snapshot;
use super::{libnetwork, netavark, terway};

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
