//! The names of runtimes as sources.
//!
//! A runtime has the name that it reports, `containerd`, `cri-o` or `docker`. For a second runtime with the same name,
//! the path of its socket is appended. Before a runtime has reported its name, it has the usual name for its socket.

use crate::fact::{SourceName, store};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The name of the source while there is no runtime.
pub(super) const NONE: &str = SourceName::Runtime.as_str();
/// Maximum length of a name that a runtime reports.
const LONGEST: usize = 32;

/// All runtimes that were found.
#[derive(Debug, Default)]
pub(super) struct Names(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// In the order of the sockets.
    seats: Vec<(String, Arc<Notify>)>,
    /// Real paths of the watched sockets: two paths may lead to one runtime.
    sockets: BTreeSet<PathBuf>,
    /// Whether it was reported that there is no runtime.
    none: bool,
}

/// The entry of one runtime.
#[derive(Debug)]
pub(super) struct Seat {
    names: Arc<Names>,
    index: usize,
    /// Notified when the runtime must be asked again.
    pub(super) bell: Arc<Notify>,
}

impl Names {
    /// Creates a seat for a socket, with the usual name. `real`: its path with links resolved; a socket that does not
    /// exist is known by its configured path. `None`: the same socket already has a seat, under another path.
    pub(super) fn seat(self: &Arc<Self>, socket: &Path, real: Option<PathBuf>) -> Option<Seat> {
        let real = real.unwrap_or_else(|| socket.to_owned());
        let bell = Arc::new(Notify::new());
        let mut inner = self.lock();
        if !inner.sockets.insert(real) {
            return None;
        }
        let index = inner.seats.len();
        inner.seats.push((String::new(), Arc::clone(&bell)));
        inner.rename(index, &usual(socket), socket);
        Some(Seat { names: Arc::clone(self), index, bell })
    }

    /// Notifies the runtime with this name.
    pub(super) fn ask(&self, runtime: &str) {
        let inner = self.lock();
        for (_, bell) in inner.seats.iter().filter(|(name, _)| name == runtime) {
            bell.notify_one();
        }
    }

    /// Whether a socket has a seat, so that it is asked.
    pub(super) fn has(&self, socket: &Path) -> bool {
        self.lock().sockets.contains(socket)
    }

    /// Records that it is reported that there is no runtime.
    pub(super) fn none(&self) {
        self.lock().none = true;
    }

    /// Records that a runtime was found. Returns whether it was reported before that there is none.
    pub(super) fn found(&self) -> bool {
        std::mem::take(&mut self.lock().none)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn rename(&mut self, index: usize, wanted: &str, socket: &Path) {
        let mut others = self.seats.iter().enumerate().filter(|(other, _)| *other != index);
        let taken = is_taken(wanted) || others.any(|(_, (name, _))| name == wanted);
        self.seats[index].0 =
            if taken { format!("{wanted} ({})", socket.display()) } else { wanted.to_owned() };
    }
}

/// Whether another source, or a kind of store, has this name.
fn is_taken(name: &str) -> bool {
    SourceName::ALL.iter().any(|own| own.as_str() == name) || store::ALL.contains(&name)
}

impl Seat {
    /// The name of the runtime.
    pub(super) fn name(&self) -> String {
        self.names.lock().seats[self.index].0.clone()
    }

    /// Adds the real path of its socket.
    pub(super) fn is_at(&self, real: PathBuf) {
        self.names.lock().sockets.insert(real);
    }

    /// Sets the name that the runtime reported. Returns its former name if that was different.
    pub(super) fn rename(&self, called: &str, socket: &Path) -> Option<String> {
        let mut inner = self.names.lock();
        let before = inner.seats[self.index].0.clone();
        inner.rename(self.index, &clean(called), socket);
        (inner.seats[self.index].0 != before).then_some(before)
    }
}

/// A name that is safe in a column and in a log line.
fn clean(called: &str) -> String {
    let fine = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String =
        called.chars().filter(fine).take(LONGEST).map(|c| c.to_ascii_lowercase()).collect();
    match name.as_str() {
        "" => NONE.to_owned(),
        // CRI-O's current spelling for the name that older versions report.
        "crio" => "cri-o".to_owned(),
        _ => name,
    }
}

/// The usual name of the runtime with this socket.
fn usual(socket: &Path) -> String {
    let file = socket.file_name().unwrap_or_default().to_string_lossy();
    let name = match file.trim_end_matches(".sock") {
        "containerd" => "containerd",
        "crio" => "cri-o",
        "docker" | "dockershim" | "cri-dockerd" => "docker",
        "podman" => "podman",
        _ => NONE,
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seat(names: &Arc<Names>, path: &str) -> Seat {
        names.seat(Path::new(path), None).unwrap()
    }

    #[test]
    fn a_second_runtime_of_one_name_has_its_socket_behind_it() {
        let names = Arc::default();
        let first = seat(&names, "/none/containerd/containerd.sock");
        let second = seat(&names, "/none/k3s/containerd.sock");
        assert_eq!(first.name(), "containerd");
        assert_eq!(second.name(), "containerd (/none/k3s/containerd.sock)");
        assert_eq!(first.rename("containerd", Path::new("/none/c.sock")), None);
        let other = seat(&names, "/none/a.sock");
        assert_eq!(other.name(), "runtime (/none/a.sock)");
        let before = other.rename("cri-o", Path::new("/none/a.sock"));
        assert_eq!(before.as_deref(), Some("runtime (/none/a.sock)"));
        assert_eq!(other.name(), "cri-o");
    }

    #[test]
    fn no_runtime_takes_the_name_of_another_source_or_a_terminal() {
        let names = Arc::default();
        let seat = seat(&names, "/none/a.sock");
        for (called, name) in [
            ("netlink", "netlink (/none/a.sock)"),
            ("kubelet", "kubelet (/none/a.sock)"),
            ("host-local", "host-local (/none/a.sock)"),
            ("", "runtime (/none/a.sock)"),
            ("\u{1b}[2Jfoo\nbar", "2jfoobar"),
            ("Kata_1.0", "kata_1.0"),
        ] {
            seat.rename(called, Path::new("/none/a.sock"));
            assert_eq!(seat.name(), name);
        }
        seat.rename(&"x".repeat(300), Path::new("/none/a.sock"));
        assert_eq!(seat.name().len(), LONGEST);
    }

    #[test]
    fn one_socket_has_one_seat_whatever_leads_to_it() {
        let (real, link) = (Path::new("/none/real.sock"), Path::new("/none/link.sock"));
        let names: Arc<Names> = Arc::default();
        assert!(names.seat(link, Some(real.to_owned())).is_some());
        assert!(names.seat(real, Some(real.to_owned())).is_none());
        assert!(names.has(real) && !names.has(link));
    }

    #[tokio::test]
    async fn asking_rings_for_the_one_that_is_meant() {
        let names = Arc::default();
        let one = seat(&names, "/none/containerd.sock");
        let other = seat(&names, "/none/docker.sock");
        names.ask("docker");
        names.ask("docker");
        names.ask("nobody");
        other.bell.notified().await;
        let mut quiet = std::pin::pin!(one.bell.notified());
        assert!(!quiet.as_mut().enable());
        // The two calls were merged.
        let mut quiet = std::pin::pin!(other.bell.notified());
        assert!(!quiet.as_mut().enable());
    }
}
