//! Makes hostile text harmless before it reaches a terminal or a log line.
//!
//! A process chooses its own comm, a container its names, a bind mount its path. Written raw, an escape sequence in one
//! of them can clear the screen of the person on call, a newline can forge a log line, and a bidi override can make one
//! name read as another.

pub(crate) mod quote;

use std::borrow::Cow;
use std::fmt::Write as _;

/// Escapes untrusted text within a message that is not quoted as a whole, such as the reason of an error: characters
/// that make a shell run something or that end a quotation.
#[must_use]
pub(crate) fn defused(text: &str) -> String {
    let spelt = |c: char| "$`;&|<>'\\".contains(c);
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if spelt(c) {
            out.push_str(&format!("\\x{:02x}", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    if out.matches('"').count() % 2 == 1 {
        out = out.replace('"', "\\x22");
    }
    out
}

/// Escapes every character that a terminal acts on, that is invisible, or that changes the reading direction: `\xNN`
/// below U+0080, `\u{…}` above. Text without such characters is borrowed.
///
/// A backslash is not escaped: the result is for reading, not for parsing.
#[must_use]
pub fn escape(text: &str) -> Cow<'_, str> {
    let Some(first) = text.find(is_hostile) else { return Cow::Borrowed(text) };
    let (clean, rest) = text.split_at(first);
    let mut out = String::with_capacity(text.len() + 8);
    out.push_str(clean);
    for c in rest.chars() {
        // Writing to a String cannot fail.
        let _ = match c {
            c if !is_hostile(c) => out.write_char(c),
            c if c.is_ascii() => write!(out, "\\x{:02x}", u32::from(c)),
            c => write!(out, "\\u{{{:x}}}", u32::from(c)),
        };
    }
    Cow::Owned(out)
}

/// Whether a character must not be printed.
fn is_hostile(c: char) -> bool {
    // C0 (including newline, tab and ESC), DEL and C1 (U+009B is an 8-bit CSI).
    c.is_control()
        || matches!(
            c,
            '\u{61c}'                   // Arabic letter mark
            | '\u{200b}'..='\u{200f}'   // zero width, and left-to-right / right-to-left marks
            | '\u{2028}'..='\u{202e}'   // line and paragraph separator, bidi embeddings and overrides
            | '\u{2060}'..='\u{206f}'   // word joiner, invisible operators, bidi isolates
            | '\u{feff}'                // byte order mark
            | '\u{e0000}'..='\u{e007f}' // tags: invisible letters
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_is_borrowed() {
        for text in ["", "java", "späť-π 日本", "a b:c/d\\e"] {
            assert!(matches!(escape(text), Cow::Borrowed(same) if same == text), "{text:?}");
        }
    }

    #[test]
    fn what_a_terminal_acts_on_is_spelt_out() {
        for (hostile, shown) in [
            ("\u{1b}[2J", "\\x1b[2J"),
            ("a\nb\tc\r", "a\\x0ab\\x09c\\x0d"),
            ("\u{7}\u{7f}\0", "\\x07\\x7f\\x00"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("exe\u{202e}fdp", "exe\\u{202e}fdp"),
            ("\u{2066}x\u{2069}", "\\u{2066}x\\u{2069}"),
            ("a\u{2028}b\u{feff}", "a\\u{2028}b\\u{feff}"),
            ("ü\u{1b}ü", "ü\\x1bü"),
        ] {
            assert_eq!(escape(hostile), shown);
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_hostile_is_left(text in ".*") {
            let shown = escape(&text);
            proptest::prop_assert!(!shown.chars().any(is_hostile));
            // Escaping twice changes nothing, so no layer needs to know whether another has done it.
            proptest::prop_assert_eq!(escape(&shown).into_owned(), shown.into_owned());
        }
    }
}
