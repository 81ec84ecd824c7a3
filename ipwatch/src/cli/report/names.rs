//! The names that `--redact` replaces, each with its stand-in. Pure.

use std::collections::HashMap;

use super::redact::spellings;

/// The length of a shortened id, as runtimes print it. It is replaced like the id itself.
pub(super) const SHORT_ID: usize = 12;

/// Names and their stand-ins.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// By spelling: the stand-in, and whether it is replaced only as a whole word.
    known: HashMap<String, (String, bool)>,
    counts: HashMap<&'static str, usize>,
    /// The spellings by their first character, the longest first.
    by_first: HashMap<char, Vec<String>>,
}

impl Names {
    /// Adds a name, which is replaced where it is a whole word.
    pub(super) fn add(&mut self, kind: &'static str, name: &str) {
        if self.known.contains_key(name) || !has_word(name) {
            return;
        }
        let stand_in = self.next(kind);
        for spelling in spellings(name) {
            self.known.entry(spelling).or_insert_with(|| (stand_in.clone(), true));
        }
    }

    pub(super) fn add_if(&mut self, kind: &'static str, name: Option<&str>) {
        if let Some(name) = name {
            self.add(kind, name);
        }
    }

    /// Adds a name in the spelling in which a sentence quotes it.
    pub(super) fn add_spelt(&mut self, kind: &'static str, spelling: &str) {
        if !self.known.contains_key(spelling) && has_word(spelling) {
            let stand_in = self.next(kind);
            self.known.insert(spelling.to_owned(), (stand_in, true));
        }
    }

    /// Adds a part of a path, which is replaced in paths only, because it may be a common word.
    pub(super) fn add_part(&mut self, part: &str) {
        let spelling = format!("/{part}");
        if !self.known.contains_key(part) && !self.known.contains_key(&spelling) && has_word(part) {
            let stand_in = self.next("path");
            self.known.insert(spelling, (format!("/{stand_in}"), true));
        }
    }

    /// Adds an id, which is replaced everywhere, also within a word, in full or as runtimes shorten it.
    pub(super) fn add_id(&mut self, kind: &'static str, id: &str) {
        if self.known.contains_key(id) || !has_word(id) {
            return;
        }
        let stand_in = self.next(kind);
        // What is short may stand within any word.
        let alone = id.len() < SHORT_ID;
        for spelling in spellings(id) {
            self.known.entry(spelling).or_insert_with(|| (stand_in.clone(), alone));
        }
        // In names of cgroups a uid has underscores or nothing in place of dashes.
        for other in [id.replace('-', "_"), id.replace('-', "")] {
            self.known.entry(other).or_insert_with(|| (stand_in.clone(), alone));
        }
        for length in [SHORT_ID, SHORT_ID + 1] {
            if let Some(short) = id.get(..length) {
                self.known.entry(short.to_owned()).or_insert_with(|| (stand_in.clone(), false));
            }
        }
        // The first 8 characters, as the card of a pod shows a uid.
        if let Some(short) = id.get(..8).filter(|_| kind == "uid") {
            self.known.entry(short.to_owned()).or_insert_with(|| (stand_in.clone(), true));
        }
    }

    pub(super) fn add_id_if(&mut self, kind: &'static str, id: Option<&str>) {
        if let Some(id) = id {
            self.add_id(kind, id);
        }
    }

    fn next(&mut self, kind: &'static str) -> String {
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        format!("{kind}-{count}")
    }

    /// Whether a word consists only of known names and separators, such as `shop/api-0`.
    pub(super) fn covers(&self, word: &str) -> bool {
        let parts = word.split(['/', ' ']).filter(|part| !part.is_empty());
        parts.clone().count() > 0 && parts.into_iter().all(|part| self.known.contains_key(part))
    }

    /// Must be called after the last name was added, and before [`at`](Self::at).
    pub(super) fn settle(&mut self) {
        for spelling in self.known.keys() {
            if let Some(first) = spelling.chars().next() {
                self.by_first.entry(first).or_default().push(spelling.clone());
            }
        }
        for spellings in self.by_first.values_mut() {
            spellings.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        }
    }

    /// The longest name at the beginning of a text that follows the character `before`: its length and its stand-in.
    pub(super) fn at(&self, text: &str, before: Option<char>) -> Option<(usize, String)> {
        let candidates = self.by_first.get(&text.chars().next()?)?;
        let fits = |spelling: &&String| {
            let Some(rest) = text.strip_prefix(spelling.as_str()) else { return false };
            let (_, alone) = self.known[*spelling];
            let inside = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
            let begins = spelling.starts_with(char::is_alphanumeric);
            let ends = spelling.ends_with(char::is_alphanumeric);
            !alone || !(begins && inside(before) || ends && inside(rest.chars().next()))
        };
        let spelling = candidates.iter().find(fits)?;
        Some((spelling.len(), self.known[spelling].0.clone()))
    }
}

/// Whether it contains a letter or a digit. Other strings are not replaced.
fn has_word(name: &str) -> bool {
    name.contains(char::is_alphanumeric)
}
