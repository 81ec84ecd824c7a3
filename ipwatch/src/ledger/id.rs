//! Shortened keys of tenures.

use sha2::{Digest, Sha256};

/// 128 bits in place of a tenure's key, because keys take most of the memory of open tenures.
pub(super) fn tenure_hash(key: &str) -> u128 {
    let digest = Sha256::digest(key);
    digest[..16].iter().fold(0, |hash, byte| hash << 8 | u128::from(*byte))
}
