//! What the runtimes are called as sources, and who is meant by a name.
//!
//! A runtime is called what it calls itself, `containerd`, `cri-o` or `docker`. A second one of that
//! name has its socket's path behind it. Before a runtime has said its name it is called what is
//! usual for its socket.

use crate::fact::{SourceName, store};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The source that stands for all runtimes while there is none.
pub(super) const NONE: &str = SourceName::Runtime.as_str();
/// Longest name that a runtime may give itself.
const LONGEST: usize = 32;

/// Every runtime that was found.
#[derive(Debug, Default)]
pub(super) struct Names(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// In the order of the sockets.
    seats: Vec<(String, Arc<Notify>)>,
    /// Sockets that are watched, links resolved: two paths may lead to one runtime.
    sockets: BTreeSet<PathBuf>,
    /// It was told that there is no runtime.
    none: bool,
}

/// The place of one runtime among them.
#[derive(Debug)]
pub(super) struct Seat {
    names: Arc<Names>,
    index: usize,
    /// Rung when somebody wants it asked.
    pub(super) bell: Arc<Notify>,
}

impl Names {
    /// A seat for a socket, under its usual name. `real`: its path with links resolved; one that is not there is known
    /// by the path it was named by. `None`: the same socket has one, under another path.
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

    /// Rings for the runtime of this name.
    pub(super) fn ask(&self, runtime: &str) {
        let inner = self.lock();
        for (_, bell) in inner.seats.iter().filter(|(name, _)| name == runtime) {
            bell.notify_one();
        }
    }

    /// Whether a socket has a seat: it is asked.
    pub(super) fn has(&self, socket: &Path) -> bool {
        self.lock().sockets.contains(socket)
    }

    /// It will be told that there is no runtime.
    pub(super) fn none(&self) {
        self.lock().none = true;
    }

    /// One was found. Whether it was told before that there is none.
    pub(super) fn found(&self) -> bool {
        std::mem::take(&mut self.lock().none)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics while it holds the lock.
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

/// Whether another source, or a kind of store, is called so.
fn is_taken(name: &str) -> bool {
    SourceName::ALL.iter().any(|own| own.as_str() == name) || store::ALL.contains(&name)
}

impl Seat {
    /// What the runtime is called.
    pub(super) fn name(&self) -> String {
        self.names.lock().seats[self.index].0.clone()
    }

    /// Its socket is there: where it really is.
    pub(super) fn is_at(&self, real: PathBuf) {
        self.names.lock().sockets.insert(real);
    }

    /// It has said what it is called. Its former name, if that was another one.
    pub(super) fn rename(&self, called: &str, socket: &Path) -> Option<String> {
        let mut inner = self.names.lock();
        let before = inner.seats[self.index].0.clone();
        inner.rename(self.index, &clean(called), socket);
        (inner.seats[self.index].0 != before).then_some(before)
    }
}

/// A name that fits into a column and into a log line.
fn clean(called: &str) -> String {
    let fine = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String =
        called.chars().filter(fine).take(LONGEST).map(|c| c.to_ascii_lowercase()).collect();
    match name.as_str() {
        "" => NONE.to_owned(),
        // As CRI-O's RuntimeName is spelt, and as it was in older versions.
        "crio" => "cri-o".to_owned(),
        _ => name,
    }
}

/// The runtime that usually has this socket.
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
        // Two calls were one.
        let mut quiet = std::pin::pin!(other.bell.notified());
        assert!(!quiet.as_mut().enable());
    }
}
