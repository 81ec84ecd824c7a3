//! Writes cells as the escape sequences that every terminal since the VT220 knows (ECMA-48), with the eight colours.

use std::io::{self, Write};

use ratatui_core::backend::{Backend, ClearType, WindowSize};
use ratatui_core::buffer::Cell;
use ratatui_core::layout::{Position, Size};
use ratatui_core::style::{Color, Modifier};

/// The other screen of the terminal, without a cursor.
pub(super) const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[0m\x1b[2J";
/// The screen as it was before.
pub(super) const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";

/// A terminal that is written to. What is drawn is written at once, by `flush`, so that no half of a screen is seen.
#[derive(Debug)]
pub(super) struct Ansi<W> {
    out: W,
    size: Size,
    queued: Vec<u8>,
    cursor: Position,
}

impl<W: Write> Ansi<W> {
    pub(super) fn new(out: W, size: Size) -> Self {
        Self { out, size, queued: Vec::new(), cursor: Position::ORIGIN }
    }

    pub(super) fn set_size(&mut self, size: Size) {
        self.size = size;
    }

    fn queue(&mut self, text: &str) {
        self.queued.extend_from_slice(text.as_bytes());
    }
}

/// The sequence for what a cell looks like.
fn look(cell: &Cell) -> String {
    let mut codes = vec!["0"];
    let modifiers = [(Modifier::BOLD, "1"), (Modifier::DIM, "2"), (Modifier::REVERSED, "7")];
    codes.extend(
        modifiers.iter().filter(|(one, _)| cell.modifier.contains(*one)).map(|(_, code)| *code),
    );
    codes.extend(match cell.fg {
        Color::Red => Some("31"),
        Color::Green => Some("32"),
        Color::Yellow => Some("33"),
        _ => None,
    });
    format!("\x1b[{}m", codes.join(";"))
}

impl<W: Write> Backend for Ansi<W> {
    type Error = io::Error;

    fn draw<'a, I>(&mut self, content: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        let mut next = None;
        let mut last = String::new();
        for (x, y, cell) in content {
            // Behind a wide character the next cell is one further: then the cursor is placed as well.
            if next != Some((x, y)) {
                self.queue(&format!("\x1b[{};{}H", y + 1, x + 1));
            }
            let look = look(cell);
            if look != last {
                self.queue(&look);
                last = look;
            }
            self.queue(cell.symbol());
            next = Some((x + 1, y)).filter(|_| cell.symbol().is_ascii());
        }
        if !last.is_empty() {
            self.queue("\x1b[0m");
        }
        Ok(())
    }

    /// [`ENTER`] has hidden it, and [`LEAVE`] shows it: a frame in which nothing differs writes nothing.
    fn hide_cursor(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(self.cursor)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        self.cursor = position.into();
        self.queue(&format!("\x1b[{};{}H", self.cursor.y + 1, self.cursor.x + 1));
        Ok(())
    }

    fn clear(&mut self) -> io::Result<()> {
        self.clear_region(ClearType::All)
    }

    fn clear_region(&mut self, region: ClearType) -> io::Result<()> {
        self.queue(match region {
            ClearType::All => "\x1b[0m\x1b[2J",
            ClearType::AfterCursor => "\x1b[J",
            ClearType::BeforeCursor => "\x1b[1J",
            ClearType::CurrentLine => "\x1b[2K",
            ClearType::UntilNewLine => "\x1b[K",
        });
        Ok(())
    }

    fn size(&self) -> io::Result<Size> {
        Ok(self.size)
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize { columns_rows: self.size, pixels: Size::ZERO })
    }

    fn flush(&mut self) -> io::Result<()> {
        let queued = std::mem::take(&mut self.queued);
        self.out.write_all(&queued)?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use ratatui_core::buffer::Buffer;
    use ratatui_core::layout::Rect;
    use ratatui_core::style::Style;

    use super::*;

    #[test]
    fn only_what_differs_is_written_with_its_look() {
        let area = Rect::new(0, 0, 12, 2);
        let (before, mut after) = (Buffer::empty(area), Buffer::empty(area));
        after.set_string(2, 1, "日b", Style::default().fg(Color::Red).add_modifier(Modifier::BOLD));
        after.set_string(5, 1, "c", Style::default().add_modifier(Modifier::REVERSED));
        let mut ansi = Ansi::new(Vec::new(), Size::new(12, 2));
        ansi.draw(before.diff(&after).into_iter()).unwrap();
        assert!(ansi.out.is_empty(), "nothing is written before the end");
        ansi.flush().unwrap();
        let written = String::from_utf8(ansi.out).unwrap();
        assert_eq!(written, "\x1b[2;3H\x1b[0;1;31m日\x1b[2;5Hb\x1b[0;7mc\x1b[0m");
    }
}
