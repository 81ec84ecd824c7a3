//! Which sockets there are, and what one speaks.

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
use crate::sources::socket::{Paused, Way};

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
    pub(super) way: Way,
    kind: Option<Kind>,
    beside: Option<PathBuf>,
    /// Somebody said that it is there: if it is not, that runtime is down.
    pub(super) expected: bool,
}

impl Candidate {
    /// Where it really is, links resolved, if it is there.
    ///
    /// # Errors
    /// Nobody knows.
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

    /// Where it is, as it was named.
    pub(super) fn path(&self) -> &Path {
        self.way.path()
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

fn candidates(sockets: Option<Vec<Socket>>, readings: &Readings) -> Vec<Candidate> {
    let way = |path: &Path| Way::new(path, running::NAME, readings);
    if let Some(sockets) = sockets {
        let named = |Socket { path, kind }| Candidate {
            way: way(&path),
            kind,
            beside: None,
            expected: true,
        };
        return sockets.into_iter().map(named).collect();
    }
    let usual = |place: &Place| Candidate {
        way: way(Path::new(place.path)),
        kind: Some(place.kind),
        beside: place.beside.map(PathBuf::from),
        expected: false,
    };
    PLACES.iter().map(usual).collect()
}

/// Starts a watch for every socket. Those that are there now hold `unheard` until they have answered.
pub(super) async fn run(sockets: Option<Vec<Socket>>, parts: Parts, unheard: Unheard) {
    watch(candidates(sockets, &parts.readings), parts, unheard).await;
}

async fn watch(candidates: Vec<Candidate>, parts: Parts, unheard: Unheard) {
    // All at once, and none for long: one that hangs holds up no other. It is found later, unless it was named.
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
        // The seats of those that are there are taken in the order of the sockets.
        let seat = if there { parts.names.seat(candidate.path(), real) } else { None };
        if there && seat.is_none() {
            continue;
        }
        let first = there.then(|| unheard.clone());
        tokio::spawn(Watch::new(candidate, seat, parts.clone()).run(first));
    }
}

/// Waits until the socket is there. Where it really is.
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

/// That there is a runtime, if it was told that there is none.
pub(super) async fn found(parts: &Parts) -> Result<(), crate::sources::Closed> {
    if !parts.names.found() {
        return Ok(());
    }
    let gone = Observation::SourceGone { name: names::NONE.to_owned() };
    parts.emit.send(vec![reporter::fact(clock::now(), gone)]).await
}

/// Connects to whoever is behind a socket and learns who that is.
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
        // If neither is right, the likelier one has more to say.
        Some(other) => speak(other, way, pace).await.map_err(|_| error),
        None => Err(error),
    }
}

async fn speak(kind: Kind, way: &Way, pace: &Pace) -> Result<Client, RuntimeError> {
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
        let way = Way::new(path, running::NAME, &Readings::default());
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
        let beside = |place: &&Place| place.beside.is_some();
        let places: Vec<_> = PLACES.iter().filter(beside).map(|place| place.path).collect();
        assert_eq!(places, ["/run/docker.sock"]);
        let readings = Readings::default();
        assert!(candidates(None, &readings).iter().all(|candidate| !candidate.expected));
        assert!(candidates(Some(Vec::new()), &readings).is_empty());
    }
}
