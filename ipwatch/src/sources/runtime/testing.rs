//! Running the source in tests, and what becomes of its facts. The runtimes are fake ones, each on a
//! socket of its own: [`cri::fake`](super::cri::fake), [`docker::fake`](super::docker::fake), and some
//! that speak neither.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixListener;
use tokio::sync::mpsc;

pub(super) use super::cri::fake::{CONTAINERD_EVENTS, Cri, V1, V1ALPHA2};
pub(super) use super::docker::fake::Docker;
use super::{Kind, Pace, Runtimes, Settings, Socket, begin};
use crate::fact::{Container, Fact, Sandbox, Source, SourceStatus, What};
use crate::sources::{Emit, First};

/// Bounds a wait; no test depends on how long it really takes.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Patient with whoever answers, and quick otherwise.
pub(super) fn pace() -> Pace {
    let ms = Duration::from_millis;
    Pace {
        short: PATIENCE,
        list: PATIENCE,
        first: PATIENCE,
        poll: ms(50),
        slow: Duration::from_secs(3600),
        settle: ms(5),
        after: ms(20),
        apart: ms(2),
        retry: (ms(20), ms(50)),
    }
}

/// As [`pace`], with little patience for who does not answer.
pub(super) fn hurried() -> Pace {
    Pace { short: Duration::from_millis(200), list: Duration::from_secs(1), ..pace() }
}

/// A directory for sockets.
pub(super) struct Place(tempfile::TempDir);

impl Place {
    pub(super) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }
}

/// The facts of running sources.
pub(super) struct Seen {
    facts: mpsc::Receiver<Vec<Fact>>,
    pub(super) all: Vec<Fact>,
}

/// Starts the source on these sockets, as the configuration names them.
pub(super) fn run(sockets: &[(&Path, Option<Kind>)], pace: Pace) -> (Runtimes, First, Seen) {
    let socket =
        |(path, kind): &(&Path, Option<Kind>)| Socket { path: path.to_path_buf(), kind: *kind };
    let sockets = Some(sockets.iter().map(socket).collect());
    let (emit, seen) = Seen::channel();
    let (runtimes, first) =
        begin(Settings { sockets, follow: true, ..Settings::default() }, pace, emit);
    (runtimes, first, seen)
}

impl Seen {
    pub(super) fn channel() -> (Emit, Self) {
        let (emit, facts) = Emit::channel(64);
        (emit, Self { facts, all: Vec::new() })
    }

    /// The first fact from now on of which `fits` makes something.
    pub(super) async fn until<T>(&mut self, what: &str, fits: impl Fn(&What) -> Option<T>) -> T {
        let wait = async {
            loop {
                let batch = self.facts.recv().await.expect("the source has ended");
                let found = batch.iter().find_map(|fact| fits(&fact.what));
                self.all.extend(batch);
                if let Some(found) = found {
                    return found;
                }
            }
        };
        match tokio::time::timeout(PATIENCE, wait).await {
            Ok(found) => found,
            Err(_) => {
                let lines = self.all.iter().rev().take(20).rev();
                let seen: Vec<_> = lines.map(|fact| serde_json::to_string(fact).unwrap()).collect();
                panic!("never: {what}; last seen:\n{}", seen.join("\n"))
            }
        }
    }

    pub(super) async fn source(&mut self, name: &str, status: SourceStatus) -> Source {
        let what = format!("source {name} {status:?}");
        self.until(&what, |what| match what {
            What::Source(source) if source.name == name && source.status == status => {
                Some(source.clone())
            }
            _ => None,
        })
        .await
    }

    /// The end of the next list; whether it was complete.
    pub(super) async fn list(&mut self) -> bool {
        self.until("the end of a list", |what| match what {
            What::Ended { complete, .. } => Some(*complete),
            _ => None,
        })
        .await
    }

    /// A sandbox whose netns is known.
    pub(super) async fn whole(&mut self, id: &str) -> Sandbox {
        self.until(&format!("sandbox {id}, whole"), |what| match what {
            What::Sandbox(sandbox) if sandbox.id == id && sandbox.netns_path.is_some() => {
                Some(sandbox.clone())
            }
            _ => None,
        })
        .await
    }

    /// What is told within a while.
    pub(super) async fn settle(&mut self) {
        let until = tokio::time::Instant::now() + Duration::from_millis(300);
        while let Ok(Some(batch)) = tokio::time::timeout_at(until, self.facts.recv()).await {
            self.all.extend(batch);
        }
    }

    pub(super) fn sandboxes(&self) -> impl Iterator<Item = &Sandbox> {
        self.all.iter().filter_map(|fact| match &fact.what {
            What::Sandbox(sandbox) => Some(sandbox),
            _ => None,
        })
    }

    pub(super) fn containers(&self) -> impl Iterator<Item = &Container> {
        self.all.iter().filter_map(|fact| match &fact.what {
            What::Container(container) => Some(container),
            _ => None,
        })
    }
}

/// A socket that takes every connection and says `text`, then nothing, for ever.
pub(super) fn says(path: &Path, text: &'static [u8]) {
    let listener = UnixListener::bind(path).unwrap();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(text).await;
            open.push(stream);
        }
    });
}
