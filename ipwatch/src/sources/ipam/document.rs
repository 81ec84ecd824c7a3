//! What the stores in bolt files have in common: JSON of which little is kept, and the names of entries.

use std::path::Path;

use serde::de::{Deserialize, DeserializeOwned, Deserializer};

use super::Trouble;
use crate::escape;

/// Longest name that is kept. Kubernetes allows 253, container ids have 64.
const LONGEST_NAME: usize = 512;

/// Entries that are kept of one file: twice a node's whole /16.
const MOST: usize = 1 << 17;

/// A text of bounded length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name(pub(super) String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.len() > LONGEST_NAME {
            return Err(serde::de::Error::custom("a name is too long"));
        }
        Ok(Self(text))
    }
}

/// What it says, where it says something.
pub(super) fn text(name: Option<&Name>) -> Option<String> {
    name.map(|Name(text)| text).filter(|text| !text.is_empty()).cloned()
}

/// One JSON document of a file.
pub(super) fn parse<T: DeserializeOwned>(json: &[u8], key: &str) -> Result<T, Trouble> {
    // Where, but never what: the text of a JSON error can quote the file.
    serde_json::from_slice(json).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let key: String = key.chars().take(LONGEST_NAME).collect();
        let reason =
            format!("{}: no JSON of its kind: line {line} column {column}", escape::escape(&key));
        Trouble::Unreadable { reason, effect: None }
    })
}

/// Fails when a file has more entries than are kept.
pub(super) fn room_for_one_more(entries: usize) -> Result<(), Trouble> {
    if entries < MOST {
        return Ok(());
    }
    Err(Trouble::Unreadable { reason: format!("more than {MOST} entries"), effect: None })
}

/// The name of an entry in a file: the file's path, and what leads to the entry.
pub(super) fn key(path: &Path, words: &[&str]) -> String {
    std::iter::once(&*path.to_string_lossy())
        .chain(words.iter().copied())
        .collect::<Vec<_>>()
        .join("#")
}
