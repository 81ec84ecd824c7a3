//! Text of others within a sentence of ours: as it is where it is one plain word, else quoted.

use std::fmt::Write as _;

use super::escape;

/// Longest value that is quoted whole, in characters.
const LONGEST: usize = 128;

/// A value in double quotes. What a terminal or a shell acts on is spelt out: nothing in it ends the quotation, and a
/// sentence that is pasted into a shell runs nothing of it. What is too long is cut, and says so outside of the quotes.
pub(crate) fn quote(value: &str, out: &mut String) {
    let end = value.char_indices().nth(LONGEST).map(|(at, _)| at);
    let mut rest = &value[..end.unwrap_or(value.len())];
    out.push('"');
    while let Some(at) = rest.find(is_acted_on) {
        let (before, from) = rest.split_at(at);
        out.push_str(&escape(before));
        let mut chars = from.chars();
        // Writing to a String cannot fail.
        let _ = chars.next().map(|c| write!(out, "\\x{:02x}", u32::from(c)));
        rest = chars.as_str();
    }
    out.push_str(&escape(rest));
    out.push('"');
    if end.is_some() {
        out.push_str(" (cut)");
    }
}

/// What a shell acts on within double quotes: expansions, and at a prompt of bash `!` (history). An apostrophe would end
/// a quotation that one of our own words began, as in `the pod's`.
fn is_acted_on(c: char) -> bool {
    matches!(c, '"' | '\'' | '$' | '`' | '\\' | '!')
}

/// Prose that a command follows on the same line, without apostrophes of ours: pasted, one would begin a quotation that
/// ends within the command, at the first quote there.
pub(crate) fn before_command(prose: &str) -> String {
    prose.replace('\'', "\u{2019}")
}

/// Ends a quotation that a cut has left open. What follows is pasted with it: the next value would stand outside of its
/// quotes.
pub(crate) fn end_of_quotation(cut: &str) -> &'static str {
    if cut.matches('"').count() % 2 == 1 { "\"" } else { "" }
}

/// The ends and the state of a connection (`tcp LOCAL → REMOTE STATE`), as they are if they are nothing else.
pub(crate) fn connection(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').collect();
    match words[..] {
        [protocol, local, "→", remote, state]
            if [protocol, local, remote, state].into_iter().all(is_plain) =>
        {
            text.to_owned()
        }
        _ => said(text),
    }
}

/// One word that reads as one, and that a shell takes as it is.
fn is_plain(value: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._/:=@%+,-[]".contains(&byte);
    !value.is_empty() && value.len() <= 1024 && value.bytes().all(plain)
}

/// A value within evidence: as it is where it is one plain word, else quoted as in prose.
pub(crate) fn said(value: &str) -> String {
    if is_plain(value) {
        return value.to_owned();
    }
    let mut out = String::new();
    quote(value, &mut out);
    out
}
