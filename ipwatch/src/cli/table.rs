//! Tables: columns aligned by display width, colours that do not count as width, and cells without anything that a
//! terminal would act on.

use std::borrow::Cow;

use unicode_width::UnicodeWidthStr;

use super::text::{NARROWEST, continued, wrapped};
use super::view::View;
use crate::escape::escape;

/// Spaces between two columns.
const GAP: usize = 2;

/// The style of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Style {
    #[default]
    Plain,
    Bold,
    Dim,
    Red,
    Yellow,
    Green,
}

/// Whether to write colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Paint(pub(super) bool);

impl Paint {
    /// `text` in this style.
    pub(super) fn paint(self, style: Style, text: &str) -> Cow<'_, str> {
        let code = match style {
            Style::Plain => return text.into(),
            Style::Bold => "1",
            Style::Dim => "2",
            Style::Red => "1;31",
            Style::Yellow => "33",
            Style::Green => "32",
        };
        if self.0 && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m").into()
        } else {
            text.into()
        }
    }
}

/// A cell of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// Escaped text; empty text is shown as `-`.
    pub(super) fn new(text: impl AsRef<str>) -> Self {
        Self::styled(text, Style::Plain)
    }

    /// Like `new`, in the given style.
    pub(super) fn styled(text: impl AsRef<str>, style: Style) -> Self {
        let text = match text.as_ref() {
            "" => "-".to_owned(),
            text => escape(text).into_owned(),
        };
        Self { text, style }
    }

    /// The value, or `-` if unknown.
    pub(super) fn known(value: Option<impl ToString>) -> Self {
        Self::new(value.map(|value| value.to_string()).unwrap_or_default())
    }
}

/// Rows under headers. A row may have notes, which are printed on lines below it.
#[derive(Debug, Default)]
pub(super) struct Table {
    headers: Vec<&'static str>,
    rows: Vec<(Vec<Cell>, Vec<String>)>,
    /// Width of the terminal.
    width: Option<usize>,
    ascii: bool,
    /// Whether cells are wrapped to it, not only notes.
    wraps: bool,
}

impl Table {
    pub(super) fn new(headers: &[&'static str]) -> Self {
        Self { headers: headers.to_vec(), ..Self::default() }
    }

    /// Wraps cells and notes to the terminal of this view; with `-o wide` rows stay whole.
    pub(super) fn within(mut self, view: View) -> Self {
        (self.width, self.ascii, self.wraps) = (view.width, view.ascii, !view.wide);
        self
    }

    pub(super) fn row(&mut self, cells: Vec<Cell>) {
        self.noted(cells, []);
    }

    /// A row with notes.
    pub(super) fn noted(&mut self, cells: Vec<Cell>, notes: impl IntoIterator<Item = String>) {
        debug_assert_eq!(cells.len(), self.headers.len());
        let notes = notes.into_iter().map(|note| escape(&note).into_owned());
        self.rows.push((cells, notes.collect()));
    }

    /// The text of the table.
    pub(super) fn render(&self, headers: bool, paint: Paint) -> String {
        let header: Vec<Cell> =
            self.headers.iter().map(|title| Cell::styled(title, Style::Dim)).collect();
        let mut widths: Vec<usize> =
            self.headers.iter().map(|title| if headers { title.width() } else { 0 }).collect();
        for (row, _) in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.text.width());
            }
        }
        self.narrow(&mut widths);
        let mut out = String::new();
        if headers {
            line(&mut out, &header, &widths, paint);
        }
        // Notes are indented to the second column, because the first is short.
        let indent = " ".repeat(widths.first().map_or(0, |width| width + GAP));
        for (row, notes) in &self.rows {
            self.row_lines(&mut out, row, &widths, paint);
            // A note is the sentence that matters most in its row: it is not dim.
            for note in notes {
                let on = continued(self.ascii);
                let room = self.width.map(|width| width.saturating_sub(indent.len() + on.width()));
                let room = room.map(|room| room.max(NARROWEST));
                for (at, part) in wrapped(note, room).into_iter().enumerate() {
                    out.push_str(&format!("{indent}{}{part}\n", if at == 0 { "" } else { on }));
                }
            }
        }
        out
    }

    /// Takes columns from the widest until the table fits, or none is wider than [`NARROWEST`]. The first column names
    /// the row and stays whole.
    fn narrow(&self, widths: &mut [usize]) {
        let Some(room) = self.width.filter(|_| self.wraps) else { return };
        let gaps = GAP * widths.len().saturating_sub(1);
        loop {
            let over = (widths.iter().sum::<usize>() + gaps).saturating_sub(room);
            let widest = widths.iter_mut().skip(1).max_by_key(|width| **width);
            match widest.filter(|width| over > 0 && **width > NARROWEST) {
                Some(width) => *width -= 1,
                None => return,
            }
        }
    }

    /// A row, on as many lines as its longest cell takes. A line that continues it begins with a mark, never with
    /// foreign text.
    fn row_lines(&self, out: &mut String, row: &[Cell], widths: &[usize], paint: Paint) {
        let parts = |(at, (cell, width)): (usize, (&Cell, &usize))| {
            let room = (at > 0 && cell.text.width() > *width).then_some(*width);
            wrapped(&cell.text, room).into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        let parts: Vec<Vec<String>> = row.iter().zip(widths).enumerate().map(parts).collect();
        let lines = parts.iter().map(Vec::len).max().unwrap_or_default();
        for number in 0..lines {
            let cells = row.iter().zip(&parts).enumerate().map(|(at, (cell, parts))| {
                let text = match parts.get(number) {
                    None if at == 0 => continued(self.ascii).trim_end().to_owned(),
                    part => part.cloned().unwrap_or_default(),
                };
                Cell { text, style: cell.style }
            });
            line(out, &cells.collect::<Vec<_>>(), widths, paint);
        }
    }
}

