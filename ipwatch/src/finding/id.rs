//! The id of a finding.

use sha2::{Digest, Sha256};

use super::Code;

/// RFC 4648 base32 in lower case: no character needs quoting, and none is mistaken for another when read out on a call
/// (no 0, 1, 8, 9).
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// The id of the finding with this code and key: 16 characters, 80 bits of SHA-256. The key contains text from outside,
/// so the hash must be collision-resistant.
pub(crate) fn finding_id(code: Code, key: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(code.as_str());
    // No code contains a NUL, so different pairs of code and key are different bytes.
    hash.update([0]);
    hash.update(key);
    base32(&hash.finalize()[..10])
}

fn base32(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(5) * 8);
    let (mut bits, mut held) = (0_u32, 0);
    for byte in bytes {
        bits = bits << 8 | u32::from(*byte);
        held += 8;
        while held >= 5 {
            held -= 5;
            out.push(char::from(ALPHABET[(bits >> held) as usize & 31]));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base32_as_rfc_4648() {
        // Whole groups of five bytes, as used here, need no padding.
        assert_eq!(base32(b"fooba"), "mzxw6ytb");
        assert_eq!(base32(&[0xff; 10]), "7777777777777777");
        assert_eq!(base32(&[0; 10]), "aaaaaaaaaaaaaaaa");
    }

    /// A version with other ids would open every finding of every node a second time.
    #[test]
    fn an_id_never_changes() {
        assert_eq!(
            finding_id(Code::IpHeldByStuckProcess, "boot/4026532177/812/1234"),
            "dvte6lcgcbjvp6en"
        );
    }

    #[test]
    fn code_and_key_do_not_run_together() {
        assert_ne!(
            finding_id(Code::IpHeldByStuckProcess, "a"),
            finding_id(Code::IpHeldByStuckProcess, "\0a")
        );
    }
}
