//! journald's end of its socket, put in place for the daemon alone, in a mount namespace of its own.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::{Lab, daemon, patience};

/// Puts the directory `$1` where journald has its socket, and becomes the rest of the arguments. Nothing else
/// of `/run` is hidden where there is a `/run/systemd`.
const SCRIPT: &str = "[ -d /run/systemd ] || { mount -t tmpfs run /run && mkdir /run/systemd; }
    mount -t tmpfs run /run/systemd && mkdir /run/systemd/journal &&
    mount --bind \"$1\" /run/systemd/journal && shift && exec \"$@\"";

/// The journal of one daemon.
#[derive(Debug)]
pub struct Journal {
    socket: UnixDatagram,
}

impl Journal {
    /// The journal, and the command that becomes a daemon whose stderr goes to it.
    #[must_use]
    pub fn new(lab: &Lab) -> (Self, Command) {
        let dir = lab.subdir("journal");
        let socket = UnixDatagram::bind(dir.join("socket")).expect("bind the journal's socket");
        socket.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
        // That stderr is the journal's is known by its device and inode.
        let log = lab.dir().join("daemon.log");
        fs::write(&log, "").expect("make the log");
        let meta = fs::metadata(&log).expect("look at the log");
        let mut command = Command::new("unshare");
        // What is mounted later is seen, as by a service without a mount namespace.
        command.args(["-m", "--propagation", "slave", "sh", "-c", SCRIPT, "sh"]);
        command.arg(&dir).arg(daemon::binary());
        command.env("JOURNAL_STREAM", format!("{}:{}", meta.dev(), meta.ino()));
        (Self { socket }, command)
    }

    /// Waits for an entry that has all these lines.
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
