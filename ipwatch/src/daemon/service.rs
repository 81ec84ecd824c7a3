//! Notifications to the service manager, by sd_notify(3): readiness, a status line, reload, stop, and the watchdog.
//!
//! The watchdog is fed only after a turn of the core, not by a timer or another thread. The service manager therefore
//! restarts a core that is stuck; its findings keep their ids (`ledger`).

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

/// Minimum time between two status lines, in ns.
const STATUS_EVERY: u64 = 5_000_000_000;
/// Maximum length of the status line, in characters.
const LONGEST: usize = 200;

/// The service manager, if there is one.
#[derive(Debug)]
pub(super) struct Service {
    /// Interval of the watchdog, from which turns take their limit; `None` if there is no watchdog.
    beat: Option<Duration>,
    beaten: BootNs,
    ready: bool,
    status: String,
    said: BootNs,
}

impl Service {
    /// Reads the watchdog's settings from the environment, and reports that the node is being read.
    pub(super) fn start() -> Self {
        // A turn waits at most this long, and the watchdog is fed once half of this has passed: at most half of the
        // limit in total, as sd_watchdog_enabled(3) advises.
        let beat = sd_notify::watchdog_enabled().map(|limit| limit / 3);
        let status = "reading the node".to_owned();
        notify(&[NotifyState::Status(&status)]);
        let now = clock::now();
        Self { beat, beaten: now, ready: false, status, said: now }
    }

    /// The longest that a turn of the core may wait for an event.
    pub(super) fn beat(&self) -> Option<Duration> {
        self.beat
    }

    /// Called after each turn of the core.
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

    /// Reports that the configuration is being read again.
    pub(super) fn reloading() {
        let since = NotifyState::monotonic_usec_now().ok();
        let told: Vec<_> = [NotifyState::Reloading].into_iter().chain(since).collect();
        notify(&told);
    }

    /// Reports the result of a reload.
    pub(super) fn reloaded(&mut self, status: &str) {
        self.status = cut(status);
        self.said = clock::now();
        // Do not report readiness before the map is complete.
        let ready = Some(NotifyState::Ready).filter(|_| self.ready);
        let told: Vec<_> = ready.into_iter().chain([NotifyState::Status(&self.status)]).collect();
        notify(&told);
    }

    /// Reports that the daemon is shutting down.
    pub(super) fn stopping() {
        notify(&[NotifyState::Stopping, NotifyState::Status("going down")]);
    }
}

fn notify(states: &[NotifyState<'_>]) {
    // Without a service manager there is nothing to do.
    let Some(manager) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&manager, states) {
        tracing::debug!("the service manager was not told: {error}");
    }
}

/// sd_notify(3) with a non-blocking socket: the manager of a sick node may no longer read, and the core must go on.
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

/// The status line that `systemctl status` shows.
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

/// The text escaped and cut to one status line.
fn cut(text: &str) -> String {
    crate::escape::escape(text).chars().take(LONGEST).collect()
}
