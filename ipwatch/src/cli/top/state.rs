//! What the screen shows, and what keys and news change in it. Pure: no terminal, no daemon, no clock.

use std::collections::HashSet;

use ratatui_core::layout::Size;

use super::fit::Glyphs;
use super::keys::{Action, HELP, Key, Motion, action, motion};
use super::known::{Known, Update};
use super::layout::{self, Places, places};
use super::page::Page;
use super::questions::{self, Question};
use super::rows::{self, Pane, Row, Wanted, rows};
use super::words;

/// Characters that can be typed into the filter.
const LONGEST_ENTRY: usize = 64;

/// What the state wants to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    Quit,
    /// Give the terminal back until the shell continues this process.
    Suspend,
    /// Ask the daemon for all of it again.
    Refresh,
    /// Ask this; the answer is for the page with this number.
    Ask(u64, Question),
}

/// The row at the cursor, by what identifies it, and the first row on the screen.
#[derive(Debug, Clone, Default)]
pub(super) struct Cursor {
    pub(super) at: usize,
    pub(super) top: usize,
    key: String,
    /// Position in [`Pane::orders`].
    pub(super) order: usize,
}

/// What is being typed, and for what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    Filter(String),
    Find(String),
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) known: Known,
    pub(super) size: Size,
    pub(super) glyphs: Glyphs,
    pub(super) pane: Pane,
    pub(super) cursors: [Cursor; 5],
    pub(super) rows: [Vec<Row>; 5],
    pub(super) filter: String,
    pub(super) find: String,
    pub(super) entry: Option<Entry>,
    unfolded: HashSet<String>,
    unfold_all: bool,
    pub(super) page: Option<Page>,
    asked: u64,
    /// A word about the last key, until the next one.
    pub(super) note: String,
}

impl State {
    pub(super) fn new(size: Size, glyphs: Glyphs) -> Self {
        Self {
            known: Known::nothing(),
            size,
            glyphs,
            pane: Pane::Findings,
            cursors: Default::default(),
            rows: Default::default(),
            filter: String::new(),
            find: String::new(),
            entry: None,
            unfolded: HashSet::new(),
            unfold_all: false,
            page: None,
            asked: 0,
            note: String::new(),
        }
    }

    pub(super) fn places(&self) -> Places {
        places(self.size, self.pane, self.known.ranges.as_ref().map_or(0, Vec::len))
    }

    /// News from the daemon.
    pub(super) fn update(&mut self, update: Update) {
        let only_events = matches!(update, Update::Events { .. });
        self.known.update(update);
        match only_events {
            true => self.renew(Pane::Addresses),
            false => Pane::ALL.into_iter().for_each(|pane| self.renew(pane)),
        }
    }

    /// The answer for a page. One for a page that was closed is dropped.
    pub(super) fn answer(&mut self, number: u64, text: &str) {
        if let Some(page) = self.page.as_mut().filter(|page| page.number == number) {
            page.set_text(text);
            self.wrap();
        }
    }

    pub(super) fn resize(&mut self, size: Size) {
        self.size = size;
        self.wrap();
        Pane::ALL.into_iter().for_each(|pane| self.scroll(pane));
    }

