//! Finds runtime sockets, and which API each speaks.

use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use super::error::RuntimeError;
use super::watch::{Client, Parts, Watch};
use super::{Kind, Pace, Socket, cri, docker, names, reporter, running};
use crate::clock;
use crate::fact::{Observation, SourceStatus};
use crate::reading::Readings;
use crate::sources::Unheard;
use crate::sources::backoff::Pauses;
use crate::sources::errors::within;
use crate::sources::socket::{Paused, SocketPath};

/// Reported while no runtime exists. A runtime that exists and does not answer is reported as down instead.
pub(super) const NOBODY: &str = "no runtime socket found";
const SWITCHED_OFF: &str = "switched off by the configuration";

/// A usual place of a runtime's socket.
struct UsualSocket {
    path: &'static str,
    kind: Kind,
    /// The socket counts only if this file exists: systemd listens on Docker's socket while dockerd does not run
    /// (`docker.socket`), and would start it for any client.
    beside: Option<&'static str>,
}

const USUAL: [UsualSocket; 5] = [
    UsualSocket::cri("/run/containerd/containerd.sock"),
    UsualSocket::cri("/run/k3s/containerd/containerd.sock"),
    UsualSocket::cri("/run/crio/crio.sock"),
    UsualSocket { path: "/run/docker.sock", kind: Kind::Docker, beside: Some("/run/docker.pid") },
    UsualSocket::cri("/run/dockershim.sock"),
];

impl UsualSocket {
    const fn cri(path: &'static str) -> Self {
        Self { path, kind: Kind::Cri, beside: None }
    }
}

/// A socket that may not exist yet.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) way: SocketPath,
    kind: Option<Kind>,
    beside: Option<PathBuf>,
    /// Whether the configuration names it: if it does not exist, that runtime is down.
    pub(super) expected: bool,
}

impl Candidate {
    /// The real path of the socket, with links resolved, if it exists.
    ///
    /// # Errors
    /// It is unknown whether it exists.
    pub(super) async fn find(&self) -> io::Result<Option<PathBuf>> {
        let beside = self.beside.clone();
        let look = move |path: &Path| {
            let is_socket = |metadata: std::fs::Metadata| metadata.file_type().is_socket();
            let is_there = std::fs::metadata(path).is_ok_and(is_socket)
                && beside.as_deref().is_none_or(is_running);
            Ok(if is_there { path.canonicalize().ok() } else { None })
        };
        self.way.look(look).await
    }

    /// The path as it was named.
    pub(super) fn path(&self) -> &Path {
        self.way.path()
    }

    /// Whether connecting would start a runtime that does not run.
    pub(super) fn may_be_started(&self) -> bool {
        self.beside.is_some()
    }

    /// Waits until the runtime can be asked without starting it. A dockerd that shuts down removes its pid file late,
    /// and a connection that waits until then would start it again.
    pub(super) async fn may_be_asked(&self, pace: &Pace) {
        if self.may_be_started() {
            tokio::time::sleep(pace.poll * 2).await;
            appear(self, pace).await;
        }
    }
}

/// Whether the process whose pid is in this file runs.
fn is_running(path: &Path) -> bool {
    let Ok(text) = crate::bounded::read_text(path, 32) else { return false };
    let pid: Option<u32> = text.trim().parse().ok();
    pid.is_some_and(|pid| Path::new("/proc").join(pid.to_string()).exists())
}

fn candidates(sockets: Option<Vec<Socket>>, readings: &Readings) -> Vec<Candidate> {
    let way = |path: &Path| SocketPath::new(path, running::NAME, readings);
    if let Some(sockets) = sockets {
        let named = |Socket { path, kind }| Candidate {
            way: way(&path),
            kind,
            beside: None,
            expected: true,
        };
        return sockets.into_iter().map(named).collect();
    }
    let usual = |place: &UsualSocket| Candidate {
        way: way(Path::new(place.path)),
        kind: Some(place.kind),
        beside: place.beside.map(PathBuf::from),
        expected: false,
    };
    USUAL.iter().map(usual).collect()
}

/// Starts a watch for every socket. The watches of sockets that exist now hold `unheard` until they have answered.
pub(super) async fn run(sockets: Option<Vec<Socket>>, parts: Parts, unheard: Unheard) {
    watch(candidates(sockets, &parts.readings), parts, unheard).await;
}

