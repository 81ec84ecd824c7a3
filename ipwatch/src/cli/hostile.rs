//! Hostile words (`testing::words`) through every way out of this program. A name that a stranger chose must not control
//! a terminal, must not begin a line or a field, and must be cut where it is sent or logged.
//!
//! `WAYS` lists the ways out; one test gives each of them every word. `documents` says where such a word can stand,
//! `ways` what is written then.

mod documents;
mod ways;

use clap::CommandFactory as _;

pub(super) use self::documents::{document, events};
use super::args::Cli;
use crate::testing::words::words;

/// Places and texts.
type Texts = Vec<(String, String)>;
/// What is written if every name is this word.
type Written = fn(&str) -> Texts;

/// What is asked of a text beside that it steers no terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// As many lines as with a plain word.
    AsManyLines,
    /// The same or fewer: a command that is not one to type is left out.
    NoMoreLines,
    /// The same or fewer, and not too many bytes: a long text is cut.
    Short,
    /// One line. How many such texts there are depends on the names.
    OneLine,
    /// In each line a word and its description, in both of which a shell finds nothing to expand.
    PlainWords,
}

/// Every way out.
const WAYS: [(&str, Written, Rule); 18] = [
    // The terminal.
    ("documents, in each format", ways::documents, Rule::AsManyLines),
    ("the stories of explain", ways::stories, Rule::AsManyLines),
    ("the cards of an IP", ways::cards, Rule::AsManyLines),
    ("watch", ways::watch, Rule::AsManyLines),
    ("top", super::top::tests::attack::pages, Rule::AsManyLines),
    ("report", super::report::tests::written, Rule::AsManyLines),
    ("the plan of fix", ways::plan, Rule::AsManyLines),
    ("the cluster's findings", ways::cluster, Rule::OneLine),
    ("kubectl ipwatch, of all nodes", ways::fleet, Rule::NoMoreLines),
    ("cni", ways::cni, Rule::OneLine),
    ("messages on stderr", ways::complaints, Rule::OneLine),
    // The shell.
    ("completions", super::complete::tests::lists, Rule::PlainWords),
    // What leaves the node or is kept.
    ("the log and the journal", ways::log, Rule::Short),
    ("the journal, about changes of fix", ways::log_of_fix, Rule::Short),
    ("OTLP, about findings", ways::otlp, Rule::Short),
    ("OTLP, about tenures, runs of plugins, teardowns and the node", ways::telemetry, Rule::Short),
    ("Events, and conditions of the Node", ways::kubernetes, Rule::Short),
    ("metrics", ways::metrics, Rule::AsManyLines),
];

/// By which way each command prints what strangers have named. All complain on stderr.
const COMMANDS: [(&str, &str); 19] = [
    ("run", "the log and the journal"),
    ("scan", "documents, in each format"),
    ("cluster", "documents, in each format"),
    ("query", "documents, in each format"),
    ("check", "documents, in each format"),
    ("watch", "watch"),
    ("top", "top"),
    ("explain", "the stories of explain"),
    ("fix", "the plan of fix"),
    ("report", "report"),
    ("ack", "documents, in each format"),
    ("unack", "documents, in each format"),
    ("doctor", "documents, in each format"),
    ("replay", "documents, in each format"),
    ("completions", "completions"),
    ("cni", "cni"),
    // These print our own text, or files for programs in TOML and JSON.
    ("config", ""),
    ("record", ""),
    ("man-pages", ""),
];

/// Words that must only be quoted, as most of the corpus is. A table prints a long reason below itself.
const PLAIN: [&str; 2] =
    ["a word", "words that have no room in the column of a table of this width"];

/// Maximum size of a text that is sent or logged, in bytes: a journal field is the longest.
const LONGEST: usize = 16 << 10;
/// Maximum size of a completion, in bytes.
const LONGEST_WORD: usize = 512;

