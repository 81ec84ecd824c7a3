//! Commands: words, pipes, redirections, joined by `&&`; and the only place where they are written for `sh`.

use std::net::IpAddr;

use super::text::Part;

/// Maximum length of a word, in bytes: a JSON patch with the longest names is shorter.
const LONGEST: usize = 8192;

/// One program with its arguments, as the shell passes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// The file to which its output is redirected.
    pub to: Option<String>,
    /// Its output is piped to the next run. Otherwise the next run starts only if this one succeeded.
    pub pipe: bool,
}

/// A command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    runs: Vec<Run>,
    /// Whether every word can be typed.
    typed: bool,
}

impl Command {
    /// A program that is our own constant.
    #[must_use]
    pub fn new(program: &'static str) -> Self {
        let run = Run { argv: vec![program.to_owned()], to: None, pipe: false };
        Self { runs: vec![run], typed: true }
    }

    fn push(mut self, word: String) -> Self {
        self.typed &= can_be_typed(&word);
        if let Some(run) = self.runs.last_mut() {
            run.argv.push(word);
        }
        self
    }

    /// A word that is our own constant.
    #[must_use]
    pub fn own(self, word: &'static str) -> Self {
        self.push(word.to_owned())
    }

    /// Words that are our own constants.
    #[must_use]
    pub fn owns(self, words: &[&'static str]) -> Self {
        words.iter().fold(self, |command, word| command.own(word))
    }

    /// A word that the user gave on the command line: unchanged, may be an option.
    #[must_use]
    pub(crate) fn asked(self, word: &str) -> Self {
        self.push(word.to_owned())
    }

    #[must_use]
    pub fn ip(self, ip: IpAddr) -> Self {
        self.push(ip.to_string())
    }

    #[must_use]
    pub fn number(self, number: impl Into<u64>) -> Self {
        self.push(number.into().to_string())
    }

    /// A value as a separate word. If it looks like an option, the command cannot be typed.
    #[must_use]
    pub fn value(mut self, value: &str) -> Self {
        self.typed &= !value.is_empty() && !value.starts_with('-');
        self.push(value.to_owned())
    }

    /// The path of a file. If it is not absolute, the command cannot be typed.
    #[must_use]
    pub fn path(mut self, path: &str) -> Self {
        self.typed &= path.starts_with('/') && !climbs(path);
        self.push(path.to_owned())
    }

    /// A word that begins with our own text and contains values.
    #[must_use]
    pub(crate) fn word(mut self, own: &'static str, parts: &[Part<'_>]) -> Self {
        let word = self.joined(own, parts);
        self.push(word)
    }

