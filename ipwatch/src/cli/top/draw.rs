//! Draws the state: every cell is a function of it. Every text goes through [`Glyphs::fit`], so that nothing that
//! somebody else chose reaches the terminal unescaped.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style as Look};

use super::bar;
use super::columns::{GAP, columns_of, shortened, widths};
use super::fit::columns;
use super::known::{Known, Link, Topic};
use super::layout;
use super::page::Page;
use super::rows::{Pane, Row};
use super::state::{Entry, State};
use super::words::{self, Cell};
use crate::cli::show::{self, family::Families, findings};
use crate::cli::table::{Paint, Style};
use crate::cli::text;
use crate::finding::Severity;

/// Keys in the last line, those first that must be seen on a narrow screen.
const KEYS: &str =
    "? help  q quit  Enter explain  t tree  h history  / filter  s sort  Space unfold";
const PAGE_KEYS: &str = "up down PgUp PgDn Home End move  q back";

/// Draws everything.
pub(super) fn draw(state: &State, paint: Paint, buffer: &mut Buffer) {
    let mut canvas = Canvas { buffer, state, paint };
    let places = state.places();
    canvas.header(places.header);
    if let Some(page) = &state.page {
        canvas.page(page);
        canvas.footer(places.footer, PAGE_KEYS);
        return;
    }
    canvas.tabs(places.tabs);
    for pane in Pane::ALL {
        canvas.pane(pane, places.pane(pane));
    }
    for y in places.line.top()..places.line.bottom() {
        canvas.put(places.line.x, y, 1, state.glyphs.pick("│", "|"), Style::Dim);
    }
    canvas.detail(places.detail);
    canvas.footer(places.footer, KEYS);
}

struct Canvas<'a> {
    buffer: &'a mut Buffer,
    state: &'a State,
    paint: Paint,
}

