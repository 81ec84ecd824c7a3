//! Percent-encodes text for a URL.

/// Encodes a text as a path segment or a query value.
pub(super) fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leaves_its_part() {
        assert_eq!(encoded("node-1.a_b~"), "node-1.a_b~");
        assert_eq!(encoded("a/../b?c=d&e#f g"), "a%2F..%2Fb%3Fc%3Dd%26e%23f%20g");
        assert_eq!(encoded("ä\n"), "%C3%A4%0A");
    }
}