async fn watch(candidates: Vec<Candidate>, parts: Parts, unheard: Unheard) {
    // Checked in parallel and with a timeout, so that a socket that hangs does not delay others. It is found later,
    // unless the configuration names it.
    let looks = candidates.iter().map(|one| tokio::time::timeout(parts.pace.first / 2, one.find()));
    let real: Vec<Option<PathBuf>> = futures_util::future::join_all(looks)
        .await
        .into_iter()
        .map(|found| found.ok().and_then(Result::ok).flatten())
        .collect();
    let is_there = |(one, real): (&Candidate, &Option<PathBuf>)| one.expected || real.is_some();
    if !candidates.iter().zip(&real).any(is_there) {
        let detail = if candidates.is_empty() { SWITCHED_OFF } else { NOBODY };
        parts.names.none();
        let (name, status) = (names::NONE.to_owned(), SourceStatus::Disabled);
        let told = reporter::source(name, status, detail.to_owned());
        if parts.emit.send(vec![told]).await.is_err() {
            return;
        }
    }
    for (candidate, real) in candidates.into_iter().zip(real) {
        let there = is_there((&candidate, &real));
        // Existing sockets take their seats in the order of the configuration.
        let seat = if there { parts.names.seat(candidate.path(), real) } else { None };
        if there && seat.is_none() {
            continue;
        }
        let first = there.then(|| unheard.clone());
        tokio::spawn(Watch::new(candidate, seat, parts.clone()).run(first));
    }
}

/// Waits until the socket exists. Returns its real path.
pub(super) async fn appear(candidate: &Candidate, pace: &Pace) -> PathBuf {
    let mut pauses = Pauses::new(pace.retry);
    loop {
        if let Ok(Some(real)) = candidate.find().await {
            return real;
        }
        if let Paused::Early = candidate.way.pause(pauses.after_failure()).await {
            pauses.begin_anew();
        }
    }
}

/// Reports that a runtime exists, if it was reported that there is none.
pub(super) async fn found(parts: &Parts) -> Result<(), crate::sources::Closed> {
    if !parts.names.found() {
        return Ok(());
    }
    let gone = Observation::SourceGone { name: names::NONE.to_owned() };
    parts.emit.send(vec![reporter::fact(clock::now(), gone)]).await
}

/// Connects to a socket and detects which API it speaks.
pub(super) async fn connect(candidate: &Candidate, pace: &Pace) -> Result<Client, RuntimeError> {
    let way = &candidate.way;
    let (first, other) = match (candidate.kind, looks_like_docker(way.path())) {
        (Some(kind), _) => (kind, None),
        (None, true) => (Kind::Docker, Some(Kind::Cri)),
        (None, false) => (Kind::Cri, Some(Kind::Docker)),
    };
    let error = match speak(first, way, pace).await {
        Err(error) if error.may_be_another() => error,
        done => return done,
    };
    match other {
        // If neither works, the error of the likelier one is more useful.
        Some(other) => speak(other, way, pace).await.map_err(|_| error),
        None => Err(error),
    }
}

async fn speak(kind: Kind, way: &SocketPath, pace: &Pace) -> Result<Client, RuntimeError> {
    let client = async {
        Ok(match kind {
            Kind::Cri => Client::Cri(cri::Client::connect(way).await?),
            Kind::Docker => Client::Docker(docker::Client::connect(way).await?),
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
        let way = SocketPath::new(path, running::NAME, &Readings::default());
        Candidate { way, kind: Some(kind), beside: None, expected: false }
    }

    /// As [`watch`].
    pub(crate) async fn start(candidates: Vec<Candidate>, parts: Parts) {
        watch(candidates, parts, crate::sources::First::new(Pace::default().first).0).await;
    }

    async fn is_there(candidate: &Candidate) -> bool {
        candidate.find().await.unwrap().is_some()
    }

    #[tokio::test]
    async fn a_socket_of_dockers_counts_beside_its_pid_file_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (path, pid) = (dir.path().join("docker.sock"), dir.path().join("docker.pid"));
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let mut candidate = maybe(&path, Kind::Docker);
        assert!(is_there(&candidate).await);
        candidate.beside = Some(pid.clone());
        assert!(!is_there(&candidate).await);
        std::fs::write(&pid, "1").unwrap();
        assert!(is_there(&candidate).await);
    }

    #[tokio::test]
    async fn a_socket_is_known_by_where_its_link_leads() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link) = (dir.path().join("real.sock"), dir.path().join("link.sock"));
        let _listener = std::os::unix::net::UnixListener::bind(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let found = maybe(&link, Kind::Cri).find().await.unwrap();
        assert_eq!(found, Some(real.canonicalize().unwrap()));
    }

    #[tokio::test]
    async fn a_file_is_no_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("containerd.sock");
        std::fs::write(&path, "").unwrap();
        assert!(!is_there(&maybe(&path, Kind::Cri)).await);
    }

    #[test]
    fn only_docker_may_be_waiting_to_be_started() {
        let beside = |place: &&UsualSocket| place.beside.is_some();
        let places: Vec<_> = USUAL.iter().filter(beside).map(|place| place.path).collect();
        assert_eq!(places, ["/run/docker.sock"]);
        let readings = Readings::default();
        assert!(candidates(None, &readings).iter().all(|candidate| !candidate.expected));
        assert!(candidates(Some(Vec::new()), &readings).is_empty());
    }
}