impl Canvas<'_> {
    /// Writes a text in at most so many columns; returns how many it took.
    fn put(&mut self, x: u16, y: u16, width: u16, text: &str, style: Style) -> u16 {
        let right = self.buffer.area.right().min(x.saturating_add(width));
        if y >= self.buffer.area.bottom() || x >= right {
            return 0;
        }
        let fitted = self.state.glyphs.fit(text, usize::from(right - x));
        self.buffer.set_stringn(x, y, &fitted, usize::from(right - x), self.look(style));
        u16::try_from(columns(&fitted)).unwrap_or(right - x)
    }

    /// Without colours there is no look at all, as everywhere in the command line.
    fn look(&self, style: Style) -> Look {
        let look = Look::default();
        if !self.paint.0 {
            return look;
        }
        match style {
            Style::Plain => look,
            Style::Bold => look.add_modifier(Modifier::BOLD),
            Style::Dim => look.add_modifier(Modifier::DIM),
            Style::Red => look.fg(Color::Red).add_modifier(Modifier::BOLD),
            Style::Yellow => look.fg(Color::Yellow),
            Style::Green => look.fg(Color::Green),
        }
    }

    /// Writes several texts one behind the other.
    fn run(&mut self, area: Rect, y: u16, pieces: &[(String, Style)]) {
        let mut x = area.x;
        for (text, style) in pieces {
            x += self.put(x, y, area.right().saturating_sub(x), text, *style);
        }
    }

    fn header(&mut self, area: Rect) {
        let known = &self.state.known;
        let mut pieces = vec![(known.node.clone(), Style::Bold)];
        let gap = || ("  ".to_owned(), Style::Plain);
        match &known.link {
            Link::Begun => pieces.push(("waiting for the daemon's answer".to_owned(), Style::Dim)),
            Link::Lost { why, again } => {
                let clock = known.now().clock(&known.as_of);
                let stale = format!("STALE, as of {clock}");
                pieces.extend([gap(), (stale, Style::Red), gap()]);
                pieces.push((format!("trying again within {again}s: {why}"), Style::Yellow));
            }
            Link::Live => {
                pieces.extend([gap(), (known.now().clock(&known.as_of), Style::Dim)]);
                pieces.extend([gap(), summary(known), gap(), seen(known)]);
            }
        }
        self.run(area, area.y, &pieces);
    }

    fn tabs(&mut self, area: Rect) {
        if area.is_empty() {
            return;
        }
        let mut pieces = Vec::new();
        for (pane, number) in Pane::ALL.into_iter().zip(1..) {
            let (mark, style) = match pane == self.state.pane {
                true => ("[", Style::Bold),
                false => (" ", tab_style(&self.state.known, pane)),
            };
            let end = if pane == self.state.pane { "]" } else { " " };
            let count = self.count(pane);
            pieces.push((format!("{mark}{number} {}{count}{end}", name(pane)), style));
        }
        self.run(area, area.y, &pieces);
    }

    /// Number of rows, apart from the key, which is a number too; of how many, if the pane does not show all.
    fn count(&self, pane: Pane) -> String {
        let known = &self.state.known;
        let rows = self.state.rows[pane as usize].len();
        match pane {
            Pane::Findings if known.findings.is_none() => ": ?".to_owned(),
            Pane::Ranges if known.ranges.is_none() => ": ?".to_owned(),
            Pane::Conflicts if !known.are_neighbours_known() => ": ?".to_owned(),
            Pane::Findings if known.omitted > 0 => format!(": {rows}+{}", known.omitted),
            Pane::Sources => {
                let (active, asked) = show::active(known.sources());
                format!(": {active}/{asked}")
            }
            _ => format!(": {rows}"),
        }
    }

    fn pane(&mut self, pane: Pane, area: Rect) {
        if area.is_empty() {
            return;
        }
        let state = self.state;
        let is_in_use = state.pane == pane;
        // The narrow screen has the names of the panes in a line of their own.
        let is_wide = !state.places().line.is_empty();
        let order = pane.orders()[state.cursors[pane as usize].order];
        let filter = match state.filter.as_str() {
            "" => String::new(),
            filter => format!(", with {filter:?}"),
        };
        let number = pane as usize + 1;
        let title = match (is_wide, pane) {
            (false, Pane::Ranges) | (true, _) => format!(
                "{}{number} {}{}{} by {order}{filter}",
                if is_in_use && is_wide { "[" } else { "" },
                name(pane),
                self.count(pane),
                if is_in_use && is_wide { "]" } else { "" },
            ),
            (false, _) => format!("by {order}{filter}"),
        };
        let style = if is_in_use && is_wide { Style::Bold } else { Style::Dim };
        let titles = layout::above(area, pane);
        if titles > 0 {
            self.put(area.x, area.y, area.width, &title, style);
        }
        let shift = titles.min(1);
        let rows = Rect { y: area.y + shift, height: area.height - shift, ..area };
        if state.rows[pane as usize].is_empty() {
            self.empty(pane, rows);
        } else if pane == Pane::Ranges {
            self.ranges(rows);
        } else {
            self.table(pane, rows, titles > 1);
        }
    }

    /// What an empty pane says: "nothing" only of what was asked for and is seen.
    fn empty(&mut self, pane: Pane, area: Rect) {
        let lines = nothing(&self.state.known, pane, &self.state.filter);
        for ((text, style), y) in lines.iter().zip(area.top()..area.bottom()) {
            self.put(area.x + 2, y, area.width.saturating_sub(2), text, *style);
        }
    }

    fn table(&mut self, pane: Pane, area: Rect, has_titles: bool) {
        let room = area.width.saturating_sub(2);
        let columns = columns_of(pane, room);
        let state = self.state;
        let cursor = &state.cursors[pane as usize];
        let visible = state.rows[pane as usize].iter().enumerate().skip(cursor.top);
        let rows: Vec<(usize, Vec<Cell>)> = visible
            .take(usize::from(area.height))
            .map(|(at, row)| (at, words::cells(&state.known, *row)))
            .collect();
        let longest = |column: usize| {
            let cells = rows.iter().filter(|(_, cells)| cells.len() >= columns.len());
            let lengths = cells.filter_map(|(_, cells)| cells.get(column));
            lengths.map(|cell| cell.text.chars().count()).max().unwrap_or(0)
        };
        let widths = widths(columns, room, longest);
        let mut x = area.x + 2;
        for ((title, _), width) in columns.iter().zip(&widths).filter(|_| has_titles) {
            self.put(x, area.y, (*width).min(area.right().saturating_sub(x)), title, Style::Dim);
            x += width + GAP;
        }
        for ((at, cells), y) in rows.iter().zip(area.top() + u16::from(has_titles)..area.bottom()) {
            let is_selected = *at == cursor.at && pane == state.pane;
            self.mark(area, y, is_selected);
            let mut x = area.x + 2;
            for (number, (cell, width)) in cells.iter().zip(&widths).enumerate() {
                // The last cell of a row with fewer of them takes all that is left.
                let is_rest = number + 1 == cells.len() && cells.len() < widths.len();
                let right = area.right().saturating_sub(x);
                let shown = if is_rest { right } else { (*width).min(right) };
                let text = if cell.text.is_empty() { "-" } else { &cell.text };
                let text = match is_rest {
                    true => text.to_owned(),
                    false => shortened(text, usize::from(shown), state.glyphs.pick('…', '~')),
                };
                self.put(x, y, shown, &text, self.aged(cell.style));
                x += width + GAP;
            }
            self.reverse(area, y, is_selected);
        }
    }

    /// What is stale has no colour of its own any more.
    fn aged(&self, style: Style) -> Style {
        if self.state.known.is_stale() { Style::Dim } else { style }
    }

    fn mark(&mut self, area: Rect, y: u16, is_selected: bool) {
        if is_selected {
            self.put(area.x, y, 1, ">", Style::Bold);
        }
    }

    fn reverse(&mut self, area: Rect, y: u16, is_selected: bool) {
        if is_selected && self.paint.0 {
            let line = Rect { y, height: 1, ..area };
            self.buffer.set_style(line, Look::default().add_modifier(Modifier::REVERSED));
        }
    }

    fn ranges(&mut self, area: Rect) {
        let state = self.state;
        let cursor = &state.cursors[Pane::Ranges as usize];
        let rows: Vec<Row> = state.rows[Pane::Ranges as usize].clone();
        let shown = usize::from(area.height);
        let visible: Vec<(usize, Row)> =
            rows.into_iter().enumerate().skip(cursor.top).take(shown).collect();
        let all: Vec<Vec<Cell>> =
            visible.iter().map(|(_, row)| words::cells(&state.known, *row)).collect();
        let widest = |column: usize, most: u16| {
            let widths = all.iter().filter_map(|cells| cells.get(column));
            let width = |cell: &Cell| columns(&state.glyphs.fit(&cell.text, usize::from(most)));
            u16::try_from(widths.map(width).max().unwrap_or(0)).unwrap_or(most)
        };
        // The name, then the bar, then as many of the numbers as there is room for.
        let name = widest(0, (area.width / 5).max(8));
        let mut numbers: Vec<(usize, u16)> = Vec::new();
        let mut taken = 2 + name + GAP;
        // By importance, for when there is little room; shown in the order of the cells.
        for column in [1, 5, 2, 3, 6, 4, 7, 8] {
            let width = widest(column, 44);
            let least = if column < 7 { 8 } else { 40 };
            if width > 0 && taken + width + GAP + least <= area.width {
                numbers.push((column, width));
                taken += width + GAP;
            }
        }
        numbers.sort_unstable();
        let bar = area.width.saturating_sub(taken);
        for (((at, row), cells), y) in visible.iter().zip(&all).zip(area.top()..area.bottom()) {
            let is_selected = *at == cursor.at && state.pane == Pane::Ranges;
            self.mark(area, y, is_selected);
            let mut x = area.x + 2;
            self.put(
                x,
                y,
                name,
                cells.first().map_or("", |cell| cell.text.as_str()),
                self.aged(Style::Plain),
            );
            x += name + GAP;
            self.bar(x, y, bar, *row);
            x += bar + GAP;
            for (column, width) in &numbers {
                if let Some(cell) = cells.get(*column) {
                    self.put(x, y, *width, &cell.text, self.aged(cell.style));
                }
                x += width + GAP;
            }
            self.reverse(Rect { width: 2 + name, ..area }, y, is_selected);
        }
    }

    fn bar(&mut self, x: u16, y: u16, width: u16, row: Row) {
        let Some(parts) = words::parts(&self.state.known, row) else { return };
        let mut x = x;
        for (part, cells) in bar::cells(&parts, usize::from(width)) {
            let text = part.cell(self.state.glyphs).repeat(cells);
            x += self.put(x, y, width, &text, self.aged(part.style()));
        }
    }

    fn detail(&mut self, area: Rect) {
        let Some(row) = self.state.selected() else { return };
        let cells = words::detail(&self.state.known, row);
        let text: String = cells
            .iter()
            .filter(|cell| !cell.text.is_empty())
            .map(|cell| {
                let text = crate::escape::escape(&cell.text).into_owned();
                format!("{}\n", Paint(true).paint(cell.style, &text))
            })
            .collect();
        let mut page = Page::new(0, String::new(), &text);
        page.wrap(usize::from(area.width), usize::MAX, self.state.glyphs);
        let is_cut = page.wrapped.len() > usize::from(area.height);
        for (line, y) in page.wrapped.iter().zip(area.top()..area.bottom()) {
            self.run(area, y, line);
            if is_cut && y + 1 == area.bottom() {
                let taken: usize = line.iter().map(|(text, _)| columns(text)).sum();
                let at =
                    u16::try_from(taken + 1).unwrap_or(u16::MAX).min(area.width.saturating_sub(1));
                self.put(area.x + at, y, 1, self.state.glyphs.pick("…", "~"), Style::Plain);
            }
        }
    }

    fn page(&mut self, page: &Page) {
        let area = layout::page(self.state.size);
        let at = page.top + 1;
        let end = (page.top + usize::from(area.height)).min(page.wrapped.len());
        // Over what the header says, behind it: the lists below are not shown.
        let title = format!("{}   lines {at}-{end} of {}", page.title, page.wrapped.len());
        let first = Rect { y: 0, height: 1, ..area };
        if !self.state.known.is_stale() {
            self.buffer.set_style(first, Look::reset());
            self.put(0, 0, area.width, &" ".repeat(usize::from(area.width)), Style::Plain);
            self.put(0, 0, area.width, &title, Style::Bold);
        }
        let lines = page.wrapped.iter().skip(page.top);
        for (line, y) in lines.zip(area.top()..area.bottom()) {
            self.run(area, y, line);
        }
    }

    fn footer(&mut self, area: Rect, keys: &str) {
        let (text, style) = match &self.state.entry {
            Some(Entry::Filter(text)) => {
                (format!("filter: {text}_  (Enter keeps it, Esc clears it)"), Style::Bold)
            }
            Some(Entry::Find(text)) => (format!("find: {text}_"), Style::Bold),
            None if !self.state.note.is_empty() => (self.state.note.clone(), Style::Yellow),
            None if !self.state.filter.is_empty() && self.state.page.is_none() => {
                (format!("filter: {:?} (Esc clears it)  {keys}", self.state.filter), Style::Dim)
            }
            None => (keys.to_owned(), Style::Dim),
        };
        self.put(area.x, area.y, area.width, &text, style);
    }
}

