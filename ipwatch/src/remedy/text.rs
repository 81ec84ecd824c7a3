//! Prose: our own words, and values that others chose, each quoted.

use std::fmt::{self, Write as _};
use std::net::IpAddr;

use crate::escape::escape;
use crate::fact::Mac;

/// Longest value that is quoted whole, in characters.
const LONGEST: usize = 128;

/// Prose made of our own words and of quoted values.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Text(String);

/// What prose and words are made of.
#[derive(Debug, Clone)]
pub enum Part<'a> {
    /// Our own.
    Own(&'static str),
    /// Made of nothing but a number, an IP, a MAC.
    Plain(String),
    /// Chosen by somebody else.
    Value(&'a str),
    /// Prose.
    Text(Text),
}

/// What somebody else chose.
pub(crate) fn value(text: &str) -> Part<'_> {
    Part::Value(text)
}

/// Prose with a `{}` for each part: `text!("{ip} is held by pid {}", …)` without names in the braces.
macro_rules! text {
    ($own:literal $(, $part:expr)* $(,)?) => {{
        const _: () = assert!(
            $crate::remedy::text::holes($own)
                == <[&str]>::len(&[$(stringify!($part)),*]),
            "as many parts as there are places for them"
        );
        $crate::remedy::text::Text::of($own, &[$($crate::remedy::text::Part::from($part)),*])
    }};
}
pub(crate) use text;

/// How many `{}` a text has.
pub(crate) const fn holes(text: &str) -> usize {
    let (bytes, mut at, mut count) = (text.as_bytes(), 1, 0);
    while at < bytes.len() {
        if bytes[at - 1] == b'{' && bytes[at] == b'}' {
            count += 1;
        }
        at += 1;
    }
    count
}

impl Text {
    /// Our own words.
    #[must_use]
    pub fn own(text: &'static str) -> Self {
        Self(text.to_owned())
    }

    /// As [`text!`].
    pub(crate) fn of(own: &'static str, parts: &[Part<'_>]) -> Self {
        let mut out = String::with_capacity(own.len() + 16 * parts.len());
        let mut parts = parts.iter();
        for (at, piece) in own.split("{}").enumerate() {
            if at > 0 {
                match parts.next() {
                    Some(Part::Own(own)) => out.push_str(own),
                    Some(Part::Plain(plain)) => out.push_str(plain),
                    Some(Part::Value(value)) => quote(value, &mut out),
                    Some(Part::Text(text)) => out.push_str(&text.0),
                    None => {}
                }
            }
            out.push_str(piece);
        }
        Self(out)
    }

    /// This, and then more.
    #[must_use]
    pub fn then(mut self, more: &Text) -> Self {
        self.0.push_str(&more.0);
        self
    }

    /// Several, with our own words between them.
    #[must_use]
    pub fn join(texts: impl IntoIterator<Item = Text>, between: &'static str) -> Self {
        let texts: Vec<String> = texts.into_iter().map(|text| text.0).collect();
        Self(texts.join(between))
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As it reads.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A value in double quotes. What a terminal or a shell acts on is spelt out: nothing in it ends the quotation, and a
/// sentence that is pasted into a shell runs nothing of it. What is too long is cut, and says so outside of the quotes.
fn quote(value: &str, out: &mut String) {
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

impl From<&'static str> for Part<'_> {
    fn from(own: &'static str) -> Self {
        Self::Own(own)
    }
}

impl From<Text> for Part<'_> {
    fn from(text: Text) -> Self {
        Self::Text(text)
    }
}

impl From<&Text> for Part<'_> {
    fn from(text: &Text) -> Self {
        Self::Text(text.clone())
    }
}

/// What cannot hold anything but digits, dots, colons and the like.
macro_rules! plain {
    ($($of:ty),*) => {$(
        impl From<$of> for Part<'_> {
            fn from(plain: $of) -> Self {
                Self::Plain(plain.to_string())
            }
        }
    )*};
}
plain!(u8, u16, u32, u64, u128, usize, i32, IpAddr, Mac);
