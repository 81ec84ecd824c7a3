//! Parses untrusted JSON: no value is kept that was not asked for, and no error quotes the text.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, SeqAccess, Visitor};

/// Maximum length in bytes of a name that is kept. Kubernetes allows 253; container ids have 64.
pub(super) const LONGEST_NAME: usize = 512;

/// Why a text could not be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum JsonError {
    /// It is empty, or truncated.
    #[error("torn: {}", if *.0 == 0 { "it is empty".to_owned() } else { format!("{} bytes", .0) })]
    Torn(usize),
    /// It is not JSON, or has another structure.
    // Only the position: the text of a JSON error can quote the file.
    #[error("not understood: line {0} column {1}")]
    Malformed(usize, usize),
}

impl JsonError {
    /// `read`: number of bytes read so far.
    pub(super) fn of(error: &serde_json::Error, read: usize) -> Self {
        if error.is_eof() {
            Self::Torn(read)
        } else {
            Self::Malformed(error.line(), error.column())
        }
    }
}

/// Parses the whole text as a `T`.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, JsonError> {
    serde_json::from_slice(bytes).map_err(|error| JsonError::of(&error, bytes.len()))
}

/// A text of bounded length.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name(pub(crate) String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.len() > LONGEST_NAME {
            return Err(serde::de::Error::custom("a name is too long"));
        }
        Ok(Self(text))
    }
}

/// A list of bounded length. `null` is an empty list, as in Go.
#[derive(Debug)]
pub(crate) struct Few<T, const MOST: usize>(pub(crate) Vec<T>);

impl<T, const MOST: usize> Default for Few<T, MOST> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for Few<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T, const MOST: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Entries<T, MOST> {
            type Value = Few<T, MOST>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Few::default())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = list.next_element()? {
                    if entries.len() == MOST {
                        return Err(serde::de::Error::custom("a list is too long"));
                    }
                    entries.push(entry);
                }
                Ok(Few(entries))
            }
        }
        deserializer.deserialize_any(Entries(PhantomData))
    }
}
