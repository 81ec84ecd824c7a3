//! A fake journald socket for one daemon, in a separate mount namespace.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::{Lab, daemon, eventually, patience};

/// Mounts the directory `$1` over journald's socket directory, and executes the remaining arguments. If
/// `/run/systemd` exists, nothing else of `/run` is hidden.
const SCRIPT: &str = "[ -d /run/systemd ] || { mount -t tmpfs run /run && mkdir /run/systemd; }
    mount -t tmpfs run /run/systemd && mkdir /run/systemd/journal &&
    mount --bind \"$1\" /run/systemd/journal && shift && exec \"$@\"";

/// The journal of one daemon.
#[derive(Debug)]
pub struct Journal {
    socket: UnixDatagram,
}

impl Journal {
    /// The journal, and a command for a daemon whose stderr is connected to it.
    #[must_use]
    pub fn new(lab: &Lab) -> (Self, Command) {
        let dir = lab.subdir("journal");
        let socket = UnixDatagram::bind(dir.join("socket")).expect("bind the journal's socket");
        socket.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
        // The daemon recognises the journal by the device and inode of stderr.
        let log = lab.dir().join("daemon.log");
        fs::write(&log, "").expect("make the log");
        let meta = fs::metadata(&log).expect("look at the log");
        let mut command = Command::new("unshare");
        // Later mounts are visible, as for a service without a mount namespace.
        command.args(["-m", "--propagation", "slave", "sh", "-c", SCRIPT, "sh"]);
        command.arg(&dir).arg(daemon::binary());
        command.env("JOURNAL_STREAM", format!("{}:{}", meta.dev(), meta.ino()));
        (Self { socket }, command)
    }

    /// Waits for an entry with all these lines.
    ///
    /// # Panics
    /// There was none within `seconds`, times [`patience`].
    #[track_caller]
    pub fn await_entry(&self, wanted: &[String], seconds: u32) -> String {
        let until = Instant::now() + Duration::from_secs(u64::from(seconds * patience()));
        let mut seen = Vec::new();
        while Instant::now() < until {
            let mut buffer = [0; 65536];
            let Ok(len) = self.socket.recv(&mut buffer) else { continue };
            let entry = String::from_utf8_lossy(&buffer[..len]).into_owned();
            if wanted.iter().all(|field| entry.lines().any(|line| line == field)) {
                return entry;
            }
            seen.push(entry);
        }
        panic!("no entry with {wanted:?}, but: {seen:#?}");
    }
}

/// A field of an entry: its name and its value.
pub type Field = (String, String);

/// What comes to a journal, kept as it comes: its socket has room for few entries.
#[derive(Debug)]
pub struct Entries {
    all: Arc<Mutex<Vec<Vec<Field>>>>,
}

impl Journal {
    /// Keeps every entry from now on.
    #[must_use]
    pub fn keep(self) -> Entries {
        let all = Arc::new(Mutex::new(Vec::new()));
        let entries = Entries { all: Arc::clone(&all) };
        std::thread::spawn(move || {
            let mut buffer = [0; 65536];
            // Until the test is the only one left that has the list.
            while Arc::strong_count(&all) > 1 {
                let Ok(len) = self.socket.recv(&mut buffer) else { continue };
                let entry = fields(&buffer[..len]);
                all.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
            }
        });
        entries
    }
}

impl Entries {
    /// Waits for the first entry that has all these fields.
    #[must_use]
    #[track_caller]
    pub fn await_first(&self, wanted: &[(&str, &str)], seconds: u32) -> Vec<Field> {
        let has = |entry: &[Field], (name, value): (&str, &str)| {
            entry.iter().any(|(known, said)| known == name && said == value)
        };
        eventually(&format!("an entry with {wanted:?}"), seconds, || {
            let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
            all.iter().find(|entry| wanted.iter().all(|field| has(entry, *field))).cloned()
        })
    }
}

/// The fields of an entry in journald's native protocol: `NAME=VALUE`, or the name alone, the length of the value in
/// 64 bits, little-endian, and the value.
fn fields(mut entry: &[u8]) -> Vec<Field> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut fields = Vec::new();
    while let Some(end) = entry.iter().position(|byte| *byte == b'\n') {
        let (line, rest) = (&entry[..end], &entry[end + 1..]);
        if let Some(equals) = line.iter().position(|byte| *byte == b'=') {
            fields.push((text(&line[..equals]), text(&line[equals + 1..])));
            entry = rest;
            continue;
        }
        let Some((length, rest)) = rest.split_first_chunk::<8>() else { break };
        let length = usize::try_from(u64::from_le_bytes(*length)).expect("a length");
        fields.push((text(line), text(&rest[..length])));
        entry = &rest[length + 1..];
    }
    fields
}
