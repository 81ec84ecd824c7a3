//! Shortened keys of tenures.

use sha2::{Digest, Sha256};

use crate::map::TenureKey;

/// 128 bits in place of a tenure's key: the file has no more of it.
pub(super) fn tenure_hash(key: &TenureKey) -> u128 {
    let digest = Sha256::digest(key.to_string());
    digest[..16].iter().fold(0, |hash, byte| hash << 8 | u128::from(*byte))
}
