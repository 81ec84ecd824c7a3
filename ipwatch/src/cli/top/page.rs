//! A text over the whole screen: the story of a finding, a tree, a history, the help.

use unicode_width::UnicodeWidthChar as _;

use super::fit::{Glyphs, columns};
use super::keys::Motion;
use crate::cli::table::Style;

/// Lines of one text, before they are wrapped. More can be had by the command in the title.
const MOST_LINES: usize = 10_000;
/// Characters of one line.
const MOST_COLUMNS: usize = 10_000;

/// Pieces of a line, each in its style. Escaped.
pub(super) type Line = Vec<(String, Style)>;

/// A text over the whole screen.
#[derive(Debug)]
pub(super) struct Page {
    /// The number of the question that it answers.
    pub(super) number: u64,
    /// The command that prints the same.
    pub(super) title: String,
    lines: Vec<Line>,
    /// The lines as they fit the screen.
    pub(super) wrapped: Vec<Line>,
    /// The first wrapped line on the screen.
    pub(super) top: usize,
}

impl Page {
    /// A page of `text`, which has the colours of the command line's own output.
    pub(super) fn new(number: u64, title: String, text: &str) -> Self {
        Self { number, title, lines: lines(text), wrapped: Vec::new(), top: 0 }
    }

    pub(super) fn set_text(&mut self, text: &str) {
        self.lines = lines(text);
        self.top = 0;
    }

    /// Wraps the text to this width.
    pub(super) fn wrap(&mut self, width: usize, height: usize, glyphs: Glyphs) {
        self.wrapped =
            self.lines.iter().flat_map(|line| wrapped(line, width.max(1), glyphs)).collect();
        self.top = self.top.min(self.last(height));
    }

    pub(super) fn go(&mut self, motion: Motion, height: usize) {
        let page = height.saturating_sub(1).max(1);
        let top = match motion {
            Motion::Up => self.top.saturating_sub(1),
            Motion::Down => self.top + 1,
            Motion::PageUp => self.top.saturating_sub(page),
            Motion::PageDown => self.top + page,
            Motion::First => 0,
            Motion::Last => usize::MAX,
        };
        self.top = top.min(self.last(height));
    }

    /// The first line of the last screen.
    fn last(&self, height: usize) -> usize {
        self.wrapped.len().saturating_sub(height)
    }
}

/// The lines of a text. The only escape sequences in it are those of `cli/table.rs`: everything else is escaped.
fn lines(text: &str) -> Vec<Line> {
    let mut all: Vec<Line> = text.lines().take(MOST_LINES).map(line).collect();
    if text.lines().nth(MOST_LINES).is_some() {
        all.push(vec![("and more, which the command prints".to_owned(), Style::Yellow)]);
    }
    all
}

fn line(text: &str) -> Line {
    let mut pieces: Line = Vec::new();
    let mut style = Style::Plain;
    for (at, part) in text.split('\x1b').enumerate() {
        let mut rest = part;
        if at > 0 {
            let Some((code, after)) = part.strip_prefix('[').and_then(|part| part.split_once('m'))
            else {
                continue;
            };
            style = match code {
                "1" => Style::Bold,
                "2" => Style::Dim,
                "1;31" => Style::Red,
                "33" => Style::Yellow,
                "32" => Style::Green,
                _ => Style::Plain,
            };
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push((rest.to_owned(), style));
        }
    }
    pieces
}