    /// Redirects the output to a file whose path begins with our own text.
    #[must_use]
    pub(crate) fn to(mut self, own: &'static str, parts: &[Part<'_>]) -> Self {
        let word = self.joined(own, parts);
        self.typed &= can_be_typed(&word) && !climbs(&word);
        if let Some(run) = self.runs.last_mut() {
            run.to = Some(word);
        }
        self
    }

    /// Redirects the output to a file. If the path is not absolute, the command cannot be typed.
    #[must_use]
    pub(crate) fn into_file(mut self, path: &str) -> Self {
        self.typed &= path.starts_with('/') && can_be_typed(path) && !climbs(path);
        if let Some(run) = self.runs.last_mut() {
            run.to = Some(path.to_owned());
        }
        self
    }

    /// JSON as a word, after a prefix of ours. Non-ASCII characters are escaped as in JSON.
    #[must_use]
    pub(crate) fn json(self, own: &'static str, json: &serde_json::Value) -> Self {
        let json = ascii(&json.to_string());
        self.push(format!("{own}{json}"))
    }

    /// `own` with a part for each `{}`.
    fn joined(&mut self, own: &'static str, parts: &[Part<'_>]) -> String {
        let mut word = String::new();
        let mut parts = parts.iter();
        for (at, piece) in own.split("{}").enumerate() {
            if at > 0 {
                match parts.next() {
                    Some(Part::Own(own)) => word.push_str(own),
                    Some(Part::Plain(plain)) => word.push_str(plain),
                    Some(Part::Value(value)) => {
                        // The word must begin with our own text.
                        self.typed &= !word.is_empty() && !value.is_empty();
                        word.push_str(value);
                    }
                    Some(Part::Text(_)) | None => self.typed = false,
                }
            }
            word.push_str(piece);
        }
        word
    }

    /// A word that is a path of ours with names in it. If a name contains `/` or is `..`, the command cannot be
    /// typed.
    #[must_use]
    pub(crate) fn place(mut self, own: &'static str, names: &[Part<'_>]) -> Self {
        self.typed &= names.iter().all(is_component);
        self.word(own, names)
    }

    /// Pipes the output to the next command.
    #[must_use]
    pub fn pipe(mut self, next: Command) -> Self {
        if let Some(run) = self.runs.last_mut() {
            run.pipe = true;
        }
        self.append(next)
    }

    /// Runs the next command only if this one succeeded.
    #[must_use]
    pub fn and(self, next: Command) -> Self {
        self.append(next)
    }

    fn append(mut self, next: Command) -> Self {
        self.typed &= next.typed;
        self.runs.extend(next.runs);
        self
    }

    /// Whether a part of it asks the daemon.
    #[must_use]
    pub(super) fn asks_daemon(&self) -> bool {
        self.runs.iter().any(asks)
    }

    /// The same command for a daemon at this socket. If the path is not absolute, the command cannot be typed.
    #[must_use]
    pub(super) fn at_socket(mut self, socket: &str) -> Self {
        let word = format!("--socket={socket}");
        self.typed &= socket.starts_with('/') && can_be_typed(&word) && !climbs(socket);
        for run in self.runs.iter_mut().filter(|run| asks(run)) {
            run.argv.insert(1, word.clone());
        }
        self
    }

    /// Whether a person can type the command: no character is hidden or looks like another, and no value is an
    /// option.
    #[must_use]
    pub fn is_typed(&self) -> bool {
        self.typed
    }

    /// The programs that it runs, in order.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The command for a person's `sh`. This is the only place where shell syntax is written.
    #[must_use]
    pub fn sh(&self) -> String {
        self.written(" > ")
    }

    pub(super) fn written(&self, arrow: &str) -> String {
        let mut out = String::new();
        let mut runs = self.runs.iter().peekable();
        while let Some(run) = runs.next() {
            let words: Vec<String> = run.argv.iter().map(|word| quoted(word)).collect();
            out.push_str(&words.join(" "));
            if let Some(to) = &run.to {
                out.push_str(arrow);
                out.push_str(&quoted(to));
            }
            if runs.peek().is_some() {
                out.push_str(if run.pipe { " | " } else { " && " });
            }
        }
        out
    }
}

/// Whether a text can be part of a URL path or a name in Kubernetes: it neither changes the path nor looks like an
/// option.
#[must_use]
pub(crate) fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.len() <= 253
        && text.chars().all(plain)
}

/// Whether a word is printable ASCII, so that the shell gets what a person sees.
fn can_be_typed(word: &str) -> bool {
    word.len() <= LONGEST && word.chars().all(|c| (' '..='~').contains(&c))
}

/// Whether a run is one of our own commands that ask the daemon.
fn asks(run: &Run) -> bool {
    run.argv[0] == "ipwatch"
        && matches!(run.argv.get(1).map(String::as_str), Some("query" | "check" | "fix"))
}

/// Whether a path contains `..`.
fn climbs(path: &str) -> bool {
    path.split('/').any(|name| name == "..")
}

fn is_component(part: &Part<'_>) -> bool {
    match part {
        Part::Value(name) => !name.contains('/') && !matches!(*name, "" | "." | ".."),
        _ => true,
    }
}

/// Quoted if the shell would otherwise act on it.
pub(super) fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._/:=@%+,-".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The same JSON in printable ASCII.
pub(crate) fn ascii(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if (' '..='~').contains(&c) {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    out
}
