//! The screen of a terminal, as the bytes that a program writes make it: enough of ECMA-48 for what `ipwatch top` writes.
//! An unknown sequence is a failure, because a real terminal may do anything with it.

/// A cell: its text and the parameters of its look, as `1;31`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cell {
    text: char,
    look: String,
}

impl Cell {
    fn blank() -> Self {
        Self { text: ' ', look: String::new() }
    }
}

/// A screen.
#[derive(Debug)]
pub struct Screen {
    lines: Vec<Vec<Cell>>,
    x: usize,
    y: usize,
    look: String,
    /// The beginning of a sequence or a character.
    begun: Vec<u8>,
    /// Whether the other screen is shown, on which full-screen programs draw.
    pub is_other: bool,
    /// Whether the cursor is shown.
    pub has_cursor: bool,
}

impl Screen {
    #[must_use]
    pub fn new(width: usize, height: usize) -> Self {
        Self {
            lines: vec![vec![Cell::blank(); width]; height],
            x: 0,
            y: 0,
            look: String::new(),
            begun: Vec::new(),
            is_other: false,
            has_cursor: true,
        }
    }

    /// A terminal of another size; what was shown is gone.
    pub fn resize(&mut self, width: usize, height: usize) {
        self.lines = vec![vec![Cell::blank(); width]; height];
    }

    /// The lines without colours, and without spaces at their ends.
    #[must_use]
    pub fn text(&self) -> String {
        let line = |cells: &Vec<Cell>| {
            let text: String = cells.iter().map(|cell| cell.text).collect();
            format!("{}\n", text.trim_end())
        };
        self.lines.iter().map(line).collect()
    }

    /// The lines with the sequences of their looks and nothing else.
    #[must_use]
    pub fn painted(&self) -> String {
        let mut out = String::new();
        for line in &self.lines {
            let mut look = "";
            for cell in line {
                if cell.look != look {
                    out.push_str(&format!("\x1b[0;{}m", cell.look));
                    look = &cell.look;
                }
                out.push(cell.text);
            }
            out.push_str("\x1b[0m\n");
        }
        out
    }

    /// Takes what the program wrote.
    ///
    /// # Panics
    /// A sequence is unknown, or something is written outside the screen.
    pub fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.begun.push(*byte);
            if self.is_whole() {
                let whole = std::mem::take(&mut self.begun);
                self.take(std::str::from_utf8(&whole).expect("UTF-8"));
            }
        }
    }

    fn is_whole(&self) -> bool {
        match self.begun.as_slice() {
            [0x1b] => false,
            [0x1b, b'[', rest @ ..] => rest.last().is_some_and(|last| (0x40..=0x7e).contains(last)),
            bytes => match std::str::from_utf8(bytes) {
                Ok(_) => true,
                Err(error) => error.error_len().is_some(),
            },
        }
    }

    fn take(&mut self, text: &str) {
        let Some(sequence) = text.strip_prefix("\x1b[") else { return self.print(text) };
        let (parameters, kind) = sequence.split_at(sequence.len() - 1);
        match (parameters, kind) {
            ("?1049", "h") => self.is_other = true,
            ("?1049", "l") => self.is_other = false,
            ("?25", _) => self.has_cursor = kind == "h",
            ("2", "J") => self.lines.iter_mut().flatten().for_each(|cell| *cell = Cell::blank()),
            (_, "H") => {
                let mut numbers = parameters.split(';').map(|n| n.parse().unwrap_or(1));
                self.y = numbers.next().unwrap_or(1) - 1;
                self.x = numbers.next().unwrap_or(1) - 1;
            }
            (_, "m") => {
                let look = parameters.strip_prefix('0').unwrap_or(parameters);
                look.trim_start_matches(';').clone_into(&mut self.look);
            }
            _ => panic!("an unknown sequence: {text:?}"),
        }
    }

    fn print(&mut self, text: &str) {
        for c in text.chars() {
            match c {
                '\r' => self.x = 0,
                '\n' => self.y += 1,
                c => {
                    assert!(!c.is_control(), "a control character is printed: {c:?}");
                    let look = self.look.clone();
                    // Behind a resize the program may still draw for the old size once.
                    if let Some(cell) =
                        self.lines.get_mut(self.y).and_then(|line| line.get_mut(self.x))
                    {
                        *cell = Cell { text: c, look };
                    }
                    self.x += 1;
                }
            }
        }
    }
}
