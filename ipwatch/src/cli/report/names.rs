//! The names that a report is not to tell, and what stands for each. Pure.

use std::collections::HashMap;

use super::redact::spellings;

/// The shortest beginning of an id that is replaced like the id itself: what runtimes print.
pub(super) const SHORT_ID: usize = 12;

/// Names and their stand-ins.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// What each spelling becomes, and whether it is a word that must stand alone.
    known: HashMap<String, (String, bool)>,
    counts: HashMap<&'static str, usize>,
    /// The spellings by their first character, the longest first.
    by_first: HashMap<char, Vec<String>>,
}

impl Names {
    /// A name: replaced where it stands as a whole word.
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

    /// What a sentence quotes: it is spelt there already.
    pub(super) fn add_spelt(&mut self, kind: &'static str, spelling: &str) {
        if !self.known.contains_key(spelling) && has_word(spelling) {
            let stand_in = self.next(kind);
            self.known.insert(spelling.to_owned(), (stand_in, true));
        }
    }

    /// A part of a path: replaced in paths alone, for it may be any word.
    pub(super) fn add_part(&mut self, part: &str) {
        let spelling = format!("/{part}");
        if !self.known.contains_key(part) && !self.known.contains_key(&spelling) && has_word(part) {
            let stand_in = self.next("path");
            self.known.insert(spelling, (format!("/{stand_in}"), true));
        }
    }

    /// An id: replaced wherever it stands, also within a word, whole or as runtimes shorten it.
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
        // In names of cgroups a uid has no dashes.
        for other in [id.replace('-', "_"), id.replace('-', "")] {
            self.known.entry(other).or_insert_with(|| (stand_in.clone(), alone));
        }
        for length in [SHORT_ID, SHORT_ID + 1] {
            if let Some(short) = id.get(..length) {
                self.known.entry(short.to_owned()).or_insert_with(|| (stand_in.clone(), false));
            }
        }
        // As the card of a pod has it.
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

    /// Whether nothing but names that are known, and what joins them, is in a word: `shop/api-0`.
    pub(super) fn covers(&self, word: &str) -> bool {
        let parts = word.split(['/', ' ']).filter(|part| !part.is_empty());
        parts.clone().count() > 0 && parts.into_iter().all(|part| self.known.contains_key(part))
    }

    /// All are known now.
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

    /// The longest name that a text begins with, behind this character: its length, and what stands for it.
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

/// Whether there is a letter or a digit in it: what has none names nobody.
fn has_word(name: &str) -> bool {
    name.contains(char::is_alphanumeric)
}