fn name(pane: Pane) -> &'static str {
    match pane {
        Pane::Ranges => "Ranges",
        Pane::Findings => "Findings",
        Pane::Addresses => "Addresses",
        Pane::Conflicts => "Conflicts",
        Pane::Sources => "Sources",
    }
}

/// A pane that is not shown may have something that must be seen.
fn tab_style(known: &Known, pane: Pane) -> Style {
    match pane {
        Pane::Findings => known.worst().map_or(Style::Dim, of_severity),
        Pane::Conflicts if !known.conflicts.is_empty() => Style::Red,
        Pane::Sources if !known.blind().is_empty() => Style::Red,
        Pane::Sources if known.unseen().next().is_some() => Style::Yellow,
        _ => Style::Dim,
    }
}

fn of_severity(severity: Severity) -> Style {
    match severity {
        Severity::Critical => Style::Red,
        Severity::Warning => Style::Yellow,
        Severity::Info => Style::Plain,
    }
}

/// How much is wrong, as far as it was judged.
fn summary(known: &Known) -> (String, Style) {
    match &known.findings {
        None => match known.refusal(Topic::Findings) {
            Some(why) => (format!("findings unknown: {why}"), Style::Yellow),
            None => ("findings not known yet".to_owned(), Style::Dim),
        },
        Some(list) => {
            let style = known.worst().map_or(Style::Plain, of_severity);
            let counted = findings::counted(list, &Families::new(list));
            // In words, too: colours are not always seen.
            match list.iter().filter(|finding| finding.severity == Severity::Critical).count() {
                0 => (counted, style),
                critical => (format!("{counted}, {critical} CRIT"), style),
            }
        }
    }
}

