//! The journal's native protocol: an entry is one datagram of fields
//! (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL>).

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::OnceLock;

use super::entry;
use crate::finding::Change;

/// The socket of journald.
const SOCKET: &str = "/run/systemd/journal/socket";

/// Set once, if stderr is connected to the journal.
static SENDER: OnceLock<UnixDatagram> = OnceLock::new();

/// From now on findings go to the journal as entries, and no longer to stderr.
pub fn to_the_journal() {
    let socket = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        Ok(socket)
    });
    match socket {
        Ok(socket) => {
            let _ = SENDER.set(socket);
        }
        Err(error) => tracing::warn!("findings go to the journal without fields: {error}"),
    }
}

/// Sends a change as an entry. `false`: it was not sent, and must be written as a line. Never blocks.
pub(super) fn send(change: &Change) -> bool {
    let Some(socket) = SENDER.get() else { return false };
    // Addressed by path each time: a restarted journald has a new socket there.
    socket.send_to(&encode(&entry::fields(change)), Path::new(SOCKET)).is_ok()
}

/// Sends an entry that is no finding, for a command that is run once. `false`: there is no journal, or it does not take it.
pub(crate) fn note(fields: &[(&str, String)]) -> bool {
    let socket = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        socket.send_to(&encode(fields), Path::new(SOCKET))
    });
    socket.is_ok()
}

/// `NAME=value` lines; a value with a line break goes with its length, so that it cannot begin a field.
fn encode(fields: &[(&str, String)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1024);
    for (name, value) in fields {
        bytes.extend_from_slice(name.as_bytes());
        if value.contains('\n') {
            bytes.push(b'\n');
            bytes.extend_from_slice(&(value.len() as u64).to_le_bytes());
        } else {
            bytes.push(b'=');
        }
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(b'\n');
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_several_lines_forges_no_field() {
        let fields =
            [("A", "1".to_owned()), ("B", "x\nPRIORITY=0".to_owned()), ("C", String::new())];
        let expected = b"A=1\nB\n\x0c\0\0\0\0\0\0\0x\nPRIORITY=0\nC=\n";
        assert_eq!(encode(&fields), expected);
    }
}
