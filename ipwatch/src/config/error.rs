//! Why a configuration cannot be used, in one line that says what to do and quotes no secret.

use std::path::{Path, PathBuf};

use super::environment::Wrong;
use super::keys;
use crate::nearest::nearest;

/// Why a configuration cannot be used. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}; {}", way_to_read(.source))]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Whoever read it did not come back.
    #[error("the configuration was not read to its end: try again")]
    Unread,
    /// It is longer than any configuration is.
    #[error("the configuration {0} is larger than 1 MiB: is it the right file?")]
    TooLarge(PathBuf),
    /// It is not what `ipwatch.toml` may say.
    #[error("the configuration is wrong at {path}{place}: {message}; correct it and try again")]
    Parse {
        /// Which file.
        path: PathBuf,
        /// `:LINE`, where it is known.
        place: String,
        /// What is wrong.
        message: String,
    },
    /// A value is out of its bounds.
    #[error("the configuration is wrong in {path}: {message}; correct it and try again")]
    Value {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// A variable has a value that its key does not take.
    #[error("the environment variable {} ({}) is wrong: {}; correct it and try again", .0.variable, .0.key, .0.message)]
    Variable(Wrong),
}

/// What to do about a file that cannot be read.
fn way_to_read(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => "use sudo: it may hold passwords",
        _ => "name another one with --config",
    }
}

/// An error in the text of a file.
pub(super) fn in_file(text: &str, path: &Path, error: &toml::de::Error) -> ConfigError {
    let line = error.span().map(|span| text[..span.start].matches('\n').count());
    ConfigError::Parse {
        path: path.into(),
        place: line.map(|line| format!(":{}", line + 1)).unwrap_or_default(),
        message: complaint(text, line, error.message()),
    }
}

/// What is wrong, in one line: of an unknown key the known one that is nearest, of a secret no part of its
/// value.
fn complaint(text: &str, line: Option<usize>, message: &str) -> String {
    if let Some(rest) = message.strip_prefix("unknown field `") {
        let mut names = rest.split('`').step_by(2);
        let written = names.next().unwrap_or_default();
        let known: Vec<&str> = names.collect();
        let help = match nearest(written, known.iter().copied()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("known here: {}", known.join(", ")),
        };
        return format!("unknown key `{written}`, {help}");
    }
    let Some(line) = line else { return message.replace('\n', " ") };
    let name = |line: &str| line.split('=').next().unwrap_or_default().trim().to_owned();
    let key = text.lines().nth(line).map(name).unwrap_or_default();
    let table = text.lines().take(line + 1).filter_map(|line| line.trim().strip_prefix('[')).last();
    let table = table.and_then(|rest| rest.split(']').next()).unwrap_or_default().trim();
    let full = if table.is_empty() { key.clone() } else { format!("{table}.{key}") };
    let within = |name: &str| {
        let rest = full.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    if keys::KEYS.iter().any(|known| known.is_secret() && within(known.name)) {
        return format!("what `{full}` says is not understood");
    }
    let message = message.replace('\n', " ");
    if key.starts_with('[') || key.is_empty() { message } else { format!("`{key}`: {message}") }
}
