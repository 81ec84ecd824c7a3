//! Commands: words, pipes, redirections, joined by `&&`; and the one place where they are written for `sh`.

use std::net::IpAddr;

use super::text::Part;

/// Longest word: a JSON patch of the longest names is shorter.
const LONGEST: usize = 8192;

/// One program with its words, as the shell hands them to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The program and its words.
    pub argv: Vec<String>,
    /// The file that its output goes to.
    pub to: Option<String>,
    /// Its output goes to the next one. If not, the next one runs only after this one has succeeded.
    pub pipe: bool,
}

/// A command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    runs: Vec<Run>,
    /// Every word of it can be typed.
    typed: bool,
}

impl Command {
    /// One of our own choice.
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

    /// A word of ours.
    #[must_use]
    pub fn own(self, word: &'static str) -> Self {
        self.push(word.to_owned())
    }

    /// Words of ours.
    #[must_use]
    pub fn owns(self, words: &[&'static str]) -> Self {
        words.iter().fold(self, |command, word| command.own(word))
    }

    /// What the person who asked has said: as it is, options too.
    #[must_use]
    pub(crate) fn asked(self, word: &str) -> Self {
        self.push(word.to_owned())
    }

    /// An IP.
    #[must_use]
    pub fn ip(self, ip: IpAddr) -> Self {
        self.push(ip.to_string())
    }

    /// A number.
    #[must_use]
    pub fn number(self, number: impl Into<u64>) -> Self {
        self.push(number.into().to_string())
    }

    /// A value as a word of its own: never an option. One that begins like an option makes no command.
    #[must_use]
    pub fn value(mut self, value: &str) -> Self {
        self.typed &= !value.is_empty() && !value.starts_with('-');
        self.push(value.to_owned())
    }

    /// The path of a file: absolute, or it makes no command.
    #[must_use]
    pub fn path(mut self, path: &str) -> Self {
        self.typed &= path.starts_with('/') && !climbs(path);
        self.push(path.to_owned())
    }

    /// One word that we begin, with values in it.
    #[must_use]
    pub(crate) fn word(mut self, own: &'static str, parts: &[Part<'_>]) -> Self {
        let word = self.joined(own, parts);
        self.push(word)
    }

    /// Sends its output to a file whose path we begin.
    #[must_use]
    pub(crate) fn to(mut self, own: &'static str, parts: &[Part<'_>]) -> Self {
        let word = self.joined(own, parts);
        self.typed &= can_be_typed(&word) && !climbs(&word);
        if let Some(run) = self.runs.last_mut() {
            run.to = Some(word);
        }
        self
    }

    /// Sends its output to a file: absolute, or it makes no command.
    #[must_use]
    pub(crate) fn into_file(mut self, path: &str) -> Self {
        self.typed &= path.starts_with('/') && can_be_typed(path) && !climbs(path);
        if let Some(run) = self.runs.last_mut() {
            run.to = Some(path.to_owned());
        }
        self
    }

    /// JSON as a word, after a beginning of ours. What is not ASCII in it is escaped as JSON has it.
    #[must_use]
    pub(crate) fn json(self, own: &'static str, json: &serde_json::Value) -> Self {
        let json = ascii(&json.to_string());
        self.push(format!("{own}{json}"))
    }

    /// `own` with a part for each `{}` of it.
    fn joined(&mut self, own: &'static str, parts: &[Part<'_>]) -> String {
        let mut word = String::new();
        let mut parts = parts.iter();
        for (at, piece) in own.split("{}").enumerate() {
            if at > 0 {
                match parts.next() {
                    Some(Part::Own(own)) => word.push_str(own),
                    Some(Part::Plain(plain)) => word.push_str(plain),
                    Some(Part::Value(value)) => {
                        // A word that begins with a value is no word that we begin.
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

    /// A word that is a path of ours with names in it. A name with a `/` in it, or one that leads up, makes no
    /// command.
    #[must_use]
    pub(crate) fn place(mut self, own: &'static str, names: &[Part<'_>]) -> Self {
        self.typed &= names.iter().all(is_component);
        self.word(own, names)
    }

    /// Sends its output to the next one.
    #[must_use]
    pub fn pipe(mut self, next: Command) -> Self {
        if let Some(run) = self.runs.last_mut() {
            run.pipe = true;
        }
        self.append(next)
    }

    /// The next one runs only if this one succeeded.
    #[must_use]
    pub fn and(self, next: Command) -> Self {
        self.append(next)
    }

    fn append(mut self, next: Command) -> Self {
        self.typed &= next.typed;
        self.runs.extend(next.runs);
        self
    }

    /// Whether a part of it can only be answered by the daemon.
    #[must_use]
    pub(super) fn asks_daemon(&self) -> bool {
        self.runs.iter().any(asks)
    }

    /// The same, where the daemon listens at this socket: absolute, or it makes no command.
    #[must_use]
    pub(super) fn at_socket(mut self, socket: &str) -> Self {
        let word = format!("--socket={socket}");
        self.typed &= socket.starts_with('/') && can_be_typed(&word) && !climbs(socket);
        for run in self.runs.iter_mut().filter(|run| asks(run)) {
            run.argv.insert(1, word.clone());
        }
        self
    }

    /// Whether a person can type it: nothing in it is hidden, reads as something else, or is an option that is not
    /// ours.
    #[must_use]
    pub fn is_typed(&self) -> bool {
        self.typed
    }

    /// What it runs, in this order.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The command for a person's `sh`. This is the only place where one is written.
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

/// What may stand in the path of a URL, or as a name of Kubernetes: nothing that makes it another path, or an option.
#[must_use]
pub(crate) fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.len() <= 253
        && text.chars().all(plain)
}

/// Printable ASCII: what a person sees is what the shell gets.
fn can_be_typed(word: &str) -> bool {
    word.len() <= LONGEST && word.chars().all(|c| (' '..='~').contains(&c))
}

/// Whether it is one of our own commands that ask the daemon.
fn asks(run: &Run) -> bool {
    run.argv[0] == "ipwatch"
        && matches!(run.argv.get(1).map(String::as_str), Some("query" | "check" | "fix"))
}

/// Whether a path leads up.
fn climbs(path: &str) -> bool {
    path.split('/').any(|name| name == "..")
}

fn is_component(part: &Part<'_>) -> bool {
    match part {
        Part::Value(name) => !name.contains('/') && !matches!(*name, "" | "." | ".."),
        _ => true,
    }
}

/// Quoted where a shell would act on it.
pub(super) fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._/:=@%+,-".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// JSON that means the same, in printable ASCII.
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
