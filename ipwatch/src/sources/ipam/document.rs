//! What the stores in bolt files have in common: JSON of which little is kept, and the names of entries.

use std::path::Path;

use serde::de::DeserializeOwned;

use super::Trouble;
use crate::escape;
use crate::sources::json::{self, LONGEST_NAME, Name};

/// Entries that are kept of one file: twice a node's whole /16.
const MOST: usize = 1 << 17;

/// What it says, where it says something.
pub(super) fn text(name: Option<&Name>) -> Option<String> {
    name.map(|Name(text)| text).filter(|text| !text.is_empty()).cloned()
}

/// One JSON document of a file.
pub(super) fn parse<T: DeserializeOwned>(json: &[u8], key: &str) -> Result<T, Trouble> {
    json::parse(json).map_err(|error| {
        let key: String = key.chars().take(LONGEST_NAME).collect();
        let reason = format!("{}: {error}", escape::escape(&key));
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