fn line(out: &mut String, row: &[Cell], widths: &[usize], paint: Paint) {
    for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
        out.push_str(&paint.paint(cell.style, &cell.text));
        // No blanks at the end of a line.
        if row.get(column + 1..).is_some_and(|rest| rest.iter().any(|cell| !cell.text.is_empty())) {
            let pad = width.saturating_sub(cell.text.width()) + GAP;
            out.extend(std::iter::repeat_n(' ', pad));
        }
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&["NAME", "AGE"]);
        table.row(vec![Cell::new("日本"), Cell::new("6m")]);
        table.noted(
            vec![Cell::styled("evil\u{1b}[2J", Style::Red), Cell::known(None::<u32>)],
            Some("a\nb".into()),
        );
        table
    }

    #[test]
    fn columns_stand_under_each_other_whatever_is_in_them() {
        let expected = "NAME         AGE\n\
                        日本         6m\n\
                        evil\\x1b[2J  -\n             \
                        a\\x0ab\n";
        assert_eq!(table().render(true, Paint(false)), expected);
        assert!(!table().render(false, Paint(false)).contains("NAME"));
    }

    #[test]
    fn width_is_what_a_terminal_shows_not_bytes() {
        let mut table = Table::new(&["A", "B"]);
        table.row(vec![Cell::new("日本"), Cell::new("x")]);
        table.row(vec![Cell::new("é"), Cell::new("y")]);
        assert_eq!(table.render(true, Paint(false)), "A     B\n日本  x\né     y\n");
    }

    fn view(width: usize) -> View {
        let document = crate::cli::show::sample("scan.json");
        let now = crate::cli::text::Now::of(&document);
        let (wide, headers, all, asked, pods, ascii) = (false, true, false, true, false, true);
        View {
            now,
            wide,
            headers,
            all,
            asked,
            pods,
            ascii,
            width: Some(width),
            paint: Paint(false),
        }
    }

    #[test]
    fn a_row_is_wrapped_within_its_columns() {
        let long = "first second third fourth fifth sixth seventh eighth ninth tenth";
        let build = || {
            let mut table = Table::new(&["NAME", "DETAIL", "AGE"]);
            table.row(vec![Cell::new("one"), Cell::new(long), Cell::new("6m")]);
            table.row(vec![Cell::new("two"), Cell::new("short"), Cell::new("7m")]);
            table
        };
        let text = build().within(view(60)).render(true, Paint(false));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.iter().all(|line| line.width() <= 60), "{text}");
        assert!(lines[1].starts_with("one   first ") && lines[1].ends_with("  6m"), "{text}");
        assert!(lines[2].starts_with("...   ") && !lines[2].ends_with(' '), "{text}");
        assert!(lines[3].starts_with("two   short ") && lines[3].ends_with("  7m"), "{text}");
        let words = |text: &str| text.split_whitespace().filter(|word| *word != "...").count();
        let whole = build().render(true, Paint(false));
        assert_eq!((whole.lines().count(), words(&whole)), (3, words(&text)));
        let wide = build().within(View { wide: true, ..view(60) }).render(true, Paint(false));
        assert_eq!(wide, whole);
    }

    #[test]
    fn a_name_is_never_cut() {
        let mut table = Table::new(&["A", "B"]);
        let name = "x".repeat(90);
        table.row(vec![Cell::new("a"), Cell::new(&name)]);
        assert!(table.within(view(40)).render(true, Paint(false)).contains(&name));
    }

    #[test]
    fn colours_take_no_width() {
        let painted = table().render(true, Paint(true));
        assert!(painted.contains("\x1b[1;31mevil\\x1b[2J\x1b[0m  -"), "{painted:?}");
    }
}
