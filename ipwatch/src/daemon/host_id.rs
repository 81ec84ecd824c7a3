//! An id of this host for telemetry, which stays the same over restarts of ipwatch and of the node.
//!
//! `/etc/machine-id` is confidential (machine-id(5)): a program publishes a hash of it that is keyed with its own
//! application id, so that nobody learns the machine id from it, or compares it with what other programs publish.

use std::path::Path;

use sha2::{Digest as _, Sha256};

use crate::bounded;

/// Ours. Another one would make another id of each host.
const APPLICATION: [u8; 16] = 0x3f0c_6f1e_5f0b_4a7c_9b0e_7d2c_4a11_58d6_u128.to_be_bytes();
/// Of SHA-256, in bytes.
const BLOCK: usize = 64;

/// The id of this host; absent if it has no machine id.
pub(super) fn host_id() -> Option<String> {
    let text = bounded::read_regular(Path::new("/etc/machine-id"), 64).ok()?.bytes;
    of(str::from_utf8(&text).ok()?)
}

/// What `systemd-id128 machine-id --app-specific` prints (`sd_id128_get_machine_app_specific(3)`).
fn of(machine_id: &str) -> Option<String> {
    let text = machine_id.trim_end();
    if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let machine = u128::from_str_radix(text, 16).ok().filter(|id| *id != 0)?.to_be_bytes();
    let mut id = [0; 16];
    id.copy_from_slice(&hmac(&machine, &APPLICATION)[..16]);
    // A UUID of version 4.
    id[6] = (id[6] & 0x0f) | 0x40;
    id[8] = (id[8] & 0x3f) | 0x80;
    Some(id.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// HMAC-SHA256 (RFC 2104) with a key that is no longer than a block.
fn hmac(key: &[u8; 16], message: &[u8]) -> [u8; 32] {
    let pad = |with: u8| {
        let mut block = [with; BLOCK];
        block.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
        block
    };
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `systemd-id128 machine-id --app-specific=3f0c6f1e5f0b4a7c9b0e7d2c4a1158d6` of systemd 252 says.
    #[test]
    fn it_is_what_systemd_makes_of_the_machine_id() {
        let id = of("3d1219c7c4c5404aaa1f6d2a48adfda4\n");
        assert_eq!(id.as_deref(), Some("c1238f1f0bcf4fc487d067fa2f3f0140"));
    }

    #[test]
    fn what_is_no_machine_id_makes_none() {
        let zeros = "0".repeat(32);
        for text in ["", "uninitialized\n", &zeros, "3d1219c7c4c5404aaa1f6d2a48adfda"] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