/// What is seen, and what cannot be judged.
fn seen(known: &Known) -> (String, Style) {
    let Some(doctor) = &known.doctor else {
        return ("sources not known yet".to_owned(), Style::Yellow);
    };
    let sources = show::sources(doctor);
    match known.blind().len() {
        0 if text::blind_spots(doctor).next().is_none() => (sources, Style::Green),
        0 => (sources, Style::Yellow),
        blind => (format!("{} NOT JUDGED, {sources}", text::count(blind, "code")), Style::Red),
    }
}

/// What an empty pane says.
fn nothing(known: &Known, pane: Pane, filter: &str) -> Vec<(String, Style)> {
    if !filter.is_empty() {
        return vec![(format!("no row with {filter:?}: Esc shows all"), Style::Dim)];
    }
    let topic = match pane {
        Pane::Ranges => Topic::Ranges,
        Pane::Findings => Topic::Findings,
        Pane::Addresses | Pane::Sources => Topic::Doctor,
        Pane::Conflicts => Topic::Neighbours,
    };
    let is_known = match pane {
        Pane::Ranges => known.ranges.is_some(),
        Pane::Findings => known.findings.is_some(),
        Pane::Conflicts => known.are_neighbours_known() && known.findings.is_some(),
        Pane::Sources => known.doctor.is_some(),
        Pane::Addresses => known.since.is_some(),
    };
    let mut lines = match (is_known, known.refusal(topic)) {
        (false, None) => return vec![("not known yet".to_owned(), Style::Dim)],
        (_, Some(why)) => vec![(format!("the daemon does not tell: {why}"), Style::Yellow)],
        (true, None) => vec![(nothing_of(known, pane), Style::Plain)],
    };
    let unsure = match pane {
        Pane::Conflicts => known.silent(&["arp", "neighbours", "netlink", "probes"]),
        Pane::Addresses => known.silent(&["netlink", "probes"]),
        Pane::Findings => known.doctor.as_ref().map(text::blind_names).unwrap_or_default(),
        _ => String::new(),
    };
    if !unsure.is_empty() {
        lines.push((format!("but not everything is seen: {unsure}"), Style::Yellow));
    }
    if pane == Pane::Findings && !known.blind().is_empty() {
        let codes: Vec<&str> = known.blind().iter().map(|code| code.as_str()).collect();
        lines.push((format!("not judged: {}", codes.join(", ")), Style::Red));
    }
    lines
}

fn nothing_of(known: &Known, pane: Pane) -> String {
    match pane {
        Pane::Ranges => "no range of an IPAM store is known on this node".to_owned(),
        Pane::Findings => "nothing wrong is known".to_owned(),
        Pane::Conflicts => "no IP is known to be claimed twice".to_owned(),
        Pane::Sources => "the daemon names no source".to_owned(),
        Pane::Addresses => {
            let since = known.since.as_deref().map(|date| known.now().clock(date));
            let since = since.unwrap_or_default();
            format!("no address came or went since {since}; `ipwatch query history` knows before")
        }
    }
}
