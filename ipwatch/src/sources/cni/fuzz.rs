//! For the fuzz target.

use super::cache;

/// A file of the result cache.
pub fn cni_cache(bytes: &[u8]) {
    let _ = cache::parse(bytes);
}
