//! What the service manager is told, by sd_notify(3): that the map is complete, one line of how things
//! stand, that the daemon reloads or stops, and that it is alive.
//!
//! The watchdog is fed after a turn of the core and nowhere else: no timer, no thread of its own. A core that
//! stands still is ended and started anew, and its findings keep their ids (`ledger`).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use sd_notify::NotifyState;

use super::core::Core;
use crate::clock;
use crate::fact::BootNs;

/// The line of how things stand is told no more often than this.
const STATUS_EVERY: u64 = 5_000_000_000;
/// Longest such line: it is for people.
const LONGEST: usize = 200;

/// The service manager, if there is one.
#[derive(Debug)]
pub(super) struct Service {
    /// How often it is told that the core turns; `None`: it does not ask.
    beat: Option<Duration>,
    beaten: BootNs,
    ready: bool,
    status: String,
    said: BootNs,
}

impl Service {
    /// Finds out what it asks for, and says that the node is being read.
    pub(super) fn start() -> Self {
        // It is fed after every half of this and a turn waits no longer than this: that is half of the
        // limit at the most, as sd_watchdog_enabled(3) advises.
        let beat = sd_notify::watchdog_enabled().map(|limit| limit / 3);
        let status = "reading the node".to_owned();
        notify(&[NotifyState::Status(&status)]);
        let now = clock::now();
        Self { beat, beaten: now, ready: false, status, said: now }
    }

    /// The longest that a turn of the core may wait for something to happen.
    pub(super) fn beat(&self) -> Option<Duration> {
        self.beat
    }

    /// The core has turned once.
    pub(super) fn turned(&mut self, core: &Core) {
        let now = clock::now();
        if self.beat.is_some_and(|beat| now.since(self.beaten) >= beat.as_nanos() as u64 / 2) {
            self.beaten = now;
            notify(&[NotifyState::Watchdog]);
        }
        if core.is_ready() && !self.ready {
            self.ready = true;
            self.status = line(core);
            self.said = now;
            notify(&[NotifyState::Ready, NotifyState::Status(&self.status)]);
        } else if self.ready && now.since(self.said) >= STATUS_EVERY {
            self.said = now;
            let status = line(core);
            if status != self.status {
                self.status = status;
                notify(&[NotifyState::Status(&self.status)]);
            }
        }
    }

    /// The configuration is being read again.
    pub(super) fn reloading() {
        let since = NotifyState::monotonic_usec_now().ok();
        let told: Vec<_> = [NotifyState::Reloading].into_iter().chain(since).collect();
        notify(&told);
    }

    /// It was, with this result.
    pub(super) fn reloaded(&mut self, status: &str) {
        self.status = cut(status);
        self.said = clock::now();
        // Whoever waits for the start to end is not told so before the map is complete.
        let ready = Some(NotifyState::Ready).filter(|_| self.ready);
        let told: Vec<_> = ready.into_iter().chain([NotifyState::Status(&self.status)]).collect();
        notify(&told);
    }

    /// The daemon goes down.
    pub(super) fn stopping() {
        notify(&[NotifyState::Stopping, NotifyState::Status("going down")]);
    }
}

fn notify(states: &[NotifyState<'_>]) {
    // Without a service manager this does nothing.
    let Some(manager) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&manager, states) {
        tracing::debug!("the service manager was not told: {error}");
    }
}

/// sd_notify(3) by a socket of our own, which waits for nobody: the manager of a sick node may read nothing
/// any more, and the core must go on.
fn send(manager: &OsStr, states: &[NotifyState<'_>]) -> io::Result<()> {
    let address = match manager.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    let text: String = states.iter().map(|state| format!("{state}\n")).collect();
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(text.as_bytes(), &address)?;
    Ok(())
}

/// How things stand, for `systemctl status`.
fn line(core: &Core) -> String {
    let (netns, addresses, _) = core.map().sizes();
    let mut line = format!("{addresses} addresses in {netns} network namespaces");
    let (causes, firing) = core.wrongs();
    if firing > 0 {
        let s = if firing == 1 { "" } else { "s" };
        line.push_str(&format!("; {firing} finding{s}, causes among them: {causes}"));
    }
    if !core.is_whole() {
        line.push_str(", not everything could be read yet");
    }
    let down = core.map().sources();
    let down: Vec<&str> = down
        .iter()
        .filter(|source| source.status == crate::fact::SourceStatus::Down)
        .map(|source| source.name.as_str())
        .collect();
    if !down.is_empty() {
        line.push_str(&format!(", down: {}", down.join(", ")));
    }
    cut(&line)
}

/// One line of what may be many.
fn cut(text: &str) -> String {
    crate::escape::escape(text).chars().take(LONGEST).collect()
}