/// A line in as many lines as it takes; all but the first are indented like the text behind its label.
fn wrapped(line: &Line, width: usize, glyphs: Glyphs) -> Vec<Line> {
    // Fitting spells out what this terminal cannot show.
    let fitted = line.iter().map(|(text, style)| (glyphs.fit(text, MOST_COLUMNS), *style));
    let chars: Vec<(char, Style)> = fitted
        .flat_map(|(text, style)| text.chars().map(move |c| (c, style)).collect::<Vec<_>>())
        .collect();
    let indent = match indent(line) {
        indent if indent < width / 2 => indent,
        _ => 0,
    };
    let mut out = Vec::new();
    let mut rest = chars.as_slice();
    let mut first = true;
    while first || !rest.is_empty() {
        let room = if first { width } else { width - indent };
        let end = break_at(rest, room);
        let (now, later) = rest.split_at(end);
        let mut pieces: Line = Vec::new();
        if !first && indent > 0 {
            pieces.push((" ".repeat(indent), Style::Plain));
        }
        for (c, style) in now {
            match pieces.last_mut() {
                Some((text, last)) if last == style => text.push(*c),
                _ => pieces.push((c.to_string(), *style)),
            }
        }
        out.push(pieces);
        // The space at which a line was broken is not shown.
        rest = match later {
            [(' ', _), rest @ ..] => rest,
            later => later,
        };
        first = false;
    }
    out
}

/// The width of a label and the spaces behind it, or of the spaces at the beginning.
fn indent(line: &Line) -> usize {
    match line.as_slice() {
        [(label, Style::Dim), (text, _), ..] => {
            columns(label) + text.len() - text.trim_start().len()
        }
        [(text, _), ..] => text.len() - text.trim_start().len(),
        [] => 0,
    }
}

/// How many of these characters fit: up to a space, if there is one.
fn break_at(chars: &[(char, Style)], room: usize) -> usize {
    let (mut width, mut space) = (0, None);
    for (at, (c, _)) in chars.iter().enumerate() {
        width += c.width().unwrap_or(0);
        if width > room {
            // A character at least, or a wide one would never be passed in a single column.
            return space.filter(|at| *at > 0).unwrap_or(at).max(1);
        }
        if *c == ' ' && chars[..at].iter().any(|(c, _)| *c != ' ') {
            space = Some(at);
        }
    }
    chars.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, width: usize) -> Vec<String> {
        let mut page = Page::new(0, String::new(), text);
        page.wrap(width, 10, Glyphs::Unicode);
        let text = |line: &Line| line.iter().map(|(text, _)| text.as_str()).collect();
        page.wrapped.iter().map(text).collect()
    }

    #[test]
    fn colours_become_styles() {
        assert_eq!(
            line("\x1b[1;31mred\x1b[0m plain"),
            [("red".to_owned(), Style::Red), (" plain".to_owned(), Style::Plain),]
        );
        assert_eq!(line("a\\x1b[2Jb"), [("a\\x1b[2Jb".to_owned(), Style::Plain)]);
        assert_eq!(line("broken\x1b]0;x"), [("broken".to_owned(), Style::Plain)]);
    }

    #[test]
    fn long_lines_are_wrapped_behind_their_label() {
        assert_eq!(
            shown("\x1b[2mTHEN  \x1b[0m one two three four", 18),
            ["THEN   one two", "       three four",]
        );
        assert_eq!(shown("    ab cd", 7), ["    ab", "cd"], "no room for so deep an indent");
        assert_eq!(shown("abcdefgh", 3), ["abc", "def", "gh"]);
        assert_eq!(shown("日本語", 1), ["日", "本", "語"]);
        assert_eq!(shown("a\n\nb", 9), ["a", "", "b"]);
    }

    #[test]
    fn a_page_ends_where_its_text_does() {
        let text: String = (0..30).map(|n| format!("{n}\n")).collect();
        let mut page = Page::new(0, String::new(), &text);
        page.wrap(10, 10, Glyphs::Unicode);
        page.go(Motion::Last, 10);
        assert_eq!(page.top, 20);
        page.go(Motion::Down, 10);
        assert_eq!(page.top, 20);
        page.go(Motion::PageUp, 10);
        assert_eq!(page.top, 11);
        page.wrap(10, 40, Glyphs::Unicode);
        assert_eq!(page.top, 0, "a higher screen shows all of it");
    }

    #[test]
    fn an_endless_text_is_cut() {
        let text = "x\n".repeat(MOST_LINES + 5);
        assert_eq!(lines(&text).len(), MOST_LINES + 1);
    }
}