    pub(super) fn key(&mut self, key: Key) -> Option<Effect> {
        self.note.clear();
        // These mean the same everywhere.
        match key {
            Key::Ctrl('c') => return Some(Effect::Quit),
            Key::Ctrl('z') => return Some(Effect::Suspend),
            _ => {}
        }
        if self.entry.is_some() {
            self.typed(key);
            return None;
        }
        if self.page.is_some() {
            return self.page_key(key);
        }
        match action(key)? {
            Action::Quit => return Some(Effect::Quit),
            Action::Suspend => return Some(Effect::Suspend),
            Action::Refresh => return Some(Effect::Refresh),
            Action::Move(motion) => self.go(motion),
            Action::Pane(at) => self.enter(Pane::ALL[at]),
            Action::NextPane => self.enter(Pane::ALL[(self.pane as usize + 1) % 5]),
            Action::PreviousPane => self.enter(Pane::ALL[(self.pane as usize + 4) % 5]),
            Action::Explain => {
                return self.ask(questions::explain, "nothing more is known of this");
            }
            Action::Tree => return self.ask(questions::tree, "there is no tree of this"),
            Action::History => return self.ask(questions::history, "there is no history of this"),
            Action::Fold => self.fold(),
            Action::FoldAll => {
                self.unfold_all = !self.unfold_all;
                self.unfolded.clear();
                self.renew(Pane::Findings);
            }
            Action::Sort => {
                let cursor = &mut self.cursors[self.pane as usize];
                cursor.order = (cursor.order + 1) % self.pane.orders().len();
                self.renew(self.pane);
            }
            Action::Filter => self.entry = Some(Entry::Filter(self.filter.clone())),
            Action::Find => self.entry = Some(Entry::Find(String::new())),
            Action::FindNext => self.find_from(true),
            Action::FindPrevious => self.find_from(false),
            Action::Clear => self.set_filter(String::new()),
            Action::Help => self.open_help(),
        }
        None
    }

    fn page_key(&mut self, key: Key) -> Option<Effect> {
        let height = usize::from(layout::page(self.size).height);
        let page = self.page.as_mut()?;
        match key {
            Key::Char('q') | Key::Escape | Key::Enter | Key::Backspace => self.page = None,
            Key::Char(' ') => page.go(Motion::PageDown, height),
            Key::Ctrl('l') => return Some(Effect::Refresh),
            key => page.go(motion(key)?, height),
        }
        None
    }

    fn typed(&mut self, key: Key) {
        let Some(entry) = &mut self.entry else { return };
        let (Entry::Filter(text) | Entry::Find(text)) = entry;
        match key {
            Key::Char(c) if text.chars().count() < LONGEST_ENTRY => text.push(c),
            Key::Backspace => drop(text.pop()),
            Key::Escape => {
                if matches!(self.entry.take(), Some(Entry::Filter(_))) {
                    self.set_filter(String::new());
                }
                return;
            }
            Key::Enter => match self.entry.take() {
                Some(Entry::Find(text)) => {
                    self.find = text.to_lowercase();
                    self.find_from(true);
                    return;
                }
                Some(Entry::Filter(text)) => return self.set_filter(text),
                None => return,
            },
            _ => return,
        }
        // A filter is seen while it is typed.
        if let Some(Entry::Filter(text)) = &self.entry {
            self.set_filter(text.clone());
        }
    }

    fn set_filter(&mut self, text: String) {
        self.filter = text;
        Pane::ALL.into_iter().for_each(|pane| self.renew(pane));
    }

    fn enter(&mut self, pane: Pane) {
        self.pane = pane;
        self.scroll(pane);
    }

    /// The row at the cursor.
    pub(super) fn selected(&self) -> Option<Row> {
        self.rows[self.pane as usize].get(self.cursors[self.pane as usize].at).copied()
    }

    fn ask(
        &mut self,
        question: fn(&Known, Row) -> Option<Question>,
        otherwise: &str,
    ) -> Option<Effect> {
        let Some(question) = question(&self.known, self.selected()?) else {
            otherwise.clone_into(&mut self.note);
            return None;
        };
        self.asked += 1;
        self.page = Some(Page::new(self.asked, question.command(), "asking the daemon …"));
        self.wrap();
        Some(Effect::Ask(self.asked, question))
    }

