//! Entry points of the fuzz targets.

pub use super::cri::fuzz::cri;
pub use super::docker::fuzz::docker;
