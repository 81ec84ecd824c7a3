//! Shared by the stores in bolt files: parsing JSON of which little is kept, and the keys of entries.

use std::path::Path;

use serde::de::DeserializeOwned;

use super::Trouble;
use crate::escape;
use crate::sources::json::{self, LONGEST_NAME, Name};

/// Maximum number of entries kept of one file: twice a node's whole /16.
const MOST: usize = 1 << 17;

/// The text, if it is not empty.
pub(super) fn text(name: Option<&Name>) -> Option<String> {
    name.map(|Name(text)| text).filter(|text| !text.is_empty()).cloned()
}

/// Parses one JSON document of a file.
pub(super) fn parse<T: DeserializeOwned>(json: &[u8], key: &str) -> Result<T, Trouble> {
    json::parse(json).map_err(|error| {
        let key: String = key.chars().take(LONGEST_NAME).collect();
        let reason = format!("{}: {error}", escape::escape(&key));
        Trouble::Unreadable { reason, effect: None }
    })
}

/// Fails if a file has more entries than the limit.
pub(super) fn room_for_one_more(entries: usize) -> Result<(), Trouble> {
    if entries < MOST {
        return Ok(());
    }
    Err(Trouble::Unreadable { reason: format!("more than {MOST} entries"), effect: None })
}

/// The key of an entry in a file: the file's path, and the path to the entry.
pub(super) fn key(path: &Path, words: &[&str]) -> String {
    std::iter::once(&*path.to_string_lossy())
        .chain(words.iter().copied())
        .collect::<Vec<_>>()
        .join("#")
}
