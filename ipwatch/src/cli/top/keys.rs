//! Keys: bytes of the terminal become keys, and keys become actions.

/// A key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Tab,
    BackTab,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    /// Ctrl and this letter.
    Ctrl(char),
}

/// What a key does on the screen of lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Move(Motion),
    /// To the pane with this number, from 0.
    Pane(usize),
    NextPane,
    PreviousPane,
    Explain,
    Tree,
    History,
    Fold,
    FoldAll,
    Sort,
    Filter,
    Find,
    FindNext,
    FindPrevious,
    Clear,
    Refresh,
    Help,
    Suspend,
    Quit,
}

/// A motion in a list or a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Motion {
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
}

/// The keys for people.
pub(super) const HELP: &[(&str, &str)] = &[
    ("up down j k", "select a row; PgUp PgDn Home End move further"),
    ("Tab 1-5", "the next pane, or the one with this number"),
    ("Enter", "explain the row: what happened, what will fail next, what to do"),
    ("t", "tree: the network namespace and everything that keeps it alive"),
    ("h", "history: who had the IP, from when to when"),
    ("Space c", "show what follows from this cause; of all causes"),
    ("/", "filter: only rows with this text, in every pane; Esc clears it"),
    ("f n N", "find a row with this text; the next, the previous"),
    ("s", "sort by something else"),
    ("r", "ask the daemon for everything again"),
    ("?", "this help"),
    ("q", "leave; Ctrl-Z suspends"),
];

/// The action of a key.
pub(super) fn action(key: Key) -> Option<Action> {
    Some(match key {
        Key::Char('q') | Key::Ctrl('c') => Action::Quit,
        Key::Ctrl('z') => Action::Suspend,
        Key::Tab => Action::NextPane,
        Key::BackTab => Action::PreviousPane,
        Key::Char(digit @ '1'..='5') => Action::Pane(digit as usize - '1' as usize),
        Key::Enter => Action::Explain,
        Key::Char('t') => Action::Tree,
        Key::Char('h') => Action::History,
        Key::Char(' ') => Action::Fold,
        Key::Char('c') => Action::FoldAll,
        Key::Char('s') => Action::Sort,
        Key::Char('/') => Action::Filter,
        Key::Char('f') => Action::Find,
        Key::Char('n') => Action::FindNext,
        Key::Char('N') => Action::FindPrevious,
        Key::Escape => Action::Clear,
        Key::Char('r') | Key::Ctrl('l') => Action::Refresh,
        Key::Char('?') => Action::Help,
        key => Action::Move(motion(key)?),
    })
}

/// The motion of a key.
pub(super) fn motion(key: Key) -> Option<Motion> {
    Some(match key {
        Key::Up | Key::Char('k') => Motion::Up,
        Key::Down | Key::Char('j') => Motion::Down,
        Key::PageUp => Motion::PageUp,
        Key::PageDown => Motion::PageDown,
        Key::Home | Key::Char('g') => Motion::First,
        Key::End | Key::Char('G') => Motion::Last,
        _ => return None,
    })
}

/// Longest sequence of a key that is known; what is longer is none of them.
const LONGEST: usize = 8;

/// Reads keys from what the terminal sends. A sequence may arrive in pieces.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    /// The beginning of a sequence or of a character.
    begun: Vec<u8>,
}

impl Decoder {
    /// The keys in these bytes, and in what was begun before.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Vec<Key> {
        let mut keys = Vec::new();
        for byte in bytes {
            self.begun.push(*byte);
            match decode(&self.begun) {
                Decoded::Key(key) => {
                    keys.push(key);
                    self.begun.clear();
                }
                Decoded::Begun if self.begun.len() < LONGEST => {}
                // Not a key that does anything here.
                Decoded::Begun | Decoded::Nothing => self.begun.clear(),
            }
        }
        keys
    }

    /// Whether it waits for the rest of a sequence.
    pub(super) fn waits(&self) -> bool {
        !self.begun.is_empty()
    }

    /// Nothing came for a while: an Escape that was to begin a sequence is the key.
    pub(super) fn give_up(&mut self) -> Option<Key> {
        let was_escape = self.begun == [ESCAPE];
        self.begun.clear();
        was_escape.then_some(Key::Escape)
    }
}

