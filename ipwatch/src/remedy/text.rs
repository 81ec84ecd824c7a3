//! Prose: our own words, and quoted values that others chose.

use std::fmt;
use std::net::IpAddr;

use crate::escape::quote::quote;
use crate::fact::Mac;

/// Prose made of our own words and of quoted values.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Text(String);

/// A part of prose or of a word.
#[derive(Debug, Clone)]
pub enum Part<'a> {
    /// Our own constant.
    Own(&'static str),
    /// A number, an IP or a MAC.
    Plain(String),
    /// Chosen by others.
    Value(&'a str),
    /// Prose.
    Text(Text),
}

/// A value that others chose.
pub(crate) fn value(text: &str) -> Part<'_> {
    Part::Value(text)
}

/// Prose with a `{}` for each part: `text!("{} is held by pid {}", …)`; the braces contain no names.
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

/// Number of `{}` in a text.
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

    /// The text of [`text!`].
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

    /// Appends `more`.
    #[must_use]
    pub fn then(mut self, more: &Text) -> Self {
        self.0.push_str(&more.0);
        self
    }

    /// Joins texts with our own words between them.
    #[must_use]
    pub fn join(texts: impl IntoIterator<Item = Text>, between: &'static str) -> Self {
        let texts: Vec<String> = texts.into_iter().map(|text| text.0).collect();
        Self(texts.join(between))
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

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

/// Types whose text consists only of digits, dots, colons and the like.
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
