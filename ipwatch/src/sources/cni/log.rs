//! Why a plugin failed, from the runtime's log, which is the only place where that is recorded. The log is read only
//! after a call has failed. Only the plugin's error message is taken, without anything that may be a credential.

use std::path::{Path, PathBuf};

use crate::bounded;
use crate::fact::CniCommand;
use crate::reading;

/// Number of bytes read from the end of each log.
const TAIL: usize = 256 << 10;
/// Maximum number of log files read.
const MOST_LOGS: usize = 16;
/// Maximum length in bytes of the text that is kept.
pub(super) const LONGEST: usize = 512;
/// In nanoseconds. Logs may contain whole seconds, and the node's clock is read once.
const SLACK: i64 = 2_000_000_000;

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub container_id: String,
    pub command: CniCommand,
    /// When the call began, as Unix time in nanoseconds: older log lines are about another call.
    pub since: i64,
}

/// Searches the logs for the reason of a failure. Blocks.
#[must_use]
pub fn find(logs: &[PathBuf], failure: &Failure) -> Option<String> {
    let files = logs.iter().flat_map(|log| files(log)).take(MOST_LOGS);
    files.into_iter().find_map(|file| {
        let tail = bounded::read_tail(&file, TAIL).ok()?;
        let tail = String::from_utf8_lossy(&tail);
        // The first line may be cut, and lack its date.
        let whole = if tail.len() < TAIL { &tail } else { tail.split_once('\n')?.1 };
        reason(whole, failure)
    })
}

/// A file, or the log files in a directory.
fn files(log: &Path) -> Vec<PathBuf> {
    let entries = reading::path(log).and_then(|_reading| std::fs::read_dir(log));
    let Ok(entries) = entries else { return vec![log.to_owned()] };
    let paths = entries.take(256).flatten().map(|entry| entry.path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "log")).collect()
}

/// The error message in the newest line of `log` that is about this failure. Pure.
#[must_use]
pub fn reason(log: &str, failure: &Failure) -> Option<String> {
    let verb = match failure.command {
        CniCommand::Add => "add",
        CniCommand::Del => "del",
        CniCommand::Check => "check",
        CniCommand::Gc => "gc",
        CniCommand::Status => "status",
        CniCommand::Version => "version",
    };
    let marks = format!("failed ({verb}");
    // A shorter id could be part of any text.
    if failure.container_id.len() < 8 {
        return None;
    }
    let of_it = |line: &&str| line.contains(&failure.container_id) && is_new(line, failure.since);
    log.lines().rev().filter(of_it).find_map(|line| {
        let (_, rest) = line.split_once(&marks)?;
        let (_, said) = rest.split_once("): ")?;
        Some(harmless(&unquoted(said))).filter(|text| !text.is_empty())
    })
}

/// Whether a line was written after `since`. A line without a date may have been.
fn is_new(line: &str, since: i64) -> bool {
    let date = line.split_once("time=\"").and_then(|(_, rest)| rest.split_once('"'));
    let stamp = date.and_then(|(date, _)| date.parse::<jiff::Timestamp>().ok());
    stamp.is_none_or(|stamp| stamp.as_nanosecond() >= i128::from(since.saturating_sub(SLACK)))
}

/// The text up to the end of the quoted value, or of the line.
fn unquoted(said: &str) -> String {
    let mut text = String::new();
    let mut chars = said.chars();
    while let Some(char) = chars.next() {
        let char = match char {
            '"' => break,
            '\\' => match chars.next() {
                Some('n' | 't' | 'r') | None => ' ',
                Some(escaped) => escaped,
            },
            char => char,
        };
        text.push(char);
    }
    text
}

/// Words that may be followed by a credential.
const SUSPECT: [&str; 14] = [
    "authorization",
    "bearer",
    "token",
    "password",
    "passwd",
    "secret",
    "credential",
    "apikey",
    "api-key",
    "api_key",
    "private key",
    "access key",
    "access_key",
    "eyj",
];
/// A string of at least this many characters with digits and letters of both cases is not a word.
const LONGEST_WORD: usize = 20;

/// Cuts a text where a credential may begin.
fn harmless(text: &str) -> String {
    // Only ASCII letters are lowercased, so that byte offsets stay the same.
    let small = text.to_ascii_lowercase();
    let suspect = SUSPECT.iter().filter_map(|word| small.find(word)).min();
    let end = [suspect, opaque(text), userinfo(text)].into_iter().flatten().min();
    // Shortened last: a truncated credential might not be recognised.
    match end {
        Some(end) if end <= LONGEST => format!("{}[…]", &text[..end]),
        _ => text[..text.floor_char_boundary(LONGEST)].trim().to_owned(),
    }
}

