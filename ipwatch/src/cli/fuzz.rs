//! Entry for the fuzz target.

use super::paste::Pasted;

/// Parses text as if pasted into `explain`.
pub fn paste(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let pasted = Pasted::read(&text);
    let _ = (pasted.means(), pasted.code(), pasted.matching(&[]));
    let _ = crate::escape::escape(&text);
}