    fn open_help(&mut self) {
        let mut text = String::new();
        for (keys, what) in HELP {
            text.push_str(&format!("\x1b[1m{keys:<12}\x1b[0m {what}\n"));
        }
        text.push_str("\nThe bar of a range:\n");
        for part in super::bar::Part::ALL {
            text.push_str(&format!(
                "{:<12} {}\n",
                part.cell(self.glyphs).repeat(4),
                part.meaning()
            ));
        }
        text.push_str("\nTimes are UTC. Everything is as of the time in the first line.\n");
        self.asked += 1;
        self.page = Some(Page::new(self.asked, "keys".to_owned(), &text));
        self.wrap();
    }

    fn wrap(&mut self) {
        let area = layout::page(self.size);
        if let Some(page) = &mut self.page {
            page.wrap(usize::from(area.width), usize::from(area.height), self.glyphs);
        }
    }

    fn fold(&mut self) {
        let Some(Row::Finding { at, under: false, .. }) = self.selected() else { return };
        let Some(finding) = self.known.finding(at) else { return };
        let id = finding.id.clone();
        if !self.unfolded.remove(&id) {
            self.unfolded.insert(id);
        }
        self.renew(Pane::Findings);
    }

    /// Computes the rows of a pane again. The cursor stays on its row.
    fn renew(&mut self, pane: Pane) {
        let cursor = &self.cursors[pane as usize];
        let filter = self.filter.to_lowercase();
        let wanted = Wanted {
            order: cursor.order,
            filter: &filter,
            unfolded: Some(&self.unfolded),
            unfold_all: self.unfold_all,
        };
        let new = rows(&self.known, pane, &wanted);
        let known = &self.known;
        // At the top one stays at the top: what is newest or worst is there.
        let at = match cursor.at {
            0 => Some(0),
            _ => new.iter().position(|row| rows::key(known, *row) == cursor.key),
        };
        let at = at.unwrap_or(cursor.at).min(new.len().saturating_sub(1));
        self.rows[pane as usize] = new;
        self.set(pane, at);
    }

    fn set(&mut self, pane: Pane, at: usize) {
        let key = self.rows[pane as usize].get(at).map(|row| rows::key(&self.known, *row));
        let cursor = &mut self.cursors[pane as usize];
        (cursor.at, cursor.key) = (at, key.unwrap_or_default());
        self.scroll(pane);
    }

    /// Moves the rows so that the cursor is on the screen, and none is empty without need.
    fn scroll(&mut self, pane: Pane) {
        let visible = layout::visible(self.places().pane(pane), pane);
        let count = self.rows[pane as usize].len();
        let cursor = &mut self.cursors[pane as usize];
        let lowest = (cursor.at + 1).saturating_sub(visible.max(1));
        cursor.top =
            cursor.top.clamp(lowest, cursor.at).min(count.saturating_sub(visible).max(lowest));
    }

    fn go(&mut self, motion: Motion) {
        let visible = layout::visible(self.places().pane(self.pane), self.pane);
        let page = visible.saturating_sub(1).max(1);
        let last = self.rows[self.pane as usize].len().saturating_sub(1);
        let at = self.cursors[self.pane as usize].at;
        let to = match motion {
            Motion::Up => at.saturating_sub(1),
            Motion::Down => at + 1,
            Motion::PageUp => at.saturating_sub(page),
            Motion::PageDown => at + page,
            Motion::First => 0,
            Motion::Last => last,
        };
        self.set(self.pane, to.min(last));
    }

    /// Goes to the next row with the text that is searched for, from the end to the beginning.
    fn find_from(&mut self, forwards: bool) {
        if self.find.is_empty() {
            "f searches for a text first".clone_into(&mut self.note);
            return;
        }
        let all = &self.rows[self.pane as usize];
        let at = self.cursors[self.pane as usize].at;
        let found = (1..=all.len())
            .map(|step| match forwards {
                true => (at + step) % all.len(),
                false => (at + all.len() - step) % all.len(),
            })
            .find(|at| words::text_of(&self.known, all[*at]).contains(&self.find));
        match found {
            Some(at) => self.set(self.pane, at),
            None => self.note = format!("no row with {:?} here", self.find),
        }
    }
}