/// Start of a string that looks like an encoded key.
fn opaque(text: &str) -> Option<usize> {
    let is_part = |char: char| char.is_ascii_alphanumeric() || "+_=".contains(char);
    let mut begin = 0;
    for word in text.split(|char: char| !is_part(char)) {
        let has = |is: fn(&u8) -> bool| word.as_bytes().iter().any(is);
        if word.len() >= LONGEST_WORD
            && has(u8::is_ascii_lowercase)
            && has(u8::is_ascii_uppercase)
            && has(u8::is_ascii_digit)
        {
            return Some(begin);
        }
        let end = begin + word.len();
        begin = end + text[end..].chars().next().map_or(0, char::len_utf8);
    }
    None
}

/// Position of `://` in the first URL that contains user information.
fn userinfo(text: &str) -> Option<usize> {
    let mut marks = text.match_indices("://").map(|(at, mark)| (at, &text[at + mark.len()..]));
    let names_user = |rest: &str| {
        let host = rest.split(|char: char| char == '/' || char.is_whitespace()).next();
        host.is_some_and(|host| host.contains('@'))
    };
    marks.find(|(_, rest)| names_user(rest)).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "5b1ebf0e7f1c4d0b";

    fn failure(command: CniCommand) -> Failure {
        let since: jiff::Timestamp = "2024-05-01T10:00:00Z".parse().unwrap();
        let since = i64::try_from(since.as_nanosecond()).unwrap();
        Failure { container_id: ID.into(), command, since }
    }

    fn line(at: &str, verb: &str, said: &str) -> String {
        format!(
            r#"time="2024-05-01T{at}Z" level=error msg="RunPodSandbox for x failed" error="failed to setup network for sandbox \"{ID}\": plugin type=\"bridge\" failed ({verb}): {said}" more="x""#
        )
    }

    #[test]
    fn the_newest_line_about_the_call_is_its_reason() {
        let log = [
            line("10:00:01", "add", "an older one"),
            line("10:00:02", "delete", "of another command"),
            line("10:00:03", "add", r#"link \"eth0\" is there"#),
            "time=\"2024-05-01T10:00:04Z\" msg=\"failed (add): of nobody\"".to_owned(),
        ]
        .join("\n");
        let of = |command| reason(&log, &failure(command));
        assert_eq!(of(CniCommand::Add).as_deref(), Some(r#"link "eth0" is there"#));
        assert_eq!(of(CniCommand::Del).as_deref(), Some("of another command"));
        assert_eq!(of(CniCommand::Check), None);
    }

    #[test]
    fn what_was_logged_before_the_call_is_about_another() {
        let log = line("09:59:57", "add", "before");
        assert_eq!(reason(&log, &failure(CniCommand::Add)), None);
        let log = line("09:59:59", "add", "in the same second");
        assert!(reason(&log, &failure(CniCommand::Add)).is_some());
    }

    #[test]
    fn what_may_be_a_credential_is_cut_off() {
        let said =
            |text: &str| reason(&line("10:00:03", "add", text), &failure(CniCommand::Add)).unwrap();
        assert_eq!(said("401: Token abc is bad"), "401: […]");
        assert_eq!(said("got eyJhbGciOi.x.y"), "got […]");
        assert_eq!(said("key AbCdEfGhIjKlMnOpQrStUv12 of x"), "key […]");
        assert_eq!(said("dial etcd http://me:pw@10.0.0.1:1/x"), "dial etcd http[…]");
        let second = "dial http://10.0.0.1/x, then http://me:pw@10.0.0.1/x";
        assert_eq!(said(second), "dial http://10.0.0.1/x, then http[…]");
        let at_the_end =
            format!("{}http://me:{}@10.0.0.1/x", ".".repeat(LONGEST - 20), "p".repeat(20));
        assert!(said(&at_the_end).ends_with(".http[…]"));
        let kept = "failed to allocate for range 0: no IP addresses available in range set: \
                    10.88.7.1-10.88.7.6 in /var/run/netns/cni-4b0bc9a1-88f1-90ab-1234-aabbccddeeff";
        assert_eq!(said(kept), kept);
    }

    #[test]
    fn any_text_is_bounded() {
        let long = "x ".repeat(4000);
        let text = reason(&line("10:00:03", "add", &long), &failure(CniCommand::Add)).unwrap();
        assert!(text.len() <= LONGEST);
        let cut = line("10:00:03", "add", "half \\");
        assert!(reason(&cut[..cut.len() - 10], &failure(CniCommand::Add)).is_some());
        assert_eq!(reason("", &failure(CniCommand::Add)), None);
    }

    #[test]
    fn only_the_tail_of_a_log_is_read_and_directories_are_searched() {
        let dir = tempfile::tempdir().unwrap();
        let old = line("10:00:01", "add", "too far back");
        let filler = "y\n".repeat(TAIL / 2 + 1);
        std::fs::write(dir.path().join("a.log"), format!("{old}\n{filler}")).unwrap();
        let (logs, add) = ([dir.path().to_owned()], failure(CniCommand::Add));
        assert_eq!(find(&logs, &add), None);
        let new = line("10:00:05", "add", "here");
        std::fs::write(dir.path().join("b.log"), format!("{filler}{new}\n")).unwrap();
        assert_eq!(find(&logs, &add).as_deref(), Some("here"));
        assert_eq!(find(&[dir.path().join("none")], &add), None);
    }
}
