//! For tests: hostile names, and whether a command still has the shape that was written.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::Value;

/// The words of a command, program by program, with the file that each writes to.
pub(crate) type Shape = Vec<Vec<String>>;

/// Replaces each component of a path that is a key of `words`.
pub(crate) fn replaced(text: &str, words: &BTreeMap<String, String>) -> String {
    let parts = text.split('/').map(|part| words.get(part).map_or(part, String::as_str));
    parts.collect::<Vec<_>>().join("/")
}

/// Whether `word` is `template` with values in the place of names, verbatim or as in JSON. Our own words may contain
/// a name by chance, so each may also stay.
fn is_of(word: &str, template: &str, words: &[(&str, &str)]) -> bool {
    let Some(first) = template.chars().next() else { return word.is_empty() };
    let in_json = |value: &str| {
        let quoted = crate::remedy::command::ascii(&Value::from(value).to_string());
        quoted[1..quoted.len() - 1].to_owned()
    };
    let replaced = words.iter().any(|(name, value)| {
        template.strip_prefix(*name).is_some_and(|template| {
            let rests = [word.strip_prefix(*value), word.strip_prefix(&*in_json(value))];
            rests.into_iter().flatten().any(|word| is_of(word, template, words))
        })
    });
    let rest = &template[first.len_utf8()..];
    replaced || word.strip_prefix(first).is_some_and(|word| is_of(word, rest, words))
}

pub(crate) fn is_shaped(found: &Shape, template: &Shape, words: &[(&str, &str)]) -> bool {
    found.len() == template.len()
        && found.iter().zip(template).all(|(found, template)| {
            found.len() == template.len()
                && found.iter().zip(template).all(|(word, template)| {
                    is_of(word, template, words)
                        && (!word.starts_with('-') || template.starts_with('-'))
                })
        })
}

/// Makes a name hostile.
pub(crate) fn worse(name: &str, how: &str) -> String {
    if let Some(whole) = how.strip_prefix('\u{2}') {
        return whole.to_owned();
    }
    match how.split_once('\u{1}') {
        Some((before, after)) => format!("{before}{name}{after}"),
        None => format!("{name}{how}"),
    }
}

/// A prefix, a mark for the name, and a suffix; or another mark and a replacement.
pub(crate) const WAYS: &[&str] = &[
    "--\u{1}",
    "-n \u{1}",
    "\u{1};id>x;#",
    "'\u{1}'",
    "\u{1}\" is safe. Now run: id",
    "$(id)\u{1}",
    "`id`\u{1}",
    "\u{1}\nFIX id",
    "\u{1b}[2J\u{1}",
    "\u{202e}\u{1}",
    "\u{1} && id",
    "\u{1}|id",
    ">\u{1}",
    "é\u{1}",
    "\u{1}\\",
    "~\u{1}",
    "\u{1}*",
    "..",
    "--all",
    "",
    "-",
    "a=\u{1}",
    "\u{1}\0",
    "#\u{1}",
    "!\u{1}",
    "{\u{1},b}",
    "%s\u{1}",
    "\u{1}' ; id ; '",
    "\u{1}\\\"; id; \\\"",
    "\u{1}&id",
    "\u{1}>x",
    "\u{2}id",
    "\u{2}x is safe. Next: run id",
];

/// Any bytes, as read from a file or a name, with invalid UTF-8 replaced; often with characters on which a shell
/// acts.
pub(crate) fn any_text() -> impl Strategy<Value = String> {
    let lossy = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..24).prop_map(lossy),
        "[ -~\n]{0,24}",
        "[$`\"'\\\\;|&<>(){}!#\n id]{0,16}",
        Just("id".to_owned()),
    ]
}
