//! Which sockets there are, and what one speaks.

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use super::error::RuntimeError;
use super::watch::{Client, Parts, Watch};
use super::{Kind, Pace, Socket, cri, docker, names, tell};
use crate::clock;
use crate::fact::{SourceStatus, What};
use crate::sources::Unheard;
use crate::sources::errors::within;

/// Told while nobody is there to be asked. A runtime that is there and silent is down instead.
pub(super) const NOBODY: &str = "no runtime socket found";
const SWITCHED_OFF: &str = "switched off by the configuration";

/// A usual place of a runtime's socket.
struct Place {
    path: &'static str,
    kind: Kind,
    /// The socket counts only beside this file: systemd listens on Docker's for a dockerd that does
    /// not run (`docker.socket`), and would start it for whoever connects.
    beside: Option<&'static str>,
}

const PLACES: [Place; 5] = [
    Place::cri("/run/containerd/containerd.sock"),
    Place::cri("/run/k3s/containerd/containerd.sock"),
    Place::cri("/run/crio/crio.sock"),
    Place { path: "/run/docker.sock", kind: Kind::Docker, beside: Some("/run/docker.pid") },
    Place::cri("/run/dockershim.sock"),
];

impl Place {
    const fn cri(path: &'static str) -> Self {
        Self { path, kind: Kind::Cri, beside: None }
    }
}

/// A socket that may not be there yet.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) socket: Socket,
    beside: Option<PathBuf>,
    /// Somebody said that it is there: if it is not, that runtime is down.
    pub(super) expected: bool,
}

impl Candidate {
    pub(super) fn is_there(&self) -> bool {
        let is_socket = |path: &Path| {
            std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
        };
        is_socket(&self.socket.path) && self.beside.as_deref().is_none_or(is_running)
    }

    /// Whoever connects to it while its runtime does not run has it started.
    pub(super) fn may_be_started(&self) -> bool {
        self.beside.is_some()
    }

    /// Waits until it can be asked without being started by that. A dockerd that goes down removes its pid
    /// file late, and a connection that waits for it then starts it again.
    pub(super) async fn may_be_asked(&self, pace: &Pace) {
        if self.may_be_started() {
            tokio::time::sleep(pace.poll * 2).await;
            appear(self, pace).await;
        }
    }
}

/// Whether the process runs whose pid is in this file.
fn is_running(path: &Path) -> bool {
    let Ok(text) = crate::bounded::read_text(path, 32) else { return false };
    let pid: Option<u32> = text.trim().parse().ok();
    pid.is_some_and(|pid| Path::new("/proc").join(pid.to_string()).exists())
}

fn candidates(sockets: Option<Vec<Socket>>) -> Vec<Candidate> {
    if let Some(sockets) = sockets {
        let named = |socket| Candidate { socket, beside: None, expected: true };
        return sockets.into_iter().map(named).collect();
    }
    let usual = |place: &Place| Candidate {
        socket: Socket { path: place.path.into(), kind: Some(place.kind) },
        beside: place.beside.map(PathBuf::from),
        expected: false,
    };
    PLACES.iter().map(usual).collect()
}

/// Starts a watch for every socket. Those that are there now hold `unheard` until they have answered.
pub(super) async fn run(sockets: Option<Vec<Socket>>, parts: Parts, unheard: Unheard) {
    watch(candidates(sockets), parts, unheard).await;
}

async fn watch(candidates: Vec<Candidate>, parts: Parts, unheard: Unheard) {
    let there: Vec<bool> = candidates.iter().map(|one| one.expected || one.is_there()).collect();
    if !there.contains(&true) {
        let detail = if candidates.is_empty() { SWITCHED_OFF } else { NOBODY };
        parts.names.none();
        let (name, status) = (names::NONE.to_owned(), SourceStatus::Disabled);
        let told = tell::source(name, status, detail.to_owned());
        if parts.emit.send(vec![told]).await.is_err() {
            return;
        }
    }
    for (candidate, there) in candidates.into_iter().zip(there) {
        // The seats of those that are there are taken in the order of the sockets.
        let seat = if there { parts.names.seat(&candidate.socket.path) } else { None };
        if there && seat.is_none() {
            continue;
        }
        let first = there.then(|| unheard.clone());
        tokio::spawn(Watch::new(candidate, seat, parts.clone()).run(first));
    }
}

/// Waits until the socket is there. A look costs one `stat`.
pub(super) async fn appear(candidate: &Candidate, pace: &Pace) {
    let (mut pause, longest) = pace.retry;
    while !candidate.is_there() {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

/// That there is a runtime, if it was told that there is none.
pub(super) async fn found(parts: &Parts) -> Result<(), crate::sources::Closed> {
    if !parts.names.found() {
        return Ok(());
    }
    let gone = What::SourceGone { name: names::NONE.to_owned() };
    parts.emit.send(vec![tell::fact(clock::now(), gone)]).await
}

/// Connects to whoever is behind a socket and learns who that is.
pub(super) async fn connect(socket: &Socket, pace: &Pace) -> Result<Client, RuntimeError> {
    let (first, other) = match (socket.kind, looks_like_docker(&socket.path)) {
        (Some(kind), _) => (kind, None),
        (None, true) => (Kind::Docker, Some(Kind::Cri)),
        (None, false) => (Kind::Cri, Some(Kind::Docker)),
    };
    let error = match speak(first, &socket.path, pace).await {
        Err(error) if error.may_be_another() => error,
        done => return done,
    };
    match other {
        // If neither is right, the likelier one has more to say.
        Some(other) => speak(other, &socket.path, pace).await.map_err(|_| error),
        None => Err(error),
    }
}

async fn speak(kind: Kind, path: &Path, pace: &Pace) -> Result<Client, RuntimeError> {
    let client = async {
        Ok(match kind {
            Kind::Cri => Client::Cri(cri::Client::connect(path).await?),
            Kind::Docker => Client::Docker(docker::Client::connect(path).await?),
        })
    };
    within("the version", pace.short, client).await
}

fn looks_like_docker(path: &Path) -> bool {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    file.starts_with("docker.") || file.starts_with("podman.")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A socket that may appear.
    pub(crate) fn maybe(path: &Path, kind: Kind) -> Candidate {
        let socket = Socket { path: path.to_owned(), kind: Some(kind) };
        Candidate { socket, beside: None, expected: false }
    }

    /// As [`watch`].
    pub(crate) async fn start(candidates: Vec<Candidate>, parts: Parts) {
        watch(candidates, parts, crate::sources::First::new(Pace::default().first).0).await;
    }

    #[test]
    fn a_socket_of_dockers_counts_beside_its_pid_file_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (path, pid) = (dir.path().join("docker.sock"), dir.path().join("docker.pid"));
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let mut candidate = maybe(&path, Kind::Docker);
        assert!(candidate.is_there());
        candidate.beside = Some(pid.clone());
        assert!(!candidate.is_there());
        std::fs::write(&pid, "1").unwrap();
        assert!(candidate.is_there());
    }

    #[test]
    fn a_file_is_no_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("containerd.sock");
        std::fs::write(&path, "").unwrap();
        assert!(!maybe(&path, Kind::Cri).is_there());
    }

    #[test]
    fn only_docker_may_be_waiting_to_be_started() {
        let beside = |place: &&Place| place.beside.is_some();
        let places: Vec<_> = PLACES.iter().filter(beside).map(|place| place.path).collect();
        assert_eq!(places, ["/run/docker.sock"]);
        assert!(candidates(None).iter().all(|candidate| !candidate.expected));
        assert!(candidates(Some(Vec::new())).is_empty());
    }
}