/// Not by `escape`, which it is about: no control character, and none that is invisible or turns the direction.
pub(super) fn is_harmless(text: &str) -> bool {
    let unseen = ['\u{200b}', '\u{202e}', '\u{2066}', '\u{feff}', '\u{e0041}'];
    // The cheap question first: a text may have megabytes.
    let is_hostile = |c: char| c.is_control() || (!c.is_ascii() && unseen.contains(&c));
    text.lines().all(|line| !line.chars().any(is_hostile))
}

impl Rule {
    /// Why a text breaks the rule; `plain` are the texts of the same place for [`PLAIN`].
    fn fault(self, plain: &[&str], text: &str) -> Option<&'static str> {
        let lines = text.lines().count();
        let mut allowed = plain.iter().map(|plain| plain.lines().count());
        match self {
            _ if !is_harmless(text) => Some("it steers a terminal"),
            Rule::AsManyLines => {
                (!allowed.any(|allowed| allowed == lines)).then_some("more lines, or fewer")
            }
            Rule::Short if text.len() > LONGEST => Some("it is too long"),
            Rule::NoMoreLines | Rule::Short => {
                (!allowed.any(|allowed| lines <= allowed.max(1))).then_some("more lines")
            }
            Rule::OneLine => {
                let line = text.strip_suffix('\n').unwrap_or(text);
                line.contains('\n').then_some("several lines")
            }
            Rule::PlainWords => (!text.lines().all(is_candidate)).then_some("no plain word"),
        }
    }
}

fn is_candidate(line: &str) -> bool {
    let is_plain = |word: &str| {
        let fits = |c: char| c.is_ascii_alphanumeric() || "._:/-".contains(c);
        word.len() <= LONGEST_WORD && !word.starts_with('-') && word.chars().all(fits)
    };
    line.split_once(' ').is_some_and(|(word, about)| is_plain(word) && is_plain(about))
}

/// The first fault of a way.
fn fault((way, written, rule): &(&str, Written, Rule)) -> Option<String> {
    let plain = PLAIN.map(written);
    assert!(!plain[0].is_empty(), "{way}: nothing is written");
    let places = |texts: &Texts| texts.iter().map(|(place, _)| place.clone()).collect::<Vec<_>>();
    words().iter().find_map(|word| {
        let of = format!("{way}, of {:?}", excerpt(word, 80));
        let texts = written(word);
        if *rule != Rule::OneLine && places(&texts) != places(&plain[0]) {
            return Some(format!("{of}: there are other fields"));
        }
        texts.iter().enumerate().find_map(|(at, (place, text))| {
            let plain: Vec<&str> =
                plain.iter().filter_map(|all| Some(all.get(at)?.1.as_str())).collect();
            // YAML writes a text of several lines as an indented block; a label without room is left out of a picture.
            let is_folded = place.starts_with("yaml") || place.starts_with("html");
            let plain = if is_folded { vec![text.as_str()] } else { plain };
            let why = rule.fault(&plain, text)?;
            Some(format!("{of}: {place}: {why}: {:?}", excerpt(text, 400)))
        })
    })
}

fn excerpt(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

#[test]
fn no_word_of_a_stranger_gets_out_as_it_is() {
    let faults: Vec<String> = std::thread::scope(|scope| {
        let ways: Vec<_> = WAYS.iter().map(|way| scope.spawn(|| fault(way))).collect();
        ways.into_iter().filter_map(|way| way.join().unwrap()).collect()
    });
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_command_has_its_way_out() {
    for command in Cli::command().get_subcommands() {
        let known = COMMANDS.iter().find(|(name, _)| *name == command.get_name());
        let (name, way) = known.unwrap_or_else(|| panic!("{}: which way?", command.get_name()));
        let is_there = way.is_empty() || WAYS.iter().any(|(one, ..)| one == way);
        assert!(is_there, "{name}: there is no such way: {way}");
    }
}