const ESCAPE: u8 = 0x1b;

enum Decoded {
    Key(Key),
    /// The bytes begin something.
    Begun,
    Nothing,
}

fn decode(bytes: &[u8]) -> Decoded {
    let key = match bytes {
        [ESCAPE] | [ESCAPE, b'[' | b'O'] => return Decoded::Begun,
        [ESCAPE, b'[' | b'O', rest @ ..] => return sequence(rest),
        // Alt and a key: not used here.
        [ESCAPE, ..] => return Decoded::Nothing,
        [b'\r' | b'\n'] => Key::Enter,
        [b'\t'] => Key::Tab,
        [0x7f | 0x08] => Key::Backspace,
        [letter @ 0x01..=0x1a] => Key::Ctrl(char::from(letter + b'a' - 1)),
        [0x00..0x20] => return Decoded::Nothing,
        bytes => match std::str::from_utf8(bytes) {
            Ok(text) => match text.chars().next() {
                Some(c) if !c.is_control() => Key::Char(c),
                _ => return Decoded::Nothing,
            },
            Err(error) if error.error_len().is_none() => return Decoded::Begun,
            Err(_) => return Decoded::Nothing,
        },
    };
    Decoded::Key(key)
}

/// What follows `ESC [` or `ESC O`, as xterm, the Linux console and tmux send it.
fn sequence(rest: &[u8]) -> Decoded {
    Decoded::Key(match rest {
        b"A" => Key::Up,
        b"B" => Key::Down,
        b"H" | b"1~" | b"7~" => Key::Home,
        b"F" | b"4~" | b"8~" => Key::End,
        b"5~" => Key::PageUp,
        b"6~" => Key::PageDown,
        b"Z" => Key::BackTab,
        b"M" => Key::Enter,
        // Parameters; a byte from `@` to `~` ends the sequence.
        [.., 0x40..=0x7e] => return Decoded::Nothing,
        _ => return Decoded::Begun,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Vec<Key> {
        Decoder::default().read(bytes)
    }

    #[test]
    fn keys_are_read_as_terminals_send_them() {
        assert_eq!(
            read(b"q/\r\x7f\x03\x1a"),
            [
                Key::Char('q'),
                Key::Char('/'),
                Key::Enter,
                Key::Backspace,
                Key::Ctrl('c'),
                Key::Ctrl('z'),
            ]
        );
        assert_eq!(
            read(b"\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[H\x1b[4~\x1b[Z"),
            [Key::Up, Key::Down, Key::PageUp, Key::PageDown, Key::Home, Key::End, Key::BackTab,]
        );
        assert_eq!(read("é日".as_bytes()), [Key::Char('é'), Key::Char('日')]);
    }

    #[test]
    fn a_sequence_may_arrive_in_pieces_and_an_escape_alone_is_a_key() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.read(b"\x1b"), []);
        assert!(decoder.waits());
        assert_eq!(decoder.read(b"["), []);
        assert_eq!(decoder.read(b"A"), [Key::Up]);
        assert_eq!(decoder.read(b"\x1b"), []);
        assert_eq!(decoder.give_up(), Some(Key::Escape));
        assert_eq!(decoder.give_up(), None);
        decoder.read(b"\x1b[1");
        assert_eq!(decoder.give_up(), None, "the rest of a sequence is no key");
    }

    #[test]
    fn what_is_no_key_is_passed_over() {
        assert_eq!(read(b"\x1b[200~q"), [Key::Char('q')]);
        assert_eq!(read(b"\xff\xfeq"), [Key::Char('q')]);
        assert_eq!(read(b"\x00\x1fq"), [Key::Char('q')]);
        assert_eq!(read(b"\x1bxq"), [Key::Char('q')], "Alt-x");
        let endless = [b"\x1b[".as_slice(), &[b'1'; 4096]].concat();
        let mut decoder = Decoder::default();
        decoder.read(&endless);
        assert!(decoder.begun.len() < LONGEST);
    }

    #[test]
    fn every_key_of_the_help_does_something() {
        for (keys, what) in HELP {
            for key in keys.split(' ').filter(|key| key.len() == 1) {
                let key = key.chars().next().unwrap();
                assert!(action(Key::Char(key)).is_some(), "{key}: {what}");
            }
        }
    }
}
