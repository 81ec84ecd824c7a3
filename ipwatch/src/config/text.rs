//! The configuration as text: every key with its default and what it means, or the values that are in
//! force. Pure.

use std::fmt::Write as _;

use super::keys::{KEYS, Key, TABLES};
use super::{Config, Origin};

/// Comments are broken here.
const WIDTH: usize = 96;

/// A file with every key, its meaning and its default, which is commented out: what a node does not
/// change keeps following the defaults of the version that runs.
#[must_use]
pub fn defaults() -> String {
    let config = Config::default();
    let mut text = String::new();
    comment(
        &mut text,
        "ipwatch.toml: every key, commented out, with its default. An unknown key is an error; \
         `ipwatch config check FILE` says which. Keys marked (reload) are taken over by \
         `systemctl reload ipwatch`, all others by a restart. A variable goes before the file: IPWATCH_STUCK__GRACE is the key grace of [stuck].",
    );
    each_table(&mut text, |text, key| {
        let marked = if key.live { " (reload)" } else { "" };
        comment(text, &format!("{}{marked}", key.about));
        let (_, name) = key.parts();
        // Writing to a String cannot fail.
        let _ = match key.value(&config) {
            Some(value) => writeln!(text, "#{name} = {value}"),
            None => writeln!(text, "#{name} = {}", key.example),
        };
    });
    text
}

/// What a daemon with this configuration uses, secrets hidden. A comment says where a value comes from that is no default. Keys that have no
/// value are named in a comment.
#[must_use]
pub fn effective(config: &Config, origin: &dyn Fn(&Key) -> Origin) -> String {
    let mut text = String::new();
    each_table(&mut text, |text, key| {
        let (_, name) = key.parts();
        // Writing to a String cannot fail.
        let _ = match key.shown(config) {
            Some(value) => write!(text, "{name} = {value}"),
            None => write!(text, "#{name} is not set"),
        };
        let _ = match origin(key) {
            Origin::Default => writeln!(text),
            Origin::File => writeln!(text, "  # file"),
            Origin::Variable(name) => writeln!(text, "  # {name}"),
            Origin::Option(name) => writeln!(text, "  # {name}"),
        };
    });
    text.trim_start().to_owned()
}

/// The same as the reference page of the documentation.
#[must_use]
pub fn reference() -> String {
    let config = Config::default();
    let mut text = String::new();
    for (table, about) in TABLES {
        let title = if table.is_empty() { "Top level".to_owned() } else { format!("`[{table}]`") };
        let _ = write!(text, "\n## {title}\n\n");
        if !about.is_empty() {
            let _ = write!(text, "{about}\n\n");
        }
        text.push_str("| Key | Default | Meaning |\n|---|---|---|\n");
        for key in KEYS.iter().filter(|key| key.parts().0 == *table) {
            let default = match key.value(&config) {
                Some(value) => format!("`{value}`"),
                None => format!("none, as `{}`", key.example),
            };
            let live = if key.live { " *Reload.*" } else { "" };
            let about = key.about.replace('|', "\\|");
            let _ = writeln!(text, "| `{}` | {default} | {about}{live} |", key.parts().1);
        }
    }
    text
}

fn each_table(text: &mut String, mut each: impl FnMut(&mut String, &Key)) {
    for (table, about) in TABLES {
        text.push('\n');
        if !table.is_empty() {
            comment(text, about);
            let _ = writeln!(text, "[{table}]");
        }
        KEYS.iter().filter(|key| key.parts().0 == *table).for_each(|key| each(text, key));
    }
}

/// Words as comment lines.
fn comment(text: &mut String, words: &str) {
    let mut column = 0;
    for word in words.split_whitespace() {
        if column > 0 && column + 1 + word.len() > WIDTH {
            text.push('\n');
            column = 0;
        }
        text.push_str(if column == 0 { "# " } else { " " });
        column += word.len() + if column == 0 { 2 } else { 1 };
        text.push_str(word);
    }
    text.push('\n');
}
